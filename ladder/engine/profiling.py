"""GPU time of a step: cycles under the profiler, in a process whose timed cycles are over.

GPU time is the union of all kernels and copies over all streams. It repeats within 0.3% where the wall time of an
eager step scatters by 10%, so it says what a rung does to the GPU.

A cycle is recorded whole, or from its kinds of steps: steps differ in their lazy phases alone, and steps of a kind
launch the same kernels, so three steps stand for sixteen.
"""

from __future__ import annotations

import bisect
import functools
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS
from ladder.engine.gpu_time import PROFILED
from ladder.receipts import kernel_families, kernel_names, traces
from ladder.receipts.kernel_families import Event

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

    def cycles(self) -> list[list[Event]]:
        """Return the events of each cycle, which begin before its end and after that of the cycle before."""
        cycles: list[list[Event]] = [[] for _ in self.wall_s]
        for event in traces.list_events(self.profile):
            cycles[min(bisect.bisect_right(self.ended_ns, event[3]), len(cycles) - 1)].append(event)
        return cycles


def load_profiler() -> None:
    """Start and stop the profiler once. The first start takes seconds.

    Kineto must not finalize CUPTI between sessions: a process with CUDA graphs may not survive that
    (github.com/pytorch/pytorch/pull/112507). Some versions do so by default (github.com/pytorch/kineto/pull/1264).
    """
    os.environ["TEARDOWN_CUPTI"] = "0"
    traces.profile_cycle(lambda: None)


def record_cycles(rung: Any, number: int = PROFILED, rest_s: float = 0.0) -> Recorded:
    """Run so many whole cycles of a `ladder.engine.timed_rung.Rung` under one profiler, without a lead-in.

    The GPU rests for `rest_s` before each (`ladder.engine.gpu_time.rest_s`). "ran" tells that it has done its work.
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

    recorded.profile = traces.profile_cycle(cycles, lambda: rung.tell("ran"))
    return recorded


def digest_cycles(recorded: Recorded, varies: float = 0.0) -> Plain:
    """Return the figures of recorded cycles, and what the first consists of.

    Args:
        varies: the share by which cycles may differ in kernels, of a program that launches by what it drew.

    Returns:
        cycles: gpu_ms, wall_ms and kernels of a step, of each cycle, or None.
        profile: families and kernels with milliseconds and launches of a step, or None.
        gpu_void: one line why there is no GPU time, or None.
    """
    cycles, recordings = [], recorded.cycles()
    for wall, events in zip(recorded.wall_s, recordings, strict=True):
        ran = traces.list_kernels(events)
        if not ran:
            return {"cycles": None, "profile": None, "gpu_void": traces.why_none()}
        wall_ms, kernels = 1000 * wall / CYCLE_STEPS, len(ran) / CYCLE_STEPS
        cycles.append({"gpu_ms": traces.busy_ms(events), "wall_ms": wall_ms, "kernels": kernels})
    void = find_difference([cycle["kernels"] for cycle in cycles], varies)
    profile = derive_composition(recordings[0] if recordings else [])
    return {"cycles": cycles, "profile": profile, "gpu_void": void}


def list_kinds(step: Any) -> list[tuple[int, int]]:
    """Return the first step of each kind in a cycle, and the number of steps of that kind."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for index in range(CYCLE_STEPS):
        kinds.setdefault(step.phases(index), []).append(index)
    return [(indices[0], len(indices)) for indices in kinds.values()]


def record_kinds(rung: Any, number: int = PROFILED) -> Plain:
    """Run each kind of step so many times under one profiler, and return as many cycles, or why there are none."""
    step, kinds, recorded = rung.step, list_kinds(rung.step), Recorded()
    step.step()  # what a first step allocates is no work of a cycle
    rung.synchronize()

    def of_kind(index: int) -> None:
        step._step(index, True)
        rung.synchronize()

    def steps() -> None:
        for index, _ in kinds * number:
            recorded.run(functools.partial(of_kind, index))

    recorded.profile = traces.profile_cycle(steps, lambda: rung.tell("ran"))
    if broken := step.check_finite():
        return {"cycles": None, "gpu_void": broken}
    return compose_cycles(recorded.cycles(), recorded.wall_s, [count for _, count in kinds])


