"""What the profiler sees of a prepared step: a cycle cut at its phases, eager runs, and a trace to open.

Between two phases the GPU is waited for, and the clock says which kernels belong to which phase. A whole-step graph has
no such cut: its segment is a step, and its kernels get their phases from an eager run, by names and order. There every
layer of G and D has a range around its forward pass, and backward work finds its layer by autograd's sequence numbers.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
import re
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from ladder.core import files
from ladder.core.protocol import CYCLE_STEPS
from ladder.receipts import categories, kernel_families, traces
from ladder.receipts.kernel_families import Event
from ladder.receipts.watch import intercept_launches
from ladder.studies.profile.record import BETWEEN, UNKNOWN

# Pauses between a phase and the mark before and behind it. A GPU's clock is a fraction of a millisecond off the host's.
APART_S = {"cuda": 0.002, "cpu": 0.0005}
MEMORY = "[memory]"  # the name of an allocation or a release
CALL = re.compile(r"cu(da)?[A-Z]")  # of CUDA's runtime or driver
# CUPTI's words for what it and the driver cost the host beside operators (CUpti_ActivityOverheadKind)
OVERHEAD = {
    "unknown", "driver compiler", "buffer flush", "instrumentation", "resource", "runtime triggered module loading",
    "lazy function loading", "command buffer full", "activity buffer request", "uvm activity init",
}  # fmt: skip
RANGE = "layer: "  # the beginning of the name of a layer's range
COPY = re.compile("memcpy dtod", re.IGNORECASE)  # of a trace
# Bytes that a copy reads and writes. Beyond, `copy_` in one piece is slower than memory is (docs/kernels.md).
SIZES_COPIED = tuple(2**power for power in range(14, 29))
COPIES = 5  # of each size
EVICTS = 2**28  # bytes that are written before each copy: more than any L2 holds
LAUNCHING = ("cuda_runtime", "cuda_driver")  # activities of the host that launch kernels
NO_KERNELS = ("gpu_user_annotation", "user_annotation", "overhead", MEMORY)  # activities of the GPU
OPERATOR = "cpu_op"
OUTSIDE = "outside the layers"  # losses, inputs, sums of gradients, optimizers, the moving average
FILL = "fill_words_kernel"  # in a rewritten graph
ON_DEVICE = re.compile(r"(memset|memcpy)(\d| DtoD\b| \(Device)", re.IGNORECASE)
MOST_LAYERS = 400  # of a user's networks; a file holds some more
SIZES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long": 8, "long int": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2,
}  # fmt: skip
ONLY_READ = ("fill_", "zero_", "copy_")  # operators whose result is among their tensors
TABLES = ("adam", "spectral")  # kernels that find their tensors in tables of addresses


@dataclass(frozen=True)
class Ran:
    """A kernel, a copy or an operator: its name and family, when it began, and its own time. Nanoseconds.

    `beside_ns` are those of its time that count for others, because kernels ran at once. Its phase, its layer and the
    bytes that it moves come from the eager runs; unknown bytes are None.
    """

    name: str
    family: str = ""
    begin: int = 0
    ns: int = 0
    beside_ns: int = 0
    phase: str = BETWEEN
    layer: str = OUTSIDE
    backward: bool = False
    moved: int | None = None


# A run of a phase, or of a whole step, with all that ran in it in order. Without phases: between two of them.
Segment = tuple[tuple[str, ...], Sequence[Ran]]
Mark = tuple[tuple[str, ...], int]  # phases, and when they had ended: ns since 1970
Size = tuple[str, int]  # a launch of a kernel of ours, and the bytes of the tensors that it is given


def trace_cycle(step: Any) -> tuple[list[Segment], int]:
    """Return the segments of a cycle of a prepared step, and the ns in which anything ran (`cut_events`)."""
    marks: list[Mark] = []

    def cycle() -> None:
        with mark_phases(step, marks):
            step.cycle()

    profile = run_profiled(cycle, step.device)
    if step.device == "cuda":
        return cut_events(traces.list_events(profile), marks, step.device)
    operators = [event for event in list_events(profile) if name_activity(event) == OPERATOR]
    spans = [
        (each.start_thread_id(), each.start_ns(), each.start_ns() + each.duration_ns()) for each in operators
    ]
    events = [(each.name(), False, *span) for each, span in zip(operators, spans, strict=True)]
    return cut_events(events, marks, step.device)


def list_events(profile: Any) -> list[Any]:
    """Return the events of a profile that has ended, as PyTorch gives them."""
    return list(profile.profiler.kineto_results.events())


def run_profiled(run: Callable[[], None], device: str, *, host: bool = False, **more: Any) -> Any:
    """Return the profile of a run that has ended. `host`: on a GPU with the operators of the host, too."""
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CPU] if device == "cpu" else [activity.CUDA, *[activity.CPU] * host]
    with torch.profiler.profile(activities=kinds, **more) as profile:
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    return profile


@contextlib.contextmanager
def mark_phases(step: Any, marks: list[Mark]) -> Iterator[None]:
    """Add (phases, ns since 1970) at each end of phases, or of whole steps where one graph holds a step.

    Each mark waits for the GPU. The pauses lie on both of its sides, because the GPU's clock may be a little ahead of
    the host's or behind it.
    """

    def put(label: tuple[str, ...]) -> None:
        if step.device == "cuda":
            torch.cuda.synchronize()
        time.sleep(APART_S[step.device])
        marks.append((label, time.time_ns()))
        time.sleep(APART_S[step.device])

    name, original = ("run", step.run) if step.together else ("run_phase", step.run_phase)

    def run_marked(what: Any) -> None:
        put(())  # batches and copies came before
        original(what)
        put(what if isinstance(what, tuple) else (what,))

    put(())
    setattr(step, name, run_marked)
    try:
        yield
    finally:
        delattr(step, name)
    put(())


def name_activity(event: Any) -> str:
    """Return the kind of a host's event: "cpu_op", "cuda_runtime", ...

    PyTorch 2.13 has the word. Versions before have none or a number: there the name decides.
    """
    kind = event.activity_type() if hasattr(event, "activity_type") else None
    if event.name() == MEMORY:
        return MEMORY
    if isinstance(kind, str):
        return kind
    if is_range(event):
        return "user_annotation"
    if CALL.match(name := event.name()):
        return "cuda_runtime"
    return "overhead" if name.lower() in OVERHEAD else OPERATOR


def is_range(event: Any) -> bool:
    """Return whether an event is a range that somebody named."""
    return hasattr(event, "is_user_annotation") and bool(event.is_user_annotation())


def cut_events(events: Iterable[Event], marks: Sequence[Mark], device: str) -> tuple[list[Segment], int]:
    """Return the segments that marks cut events into, and the union of all events in ns.

    The last segment has all that begins later. A CPU's operators never overlap.
    """
    if device == "cuda":
        kernels = [e for e in events if e[1] and not e[0].startswith(kernel_families.WAITING)]
        owns = traces.count_once([e[2:] for e in kernels])
        ran = [
            Ran(name, kernel_families.name_family(name), begin, end - begin, end - begin - own)
            for (name, _, _, begin, end), own in zip(kernels, owns, strict=True)
        ]
        busy = traces.measure_union([e[3:] for e in kernels])
    else:
        ran = take_own_times(events)
        busy = sum(each.ns for each in ran)
    parts: list[list[Ran]] = [[] for _ in marks]
    for each in sorted(ran, key=lambda r: r.begin):
        place = bisect.bisect_right(marks, each.begin, key=lambda mark: mark[1])
        parts[min(place, len(parts) - 1)].append(each)
    segments: list[Segment] = [
        (phases, inside) for (phases, _), inside in zip(marks, parts, strict=True) if inside
    ]
    return segments, busy


def list_uneven(segments: Iterable[Segment]) -> list[str]:
    """Return the phases whose runs launched different numbers of kernels: the clock cut them wrongly."""
    counts: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for phases, ran in segments:
        counts[phases].add(len(ran))
    return ["+".join(phases) for phases, numbers in counts.items() if phases and len(numbers) > 1]


def take_own_times(operators: Iterable[Event]) -> list[Ran]:
    """Return operators with their own time: without the operators that ran inside them, in the same thread."""
    own: list[Ran] = []
    stacks: dict[int, list[tuple[int, int]]] = {}  # by thread: place in `own`, and end of what still runs
    for name, _, thread, begin, end in sorted(operators, key=lambda each: (each[3], -each[4])):
        stack = stacks.setdefault(thread, [])
        while stack and stack[-1][1] <= begin:
            stack.pop()
        if stack:
            outer = own[stack[-1][0]]
            own[stack[-1][0]] = replace(outer, ns=max(0, outer.ns - (end - begin)))
        stack.append((len(own), end))
        own.append(Ran(name, kernel_families.find_operator_family(name), begin, end - begin))
    return own


def label_events(profile: Any, phase: str, device: str, launches: Sequence[Size] = ()) -> list[Ran]:
    """Return the kernels of a profiled eager run in order, each with its layer; on a CPU its operators.

    A kernel belongs to the operator that launched it, or to the host's event, in any thread, that began last before its
    launch: the main thread waits while a backward pass runs in another. `launches` are those of `note_launches`.
    """
    kernels, hosts, calls = [], [], {}
    for event in sorted(list_events(profile), key=lambda each: (each.start_ns(), -each.duration_ns())):
        activity = name_activity(event)
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            if activity not in NO_KERNELS and not event.name().startswith(kernel_families.WAITING):
                kernels.append(event)
        elif activity in LAUNCHING and event.correlation_id():
            calls[event.correlation_id()] = event.start_ns()
        elif is_range(event) or activity == OPERATOR:
            hosts.append(event)
    places = place_hosts(hosts)
    # An operator without a node in autograd's graph has the number of the next one with a node, so the last counts.
    operators = {each.correlation_id(): at for at, each in enumerate(hosts) if not is_range(each)}
    if device == "cpu":
        pairs = zip(hosts, places, strict=True)
        return [
            Ran(each.name(), phase=phase, layer=layer, backward=backward)
            for each, (layer, backward) in pairs
            if not is_range(each)
        ]
    labels, starts = [], [each.start_ns() for each in hosts]
    counted: set[int] = set()  # operators whose bytes one of their kernels has
    sizes = match_launches([each.name() for each in kernels], launches)
    for kernel, moved in zip(kernels, sizes, strict=True):
        name, number = kernel.name(), kernel.linked_correlation_id()
        if number and number in operators:
            operator = hosts[operators[number]]
            place = places[operators[number]]
            if moved is None:
                moved = count_moved(operator.name(), operator.shapes(), operator.dtypes())
                moved = 0 if moved is not None and number in counted else moved
                counted.add(number)
        elif kernel.correlation_id() in calls:
            begin = calls[kernel.correlation_id()]
            at = bisect.bisect_right(starts, begin) - 1
            while at >= 0 and starts[at] + hosts[at].duration_ns() <= begin:
                at -= 1
            place = places[at] if at >= 0 else (OUTSIDE, False)
        else:  # our optimizers belong to no layer
            category = categories.name_category(kernel_families.name_family(name))
            place = (OUTSIDE if category == categories.OPTIMIZER else UNKNOWN), False
        labels.append(Ran(name, phase=phase, layer=place[0], backward=place[1], moved=moved))
    return labels


def place_hosts(hosts: Iterable[Any]) -> list[tuple[str, bool]]:
    """Return for each host's event, in order of their beginning, its layer and whether it is a backward pass."""
    places: list[tuple[str, bool]] = []
    stacks: dict[int, list[tuple[int, tuple[str, bool]]]] = defaultdict(list)  # by thread: end and place
    layer_of: dict[tuple[int, int], str] = {}
    for event in hosts:
        stack, sequence = stacks[event.start_thread_id()], event.sequence_nr()
        while stack and stack[-1][0] <= event.start_ns():
            stack.pop()
        layer, backward = stack[-1][1] if stack else (OUTSIDE, False)
        if is_range(event):
            layer = event.name().removeprefix(RANGE) if event.name().startswith(RANGE) else layer
        elif event.fwd_thread_id() > 0 and sequence >= 0:
            layer, backward = layer_of.get((event.fwd_thread_id(), sequence), layer), True
        elif sequence >= 0:
            layer_of[event.start_thread_id(), sequence] = layer
        stack.append((event.start_ns() + event.duration_ns(), (layer, backward)))
        places.append((layer, backward))
    return places


