"""The profiler's view of a cycle: launches, replays, kernels, how long the GPU was busy, what ran in parallel.

Only inspectors and tools load the profiler; a process that times never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ladder.base.protocol import CYCLE_STEPS
from ladder.receipts.communication import communication
from ladder.receipts.kernel_families import WAITING, Event
from ladder.receipts.records import Trace
from ladder.receipts.spans import union

NOT_KERNELS = ("Memcpy", "Memset", *WAITING)


def traced(cycle: Callable[[], None], ran: Callable[[], None] = lambda: None) -> Trace:
    """Return the profiler's figures of one cycle; see `digest` and `profiled`."""
    return digest(list(events(profiled(cycle, ran))))


def recorded(cycle: Callable[[], None]) -> list[Event]:
    """Return the events of one cycle under the profiler; see `events`."""
    return list(events(profiled(cycle)))


def profiled(
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


def events(profile: Any) -> Iterator[Event]:
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


def kernels(found: Iterable[Event]) -> list[Event]:
    """Return the kernels among the events of a trace: no copies, no memsets, nothing of the CPU."""
    return [event for event in found if event[1] and not event[0].startswith(NOT_KERNELS)]


def digest(found: list[Event]) -> Trace:
    """Return figures of a step from one profiled cycle. Empty if the profiler saw no kernels."""
    ran = kernels(found)
    if not ran:
        return {}
    calls = [name for name, on_device, *_ in found if not on_device]
    memsets = sum(on_device and name.lower().startswith("memset") for name, on_device, *_ in found)
    memsets -= sum(name.startswith("cudaMemset") for name in calls)  # launched one by one
    copies = [e for e in found if e[1] and e[0].startswith("Memcpy HtoD")]
    took = sum(end - begin for *_, begin, end in copies)
    beside = sum(covered(copy, [e for e in ran if e[2] != copy[2]]) for copy in copies)
    launched = sum(
        "LaunchKernel" in n or "GraphLaunch" in n or n.startswith(("cudaMemcpy", "cudaMemset")) for n in calls
    )
    return {
        "launches": launched / CYCLE_STEPS,
        "replays": sum("GraphLaunch" in name for name in calls) / CYCLE_STEPS,
        "kernels": len(ran) / CYCLE_STEPS,
        "inductor_kernels": sum(e[0].startswith("triton_") for e in ran) / CYCLE_STEPS,
        "busy_ms": busy_ms(found),
        "parallel_ms": (sum(e[4] - e[3] for e in ran) - union([e[3:] for e in ran])) / 1e6 / CYCLE_STEPS,
        "zero_kernels": sum("ZeroFunctor" in e[0] or "FillFunctor" in e[0] for e in ran) / CYCLE_STEPS,
        "graph_memsets": max(memsets, 0) / CYCLE_STEPS,
        "copy_ms": round(took / 1e6 / CYCLE_STEPS, 4),
        "overlap": round(beside / took, 3) if took else None,
        **communication((e for e in found if e[1] and not e[0].startswith(WAITING)), CYCLE_STEPS),
    }


def busy_ms(found: list[Event]) -> float:
    """Return the milliseconds a step in which anything ran or was copied, of the events of a cycle."""
    return union([e[3:] for e in found if e[1] and not e[0].startswith(WAITING)]) / 1e6 / CYCLE_STEPS


def covered(span: Event, others: list[Event]) -> int:
    """Return the nanoseconds of ``span`` in which any of ``others`` ran."""
    begin, end = span[3:]
    total, at = 0, begin
    for *_, first, last in sorted(others, key=lambda e: e[3]):
        first, last = max(first, at), min(last, end)
        if last > first:
            total, at = total + last - first, last
    return total
