"""How microseconds are measured: CUDA graphs of many calls, or an event pair a call, with the L2 cold or hot.

From 100 us on, each call has a pair of events of its own. Shorter calls would drown in the events' own resolution and
in the gaps between launches: n of them are captured into a CUDA graph, of which three replays in a row last at least
5 ms: to capture three times as many for a single replay would take three times as long.

Cold: nothing that a call reads is left in the L2 cache. A graph's calls go round over so many sets of buffers that
three times the L2 is touched before one comes back; its results are kept just as long, or the allocator would hand out
the same memory again and writes would never leave the cache. Before a call with events of its own, three times the L2
is written, outside them. Hot: the same buffers over and over.

The GPU must never wait for the CPU between two events. So work is queued before the first one (the graph's own warm-up
replay, or the writes that flush the cache), and a call whose first event has passed before the CPU had queued all of it
is repeated with more.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], Any]
COLD, HOT = "cold", "hot"
GRAPH, EVENTS = "graph", "events"


@dataclass(frozen=True)
class Rules:
    """The protocol's numbers."""

    graph_s: float = 5e-3  # the replays that are timed last at least this long together
    replays: int = 3  # of one graph; between two is a gap, which every contender has alike
    long_s: float = 100e-6  # from here on a call has events of its own
    evict: int = 3  # times the L2 is touched before a buffer is used again
    calls: int = 12  # with events of their own, for one value: their median
    enough_s: float = 0.05  # of these: slow alternatives get as few as three
    too_slow_s: float = 0.1  # an alternative that takes this long is named and not repeated
    most_sets: int = 256
    most_calls: int = 4096  # in one graph
    most_backlog: int = 256  # flushes queued before a call, each about 40 us on an H200


class Event(Protocol):
    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Any) -> float: ...


class Gpu(Protocol):
    """What the timer needs of a device; `Cuda` is the real one, tests have one whose time they know."""

    l2_bytes: int

    def event(self) -> Event: ...
    def flush(self) -> None: ...
    def capture(self, body: Call) -> Any: ...
    def synchronize(self) -> None: ...


class HostBound(RuntimeError):
    """The GPU waited for the CPU whatever was queued before: there is no time of the GPU's to report."""


class Timer:
    """Seconds of one call, by either method."""

    def __init__(self, gpu: Gpu, rules: Rules | None = None) -> None:
        self.gpu, self.rules = gpu, rules or Rules()

    def sets(self, moved: int, temperature: str) -> int:
        """How many sets of buffers calls that move `moved` bytes must go round over."""
        if temperature == HOT:
            return 1
        needed = math.ceil(self.rules.evict * self.gpu.l2_bytes / max(1, moved)) + 1
        return min(self.rules.most_sets, max(2, needed))

    def lukewarm(self, moved: int) -> str | None:
        """One line where a tiny op's buffers, as many as are allowed, do not drive each other out of the L2."""
        between = self.sets(moved, COLD) * moved
        if between >= self.rules.evict * self.gpu.l2_bytes:
            return None
        return f"not quite cold: only {between / 2**20:.0f} MiB between two uses of a buffer"

    def graph(self, calls: Sequence[Call], n: int = 8) -> tuple[float, int]:
        """(seconds of a call, calls captured). `n` is where to begin; it grows until the replays last long enough.

        A single call beyond `long_s` ends the growing: it will be measured by events.
        """
        rules = self.rules
        n = _whole_rounds(min(n, rules.most_calls), len(calls))
        while True:
            seconds = self._replayed(calls, n)
            lasting = seconds * n * rules.replays
            if lasting >= rules.graph_s or seconds >= rules.long_s or n >= rules.most_calls:
                return seconds, n
            more = max(n + 1, math.ceil(1.2 * rules.graph_s / rules.replays / seconds))
            n = _whole_rounds(min(more, rules.most_calls), len(calls))

    def _replayed(self, calls: Sequence[Call], n: int) -> float:
        kept: dict[int, Any] = {}  # results live until their set comes round again

        def body() -> None:
            for i in range(n):
                kept.pop(i % len(calls), None)  # first, so that hot calls write where the last one wrote
                kept[i % len(calls)] = calls[i % len(calls)]()

        graph = self.gpu.capture(body)
        kept.clear()
        start, end = self.gpu.event(), self.gpu.event()
        graph.replay()  # warms up, and keeps the GPU busy while the next lines are queued
        start.record()
        for _ in range(self.rules.replays):
            graph.replay()
        end.record()
        self.gpu.synchronize()
        return _positive(start.elapsed_time(end) / 1e3 / n / self.rules.replays)

    def events(self, calls: Sequence[Call], temperature: str) -> float:
        """Median seconds of a call, each between events of its own."""
        backlog, samples = 1, []
        while len(samples) < self.rules.calls and (len(samples) < 3 or sum(samples) < self.rules.enough_s):
            call = calls[len(samples) % len(calls)]
            seconds, in_time = self._between_events(call, temperature, backlog)
            if in_time:
                samples.append(seconds)
            elif backlog < self.rules.most_backlog:
                backlog *= 2
            else:
                raise HostBound("the GPU waited for the CPU to launch it")
        return statistics.median(samples)

    def _between_events(self, call: Call, temperature: str, backlog: int) -> tuple[float, bool]:
        """(seconds, whether the CPU had queued the whole call before the GPU began with it)."""
        for _ in range(backlog):
            self.gpu.flush()
        if temperature == HOT:
            call()  # brings back what the flush drove out
        start, end = self.gpu.event(), self.gpu.event()
        start.record()
        result = call()
        in_time = not start.query()
        end.record()
        self.gpu.synchronize()
        del result
        return _positive(start.elapsed_time(end) / 1e3), in_time


