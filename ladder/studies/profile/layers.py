"""The layers of a step: ranges recorded in one eager run of each phase, and carried to the kernels of a replay.

In the eager run every layer of G and D has a range around its forward pass. Autograd gives an
operator and its backward operator the same sequence number. So backward work finds its layer, also in a double
backward. A graph replays kernels without operators. They get the layers of the eager run's kernels by name and order.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.receipts import categories, kernel_families
from ladder.studies.profile import rates, tracing

LAUNCHING = ("cuda_runtime", "cuda_driver")  # activities of the host that launch kernels
RANGE = "layer: "  # the beginning of a range's name
OUTSIDE = "outside the layers"  # losses, inputs, sums of gradients, optimizers, the moving average
UNKNOWN = "unknown"
FILL = "fill_words_kernel"  # in a rewritten graph
ON_DEVICE = re.compile(r"(memset|memcpy)(\d| DtoD\b| \(Device)", re.IGNORECASE)


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
    moved: int | None = None  # bytes that an operator moves by the shapes of its inputs, if they tell


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


# --- the eager run ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ranges(step: Any) -> Iterator[None]:
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


def spans(profile: Any, device: str) -> list[Span]:
    """Return the operators, ranges and kernels of a profile."""
    import torch

    found = []
    for event in profile.profiler.kineto_results.events():
        begin, name = event.start_ns(), event.name()
        end = begin + event.duration_ns()
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            ran = name != tracing.MEMORY and not tracing.is_range(event)
            if ran and tracing.activity(event) not in ("gpu_user_annotation", "overhead"):
                if not name.startswith(kernel_families.WAITING):
                    links = {"linked": event.linked_correlation_id(), "launch": event.correlation_id()}
                    found.append(Span(name, begin, end, on_device=True, **links))
        elif tracing.activity(event) in LAUNCHING:
            found.append(Span(name, begin, end, launch=event.correlation_id()))
        elif tracing.is_range(event):
            found.append(Span(name, begin, end, event.start_thread_id(), is_range=True))
        elif tracing.is_operator(event):
            moved = rates.moved(name, event.shapes(), event.dtypes())
            of_autograd = {"sequence": event.sequence_nr(), "forward_thread": event.fwd_thread_id()}
            place = event.start_thread_id(), event.correlation_id()
            found.append(Span(name, begin, end, *place, moved=moved, **of_autograd))
    return found


def labels(
    found: Iterable[Span], phase: str, device: str, launches: Iterable[tuple[str, int]] = ()
) -> list[Label]:
    """Return the kernels of an eager run in order, each with its layer; on a CPU its operators.

    ``launches`` are those of our kernels, as `rates.given` notes them.
    """
    found = list(found)
    launching = {each.launch: each for each in found if each.launch and not each.on_device}
    found = [each for each in found if each.on_device or not each.launch]
    contexts, operators = _contexts(found)
    hosts = sorted((each for each in found if not each.on_device), key=_order)
    if device == "cpu":
        return [_label(each, phase, contexts[id(each)], None) for each in hosts if not each.is_range]
    made: list[Label] = []
    counted: set[int] = set()  # operators whose bytes one of their kernels has
    kernels = sorted((each for each in found if each.on_device), key=_order)
    given = rates.of_launches([each.name for each in kernels], launches)
    for kernel, ours in zip(kernels, given, strict=True):
        operator = operators.get(kernel.linked) if kernel.linked else None
        if operator is not None and ours is None:
            moved = 0 if operator.moved is not None and operator.number in counted else operator.moved
            counted.add(operator.number)
            made.append(_label(kernel, phase, contexts[id(operator)], moved))
        elif operator is not None:
            made.append(_label(kernel, phase, contexts[id(operator)], ours))
        elif (call := launching.get(kernel.launch)) is not None:
            made.append(_label(kernel, phase, _at(call.begin, hosts, contexts), ours))
        else:
            made.append(Label(kernel.name, phase, _unlinked(kernel.name), False, ours))
    return made


def _at(moment: int, hosts: Sequence[Span], contexts: dict[int, Context]) -> Context:
    """Return the context of the host span, in any thread, that began last and holds this moment.

    The main thread waits while a backward pass runs in a thread of its own.
    """
    for index in range(bisect.bisect_right(hosts, moment, key=lambda each: each.begin) - 1, -1, -1):
        if hosts[index].end > moment:
            return contexts[id(hosts[index])]
    return Context()


def _label(span: Span, phase: str, context: Context, moved: int | None) -> Label:
    return Label(span.name, phase, context.layer or OUTSIDE, context.backward, moved)


def _unlinked(name: str) -> str:
    """Return the layer of a kernel whose launch is not known: our optimizers belong to no layer."""
    category = categories.category(kernel_families.family(name))
    return OUTSIDE if category == categories.OPTIMIZER else UNKNOWN


def _order(span: Span) -> tuple[int, int]:
    return span.begin, -span.end


def _contexts(found: Iterable[Span]) -> tuple[dict[int, Context], dict[int, Span]]:
    """Return each host span's context by its id(), and the operators by number.

    An operator without a node in autograd's graph has the number of the next one that gets a node. So the last
    operator of a number is the one that the backward operator belongs to.
    """
    contexts: dict[int, Context] = {}
    operators: dict[int, Span] = {}
    stacks: dict[int, list[Span]] = defaultdict(list)
    layer_of: dict[tuple[int, int], str | None] = {}
    for span in sorted((each for each in found if not each.on_device), key=_order):
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


def _matches(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    """Return for each name of ``after`` its place in ``before``, or None where none matches.

    A name that ran equally often in both is matched in order. Streams may change the order of different names, not of
    one name. Another name is matched between two neighbours that are matched.
    """
    before, after = [*map(_alike, before)], [*map(_alike, after)]
    places: tuple[dict[str, list[int]], dict[str, list[int]]] = (defaultdict(list), defaultdict(list))
    for at, sequence in zip(places, (before, after), strict=True):
        for index, name in enumerate(sequence):
            at[name].append(index)
    found: list[int | None] = [None] * len(after)
    for name, inside in places[1].items():
        if len(inside) == len(places[0].get(name, ())):
            for a, b in zip(places[0][name], inside, strict=True):
                found[b] = a
    following = _following(found, len(before))
    last = -1
    for b, name in enumerate(after):
        if found[b] is None:
            found[b] = next((a for a in places[0].get(name, ()) if last < a < following[b]), None)
        last = last if found[b] is None else max(last, found[b] or 0)
    return found


def _alike(name: str) -> str:
    """Return one name for memsets, and one for copies on the device.

    A graph replays some of them as kernels: `memset32`, `memcpy32_post`, and `fill_words_kernel` of `graph_fills`.
    """
    if name == FILL:
        return "memset"
    found = ON_DEVICE.match(name)
    return found[1].lower() if found else name


def _following(found: Sequence[int | None], end: int) -> list[int]:
    """Return for each place the next one that is matched, or the end."""
    following, after = [end] * len(found), end
    for b in range(len(found) - 1, -1, -1):
        following[b] = after
        after = after if (at := found[b]) is None else at
    return following


def of_segments(
    eager: dict[str, list[Label]], segments: Iterable[tracing.Segment]
) -> Iterator[tuple[tracing.Segment, list[Label | None]]]:
    """Yield each segment with the labels of all that ran in it. Segments without phases have none."""
    matched: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int | None]] = {}
    for segment in segments:
        expected = list(itertools.chain.from_iterable(eager.get(phase, []) for phase in segment.phases))
        names = tuple(each.name for each in segment.ran)
        key = segment.phases, names
        if key not in matched:
            matched[key] = _matches([each.name for each in expected], names)
        yield segment, [None if at is None else expected[at] for at in matched[key]]
