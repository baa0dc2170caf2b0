"""Find rows for the tables of `upfirdn2d` and `filtered_act` on the GPU at hand: `python -m kernels.tuning.filters`.

Configurations are timed beside a copy of as many bytes (`timing.py` says how). All of them run at the first shape, the
best few at every shape of the workloads. Compiling takes longest, so many processes do it beforehand. The program
prints the best rows beside those in force, ready to be pasted, and writes everything timed as JSON.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from .. import choices, upfirdn2d
from ..precompile import compile_ahead
from ..upfirdn import filtered_act as ops
from ..upfirdn import filtered_act_launch as fused
from ..upfirdn.upfirdn2d import Config
from .timing import Bench, keep, mean_share, refused, search

# The module; the package's attribute of this name is the function
plain = sys.modules[Config.__module__]

TAPS = (0.125, 0.375, 0.375, 0.125)
PAIR = "upfirdn2d and back"
# By the table's sizes; only `upfirdn2d` tells them apart.
SHAPES = {
    "any": [(n, c, r, r) for n in (8, 32) for c, r in ((64, 256), (128, 128), (256, 64), (512, 32))],
    "medium": [(8, 128, 128, 128), (8, 64, 256, 256), (8, 256, 64, 64), (4, 128, 128, 128)],
}
MODES = {  # uses of upfirdn2d: filter, behind a transposed convolution and back; skip image up, residual branch down
    "upfirdn2d": {"padding": 1},
    PAIR: {"padding": 1},
    "upfirdn2d up": {"up": 2, "padding": (2, 1)},
    "upfirdn2d down": {"down": 2, "padding": 1},
}
NAMES = [*MODES, *fused.KERNELS]
USUAL = {  # the usual kernels; medium maps fit one of the two ways, so both count
    "any": [name for name in NAMES if name != PAIR],
    "medium": [name for name in MODES if name != "upfirdn2d"],
}
FINALISTS = {"any": 3, "medium": 8}

_now: list[Config | fused.Strip] = []  # the configuration that launches take


@contextmanager
def forced():
    """Make launches take `_now[0]` while entered. Covers are not remembered."""
    kept = [(module, key, getattr(module, key)) for module in (plain, fused) for key in ("config", "_cover")]
    for module, key, value in kept:
        setattr(module, key, value.__wrapped__ if key == "_cover" else lambda *_, **__: _now[0])
    try:
        yield
    finally:
        for module, key, value in kept:
            setattr(module, key, value)


def medium_candidates(name: str) -> list[Config]:
    """Return configurations for channels_last maps of a few waves of programs.

    Strips and tiles cover 128 pixels and 129 alike. They are small, so that a last wave is a small part of all.
    """
    up, down = (MODES[name].get(key, 1) for key in ("up", "down"))
    if up == down:
        tiles = [
            (64, 0.5, 4, (3, 4)),
            (128, 0.5, 4, (3, 4, 5)),
            (64, 0.5, 2, (3, 4, 5)),
            (128, 0.5, 8, (3, 4)),
            (64, 0.5, 1, (3, 4)),
            (64, 1, 2, (2, 3)),
        ]
        rows, ahead, registers = (8, 10, 13), (1,), (96, 128)
    else:
        ways = ((64, 1, 4), (64, 0.5, 4), (64, 0.5, 2), (128, 0.5, 4), (64, 1, 2), (64, 0.5, 8), (32, 0.5, 4))
        tiles = [(*way, (up, 2 * up)) for way in ways]
        rows, ahead, registers = (4, 8, 16), (0, 1), (None, 80)
    return [
        Config(high, wide, early, block_c, width, warps, most)
        for block_c, width, warps, many in tiles
        for wide, high, early, most in itertools.product(many, rows, ahead, registers)
    ]


def candidates(name: str, nhwc: bool, short: bool = True) -> list[Config | fused.Strip]:
    """Return configurations: wide and narrow threads, strips short and long, loads early or late, registers bounded or
    not.

    short: whether the dtype has 16 bits, which tensor cores take as they are.
    """
    widths = (0.5, 1) if nhwc else (2, 4)
    walks = [
        Config(rows, cols, ahead, 64, width, warps, registers)
        for rows, cols, ahead, width, warps, registers in itertools.product(
            (8, 16), (2, 4), (0, 1), widths, (4,), (128, 168)
        )
        if not (nhwc and cols * width > 2)  # more than a thread's registers hold
    ]
    walks += [
        Config(8, 2, ahead, 64, widths[0], 4, registers) for ahead in (0, 1, 2) for registers in (80, 96)
    ]
    walks += [Config(8, 2, 0, 64, widths[0], 8, 96), Config(4, 2, 1, 64, widths[0], 4, 80)]
    if name in MODES or not (nhwc and short):
        return walks
    strips = [
        fused.Strip(rows, width, block_c, warps, registers)
        for (width, block_c, warps, registers), rows in itertools.product(
            (
                (32, 64, 4, None),
                (32, 64, 4, 128),
                (32, 64, 4, 96),
                (32, 64, 8, None),
                (32, 64, 8, 64),
                (32, 32, 2, None),
                (32, 32, 2, 128),
                (32, 32, 4, None),
                (64, 32, 4, None),
            ),
            (16, 32, 64),
        )
    ]
    lean = [  # few registers for each thread: many programs that wait for memory at once
        Config(rows, cols, ahead, 64, 0.5, 4, registers)
        for rows, cols, ahead, registers in itertools.product((4, 8), (1, 2), (0, 1), (80, 96, 128))
    ]
    return [*strips, *lean]


def in_force(
    name: str, nhwc: bool, capability: tuple[int, int], short: bool = True, size: str = "any"
) -> Config | fused.Strip:
    how = MODES.get(name)
    if how is None:
        return fused.config(name, nhwc, capability, strips=nhwc and short)
    elements = choices.MEDIUM - (size == "medium")
    return plain.config(nhwc, how.get("up", 1), how.get("down", 1), capability, elements)


def make_call(name: str, shape: tuple[int, ...], dtype: torch.dtype, nhwc: bool) -> tuple[Callable, int]:
    """Return a call that launches this kernel and the sums behind it, and the bytes that it must move."""
    n, c, h, w = shape
    layout = torch.channels_last if nhwc else torch.contiguous_format

    def image(high: int, wide: int) -> torch.Tensor:
        return torch.randn((n, c, high, wide), device="cuda", dtype=dtype).contiguous(memory_format=layout)

    if name in MODES:
        how = MODES[name]
        more = int(how == {"padding": 1})  # the size that a transposed convolution leaves
        x = image(h + more, w + more)
        y = image(h, w) if name == PAIR else None

        def resample():
            with torch.no_grad():
                forth = upfirdn2d(x, TAPS, **how)
                return forth if y is None else (forth, upfirdn2d(y, TAPS, padding=2))

        return resample, plain.bytes_moved(x, TAPS, **how) * (1 if y is None else 2)
    down = name.startswith("act_filter")
    x, padding = (image(h, w), 2) if down else (image(h + 1, w + 1), 1)
    act = ops._check(x, None, TAPS, padding, 1.0, 0.2, 2**0.5).of(x)
    bias, scale, style, strength = (torch.ones(s, device="cuda") for s in ((c,), (n, c), (n, c), ()))
    y = image(*act.filter.out)
    noise = None if down else torch.randn((n, 1, h, w), device="cuda")
    moved = ops.bytes_moved(x, TAPS, padding=padding, noise=noise, backward="grad" in name)
    out = torch.empty_like(y)
    calls = {
        "act_filter": lambda: fused.launch(name, act, act.filter, x, (x, out, bias)),
        "act_filter_grad": lambda: fused.act_filter_backward(y, x, bias, act, (True, True)),
        "act_filter_grad_grad": lambda: fused.launch(name, act, act.filter, x, (x, x, out, bias, None)),
        "filter_act": lambda: fused.launch(
            name, act, act.filter, x, (x, out, bias, noise, strength, scale), noise
        ),
        "filter_act_grad": lambda: fused.filter_act_backward(
            out, y, bias, noise, strength, scale, act, (True, True, True, True)
        ),
        "filter_act_modulate": lambda: fused.launch(
            name,
            act,
            act.filter,
            x,
            (x, out, bias, noise, strength, scale, style),
            noise,
            LEAST=fused.least(dtype),
        ),
        "filter_act_modulate_grad": lambda: fused.filter_act_modulate_backward(
            out, y, bias, noise, strength, scale, style, act, (True,) * 5
        ),
    }
    return calls[name], moved


def tried(call: Callable, config: Config | fused.Strip) -> str | None:
    """Compile and run once. Return why that fails, in one line, or None."""
    _now[:] = [config]
    try:
        call()
    except Exception as error:  # out of registers or shared memory: no candidate for this GPU
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


@contextmanager
def taking(config: Config | fused.Strip) -> Iterator[None]:
    """Make launches take this configuration, inside of `forced`."""
    _now[:] = [config]
    yield


def bench_of(name: str, dtype: torch.dtype, nhwc: bool, shape: tuple[int, ...]) -> Bench:
    """Make the bench of one kernel at one shape."""
    return Bench(lambda: make_call(name, shape, dtype, nhwc), shape, dtype, taking)


def tune(
    names: list[str], dtype: torch.dtype, nhwc: bool, timing_s: float, processes: int, size: str = "any"
) -> Iterator[list[dict]]:
    """Yield the rows of one kernel after another, the configuration in force first. Compiling is not in `timing_s`."""
    capability, short = torch.cuda.get_device_capability(), dtype.itemsize == 2
    current = {name: in_force(name, nhwc, capability, short, size) for name in names}
    wanted = {
        name: medium_candidates(name) if size == "medium" else candidates(name, nhwc, short) for name in names
    }
    trials = {name: list(dict.fromkeys([current[name], *wanted[name]])) for name in names}

    def compile_for(
        names: Sequence[str], shapes: Sequence[tuple[int, ...]], configs: Mapping[str, Sequence]
    ) -> None:
        def run() -> None:
            for name, shape in itertools.product(names, shapes):
                call, _ = make_call(name, shape, dtype, nhwc)
                for config in configs[name]:
                    tried(call, config)

        compile_ahead(run, processes=processes)
        torch.cuda.synchronize()

    with forced():
        # All kernels of the first shape at once: compiling takes longer than timing.
        compile_for(names, SHAPES[size][:1], trials)
        for name in names:
            until = time.monotonic() + timing_s / len(names)
            bench = functools.partial(bench_of, name, dtype, nhwc)

            # A number of channels is a constant of the kernels, so the other shapes are compiled for as well.
            def compile_others(
                shapes: Sequence[tuple[int, ...]], configs: Sequence, name: str = name
            ) -> None:
                if shapes != SHAPES[size][:1]:
                    compile_for([name], shapes, {name: configs})

            runs = search(trials[name], SHAPES[size], FINALISTS[size], until, bench, compile_others)
            yield [
                {
                    "kernel": name if size == "any" else f"{name} {size}",
                    "nhwc": nhwc,
                    "config": config._asdict(),
                    "current": config == current[name],
                    "runs": found,
                }
                for config, found in runs.items()
            ]


def share(row: dict) -> float:
    return mean_share(row["runs"])


def report(rows: list[dict]) -> str:
    """Return the best row of a kernel that ran at every shape beside the row in force, as text."""
    most = max(len(row["runs"]) for row in rows)
    best = max((row for row in rows if len(row["runs"]) == most), key=share)
    name, nhwc, lines = best["kernel"], best["nhwc"], []
    medium = name.endswith(" medium")
    how = MODES.get(name.removesuffix(" medium"))
    strip = "cols" not in best["config"]
    key = (name, nhwc) if how is None else (nhwc, how.get("up", 1), how.get("down", 1))
    key = ("medium", *key) if medium else key
    kind = fused.Strip if strip else Config
    lines.append(f"    {(name if strip else key)!r}: {kind(**best['config'])!r},")
    for label, row in (("best", best), ("now", next(row for row in rows if row["current"]))):
        each = "  ".join(
            f"{'x'.join(map(str, run['shape']))} {run.get('share', 0):.0%} {run.get('microseconds', 0):.0f} us"
            for run in row["runs"]
        )
        lines.append(f"        # {label}: {share(row):.1%} of a copy; {each}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.tuning.filters", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--kernel", choices=NAMES, action="append", help="may be repeated (default: what --size asks for)"
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc")
    parser.add_argument(
        "--size", choices=SHAPES, default="any", help="medium: of upfirdn2d, channels_last (default: any)"
    )
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="of timing; compiling comes before (default: 3)"
    )
    parser.add_argument("--processes", type=int, default=12, help="that compile (default: 12)")
    parser.add_argument("--json", type=Path, default=Path("filter_tuning.json"))
    options = parser.parse_args(arguments)
    nhwc, size = options.layout == "nhwc", options.size
    names = options.kernel or USUAL[size]
    if size == "medium" and not (nhwc and set(names) <= set(MODES)):
        parser.error("--size medium: the table has such rows of upfirdn2d in channels_last memory alone")
    if refused("kernels.tuning.filters"):
        return 2
    dtype = getattr(torch, options.dtype)
    found = tune(names, dtype, nhwc, 60 * options.minutes, options.processes, size)
    keep(options.json, "filter tuning", ((report(rows), rows) for rows in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
