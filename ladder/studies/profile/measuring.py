"""What one process shows of a step: its time, a traced cycle, an eager run of each phase, and its memory.

Tensors that live as long as the step are counted one by one: parameters, optimizer state, inputs and images. The
profiler records each allocation of an eager run, and hooks when a gradient is there. The rest of what is allocated are
activations and workspaces. Inside a graph's pool no allocation happens in a replay, so the pool is one number.

Every table has all the work: its rows sum to the same milliseconds. Both of two kernels that ran at once count, but in
the families' own time one: that of the busier stream.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import gc
import itertools
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from ladder.core import locks
from ladder.core import text as texts
from ladder.core.errors import UserError, format_error
from ladder.core.job import Job
from ladder.core.protocol import CYCLE_STEPS, IN_ORDER
from ladder.core.records import Fields
from ladder.core.stopping import stop_on_sigterm
from ladder.engine import profiling
from ladder.engine.pool import Pool, WorkerFailure
from ladder.machine import system
from ladder.receipts import categories, evidence, kernel_families, kernel_names
from ladder.results.file import KernelFamily, KernelProfile
from ladder.studies import batch_search
from ladder.studies.frame import Session
from ladder.studies.profile import record, tools, tracing
from ladder.studies.profile.tracing import Label, Labels, Ran, Segment, Traced
from ladder.studies.roofline import derive, floors
from ladder.studies.roofline.derive import CONVOLUTIONS
from stylegan_lite import make_step

CYCLES = {"cuda": 3, "cpu": 1}  # timed cycles; the median counts
COMPILED = "torch.compile joins the work of several layers in one kernel"
LIMIT_S = 180.0  # no try of a batch begins later
ON_CPU = 16  # times the workload's batch are tried at most, as memory is the host's
MOST_MOMENTS = 48  # that a phase's timeline keeps
HEAVIEST = 8  # kernels that are shown, and whose counters are read
KNOWN = 0.9  # of a category's time: with fewer known bytes it has no rate

Work = list[tuple[Ran, Label | None]]


class Eager(NamedTuple):
    """The findings of the eager runs: labels and memory by phase, or why there are none."""

    labels: dict[str, list[Label]]
    timeline: dict[Any, list[record.Moment]]
    reason: str | None = None


@contextlib.contextmanager
def hold_device(session: Session) -> Iterator[None]:
    """Hold the device until the session ends. SIGTERM ends it as Ctrl-C does."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler prints its beginning and end on stderr
    with stop_on_sigterm(), locks.device_lock(system.device_key(session.job.device)):
        yield


def profile_step(session: Session, case: record.Case) -> record.Step:
    """Return what a fresh step shows: time it, trace a cycle, write the user's trace, and run each phase eagerly.

    Raises:
        UserError: it does not fit into memory, or the profiler sees no kernels.
    """
    job, recipe = session.job, case.recipe or {}
    rung, device = job.options.rung, job.device
    try:
        step = make_step(job.workload, recipe, device=device, seed=job.options.seed)
        with contextlib.closing(step):
            session.report(f"{rung}: preparing")
            step.prepare()
            step.cycle()  # fills what loaders hold
            walls = []
            for _ in range(CYCLES[device]):
                evidence.synchronize_device(step)
                begin = time.perf_counter()
                step.cycle()
                evidence.synchronize_device(step)
                walls.append(1000 * (time.perf_counter() - begin) / CYCLE_STEPS)
            memory = measure_memory(step)
            session.report(f"{rung}: tracing a cycle")
            tracing.run_profiled(lambda: None, device)  # the first start of a profiler takes seconds
            traced = tracing.trace_cycle(step)
            if not traced.segments:
                raise UserError("the profiler saw no kernels: CUPTI is missing or used by another program")
            if job.options.trace is not None:
                session.report(f"{rung}: {job.options.trace}: {tracing.write_trace(step, job.options.trace)}")
            session.report(f"{rung}: one eager run of each phase")
            eager = run_eagerly(step, memory.lasting)
            release_memory(device)
            copied: list[tuple[int, int]] = []
            with contextlib.suppress(torch.OutOfMemoryError):  # a yardstick alone is lost
                copied = tracing.time_copies(device)
    except (MemoryError, torch.OutOfMemoryError):
        short = f"{rung} on {job.name} does not fit into the memory of this machine"
        raise UserError(f"{short}; take a workload with a smaller batch") from None
    release_memory(device)
    labelled = tracing.label_segments(eager.labels, traced.segments)
    groups = group_by(labelled, lambda _, ran, __: categories.name_category(ran.family))
    on_gpu = device == "cuda"
    return record.Step(
        walls_ms=walls,
        gpu_ms=to_ms([traced.busy_ns]),
        profile=list_kernels(labelled),
        work=count_work(groups, job.workload, str(recipe["precision"])),
        phases=list_phases(labelled),
        layers=[] if eager.reason else list_layers(labelled),
        no_layers=eager.reason,
        heaviest=list_heaviest(labelled),
        passes=list_passes(labelled, copied) if on_gpu else None,
        gaps=list_gaps(traced) if on_gpu else None,
        uneven=tracing.list_uneven(traced) if on_gpu else [],
        memory=msgspec.structs.replace(memory, timeline=eager.timeline),
    )


