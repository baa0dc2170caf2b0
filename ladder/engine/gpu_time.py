"""The GPU time of a process: how many cycles it is made of, and when it cannot be true. Loads nothing but Python."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS

PROFILED = 2  # cycles of each process
RECORDINGS = 2  # at most, of a process whose cycles do not count
REST_S = 1.0  # at most, before each profiled cycle
# Of the wall time: a captured step's kernels cannot take longer than its cycle. The profiler adds to each kernel.
BEYOND, ADDED_US = 1.005, 0.2


def is_captured(recipe: Mapping[str, Any]) -> bool:
    """Return whether the recipe's step is launched as CUDA graphs."""
    return bool(recipe.get("cuda_graphs") or recipe.get("whole_step_graph"))


def rest_s(samples_s: Sequence[float], captured: bool) -> float:
    """Return how many seconds the GPU rests before each profiled cycle: as long as a captured step's cycle works.

    A GPU at its power limit slows down in cycles without a pause.
    """
    return min(CYCLE_STEPS * statistics.median(samples_s), REST_S) if captured and samples_s else 0.0


def profile_worker(
    worker: Any,
    recipe: Mapping[str, Any],
    samples_s: Sequence[float],
    record: Callable[[float], Plain] | None = None,
) -> tuple[Plain, str | None]:
    """Profile cycles of a worker whose timed cycles are over, and once more if they do not count.

    A first cycle may allocate, so that the second launches fewer kernels; and a GPU may be slower for a while.

    Args:
        samples_s: seconds of a step in each timed cycle.
        record: returns `cycles` and `gpu_void`, after so many seconds of rest before each cycle; by default the
            worker's reply.

    Returns:
        (what was recorded last, why it does not count or None)
    """
    worker.call("profile", part="load")
    record = record or (lambda rest: worker.call("profile", part="record", rest_s=rest))
    captured = is_captured(recipe)
    for _ in range(RECORDINGS):
        reply = record(rest_s(samples_s, captured))
        void = reply["gpu_void"] or find_excess(reply["cycles"], samples_s, captured)
        if not void:
            break
    return reply, void


def find_excess(cycles: list[Plain] | None, samples_s: Sequence[float], captured: bool) -> str | None:
    """Return one line if a captured step's GPU time exceeds its wall time, which is timed without a profiler.

    At a power limit a profiled cycle may run at a lower SM clock than a timed one, so the line tells that clock.
    """
    if not (cycles and captured):
        return None
    gpu, wall = statistics.median([cycle["gpu_ms"] for cycle in cycles]), 1000 * statistics.median(samples_s)
    most = BEYOND * wall + ADDED_US / 1000 * cycles[0].get("kernels", 0)
    if gpu <= most:
        return None
    clocks = [cycle["sm_mhz"] for cycle in cycles if cycle.get("sm_mhz")]
    at = f" (profiled at {statistics.median(clocks):.0f} MHz)" if clocks else ""
    return f"GPU time of {gpu:.4g} ms{at} in a step of {wall:.4g} ms"
