"""Host time of a step: how long its calls take to return, and what the CPU does meanwhile.

Every step begins on an idle GPU and is not synchronized before its calls return. A profiled cycle splits that time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS

STEP = "ladder::host_step"  # the range around the calls of a step
BLOCKED_NS = 100_000  # a launch that takes longer waits for room in the GPU's queue
MOST_OPERATORS = 60  # rows that are kept by name
PYTHON, OPERATORS, CASTS, OWN, AUTOGRAD = "python", "operators", "casts", "own ops", "autograd"
OPTIMIZER, DATA, LAUNCHES, QUEUE = "optimizer", "data", "launches", "queue full"
CAST_NAMES = ("aten::to", "aten::_to_copy")
INHERITED = (OPTIMIZER, DATA, CASTS)  # what is called inside of these is a part of them
Call = tuple[int, int, str]  # begin and end in ns, name


def measure_host(rung: Any, cycles: int) -> Plain:
    """Return the host and wall milliseconds of a step in each of so many cycles, then the operators of one more.

    `rung` is a prepared `ladder.engine.timed_rung.Rung`. All figures are of one step.
    """
    rung.align()
    run_steps(rung)  # the first steps allocate
    marks = [run_steps(rung) for _ in range(cycles)]
    host_ms = [1000 * sum(returned - begin for begin, returned, _ in each) / CYCLE_STEPS for each in marks]
    wall_ms = [1000 * sum(end - begin for begin, _, end in each) / CYCLE_STEPS for each in marks]
    rung.profiled = True
    return {"host_ms": host_ms, "wall_ms": wall_ms, **profile_calls(rung)}


def run_steps(rung: Any) -> list[tuple[float, float, float]]:
    """Run a cycle; return when each step began, when its calls had returned, and when its work was done."""
    from torch.profiler import record_function

    marks, clock = [], time.perf_counter
    for _ in range(CYCLE_STEPS):
        rung.synchronize()
        begin = clock()
        with record_function(STEP):
            rung.step.step()
        returned = clock()
        rung.synchronize()
        marks.append((begin, returned, clock()))
    rung.channel.send({"progress": "cycle", "seconds": sum(end - begin for begin, _, end in marks)})
    return marks


def profile_calls(rung: Any) -> Plain:
    """Return the profiled milliseconds of a step's calls, and its operators with part, calls and milliseconds."""
    import torch

    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU] + ([kinds.CUDA] if kinds.CUDA in torch.profiler.supported_activities() else [])
    with torch.profiler.profile(activities=activities) as profile:
        run_steps(rung)
    threads: dict[int, list[Call]] = {}
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CPU:
            call = event.start_ns(), event.start_ns() + event.duration_ns(), event.name()
            threads.setdefault(event.start_thread_id(), []).append(call)
    steps = [call for calls in threads.values() for call in calls if call[2] == STEP]
    launching = [  # the calls of the threads that launch: the one of the steps and autograd's
        call
        for calls in threads.values()
        if any(name == STEP or name.startswith("autograd::engine") for *_, name in calls)
        for call in calls
        if call[2] != STEP
    ]
    functions = torch.autograd.Function.__subclasses__()
    own = {"kernels", *(each.__name__ for each in functions if each.__module__.startswith("kernels."))}
    rows = sorted(sum_calls(steps, launching, own), key=lambda row: -row["ms"])
    rest: dict[str, Plain] = {}
    for row in rows[MOST_OPERATORS:]:
        other = rest.setdefault(row["part"], {"name": "others", "part": row["part"], "calls": 0.0, "ms": 0.0})
        other |= {key: other[key] + row[key] for key in ("calls", "ms")}
    whole_ms = sum(end - begin for begin, end, _ in steps) / 1e6 / CYCLE_STEPS
    return {"profiled_ms": whole_ms, "operators": [*rows[:MOST_OPERATORS], *rest.values()]}


def sum_calls(steps: Iterable[Call], calls: list[Call], own: set[str]) -> list[Plain]:
    """Return a row for each name and part: calls and milliseconds of a step, without those of calls inside.

    What is in no call is Python's.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    calls = sorted(calls, key=lambda call: (call[0], -call[1]))
    at = 0
    for begin, end, _ in sorted(steps):
        while at < len(calls) and calls[at][0] < begin:
            at += 1
        outer = begin, end, PYTHON, PYTHON
        stack, clock = [outer], begin
        while stack:
            entering = calls[at] if at < len(calls) and calls[at][0] < end else None
            top = stack[-1]
            ends = entering is None or top[1] <= entering[0]
            until = min(top[1], end) if ends else entering[0]  # type: ignore[index]
            sums.setdefault((top[2], top[3]), [0.0, 0.0])[1] += max(0, until - clock)
            clock = max(clock, until)
            if entering is None or ends:
                stack.pop()
                continue
            part = classify_call(entering, top[3], own)
            sums.setdefault((entering[2], part), [0.0, 0.0])[0] += 1
            stack.append((entering[0], min(entering[1], top[1]), entering[2], part))
            at += 1
    return [
        {"name": name, "part": part, "calls": count / CYCLE_STEPS, "ms": spent / 1e6 / CYCLE_STEPS}
        for (name, part), (count, spent) in sums.items()
    ]


def classify_call(call: Call, outer: str, own: set[str]) -> str:
    """Return the part that a call belongs to, inside of a call of the part `outer`."""
    begin, end, name = call
    if name.startswith(("cuda", "cuLaunch", "cuMem")):
        return QUEUE if end - begin > BLOCKED_NS else outer if outer in INHERITED else LAUNCHES
    if outer in INHERITED:
        return outer
    if name.startswith("Optimizer."):
        return OPTIMIZER
    if name.startswith("enumerate(DataLoader)"):
        return DATA
    if name in CAST_NAMES:
        return CASTS
    if name.removesuffix("Backward") in own or name.partition("::")[0] in own:
        return OWN
    return AUTOGRAD if name.startswith("autograd::engine") else OPERATORS
