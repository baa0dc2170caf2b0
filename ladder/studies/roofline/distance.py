"""The distance of a prepared step from its floor on the GPU, by phase and by kernel family."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.base.protocol import CYCLE_STEPS, PHASES
from ladder.base.records import build
from ladder.plan import content
from ladder.receipts import kernel_families
from ladder.results.types import Plain
from ladder.studies.roofline import in_step
from ladder.studies.roofline.in_step import Group, Kernels
from ladder.studies.roofline.schema import Family, Measured

CYCLES = 5  # timed cycles; the median counts


@dataclass(frozen=True)
class Frozen:
    """The two times that a score stands on, in ms a step: frozen, so that scores of different days compare."""

    machine: str
    work: str  # digest of the workload's fields
    since: str
    floor_ms: float
    floor_of: str  # the file below results/, as the next one
    base_ms: float
    base_of: str


# The base is plain PyTorch under torch.compile with autotuning: the strongest step without kernels of ours.
FROZEN = (
    Frozen(
        machine="nvidia-h200",
        work="f5e814",  # article
        since="2026-11-24",
        floor_ms=7.930263751668179,
        floor_of="roofline/nvidia-h200-article-full-fused_modulation.json",
        base_ms=24.459283937495968,
        base_of="ladder/nvidia-h200/article-compile_autotune-20261122T231746Z.json, shifted_resample",
    ),
)


def frozen(machine: str, workload: Plain) -> Frozen | None:
    """Return the frozen times of a machine and workload, None where there are none."""
    work = content.of_workload(workload)
    return next((each for each in FROZEN if (each.machine, each.work) == (machine, work)), None)


def score(step_ms: float, base_ms: float, floor_ms: float) -> float:
    """Return the speed-of-light score of SOL-ExecBench: 1 at the floor, 0.5 at the base, 0 for an endless step.

    Raises:
        ValueError: the base is not above the floor, or the step is below it.
    """
    if not floor_ms < base_ms or step_ms < floor_ms:
        raise ValueError(f"no score: step {step_ms}, base {base_ms}, floor {floor_ms}")
    return 1 / (1 + (step_ms - floor_ms) / (base_ms - floor_ms))


def scored(step_ms: float, base_ms: float, floor_ms: float | None) -> float | None:
    """Return the score, None where it does not exist: no floor is known, or step or base are below it."""
    if floor_ms is None or not floor_ms < base_ms or step_ms < floor_ms:
        return None
    return score(step_ms, base_ms, floor_ms)


@dataclass(frozen=True)
class Times:
    """Medians in ms of a step, by events and by the wall clock, and of each phase alone."""

    phases_ms: dict[str, float]
    step_ms: float
    wall_ms: float


@dataclass(frozen=True)
class Traced:
    """The time in ms of a step in which any kernel ran, and the families of kernels."""

    busy_ms: float
    families: list[Kernels]


@dataclass(frozen=True)
class Observed(Traced, Times):
    """A timed and traced step, with the settings in force."""

    settings: Plain


def observe(fields: Plain, recipe: Plain) -> Observed:
    """Return phases and step of a prepared step on the GPU: milliseconds between events, and the families of a cycle.

    In a whole-step graph no phase has a time: alone it would run outside the graph, launch by launch. So phases are
    timed in a second step, which has a graph for each phase.
    """
    import torch

    with _prepared(fields, recipe) as step:
        together = bool(step.together)
        times, traced, settings = (
            time_step(step, [] if together else PHASES),
            trace_cycle(step),
            step.settings(),
        )
    del step  # frees its weights and optimizers before the second step exists
    phases_ms = times.phases_ms
    if together:
        torch.cuda.empty_cache()
        with _prepared(fields, recipe | {"whole_step_graph": False}) as step:
            phases_ms = time_phases(step, PHASES)
    return Observed(
        phases_ms=phases_ms,
        step_ms=times.step_ms,
        wall_ms=times.wall_ms,
        busy_ms=traced.busy_ms,
        families=traced.families,
        settings=settings,
    )


@contextlib.contextmanager
def _prepared(fields: Plain, recipe: Plain) -> Iterator[Any]:
    """Yield a step that has run a cycle, and give its memory back."""
    import torch

    from stylegan_lite import make_step

    step = make_step(fields | {"data": None}, recipe, device="cuda")
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

    took = ceilings.medians([functools.partial(step.run_phase, phase) for phase in phases])
    return {name: 1000 * seconds for name, seconds in zip(phases, took, strict=True)}


def time_step(step: Any, phases: Sequence[str]) -> Times:
    """Return medians in ms, by events and by the wall clock. The wall clock includes what the GPU does not see."""
    from ladder.receipts import as_timed
    from ladder.studies.roofline import ceilings

    phases_ms = time_phases(step, phases)
    walls: list[float] = []

    def cycle() -> None:
        begin = time.perf_counter()
        step.cycle()
        as_timed.synchronize(step)
        walls.append(time.perf_counter() - begin)

    (median,) = ceilings.medians([cycle], windows=CYCLES, window_s=0.0)
    return Times(
        phases_ms, 1000 * median / CYCLE_STEPS, 1000 * statistics.median(walls[-CYCLES:]) / CYCLE_STEPS
    )


def trace_cycle(step: Any) -> Traced:
    """Return families of kernels, and the time in which any ran, for one step of a profiled cycle."""
    from ladder.receipts import traces

    events = traces.recorded(step.cycle)
    rows = kernel_families.shares(events, CYCLE_STEPS)
    return Traced(traces.busy_ms(events), [build(Kernels, row) for row in rows])


def split(timed: Observed | Measured, step: dict[str, float]) -> Measured:
    """Return where the time beyond the floor goes: by group, and by family of kernels.

    Each group has its part of the floor: convolutions theirs, other kernels the bytes and matmuls, and idle time
    none. 1x1 convolutions count as other kernels, as cuDNN's kernels for them are named as matmuls. Inside a group
    the floor is allotted to families in proportion to their time.
    """
    gap = timed.step_ms - step["light_ms"]
    took = in_step.milliseconds(timed.families)
    convolved, others = took[in_step.CONVOLUTIONS], took[in_step.OTHERS]
    groups = {
        in_step.CONVOLUTIONS: (convolved, step["convolutions_ms"] - step["pointwise_ms"]),
        in_step.OTHERS: (others, step["bytes_ms"] + step["matmul_ms"] + step["pointwise_ms"]),
        in_step.IDLE: (max(0.0, timed.step_ms - timed.busy_ms), 0.0),
    }
    rows = []
    for row in timed.families:
        group = in_step.CONVOLUTIONS if kernel_families.is_convolution(row.family) else in_step.OTHERS
        ms, floor = groups[group]
        beyond = row.us / 1000 * (1 - floor / ms) if ms else 0.0
        share = row.us / 1000 / timed.step_ms
        rows.append(
            Family(
                family=row.family,
                us=row.us,
                kernels=row.kernels,
                heaviest=row.heaviest,
                group=group,
                of_step=share,
                of_distance=beyond / gap if gap else None,
            )
        )
    return Measured(
        phases_ms=timed.phases_ms,
        step_ms=timed.step_ms,
        wall_ms=timed.wall_ms,
        busy_ms=timed.busy_ms,
        times_light=timed.step_ms / step["light_ms"],
        distance_ms=gap,
        families=rows,
        groups={
            name: Group(ms=ms, floor_ms=floor, of_distance=(ms - floor) / gap if gap else None)
            for name, (ms, floor) in groups.items()
        },
        settings=timed.settings,
    )