def run_eagerly(step: Any, lasting: int) -> Eager:
    """Run each phase once without graphs, which are gone afterwards. Where that fails, layers and memory are lost."""
    if step.recipe.compile != "off":
        return Eager({}, {}, COMPILED)
    eager = Eager({}, {})
    try:
        step.graphs.clear()
        step.held.clear()
        release_memory(step.device)
        for phase in IN_ORDER:
            step.run_phase(phase)  # kernels that only eager runs launch are compiled, and algorithms chosen
            with (
                tracing.name_layers(step),
                follow_gradients(step) as gradients,
                tracing.note_launches() as launches,
            ):
                before = lasting + gradients[0][1]
                if step.device == "cuda":
                    before = int(torch.cuda.memory_allocated())
                how = {"host": True, "record_shapes": True, "profile_memory": True}
                profile = tracing.run_profiled(functools.partial(step.run_phase, phase), step.device, **how)
            eager.labels[phase] = tracing.label_events(profile, phase, step.device, launches)
            changes = list_allocations(profile, step.device)
            eager.timeline[phase] = make_timeline(changes, gradients, before, lasting)
    except Exception as error:
        return Eager({}, {}, texts.make_display(f"the eager run failed: {format_error(error)}"))
    return eager


def release_memory(device: str) -> None:
    """Give the memory of what is gone back to the device."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def search_batch(session: Session, step: record.Step | None, recipe: Fields) -> record.Observed:
    """Return the largest batch, in multiples of `group_of`. Each try is a fresh process with random images."""
    job = session.job
    batch = int(job.workload["batch"])  # type: ignore[arg-type]
    most = batch_search.LARGEST if job.device == "cuda" else ON_CPU * batch
    used = max(step.memory.peak_reserved or 0, step.memory.device_used or 0) if step else 0
    memory_gb = job.machine.get("gpu_memory_gb")
    speed = None
    with Pool() as workers:

        def fits(number: int) -> str | None:
            session.report(f"{job.options.rung}: does a batch of {number} fit?")
            return try_batch(workers, job, recipe, number)[0]

        group = batch_search.group_of(job.workload, recipe)
        first = batch_search.first(batch, used, memory_gb and memory_gb * 2**30, most)
        search = batch_search.search(fits, first, group, LIMIT_S, most)
        if (largest := search.find_batch()) is not None:
            session.report(f"{job.options.rung}: images a second at a batch of {largest}")
            speed = try_batch(workers, job, recipe, largest, cycles=2)[1]
    return record.Observed(
        largest=record.Search(settled=search.settled, tried=search.tried, images_per_s=speed)
    )


def try_batch(
    workers: Any, job: Job, recipe: Fields, batch: int, cycles: int = 0
) -> tuple[str | None, float | None]:
    """Prepare a step of this batch in a fresh process. Return why that failed, and images a second of some cycles."""
    worker = workers.take()
    try:
        workload = job.workload | {"batch": batch, "data": None}
        worker.call("build", workload=workload, recipe=recipe, device=job.device, seed=job.options.seed)
        worker.call("prepare")
        speed = None
        if cycles:
            reply = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
            speed = round(batch / statistics.median(reply["samples_s"]), 3)
    except WorkerFailure as failure:
        worker.kill()
        return failure.reason, None
    worker.close()
    return None, speed


def count_kernels(session: Session, step: record.Step | None, recipe: Fields) -> record.Observed:
    """Return Nsight Compute's counters of the heaviest kernels."""
    job, heaviest = session.job, step.heaviest if step else []
    phases = ", ".join(tools.list_phases(heaviest))
    session.report(f"{job.options.rung}: Nsight Compute counts in the heaviest kernels, in {phases}")
    sms = torch.cuda.get_device_properties(job.device).multi_processor_count
    try:
        return record.Observed(counters=tools.count(heaviest, job.workload, recipe, tools.find_ncu(), sms))
    except tools.Refused as error:
        raise WorkerFailure("failed", f"--ncu: {error}") from None


