"""The clock for microseconds: CUDA graphs of many calls, or a pair of events for each call, with the L2 cold or hot.

Calls of 100 us or more have their own pairs of events. Shorter calls would drown in the events' resolution and in the
gaps between launches. So n of them are captured into a CUDA graph, and three replays in a row last at least 5 ms.

Cold: nothing that a call reads is left in the L2 cache. A graph's calls rotate over enough sets of buffers to touch
three times the L2 before a set comes back. Results are kept just as long. Otherwise the allocator would hand out the
same memory again, and writes would never leave the cache. Before a call with its own events, three times the L2 is
written, outside the events. Hot: the same buffers over and over.

The GPU must never wait for the CPU between two events. So work is queued before the first event: the graph's warm-up
replay, or the writes that flush the cache. If the first event passes before the CPU has queued the whole call, the
call is repeated with more queued work.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import statistics
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]
COLD, HOT, HOST = "cold", "hot", "host"
GRAPH, EVENTS = "graph", "events"


@dataclass(frozen=True)
class Rules:
    """The protocol's numbers."""

    graph_s: float = 5e-3  # least duration of the timed replays together
    replays: int = 3  # replays of one graph; the gap between two is the same for every contender
    long_s: float = 100e-6  # from this duration on a call has its own events
    evict: int = 3  # multiples of the L2 touched before a buffer is used again
    host_calls: int = (
        24  # calls in a row for a median of the CPU's time; their launches fit into the GPU's queue
    )
    calls: int = 12  # calls with their own events for one value, which is their median
    enough_s: float = 0.05  # total seconds that suffice; a slow alternative gets as few as three calls
    too_slow_s: float = 0.1  # a slower alternative is named and not repeated
    most_sets: int = 256
    most_calls: int = 4096  # calls in one graph
    most_backlog: int = 256  # flushes queued before a call; each takes about 40 us on an H200


class Timer:
    """A timer of one call, by either method, in seconds. The device is `Cuda`, or has its methods."""

    def __init__(self, gpu: Any, rules: Rules | None = None) -> None:
        self.gpu, self.rules = gpu, rules or Rules()

    def sets(self, moved: int, temperature: str) -> int:
        """Return how many sets of buffers calls that move `moved` bytes must rotate over."""
        if temperature != COLD:
            return 1
        needed = math.ceil(self.rules.evict * self.gpu.l2_bytes / max(1, moved)) + 1
        return min(self.rules.most_sets, max(2, needed))

    def lukewarm(self, moved: int) -> str | None:
        """Return a note where a tiny op's buffers are too few to flush the L2, or None."""
        between = self.sets(moved, COLD) * moved
        is_cold = between >= self.rules.evict * self.gpu.l2_bytes
        return (
            None
            if is_cold
            else f"not quite cold: only {between / 2**20:.0f} MiB between two uses of a buffer"
        )

    def graph(self, calls: Sequence[Call], n: int = 8) -> tuple[float, int]:
        """Return (seconds of a call, calls captured). `n` grows from its start until the replays last long enough.

        A single call beyond `long_s` ends the growing: events will time it.
        """
        rules = self.rules
        rounds = math.ceil(min(n, rules.most_calls) / len(calls))
        while True:
            n = max(1, rounds) * len(calls)  # every set of buffers equally often
            seconds = self._replayed(calls, n)
            lasting = seconds * n * rules.replays
            if lasting >= rules.graph_s or seconds >= rules.long_s or n >= rules.most_calls:
                return seconds, n
            more = max(n + 1, math.ceil(1.2 * rules.graph_s / rules.replays / seconds))
            rounds = math.ceil(min(more, rules.most_calls) / len(calls))

    def _replayed(self, calls: Sequence[Call], n: int) -> float:
        kept: dict[int, Any] = {}  # results live until their set is used again

        def body() -> None:
            for i in range(n):
                kept.pop(i % len(calls), None)  # freed first, so that hot calls write to the same memory
                kept[i % len(calls)] = calls[i % len(calls)]()

        graph = self.gpu.capture(body)
        kept.clear()
        start, end = self.gpu.event(), self.gpu.event()
        graph.replay()  # warms up, and keeps the GPU busy while the CPU queues the next lines
        start.record()
        for _ in range(self.rules.replays):
            graph.replay()
        end.record()
        self.gpu.synchronize()
        return _positive(start.elapsed_time(end) / 1e3 / n / self.rules.replays)

    def host(self, call: Call) -> float:
        """Return the seconds that the CPU needs to issue a call, which begins on an idle GPU."""
        ends = [time.perf_counter()]
        for _ in range(self.rules.host_calls):
            call()
            ends.append(time.perf_counter())
        self.gpu.synchronize()
        return _positive(statistics.median(end - begin for begin, end in itertools.pairwise(ends)))

    def events(self, calls: Sequence[Call], temperature: str) -> float:
        """Return the median seconds of a call, each between its own events."""
        backlog, samples = 1, []
        while len(samples) < self.rules.calls and (len(samples) < 3 or sum(samples) < self.rules.enough_s):
            call = calls[len(samples) % len(calls)]
            for _ in range(backlog):
                self.gpu.flush()
            if temperature == HOT:
                call()  # brings back the data that the flush drove out
            start, end = self.gpu.event(), self.gpu.event()
            start.record()
            result = call()
            in_time = not start.query()  # whether the CPU had queued the whole call before the GPU began it
            end.record()
            self.gpu.synchronize()
            del result
            seconds = _positive(start.elapsed_time(end) / 1e3)
            if in_time:
                samples.append(seconds)
            elif backlog < self.rules.most_backlog:
                backlog *= 2
            else:
                raise RuntimeError("the GPU waited for the CPU to launch it")
        return statistics.median(samples)


