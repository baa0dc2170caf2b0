"""Whose work a kernel is: its layer, phase and bytes from an eager run, carried to a replay, and the sums of both.

In the eager run every layer of G and D has a range around its forward pass. Autograd gives an operator and its backward
operator the same sequence number. So backward work finds its layer, also in a double backward. A graph replays kernels
without operators: they get the labels of the eager run's kernels by name and order.

Every table has all the work: its rows sum to the same milliseconds. Both of two kernels that ran at once count, but in
the families' own time one: that of the busier stream.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ladder.base.protocol import CYCLE_STEPS, IN_ORDER
from ladder.base.text import plain
from ladder.core.job import Job
from ladder.core.records import Fields
from ladder.engine import profiling
from ladder.plan import content
from ladder.receipts import categories, kernel_families, kernel_names, operator_families
from ladder.results import parts, ranking
from ladder.results.file import KernelFamily, KernelProfile
from ladder.studies.profile import tracing
from ladder.studies.profile.record import (
    BETWEEN,
    LAYER_UNKNOWN,
    UNKNOWN_PHASE,
    Gap,
    Heavy,
    Kind,
    Layer,
    Pass,
    PhaseWork,
    Replaced,
)
from ladder.studies.profile.tracing import RANGE, Ran, Segment, Traced

LAUNCHING = ("cuda_runtime", "cuda_driver")  # activities of the host that launch kernels
OUTSIDE = "outside the layers"  # losses, inputs, sums of gradients, optimizers, the moving average
FILL = "fill_words_kernel"  # in a rewritten graph
ON_DEVICE = re.compile(r"(memset|memcpy)(\d| DtoD\b| \(Device)", re.IGNORECASE)
HEAVIEST = 8  # kernels that are shown, and whose counters are read
SIZES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long": 8, "long int": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2,
}  # fmt: skip
WRITES_ALONE = ("fill_", "zero_")
TABLES = ("adam", "spectral")  # kernels that find their tensors in tables of addresses
KNOWN = 0.9  # of a category's time: with fewer known bytes it has no rate
MOST_GAINED = (
    0.5  # of what all gained at a rung: a category with less did not take the place of what others lost
)
LEAST_TAKEN = (
    0.05  # of what others lost: no kernel does their work in less, since its own bytes must still move
)


@dataclass(frozen=True)
class Span:
    """An event of an eager run. Host spans have a thread; kernels have `linked`, the operator that launched them."""

    name: str
    begin: int
    end: int
    thread: int = 0
    number: int = 0  # of an operator
    linked: int = 0  # the number of the operator that launched a kernel, or 0
    sequence: int = -1  # autograd's, or -1
    forward_thread: int = 0  # of a backward operator
    on_device: bool = False
    is_range: bool = False
    launch: int = 0  # of a kernel and of the call of the driver that launched it: their common number
    moved: int | None = None  # bytes that an operator moves by the shapes of its inputs, where they suffice


@dataclass(frozen=True)
class Label:
    """A kernel or operator of an eager run with its phase and layer."""

    name: str
    phase: str
    layer: str
    backward: bool
    moved: int | None


@dataclass(frozen=True)
class Context:
    """The layer that host code runs in, and whether it is a backward pass."""

    layer: str | None = None
    backward: bool = False


Labels = Sequence[tuple[Segment, Sequence[Label | None]]]


# --- the eager run ----------------------------------------------------------------------------------------------------


def list_spans(profile: Any) -> list[Span]:
    """Return the operators, ranges and kernels of a profile."""
    import torch

    spans = []
    for event in profile.profiler.kineto_results.events():
        begin, name = event.start_ns(), event.name()
        end, activity = begin + event.duration_ns(), tracing.name_activity(event)
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            ran = name != tracing.MEMORY and not tracing.is_range(event)
            ran = ran and activity not in ("gpu_user_annotation", "overhead")
            if ran and not name.startswith(kernel_families.WAITING):
                links = {"linked": event.linked_correlation_id(), "launch": event.correlation_id()}
                spans.append(Span(name, begin, end, on_device=True, **links))
        elif activity in LAUNCHING:
            spans.append(Span(name, begin, end, launch=event.correlation_id()))
        elif tracing.is_range(event):
            spans.append(Span(name, begin, end, event.start_thread_id(), is_range=True))
        elif tracing.is_operator(event):
            moved = count_moved(name, event.shapes(), event.dtypes())
            of_autograd = {"sequence": event.sequence_nr(), "forward_thread": event.fwd_thread_id()}
            place = event.start_thread_id(), event.correlation_id()
            spans.append(Span(name, begin, end, *place, moved=moved, **of_autograd))
    return spans


def label_spans(
    spans: Iterable[Span], phase: str, device: str, launches: Iterable[tuple[str, int]] = ()
) -> list[Label]:
    """Return the kernels of an eager run in order, each with its layer; on a CPU its operators.

    `launches` are those of our kernels, as `tracing.note_launches` notes them.
    """
    spans = list(spans)
    launching = {each.launch: each for each in spans if each.launch and not each.on_device}
    spans = [each for each in spans if each.on_device or not each.launch]
    contexts, operators = _place_spans(spans)
    hosts = sorted((each for each in spans if not each.on_device), key=_order)
    if device == "cpu":
        return [_label(each, phase, contexts[id(each)], None) for each in hosts if not each.is_range]
    labels: list[Label] = []
    counted: set[int] = set()  # operators whose bytes one of their kernels has
    kernels = sorted((each for each in spans if each.on_device), key=_order)
    sizes = match_launches([each.name for each in kernels], launches)
    for kernel, ours in zip(kernels, sizes, strict=True):
        operator = operators.get(kernel.linked) if kernel.linked else None
        if operator is not None:
            moved = ours
            if ours is None:
                moved = 0 if operator.moved is not None and operator.number in counted else operator.moved
                counted.add(operator.number)
            labels.append(_label(kernel, phase, contexts[id(operator)], moved))
        elif (call := launching.get(kernel.launch)) is not None:
            labels.append(_label(kernel, phase, _find_context(call.begin, hosts, contexts), ours))
        else:
            labels.append(Label(kernel.name, phase, _guess_layer(kernel.name), False, ours))
    return labels


def _find_context(moment: int, hosts: Sequence[Span], contexts: dict[int, Context]) -> Context:
    """Return the context of the host span, in any thread, that began last and holds this moment.

    The main thread waits while a backward pass runs in a thread of its own.
    """
    for index in range(bisect.bisect_right(hosts, moment, key=lambda each: each.begin) - 1, -1, -1):
        if hosts[index].end > moment:
            return contexts[id(hosts[index])]
    return Context()


def _label(span: Span, phase: str, context: Context, moved: int | None) -> Label:
    return Label(span.name, phase, context.layer or OUTSIDE, context.backward, moved)


def _guess_layer(name: str) -> str:
    """Return the layer of a kernel whose launch is not known: our optimizers belong to no layer."""
    category = categories.category(kernel_families.family(name))
    return OUTSIDE if category == categories.OPTIMIZER else LAYER_UNKNOWN


def _order(span: Span) -> tuple[int, int]:
    return span.begin, -span.end


def _place_spans(spans: Iterable[Span]) -> tuple[dict[int, Context], dict[int, Span]]:
    """Return each host span's context by its id(), and the operators by number.

    An operator without a node in autograd's graph has the number of the next one that gets a node. So the last
    operator of a number is the one that the backward operator belongs to.
    """
    contexts: dict[int, Context] = {}
    operators: dict[int, Span] = {}
    stacks: dict[int, list[Span]] = defaultdict(list)
    layer_of: dict[tuple[int, int], str | None] = {}
    for span in sorted((each for each in spans if not each.on_device), key=_order):
        stack = stacks[span.thread]
        while stack and stack[-1].end <= span.begin:
            stack.pop()
        outer = contexts[id(stack[-1])] if stack else Context()
        stack.append(span)
        if span.is_range:
            own = span.name.startswith(RANGE)
            context = Context(span.name.removeprefix(RANGE), outer.backward) if own else outer
        elif span.forward_thread > 0 and span.sequence >= 0:
            context = Context(layer_of.get((span.forward_thread, span.sequence), outer.layer), True)
        else:
            context = outer
            if span.sequence >= 0:
                layer_of[span.thread, span.sequence] = context.layer
        contexts[id(span)] = context
        if not span.is_range:
            operators[span.number] = span
    return contexts, operators


# --- the replay -------------------------------------------------------------------------------------------------------


def _match_names(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    """Return for each name of `after` its place in `before`, or None where none matches.

    A name that ran equally often in both is matched in order. Streams may change the order of different names, not of
    one name. Another name is matched between two neighbours that are matched.
    """
    before, after = [*map(_unify_name, before)], [*map(_unify_name, after)]
    places: tuple[dict[str, list[int]], dict[str, list[int]]] = (defaultdict(list), defaultdict(list))
    for at, sequence in zip(places, (before, after), strict=True):
        for index, name in enumerate(sequence):
            at[name].append(index)
    matches: list[int | None] = [None] * len(after)
    for name, inside in places[1].items():
        if len(inside) == len(places[0].get(name, ())):
            for a, b in zip(places[0][name], inside, strict=True):
                matches[b] = a
    following, end = [len(before)] * len(matches), len(before)  # the next place that is matched, or the end
    for b in range(len(matches) - 1, -1, -1):
        following[b] = end
        end = end if (at_ := matches[b]) is None else at_
    last = -1
    for b, name in enumerate(after):
        if matches[b] is None:
            matches[b] = next((a for a in places[0].get(name, ()) if last < a < following[b]), None)
        last = last if matches[b] is None else max(last, matches[b] or 0)
    return matches


def _unify_name(name: str) -> str:
    """Return one name for memsets, and one for copies on the device.

    A graph replays some of them as kernels: `memset32`, `memcpy32_post`, and `fill_words_kernel` of `graph_fills`.
    """
    if name == FILL:
        return "memset"
    match = ON_DEVICE.match(name)
    return match[1].lower() if match else name


def label_segments(
    eager: dict[str, list[Label]], segments: Iterable[Segment]
) -> Iterator[tuple[Segment, list[Label | None]]]:
    """Yield each segment with the labels of all that ran in it. Segments without phases have none."""
    matched: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int | None]] = {}
    for segment in segments:
        expected = list(itertools.chain.from_iterable(eager.get(phase, []) for phase in segment.phases))
        names = tuple(each.name for each in segment.ran)
        key = segment.phases, names
        if key not in matched:
            matched[key] = _match_names([each.name for each in expected], names)
        yield segment, [None if at is None else expected[at] for at in matched[key]]


# --- sums -------------------------------------------------------------------------------------------------------------


@dataclass
class Sum:
    """Nanoseconds and launches that add up, and the bytes of those whose bytes are known."""

    ns: int = 0
    launches: int = 0
    backward_ns: int = 0
    beside_ns: int = 0
    known: list[tuple[int, int]] = field(default_factory=list)  # (ns, bytes)

    def add(self, ran: Ran, label: Label | None = None) -> None:
        """Count one kernel or operator."""
        self.ns, self.launches = self.ns + ran.ns, self.launches + 1
        self.beside_ns += ran.beside_ns
        if label is not None and label.backward:
            self.backward_ns += ran.ns
        if label is not None and label.moved is not None:
            self.known.append((ran.ns, label.moved))

    @property
    def ms(self) -> float:
        """Return the milliseconds of a step."""
        return self.ns / 1e6 / CYCLE_STEPS

    @property
    def own_ms(self) -> float:
        """Return those milliseconds of a step that count for no other: of all sums together the GPU time."""
        return (self.ns - self.beside_ns) / 1e6 / CYCLE_STEPS

    @property
    def amounts(self) -> dict[str, float]:
        """Return milliseconds and launches of a step as a file has them."""
        return {"ms": round(self.ms, 5), "launches": round(self.launches / CYCLE_STEPS, 4)}

    @property
    def known_ns(self) -> int:
        """Return the nanoseconds of the launches whose bytes are known."""
        return sum(ns for ns, _ in self.known)


def sum_by(labels: Labels, key: Callable[[Segment, Ran, Label | None], Any]) -> dict[Any, Sum]:
    """Return the work by what `key` returns for all that ran, the most first; None leaves it out."""
    sums: dict[Any, Sum] = defaultdict(Sum)
    for segment, of_segment in labels:
        for ran, label in zip(segment.ran, of_segment, strict=True):
            if (name := key(segment, ran, label)) is not None:
                sums[name].add(ran, label)
    return dict(sorted(sums.items(), key=lambda each: -each[1].ns))


def sum_categories(labels: Labels) -> dict[str, Sum]:
    """Return the work of each category."""
    return sum_by(labels, lambda _, ran, __: categories.category(ran.family))


def list_kernels(labels: Labels) -> KernelProfile:
    """Return milliseconds and launches of a step by family and by kernel, as a ladder's result has them."""
    families = sum_by(labels, lambda _, ran, __: profiling.text(ran.family))
    kernels = sum_by(labels, lambda _, ran, __: profiling.text(kernel_names.stored(ran.name)))
    rows = [KernelFamily(name=name, **each.amounts) for name, each in kernels.items()]
    if rest := rows[profiling.HEAVIEST :]:
        ms, launches = round(sum(row.ms for row in rest), 5), round(sum(row.launches for row in rest), 4)
        name = f"{len(rest)} other kernels"
        rows = [*rows[: profiling.HEAVIEST], KernelFamily(name=name, ms=ms, launches=launches)]
    of_families = [
        KernelFamily(name=name, own_ms=round(each.own_ms, 5), **each.amounts)
        for name, each in families.items()
    ]
    return KernelProfile(families=of_families, kernels=rows)


