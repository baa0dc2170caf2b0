"""fused_adam: the same steps as the default's, runs that go on with either, a receipt that is earned."""

import copy
import dataclasses

import pytest
import torch

from stylegan_lite import make_step
from tests.support.rung_steps import gathered, receipt, small
from tests.support.small import SMALL

FUSED_ADAM = {"fused_adam": True, "ema": "foreach"}
torch.set_num_threads(1)


def test_fused_adam_and_foreach_average_take_the_same_steps():
    found = []
    for recipe in ({}, FUSED_ADAM):
        step = small(recipe, ema_images=8)
        torch.manual_seed(1)
        for _ in range(5):
            step.step()
        found.append(step)
    plain, fused = found
    for network in ("G", "D", "G_ema"):
        pairs = zip(getattr(plain, network).parameters(), getattr(fused, network).parameters(), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert torch.equal(fused.G_ema.mapping.w_avg, fused.G.mapping.w_avg)
    settings = fused.settings()
    assert settings["adam_fused"] is True and settings["ema"] == "foreach"


@pytest.mark.parametrize("other", [FUSED_ADAM, {}], ids=["fused", "default"])
def test_a_run_of_fused_adam_is_resumed(other):
    step = small(FUSED_ADAM)
    step.prepare()
    for _ in range(5):
        step.step()
    state = copy.deepcopy(step.state_dict())
    assert all(torch.is_tensor(s["step"]) and float(s["step"]) > 0 for s in state["opt_G"].values())
    for _ in range(3):
        step.step()
    resumed = make_step(SMALL, other, device="cpu", seed=99)
    resumed.feed.sampler.seed = step.feed.sampler.seed
    resumed.load_state_dict(state)
    for _ in range(3):
        resumed.step()
    exact = {"rel": 0, "abs": 0} if other else {"rel": 1e-2}
    for phase in ("G_main", "D_main"):
        assert resumed.losses()[phase] == pytest.approx(step.losses()[phase], **exact)
    for a, b in zip(step.opt_G.state.values(), resumed.opt_G.state.values(), strict=True):
        assert float(a["step"]) == float(b["step"])


def test_fused_adam_shows_its_receipt():
    found = receipt("fused_adam", gathered(small(FUSED_ADAM)))
    assert found.engaged, found.lines
    assert not receipt("fused_adam", gathered(small())).engaged


def test_fused_adam_sabotaged(refused):
    def unfused(step):
        for optimizer in (step.opt_G, step.opt_D):
            optimizer.param_groups[0].update(fused=None, foreach=True)

    def half(step):
        step.opt_D.param_groups[0].update(fused=None, foreach=True)

    def loop(step):
        step.recipe = dataclasses.replace(step.recipe, ema="loop")

    for plant, said, what in (
        (unfused, "Adam fused", "Adam is foreach"),
        (half, "called 2x in one run", "the discriminator's Adam is foreach"),
        (loop, "0x", "the moving average is a loop"),
    ):
        refused("fused_adam", gathered(small(FUSED_ADAM), plant), said, sabotage=what)