def measure_memory(step: Any) -> record.MemorySizes:
    """Return the memory of a prepared step in bytes, without a timeline. A storage counts once."""
    counted = set[int]()

    def add(tensors: Iterable[Any]) -> int:
        total = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if tensor.device.type == step.device and storage.nbytes() and storage.data_ptr() not in counted:
                counted.add(storage.data_ptr())
                total += storage.nbytes()
        return total

    networks = (step.G, step.D, step.G_ema)
    states = [state for opt in (step.opt_G, step.opt_D) for state in opt.state.values()]
    inputs = [x for each in step.inputs.values() for x in (each.normal, each.uniform, each.layer_index)]
    peaks: dict[str, int | None] = {}
    if step.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        peaks = {"peak_allocated": torch.cuda.max_memory_allocated(), "device_used": total - free}
        peaks["peak_reserved"] = torch.cuda.max_memory_reserved()
        segments = torch.cuda.memory_snapshot()
        if step.graphs and all("segment_pool_id" in each for each in segments):
            pools = [each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0)]
            peaks["graph_pools"] = sum(pools)
    return record.MemorySizes(
        parameters=add(
            [x for each in networks for x in (*each.parameters(), *each.buffers())] + list_copies(step)
        ),
        optimizer=add(x for state in states for x in state.values() if hasattr(x, "untyped_storage")),
        buffers=add([*inputs, step.real, step.pl_mean, *step.loss.values()]),
        timeline={},
        **peaks,
    )


def list_copies(step: Any) -> list[Any]:
    """Return the compute copies of a step's weights."""
    return [x for copies in step.copies.values() for entry in copies.entries for x in entry.leaves]


@contextlib.contextmanager
def follow_gradients(step: Any) -> Iterator[list[tuple[int, int]]]:
    """Yield (ns since 1970, bytes of all gradients): after they are cleared, and after each that arrives."""
    gradients: list[tuple[int, int]] = []
    leaves = [*step.G.parameters(), *step.D.parameters(), *list_copies(step)]

    def note(*_: Any) -> None:
        storages = [leaf.grad.untyped_storage() for leaf in leaves if leaf.grad is not None]
        sizes = {each.data_ptr(): each.nbytes() for each in storages}
        gradients.append((time.time_ns(), sum(sizes.values())))

    handles = []
    for leaf in leaves:
        with contextlib.suppress(RuntimeError):  # a leaf that needs no gradient now
            needs = leaf.requires_grad
            leaf.requires_grad_(True)
            handles.append(leaf.register_post_accumulate_grad_hook(note))
            leaf.requires_grad_(needs)
    clear = step._zero_grad

    def clear_noted(*arguments: Any) -> None:
        clear(*arguments)
        note()

    step._zero_grad = clear_noted
    note()
    try:
        yield gradients
    finally:
        del step._zero_grad
        for handle in handles:
            handle.remove()


def list_allocations(profile: Any, device: str) -> list[tuple[int, int]]:
    """Return (ns since 1970, bytes) of each allocation and, negative, each release of a profiled run."""
    kind = torch.autograd.DeviceType.CUDA if device == "cuda" else torch.autograd.DeviceType.CPU
    events = profile.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == tracing.MEMORY and event.device_type() == kind]
    return sorted((event.start_ns(), event.nbytes()) for event in memory)


