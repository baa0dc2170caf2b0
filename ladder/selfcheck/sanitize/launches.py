"""The two programs that a GPU runs for `make sanitize`: `launch`, what the tools watch, and `prepare` before it.

`prepare` compiles everything outside of the tools, on all cores: under them it is one core's work, and slower.
Some shapes divide tiles, some do not.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Collection
from typing import Any, TypedDict

from ladder.base.errors import one_line
from ladder.studies.kernelbench.cases.small_calls import CUDA, NAMES, calls, differentiate_twice

SHAPES = ((2, 5, 3, 7), (2, 64, 16, 16), (2, 32, 40, 40))
LAYOUTS, DTYPES = ("contiguous_format", "channels_last"), ("float32", "bfloat16")
SETTINGS = tuple(itertools.product(SHAPES, LAYOUTS, DTYPES))
LAUNCHED = "launched: "  # how the program under the sanitizer says which kernels it has run
BEGAN = "began: "  # ... and what it is about to do


def launch(device: str, names: Collection[str], settings: Collection[tuple] = SETTINGS) -> list[str]:
    """Run these calls forward, backward and backward again on ``device``; return the names of the launched kernels."""
    import torch

    from ladder.receipts.watch import launches

    if unknown := set(names) - set(NAMES):
        raise ValueError(f"no call has this name: {', '.join(sorted(unknown))}")
    with launches() as seen:
        for setting in settings:
            for call in calls(tensor(device, *setting)):
                if call.name in names:
                    print(f"{BEGAN}{call.name}, {described(*setting)}", flush=True)
                    differentiate_twice(call.function, call.inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    return sorted(seen)


def tensor(device: str, shape: tuple[int, ...], layout: str, dtype: str) -> Any:
    import torch

    x = torch.randn(shape, device=device, dtype=getattr(torch, dtype))
    return x.contiguous(memory_format=getattr(torch, layout))


def described(shape: tuple[int, ...], layout: str, dtype: str) -> str:
    return f"{'x'.join(map(str, shape))} {'NHWC' if layout == 'channels_last' else 'NCHW'} {dtype}"


class Compiled(TypedDict):
    """The outcome of compiling Triton's kernels."""

    missing: int
    compiled: int
    seconds: float
    problem: str | None


class Cpp(TypedDict, total=False):
    """The outcome of building CUDA C++."""

    cuda: str | None  # its problem
    left_out: dict[str, str]  # call -> why it cannot be launched here


class Prepared(Cpp, total=False):
    """The outcome of compiling everything. If the program failed, only its problem is there."""

    problem: str
    compiled: Compiled
    seconds: dict[str, float]  # call -> about how long it takes, good only to deal the calls out by


def prepare(device: str) -> Prepared:
    """Compile what `launch` will need: Triton's kernels on all cores, CUDA C++ beside them."""
    from kernels.precompile import compile_ahead

    taken: dict[str, list[float]] = {}
    found: Cpp = {"cuda": None, "left_out": {}}
    building = threading.Thread(target=build, args=(found,))
    building.start()

    def run() -> None:
        for setting in SETTINGS:
            for call in calls(tensor(device, *setting)):
                begin = time.perf_counter()
                if call.name not in CUDA:  # whose second derivatives are Triton's for `instance_norm_act`
                    with contextlib.suppress(Exception):  # it comes again under the tools
                        differentiate_twice(call.function, call.inputs)
                    taken.setdefault(call.name, []).append(time.perf_counter() - begin)

    report = compile_ahead(run)
    building.join()
    middle = {name: statistics.median(each) * len(each) for name, each in taken.items()}
    about: Compiled = {
        "missing": report.missing,
        "compiled": report.compiled,
        "seconds": report.seconds,
        "problem": report.problem and one_line(report.problem),
    }
    return {**found, "compiled": about, "seconds": middle}


def build(found: Cpp) -> None:
    """Build CUDA C++ once; put the reason into `found` where that fails."""
    try:
        from kernels import cuda
        from kernels.cuda.build import Flags, library
    except ImportError:  # code of old commits
        found["left_out"] = dict.fromkeys(CUDA, "this code has no CUDA C++")
        return
    if (why := cuda.available()) is not None:
        found["left_out"] = dict.fromkeys(CUDA, one_line(why))
        return
    try:
        library(Flags(), 0)
    except Exception as error:  # its calls raise it again
        found["cuda"] = one_line(str(error))
