"""Several ranks train as one process does: inputs, data, gradients, statistics and checkpoints of the total batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from stylegan_lite import ConfigError, Recipe, Workload, make_step, shares
from stylegan_lite.step.data import EpochSampler
from stylegan_lite.step.inputs import PhaseInputs
from stylegan_lite.stylegan2 import declare_inputs
from tests.support import process_groups
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"batch": 8}
STEPS = 5  # path length twice, R1 once
FP64 = {"precision": "fp64"}
BASES = {
    "plain": FP64,
    "R": FP64 | {"channels_last": True, "set_to_none": True, "joint_batch": True, "conv": "double_backward"},
    "top": FP64 | {"set_to_none": True, "weights": "once", "conv": "double_backward", "streams": "two"},
}
WAYS = [("plain", "flat"), ("plain", "ddp"), ("R", "flat"), ("R", "ddp"), ("top", "flat")]


def trained(recipe: dict[str, Any], steps: int = STEPS, state: dict[str, Any] | None = None) -> Any:
    step = make_step(WORKLOAD, recipe, device="cpu", seed=3)
    step.prepare()
    if state is not None:
        step.load_state_dict(state)
    for _ in range(steps):
        step.step()
    return step


def tensors(step: Any) -> dict[str, torch.Tensor]:
    named = {f"{n}.{k}": t for n in ("G", "D", "G_ema") for k, t in getattr(step, n).state_dict().items()}
    return {k: t.detach().clone() for k, t in (named | {"pl_mean": step.pl_mean} | step.loss).items()}


def on_two_ranks() -> dict[str, Any]:
    """Train on each of two ranks, in every way, and see what else ranks decide together."""
    found: dict[str, Any] = {}
    for base, way in WAYS:
        step = trained(BASES[base] | {"ranks": 2, "reduce": way})
        found[f"{base} {way}"] = tensors(step), dict(step.ranks.bytes)
    local = trained(FP64 | {"ranks": 2, "reduce": "flat", "rank_statistics": "local"})
    found["local"] = tensors(local)
    found["state"] = trained(FP64 | {"ranks": 2, "reduce": "flat"}).state_dict()
    scaled = make_step(WORKLOAD, {"precision": "fp16", "ranks": 2, "reduce": "flat"}, device="cpu")
    overflow = torch.tensor(float(scaled.ranks.rank == 1))
    scaled.ranks.agree_on(overflow)
    found["overflow"] = float(overflow)
    found["any"] = scaled.ranks.any(scaled.ranks.rank == 1, "cpu"), scaled.ranks.any(False, "cpu")
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return process_groups.run(on_two_ranks, 2)


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, torch.Tensor]]:
    return {base: tensors(trained(recipe)) for base, recipe in BASES.items()}


def furthest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k]).abs().max() / (b[k].abs().max() + 1e-12)) for k in b)


@pytest.mark.parametrize(("base", "way"), WAYS)
def test_two_ranks_of_batch_4_train_as_one_process_of_batch_8(base, way, ranks, alone):
    """Weights, moving average, mean path length, average w and the losses of every phase, in FP64."""
    for each in ranks:
        assert furthest(each[f"{base} {way}"][0], alone[base]) < 1e-9


def test_the_way_tells_the_bytes_that_each_phase_has_reduced(ranks):
    step = make_step(WORKLOAD, FP64, device="cpu")
    of_g, of_d = (8 * sum(p.numel() for p in n.parameters()) for n in (step.G, step.D))
    ddp = ranks[0]["plain ddp"][1]
    assert (ddp["G_main"], ddp["D_main"]) == (of_g, of_d) and ddp["G_pl"] < of_g and ddp["D_r1"] < of_d
    assert ranks[0]["plain flat"][1] == dict.fromkeys(("G_main", "G_pl"), of_g + 8) | dict.fromkeys(
        ("D_main", "D_r1"), of_d + 8
    )  # and the loss


def test_rank_local_statistics_are_each_ranks_own(ranks, alone):
    paths = [float(each["local"]["pl_mean"]) for each in ranks]
    assert paths[0] != paths[1] and float(alone["plain"]["pl_mean"]) not in paths


def test_an_overflow_of_one_rank_is_one_of_all(ranks):
    assert [each["overflow"] for each in ranks] == [1.0, 1.0]
    assert [each["any"] for each in ranks] == [(True, False)] * 2


def test_one_process_goes_on_where_two_ranks_stopped(ranks):
    states = [each["state"] for each in ranks]
    assert states[0]["data"] == states[1]["data"] == {"epoch": 0, "images": STEPS * 8}
    assert torch.equal(states[0]["rng"], states[1]["rng"])
    resumed = tensors(trained(FP64, 3, states[1]))
    assert furthest(resumed, tensors(trained(FP64, STEPS + 3))) < 1e-9


# Shares


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_rank_is_given_its_samples_of_the_total_batch(layout):
    workload = Workload.from_dict(WORKLOAD | {"batch": 16})
    made = {"device": "cpu", "dtype": torch.float32, "memory_format": layout}
    declared = declare_inputs(workload, "G_pl", lambda n: [(n, 1, 4, 4), (n, 1, 8, 8)], 4)
    inputs = [PhaseInputs(declared, rank=rank, ranks=2, **made) for rank in range(2)]
    whole = PhaseInputs(declared, **made)
    torch.manual_seed(5)
    whole.fill()
    for rank, share in enumerate(inputs):
        torch.manual_seed(5)
        share.fill()
        assert share.batch == 4 and torch.equal(share.uniform, whole.uniform)
        assert torch.equal(share.z[:4], whole.z[:8][rank::2]) and torch.equal(
            share.z[4:], whole.z[8:][rank::2]
        )
        for own, all_of_them in zip(
            [*share.noise, share.image_noise], [*whole.noise, whole.image_noise], strict=True
        ):
            assert torch.equal(own, all_of_them[rank::2])
        assert share.image_noise.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(("batch", "ranks", "group"), [(8, 2, 4), (16, 2, 4), (24, 3, 4), (16, 4, 2)])
def test_a_rank_holds_whole_groups_of_minibatch_standard_deviation(batch, ranks, group):
    """Sample n is in group n mod (N / group), of the total batch as of a rank's."""
    groups = {k: {n for n in range(batch) if n % (batch // group) == k} for k in range(batch // group)}
    own = batch // ranks
    for rank in range(ranks):
        for k in range(own // group):
            numbers = {n * ranks + rank for n in range(own) if n % (own // group) == k}
            assert numbers in groups.values()


@pytest.mark.parametrize(("images", "batch", "ranks"), [(13, 8, 2), (15, 8, 2), (16, 8, 4), (100, 12, 3)])
def test_an_epoch_shows_each_image_at_most_once_to_any_rank(images, batch, ranks):
    samplers = [EpochSampler(images, 1, True, rank=r, ranks=ranks, batch=batch) for r in range(ranks)]
    shares_of = [list(each) for each in samplers]
    assert len({len(share) for share in shares_of}) == 1 and len(shares_of[0]) == len(samplers[0])
    seen = [index for share in shares_of for index, _ in share]
    assert len(set(seen)) == len(seen) > images - batch
    whole = list(EpochSampler(images, 1, True))
    for each in samplers:  # from a position in images, whatever the ranks
        each.skip = batch
    again = [list(each) for each in samplers]
    assert sorted(itertools.chain(*again)) == sorted(whole[batch : len(seen)])


# Refusals


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"ranks": 2}, "needs reduce"),
        ({"ranks": 0}, "at least 1"),
        ({"reduce": "ddp", "weights": "once"}, "weights: once"),
        (
            {"reduce": "ddp", "weights": "once", "fused_adam": True, "fused_update": True},
            "fused_update: true",
        ),
        ({"reduce": "ddp", "weights": "once", "conv": "double_backward", "streams": "two"}, "streams: two"),
        ({"reduce": "ddp", "cuda_graphs": True, "adam": "capturable"}, "cuda_graphs: false"),
        ({"reduce": "data_parallel", "joint_batch": True}, "joint_batch: false"),
        ({"reduce": "flat", "compile": "default"}, "compile: off"),
    ],
)
def test_a_contradiction_is_one_line(recipe, words):
    with pytest.raises(ConfigError, match=words) as refused:
        Recipe.from_dict(recipe)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("batch", "ranks", "words"),
    [(8, 3, "multiple of ranks"), (8, 4, "cuts groups"), (4, 4, "path length takes 2")],
)
def test_a_batch_that_cannot_be_shared_is_refused(batch, ranks, words):
    recipe = Recipe.from_dict({"ranks": ranks, "reduce": "flat"})
    assert words in (shares.problem_with(recipe, Workload.from_dict(WORKLOAD | {"batch": batch})) or "")


def test_each_gpu_of_nn_dataparallel_gets_the_samples_of_a_rank_as_they_lie_in_memory():
    step = make_step(WORKLOAD, {"ranks": 2, "reduce": "data_parallel"}, device="cpu")
    seen: list[torch.Tensor] = []
    step.pair.called[1]._parts = 2  # as on two GPUs
    step.D.from_rgb.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        step.pair.called[1](x)
    assert seen[0][:, 0, 0, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
