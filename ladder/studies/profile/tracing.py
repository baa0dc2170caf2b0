"""What the profiler sees of a prepared step: a cycle cut at its phases, eager runs, memory, and a trace to open.

Between two phases the GPU is waited for, and the clock says which kernels belong to which phase. So phases are those
of the graphs that are replayed, and GPU time does not change. A whole-step graph has no such cut: its segment is a
step, and `ladder.studies.profile.attribution` finds the phases by the names and order of an eager run's kernels.
"""

from __future__ import annotations

import bisect
import contextlib
import gzip
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import describe
from ladder.base.protocol import CYCLE_STEPS
from ladder.receipts import kernel_families, operator_families
from ladder.receipts.spans import once

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
MOST_EVENTS = 200_000  # of a trace: about 50 MB of JSON, 3 MB zipped
COPY = re.compile("memcpy dtod", re.IGNORECASE)  # of a trace
# Bytes that a copy reads and writes. Beyond, `copy_` in one piece is slower than memory is (docs/kernels.md).
SIZES_COPIED = tuple(2**power for power in range(14, 29))
COPIES = 5  # of each size
EVICTS = 2**28  # bytes that are written before each copy: more than any L2 holds


@dataclass(frozen=True)
class Ran:
    """A kernel, a copy or an operator: its name and family, when it began, and its own time. Nanoseconds.

    `beside_ns` are those of its time that count for others, because kernels ran at once.
    """

    name: str
    family: str
    begin: int
    ns: int
    beside_ns: int = 0


@dataclass(frozen=True)
class Segment:
    """A run of a phase, or of a whole step, with all that ran in it in order. Without phases: between two of them."""

    phases: tuple[str, ...]
    ran: tuple[Ran, ...]


@dataclass(frozen=True)
class Traced:
    """The segments of a cycle, and the time in which anything ran: the union over all streams. Nanoseconds."""

    segments: tuple[Segment, ...]
    busy_ns: int


# --- a cycle ----------------------------------------------------------------------------------------------------------


def trace_cycle(step: Any) -> Traced:
    """Return a traced cycle of a prepared `TrainingStep`."""
    marks = Marks(step)

    def cycle() -> None:
        marks.put(())
        with marks.between_phases():
            step.cycle()
        marks.put(())

    events = list(_list_events(run_profiled(cycle, step.device), step.device))
    return cut_events(events, marks.labels, marks.ended_ns, step.device)


def run_profiled(run: Callable[[], None], device: str, *, host: bool = False, **more: Any) -> Any:
    """Return the profile of a run that has ended. `host`: on a GPU with the operators of the host, too."""
    import torch

    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CPU] if device == "cpu" else [activity.CUDA, *[activity.CPU] * host]
    with torch.profiler.profile(activities=kinds, **more) as profile:
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    return profile


class Marks:
    """The moments at which phases end. `labels[k]` are the phases of all that begins before `ended_ns[k]`."""

    def __init__(self, step: Any) -> None:
        self.step = step
        self.labels: list[tuple[str, ...]] = []
        self.ended_ns: list[int] = []

    def put(self, label: tuple[str, ...]) -> None:
        """Wait for the GPU, and mark the moment as the end of these phases.

        The pauses lie on both sides, because the GPU's clock may be a little ahead of the host's or behind it.
        """
        if self.step.device == "cuda":
            import torch

            torch.cuda.synchronize()
        time.sleep(APART_S[self.step.device])
        self.labels.append(label)
        self.ended_ns.append(time.time_ns())
        time.sleep(APART_S[self.step.device])

    @contextlib.contextmanager
    def between_phases(self) -> Iterator[None]:
        """Mark the ends of phases, or of whole steps where one graph holds a step."""
        step = self.step
        name, original = ("run", step.run) if step.together else ("run_phase", step.run_phase)

        def run_marked(what: Any) -> None:
            self.put(())  # batches and copies came before
            original(what)
            self.put(what if isinstance(what, tuple) else (what,))

        setattr(step, name, run_marked)
        try:
            yield
        finally:
            delattr(step, name)


def _list_events(profile: Any, device: str) -> Iterator[kernel_families.Event]:
    """Yield the kernels and copies of a profile; on a CPU its operators."""
    from ladder.receipts import traces

    if device == "cuda":
        yield from traces.events(profile)
        return
    for event in profile.profiler.kineto_results.events():
        if is_operator(event):
            begin = event.start_ns()
            yield event.name(), False, event.start_thread_id(), begin, begin + event.duration_ns()


def name_activity(event: Any) -> str:
    """Return the kind of a host's event: "cpu_op", "cuda_runtime", ...

    PyTorch 2.13 has the word. Versions before have none or a number: there the name decides.
    """
    kind = event.activity_type() if hasattr(event, "activity_type") else None
    if isinstance(kind, str):
        return kind
    if is_range(event):
        return "user_annotation"
    if CALL.match(name := event.name()):
        return "cuda_runtime"
    return "overhead" if name.lower() in OVERHEAD else "cpu_op"


