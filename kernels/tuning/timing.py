"""The clock, the yardstick, the search and the output that all tuners of this package share.

A configuration is timed as a captured CUDA graph of calls. The calls use so many buffers in turn that none is still in
the L2 cache when its turn comes again. The yardstick is a copy of as many bytes, timed the same way: a configuration's
share is the copy's time divided by its own.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from .. import alternatives, available

REPLAYS = 7  # timed replays; their median counts
# Bytes: a driver copy of 640 MiB ran at 2.7 TB/s on an H200, a copy of 384 MiB at 4.2.
LARGEST_COPIES = (128 << 20, 384 << 20)
PAGES = (4096, 65536)  # bytes: in a graph, driver copies of other sizes ran at 2.4 to 2.7 TB/s there


def make_copy(total: int, device: torch.device, page: int, largest: int) -> Callable[[], object]:
    """Return a copy that reads and writes this many bytes, in equal pieces no larger than
    `largest`, rounded up to pages.
    """
    count = max(1, -(-total // 2 // largest))
    size = -(-total // 2 // count // page) * page
    pieces = torch.empty((count, size), dtype=torch.uint8, device=device).unbind()
    return lambda: [piece.clone() for piece in pieces]


def copy_seconds(total: int, device: torch.device, count: int) -> float:
    """Return the seconds of a copy that reads and writes this many bytes.

    The fastest of a few ways counts, each going round over `count` buffers. A dense copy is the driver's memcpy, and a
    single copy is no yardstick for all sizes: see LARGEST_COPIES and PAGES.
    """
    ways = itertools.product(PAGES, LARGEST_COPIES)
    return min(seconds([make_copy(total, device, *way) for _ in range(count)]) for way in ways)


def seconds(calls: list[Callable[[], object]]) -> float:
    """Return the seconds of one call. The calls use different buffers and are timed inside one CUDA graph."""
    stream, kept = torch.cuda.current_stream(), deque(maxlen=len(calls))
    rounds = max(1, 16 // len(calls))
    for call in calls:
        kept.append(call())
    kept.clear()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls * rounds:
            kept.append(call())
    times = []
    for _ in range(REPLAYS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / (rounds * len(calls)))
    kept.clear()
    return statistics.median(times[1:])


def buffers(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> int:
    """Return how many of these tensors are one and a half times the L2 cache. Used in turn, none stays there."""
    size, cache = math.prod(shape) * dtype.itemsize, torch.cuda.get_device_properties(device).L2_cache_size
    return min(64, max(3, -(-3 * cache // (2 * size))))


def timed_run(shape: tuple[int, ...], taken: float, copy: float, moved: int) -> dict:
    """Return the row of a run, from its seconds and those of a copy of as many bytes."""
    facts = {"microseconds": taken * 1e6, "copy_microseconds": copy * 1e6, "bytes": moved}
    return {"shape": shape, "share": copy / taken} | facts


def mean_us(runs: list[dict]) -> float:
    """Return the geometric mean over the shapes in microseconds, infinite where one failed."""
    times = [run.get("microseconds", math.inf) for run in runs]
    return math.prod(times) ** (1 / len(times))


def mean_share(runs: list[dict]) -> float:
    """Return the geometric mean of the shares over the shapes."""
    shares = [run.get("share", 0.0) for run in runs]
    return math.prod(shares) ** (1 / len(shares))


# ---- the search --------------------------------------------------------------------------------------------------


class Bench:
    """One op at one shape: the calls on buffers of its own, the bytes of a call, and the seconds of a copy of them."""

    def __init__(
        self,
        make: Callable[[], tuple[Callable[[], object], int]],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        taking: Callable[[Any], AbstractContextManager],
    ):
        """Make the calls.

        Args:
            make: returns a call on new buffers, and the bytes that it must move.
            shape: shape of the activation.
            dtype: dtype of the activation.
            taking: returns a context in which launches take a configuration.
        """
        device = torch.device("cuda", torch.cuda.current_device())
        made = [make() for _ in range(buffers(shape, dtype, device))]
        self.shape, self.taking = shape, taking
        self.calls, self.bytes = [call for call, _ in made], made[0][1]
        self.copy = copy_seconds(self.bytes, device, len(made))

    def run(self, choice: Any) -> dict:
        """Time the calls with this configuration. Return a row: the times, or the error of a configuration that cannot
        run.
        """
        try:
            with self.taking(choice):
                taken = seconds(self.calls)
        except Exception as error:  # out of shared memory or registers: no candidate for this GPU
            return {"shape": self.shape, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        return timed_run(self.shape, taken, self.copy, self.bytes)


def search(
    trials: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    most: int,
    deadline: float,
    bench_of: Callable[[tuple[int, ...]], Bench],
    compile_for: Callable[[Sequence[tuple[int, ...]], Sequence[Any]], None] = lambda shapes, trials: None,
) -> dict[Any, list[dict]]:
    """Time configurations at the first shape, then the best few at every shape.

    Args:
        trials: the configuration in force, then the candidates, best guess first.
        shapes: of the activation.
        most: how many of the fastest go on to the other shapes; the configuration in force always does.
        deadline: no further candidate begins at the first shape after this `time.monotonic()`.
        bench_of: makes the bench of a shape.
        compile_for: compiles the kernels of the given configurations at the given shapes beforehand.

    Returns the rows of each configuration that was timed, one row a shape.
    """
    compile_for(shapes[:1], trials)
    bench = bench_of(shapes[0])
    runs = {trials[0]: [bench.run(trials[0])]}
    for choice in trials[1:]:
        if time.monotonic() < deadline:
            runs[choice] = [bench.run(choice)]
    del bench
    torch.cuda.empty_cache()
    best = sorted(runs, key=lambda choice: runs[choice][0].get("share", 0.0), reverse=True)[:most]
    finalists = list(dict.fromkeys([trials[0], *best]))
    if shapes[1:]:
        compile_for(shapes[1:], finalists)
    for shape in shapes[1:]:
        bench = bench_of(shape)
        for choice in finalists:
            runs[choice].append(bench.run(choice))
        del bench
        torch.cuda.empty_cache()
    return runs


# ---- the output --------------------------------------------------------------------------------------------------


def write(path: Path, kind: str, timed: list[dict]) -> None:
    """Write a result file of this kind."""
    gpu = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    text = json.dumps({"schema": 1, "kind": kind} | gpu | {"timed": timed}, indent=1)
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe, as /dev/stdout
        path.write_text(text)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def refused(program: str) -> bool:
    """Return whether nothing can be timed here, after printing one line that says why."""
    why = available() or (None if torch.cuda.is_available() else "no CUDA GPU that PyTorch can use")
    if why:
        print(f"{program}: {why}", file=sys.stderr)
    return bool(why)


def keep(path: Path, kind: str, found: Iterable[tuple[str, list[dict]]]) -> None:
    """Print each text and write all rows found so far, on a stream of their own."""
    timed: list[dict] = []
    with torch.cuda.stream(torch.cuda.Stream()), alternatives.off():
        for text, rows in found:
            timed += rows
            print(text, flush=True)
            write(path, kind, timed)
