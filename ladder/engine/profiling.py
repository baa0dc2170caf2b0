"""GPU time of a step: whole cycles under the profiler, in a process whose timed cycles are over.

GPU time is the union of all kernels and copies over all streams. It repeats within 0.3% where the wall time of an
eager step scatters by 10%, so it says what a rung does to the GPU.
"""

from __future__ import annotations

import bisect
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ladder.core.protocol import CYCLE_STEPS
from ladder.engine.gpu_time import PROFILED
from ladder.receipts import kernel_families, kernel_names, traces

HEAVIEST = 40  # kernels that are kept by name
APART_S = 0.005  # between profiled cycles, whose kernels are told apart by the clock
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9 ._()+:@,/'#=-]")


@dataclass
class Recorded:
    """Cycles under one profiler: the wall seconds of each, when each had ended (ns since 1970), and the profile."""

    wall_s: list[float] = field(default_factory=list)
    ended_ns: list[int] = field(default_factory=list)
    profile: Any = None

    def run(self, work: Callable[[], object]) -> None:
        """Run what counts as one cycle under the profiler. It returns when the GPU has done its work."""
        begin = time.perf_counter()
        work()
        self.wall_s.append(time.perf_counter() - begin)
        time.sleep(APART_S)
        self.ended_ns.append(time.time_ns())

    def cycles(self) -> list[list[kernel_families.Event]]:
        """Return the events of each cycle, which begin before its end and after that of the cycle before."""
        found: list[list[kernel_families.Event]] = [[] for _ in self.wall_s]
        for event in traces.list_events(self.profile):
            found[min(bisect.bisect_right(self.ended_ns, event[3]), len(found) - 1)].append(event)
        return found


def load_profiler() -> None:
    """Start and stop the profiler once. The first start takes seconds.

    Kineto must not finalize CUPTI between sessions: a process with CUDA graphs may not survive that
    (github.com/pytorch/pytorch/pull/112507). Some versions do so by default (github.com/pytorch/kineto/pull/1264).
    """
    os.environ["TEARDOWN_CUPTI"] = "0"
    traces.profile_cycle(lambda: None)


def record_cycles(rung: Any, number: int = PROFILED, rest_s: float = 0.0) -> Recorded:
    """Run so many whole cycles of a `ladder.engine.timed_rung.Rung` under one profiler, whose start takes a second.

    There is no lead-in: how long the GPU works does not depend on batches that loaders hold. The GPU rests for
    `rest_s` before each cycle (`ladder.engine.gpu_time.rest_s`). The progress "ran" tells that it has done its work.
    """
    recorded = Recorded()

    def cycle() -> None:
        rung.step.cycle()
        rung.synchronize()

    def cycles() -> None:
        for _ in range(number):
            time.sleep(rest_s)
            rung.align()
            recorded.run(cycle)

    recorded.profile = traces.profile_cycle(cycles, lambda: rung.channel.send({"progress": "ran"}))
    return recorded


def digest_cycles(recorded: Recorded, varies: float = 0.0) -> dict[str, Any]:
    """Return the figures of recorded cycles, and what the first consists of.

    Args:
        varies: the share by which cycles may differ in kernels, of a program that launches by what it drew.

    Returns:
        cycles: gpu_ms, wall_ms and kernels of a step, of each cycle, or None.
        profile: families and kernels with milliseconds and launches of a step, or None.
        gpu_void: one line why there is no GPU time, or None.
    """
    found, first = [], []
    for wall, events in zip(recorded.wall_s, recorded.cycles(), strict=True):
        ran = traces.list_kernels(events)
        if not ran:
            return {"cycles": None, "profile": None, "gpu_void": traces.why_none()}
        found.append(
            {
                "gpu_ms": traces.busy_ms(events),
                "wall_ms": 1000 * wall / CYCLE_STEPS,
                "kernels": len(ran) / CYCLE_STEPS,
            }
        )
        first = first or events
    return {
        "cycles": found,
        "profile": derive_composition(first),
        "gpu_void": find_difference([c["kernels"] for c in found], varies),
    }


def between_gpus(recorded: Recorded) -> dict[str, Any]:
    """Return the communication of a step in the first recorded cycle, or None without kernels."""
    first = next(iter(recorded.cycles()), [])
    ran = [event for event in first if event[1] and not event[0].startswith(kernel_families.WAITING)]
    return {"communication": dict(traces.derive_communication(ran, CYCLE_STEPS)) if ran else None}


def find_difference(kernels: list[float], varies: float = 0.0) -> str | None:
    """Return one line if the numbers of kernels of the cycles differ by more than a share, else None."""
    if not kernels or max(kernels) - min(kernels) <= varies * max(kernels):
        return None
    seen = " and ".join(f"{count * CYCLE_STEPS:.0f}" for count in kernels)
    return f"profiled cycles launched {seen} kernels"


def derive_composition(events: list[kernel_families.Event]) -> dict[str, list[dict[str, Any]]]:
    """Return milliseconds and launches of a step by family and by kernel: the heaviest, and the rest as one row."""
    ran = [event for event in events if event[1] and not event[0].startswith(kernel_families.WAITING)]
    own: dict[str, int] = defaultdict(int)
    took: dict[str, list[float]] = defaultdict(list)
    for (name, _, _, begin, end), alone in zip(
        ran, traces.count_once([each[2:] for each in ran]), strict=True
    ):
        own[kernel_families.name_family(name)] += alone
        took[clean_name(kernel_names.name_stored(name))].append((end - begin) / 1e6 / CYCLE_STEPS)
    families = [
        _make_row(clean_name(row["family"]), row["us"] / 1000, row["kernels"])
        | {"own_ms": round(own[row["family"]] / 1e6 / CYCLE_STEPS, 5)}
        for row in kernel_families.derive_shares(ran, CYCLE_STEPS)
    ]
    heaviest = sorted(took, key=lambda name: -sum(took[name]))
    kept = [_make_row(name, sum(took[name]), len(took[name]) / CYCLE_STEPS) for name in heaviest[:HEAVIEST]]
    if rest := [each for name in heaviest[HEAVIEST:] for each in took[name]]:
        kept.append(
            _make_row(f"{len(heaviest) - HEAVIEST} other kernels", sum(rest), len(rest) / CYCLE_STEPS)
        )
    return {"families": families, "kernels": kept}


def _make_row(name: str, ms: float, launches: float) -> dict[str, Any]:
    return {"name": name, "ms": round(ms, 5), "launches": round(launches, 4)}


def clean_name(name: str) -> str:
    """Return a kernel's name as a result may hold it."""
    return _UNPRINTABLE.sub("_", name.replace("<", "(").replace(">", ")"))[:96] or "unnamed"
