"""What one process shows of a step: its time, a traced cycle, an eager run of each phase, and its memory.

Tensors that live as long as the step are counted one by one. The profiler records each allocation of an eager run, and
hooks when a gradient is there; the rest are activations and workspaces. In a replay nothing is allocated.

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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from ladder.core import locks
from ladder.core import text as texts
from ladder.core.errors import UserError, format_error
from ladder.core.protocol import CYCLE_STEPS, IN_ORDER
from ladder.core.records import Fields
from ladder.core.stopping import stop_on_sigterm
from ladder.engine import models, profiling
from ladder.engine.pool import Pool, WorkerFailure
from ladder.machine import system
from ladder.receipts import categories, evidence, kernel_families, kernel_names
from ladder.results.file import KernelFamily, KernelProfile
from ladder.studies import batch_search
from ladder.studies.frame import Session
from ladder.studies.profile import record, tools, tracing
from ladder.studies.profile.tracing import Ran, Segment
from ladder.studies.roofline import derive, floors
from stylegan_lite import make_step
from stylegan_lite.step import loading

CYCLES = {"cuda": 3, "cpu": 1}  # timed cycles; the median counts
COMPILED = "torch.compile joins the work of several layers in one kernel"
LIMIT_S = 180.0  # no try of a batch begins later
ON_CPU = 16  # times the workload's batch are tried at most, as memory is the host's
MOST_MOMENTS = 48  # that a phase's timeline keeps
HEAVIEST = 8  # kernels that are shown, and whose counters are read
KNOWN = 0.9  # of a category's time: with fewer known bytes it has no rate

Moments = Sequence[tuple[int, int]]  # (ns since 1970, bytes), in order


Eager = tuple[
    dict[str, list[Ran]], dict[Any, list[record.Moment]], str | None
]  # by phase, or why there is nothing


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
    rung, device, on_gpu = job.options.rung, job.device, job.device == "cuda"
    copied: list[tuple[int, int]] = []
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
            segments, busy_ns = tracing.trace_cycle(step)
            if not segments:
                raise UserError("the profiler saw no kernels: CUPTI is missing or used by another program")
            if job.options.trace is not None:
                tracing.write_trace(step, job.options.trace)
                session.report(f"{rung}: {job.options.trace}: one step of each kind")
            session.report(f"{rung}: one eager run of each phase")
            labels, timeline, reason = run_eagerly(step, memory.lasting)
            release_memory(device)
            with contextlib.suppress(torch.OutOfMemoryError):  # a yardstick alone is lost
                copied = tracing.time_copies(device)
    except (MemoryError, torch.OutOfMemoryError):
        short = f"{rung} on {job.name} does not fit into the memory of this machine"
        raise UserError(f"{short}; take a workload with a smaller batch") from None
    except Exception as error:
        if job.facts is None or isinstance(error, UserError):
            raise
        where = job.workload["model"]
        raise UserError(f"{rung}: {loading.locate(error, where[0], where[1])}") from error  # type: ignore[index]
    release_memory(device)
    ran = tracing.label_segments(labels, segments)
    return record.Step(
        walls_ms=walls,
        gpu_ms=to_ms([busy_ns]),
        profile=list_kernels(ran),
        work=count_work(ran, job.workload, str(recipe["precision"])),
        phases=list_phases(ran, segments, step.order),
        layers=[] if reason else list_layers(ran),
        no_layers=reason,
        heaviest=list_heaviest(ran),
        passes=list_passes(ran, copied) if on_gpu else None,
        gaps=list_gaps(segments) if on_gpu else None,
        uneven=tracing.list_uneven(segments) if on_gpu else [],
        memory=msgspec.structs.replace(memory, timeline=timeline),
    )


def run_eagerly(step: Any, lasting: int) -> Eager:
    """Return labels and memory of a run of each phase without graphs, which are gone afterwards."""
    if step.recipe.compile != "off":
        return {}, {}, COMPILED
    labels, timeline, on_gpu = {}, {}, step.device == "cuda"
    kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    try:
        step.graphs.clear()
        step.held.clear()
        release_memory(step.device)
        for phase in step.order:
            run = functools.partial(step.run_phase, phase)
            run()  # kernels that only eager runs launch are compiled, and algorithms chosen
            with (
                tracing.name_layers(step),
                follow_gradients(step) as gradients,
                tracing.note_launches() as launches,
            ):
                before = int(torch.cuda.memory_allocated()) if on_gpu else lasting + gradients[0][1]
                profile = tracing.run_profiled(
                    run, step.device, host=True, record_shapes=True, profile_memory=True
                )
            labels[phase] = tracing.label_events(profile, phase, step.device, launches)
            events = [event for event in tracing.list_events(profile) if event.name() == tracing.MEMORY]
            changes = sorted(
                (each.start_ns(), each.nbytes()) for each in events if each.device_type() == kind
            )
            timeline[phase] = make_timeline(changes, gradients, before, lasting)
    except Exception as error:
        return {}, {}, texts.make_display(f"the eager run failed: {format_error(error)}")
    return labels, timeline, None


def release_memory(device: str) -> None:
    """Give the memory of what is gone back to the device."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def search_batch(session: Session, step: record.Step | None, recipe: Fields) -> record.Observed:
    """Return the largest batch, in multiples of `group_of`. Each try is a fresh process with random images."""
    job, speeds = session.job, dict[int, float]()
    batch = int(job.workload["batch"])  # type: ignore[arg-type]
    most = batch_search.LARGEST if job.device == "cuda" else ON_CPU * batch
    used = max(step.memory.peak_reserved or 0, step.memory.device_used or 0) if step else 0
    memory_gb = job.machine.get("gpu_memory_gb")
    with Pool() as workers:

        def fits(number: int, cycles: int = 0) -> str | None:
            session.report(f"{job.options.rung}: {'images a second' if cycles else 'trying'}: batch {number}")
            worker = workers.take()
            try:
                workload = models.resize(job.workload, {"batch": number}) | {"data": None}
                seed = job.options.seed
                worker.call("build", workload=workload, recipe=recipe, device=job.device, seed=seed)
                worker.call("prepare")
                if cycles:
                    reply = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
                    speeds[number] = round(number / statistics.median(reply["samples_s"]), 3)
            except WorkerFailure as failure:
                worker.kill()
                return failure.reason
            worker.close()
            return None

        first = batch_search.first(batch, used, memory_gb and memory_gb * 2**30, most)
        search = batch_search.search(fits, first, batch_search.group_of(job.workload, recipe), LIMIT_S, most)
        if (largest := search.find_batch()) is not None:
            fits(largest, cycles=2)
    speed = speeds.get(largest) if largest else None
    return record.Observed(largest=record.Search(search.settled, search.tried, images_per_s=speed))


