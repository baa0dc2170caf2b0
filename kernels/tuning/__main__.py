"""Find the rows of the table in `kernels/choices.py` for the GPU at hand: `python -m kernels.tuning [--op modulate]`.

Each candidate is timed at the workloads' shapes as a captured graph of calls over so many buffers that none is still in
the L2 cache when it comes round again, next to a copy of as many bytes measured the same way. All candidates run at the
first shape, the best few at all of them. Prints the best rows beside those in force, ready to be pasted, and writes
everything that was timed as JSON. Needs a few minutes; nothing here runs when a model does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

import kernels
from kernels import alternatives
from kernels.choices import DIRECTIONS, OPS, Choice, Key, choose, forced
from kernels.common import tiles
from kernels.precompile import compile_ahead

# The shapes that targets are stated for, and the low resolutions of the same generator.
SHAPES = {
    "large": [(8, 64, 256, 256), (8, 128, 128, 128), (32, 64, 256, 256), (32, 128, 128, 128)],
    "medium": [(8, 128, 128, 128), (8, 64, 256, 256), (8, 256, 64, 64), (8, 512, 32, 32)],
    "small": [(8, 512, 16, 16), (8, 512, 8, 8), (8, 512, 4, 4)],
}
# How many candidates of the first shape run at the others; medium ones are too unlike each other to tell by the first.
FINALISTS = {"large": 4, "medium": 1000, "small": 4}
REPLAYS = 7  # timed, of which the median counts
# Bytes: a driver copy of 640 MiB ran at 2.7 TB/s on an H200, one of 384 at 4.2.
LARGEST_COPIES = (128 << 20, 384 << 20)
PAGES = (4096, 65536)  # bytes: in a graph, driver copies of other sizes ran at 2.4 to 2.7 TB/s there


def candidates(direction: str, size: str, itemsize: int) -> list[Choice]:
    """What is worth trying: one to four 16-byte loads for each thread, 16 to 64 warps on a multiprocessor."""
    unit, found = 16 // itemsize * 32, []  # elements that a warp loads at once
    if size == "small":
        for tile, warps in ((16, 4), (8, 4), (16, 8), (32, 8)):
            found += [Choice(tile * unit // 2, columns, warps, 1) for columns in (16, 32, 64)]
        return [*found, Choice(4 * unit, 512, 4, 0 if direction == "forward" else 8)]
    if size == "medium" and direction != "forward":
        # Narrow columns: as many programs, each further down, so that a sample has fewer rows of sums to be added up.
        for (vectors, warps), columns in itertools.product(
            ((2, 4), (4, 4), (1, 8), (2, 8), (1, 4)), (64, 128, 512)
        ):
            for resident, stages in itertools.product((16, 32, 48), (1, 3)):
                found.append(Choice(vectors * warps * unit, columns, warps, resident // warps, stages))
        return found
    for vectors, warps in ((2, 4), (1, 4), (4, 4), (1, 8), (2, 8), (4, 8), (2, 2)):
        tile = vectors * warps * unit
        if direction == "forward":
            found.append(Choice(tile, 512, warps))
        for resident in (48, 32, 16, 64):
            for stages in (1, 3):
                if vectors < 4 and (stages == 1 or resident < 64) and (vectors, warps) != (2, 2):
                    found.append(Choice(tile, 512, warps, resident // warps, stages))
    return found


# ---- what is timed -----------------------------------------------------------------------------------------------


def make_call(op: str, direction: str, x: torch.Tensor) -> tuple[Callable[[], object], int]:
    """A call on x that returns what it made, and the bytes that it must move."""
    n, c, h, w = x.shape
    x = x.detach().requires_grad_(direction != "forward")
    bias, scale, shift = (torch.randn(s, device=x.device, requires_grad=True) for s in ((c,), (n, c), (n, c)))
    strength = torch.tensor(0.1, device=x.device, requires_grad=True)
    noise = torch.randn(n, 1, h, w, device=x.device)
    function, inputs = {
        "bias_act": (lambda: kernels.bias_act(x, bias), (x, bias)),
        "scaled_bias_act": (
            lambda: kernels.bias_act(x, bias, noise=noise, strength=strength, scale=scale),
            (x, bias, strength, scale),
        ),
        "modulate": (lambda: kernels.modulate(x, scale), (x, scale)),
        "instance_norm_act": (
            lambda: kernels.instance_norm_act(x, scale, shift, noise=noise, strength=strength),
            (x, scale, shift, strength),
        ),
        "instance_norm_act without noise": (
            lambda: kernels.instance_norm_act(x, scale, shift),
            (x, scale, shift),
        ),
    }[op]
    extra = noise.nbytes if op in ("scaled_bias_act", "instance_norm_act") else 0
    if direction == "forward":

        def forward():
            with torch.no_grad():
                return function()

        return forward, 2 * x.nbytes + extra
    y = function()
    g = torch.randn_like(y).requires_grad_()
    if direction == "backward":
        return lambda: torch.autograd.grad(y, inputs, g, retain_graph=True), 3 * x.nbytes + extra
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    directions = [torch.randn_like(d) for d in first]
    wanted = [t for t in (g, *inputs) if t is not bias]  # on which no second gradient depends
    moved = 3 if op == "bias_act" else 5  # direction and mask in, dg out; with products also g in and dx out
    return (
        lambda: torch.autograd.grad(first, wanted, directions, retain_graph=True, allow_unused=True),
        moved * x.nbytes + extra,
    )


def make_copy(total: int, device: torch.device, page: int, largest: int) -> Callable[[], object]:
    """A copy that reads and writes this many bytes, in equal pieces no larger than `largest`, rounded up to pages."""
    count = max(1, -(-total // 2 // largest))
    size = -(-total // 2 // count // page) * page
    pieces = torch.empty((count, size), dtype=torch.uint8, device=device).unbind()
    return lambda: [piece.clone() for piece in pieces]


def copy_seconds(total: int, device: torch.device, count: int) -> float:
    """Of a copy that reads and writes this many bytes: the fastest of a few ways, going round over `count` buffers.

    A dense copy is the driver's memcpy, and a single one is no yardstick for all sizes: see LARGEST_COPIES and PAGES.
    """
    ways = itertools.product(PAGES, LARGEST_COPIES)
    return min(seconds([make_copy(total, device, *way) for _ in range(count)]) for way in ways)


def seconds(calls: list[Callable[[], object]]) -> float:
    """Of one call, among others over other buffers, captured in a graph."""
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
    """How many of these, used in turn, are one and a half times the L2 cache: none is left there for its next turn."""
    size, cache = math.prod(shape) * dtype.itemsize, torch.cuda.get_device_properties(device).L2_cache_size
    return min(64, max(3, -(-3 * cache // (2 * size))))


def timed_run(shape: tuple[int, ...], taken: float, copy: float, moved: int) -> dict:
    """What is written down of a run: seconds that it and a copy of as many bytes have taken."""
    facts = {"microseconds": taken * 1e6, "copy_microseconds": copy * 1e6, "bytes": moved}
    return {"shape": shape, "share": copy / taken} | facts


def mean_share(runs: list[dict]) -> float:
    """Of a copy, over the shapes: their geometric mean."""
    shares = [run.get("share", 0.0) for run in runs]
    return math.prod(shares) ** (1 / len(shares))


# ---- the search --------------------------------------------------------------------------------------------------


class Bench:
    """One op and direction at one shape: buffers made once, a share of the copy for each choice."""

    def __init__(self, op: str, direction: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str):
        device = torch.device("cuda", torch.cuda.current_device())
        self.count = buffers(shape, dtype, device)
        memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        self.calls, self.shape = [], shape
        for _ in range(self.count):
            x = torch.randn(shape, device=device, dtype=dtype).contiguous(memory_format=memory)
            call, self.bytes = make_call(op, direction, x)
            self.calls.append(call)
        self.copy = copy_seconds(self.bytes, device, self.count)

    @contextmanager
    def taking(self, choice: Choice | None) -> Iterator[None]:
        """Calls take this choice, or, where it is None, what the table says."""
        tiles.tiling.cache_clear()
        try:
            with nullcontext() if choice is None else forced(choice):
                yield
        finally:
            tiles.tiling.cache_clear()

    def compile(self, choices: list[Choice]) -> None:
        """The kernels of all these choices, at once on all cores; what that cannot do, `run` does one by one."""

        def call_with_each() -> None:
            for choice in choices:
                with self.taking(choice):
                    self.calls[0]()

        compile_ahead(call_with_each)

    def run(self, choice: Choice | None) -> dict:
        try:
            with self.taking(choice):
                taken = seconds(self.calls)
        except Exception as error:  # out of shared memory or registers: no candidate for this GPU
            return {"shape": self.shape, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        return timed_run(self.shape, taken, self.copy, self.bytes)


def tune(key: Key, dtype: torch.dtype, deadline: float) -> Iterator[dict]:
    """Everything timed for this key: the table's choice first, at every shape, then candidates, best last."""
    shapes = SHAPES[key.size]
    current = choose(*key)
    first = Bench(key.op, key.direction, shapes[0], dtype, key.layout)
    runs = {current: [first.run(None)]}
    wanted = candidates(key.direction, key.size, key.itemsize)
    first.compile(wanted)
    for choice in wanted:
        if choice not in runs and time.monotonic() < deadline:
            runs[choice] = [first.run(choice)]
    best = sorted(runs, key=lambda choice: runs[choice][0].get("share", 0), reverse=True)[
        : FINALISTS[key.size]
    ]
    finalists = list(dict.fromkeys([current, *best]))
    del first
    for shape in shapes[1:]:
        bench = Bench(key.op, key.direction, shape, dtype, key.layout)
        bench.compile(finalists)
        for choice in finalists:
            runs[choice].append(bench.run(choice))
        del bench
        torch.cuda.empty_cache()
    for choice, results in runs.items():
        yield {
            "key": key._asdict(),
            "choice": choice._asdict(),
            "current": choice == current,
            "all_shapes": choice in finalists,
            "share": mean_share(results),
            "runs": results,
        }