def compose_cycles(steps: Sequence[Sequence[Event]], wall_s: Sequence[float], counts: Sequence[int]) -> Plain:
    """Return `cycles`, gpu_ms, wall_ms and kernels of a step in each, and `gpu_void`: None, or why there are none.

    Args:
        steps, wall_s: the events and the seconds of each recorded step, kind after kind and cycle after cycle.
        counts: the number of steps of each kind in a cycle.
    """
    cycles = []
    for begin in range(0, len(steps), len(counts)):
        of = slice(begin, begin + len(counts))
        cycle = {"gpu_ms": 0.0, "wall_ms": 0.0, "kernels": 0.0}
        for events, seconds, count in zip(steps[of], wall_s[of], counts, strict=True):
            ran = traces.list_kernels(events)
            timeless = sum(end <= first for *_, first, end in ran)
            if timeless or not ran:
                without = f"the profiler gave {timeless} of {len(ran)} kernels no duration"
                return {"cycles": None, "gpu_void": without if ran else traces.why_none()}
            cycle["gpu_ms"] += count * traces.busy_ms(list(events))  # which is a sixteenth
            cycle["wall_ms"] += 1000 * count * seconds / CYCLE_STEPS
            cycle["kernels"] += count * len(ran) / CYCLE_STEPS
        cycles.append(cycle)
    void = find_difference([cycle["kernels"] for cycle in cycles])
    return {"cycles": None if void else cycles, "gpu_void": void}


def between_gpus(recorded: Recorded) -> Plain:
    """Return the communication of a step in the first recorded cycle, or None without kernels; and its collectives."""
    ran = traces.list_work(next(iter(recorded.cycles()), []))
    communication = dict(traces.derive_communication(ran, CYCLE_STEPS)) if ran else None
    return {"communication": communication, "collectives": traces.list_collectives(ran)}


def describe_lateness(recorded: Recorded, late_ns: Sequence[int]) -> Plain:
    """Return what this rank did in the first recorded cycle while others waited for it."""
    return traces.describe_lateness(traces.list_work(recorded.cycles()[0]), late_ns)


def find_difference(kernels: list[float], varies: float = 0.0) -> str | None:
    """Return one line if the numbers of kernels of the cycles differ by more than a share, else None."""
    if not kernels or max(kernels) - min(kernels) <= varies * max(kernels):
        return None
    counts = " and ".join(f"{count * CYCLE_STEPS:.0f}" for count in kernels)
    return f"profiled cycles launched {counts} kernels"


def derive_composition(events: list[Event]) -> dict[str, list[Plain]]:
    """Return milliseconds and launches of a step by family and by kernel: the heaviest, and the rest as one row."""
    ran = traces.list_work(events)
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
    rows = [_make_row(name, sum(took[name]), len(took[name]) / CYCLE_STEPS) for name in heaviest[:HEAVIEST]]
    if rest := [each for name in heaviest[HEAVIEST:] for each in took[name]]:
        others = f"{len(heaviest) - HEAVIEST} other kernels"
        rows.append(_make_row(others, sum(rest), len(rest) / CYCLE_STEPS))
    return {"families": families, "kernels": rows}


def _make_row(name: str, ms: float, launches: float) -> Plain:
    return {"name": name, "ms": round(ms, 5), "launches": round(launches, 4)}


def clean_name(name: str) -> str:
    """Return a kernel's name as a result may hold it."""
    return _UNPRINTABLE.sub("_", name.replace("<", "(").replace(">", ")"))[:96] or "unnamed"
