"""A prepared step on the GPU: the time of each phase between events, and the families of kernels of a traced cycle."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ladder.base.protocol import CYCLE_STEPS, PHASES
from ladder.core.records import Fields
from ladder.receipts import kernel_families
from ladder.studies.roofline.record import Kernels, Timed

CYCLES = 5  # timed cycles; the median counts


def observe_step(workload: Fields, recipe: Fields) -> Timed:
    """Return phases and step of a prepared step on the GPU, and the families of a cycle.

    In a whole-step graph no phase has a time: alone it would run outside the graph, launch by launch. So phases are
    timed in a second step, which has a graph for each phase.
    """
    import torch

    with _prepare(workload, recipe) as step:
        together = bool(step.together)
        phases_ms, step_ms, wall_ms = time_step(step, [] if together else PHASES)
        busy_ms, families = trace_cycle(step)
        settings = step.settings()
    del step  # frees its weights and optimizers before the second step exists
    if together:
        torch.cuda.empty_cache()
        with _prepare(workload, recipe | {"whole_step_graph": False}) as step:
            phases_ms = time_phases(step, PHASES)
    return Timed(
        phases_ms=phases_ms,  # type: ignore[arg-type]
        step_ms=step_ms,
        wall_ms=wall_ms,
        busy_ms=busy_ms,
        families=families,
        settings=settings,
    )


@contextlib.contextmanager
def _prepare(workload: Fields, recipe: Fields) -> Iterator[Any]:
    """Yield a step that has run a cycle, and give its memory back."""
    import torch

    from stylegan_lite import make_step

    step = make_step(workload | {"data": None}, recipe, device="cuda")
    try:
        step.prepare()
        step.cycle()
        yield step
    finally:
        step.close()
        torch.cuda.empty_cache()


def time_phases(step: Any, phases: Sequence[str]) -> dict[str, float]:
    """Return the median of each phase alone, in ms."""
    from ladder.studies.roofline import ceilings

    took = ceilings.time_runs([functools.partial(step.run_phase, phase) for phase in phases])
    return {name: 1000 * seconds for name, seconds in zip(phases, took, strict=True)}


def time_step(step: Any, phases: Sequence[str]) -> tuple[dict[str, float], float, float]:
    """Return medians in ms: of each phase, of a step by events, and by the wall clock.

    The wall clock includes what the GPU does not see.
    """
    from ladder.receipts import evidence
    from ladder.studies.roofline import ceilings

    phases_ms = time_phases(step, phases)
    walls: list[float] = []

    def cycle() -> None:
        begin = time.perf_counter()
        step.cycle()
        evidence.synchronize(step)
        walls.append(time.perf_counter() - begin)

    (median,) = ceilings.time_runs([cycle], windows=CYCLES, window_s=0.0)
    return phases_ms, 1000 * median / CYCLE_STEPS, 1000 * statistics.median(walls[-CYCLES:]) / CYCLE_STEPS


def trace_cycle(step: Any) -> tuple[float, list[Kernels]]:
    """Return the ms in which any kernel ran and the families of kernels, for one step of a profiled cycle."""
    from ladder.receipts import traces

    events = traces.recorded(step.cycle)
    rows = kernel_families.shares(events, CYCLE_STEPS)
    return traces.busy_ms(events), [Kernels(**row) for row in rows]