def list_phases(labels: Labels) -> list[PhaseWork]:
    """Return the rows of phases, in the order of a step."""
    sums = sum_by(labels, _phase_of)
    runs = [name for segment, _ in labels for name in segment.phases]
    return [
        PhaseWork(name=name, runs=runs.count(name) / CYCLE_STEPS or None, **sums[name].amounts)
        for name in (*IN_ORDER, BETWEEN, UNKNOWN_PHASE)
        if name in sums
    ]


def _phase_of(segment: Segment, _: Ran, label: Label | None) -> str:
    """Return the phase of what ran in a segment: the segment's only one, else that of the label."""
    if not segment.phases:
        return BETWEEN
    if len(segment.phases) == 1:
        return segment.phases[0]
    return label.phase if label else UNKNOWN_PHASE


def list_layers(labels: Labels) -> list[Layer]:
    """Return the rows of layers, the heaviest first."""

    def layer_of(segment: Segment, _: Ran, label: Label | None) -> str:
        return label.layer if label else LAYER_UNKNOWN if segment.phases else OUTSIDE

    return [
        Layer(name=name, backward_ms=round(each.backward_ns / 1e6 / CYCLE_STEPS, 5), **each.amounts)
        for name, each in sum_by(labels, layer_of).items()
    ]


def list_gaps(traced: Traced) -> list[Gap]:
    """Return when nothing ran inside runs of phases, by what stood at both ends. Between them the trace waits.

    The two ends are of any stream.
    """
    gaps: dict[tuple[Kind, Kind], list[int]] = defaultdict(list)
    for segment in traced.segments:
        if not segment.phases:
            continue
        last = segment.ran[0]
        for ran in segment.ran:
            if ran.begin > last.begin + last.ns:
                gaps[_kind_of(last), _kind_of(ran)].append(ran.begin - last.begin - last.ns)
            last = max(last, ran, key=lambda each: each.begin + each.ns)
    rows = [
        Gap(
            before=before,
            after=after,
            ms=round(sum(each) / 1e6 / CYCLE_STEPS, 5),
            number=round(len(each) / CYCLE_STEPS, 4),
            median_us=round(statistics.median(each) / 1e3, 3),
        )
        for (before, after), each in gaps.items()
    ]
    return sorted(rows, key=lambda row: -row.ms)


