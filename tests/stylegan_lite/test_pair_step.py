"""The step of a pair that is not StyleGAN2: phases, weights that a phase does not reach, parts of a batch, state."""

import copy
import warnings

import pytest
import torch
from torch import nn

from stylegan_lite.config import PairWorkload, Recipe
from stylegan_lite.step import Input, Phase, TrainingStep
from stylegan_lite.step.data import OwnBatches
from tests.support.fake_graphs import Streams


class Little:
    """D's lazy penalty does not reach its bias; Adam has momentum."""

    def __init__(self):
        self.networks = {"G": nn.Linear(3, 4), "D": nn.Linear(4, 1), "frozen": nn.Linear(4, 4)}
        self.phases = [Phase("d", "D"), Phase("penalty", "D", 4, twice=True), Phase("g", "G")]
        self.averages = {"G": 8.0}
        self.state = "an attribute of the user's own"

    def inputs(self, phase):
        return {
            "z": Input((8, 3)),
            "real": Input((8, 4), "uniform"),
            "kind": Input((8,), "labels", classes=3),
        }

    def loss(self, phase, inputs):
        G, D, frozen = (self.networks[name] for name in ("G", "D", "frozen"))
        if phase == "penalty":
            x = inputs.real.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(D(x).sum(), x, create_graph=True)
            return gradient.square().sum(1).mean()
        fake = frozen(G(inputs["z"])) + inputs.kind[:, None]
        return D(fake).mean() - D(inputs.real).square().mean() if phase == "d" else -D(fake).mean()

    def optimizer(self, network):
        return torch.optim.Adam(self.networks[network].parameters(), lr=0.1, betas=(0.5, 0.9))


def trained(change=None, steps=6, make=Little):
    workload = PairWorkload(pair="", model=[], settings={}, batch=8)
    recipe = Recipe.from_dict({"precision": "fp64"} | (change or {}))
    step = TrainingStep(make, workload, recipe, device="cpu", seed=5)
    step.prepare()
    for _ in range(steps):
        step.step()
    return step


def weights(step):
    return {f"{name}.{key}": p for name, each in step.networks.items() for key, p in each.named_parameters()}


@pytest.fixture(scope="module")
def base():
    return trained()


@pytest.mark.parametrize(
    "change", [{"set_to_none": True}, {"micro_batches": 4}, {"fused_adam": True, "ema": "foreach"}], ids=str
)
def test_recipes_train_the_same_weights(change, base):
    found = weights(trained(change))
    for name, value in weights(base).items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12, msg=name)


def test_phases_come_in_order_at_their_intervals(base):
    assert base.phases(0) == ("d", "penalty", "g") and base.phases(1) == base.phases(0, lazy=False) == (
        "d",
        "g",
    )
    assert base.last == "g" and base.settings()["adam_fused"] is None


def test_a_frozen_network_stays_and_trained_ones_move(base):
    start = weights(trained(steps=0))
    moved = {
        name.split(".")[0] for name, value in weights(base).items() if not torch.equal(value, start[name])
    }
    assert moved == {"G", "D"}


def test_momentum_does_not_move_a_weight_in_a_phase_that_does_not_reach_it(base):
    before = base.networks["D"].bias.detach().clone()
    for _ in range(2):
        base.run_phase("penalty")
    assert torch.equal(base.networks["D"].bias, before)


def test_the_average_has_its_half_life(base):
    average, network = base.averages["G"], base.networks["G"]
    with torch.no_grad():
        average.weight.zero_()
    base._update_ema()  # of a batch of 8 images
    torch.testing.assert_close(average.weight, network.weight / 2)


def test_a_resumed_step_repeats_the_uninterrupted_one():
    first = trained(steps=3)
    state = copy.deepcopy(first.state_dict())
    for _ in range(3):
        first.step()
    other = trained(steps=0)
    other.load_state_dict(state)
    for _ in range(3):
        other.step()
    assert all(torch.equal(value, weights(other)[name]) for name, value in weights(first).items())


class Hooked(Little):
    """G with the older weight norm, whose hook leaves a tensor with a graph in its module."""

    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.networks["G"] = nn.utils.weight_norm(self.networks["G"])


def test_a_network_with_the_older_weight_norm_is_averaged():
    step = trained(make=Hooked)
    assert step.averages["G"].weight_g.isfinite().all() and step.check_finite() is None


class Counting:
    """A pair of batches of its own, as a feed knows it."""

    def batch(self, number):
        return {"x": torch.full((4, 2), float(number)), "y": torch.arange(4) + number}


AHEAD = {"async_copy": True, "pin_memory": True}


@pytest.mark.parametrize("recipe", [{}, {"workers": 2, "prefetch_factor": 2}, AHEAD], ids=str)
def test_own_batches_come_in_order_and_go_on_where_they_stopped(recipe, monkeypatch):
    Streams(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    data = {"x": torch.zeros(4, 2), "y": torch.zeros(4, dtype=torch.int64)}
    feed = OwnBatches(Counting(), Recipe(**recipe), data, seed=1)
    try:
        for number in range(3):
            feed.next()
            assert data["x"][0, 0] == data["y"][0] == 1_000_003 + number
        feed.load_state_dict({"batches": 7})
        feed.next()
        assert data["y"][0] == 1_000_003 + 7 and feed.state_dict() == {"batches": 8}
    finally:
        feed.close()


def test_a_rank_takes_its_samples_of_an_own_batch():
    data = {"x": torch.zeros(2, 2), "y": torch.zeros(2, dtype=torch.int64)}
    OwnBatches(Counting(), Recipe(), data, seed=0, rank=1, ranks=2).next()
    assert data["y"].tolist() == [1, 3]