def _whole_rounds(n: int, sets: int) -> int:
    return max(1, math.ceil(n / sets)) * sets


def _positive(seconds: float) -> float:
    if not (seconds > 0 and math.isfinite(seconds)):
        raise RuntimeError(f"an impossible time: {seconds} s")
    return seconds


class Cuda:
    """The current CUDA device. All work happens inside `running`, on one side stream.

    One stream for everything, because autograd runs each backward node on the stream of its forward, also the nodes
    that gather gradients of leaves: a graph can be captured on that very stream only, and not on the default one.
    """

    name = "cuda"
    broken: str | None = None  # why nothing can be timed in this process any more

    def __init__(self, evict: int = Rules.evict) -> None:
        import torch

        self.torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.l2_bytes, self.memory = properties.L2_cache_size or 64 * 2**20, properties.total_memory
        self.stream = torch.cuda.Stream()
        self.trash = torch.empty(evict * self.l2_bytes // 4 + 1, dtype=torch.int32, device="cuda")
        self.written = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(self.stream):
            yield
        self.torch.cuda.synchronize()

    def event(self) -> Event:
        return self.torch.cuda.Event(enable_timing=True)

    def flush(self) -> None:
        """Write three times the L2."""
        self.written += 1
        self.trash.fill_(self.written)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def capture(self, body: Call) -> Any:
        """A CUDA graph of what `body` launches. All it launches must have run before: nothing may be compiled here.

        Not by `torch.cuda.graph`, which empties the allocator's cache each time. The garbage collector rests
        meanwhile: it could free a graph or an event, which is not allowed during a capture.
        """
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        collecting = gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin()
            try:
                body()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # what ended the capture says more
                    self._end(graph)
                raise
            self._end(graph)
        finally:
            if collecting:
                gc.enable()
        return graph

    def _end(self, graph: Any) -> None:
        """Where CUDA has given up a capture the allocator keeps its pool: no time in this process counts then."""
        try:
            graph.capture_end()
        except RuntimeError as error:
            self.broken = f"an earlier capture was given up: {error}".splitlines()[0]
            raise

    def forget(self) -> None:
        """Give memory back where a quarter is held: each graph had a pool of its own, which nothing else reuses."""
        self.torch.cuda.synchronize()
        if self.torch.cuda.memory_reserved() > self.memory // 4:
            self.torch.cuda.empty_cache()


class _Stamp:
    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return False  # on a CPU nothing is queued

    def elapsed_time(self, end: _Stamp) -> float:
        return max(1e-6, 1e3 * (end.at - self.at))


class _Again:
    def __init__(self, body: Call) -> None:
        self.replay = body
        body()


class Cpu:
    """The same calls without a GPU, to see that everything works; its times mean nothing."""

    name = "cpu"
    l2_bytes = 1024

    running = staticmethod(contextlib.nullcontext)
    event = _Stamp
    capture = _Again

    def flush(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def forget(self) -> None:
        pass


SMOKE = Rules(graph_s=1e-6, long_s=math.inf, calls=2, too_slow_s=math.inf, most_sets=2, most_calls=2)
SMOKE_NOTE = "CPU smoke test: Triton's interpreter, not to be quoted"


def timer_on(device: str) -> Timer:
    """A timer of the GPU, by the usual rules; on "cpu" that of a smoke test."""
    return Timer(Cpu(), SMOKE) if device == "cpu" else Timer(Cuda())