def make_timeline(
    changes: Sequence[tuple[int, int]], gradients_at: Sequence[tuple[int, int]], before: int, lasting: int
) -> list[record.Moment]:
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
    begin = changes[0][0]
    width = max(1, -(-(changes[-1][0] - begin + 1) // MOST_MOMENTS))
    most: dict[int, tuple[int, int]] = {}  # by interval: (allocated, ns)
    allocated = before
    for at, size in changes:
        allocated += size
        interval = (at - begin) // width
        if interval not in most or allocated > most[interval][0]:
            most[interval] = allocated, at
    moments = []
    for total, at in ((before, begin), *(most[key] for key in sorted(most)), (allocated, changes[-1][0])):
        place = bisect.bisect_right(gradients_at, at, key=lambda each: each[0])
        gradients = min(gradients_at[max(0, place - 1)][1] if gradients_at else 0, max(0, total - lasting))
        activations = max(0, total - lasting) - gradients
        moments.append(
            record.Moment(at_ms=round((at - begin) / 1e6, 3), gradients=gradients, activations=activations)
        )
    return moments


def group_by(labels: Labels, key: Callable[[Segment, Ran, Label | None], Any]) -> dict[Any, Work]:
    """Return all that ran by what `key` returns for it, the longest first; None leaves it out."""
    groups: dict[Any, Work] = defaultdict(list)
    for segment, of_segment in labels:
        for ran, label in zip(segment.ran, of_segment, strict=True):
            if (name := key(segment, ran, label)) is not None:
                groups[name].append((ran, label))
    return dict(sorted(groups.items(), key=lambda each: -sum(ran.ns for ran, _ in each[1])))


def to_ms(ns: Iterable[float]) -> float:
    """Return the milliseconds of a step, of a cycle's nanoseconds."""
    return round(sum(ns) / 1e6 / CYCLE_STEPS, 5)


def sum_work(work: Work) -> dict[str, float]:
    """Return milliseconds and launches of a step as a file has them."""
    return {"ms": to_ms(ran.ns for ran, _ in work), "launches": round(len(work) / CYCLE_STEPS, 4)}


def list_known(work: Work) -> list[tuple[int, int]] | None:
    """Return (ns, bytes) of the launches whose bytes are known, or None if those are too few."""
    known = [(ran.ns, label.moved) for ran, label in work if label and label.moved is not None]
    return known if sum(ns for ns, _ in known) >= KNOWN * sum(ran.ns for ran, _ in work) else None


def list_kernels(labels: Labels) -> KernelProfile:
    """Return milliseconds and launches of a step by family and by kernel, as a ladder's result has them."""
    families = group_by(labels, lambda _, ran, __: profiling.clean_name(ran.family))
    kernels = group_by(labels, lambda _, ran, __: profiling.clean_name(kernel_names.name_stored(ran.name)))
    rows = [KernelFamily(name=name, **sum_work(work)) for name, work in kernels.items()]
    if rest := rows[profiling.HEAVIEST :]:
        ms, launches = round(sum(row.ms for row in rest), 5), round(sum(row.launches for row in rest), 4)
        rows[profiling.HEAVIEST :] = [
            KernelFamily(name=f"{len(rest)} other kernels", ms=ms, launches=launches)
        ]
    of_families = []
    for name, work in families.items():
        own_ms = to_ms(ran.ns - ran.beside_ns for ran, _ in work)
        of_families.append(KernelFamily(name=name, own_ms=own_ms, **sum_work(work)))
    return KernelProfile(families=of_families, kernels=rows)


def list_phases(labels: Labels) -> list[record.PhaseWork]:
    """Return the rows of phases, in the order of a step."""
    groups = group_by(labels, _find_phase)
    runs = [name for segment, _ in labels for name in segment.phases]
    return [
        record.PhaseWork(name=name, runs=runs.count(name) / CYCLE_STEPS or None, **sum_work(groups[name]))
        for name in (*IN_ORDER, record.BETWEEN, record.UNKNOWN)
        if name in groups
    ]


def _find_phase(segment: Segment, _: Ran, label: Label | None) -> str:
    """Return the phase of what ran in a segment: the segment's only one, else that of the label."""
    if not segment.phases:
        return record.BETWEEN
    if len(segment.phases) == 1:
        return segment.phases[0]
    return label.phase if label else record.UNKNOWN


def list_layers(labels: Labels) -> list[record.Layer]:
    """Return the rows of layers, the heaviest first."""

    def find_layer(segment: Segment, _: Ran, label: Label | None) -> str:
        return label.layer if label else record.UNKNOWN if segment.phases else tracing.OUTSIDE

    rows = []
    for name, work in group_by(labels, find_layer).items():
        backward_ms = to_ms(ran.ns for ran, label in work if label and label.backward)
        rows.append(record.Layer(name=name, backward_ms=backward_ms, **sum_work(work)))
    return rows


def list_gaps(traced: Traced) -> list[record.Gap]:
    """Return when nothing ran inside runs of phases, by what stood at both ends, of any stream."""
    gaps: dict[tuple[record.Kind, record.Kind], list[int]] = defaultdict(list)
    for segment in traced.segments:
        last = segment.ran[0]
        for ran in segment.ran if segment.phases else ():  # between them the trace waits
            if ran.begin > last.begin + last.ns:
                gaps[_find_kind(last), _find_kind(ran)].append(ran.begin - last.begin - last.ns)
            last = max(last, ran, key=lambda each: each.begin + each.ns)
    rows = [
        record.Gap(
            *kinds, to_ms(each), round(len(each) / CYCLE_STEPS, 4), round(statistics.median(each) / 1e3, 3)
        )
        for kinds, each in gaps.items()
    ]
    return sorted(rows, key=lambda row: -row.ms)


def _find_kind(ran: Ran) -> record.Kind:
    if ran.family != kernel_families.TRANSFER:
        return "kernel"
    return "memset" if ran.name.lower().startswith("memset") else "copy"


def list_heaviest(labels: Labels, most: int = HEAVIEST) -> list[record.Heavy]:
    """Return the kernels that take most time, without copies, each with the phase that has most of its time."""

    def name_of(_: Segment, ran: Ran, __: Label | None) -> str | None:
        return None if ran.family == kernel_families.TRANSFER else kernel_names.name_label(ran.name)

    by_phase = group_by(labels, lambda *each: (name_of(*each), _find_phase(*each)))  # the longest first
    rows = []
    for name, work in list(group_by(labels, name_of).items())[:most]:
        phase, of_phase = next((key[1], each) for key, each in by_phase.items() if key[0] == name)
        spellings = sorted({ran.name for ran, _ in work})
        words = {kernel_names.find_word(each) for each in spellings}
        word = words.pop() if len(words) == 1 else None
        functions = [kernel_names.name_function(each) for each in spellings]
        alike = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*functions, strict=False))
        rows.append(
            record.Heavy(
                kernel=texts.clean_line(name),
                function=profiling.clean_name("".join(each[0] for each in alike)),
                word=profiling.clean_name(word) if word else None,
                phase=phase,
                phase_ms=to_ms(ran.ns for ran, _ in of_phase),
                **sum_work(work),
            )
        )
    return rows