def _kind_of(ran: Ran) -> Kind:
    if ran.family != kernel_families.TRANSFER:
        return "kernel"
    return "memset" if ran.name.lower().startswith("memset") else "copy"


def list_heaviest(labels: Labels, most: int = HEAVIEST) -> list[Heavy]:
    """Return the kernels that take most time, without copies, each with the phase that has most of its time."""
    spellings: dict[str, set[str]] = defaultdict(set)

    def name_of(_: Segment, ran: Ran, __: Label | None) -> str | None:
        if ran.family == kernel_families.TRANSFER:
            return None
        name = kernel_names.label(ran.name)
        spellings[name].add(ran.name)
        return name

    rows = []
    for name, work in list(sum_by(labels, name_of).items())[:most]:
        of_name = sum_by(
            labels,
            lambda segment, ran, label, name=name: (  # type: ignore[misc]
                _phase_of(segment, ran, label) if ran.name in spellings[name] else None
            ),
        )
        phase, first = next(iter(of_name.items()))
        functions = {kernel_names.function(each) for each in spellings[name]}
        words = {kernel_names.word(each) for each in spellings[name]}
        word = words.pop() if len(words) == 1 else ""
        rows.append(
            Heavy(
                kernel=plain(name),
                function=profiling.text(_shared_beginning(functions)),
                word=profiling.text(word) if word else None,
                phase=phase,
                phase_ms=round(first.ms, 5),
                **work.amounts,
            )
        )
    return rows


