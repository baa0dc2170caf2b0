"""The comparison of a step that has been timed: the true step passes, and a step that trains otherwise is named."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ladder.parity import check, reference
from stylegan_lite import losses
from stylegan_lite.step import TrainingStep
from tests.support import fake_graphs
from tests.support.rung_steps import small

OURS = {"conv": "double_backward", "set_to_none": True}
Timed = Callable[..., TrainingStep]


def nothing(step: TrainingStep) -> None:
    """Plant no bug."""


@pytest.fixture(params=["eager", "a graph for each phase", "a graph for each kind of step"])
def timed(request: pytest.FixtureRequest, references: Path, monkeypatch: pytest.MonkeyPatch) -> Timed:
    """A function that makes a step, wrong as its arguments make it, and runs a cycle: no gradients are kept."""
    monkeypatch.setattr(reference, "CACHE", references)

    def make(
        plant: Callable[[TrainingStep], None] = nothing, captured: Callable[[TrainingStep], None] = nothing
    ) -> TrainingStep:
        step = small(OURS, resolution=8)
        step.recipe = dataclasses.replace(step.recipe, whole_step_graph="kind" in request.param)
        plant(step)
        step.prepare()
        if request.param != "eager":
            fake_graphs.capture(step, monkeypatch)
        captured(step)
        step.cycle()
        return step

    return make


def test_the_true_step_has_no_finding(timed: Timed) -> None:
    told: list[str] = []
    assert check.compare_timed_step(timed(), told.append) == {"problem": None, "left_out": None}
    assert told  # signs of life for the watchdog


def no_update_of_the_generator(step: TrainingStep) -> None:
    inner = step.opt_G.step
    step.opt_G.step = lambda *how, **more: None if step.count else inner(*how, **more)


def no_average(step: TrainingStep) -> None:
    step._update_ema = lambda: None


@pytest.mark.covering
@pytest.mark.parametrize(
    ("plant", "said"), [(no_update_of_the_generator, r"^G_\w+ .*update of "), (no_average, r" ema of ")]
)
def test_a_step_that_trains_otherwise_is_named(
    timed: Timed, plant: Callable[[TrainingStep], None], said: str
) -> None:
    problem = check.compare_timed_step(timed(plant), print)["problem"]
    assert problem is not None and re.search(said, problem) and "\n" not in problem


def runs(step: TrainingStep, instead: Callable[[Callable[[], None]], None]) -> None:
    """Let something run in place of what was captured, or of a phase of an eager step."""
    for graph in step.graphs.values():
        graph.replay = functools.partial(instead, graph.replay)
    if not step.graphs:
        inner = step._compute
        step._compute = lambda phase: instead(lambda: inner(phase))


def stale(step: TrainingStep) -> None:
    """Whatever was computed while the step was captured stays, and nothing new is."""
    runs(step, lambda replay: None)


def of_another_recipe(step: TrainingStep) -> None:
    """The step says that it computes in FP32, and what was captured is in BF16."""
    own, other = step.amp, functools.partial(losses.autocast, step.device, "bf16")

    def replay(inner: Callable[[], None]) -> None:
        step.amp = other
        try:
            inner()
        finally:
            step.amp = own

    runs(step, replay)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("plant", "least"), [(stale, 0.5), (of_another_recipe, 1e-4)], ids=["stale outputs", "another recipe"]
)
def test_graphs_that_hold_something_else_are_found(
    timed: Timed, plant: Callable[[TrainingStep], None], least: float
) -> None:
    problem = check.compare_timed_step(timed(captured=plant), print)["problem"]
    assert problem is not None
    error = re.search(r"error ([0-9.e+-]+), budget", problem)
    assert error is not None and float(error[1]) > least, problem


def test_a_reference_of_a_smaller_batch_fits_no_timed_buffers(
    references: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "CACHE", references)
    step = small(OURS, resolution=8)
    real = reference.get
    half = dataclasses.replace(step.workload, batch=step.workload.batch // 2)
    monkeypatch.setattr(reference, "get", lambda workload, *rest: real(half, *rest))
    no_update_of_the_generator(step)
    assert check.compare_timed_step(step, print) == {
        "problem": None,
        "left_out": f"its batch of {step.workload.batch} does not fit a reference of {half.batch}",
    }