def list_passes(labels: Labels, copied: Sequence[tuple[int, int]]) -> list[record.Pass]:
    """Return the kernels of ours, the heaviest first, each beside copies of as many bytes.

    Args:
        copied: (bytes, nanoseconds) of copies, of `tracing.time_copies`; without them there are no rows.
    """
    rows = []
    groups = group_by(
        labels, lambda _, ran, __: ran.family if ran.family.startswith(kernel_families.OURS) else None
    )
    for family, work in groups.items() if copied else ():
        row = record.Pass(profiling.clean_name(family.removeprefix(kernel_families.OURS)), **sum_work(work))  # type: ignore[arg-type]
        if known := list_known(work):
            row = msgspec.structs.replace(
                row,
                bytes=round(sum(size for _, size in known) / CYCLE_STEPS),
                known_ms=to_ms(ns for ns, _ in known),
                copy_ms=to_ms(interpolate_copy_ns(copied, size) for _, size in known),
            )
        rows.append(row)
    return rows


def interpolate_copy_ns(copied: Sequence[tuple[int, int]], size: int) -> float:
    """Return the nanoseconds of a copy of `size` bytes, between those that were measured."""
    sizes, took = zip(*copied, strict=True)
    if size > sizes[-1]:
        return float(took[-1] * size / sizes[-1])
    return float(np.exp(np.interp(math.log(max(size, 1)), np.log(sizes), np.log(took))))


def count_work(groups: Mapping[str, Work], fields: Fields, precision: str) -> dict[str, float]:
    """Return what a step's categories compute or move: FLOPs of convolutions and matmuls, bytes of others.

    FLOPs and the optimizer's bytes are those that the workload needs (`ladder.studies.roofline.floors`). Other bytes
    are those of the tensors that operators and kernels of ours were given, if they are known for most of the time: the
    launches without known bytes count in proportion. A category of which neither is known is left out. Depthwise
    kernels of a cheaper model lie in `resampling`, beside its filters: then convolutions have no number.
    """
    amounts = {}
    for name, work in groups.items():
        if (known := list_known(work)) and (known_ns := sum(ns for ns, _ in known)):
            ns, moved = sum(ran.ns for ran, _ in work), sum(size for _, size in known)
            amounts[name] = moved / CYCLE_STEPS * ns / known_ns
    works, often = floors.count_work(fields, precision, "nchw"), derive.list_frequencies(fields)
    purposes = ("optimizer", "moving average")
    updates = (works[phase].bytes[each] * often[phase] for phase in often for each in purposes)
    needed = {categories.OPTIMIZER: sum(updates)}
    if fields.get("convolution", "full") == "full":
        pointwise = sum(flops for op, flops in derive.weigh_ops(works, fields).items() if op.is_pointwise)
        matmuls = sum(works[phase].matmul_flops * times for phase, times in often.items())
        needed[categories.CONVOLUTION] = derive.sum_amounts(works, fields)[CONVOLUTIONS]
        needed[categories.MATMUL] = matmuls + pointwise
    return amounts | {name: amount for name, amount in needed.items() if amount and name in groups}