def _shared_beginning(texts: Iterable[str]) -> str:
    """Return the beginning that texts share."""
    alike = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*texts, strict=False))
    return "".join(each[0] for each in alike)


# --- bytes and FLOPs --------------------------------------------------------------------------------------------------


def count_moved(name: str, shapes: Sequence[Any], dtypes: Sequence[str]) -> int | None:
    """Return the bytes that an operator of PyTorch reads and writes at least, or None where shapes do not suffice.

    A tensor that is broadcast counts as it is given. A result counts with the shape that its inputs give together.
    """
    family = operator_families.family(name)
    if family not in (kernel_families.ELEMENTWISE, kernel_families.COPY, kernel_families.REDUCTION):
        return None
    tensors = [(shape, SIZES[kind]) for shape, kind in zip(shapes, dtypes, strict=False) if kind in SIZES]
    tensors = [(shape, size) for shape, size in tensors if all(isinstance(n, int) for n in shape)]
    if not tensors or not tensors[0][0]:
        return None
    read = sum(math.prod(shape) * size for shape, size in tensors)
    bare = name.removeprefix("aten::")
    if bare in WRITES_ALONE or bare == "copy_":
        return read  # the first tensor is only written
    if bare == "cat" or bare.startswith(("to", "_to", "contiguous", "clone", "repeat")):
        return None  # a list of tensors, or an operator whose copy_ counts
    if family == kernel_families.REDUCTION:
        return read
    result = math.prod(_broadcast([shape for shape, _ in tensors]))
    return read + result * max(size for _, size in tensors)


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the shape that shapes give together, by PyTorch's rules."""
    longest = max(map(len, shapes))
    padded = [[1] * (longest - len(shape)) + list(shape) for shape in shapes]
    return [max(sizes) for sizes in zip(*padded, strict=True)]


