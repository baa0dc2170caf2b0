"""What one process shows of a step: its time, a traced cycle, an eager run of each phase, and its memory.

Tensors that live as long as the step are counted one by one: parameters, optimizer state, inputs and images. The
profiler records each allocation of an eager run, and hooks when a gradient is there. The rest of what is allocated are
activations and workspaces. Inside a graph's pool no allocation happens in a replay, so the pool is one number.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ladder.base import locks
from ladder.base import text as texts
from ladder.base.errors import UserError, describe
from ladder.base.protocol import CYCLE_STEPS, IN_ORDER
from ladder.base.stopping import stop_on_sigterm
from ladder.core.job import Job
from ladder.core.records import Fields
from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.machine import system
from ladder.results.file import Phase
from ladder.studies import batch_search
from ladder.studies.frame import Session
from ladder.studies.profile import attribution, tools, tracing
from ladder.studies.profile.record import Case, MemorySizes, Moment, Observed, Search, Step, Try

CYCLES = {"cuda": 3, "cpu": 1}  # timed cycles; the median counts
COMPILED = "torch.compile joins the work of several layers in one kernel"
LIMIT_S = 180.0  # no try of a batch begins later
ON_CPU = 16  # times the workload's batch are tried at most, as memory is the host's
MOST_MOMENTS = 48  # that a phase's timeline keeps


@dataclass
class Eager:
    """The findings of the eager runs: labels and memory by phase, or why there are none."""

    labels: dict[str, list[attribution.Label]] = field(default_factory=dict)
    timelines: dict[Phase, list[Moment]] = field(default_factory=dict)
    reason: str | None = None


@contextlib.contextmanager
def hold_device(session: Session) -> Iterator[None]:
    """Hold the device until the session ends. SIGTERM ends it as Ctrl-C does."""

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler prints its beginning and end on stderr
    key = system.device_key(session.job.device)
    with stop_on_sigterm(), locks.device_lock(key):
        yield


def profile_step(session: Session, case: Case) -> Step:
    """Return what a fresh step shows. UserError if it does not fit into memory."""
    import torch

    job = session.job
    try:
        step = measure_step(session, case)
    except (MemoryError, torch.OutOfMemoryError):
        short = f"{job.options.rung} on {job.name} does not fit into the memory of this machine"
        raise UserError(f"{short}; take a workload with a smaller batch") from None
    release_memory(job.device)
    return step


def measure_step(session: Session, case: Case) -> Step:
    """Time a step, trace a cycle, write the trace that the user wants, and run each phase eagerly."""
    from ladder.receipts import evidence
    from stylegan_lite import make_step

    job, recipe = session.job, case.recipe or {}
    rung, device = job.options.rung, job.device

    def tell(line: str) -> None:
        session.report(f"{rung}: {line}")

    step = make_step(job.workload, recipe, device=device, seed=job.options.seed)
    try:
        tell("preparing")
        step.prepare()
        step.cycle()  # fills what loaders hold
        walls = []
        for _ in range(CYCLES[device]):
            evidence.synchronize(step)
            begin = time.perf_counter()
            step.cycle()
            evidence.synchronize(step)
            walls.append(1000 * (time.perf_counter() - begin) / CYCLE_STEPS)
        peaks, pools = measure_peaks(device), measure_graph_pools(step)
        tell("tracing a cycle")
        tracing.run_profiled(lambda: None, device)  # the first start of a profiler takes seconds
        traced = tracing.trace_cycle(step)
        if not traced.segments:
            raise UserError("the profiler saw no kernels: CUPTI is missing or used by another program")
        if job.options.trace is not None:
            tell(f"{job.options.trace}: {tracing.write_trace(step, job.options.trace)}")
        lasting = measure_lasting(step)
        tell("one eager run of each phase")
        eager = run_eagerly(step, lasting)
        release_memory(device)
        copied: list[tuple[int, int]] = []
        with contextlib.suppress(
            Exception
        ):  # a yardstick alone is lost where the step has left no memory for it
            copied = tracing.time_copies(device)
    finally:
        step.close()
    labels = list(attribution.label_segments(eager.labels, traced.segments))
    sums = attribution.sum_categories(labels)
    on_gpu = device == "cuda"
    return Step(
        walls_ms=walls,
        gpu_ms=round(traced.busy_ns / 1e6 / CYCLE_STEPS, 5),
        profile=attribution.list_kernels(labels),
        work=attribution.count_work(sums, job.workload, str(recipe["precision"])),
        phases=attribution.list_phases(labels),
        layers=[] if eager.reason else attribution.list_layers(labels),
        no_layers=eager.reason,
        heaviest=attribution.list_heaviest(labels),
        passes=attribution.list_passes(labels, copied) if on_gpu else None,
        gaps=attribution.list_gaps(traced) if on_gpu else None,
        uneven=tracing.list_uneven(traced) if on_gpu else [],
        memory=MemorySizes(
            peak_allocated=peaks[0],
            peak_reserved=peaks[1],
            device_used=peaks[2],
            parameters=lasting.parameters,
            optimizer=lasting.optimizer,
            buffers=lasting.buffers,
            graph_pools=pools,
            timeline=eager.timelines,
        ),
    )


def run_eagerly(step: Any, lasting: Lasting) -> Eager:
    """Run each phase once without graphs. The graphs of the step are gone afterwards."""
    eager = Eager()
    if step.recipe.compile != "off":
        return Eager(reason=COMPILED)
    try:
        step.graphs.clear()
        step.held.clear()
        release_memory(step.device)
        for phase in IN_ORDER:
            step.run_phase(phase)  # kernels that only eager runs launch are compiled, and algorithms chosen
            _record_phase(step, phase, lasting, eager)  # type: ignore[arg-type]
    except Exception as error:  # layers and memory alone are lost
        return Eager(reason=texts.display(f"the eager run failed: {describe(error)}"))
    return eager


def _record_phase(step: Any, phase: Phase, lasting: Lasting, eager: Eager) -> None:

    with (
        tracing.name_layers(step),
        follow_gradients(step) as gradients,
        tracing.note_launches() as launches,
    ):
        before = lasting.total + gradients[0][1]
        if step.device == "cuda":
            import torch

            before = int(torch.cuda.memory_allocated())
        how = {"host": True, "record_shapes": True, "profile_memory": True}
        profile = tracing.run_profiled(lambda: step.run_phase(phase), step.device, **how)
    eager.labels[phase] = attribution.label_spans(
        attribution.list_spans(profile), phase, step.device, launches
    )
    changes = list_allocations(profile, step.device)
    eager.timelines[phase] = make_timeline(changes, gradients, before, lasting.total)


def release_memory(device: str) -> None:
    """Give the memory of what is gone back to the device."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def search_batch(session: Session, step: Step | None, recipe: Fields) -> Observed:
    """Return the largest batch, in multiples of `group_of`. Each try is a fresh process with random images."""

    job = session.job
    batch = int(job.workload["batch"])  # type: ignore[arg-type]
    most = batch_search.LARGEST if job.device == "cuda" else ON_CPU * batch
    used = max(step.memory.peak_reserved or 0, step.memory.device_used or 0) if step else 0
    memory_gb = job.machine.get("gpu_memory_gb")
    speeds: list[float] = []
    with Pool() as workers:

        def fits(number: int) -> str | None:
            session.report(f"{job.options.rung}: does a batch of {number} fit?")
            return try_batch(workers, job, recipe, number)

        def time_images(worker: Worker, number: int) -> None:
            reply = worker.call("visit", cycles=2, settle_s=0, settle_cycles=0, main=False)
            speeds.append(number / statistics.median(reply["samples_s"]))

        group = batch_search.group_of(job.workload, recipe)
        first = batch_search.first(batch, used, memory_gb and memory_gb * 2**30, most)
        search = batch_search.search(fits, first, group, LIMIT_S, most)
        if (largest := search.find_batch()) is not None:
            session.report(f"{job.options.rung}: images a second at a batch of {largest}")
            try_batch(workers, job, recipe, largest, time_images)
    tried = [Try(each.batch, each.reason) for each in search.tried]
    speed = round(speeds[0], 3) if speeds else None
    return Observed(largest=Search(tried, search.settled, speed))