def report(key: Key, rows: list[dict]) -> str:
    """The best choice of a key beside the table's."""
    complete = [row for row in rows if row["all_shapes"]]
    best = max(complete, key=lambda row: row["share"])
    current = next(row for row in rows if row["current"])
    lines = [f"    {tuple(key)!r:60}".replace("(", "Key(", 1) + f": {Choice(**best['choice'])!r},"]
    for name, row in (("best", best), ("now", current)):
        each = "  ".join(f"{'x'.join(map(str, r['shape']))} {r.get('share', 0):.0%}" for r in row["runs"])
        lines.append(f"        # {name}: {row['share']:.1%} of a copy; {each}")
    return "\n".join(lines)


def write(path: Path, kind: str, timed: list[dict]) -> None:
    """A result file of this kind."""
    gpu = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    path.write_text(json.dumps({"schema": 1, "kind": kind} | gpu | {"timed": timed}, indent=1))


def refused(program: str) -> bool:
    """Whether nothing can be timed here; then one line has said why."""
    why = kernels.available() or (None if torch.cuda.is_available() else "no CUDA GPU that PyTorch can use")
    if why:
        print(f"{program}: {why}", file=sys.stderr)
    return bool(why)


def keep(path: Path, kind: str, found: Iterable[tuple[str, list[dict]]]) -> None:
    """Print what is found, a text with its rows at a time, and write all rows so far: on a stream of their own."""
    timed: list[dict] = []
    with torch.cuda.stream(torch.cuda.Stream()), alternatives.off():
        for text, rows in found:
            timed += rows
            print(text, flush=True)
            write(path, kind, timed)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.tuning", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--op", choices=OPS, action="append", help="may be repeated; all of them unless given"
    )
    parser.add_argument("--direction", choices=DIRECTIONS, action="append")
    parser.add_argument("--size", choices=SHAPES, default="large")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc")
    parser.add_argument("--minutes", type=float, default=3.0, help="for all keys together (default: 3)")
    parser.add_argument("--json", type=Path, default=Path("tuning.json"))
    options = parser.parse_args(arguments)
    if refused("kernels.tuning"):
        return 2
    dtype = getattr(torch, options.dtype)
    architecture, _ = tiles.processor(torch.device("cuda", torch.cuda.current_device()))
    keys = [
        Key(op, direction, dtype.itemsize, options.layout, architecture, options.size)
        for direction in options.direction or DIRECTIONS
        for op in options.op or OPS
    ]
    start = time.monotonic()

    def found() -> Iterator[tuple[str, list[dict]]]:
        for i, key in enumerate(keys, 1):
            rows = list(tune(key, dtype, start + 60 * options.minutes * i / len(keys)))
            yield report(key, rows), rows

    keep(options.json, "tuning", found())
    return 0


if __name__ == "__main__":
    sys.exit(main())