def match_names(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    """Return for each name of `after` its place in `before`, or None where none matches.

    A name that ran equally often in both is matched in order. Streams may change the order of different names, not of
    one name. Another name is matched between two neighbours that are matched.
    """
    before, after = [*map(_unify_name, before)], [*map(_unify_name, after)]
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(before):
        places[name].append(place)
    alike = {name: iter(places[name]) for name, n in Counter(after).items() if len(places[name]) == n}
    matches = [next(alike[name]) if name in alike else None for name in after]
    last = -1
    for at, name in enumerate(after):
        if matches[at] is None:
            end = next((place for place in matches[at + 1 :] if place is not None), len(before))
            matches[at] = next((place for place in places[name] if last < place < end), None)
        last = max(last, -1 if (place := matches[at]) is None else place)
    return matches


def _unify_name(name: str) -> str:
    """Return one name for memsets, and one for copies on the device.

    A graph replays some of them as kernels: `memset32`, `memcpy32_post`, and `fill_words_kernel` of `graph_fills`.
    """
    match = ON_DEVICE.match(name)
    return "memset" if name == FILL else match[1].lower() if match else name


def label_segments(eager: Mapping[str, list[Ran]], segments: Iterable[Segment]) -> list[Ran]:
    """Return all that ran, with layers; in a whole step also the phases come from the eager runs."""
    labelled: list[Ran] = []
    matched: dict[Any, list[int | None]] = {}
    for phases, ran in segments:
        if not phases:
            labelled += ran
            continue
        expected = [label for phase in phases for label in eager.get(phase, [])]
        names = tuple(each.name for each in ran)
        if (phases, names) not in matched:
            matched[phases, names] = match_names([each.name for each in expected], names)
        unknown = Ran("", phase=phases[0] if len(phases) == 1 else UNKNOWN, layer=UNKNOWN)
        for each, at in zip(ran, matched[phases, names], strict=True):
            label = unknown if at is None else expected[at]
            phase, layer, backward = label.phase, label.layer, label.backward
            labelled.append(replace(each, phase=phase, layer=layer, backward=backward, moved=label.moved))
    return labelled


def count_moved(name: str, shapes: Sequence[Any], dtypes: Sequence[str]) -> int | None:
    """Return the bytes that an operator of PyTorch reads and writes at least, or None where shapes do not suffice.

    A tensor that is broadcast counts as it is given. A result counts with the shape that its inputs give together.
    """
    family, bare = kernel_families.find_operator_family(name), name.removeprefix("aten::")
    tensors = [(shape, SIZES[kind]) for shape, kind in zip(shapes, dtypes, strict=False) if kind in SIZES]
    tensors = [(shape, size) for shape, size in tensors if all(isinstance(n, int) for n in shape)]
    if family not in (kernel_families.ELEMENTWISE, kernel_families.COPY, kernel_families.REDUCTION):
        return None
    if not tensors or not tensors[0][0]:
        return None
    read = sum(math.prod(shape) * size for shape, size in tensors)
    if bare in ONLY_READ or family == kernel_families.REDUCTION:
        return read
    if family == kernel_families.COPY:
        return None  # a list of tensors, or an operator whose copy_ counts
    sides = itertools.zip_longest(
        *(reversed(shape) for shape, _ in tensors), fillvalue=1
    )  # as broadcasting aligns them
    result = math.prod(map(max, sides))
    return read + result * max(size for _, size in tensors)


def match_launches(kernels: Sequence[str], launches: Sequence[Size]) -> list[int | None]:
    """Return the bytes of each kernel of a trace, None where they are unknown.

    The launches of a name are matched in order, if as many were noted as ran.
    """
    noted: dict[str, list[int]] = defaultdict(list)
    for name, size in launches:
        if not name.startswith(TABLES):
            noted[name].append(size)
    sizes = {name: iter(each) for name, each in noted.items() if kernels.count(name) == len(each)}
    return [next(sizes[name], None) if name in sizes else None for name in kernels]


def time_copies(device: str) -> list[tuple[int, int]]:
    """Return (bytes read and written, median ns of the GPU) of copies by ``copy_`` with a cold L2; on a CPU none."""
    if device != "cuda":
        return []
    other = torch.empty(EVICTS, dtype=torch.uint8, device=device)
    pairs = [torch.randint(256, (2, size // 2), dtype=torch.uint8, device=device) for size in SIZES_COPIED]

    def run() -> None:
        for pair in pairs:
            for turn in range(COPIES):
                other.fill_(turn)
                pair[1].copy_(pair[0])

    run()
    events = sorted(traces.list_events(run_profiled(run, device)), key=lambda each: each[3])
    took = [end - begin for name, on_gpu, _, begin, end in events if on_gpu and COPY.match(name)]
    if len(took) != COPIES * len(SIZES_COPIED):
        return []
    rows = [took[k : k + COPIES] for k in range(0, len(took), COPIES)]
    return [(size, round(statistics.median(row))) for size, row in zip(SIZES_COPIED, rows, strict=True)]


@contextlib.contextmanager
def name_layers(step: Any) -> Iterator[None]:
    """Put a range around the forward pass of every layer of the networks while entered.

    Compiled code has none: hooks would make torch.compile compile again.
    """
    ranges: list[Any] = []  # that are open: layers lie in each other
    handles = []

    def enter(title: str, *_: Any) -> None:
        ranges.append(record_function(f"{RANGE}{title}"))
        ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    for title, layer in list_layers(step) if step.recipe.compile == "off" else ():
        handles.append(layer.register_forward_pre_hook(functools.partial(enter, title)))
        handles.append(layer.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def list_layers(step: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name in tables, module) of the layers of all networks.

    Those of a user's pair are all of their modules, as deep as fit into a file: the innermost has its work.
    """
    sizes = getattr(step.workload, "resolutions", None)
    named = [(of, *each) for of, network in step.networks.items() for each in network.named_modules()]
    depths = sorted(f"{path}.".count(".") if path else 0 for _, path, _ in named)
    deepest = depths[MOST_LAYERS] - 1 if len(depths) > MOST_LAYERS else depths[-1]
    for network, path, module in named:
        title: str | None = f"{network} {path} {type(module).__name__}" if path else network
        if sizes is not None:
            title = layer_name(network, path, sizes)
        if title and (sizes is not None or not path or path.count(".") < deepest):
            yield title, module


def layer_name(network: str, path: str, resolutions: Sequence[int]) -> str | None:
    """Return the name of a layer in tables, `G 256x256 conv1`, or None for a module inside of one."""
    words = path.split(".") if path else []
    if words[:1] != ["blocks"]:
        return " ".join([network, *words]) if len(words) <= 1 else None
    if not 2 <= len(words) <= 3:
        return None
    order = list(resolutions) if network == "G" else list(reversed(resolutions))[:-1]
    side = order[int(words[1])]
    return " ".join([network, f"{side}x{side}", *words[2:]])


@contextlib.contextmanager
def note_launches() -> Iterator[list[Size]]:
    """Note each launch of our Triton kernels while entered. A tensor that is given twice counts once."""
    launches: list[Size] = []

    def note(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any], _: Any) -> None:
        sizes: dict[int, int] = {}
        for each in (*arguments, *options.values()):
            for tensor in each if isinstance(each, tuple | list) else (each,):
                if hasattr(tensor, "data_ptr") and hasattr(tensor, "nbytes"):
                    at = tensor.data_ptr()
                    sizes[at] = max(sizes.get(at, 0), tensor.nbytes)
        launches.append((kernel.fn.__name__, sum(sizes.values())))

    with intercept_launches("kernels", note):
        yield launches


def write_trace(step: Any, path: Path) -> None:
    """Record one step of each kind and write the trace."""
    with name_layers(step):
        profile = run_profiled(lambda: run_named(step), step.device, host=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / path.name  # PyTorch compresses a file with this ending
        profile.export_chrome_trace(str(whole))
        files.write_file(path, whole.read_bytes())


def run_named(step: Any) -> None:
    """Run a cycle's first step of each kind, of each combination of phases; steps and phases in ranges."""
    run, run_phase = step.run, step.run_phase

    def run_step(phases: tuple[str, ...]) -> None:
        with record_function("step: " + ", ".join(phases)):
            run(phases)

    def run_one(phase: str) -> None:
        with record_function(phase):
            run_phase(phase)

    first: dict[tuple[str, ...], int] = {}
    for index in range(CYCLE_STEPS):
        first.setdefault(step.phases(index), index)
    step.run, step.run_phase = run_step, run_one
    try:
        for index in sorted(first.values()):
            step._step(index, True)
    finally:
        del step.run, step.run_phase
