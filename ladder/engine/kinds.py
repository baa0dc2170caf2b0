"""GPU time of a cycle from each kind of its steps: a few steps under the profiler stand for sixteen.

The steps of a cycle differ in their lazy phases alone, so there are three kinds. Steps of a kind launch the same
kernels. Each kind runs once for every profiled cycle, and counts as often as it comes in a cycle. So three steps are
recorded in place of sixteen. Nothing here is for timing by the clock.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypedDict

from ladder.core.protocol import CYCLE_STEPS
from ladder.engine import profiling
from ladder.engine.gpu_time import PROFILED
from ladder.receipts import traces
from ladder.receipts.kernel_families import Event


class Cycle(TypedDict):
    """Milliseconds and kernels of a step. Wall time has the profiler's own cost in it: it is never a sample."""

    gpu_ms: float
    wall_ms: float
    kernels: float


class Found(TypedDict):
    """Cycles, or one line why there is no GPU time."""

    cycles: list[Cycle] | None
    gpu_void: str | None


def of_cycle(step: Any) -> list[tuple[int, int]]:
    """Return the first step of each kind in a cycle, and the number of steps of that kind."""
    counted: dict[tuple[str, ...], list[int]] = {}
    for index in range(CYCLE_STEPS):
        counted.setdefault(step.phases(index), []).append(index)
    return [(indices[0], len(indices)) for indices in counted.values()]


def record_kinds(rung: Any, number: int = PROFILED) -> Found:
    """Run each kind of step so many times under one profiler, and return as many cycles.

    There is no GPU time of a step that computed NaN or Inf, either.
    """
    step, kinds, recorded = rung.step, of_cycle(rung.step), profiling.Recorded()
    step.step()  # what a first step allocates is no work of a cycle
    rung.synchronize()

    def of_kind(index: int) -> None:
        step._step(index, True)
        rung.synchronize()

    def steps() -> None:
        for index, _ in kinds * number:
            recorded.run(functools.partial(of_kind, index))

    recorded.profile = traces.profile_cycle(steps, lambda: rung.channel.send({"progress": "ran"}))
    if broken := step.check_finite():
        return make_void(broken)
    return compose_cycles(recorded.cycles(), recorded.wall_s, [count for _, count in kinds])


def compose_cycles(steps: Sequence[Sequence[Event]], wall_s: Sequence[float], counts: Sequence[int]) -> Found:
    """Return the cycles that follow from the events of steps, kind after kind and cycle after cycle.

    No cycle follows if a step has no kernel, a kernel has no duration, or two steps of a kind differ in their kernels.

    Args:
        steps, wall_s: the events and the seconds of each recorded step.
        counts: the number of steps of each kind in a cycle.
    """
    found = []
    for begin in range(0, len(steps), len(counts)):
        made = slice(begin, begin + len(counts))
        cycle = Cycle(gpu_ms=0.0, wall_ms=0.0, kernels=0.0)
        for events, seconds, count in zip(steps[made], wall_s[made], counts, strict=True):
            ran = traces.list_kernels(events)
            if not ran:
                return make_void(traces.why_none())
            if timeless := sum(end <= first for *_, first, end in ran):
                return make_void(f"the profiler gave {timeless} of {len(ran)} kernels no duration")
            cycle["gpu_ms"] += count * traces.busy_ms(list(events))  # which is a sixteenth
            cycle["wall_ms"] += 1000 * count * seconds / CYCLE_STEPS
            cycle["kernels"] += count * len(ran) / CYCLE_STEPS
        found.append(cycle)
    reason = profiling.find_difference([cycle["kernels"] for cycle in found])
    return make_void(reason) if reason else Found(cycles=found, gpu_void=None)


def make_void(reason: str) -> Found:
    """Return that there is no GPU time, and why."""
    return Found(cycles=None, gpu_void=reason)