def try_batch(workers: Any, job: Job, recipe: Fields, batch: int, then: Any = None) -> str | None:
    """Prepare a step of this batch in a fresh process, and do something with it. Return why that failed, or None."""

    worker = workers.take()
    try:
        workload = job.workload | {"batch": batch, "data": None}
        worker.call("build", workload=workload, recipe=recipe, device=job.device, seed=job.options.seed)
        worker.call("prepare")
        if then is not None:
            then(worker, batch)
    except WorkerFailure as failure:
        worker.kill()
        return failure.reason
    worker.close()
    return None


def count_kernels(session: Session, step: Step | None, recipe: Fields) -> Observed:
    """Return Nsight Compute's counters of the heaviest kernels."""
    import torch

    job, heaviest = session.job, step.heaviest if step else []
    phases = ", ".join(tools.list_phases(heaviest))
    session.report(f"{job.options.rung}: Nsight Compute counts in the heaviest kernels, in {phases}")
    sms = torch.cuda.get_device_properties(job.device).multi_processor_count
    try:
        return Observed(counters=tools.count(heaviest, job.workload, recipe, tools.find_ncu(), sms))
    except tools.Refused as error:
        raise WorkerFailure("failed", f"--ncu: {error}") from None


# --- memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lasting:
    """Bytes of tensors that live as long as the step."""

    parameters: int
    optimizer: int
    buffers: int

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.buffers