def is_range(event: Any) -> bool:
    """Return whether an event is a range that somebody named."""
    return hasattr(event, "is_user_annotation") and bool(event.is_user_annotation())


def is_operator(event: Any) -> bool:
    """Return whether a profiler's event is an operator: neither a range of a user nor a record of memory."""
    return name_activity(event) == "cpu_op" and event.name() != MEMORY


def cut_events(
    events: Iterable[kernel_families.Event],
    labels: Sequence[tuple[str, ...]],
    ended_ns: Sequence[int],
    device: str,
) -> Traced:
    """Return the segments that marks cut events into. The last segment has all that begins later."""
    if device == "cuda":
        from ladder.receipts import traces

        kernels = [e for e in events if e[1] and not e[0].startswith(kernel_families.WAITING)]
        ran = [
            Ran(name, kernel_families.family(name), begin, end - begin, end - begin - own)
            for (name, _, _, begin, end), own in zip(kernels, once([e[2:] for e in kernels]), strict=True)
        ]
        busy = traces.union([e[3:] for e in kernels])
    else:
        ran = take_own_times(events)
        busy = sum(each.ns for each in ran)
    parts: list[list[Ran]] = [[] for _ in labels]
    for each in sorted(ran, key=lambda r: r.begin):
        parts[min(bisect.bisect_right(ended_ns, each.begin), len(parts) - 1)].append(each)
    segments = (Segment(label, tuple(inside)) for label, inside in zip(labels, parts, strict=True))
    return Traced(tuple(each for each in segments if each.ran), busy)


def list_uneven(traced: Traced) -> list[str]:
    """Return the phases whose runs launched different numbers of kernels: the clock cut them wrongly."""
    counts: dict[tuple[str, ...], set[int]] = {}
    for segment in traced.segments:
        if segment.phases:
            counts.setdefault(segment.phases, set()).add(len(segment.ran))
    return ["+".join(phases) for phases, numbers in counts.items() if len(numbers) > 1]


def take_own_times(operators: Iterable[kernel_families.Event]) -> list[Ran]:
    """Return operators with their own time: without the operators that ran inside them, in the same thread."""
    own: list[Ran] = []
    stacks: dict[
        int, list[tuple[int, int]]
    ] = {}  # by thread: the place in `own` and the end of what still runs
    for name, _, thread, begin, end in sorted(operators, key=lambda each: (each[3], -each[4])):
        stack = stacks.setdefault(thread, [])
        while stack and stack[-1][1] <= begin:
            stack.pop()
        if stack:
            outer = own[stack[-1][0]]
            own[stack[-1][0]] = replace(outer, ns=outer.ns - (end - begin))
        stack.append((len(own), end))
        own.append(Ran(name, operator_families.family(name), begin, end - begin))
    return [replace(each, ns=max(0, each.ns)) for each in own]