def count_kernels(session: Session, step: record.Step | None, recipe: Fields) -> record.Observed:
    """Return Nsight Compute's counters of the heaviest kernels."""
    job, heaviest = session.job, step.heaviest if step else []
    session.report(f"{job.options.rung}: Nsight Compute counts in the heaviest kernels")
    sms = torch.cuda.get_device_properties(job.device).multi_processor_count
    order = IN_ORDER if job.facts is None else [each.split()[0] for each in job.facts["phases"]]
    counters = tools.count(heaviest, job.workload, recipe, tools.find_tool("ncu"), sms, order)
    return record.Observed(counters=counters)


def measure_memory(step: Any) -> record.Memory:
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

    networks = (*step.networks.values(), *step.averages.values())
    weights = [x for each in networks for x in (*each.parameters(), *each.buffers())]
    states = [state for opt in step.optimizers.values() for state in opt.state.values()]
    inputs = [x for each in step.given.values() for x in each.list_tensors()]
    images = [] if step.real is None else [step.real]
    peaks: dict[str, Any] = {}
    if step.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        peaks = {"peak_allocated": torch.cuda.max_memory_allocated(), "device_used": total - free}
        peaks["peak_reserved"] = torch.cuda.max_memory_reserved()
        segments = torch.cuda.memory_snapshot() if step.graphs else []
        if segments and all("segment_pool_id" in each for each in segments):
            pools = [each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0)]
            peaks["graph_pools"] = sum(pools)
    return record.Memory(
        parameters=add([*weights, *list_copies(step)]),
        optimizer=add(x for state in states for x in state.values() if hasattr(x, "untyped_storage")),
        buffers=add([*inputs, *images, *step.data.values(), *step.state.values(), *step.loss.values()]),
        **peaks,
    )


def list_copies(step: Any) -> list[Any]:
    """Return the compute copies of a step's weights."""
    return [x for copies in step.copies.values() for entry in copies.entries for x in entry.leaves]


@contextlib.contextmanager
def follow_gradients(step: Any) -> Iterator[list[tuple[int, int]]]:
    """Yield (ns since 1970, bytes of all gradients): after they are cleared, and after each that arrives."""
    gradients: list[tuple[int, int]] = []
    weights = (p for each in step.networks.values() for p in each.parameters())
    leaves = [*weights, *list_copies(step)]

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
    step._zero_grad = lambda *arguments: note(clear(*arguments))
    note()
    try:
        yield gradients
    finally:
        del step._zero_grad
        for handle in handles:
            handle.remove()


