"""The memory of a step by category, and its timeline in one eager run of each phase.

Tensors that live as long as the step are counted one by one: parameters, optimizer state, inputs and images. The
profiler tells each allocation of an eager run, and hooks tell when a gradient is there. The rest of what is allocated
are activations and workspaces. Inside a graph's pool no allocation happens in a replay, so the pool is one number.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ladder.studies.profile import tracing
from ladder.studies.profile.record import Memory, Moment

MOST = 48  # moments that a phase's timeline keeps
GRAPHED = (
    "the timeline is that of an eager run: in a replay a graph's pool is held from its capture on, and nothing is"
    " allocated inside it"
)
OF_CPU = "on a CPU only PyTorch's own allocations are seen; peak: of the eager runs"
GRADIENTS = "gradients are those that autograd puts into .grad; those of a second stream count as activations"
OF_POOLS = (
    "graph pools: the allocator's segments that belong to captured graphs, gradients and activations in one"
)


@dataclass(frozen=True)
class Static:
    """Bytes of tensors that live as long as the step."""

    parameters: int
    optimizer: int
    buffers: int

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.buffers


@dataclass
class Gradients:
    """The bytes of all gradients at moments of an eager run, in ns since 1970."""

    at: list[tuple[int, int]] = field(default_factory=list)


def static(step: Any) -> Static:
    """Return the bytes of a prepared step's lasting tensors."""
    parameters = [x for network in (step.G, step.D, step.G_ema) for x in _of_module(network)]
    parameters += [x for copies in step.copies.values() for entry in copies.entries for x in entry.leaves]
    optimizer = [
        x for opt in (step.opt_G, step.opt_D) for state in opt.state.values() for x in _tensors(state)
    ]
    buffers = [x for each in step.inputs.values() for x in (each.normal, each.uniform, each.layer_index)]
    buffers += [step.real, step.pl_mean, *step.loss.values()]
    sizes, seen = [], set[int]()
    for group in (parameters, optimizer, buffers):
        sizes.append(_bytes(group, step.device, seen))
    return Static(*sizes)


def _of_module(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def _tensors(state: Any) -> list[Any]:
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [x for x in values if hasattr(x, "untyped_storage")]


def _bytes(tensors: Iterable[Any], device: str, seen: set[int]) -> int:
    """Return the bytes of the tensors' storages on the device. A storage counts once."""
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type == device and storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def graph_pools(step: Any) -> int | None:
    """Return the bytes of the allocator's segments that belong to captured graphs, or None if they are not told."""
    if step.device != "cuda" or not step.graphs:
        return None
    import torch

    segments = torch.cuda.memory_snapshot()
    if not all("segment_pool_id" in each for each in segments):
        return None
    return sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0))


def peaks(device: str) -> tuple[int | None, int | None, int | None]:
    """Return the peaks of allocated and of reserved memory, and what is in use on the device.

    A CPU tells none of them."""
    if device != "cuda":
        return None, None, None
    import torch

    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free


# --- the timeline -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def gradients(step: Any) -> Iterator[Gradients]:
    """Follow the bytes of gradients while entered: after they are cleared, and after each that arrives."""
    found, handles = Gradients(), []
    leaves = [x for network in (step.G, step.D) for x in network.parameters()]
    leaves += [x for copies in step.copies.values() for entry in copies.entries for x in entry.leaves]
    held: dict[int, int] = {}

    def count() -> None:
        held.clear()
        for leaf in leaves:
            arrived(leaf, tell=False)
        tell()

    def tell() -> None:
        found.at.append((time.time_ns(), sum(held.values())))

    def arrived(leaf: Any, tell: bool = True) -> None:
        if leaf.grad is not None:
            held[leaf.grad.untyped_storage().data_ptr()] = leaf.grad.untyped_storage().nbytes()
        if tell:
            found.at.append((time.time_ns(), sum(held.values())))

    original = step._zero_grad

    def cleared(*arguments: Any) -> None:
        original(*arguments)
        count()

    for leaf in leaves:
        with contextlib.suppress(RuntimeError):  # a leaf that needs no gradient now
            wanted = leaf.requires_grad
            leaf.requires_grad_(True)
            handles.append(leaf.register_post_accumulate_grad_hook(arrived))
            leaf.requires_grad_(wanted)
    step._zero_grad = cleared
    count()
    try:
        yield found
    finally:
        del step._zero_grad
        for handle in handles:
            handle.remove()


def changes(profile: Any, device: str) -> list[tuple[int, int]]:
    """Return (ns since 1970, bytes) of each allocation and, negative, each release of a profiled run."""
    import torch

    kind = torch.autograd.DeviceType.CUDA if device == "cuda" else torch.autograd.DeviceType.CPU
    events = profile.profiler.kineto_results.events()
    return sorted(
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == tracing.MEMORY and event.device_type() == kind
    )


def timeline(
    changed: Sequence[tuple[int, int]], gradients_at: Sequence[tuple[int, int]], before: int, lasting: int
) -> list[Moment]:
    """Return the moments of one run: its beginning, `MOST` at most, and its end.

    Each of those between is the one of its interval with the most memory.

    Args:
        changed: (ns, bytes) of allocations and releases, in order.
        gradients_at: (ns, bytes of all gradients), in order.
        before: bytes that were allocated when the run began, those of lasting tensors included.
        lasting: bytes of lasting tensors.
    """
    if not changed:
        return []
    begin, end = changed[0][0], changed[-1][0]
    width = max(1, -(-(end - begin + 1) // MOST))
    kept: dict[int, tuple[int, int, int]] = {}  # by interval: (allocated, ns, gradients)
    allocated, place, held = before, 0, 0
    for at, size in changed:
        while place < len(gradients_at) and gradients_at[place][0] <= at:
            held = gradients_at[place][1]
            place += 1
        allocated += size
        interval = (at - begin) // width
        if interval not in kept or allocated > kept[interval][0]:
            kept[interval] = (allocated, at, held)
    first = before, begin, gradients_at[0][1] if gradients_at else 0
    moments = []
    for most, at, had in (first, *(kept[interval] for interval in sorted(kept)), (allocated, end, held)):
        beyond = max(0, most - lasting)
        moments.append(
            Moment(
                at_ms=round((at - begin) / 1e6, 3),
                gradients=min(had, beyond),
                activations=max(0, beyond - had),
            )
        )
    return moments


def assemble(
    device: str,
    lasting: Static,
    pools: int | None,
    told: tuple[int | None, int | None, int | None],
    timelines: dict[str, list[Moment]],
) -> Memory:
    """Return the record of memory. On a CPU the peak is that of the timelines."""
    allocated, reserved, used = told
    moments = [each for rows in timelines.values() for each in rows]
    if device != "cuda" and moments:
        allocated = lasting.total + max(each.gradients + each.activations for each in moments)
    notes = [GRADIENTS] if moments else []
    notes += [OF_POOLS] if pools is not None else []
    notes += [GRAPHED] if pools is not None and moments else []
    notes += [OF_CPU] if device != "cuda" else []
    return Memory(
        peak_allocated=allocated,
        peak_reserved=reserved,
        device_used=used,
        parameters=lasting.parameters,
        optimizer=lasting.optimizer,
        buffers=lasting.buffers,
        graph_pools=pools,
        timeline=timelines,
        notes=notes,
    )