def time_copies(device: str) -> list[tuple[int, int]]:
    """Return (bytes read and written, nanoseconds of the GPU) of copies with a cold L2; on a CPU none.

    Source: medians of `COPIES` traced calls of ``Tensor.copy_`` for each of `SIZES_COPIED`. Raises what torch raises if
    the memory is short.
    """
    if device != "cuda":
        return []
    import torch

    from ladder.receipts import traces

    other = torch.empty(EVICTS, dtype=torch.uint8, device=device)
    pairs = [torch.randint(256, (2, size // 2), dtype=torch.uint8, device=device) for size in SIZES_COPIED]

    def run() -> None:
        for pair in pairs:
            for turn in range(COPIES):
                other.fill_(turn)
                pair[1].copy_(pair[0])

    run()
    events = [event for event in traces.events(run_profiled(run, device)) if event[1]]
    took = [end - begin for name, _, _, begin, end in sorted(events, key=lambda e: e[3]) if COPY.match(name)]
    if len(took) != COPIES * len(SIZES_COPIED):
        return []
    rows = [took[k : k + COPIES] for k in range(0, len(took), COPIES)]
    return [(size, round(statistics.median(row))) for size, row in zip(SIZES_COPIED, rows, strict=True)]


# --- what an eager run is watched with --------------------------------------------------------------------------------


@contextlib.contextmanager
def name_layers(step: Any) -> Iterator[None]:
    """Put a range around the forward pass of every layer of G and D while entered."""
    import torch

    handles = []
    for network, module in (("G", step.G), ("D", step.D)):
        for name, layer in module.named_modules():
            if (title := layer_name(network, name, step.workload.resolutions)) is None:
                continue
            open_: list[Any] = []

            def enter(_: Any, __: Any, title: str = title, open_: list[Any] = open_) -> None:
                open_.append(torch.autograd.profiler.record_function(f"{RANGE}{title}"))
                open_[-1].__enter__()

            def leave(_: Any, __: Any, ___: Any, open_: list[Any] = open_) -> None:
                open_.pop().__exit__(None, None, None)

            handles += [
                layer.register_forward_pre_hook(enter),
                layer.register_forward_hook(leave, always_call=True),
            ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
def note_launches() -> Iterator[list[tuple[str, int]]]:
    """Note (kernel, bytes of the tensors that it is given) of each launch of our Triton kernels while entered."""
    launches: list[tuple[str, int]] = []
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError:  # no Triton, so no kernels of ours
        yield launches
        return
    original = KernelInterface.__getitem__

    def get_noted(self: Any, grid: Any) -> Any:
        launch, function = original(self, grid), getattr(self, "fn", None)
        if not str(getattr(function, "__module__", "")).startswith("kernels."):
            return launch

        def run(*arguments: Any, **options: Any) -> Any:
            size = _count_bytes((*arguments, *options.values()))
            launches.append((getattr(function, "__name__", ""), size))
            return launch(*arguments, **options)

        return run

    KernelInterface.__getitem__ = get_noted
    try:
        yield launches
    finally:
        KernelInterface.__getitem__ = original


def _count_bytes(arguments: Iterable[Any]) -> int:
    """Return the bytes of all tensors among a launch's arguments. A tensor that is given twice counts once."""
    sizes: dict[int, int] = {}
    for each in arguments:
        for tensor in each if isinstance(each, tuple | list) else (each,):
            if hasattr(tensor, "data_ptr") and hasattr(tensor, "nbytes"):
                at = tensor.data_ptr()
                sizes[at] = max(sizes.get(at, 0), tensor.nbytes)
    return sum(sizes.values())


# --- the trace that a user opens in Perfetto or in Chrome -------------------------------------------------------------


def list_kinds(step: Any) -> list[int]:
    """Return the places in a cycle of one step of each kind: of each combination of phases."""
    first: dict[tuple[str, ...], int] = {}
    for index in range(CYCLE_STEPS):
        first.setdefault(step.phases(index), index)
    return sorted(first.values())


def write_trace(step: Any, path: Path) -> str:
    """Record one step of each kind and write the trace. Return a line that says what the file holds."""
    places = list_kinds(step)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        with name_uncompiled_layers(step):
            profile = run_profiled(lambda: run_named(step, places), step.device, host=True)
        profile.export_chrome_trace(str(whole))
        raw = whole.read_bytes()
    steps = f"{len(places)} steps, one of each kind"
    try:
        trace = json.loads(raw.decode(errors="replace"))
    except ValueError as error:  # the profile must not be lost for that
        _write_bytes(path, raw)
        return f"{steps}, as PyTorch wrote it: it is no JSON ({describe(error)})"
    short, cut = bound_trace(trace)
    _write_bytes(path, json.dumps(short, separators=(",", ":")).encode())
    lost = f"; cut after {MOST_EVENTS:,} events, {cut:,} are left out" if cut else ""
    return f"{steps}, {len(short['traceEvents']):,} events{lost}"


def name_uncompiled_layers(step: Any) -> contextlib.AbstractContextManager[None]:
    """Return the ranges of layers. Compiled code has none: hooks would make torch.compile compile again."""
    return name_layers(step) if step.recipe.compile == "off" else contextlib.nullcontext()


def _write_bytes(path: Path, raw: bytes) -> None:
    files.write(path, gzip.compress(raw, mtime=0) if path.name.endswith(".gz") else raw)


def run_named(step: Any, places: list[int]) -> None:
    """Run the steps at these places of a cycle, each step and phase in a range of its name."""
    from torch.profiler import record_function

    run, run_phase = step.run, step.run_phase

    def run_step(phases: tuple[str, ...]) -> None:
        with record_function("step: " + ", ".join(phases)):
            run(phases)

    def run_one(phase: str) -> None:
        with record_function(phase):
            run_phase(phase)

    step.run, step.run_phase = run_step, run_one
    try:
        for index in places:
            step._step(index, True)
    finally:
        del step.run, step.run_phase


def bound_trace(trace: dict[str, Any], most: int = MOST_EVENTS) -> tuple[dict[str, Any], int]:
    """Return a Chrome trace with at most so many events, and how many were cut. The latest are cut.

    Names of processes and threads stay, but not those of GPUs on which nothing ran: PyTorch names 16. The path of the
    trace and the profiler's own settings are left out.
    """
    events = trace.get("traceEvents", [])
    ran = {each.get("pid") for each in events if each.get("ph") != "M"}
    names = [each for each in events if each.get("ph") == "M" and each.get("pid") in ran]
    rest = sorted((each for each in events if each.get("ph") != "M"), key=lambda each: each.get("ts", 0))
    room = max(0, most - len(names))
    head = {
        key: trace[key] for key in ("schemaVersion", "deviceProperties", "displayTimeUnit") if key in trace
    }
    return head | {"traceEvents": names + rest[:room]}, len(rest[room:])