def make_timeline(changes: Moments, gradients_at: Moments, before: int, lasting: int) -> list[record.Moment]:
    """Return the moments of one run: its beginning, the one with the most memory of each interval, and its end.

    `changes` are bytes of allocations and, negative, releases. `before` are the bytes that were allocated when the run
    began, with those of lasting tensors (`lasting`).
    """
    if not changes:
        return []
    begin, end = changes[0][0], changes[-1][0]
    width = max(1, -(-(end - begin + 1) // MOST_MOMENTS))
    most: dict[int, tuple[int, int]] = {}  # by interval: (allocated, ns)
    allocated = before
    for at, size in changes:
        allocated += size
        most[(at - begin) // width] = max(most.get((at - begin) // width, (-1, 0)), (allocated, -at))
    moments = []
    for total, at in ((before, begin), *((total, -at) for total, at in most.values()), (allocated, end)):
        place = bisect.bisect_right(gradients_at, at, key=lambda each: each[0])
        of_run = max(0, total - lasting)
        gradients = min(gradients_at[max(0, place - 1)][1] if gradients_at else 0, of_run)
        moments.append(record.Moment(round((at - begin) / 1e6, 3), gradients, of_run - gradients))
    return moments


def group_by(ran: Iterable[Ran], key: Callable[[Ran], Any]) -> dict[Any, list[Ran]]:
    """Return all that ran by what `key` returns for it, the longest first; None leaves it out."""
    groups: dict[Any, list[Ran]] = defaultdict(list)
    for each in ran:
        if (name := key(each)) is not None:
            groups[name].append(each)
    return dict(sorted(groups.items(), key=lambda item: -sum(each.ns for each in item[1])))


def to_ms(ns: Iterable[float]) -> float:
    """Return the milliseconds of a step, of a cycle's nanoseconds."""
    return round(sum(ns) / 1e6 / CYCLE_STEPS, 5)


def sum_work(work: Sequence[Ran]) -> dict[str, float]:
    """Return milliseconds and launches of a step as a file has them."""
    return {"ms": to_ms(each.ns for each in work), "launches": round(len(work) / CYCLE_STEPS, 4)}


def list_known(work: Sequence[Ran]) -> list[tuple[int, int]]:
    """Return (ns, bytes) of the launches whose bytes are known, none of them if those are too few."""
    known = [(each.ns, each.moved) for each in work if each.moved is not None]
    return known if sum(ns for ns, _ in known) >= KNOWN * sum(each.ns for each in work) else []


def list_kernels(ran: Sequence[Ran]) -> KernelProfile:
    """Return milliseconds and launches of a step by family and by kernel, as a ladder's result has them."""
    families = group_by(ran, lambda each: profiling.clean_name(each.family))
    kernels = group_by(ran, lambda each: profiling.clean_name(kernel_names.name_stored(each.name)))
    rows = [KernelFamily(name=name, **sum_work(work)) for name, work in kernels.items()]
    if rest := rows[profiling.HEAVIEST :]:
        ms, launches = round(sum(row.ms for row in rest), 5), round(sum(row.launches for row in rest), 4)
        other = KernelFamily(name=f"{len(rest)} other kernels", ms=ms, launches=launches)
        rows[profiling.HEAVIEST :] = [other]
    of_families = []
    for name, work in families.items():
        own_ms = to_ms(each.ns - each.beside_ns for each in work)
        of_families.append(KernelFamily(name=name, own_ms=own_ms, **sum_work(work)))
    return KernelProfile(families=of_families, kernels=rows)


def list_phases(
    ran: Sequence[Ran], segments: Iterable[Segment], order: Iterable[str]
) -> list[record.PhaseWork]:
    """Return the rows of phases, in the order of a step."""
    groups = group_by(ran, lambda each: each.phase)
    runs = Counter(name for phases, _ in segments for name in phases)
    return [
        record.PhaseWork(name=name, runs=runs[name] / CYCLE_STEPS or None, **sum_work(groups[name]))
        for name in (*order, record.BETWEEN, record.UNKNOWN)
        if name in groups
    ]


def list_layers(ran: Sequence[Ran]) -> list[record.Layer]:
    """Return the rows of layers, the heaviest first."""
    rows = []
    for name, work in group_by(ran, lambda each: each.layer).items():
        backward_ms = to_ms(each.ns for each in work if each.backward)
        rows.append(record.Layer(name=name, backward_ms=backward_ms, **sum_work(work)))
    return rows


def list_gaps(segments: Iterable[Segment]) -> list[record.Gap]:
    """Return when nothing ran inside runs of phases, by what stood at both ends, of any stream."""

    def find_kind(ran: Ran) -> record.Kind:
        if ran.family != kernel_families.TRANSFER:
            return "kernel"
        return "memset" if ran.name.lower().startswith("memset") else "copy"

    gaps: dict[tuple[record.Kind, record.Kind], list[int]] = defaultdict(list)
    for phases, of_run in segments:
        last = of_run[0]
        for ran in of_run if phases else ():  # between them the trace waits
            if ran.begin > last.begin + last.ns:
                gaps[find_kind(last), find_kind(ran)].append(ran.begin - last.begin - last.ns)
            last = max(last, ran, key=lambda each: each.begin + each.ns)
    rows = []
    for kinds, each in gaps.items():
        median_us = round(statistics.median(each) / 1e3, 3)
        rows.append(record.Gap(*kinds, to_ms(each), round(len(each) / CYCLE_STEPS, 4), median_us))
    return sorted(rows, key=lambda row: -row.ms)


def list_heaviest(ran: Sequence[Ran]) -> list[record.Heavy]:
    """Return the kernels that take most time, without copies, each with the phase that has most of its time."""
    computing = [each for each in ran if each.family != kernel_families.TRANSFER]
    groups = group_by(computing, lambda each: kernel_names.name_label(each.name))
    rows = []
    for name, work in itertools.islice(groups.items(), HEAVIEST):
        phase, of_phase = next(iter(group_by(work, lambda each: each.phase).items()))
        spellings = sorted({each.name for each in work})
        words = {kernel_names.find_word(each) for each in spellings}
        word = words.pop() if len(words) == 1 else None
        function = os.path.commonprefix([*map(kernel_names.name_function, spellings)])  # noqa: RUF071
        rows.append(
            record.Heavy(
                kernel=texts.clean_line(name),
                function=profiling.clean_name(function),
                word=profiling.clean_name(word) if word else None,
                phase=phase,
                phase_ms=to_ms(each.ns for each in of_phase),
                **sum_work(work),
            )
        )
    return rows


def list_passes(ran: Sequence[Ran], copied: Sequence[tuple[int, int]]) -> list[record.Pass]:
    """Return the kernels of ours, the heaviest first, each beside copies of as many bytes (`tracing.time_copies`)."""
    rows = []
    ours = [each for each in ran if copied and each.family.startswith(kernel_families.OURS)]
    for family, work in group_by(ours, lambda each: each.family).items():
        name = profiling.clean_name(family.removeprefix(kernel_families.OURS))
        row = record.Pass(kernel=name, **sum_work(work))  # type: ignore[arg-type]
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


def count_work(ran: Sequence[Ran], fields: Fields, precision: str) -> dict[str, float]:
    """Return what a step's categories compute or move: FLOPs of convolutions and matmuls, bytes of others.

    FLOPs and the optimizer's bytes are those that the workload needs (`ladder.studies.roofline.floors`). Other bytes
    are those of the tensors that operators and kernels of ours were given; launches without known bytes count in
    proportion, if they are few. Depthwise kernels of a cheaper model lie in `resampling`, beside its filters: then
    convolutions have no number.
    """
    groups = group_by(ran, lambda each: categories.name_category(each.family))
    amounts = {}
    for name, work in groups.items():
        known = list_known(work)
        if known_ns := sum(ns for ns, _ in known):
            whole = sum(each.ns for each in work) / known_ns
            amounts[name] = sum(size for _, size in known) / CYCLE_STEPS * whole
    if "pair" in fields:  # what its losses need is not known
        return amounts
    works, often = floors.count_work(fields, precision, "nchw"), derive.list_frequencies(fields)
    purposes = ("optimizer", "moving average")
    updates = (works[phase].bytes[each] * often[phase] for phase in often for each in purposes)
    needed = {categories.OPTIMIZER: sum(updates)}
    if fields.get("convolution", "full") == "full":
        pointwise = sum(flops for op, flops in derive.weigh_ops(works, fields).items() if op.is_pointwise)
        matmuls = sum(works[phase].matmul_flops * times for phase, times in often.items())
        needed[categories.CONVOLUTION] = derive.sum_amounts(works, fields)[derive.CONVOLUTIONS]
        needed[categories.MATMUL] = matmuls + pointwise
    return amounts | {name: amount for name, amount in needed.items() if amount and name in groups}
