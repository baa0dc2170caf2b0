"""Find rows for the table of `instance_norm_act_planes.py` on the GPU at hand: `python -m kernels.tuning.planes`.

Configurations are timed beside a copy of as many bytes (`timing.py` says how). The shape is that of the claims, forward
and backward, in BF16 and FP32. The program prints the best rows beside those in force, ready to be pasted, and writes
everything timed as JSON. It takes half a minute, a third of it for compiling, and leaves out the rest.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from ..norm import instance_norm_act_planes as planes
from ..norm.instance_norm_act_planes import Config
from ..precompile import compile_ahead
from .calls import make_call
from .timing import Bench, keep, refused, search

# the shape to time, and a smaller shape to compile for with the same kernels
SHAPE, FEW = (8, 512, 256, 256), (2, 512, 256, 256)
DIRECTIONS, DTYPES = ("forward", "backward"), ("bfloat16", "float32")
SHARED = 227 << 10  # bytes of a multiprocessor's shared memory, an H200's


class Key(NamedTuple):
    direction: str
    dtype: str
    noise: bool = False

    @property
    def op(self) -> str:
        return "instance_norm_act" if self.noise else "instance_norm_act without noise"

    @property
    def tensors(self) -> int:
        """Return the number of tensors that are read twice."""
        return 1 if self.direction == "forward" else 2

    @property
    def pixel_bytes(self) -> int:
        """Return the bytes that are loaded for each pixel of a plane."""
        return getattr(torch, self.dtype).itemsize * self.tensors + 4 * self.noise


def candidates(key: Key) -> list[Config]:
    """Return configurations, the most promising first: two programs a multiprocessor to half a program.

    They fetch ahead, or mark their loads, or both. Each reads a plane again from its end. One of each size reads from
    the beginning, too. A second read that is not fetched ahead carries a mark that the cache may drop it. A first read
    that is not fetched ahead carries a mark to keep it. A first read is marked only if the second is marked, too:
    nothing else would take the mark away.
    """
    marked = ((3, 3, True, True), (3, 1, True, True), (1, 1, True, True))
    each, deep = (*marked, (3, 3, False, True), (3, 3, True, False)), ((5, 5, True, True),)
    ways = (
        *((1, 8192, 16, each), (1, 4096, 8, each), (2, 4096, 8, each)),
        *((1, 8192, 32, each), (1, 4096, 16, each), (2, 4096, 16, each)),
        *((0.75, 8192, 16, marked), (0.5, 16384, 32, marked), (1, 16384, 32, marked)),
        *((1, 8192, 16, deep), (1, 4096, 8, deep)),
    )
    found = [Config(*size, *how) for *size, hows in ways for how in hows]
    return [how for how in found if needed(how, key) <= SHARED]


def needed(how: Config, key: Key) -> float:
    """Return the bytes of shared memory that the programs of a multiprocessor take together."""
    return max(1, how.per_sm) * (max(how.stages, how.again) - 1) * how.block * key.pixel_bytes


def bench_of(key: Key, shape: tuple[int, ...] = SHAPE) -> Bench:
    """Make the bench of one direction and dtype. Its configuration None stands for the kernels by tiles."""
    dtype = getattr(torch, key.dtype)

    def make() -> tuple[Callable[[], object], int]:
        return make_call(key.op, key.direction, torch.randn(shape, device="cuda", dtype=dtype))

    return Bench(make, shape, dtype, planes.forced)


def compile_all(wanted: dict[Key, list[Config | None]]) -> None:
    """Compile the kernels of all configurations at once, on all cores."""

    def call_with_each() -> None:
        for key, trials in wanted.items():
            x = torch.zeros(FEW, device="cuda", dtype=getattr(torch, key.dtype))
            call, _ = make_call(key.op, key.direction, x)
            for how in trials:
                with planes.forced(how):
                    call()

    compile_ahead(call_with_each)


def in_force(key: Key) -> tuple[float, Config | None]:
    """Return the share of the cache that decides, and the table's configuration for it."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    x = torch.empty(1, dtype=getattr(torch, key.dtype), device=device).expand(SHAPE)
    return planes.cache_share(x, key.tensors), planes.config(x, key.tensors)


def tune(keys: list[Key], deadline: float) -> Iterator[list[dict]]:
    """Yield the rows of one key after another, the configuration in force first."""
    current = {key: in_force(key) for key in keys}
    wanted = {key: list(dict.fromkeys([current[key][1], *candidates(key)])) for key in keys}
    compile_all(wanted)
    start = time.monotonic()
    for i, (key, trials) in enumerate(wanted.items(), 1):
        until = start + i / len(keys) * (deadline - start)
        runs = search(trials, [SHAPE], 0, until, functools.partial(bench_of, key))
        yield [
            key._asdict()
            | {
                "cache_share": current[key][0],
                "config": how and how._asdict(),
                "current": how == trials[0],
                "candidates": len(trials),
                "runs": found,
            }
            for how, found in runs.items()
        ]


def share(row: dict) -> float:
    return row["runs"][0].get("share", 0.0)


def report(rows: list[dict]) -> str:
    """Return the best row of a key beside the row in force, as text."""
    best, current = max(rows, key=share), next(row for row in rows if row["current"])
    most = math.ceil(100 * best["cache_share"]) / 100  # the planes timed are still below
    kind = " ".join([best["dtype"], best["direction"], *["with noise"] * best["noise"]])
    lines = [f"    ({most}, {best['config'] and Config(**best['config'])!r}),  # {kind}"]
    for label, row in (("best", best), ("now", current)):
        run = row["runs"][0]
        said = run.get("error") or f"{share(row):.1%} of a copy, {run['microseconds']:.0f} us"
        lines.append(f"    # {label}: {said}")
    lines.append(f"    # {len(rows)} of {best['candidates']} timed")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.tuning.planes", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--direction", choices=DIRECTIONS, action="append", help="may be repeated; both unless given"
    )
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="may be repeated; both unless given")
    parser.add_argument("--noise", action="store_true", help="with noise, as the layers of a network have it")
    parser.add_argument("--seconds", type=float, default=22.0, help="for all of it, about (default: 22)")
    parser.add_argument("--json", type=Path, default=Path("planes_tuning.json"))
    options = parser.parse_args(arguments)
    if refused("kernels.tuning.planes"):
        return 2
    deadline = time.monotonic() + options.seconds
    keys = [
        Key(direction, dtype, options.noise)
        for dtype in options.dtype or DTYPES
        for direction in options.direction or DIRECTIONS
    ]
    found = tune(keys, deadline)
    keep(options.json, "planes tuning", ((report(rows), rows) for rows in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
