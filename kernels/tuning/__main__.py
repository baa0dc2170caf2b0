"""Find the rows of the table in `kernels/choices.py` for the GPU at hand: `python -m kernels.tuning [--op modulate]`.

Candidates are timed at the workloads' shapes, each beside a copy of as many bytes (`timing.py` says how). All
candidates run at the first shape, the best few at all shapes. The program prints the best rows beside those in force,
ready to be pasted, and writes everything that was timed as JSON. It needs a few minutes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from ..choices import DIRECTIONS, OPS, Choice, Key, choose, forced
from ..common import tiles
from ..precompile import compile_ahead
from .calls import make_call
from .timing import Bench, keep, mean_share, refused, search

# The shapes that targets are stated for, and the low resolutions of the same generator.
SHAPES = {
    "large": [(8, 64, 256, 256), (8, 128, 128, 128), (32, 64, 256, 256), (32, 128, 128, 128)],
    "medium": [(8, 128, 128, 128), (8, 64, 256, 256), (8, 256, 64, 64), (8, 512, 32, 32)],
    "small": [(8, 512, 16, 16), (8, 512, 8, 8), (8, 512, 4, 4)],
}
# The number of candidates that go on from the first shape to the others. Medium shapes differ too much for the first to
# tell.
FINALISTS = {"large": 4, "medium": 1000, "small": 4}


def candidates(direction: str, size: str, itemsize: int) -> list[Choice]:
    """Return the choices to try: one to four 16-byte loads for each thread, 16 to 64 warps on a multiprocessor."""
    unit, found = 16 // itemsize * 32, []  # elements that a warp loads at once
    if size == "small":
        for tile, warps in ((16, 4), (8, 4), (16, 8), (32, 8)):
            found += [Choice(tile * unit // 2, columns, warps, 1) for columns in (16, 32, 64)]
        return [*found, Choice(4 * unit, 512, 4, 0 if direction == "forward" else 8)]
    if size == "medium" and direction != "forward":
        # Narrow columns: as many programs, each further down, so that a sample has fewer rows of sums to add up.
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


# ---- the search --------------------------------------------------------------------------------------------------


@contextmanager
def taking(choice: Choice | None) -> Iterator[None]:
    """Make launches take this choice while entered, or, where it is None, the table's."""
    tiles.tiling.cache_clear()
    try:
        with nullcontext() if choice is None else forced(choice):
            yield
    finally:
        tiles.tiling.cache_clear()


def tune(key: Key, dtype: torch.dtype, deadline: float) -> Iterator[dict]:
    """Yield everything timed for this key: the table's choice first."""
    shapes, current = SHAPES[key.size], choose(*key)
    memory = torch.channels_last if key.layout == "nhwc" else torch.contiguous_format
    trials = list(dict.fromkeys([current, *candidates(key.direction, key.size, key.itemsize)]))

    def make(shape: tuple[int, ...]) -> tuple[Callable[[], object], int]:
        x = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=memory)
        return make_call(key.op, key.direction, x)

    def compile_for(shapes: Sequence[tuple[int, ...]], choices: Sequence[Choice]) -> None:
        def call_with_each() -> None:
            for shape in shapes:
                call, _ = make(shape)
                for choice in choices:
                    with taking(choice):
                        call()

        compile_ahead(call_with_each)

    def bench_of(shape: tuple[int, ...]) -> Bench:
        return Bench(lambda: make(shape), shape, dtype, taking)

    runs = search(trials, shapes, FINALISTS[key.size], deadline, bench_of, compile_for)
    for choice, results in runs.items():
        yield {
            "key": key._asdict(),
            "choice": choice._asdict(),
            "current": choice == current,
            "all_shapes": len(results) == len(shapes),
            "share": mean_share(results),
            "runs": results,
        }


def report(key: Key, rows: list[dict]) -> str:
    """Return the best choice of a key beside the table's, as text."""
    complete = [row for row in rows if row["all_shapes"]]
    best = max(complete, key=lambda row: row["share"])
    current = next(row for row in rows if row["current"])
    lines = [f"    {tuple(key)!r:60}".replace("(", "Key(", 1) + f": {Choice(**best['choice'])!r},"]
    for name, row in (("best", best), ("now", current)):
        each = "  ".join(f"{'x'.join(map(str, r['shape']))} {r.get('share', 0):.0%}" for r in row["runs"])
        lines.append(f"        # {name}: {row['share']:.1%} of a copy; {each}")
    return "\n".join(lines)


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
