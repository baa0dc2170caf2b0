"""The profiler's view of a cycle: launches, replays, kernels, how long the GPU was busy, what ran in parallel.

Only inspectors and tools load the profiler; a process that times never does.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS
from ladder.receipts.kernel_families import WAITING, Event, name_family

NOT_KERNELS = ("Memcpy", "Memset", *WAITING)
BETWEEN = 3  # other kernels that begin in between make another burst
COMMUNICATION = re.compile(r"nccl|Memcpy PtoP", re.IGNORECASE)


def trace_cycle(cycle: Callable[[], None], ran: Callable[[], None] = lambda: None) -> Plain:
    """Return the profiler's figures of one cycle; see `digest_events` and `profile_cycle`."""
    return digest_events(list(list_events(profile_cycle(cycle, ran))))


def record_events(cycle: Callable[[], None]) -> list[Event]:
    """Return the events of one cycle under the profiler."""
    return list(list_events(profile_cycle(cycle)))


def profile_cycle(
    cycle: Callable[[], None], ran: Callable[[], None] = lambda: None
) -> torch.profiler.profile | None:
    """Return the profile of a cycle, or of what else is given.

    `ran` is called when the GPU has done its work. Reading what it did takes seconds of the CPU alone. A PyTorch
    without CUPTI would raise: there the cycle runs alone, and None is returned.
    """
    if not sees_kernels():
        cycle()
        torch.cuda.synchronize()
        ran()
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        cycle()
        torch.cuda.synchronize()
        ran()
    return profile


def sees_kernels() -> bool:
    """Return whether PyTorch was built with CUPTI, by which its profiler sees what runs on the GPU."""
    return torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()


def why_none() -> str:
    """Return why a trace has no kernels, in one line."""
    return "the profiler saw no kernels" + ("" if sees_kernels() else ": this PyTorch has no CUPTI")


def list_events(profile: Any) -> Iterator[Event]:
    """Yield (name, on the device, stream, start ns, end ns) of each recorded event, without annotations."""
    if profile is None:
        return
    for event in profile.profiler.kineto_results.events():
        device = event.device_type() == torch.autograd.DeviceType.CUDA
        if hasattr(event, "is_user_annotation") and event.is_user_annotation():
            continue
        if hasattr(event, "activity_type") and event.activity_type() == "gpu_user_annotation":
            continue  # a range that a record_function spans on the device, idle gaps included
        begin = event.start_ns()
        yield event.name(), device, event.device_resource_id(), begin, begin + event.duration_ns()


def list_work(events: Iterable[Event]) -> list[Event]:
    """Return what the GPU did among the events of a trace: kernels, copies and memsets."""
    return [event for event in events if event[1] and not event[0].startswith(WAITING)]


def list_kernels(events: Iterable[Event]) -> list[Event]:
    """Return the kernels among the events of a trace: no copies, no memsets, nothing of the CPU."""
    return [event for event in events if event[1] and not event[0].startswith(NOT_KERNELS)]


def digest_events(events: list[Event]) -> Plain:
    """Return figures of a step from one profiled cycle. Empty if the profiler saw no kernels.

    Returns:
        launches: calls of the CPU that put work on the GPU, graph replays included.
        replays, kernels, inductor_kernels, zero_kernels: graph launches, all kernels, those that torch.compile
            generated, and fills with any value.
        graph_memsets: memsets that no call of the CPU asked for: nodes of replayed graphs.
        busy_ms, parallel_ms: the union of all kernels and copies, and for how long two kernels ran at once.
        copy_ms, overlap: copies to the device, and the part in which kernels of other streams ran, or None.
        comm_ms, exposed_ms, comm_bursts: see `derive_communication`.
    """
    ran, work = list_kernels(events), list_work(events)
    if not ran:
        return {}
    calls = [name for name, on_device, *_ in events if not on_device]
    memsets = sum(name.lower().startswith("memset") for name, *_ in work)
    memsets -= sum(name.startswith("cudaMemset") for name in calls)  # launched one by one
    copies = [e for e in work if e[0].startswith("Memcpy HtoD")]
    took = sum(end - begin for *_, begin, end in copies)
    beside = sum(
        measure_covered(copy[3:], _join_spans([e[3:] for e in ran if e[2] != copy[2]])) for copy in copies
    )
    counts = {
        "launches": sum(
            "LaunchKernel" in n or "GraphLaunch" in n or n.startswith(("cudaMemcpy", "cudaMemset"))
            for n in calls
        ),
        "replays": sum("GraphLaunch" in name for name in calls),
        "kernels": len(ran),
        "inductor_kernels": sum(e[0].startswith("triton_") for e in ran),
        "zero_kernels": sum("ZeroFunctor" in e[0] or "FillFunctor" in e[0] for e in ran),
        "graph_memsets": max(memsets, 0),
    }
    parallel_ns = sum(e[4] - e[3] for e in ran) - measure_union([e[3:] for e in ran])
    return {
        **{key: count / CYCLE_STEPS for key, count in counts.items()},
        "busy_ms": busy_ms(events),
        "parallel_ms": parallel_ns / 1e6 / CYCLE_STEPS,
        "copy_ms": round(took / 1e6 / CYCLE_STEPS, 4),
        "overlap": round(beside / took, 3) if took else None,
        **derive_communication(work, CYCLE_STEPS),
    }