def match_launches(kernels: Sequence[str], launches: Iterable[tuple[str, int]]) -> list[int | None]:
    """Return the bytes of each kernel of a trace, by the launches that were noted; None where they are unknown.

    The launches of a name are matched in order, if as many were noted as ran.
    """
    noted: dict[str, list[int]] = defaultdict(list)
    for name, size in launches:
        if not name.startswith(TABLES):
            noted[name].append(size)
    sizes = {name: iter(each if kernels.count(name) == len(each) else []) for name, each in noted.items()}
    return [next(sizes[name], None) if name in sizes else None for name in kernels]


def list_passes(labels: Labels, copied: Sequence[tuple[int, int]]) -> list[Pass]:
    """Return the kernels of ours, the heaviest first, each beside copies of as many bytes.

    Args:
        copied: (bytes, nanoseconds) of copies, of `tracing.time_copies`.
    """
    ours = kernel_families.OURS
    sums = sum_by(
        labels, lambda _, ran, __: ran.family.removeprefix(ours) if ran.family.startswith(ours) else None
    )
    return [_pass_of(name, each, copied) for name, each in sums.items()] if copied else []


def _pass_of(name: str, work: Sum, copied: Sequence[tuple[int, int]]) -> Pass:
    row = Pass(profiling.text(name), **work.amounts)  # type: ignore[arg-type]
    if work.known_ns < KNOWN * work.ns:
        return row
    took_ns = sum(interpolate_copy_ns(copied, size) for _, size in work.known)
    return msgspec.structs.replace(
        row,
        bytes=round(sum(size for _, size in work.known) / CYCLE_STEPS),
        known_ms=round(work.known_ns / 1e6 / CYCLE_STEPS, 5),
        copy_ms=round(took_ns / 1e6 / CYCLE_STEPS, 5),
    )


def interpolate_copy_ns(copied: Sequence[tuple[int, int]], size: int) -> float:
    """Return the nanoseconds of a copy of `size` bytes, between those that were measured."""
    import numpy as np

    sizes, took = zip(*copied, strict=True)
    if size > sizes[-1]:
        return float(took[-1] * size / sizes[-1])
    return float(np.exp(np.interp(math.log(max(size, 1)), np.log(sizes), np.log(took))))