def measure_lasting(step: Any) -> Lasting:
    """Return the bytes of a prepared step's lasting tensors, counted one by one."""
    networks = (step.G, step.D, step.G_ema)
    parameters = [x for network in networks for x in (*network.parameters(), *network.buffers())]
    parameters += [x for copies in step.copies.values() for entry in copies.entries for x in entry.leaves]
    optimizer = [
        x for opt in (step.opt_G, step.opt_D) for state in opt.state.values() for x in _list_tensors(state)
    ]
    buffers = [x for each in step.inputs.values() for x in (each.normal, each.uniform, each.layer_index)]
    buffers += [step.real, step.pl_mean, *step.loss.values()]
    counted = set[int]()
    return Lasting(
        *(_add_storages(group, step.device, counted) for group in (parameters, optimizer, buffers))
    )


def _list_tensors(state: Any) -> list[Any]:
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [x for x in values if hasattr(x, "untyped_storage")]


def _add_storages(tensors: Iterable[Any], device: str, counted: set[int]) -> int:
    """Return the bytes of the tensors' storages on the device. A storage counts once."""
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type == device and storage.nbytes() and storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def measure_graph_pools(step: Any) -> int | None:
    """Return the bytes of the allocator's segments that belong to captured graphs, or None if they are not known."""
    if step.device != "cuda" or not step.graphs:
        return None
    import torch

    segments = torch.cuda.memory_snapshot()
    if not all("segment_pool_id" in each for each in segments):
        return None
    return sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0))


def measure_peaks(device: str) -> tuple[int | None, int | None, int | None]:
    """Return the peaks of allocated and of reserved memory, and what is in use on the device; None on a CPU."""
    if device != "cuda":
        return None, None, None
    import torch

    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free


@contextlib.contextmanager
def follow_gradients(step: Any) -> Iterator[list[tuple[int, int]]]:
    """Yield (ns since 1970, bytes of all gradients): after they are cleared, and after each that arrives."""
    gradients: list[tuple[int, int]] = []
    handles = []
    leaves = [x for network in (step.G, step.D) for x in network.parameters()]
    leaves += [x for copies in step.copies.values() for entry in copies.entries for x in entry.leaves]
    held: dict[int, int] = {}

    def hold(leaf: Any) -> None:
        if leaf.grad is not None:
            held[leaf.grad.untyped_storage().data_ptr()] = leaf.grad.untyped_storage().nbytes()

    def note() -> None:
        gradients.append((time.time_ns(), sum(held.values())))

    def count() -> None:
        held.clear()
        for leaf in leaves:
            hold(leaf)
        note()

    def arrive(leaf: Any) -> None:
        hold(leaf)
        note()

    original = step._zero_grad

    def clear(*arguments: Any) -> None:
        original(*arguments)
        count()

    for leaf in leaves:
        with contextlib.suppress(RuntimeError):  # a leaf that needs no gradient now
            needs = leaf.requires_grad
            leaf.requires_grad_(True)
            handles.append(leaf.register_post_accumulate_grad_hook(arrive))
            leaf.requires_grad_(needs)
    step._zero_grad = clear
    count()
    try:
        yield gradients
    finally:
        del step._zero_grad
        for handle in handles:
            handle.remove()


def list_allocations(profile: Any, device: str) -> list[tuple[int, int]]:
    """Return (ns since 1970, bytes) of each allocation and, negative, each release of a profiled run."""
    import torch

    kind = torch.autograd.DeviceType.CUDA if device == "cuda" else torch.autograd.DeviceType.CPU
    events = profile.profiler.kineto_results.events()
    return sorted(
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == tracing.MEMORY and event.device_type() == kind
    )


def make_timeline(
    changes: Sequence[tuple[int, int]], gradients_at: Sequence[tuple[int, int]], before: int, lasting: int
) -> list[Moment]:
    """Return the moments of one run: its beginning, `MOST_MOMENTS` at most, and its end.

    Each of those between is the one of its interval with the most memory.

    Args:
        changes: (ns, bytes) of allocations and releases, in order.
        gradients_at: (ns, bytes of all gradients), in order.
        before: bytes that were allocated when the run began, those of lasting tensors included.
        lasting: bytes of lasting tensors.
    """
    if not changes:
        return []
    begin, end = changes[0][0], changes[-1][0]
    width = max(1, -(-(end - begin + 1) // MOST_MOMENTS))
    most: dict[int, tuple[int, int, int]] = {}  # by interval: (allocated, ns, gradients)
    allocated, place, held = before, 0, 0
    for at, size in changes:
        while place < len(gradients_at) and gradients_at[place][0] <= at:
            held = gradients_at[place][1]
            place += 1
        allocated += size
        interval = (at - begin) // width
        if interval not in most or allocated > most[interval][0]:
            most[interval] = (allocated, at, held)
    first = before, begin, gradients_at[0][1] if gradients_at else 0
    moments = []
    for total, at, had in (first, *(most[interval] for interval in sorted(most)), (allocated, end, held)):
        beyond = max(0, total - lasting)
        at_ms = round((at - begin) / 1e6, 3)
        moments.append(Moment(at_ms=at_ms, gradients=min(had, beyond), activations=max(0, beyond - had)))
    return moments