def _positive(seconds: float) -> float:
    if not (seconds > 0 and math.isfinite(seconds)):
        raise RuntimeError(f"an impossible time: {seconds} s")
    return seconds


class Cuda:
    """The current CUDA device. All work happens inside `running`, on one side stream.

    Autograd runs each backward node on the stream of its forward, also the nodes that gather gradients of leaves. A
    graph can be captured on that stream only, and not on the default stream. So there is one stream for everything.
    """

    name = "cuda"
    broken: str | None = None  # the reason why this process can time nothing any more

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

    launching = staticmethod(contextlib.nullcontext)

    def event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)

    def flush(self) -> None:
        """Write three times the L2."""
        self.written += 1
        self.trash.fill_(self.written)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def capture(self, body: Call) -> Any:
        """Return a CUDA graph of the launches of `body`. All of it must have run before: nothing may compile here.

        `torch.cuda.graph` is avoided, as it empties the allocator's cache each time. The garbage collector rests
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
                with contextlib.suppress(RuntimeError):  # the first error says more
                    self._end(graph)
                raise
            self._end(graph)
        finally:
            if collecting:
                gc.enable()
        return graph

    def _end(self, graph: Any) -> None:
        """End the capture. If CUDA has given it up, the allocator keeps its pool: this process times nothing more."""
        try:
            graph.capture_end()
        except RuntimeError as error:
            self.broken = f"an earlier capture was given up: {error}".splitlines()[0]
            raise

    def forget(self) -> None:
        """Give memory back once a quarter is held. Each graph has its own pool, which nothing else reuses."""
        self.torch.cuda.synchronize()
        if self.torch.cuda.memory_reserved() > self.memory // 4:
            self.torch.cuda.empty_cache()


class _Stamp:
    """An event of a CPU, which queues nothing."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return False

    def elapsed_time(self, end: _Stamp) -> float:
        return max(1e-6, 1e3 * (end.at - self.at))


class Cpu:
    """A substitute without a GPU, to see that everything works. Of its times only the host's mean something."""

    name = "cpu"
    l2_bytes = 1024
    running = staticmethod(contextlib.nullcontext)
    event = _Stamp
    flush = synchronize = forget = staticmethod(lambda: None)

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Leave our kernels out, which the interpreter would run: no time of theirs means anything."""
        from kernels.common import launches

        mode, launches.mode = launches.mode, "none"
        try:
            yield
        finally:
            launches.mode = mode

    def capture(self, body: Call) -> Any:
        """Return the calls themselves, after a first run."""
        body()
        return types.SimpleNamespace(replay=body)


SMOKE = Rules(graph_s=1e-6, long_s=math.inf, calls=2, too_slow_s=math.inf, most_sets=2, most_calls=2)


def timer_on(device: str) -> Timer:
    """Return a timer by the usual rules; on "cpu" the timer of a smoke test."""
    return Timer(Cpu(), SMOKE) if device == "cpu" else Timer(Cuda())