def count_work(sums: Mapping[str, Sum], fields: Fields, precision: str) -> dict[str, float]:
    """Return what a step's categories compute or move: FLOPs of convolutions and matmuls, bytes of others.

    FLOPs and the optimizer's bytes are those that the workload needs (`ladder.studies.roofline.floors`). Other bytes
    are those of the tensors that operators and kernels of ours were given, if they are known for most of the time: the
    launches without known bytes count in proportion. A category of which neither is known is left out.
    """
    moved = {
        name: sum(size for _, size in each.known) / CYCLE_STEPS * each.ns / each.known_ns
        for name, each in sums.items()
        if each.known_ns and each.known_ns >= KNOWN * each.ns
    }
    needed = _count_needed(fields, precision)
    return moved | {name: amount for name, amount in needed.items() if amount and name in sums}


def _count_needed(fields: Fields, precision: str) -> dict[str, float]:
    """Return the FLOPs and bytes of a step by the categories that must do them.

    Depthwise kernels of a cheaper model lie in `resampling`, beside its filters. Then convolutions have no number.
    """
    from ladder.studies.roofline import derive, floors
    from ladder.studies.roofline.derive import CONVOLUTIONS

    works, often = floors.count_work(fields, precision, "nchw"), derive.list_frequencies(fields)
    purposes = ("optimizer", "moving average")
    updates = sum(
        sum(works[phase].bytes[each] for each in purposes) * times for phase, times in often.items()
    )
    if fields.get("convolution", "full") != "full":
        return {categories.OPTIMIZER: updates}
    pointwise = sum(flops for op, flops in derive.weigh_ops(works, fields).items() if op.is_pointwise)
    matmuls = sum(works[phase].matmul_flops * times for phase, times in often.items())
    return {
        categories.CONVOLUTION: derive.sum_amounts(works, fields)[CONVOLUTIONS],
        categories.MATMUL: matmuls + pointwise,
        categories.OPTIMIZER: updates,
    }


# --- what fused kernels replaced --------------------------------------------------------------------------------------


Known = tuple[
    str, Sequence[tuple[str, Mapping[str, float]]]
]  # a file, and (rung, ms by category) in their order


def find_replaced(known: Iterable[Known]) -> dict[str, Replaced]:
    """Return what each fused category replaced at the rung where it appears.

    The other categories that shrank with that rung held the work before. The first source in which a category appears
    counts. A category that gained less than half of what all gained at that rung has no entry: others took the place
    of most of what was lost there. Neither has one that takes less than a twentieth of what was lost: the rung saved
    that elsewhere, as `joint_batch` does in convolutions.
    """
    replaced: dict[str, Replaced] = {}
    judged: set[str] = set()
    for source, rungs in known:
        for (_, before), (rung, after) in itertools.pairwise(rungs):
            new = [name for name in after if name.startswith(categories.FUSED) and not before.get(name)]
            gained = {name: max(0.0, ms - before.get(name, 0.0)) for name, ms in after.items()}
            lost = sum(max(0.0, ms - after.get(name, 0.0)) for name, ms in before.items())
            for name in set(new) - judged:
                if gained[name] >= max(MOST_GAINED * sum(gained.values()), LEAST_TAKEN * lost):
                    replaced[name] = Replaced(
                        at=rung,
                        lost_ms=round(lost, 5),
                        fused_ms=round(after[name], 5),
                        source=source,
                    )
            judged |= set(new)
    return replaced


def list_runs(job: Job, ladder: str | None) -> list[Known]:
    """Return (file, (rung, ms by category) up to the job's) of this machine's stored runs, the best run first."""
    workload, rung = content.of_workload(job.workload), job.options.rung
    runs = []
    for path, result in ranking.stored(job.out.parent / "ladder", [job.machine["name"]]):
        if ranking.mode(result) != ranking.CUMULATIVE or content.of_workload(result.workload) != workload:
            continue
        rungs = []
        for each in result.rungs:
            if of_rung := parts.parts_of(each):
                rungs.append((each.name, {name: work.ms for name, work in of_rung.work.items()}))
            if each.name == rung:
                break
        if len(rungs) > 1:
            standing = (result.ladder.name == ladder, rungs[-1][0] == rung, ranking.standing(result))
            runs.append((standing, (path.name, rungs)))
    return [each for _, each in sorted(runs, key=lambda each: each[0], reverse=True)]
