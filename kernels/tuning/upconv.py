"""Find the table of `kernels/linear/upconv2d.py` for an H100 or H200: `python -m kernels.tuning.upconv`.

Each configuration is timed at the shapes of a training step at 256x256 (`timing.py` says how), and so is cuDNN. The
program prints the best rows beside those in force, ready to be pasted, and writes everything timed as JSON. It takes a
minute or two. The times of cuDNN tell whether a step should use the op at all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from kernels.linear.upconv2d import Config, _forced, config, forward
from kernels.precompile import compile_ahead
from kernels.tuning.timing import buffers, keep, mean_us, refused, seconds

Shape = tuple[int, int, int, int]  # N, I, O and the rows (and columns) of x
# Batch 8 and, where D judges fakes and reals together, 16.
SHAPES: dict[str, list[Shape]] = {
    "narrow": [(8, 128, 64, 128), (16, 128, 64, 128)],
    "wide": [(8, 256, 128, 64), (16, 256, 128, 64), (8, 512, 256, 32), (16, 512, 256, 32)],
    "small": [(8, 512, 512, 16), (16, 512, 512, 8)],
}


def candidates() -> list[Config]:
    """Return the tiles to try. All compile for sm_90 without spills; most leave room for two on a multiprocessor."""
    return [
        Config(256, 64, 64, True, 8, 2),
        Config(128, 64, 64, True, 4, 2),
        Config(128, 64, 32, True, 4, 3),
        Config(128, 64, 64, False, 4, 3),
        Config(256, 64, 64, False, 8, 2),
        Config(256, 64, 64, False, 8, 4),
        Config(256, 64, 32, False, 4, 3),
        Config(128, 128, 64, False, 8, 3),
        Config(128, 128, 64, True, 8, 2),
        Config(256, 128, 64, False, 8, 3),
        Config(256, 128, 64, False, 8, 4),
        Config(128, 256, 64, False, 8, 4),
        Config(64, 128, 64, False, 4, 4),
        Config(64, 64, 64, False, 4, 4),
        Config(64, 256, 64, False, 4, 2),
    ]


def flops(shape: Shape) -> int:
    """Return the FLOPs of a call: nine products for each pixel of x."""
    n, inputs, outputs, pixels = shape
    return 2 * 9 * n * pixels**2 * inputs * outputs


@contextmanager
def taking(how: Config | None) -> Iterator[None]:
    """Make launches take this configuration while entered, or the table's (None)."""
    _forced[:] = [] if how is None else [how]
    try:
        yield
    finally:
        _forced.clear()


def make_calls(shape: Shape) -> list[tuple[Callable[[], object], Callable[[], object]]]:
    """Return pairs of calls, ours and cuDNN's, on buffers that no L2 cache holds together."""
    n, inputs, outputs, pixels = shape

    def new(*sizes: int) -> torch.Tensor:
        made = torch.randn(sizes, device="cuda", dtype=torch.bfloat16)
        return made.contiguous(memory_format=torch.channels_last)

    device, sizes = torch.device("cuda", torch.cuda.current_device()), (n, inputs, pixels, pixels)
    weight = new(inputs, outputs, 3, 3)
    images = [new(*sizes) for _ in range(buffers(sizes, torch.bfloat16, device))]
    return [
        (lambda x=x: forward(x, weight), lambda x=x: F.conv_transpose2d(x, weight, stride=2)) for x in images
    ]


def timed(
    how: Config | None, shape: Shape, calls: list[Callable[[], object]], cudnn: float
) -> dict[str, Any]:
    """Return the row of a run: its times, or the error of a configuration that cannot run."""
    try:
        with taking(how):
            taken = seconds(calls)
    except Exception as error:  # out of shared memory or registers: no candidate for this GPU
        return {"shape": shape, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "shape": shape,
        "microseconds": 1e6 * taken,
        "cudnn_microseconds": 1e6 * cudnn,
        "tflops": flops(shape) / taken / 1e12,
    }


def tune(size: str) -> list[dict[str, Any]]:
    """Return the rows timed for the entry of this size, the entry in force first."""
    capability = torch.cuda.get_device_capability()
    n, _, outputs, pixels = SHAPES[size][0]
    current = config(capability, n * (pixels + 1) ** 2, outputs)
    rows = {how: [] for how in dict.fromkeys([current, *candidates()])}
    for shape in SHAPES[size]:
        pairs = make_calls(shape)
        ours, theirs = [list(each) for each in zip(*pairs, strict=True)]

        def call_with_each(first: Callable[[], object] = ours[0]) -> None:
            for how in rows:
                with taking(how):
                    first()

        compile_ahead(call_with_each)
        torch.backends.cudnn.benchmark = True  # as the step has it
        cudnn = seconds(theirs)
        for how, runs in rows.items():
            runs.append(timed(how, shape, ours, cudnn))
        del pairs, ours, theirs, call_with_each
        torch.cuda.empty_cache()
    return [
        {"size": size, "config": how._asdict(), "current": how == current, "runs": runs}
        for how, runs in rows.items()
    ]


def report(rows: list[dict[str, Any]]) -> str:
    """Return the best entry beside the entry in force, as text."""
    best = min(rows, key=lambda row: mean_us(row["runs"]))
    current = next(row for row in rows if row["current"])
    lines = [f'    ((9, 0), "{best["size"]}"): {Config(**best["config"])!r},']
    for label, row in (("best", best), ("now", current)):
        each = "; ".join(
            f"{'x'.join(map(str, run['shape']))} {run['microseconds']:.1f} us, {run['tflops']:.0f} TFLOP/s, "
            f"cuDNN {run['cudnn_microseconds']:.1f}"
            if "tflops" in run
            else f"{'x'.join(map(str, run['shape']))} {run['error']}"
            for run in row["runs"]
        )
        lines.append(f"    # {label}: {mean_us(row['runs']):.1f} us; {each}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.tuning.upconv", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--json", type=Path, default=Path("upconv_tuning.json"))
    options = parser.parse_args(arguments)
    if refused("kernels.tuning.upconv"):
        return 2
    found = (tune(size) for size in SHAPES)
    keep(options.json, "upconv tuning", ((report(rows), rows) for rows in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
