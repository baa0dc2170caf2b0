"""One cycle of a prepared step under the profiler, cut at its phases: kernels on a GPU, operators on a CPU.

Between two phases the GPU is waited for, and the clock says which kernels belong to which phase. So phases are those
of the graphs that are replayed. GPU time does not change by that. A whole-step graph has no such cut: its segment is a
step. There `ladder.studies.profile.layers` finds the phases by the names and order of an eager run's kernels.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
GPU, CPU = "kernels", "operators"  # what ran, on a GPU and on a CPU


@dataclass(frozen=True)
class Ran:
    """A kernel, a copy or an operator: its name and family, when it began, and its own time. Nanoseconds.

    ``beside_ns`` are those of its time that count for others, because kernels ran at once.
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


@dataclass(frozen=True)
class Host:
    """A span of a host thread: an operator, or a range. `inner_ns` is what spans inside it took."""

    name: str
    thread: int
    begin: int
    end: int


def trace(step: Any) -> Traced:
    """Return a traced cycle of a prepared `TrainingStep`."""
    marks = Marks(step)

    def cycle() -> None:
        marks.put(())
        with marks.between_phases():
            step.cycle()
        marks.put(())

    events = list(_events(profiled(cycle, step.device), step.device))
    return cut(events, marks.labels, marks.ended_ns, step.device)


def profiled(run: Callable[[], None], device: str, *, host: bool = False, **more: Any) -> Any:
    """Return the profile of a run that has ended. ``host``: on a GPU with the operators of the host, too."""
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

        def marked(what: Any) -> None:
            self.put(())  # batches and copies came before
            original(what)
            self.put(what if isinstance(what, tuple) else (what,))

        setattr(step, name, marked)
        try:
            yield
        finally:
            delattr(step, name)


def _events(profile: Any, device: str) -> Iterator[kernel_families.Event]:
    """Yield the kernels and copies of a profile; on a CPU its operators."""
    from ladder.receipts import traces

    if device == "cuda":
        yield from traces.events(profile)
        return
    for event in profile.profiler.kineto_results.events():
        if is_operator(event):
            begin = event.start_ns()
            yield event.name(), False, event.start_thread_id(), begin, begin + event.duration_ns()


def activity(event: Any) -> str:
    """Return the kind of a host's event: "cpu_op", "cuda_runtime", ...

    PyTorch 2.13 tells its word. Versions before do not tell it, or tell a number: there the name decides.
    """
    told = event.activity_type() if hasattr(event, "activity_type") else None
    if isinstance(told, str):
        return told
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
    return activity(event) == "cpu_op" and event.name() != MEMORY


def cut(
    events: Iterable[kernel_families.Event],
    labels: Sequence[tuple[str, ...]],
    ended_ns: Sequence[int],
    device: str,
) -> Traced:
    """Return the segments that marks cut events into. The last segment has all that begins later."""
    if device == "cuda":
        from ladder.receipts import traces

        kept = [e for e in events if e[1] and not e[0].startswith(kernel_families.WAITING)]
        ran = [
            Ran(name, kernel_families.family(name), begin, end - begin, end - begin - own)
            for (name, _, _, begin, end), own in zip(kept, once([e[2:] for e in kept]), strict=True)
        ]
        busy = traces.union([e[3:] for e in kept])
    else:
        ran = own_times([Host(name, thread, begin, end) for name, _, thread, begin, end in events])
        busy = sum(each.ns for each in ran)
    found: list[list[Ran]] = [[] for _ in labels]
    for each in sorted(ran, key=lambda r: r.begin):
        found[min(bisect.bisect_right(ended_ns, each.begin), len(found) - 1)].append(each)
    made = (Segment(label, tuple(inside)) for label, inside in zip(labels, found, strict=True))
    return Traced(tuple(each for each in made if each.ran), busy)


def uneven(traced: Traced) -> list[str]:
    """Return a line if runs of the same phases launched different numbers of kernels: the clock cut them wrongly."""
    counts: dict[tuple[str, ...], set[int]] = {}
    for segment in traced.segments:
        if segment.phases:
            counts.setdefault(segment.phases, set()).add(len(segment.ran))
    wrong = ["+".join(phases) for phases, seen in counts.items() if len(seen) > 1]
    return [
        f"runs of {', '.join(wrong)} differ in their kernels: phases and layers may be cut wrongly"
    ] * bool(wrong)


def own_times(spans: Iterable[Host]) -> list[Ran]:
    """Return operators with their own time: without the operators that ran inside them, in the same thread."""
    own: list[tuple[Host, int]] = []
    stacks: dict[int, list[int]] = {}
    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        stack = stacks.setdefault(span.thread, [])
        while stack and own[stack[-1]][0].end <= span.begin:
            stack.pop()
        if stack:
            outer, ns = own[stack[-1]]
            own[stack[-1]] = (outer, ns - (span.end - span.begin))
        stack.append(len(own))
        own.append((span, span.end - span.begin))
    return [Ran(s.name, operator_families.family(s.name), s.begin, max(0, ns)) for s, ns in own]
