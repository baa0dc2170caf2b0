"""FP16's loss scales: what torch.amp.GradScaler does, without waiting for the device; skipped updates; penalties."""

import copy
import types
from itertools import pairwise

import pytest
import torch
from torch.amp import GradScaler

from stylegan_lite import losses
from stylegan_lite.losses import PHASES
from stylegan_lite.step.scaling import LossScale, describe
from tests.support.rung_steps import checked, every_phase, small
from tests.support.small import LEAST

torch.set_num_threads(1)
FP16 = {"precision": "fp16"}
FUSED = {"fused_adam": True, "ema": "foreach"}
OURS = FUSED | {"weights": "once", "fused_update": True}
QUICK = {"loss_scale": 2.0**20, "loss_scale_interval": 3}  # overflows at first, and grows again


def with_grad_scalers(step):
    """The same step as plain PyTorch writes it: two GradScalers, a foreach Adam, and waiting."""
    how = {"init_scale": step.recipe.loss_scale, "growth_interval": step.recipe.loss_scale_interval}
    scalers = {name: GradScaler("cpu", **how) for name in ("G", "D")}
    seen = []

    def update(phase):
        network, optimizer = step._trained(phase)
        for each in (step.G, step.D):
            each.requires_grad_(each is network)
        optimizer.zero_grad(set_to_none=False)
        scaler = scalers[phase[0]]
        scaler.scale(torch.zeros(()))  # it makes its scale when it first sees a device
        inner = types.SimpleNamespace(scale=scaler._scale, inverse=1 / scaler._scale)
        step.scales = {phase[0]: inner}
        loss = step._loss(phase)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((phase, scaler.get_scale()))
        if phase == "D_main":
            step._update_ema()

    step._update = update
    return seen


def steps_of(recipe, count=10, **workload):
    """The step, and after each phase the scale of the network that was trained."""
    plain = recipe == "GradScaler"
    fields = FP16 | QUICK | ({} if plain else recipe)
    step, seen = small(fields, r1_interval=2, pl_interval=2, **workload), []
    if plain:
        seen = with_grad_scalers(step)
    else:
        update = step._update
        step._update = lambda phase: (update(phase), seen.append((phase, float(step.scales[phase[0]].scale))))
    torch.manual_seed(5)
    for _ in range(count):
        step.step()
    return step, seen


@pytest.fixture(scope="module")
def reference():
    return steps_of("GradScaler")


