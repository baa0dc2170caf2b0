"""Find the table of `kernels/common/sums.py` for the GPU at hand: `python -m kernels.tuning.sums`.

A launch that adds up rows of partial sums takes a few microseconds, whatever it adds. Each way is timed as a graph of
many calls in a row, at the numbers of rows and channels that StyleGAN2's layers leave. The program prints the best rows
beside those in force, ready to be pasted, and writes everything timed as JSON. It takes half a minute.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from ..common.sums import Blocks, add_up, blocks
from ..precompile import compile_ahead
from .timing import keep, mean_us, refused, seconds

CALLS = 256  # calls in a graph; one alone is shorter than a clock can tell
# Segments (samples, or one for sums over all of them), rows of each and channels, by the most rows of an entry.
# Gradients at 256x256 to 32x32 leave these on 132 multiprocessors.
SHAPES: dict[float, list[tuple[int, int, int]]] = {
    64: [(8, 64, 64), (8, 64, 128), (8, 33, 128)],
    128: [(8, 66, 256), (8, 66, 512), (16, 66, 128)],
    math.inf: [(1, 264, 64), (1, 264, 128), (1, 528, 256), (1, 528, 512)],
}


def candidates() -> list[Blocks]:
    """Return ways with one to 32 numbers for each thread."""
    found = [Blocks(*each) for each in itertools.product((32, 64, 128, 256), (8, 16, 32), (1, 2, 4, 8))]
    return [how for how in found if 1 <= how.rows * how.columns / (32 * how.warps) <= 32]


def make_call(shape: tuple[int, int, int]) -> Callable[[Blocks], Callable[[], None]]:
    """Return a function from a way to a call. All calls add up the same rows."""
    segments, rows, channels = shape
    partials = torch.randn(segments * rows * channels, device="cuda")
    out = torch.empty(segments, channels, device="cuda")
    return lambda how: lambda: add_up((partials, None, None), (out, None, None), (rows, 0, 0), channels, how)


def tune(most: float) -> list[dict]:
    """Return the rows timed for the entry of this many rows, the entry in force first."""
    shapes = SHAPES[most]
    current = blocks(shapes[0][1])
    calls = [make_call(shape) for shape in shapes]
    trials = list(dict.fromkeys([current, *candidates()]))
    compile_ahead(lambda: [call(how)() for how in trials for call in calls])
    return [
        {
            "most": None if math.isinf(most) else most,
            "config": how._asdict(),
            "current": how == current,
            "runs": [
                {"shape": shape, "microseconds": 1e6 * seconds([call(how)] * CALLS)}
                for shape, call in zip(shapes, calls, strict=True)
            ],
        }
        for how in trials
    ]


def report(rows: list[dict]) -> str:
    """Return the best entry beside the entry in force, as text."""
    best = min(rows, key=lambda row: mean_us(row["runs"]))
    current = next(row for row in rows if row["current"])
    lines = [f"    ({best['most'] or 'math.inf'}, {Blocks(**best['config'])!r}),"]
    for label, row in (("best", best), ("now", current)):
        each = "  ".join(f"{'x'.join(map(str, r['shape']))} {r['microseconds']:.2f}" for r in row["runs"])
        lines.append(f"    # {label}: {mean_us(row['runs']):.2f} us; {each}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.tuning.sums", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--json", type=Path, default=Path("sums_tuning.json"))
    options = parser.parse_args(arguments)
    if refused("kernels.tuning.sums"):
        return 2
    found = (tune(most) for most in SHAPES)
    keep(options.json, "sums tuning", ((report(rows), rows) for rows in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
