"""What the tests of rungs share: one run of every phase, a prepared step's evidence without a GPU's trace, receipts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from ladder.core import text
from ladder.parity import check as parity
from ladder.plan import catalog
from ladder.receipts import Receipt, evidence
from stylegan_lite import make_step
from stylegan_lite.losses import PHASES
from stylegan_lite.step import TrainingStep
from tests.support.small import SMALL

SEEDS = range(4)
Computed = tuple[dict[str, float], dict[str, dict[str, torch.Tensor]]]  # losses, gradients by phase and name


def small(recipe: dict | None = None, device: str = "cpu", **workload: Any) -> TrainingStep:
    """A step of the smallest workload, or of one that differs from it in these fields."""
    return make_step(SMALL | workload, recipe or {}, device=device)


def cold(step: TrainingStep) -> TrainingStep:
    """Prepare a step. On a CPU leave out the warm-up, which runs each phase for nothing: all of it is put back."""
    with pytest.MonkeyPatch.context() as patch:
        if step.device == "cpu" and step.compiled is None:
            patch.setattr(step, "_warm_up", lambda phase: None)
        step.prepare()
    return step


def every_phase(
    step: TrainingStep, *, rounds: int = 1, phases: Iterable[str] = PHASES, noise: bool = False
) -> Computed:
    """Losses and gradients after each phase was run, `rounds` times, on the numbers of one seed.

    `noise` replaces the real images, which say little about a layer that only they reach.
    """
    step.keep_gradients = True
    torch.manual_seed(3)
    for _ in range(rounds):
        step.feed.next()
        if noise:
            step.real.normal_()
        for phase in phases:
            step.run_phase(phase)
    return step.losses(), step.gradients


def assert_replayed_alike(size: dict, plain: dict, other: dict) -> None:
    """On a GPU the gradients of two captured recipes agree within 1%, or three times as far as two builds do.

    Two builds say how far equal steps are apart: cuDNN's weight gradients add in any order.
    """
    builds = [_replayed(size, recipe, "cuda") for recipe in (plain, plain, other)]
    for phase in PHASES:
        expected, again, found = (torch.stack([build[phase, seed] for seed in SEEDS]) for build in builds)
        same, apart = (
            float(((each - expected).norm(dim=1) / expected.norm(dim=1)).max()) for each in (again, found)
        )
        print(f"{phase}: {same:.2g} apart in the plain recipe, {apart:.2g} in the other")
        assert apart < max(0.01, 3 * same), phase


def _replayed(size: dict, recipe: dict, device: str) -> dict[tuple[str, int], torch.Tensor]:
    """Gradients of each phase and seed, as one vector.

    Each begins from the state of a new step: rounds of training turn one rounded bit into several percent. Each phase
    is a graph of its own, since a whole step's graph replays no single phase.
    """
    step = make_step(size, recipe | {"workers": 1, "whole_step_graph": False}, device=device)
    step.keep_gradients = True
    step.prepare()
    state, found = copy.deepcopy(step.state_dict()), {}
    for phase in PHASES:
        for seed in SEEDS:
            step.load_state_dict(state)
            torch.manual_seed(seed)
            step.real.normal_()
            step.run_phase(phase)
            gradients = step.gradients[phase]
            found[phase, seed] = torch.cat([gradients[name].flatten() for name in sorted(gradients)]).clone()
    step.close()
    return found


def assert_the_same(found: Computed, expected: Computed, atol: float = 1e-12) -> None:
    """Two results of `every_phase` in float64 agree but for rounding."""
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    assert found[1].keys() == expected[1].keys()
    for phase, gradients in expected[1].items():
        assert found[1][phase].keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                found[1][phase][name],
                gradient,
                rtol=1e-7,
                atol=atol,
                msg=lambda said, where=f"{phase} {name}": f"{where}: {said}",
            )


def train_alike(
    one: TrainingStep, other: TrainingStep, updates: bool = False, tolerance: float = 1e-9
) -> None:
    """Two steps in float64 have the same losses and gradients; with `updates` also the same weights and statistics."""
    assert one.losses() == pytest.approx(other.losses(), rel=tolerance)
    for phase in other.gradients:
        assert one.gradients[phase].keys() == other.gradients[phase].keys()
        for name, gradient in other.gradients[phase].items():
            wrong = (one.gradients[phase][name] - gradient).norm()
            assert wrong <= tolerance * gradient.norm() + 1e-12, (phase, name)
    for network in ("G", "D", "G_ema") if updates else ():
        a, b = (getattr(step, network).state_dict() for step in (one, other))
        for name in b:
            torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-11)


def resume_alike(recipe: dict, other: dict, **workload: Any) -> None:
    """A run that goes on with another recipe has the losses of the run that went on; with the same one, to the bit."""
    step = cold(small(recipe, **workload))
    for _ in range(3):
        step.step()
    state = copy.deepcopy(step.state_dict())
    for _ in range(2):
        step.step()
    resumed = make_step(SMALL | workload, other, device="cpu", seed=99)
    resumed.feed.sampler.seed = step.feed.sampler.seed
    resumed.load_state_dict(state)  # and PyTorch's random numbers
    for _ in range(2):
        resumed.step()
    exact = {"rel": 0, "abs": 0} if other == recipe else {"rel": 1e-2}
    for phase in ("G_main", "D_main"):
        assert resumed.losses()[phase] == pytest.approx(step.losses()[phase], **exact)
    for a, b in zip(step.opt_G.state.values(), resumed.opt_G.state.values(), strict=True):
        assert torch.is_tensor(a["step"]) and float(a["step"]) == float(b["step"]) > 0
    if other == recipe:
        z = torch.randn(2, step.workload.z_dim)
        assert torch.equal(step.sample(z), resumed.sample(z))


def checked(step: TrainingStep, cache: Path) -> dict[str, Any]:
    """The step, prepared, against the FP64 reference."""
    step.keep_gradients = True
    if not step.prepared:
        cold(step)
    return parity.check_step(step, cache=cache)


def gathered(
    step: TrainingStep,
    sabotage: Callable[[TrainingStep], Any] | None = None,
    steps: int = 0,
    trace: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Evidence of the prepared step as if the profiler had seen `trace` alone, in a cycle of so many `steps`."""
    if not step.prepared:
        cold(step)
    if sabotage:
        sabotage(step)

    def traced(step: TrainingStep, *_: Any) -> tuple[dict, int]:
        for _ in range(steps):
            step.step()
        return trace or {}, 16

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "trace_steps", traced)
        return evidence.gather_evidence(step)


def receipt(rung: str, seen: dict[str, Any]) -> Receipt:
    """The rung's judgement of the evidence; its lines are fit to be stored."""
    found = catalog.load_rung(rung).receipt(seen)
    assert all(text.TEXT.fullmatch(line) for line in found.lines), found.lines
    return found


def assert_engaged(seen: dict[str, Any], rungs: Iterable[str]) -> None:
    """Every one of the rungs finds its receipt in the evidence."""
    for rung in rungs:
        found = receipt(rung, seen)
        assert found.engaged, (rung, found.lines)