@pytest.mark.parametrize("recipe", [{}, FUSED], ids=["waits", "on the device"])
def test_scales_and_weights_are_those_of_two_grad_scalers(recipe, reference):
    theirs, expected = reference
    mine, seen = steps_of(recipe)
    assert seen == expected
    grown = [b > a for (_, a), (_, b) in pairwise(seen)]
    assert any(grown) and not all(grown)  # overflows and growth were both in it
    for network in ("G", "D", "G_ema"):
        for a, b in zip(*(getattr(s, network).parameters() for s in (mine, theirs)), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
    assert 0 < int(mine.scales["G"].skipped) < int(mine.scales["G"].updates) == 15


def state_of(step):
    moments = [t for o in (step.opt_G, step.opt_D) for s in o.state.values() for t in s.values()]
    copies = [e.copy for kept in step.copies.values() for e in kept.entries]
    weights = [*step.G.parameters(), *step.D.parameters()]
    return [t.detach().clone() for t in (*weights, *moments, *copies, step.pl_mean)]


@pytest.mark.parametrize("recipe", [{}, FUSED, OURS], ids=["plain", "fused", "ours"])
def test_a_skipped_update_moves_nothing_but_the_scale(recipe):
    step = small(FP16 | recipe | {"loss_scale": 1.0}, **LEAST)
    step.prepare()
    step.feed.next()
    for phase in PHASES:
        step.run_phase(phase)
    assert [int(s.skipped) for s in step.scales.values()] == [0, 0]
    before, before_losses = state_of(step), step.losses()
    for scale in step.scales.values():
        scale.scale.fill_(2.0**60)
    for phase in PHASES:
        step.run_phase(phase)
    assert describe(step.scales)["G"] == {"scale": 2.0**58, "skipped": 2, "updates": 4}
    assert describe(step.scales)["D"] == {"scale": 2.0**58, "skipped": 2, "updates": 4}
    for a, b in zip(before, state_of(step), strict=True):
        assert torch.equal(a, b)
    assert step.losses() == before_losses and step.check_finite() is None


def test_our_kernel_trains_as_the_fused_optimizer_does():
    ours, theirs = (steps_of(recipe, count=4, **LEAST) for recipe in (OURS, FUSED | {"weights": "once"}))
    assert ours[1] == theirs[1]
    for network in ("G", "D"):
        for a, b in zip(*(getattr(s[0], network).parameters() for s in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)


def test_gradients_that_are_kept_for_inspection_carry_no_scale():
    recipe = FP16 | {"loss_scale": 256.0}
    found, plain = (every_phase(small(recipe | more))[1] for more in (OURS, {}))
    for phase, gradients in found.items():
        for name, gradient in gradients.items():
            whole = torch.stack([g.norm() for g in plain[phase].values()]).norm()
            assert float((gradient - plain[phase][name]).norm()) < 0.02 * float(whole), (phase, name)


def test_the_r1_gradient_does_not_depend_on_the_scale_but_for_what_is_too_small_without_it():
    exact, half = small({"precision": "fp64"}), small(FP16)
    half.D.load_state_dict(exact.D.state_dict())
    real = torch.randn(4, 3, 16, 16)
    tiny = 3e-5  # of the logits: gradients of small magnitude, as late in training; at 1e-4 some CPUs lose only 0.2%

    def gradient(step, scale, gain):
        class Small(torch.nn.Module):
            def forward(self, image):
                return step.D(image) * gain

        x = real.to(step.dtype)
        found = losses.d_r1(Small(), x, 1.0, 1, step.amp, scale=scale) / gain**2
        outer = 1.0 if scale is None else float(scale.scale)
        first = next(step.D.parameters())
        (g,) = torch.autograd.grad(found * outer * gain**2, first)
        return float(found.detach()), g.double() / outer / gain**2

    loss, wanted = gradient(exact, None, 1.0)
    for exponent in (0, 6, 10):
        found, g = gradient(half, LossScale("cpu", 2.0**exponent, 100), 1.0)
        assert found == pytest.approx(loss, rel=5e-3)
        assert float((g - wanted).norm() / wanted.norm()) < 0.02
    lost = abs(gradient(half, None, tiny)[0] / loss - 1)
    kept = abs(gradient(half, LossScale("cpu", 2.0**13, 100), tiny)[0] / loss - 1)
    assert kept < 5e-3 < lost


@pytest.mark.parametrize("recipe", [{}, FUSED], ids=["plain", "fused"])
def test_a_run_is_resumed_with_its_scales(recipe):
    step = small(FP16 | QUICK | recipe)
    step.prepare()
    for _ in range(3):
        step.step()
    state = copy.deepcopy(step.state_dict())
    for _ in range(3):
        step.step()
    resumed = small(FP16 | QUICK | recipe)
    resumed.load_state_dict(state)
    for _ in range(3):
        resumed.step()
    assert describe(resumed.scales) == describe(step.scales)
    for a, b in zip(step.G.parameters(), resumed.G.parameters(), strict=True):
        assert torch.equal(a, b)
    other = small({})
    other.load_state_dict(state)  # another precision goes on without
    assert other.scales == {}


def test_parity_judges_fp16_by_its_own_spread_and_sees_an_inner_gradient_that_keeps_its_scale(
    references, monkeypatch
):
    found = checked(small(FP16 | FUSED, **LEAST), references)
    assert found["verdict"] == "ok", found["problems"]
    assert found["budget"]["precision"] == "fp16" and len(found["budget"]["spellings"]) > 1
    right = losses.inner_gradient
    monkeypatch.setattr(
        losses, "inner_gradient", lambda *given, **more: 2 * right(*given, **more)
    )  # half of the scale stays
    found = checked(small(FP16 | FUSED, **LEAST), references)
    assert found["verdict"] == "failed: parity" and all("D_r1" in p or "G_pl" in p for p in found["problems"])