def busy_ms(events: list[Event]) -> float:
    """Return the milliseconds a step in which anything ran or was copied, of the events of a cycle."""
    return measure_union([event[3:] for event in list_work(events)]) / 1e6 / CYCLE_STEPS


def derive_communication(ran: Iterable[Event], steps: int) -> Plain:
    """Return the communication of one step, from the kernels and copies of `steps` steps of one GPU.

    `comm_ms`: the union of NCCL's kernels and of copies between GPUs. A kernel that waits for a slower rank counts.
    `exposed_ms`: the part of it in which nothing else ran on this GPU. `comm_bursts`: how often it begins after others.
    """
    ours: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    bursts, since = 0, BETWEEN
    for name, _, _, begin, end in sorted(ran, key=lambda event: event[3]):
        if COMMUNICATION.search(name):
            bursts, since = bursts + (since >= BETWEEN), 0
            ours.append((begin, end))
        else:
            since += 1
            others.append((begin, end))
    exposed = measure_union([*ours, *others]) - measure_union(others)
    unit = 1e6 * steps
    return {
        "comm_ms": measure_union(ours) / unit,
        "exposed_ms": exposed / unit,
        "comm_bursts": bursts / steps,
    }


def list_collectives(ran: Iterable[Event]) -> list[tuple[int, int]]:
    """Return begin and end (ns) of each kernel of NCCL, in order. On every rank the same ones run in one order."""
    return sorted((begin, end) for name, _, _, begin, end in ran if "nccl" in name.lower())


def describe_lateness(ran: Sequence[Event], late_ns: Sequence[int]) -> Plain:
    """Return what a GPU did while other ranks waited for it.

    Args:
        ran: its kernels and copies.
        late_ns: for how long before each of its collectives another rank was there already.

    Returns:
        idle_ns: how much of that time nothing ran. busiest: the family of kernels that took most of it, or None.
    """
    windows = [
        (begin - late, begin) for (begin, _), late in zip(list_collectives(ran), late_ns, strict=True) if late
    ]
    families: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, _, _, begin, end in ran:
        families[name_family(name)].append((begin, end))

    def measure_inside(spans: list[tuple[int, int]]) -> int:
        taken = _join_spans(spans)
        return sum(measure_covered(window, taken) for window in windows)

    took = {name: measure_inside(spans) for name, spans in families.items()}
    busiest = max(took, key=lambda name: took[name], default=None)
    busy = measure_inside([event[3:] for event in ran])
    return {"idle_ns": sum(late_ns) - busy, "busiest": busiest if busiest and took[busiest] else None}


def measure_union(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of intervals. Kernels on parallel streams count once."""
    return int(sum(last - first for first, last in _join_spans(spans)))


def count_once(spans: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the nanoseconds of each span (stream, begin, end) that count for it, so that they sum to the union.

    An instant of several streams belongs to the busiest one. On one stream it belongs to what began first.
    """
    streams: dict[int, list[int]] = defaultdict(list)
    for place, (stream, _, _) in enumerate(spans):
        streams[stream].append(place)
    busy = {stream: sum(spans[at][2] - spans[at][1] for at in places) for stream, places in streams.items()}
    own, taken = [0] * len(spans), list[tuple[int, int]]()
    for stream in sorted(streams, key=lambda each: (-busy[each], each)):
        end = -math.inf
        for place in sorted(streams[stream], key=lambda at: spans[at][1:]):
            first, last = max(spans[place][1], end), spans[place][2]
            if first < last:
                own[place] = int(last - first) - measure_covered((int(first), last), taken)
            end = max(end, last)
        taken = _join_spans([*taken, *(spans[at][1:] for at in streams[stream])])
    return own


def measure_covered(span: tuple[int, int], taken: Sequence[tuple[int, int]]) -> int:
    """Return the nanoseconds of a span that disjoint sorted intervals cover."""
    total, place = 0, bisect.bisect_right(taken, span[0], key=lambda each: each[1])
    while place < len(taken) and taken[place][0] < span[1]:
        total += min(span[1], taken[place][1]) - max(span[0], taken[place][0])
        place += 1
    return total


def _join_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint sorted intervals with the same union."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        elif first < last:
            joined.append((first, last))
    return joined
