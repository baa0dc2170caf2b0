"""What the profiler saw of a cycle: launches, replays, kernels, how long the GPU was busy, what ran beside what.

Only inspectors and tools load the profiler; a process that times never does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ladder.receipts.kernel_families import WAITING

CYCLE = 16
NOT_KERNELS = ("Memcpy", "Memset", *WAITING)


def traced(cycle: Callable[[], None]) -> dict[str, Any]:
    """What the profiler saw of one cycle; see `digest`."""
    return digest(recorded(cycle))


def recorded(cycle: Callable[[], None]) -> list[tuple[str, bool, int, int, int]]:
    """The events of one cycle under the profiler; see `events`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        cycle()
        torch.cuda.synchronize()
    return list(events(profile))


def events(profile: Any) -> Iterator[tuple[str, bool, int, int, int]]:
    """(name, on the device, stream, start ns, end ns) of what the profiler recorded, without annotations."""
    for event in profile.profiler.kineto_results.events():
        device = event.device_type() == torch.autograd.DeviceType.CUDA
        if hasattr(event, "is_user_annotation") and event.is_user_annotation():
            continue
        if hasattr(event, "activity_type") and event.activity_type() == "gpu_user_annotation":
            continue  # a range that a record_function spans on the device, idle gaps and all
        begin = event.start_ns()
        yield event.name(), device, event.device_resource_id(), begin, begin + event.duration_ns()


def digest(found: list[tuple[str, bool, int, int, int]]) -> dict[str, Any]:
    """What one profiled cycle says about a step; empty where the profiler saw no kernels.

    launches: calls of the CPU that put work on the GPU, graph replays included.  replays: graph launches.
    kernels: what ran.  inductor_kernels: those that torch.compile generated, by its names for them.
    busy_ms: the union of what ran or was copied, parallel streams counted once.  parallel_ms: by how much kernels'
    times add up to more than their union: that long two of them ran at once.  zero_kernels: fills, of whatever.
    copy_ms: host to device.  overlap: the part of that time in which kernels of other streams ran (None without
    copies).
    """
    ran = [e for e in found if e[1] and not e[0].startswith(NOT_KERNELS)]
    if not ran:
        return {}
    calls = [name for name, on_device, *_ in found if not on_device]
    copies = [e for e in found if e[1] and e[0].startswith("Memcpy HtoD")]
    took = sum(end - begin for *_, begin, end in copies)
    beside = sum(covered(copy, [e for e in ran if e[2] != copy[2]]) for copy in copies)
    launched = sum(
        "LaunchKernel" in n or "GraphLaunch" in n or n.startswith(("cudaMemcpy", "cudaMemset")) for n in calls
    )
    return {
        "launches": launched / CYCLE,
        "replays": sum("GraphLaunch" in name for name in calls) / CYCLE,
        "kernels": len(ran) / CYCLE,
        "inductor_kernels": sum(e[0].startswith("triton_") for e in ran) / CYCLE,
        "busy_ms": busy_ms(found),
        "parallel_ms": (sum(e[4] - e[3] for e in ran) - union([e[3:] for e in ran])) / 1e6 / CYCLE,
        "zero_kernels": sum("ZeroFunctor" in e[0] or "FillFunctor" in e[0] for e in ran) / CYCLE,
        "copy_ms": round(took / 1e6 / CYCLE, 4),
        "overlap": round(beside / took, 3) if took else None,
    }


def busy_ms(found: list[tuple[str, bool, int, int, int]]) -> float:
    """Milliseconds a step in which anything ran or was copied, of the events of a cycle."""
    return union([e[3:] for e in found if e[1] and not e[0].startswith(WAITING)]) / 1e6 / CYCLE


def union(spans: list[tuple[int, int]]) -> int:
    """Length of the union of intervals: kernels on parallel streams count once."""
    total, end = 0, -math.inf
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return int(total)


def covered(span: tuple[str, bool, int, int, int], others: list[tuple[str, bool, int, int, int]]) -> int:
    """Nanoseconds of ``span`` in which any of ``others`` ran."""
    begin, end = span[3:]
    total, at = 0, begin
    for *_, first, last in sorted(others, key=lambda e: e[3]):
        first, last = max(first, at), min(last, end)
        if last > first:
            total, at = total + last - first, last
    return total
