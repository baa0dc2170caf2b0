"""GPU time of a cycle from each kind of its steps: a few steps under the profiler stand for sixteen.

The steps of a cycle differ in their lazy phases alone, so there are three kinds. Steps of a kind launch the same
kernels. Each kind runs once for every profiled cycle, and counts as often as it comes in a cycle. An eager cycle takes
3 s under the profiler, and its kinds take 1 s. Nothing here is for timing by the clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, TypedDict

from ladder.base.protocol import CYCLE_STEPS
from ladder.engine.gpu_time import PROFILED

Event = tuple[str, bool, int, int, int]  # as `ladder.receipts.traces.events` yields them


class Cycle(TypedDict):
    """Milliseconds and kernels of a step. Wall time has the profiler's own cost in it: it is never a sample."""

    gpu_ms: float
    wall_ms: float
    kernels: float


class Found(TypedDict):
    """Cycles, or one line why there is no GPU time."""

    cycles: list[Cycle] | None
    gpu_void: str | None


def load() -> None:
    """Start and stop the profiler once. The first start takes seconds.

    Kineto must not finalize CUPTI between sessions: a process with CUDA graphs may not survive that
    (github.com/pytorch/pytorch/pull/112507). Some versions do so by default (github.com/pytorch/kineto/pull/1264).
    """
    from ladder.engine import profiling

    os.environ["TEARDOWN_CUPTI"] = "0"
    profiling.load()


def of_cycle(step: Any) -> list[tuple[int, int]]:
    """Return the first step of each kind in a cycle, and the number of steps of that kind."""
    counted: dict[tuple[str, ...], list[int]] = {}
    for index in range(CYCLE_STEPS):
        counted.setdefault(step.phases(index), []).append(index)
    return [(indices[0], len(indices)) for indices in counted.values()]


def record(rung: Any, number: int = PROFILED) -> Found:
    """Run each kind of step so many times under one profiler, and return as many cycles.

    There is no GPU time of a step that computed NaN or Inf, either.
    """
    from ladder.engine import profiling
    from ladder.receipts import traces

    step, kinds, recorded = rung.step, of_cycle(rung.step), profiling.Recorded()
    step.step()  # what a first step allocates is no work of a cycle
    rung.synchronize()

    def steps() -> None:
        for index, _ in kinds * number:
            begin = time.perf_counter()
            step._step(index, True)
            rung.synchronize()
            recorded.wall_s.append(time.perf_counter() - begin)
            time.sleep(profiling.APART_S)
            recorded.ended_ns.append(time.time_ns())

    recorded.profile = traces.profiled(steps, lambda: rung.channel.send({"progress": "ran"}))
    if broken := step.check_finite():
        return void(broken)
    return composed(recorded.cycles(), recorded.wall_s, [count for _, count in kinds])


def composed(steps: Sequence[Sequence[Event]], wall_s: Sequence[float], counts: Sequence[int]) -> Found:
    """Return the cycles that follow from the events of steps, kind after kind and cycle after cycle.

    No cycle follows if a step has no kernel, a kernel has no duration, or two steps of a kind differ in their kernels.

    Args:
        steps, wall_s: the events and the seconds of each recorded step.
        counts: the number of steps of each kind in a cycle.
    """
    from ladder.engine import profiling
    from ladder.receipts import traces

    found = []
    for begin in range(0, len(steps), len(counts)):
        made = slice(begin, begin + len(counts))
        cycle = Cycle(gpu_ms=0.0, wall_ms=0.0, kernels=0.0)
        for events, seconds, count in zip(steps[made], wall_s[made], counts, strict=True):
            ran = [event for event in events if event[1] and not event[0].startswith(traces.NOT_KERNELS)]
            if not ran:
                return void("the profiler saw no kernels")
            if timeless := sum(end <= first for *_, first, end in ran):
                return void(f"the profiler gave {timeless} of {len(ran)} kernels no duration")
            cycle["gpu_ms"] += count * traces.busy_ms(list(events))  # which is a sixteenth
            cycle["wall_ms"] += 1000 * count * seconds / CYCLE_STEPS
            cycle["kernels"] += count * len(ran) / CYCLE_STEPS
        found.append(cycle)
    reason = profiling.differing([cycle["kernels"] for cycle in found])
    return void(reason) if reason else Found(cycles=found, gpu_void=None)


def void(reason: str) -> Found:
    """Return that there is no GPU time, and why."""
    return Found(cycles=None, gpu_void=reason)
