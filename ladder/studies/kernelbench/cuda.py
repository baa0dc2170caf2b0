"""The CUDA C++ of `kernels.cuda` as contenders: functions of one activation each.

`Missing` says in one line why a function is missing: no GPU, no CUDA compiler, or a `kernels` without CUDA C++. A
failed build raises it too. `kernels.cuda.instance_norm_act` itself would go on in Triton, and its time would pass for
that of CUDA C++.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ladder.base.errors import Missing, describe
from ladder.base.paths import ROOT
from ladder.base.stopping import held_back, surely

BUILDING_S = 240
ENDING_S = 5.0  # before a build that is told to end is killed
SLOPE = 0.2
STEPS = 256  # steps of arithmetic in each side of the branch
Function = Callable[[Tensor], Tensor]
Flags = Mapping[str, int | bool]  # fields of `kernels.cuda.Flags`


@functools.cache
def package(**flags: Any) -> Any:
    """Return `kernels.cuda`, built with these flags. Raises Missing."""
    try:
        import kernels.cuda as found
    except ImportError:
        raise Missing("these kernels have no CUDA C++") from None
    if reason := found.available():
        raise Missing(reason)
    try:
        found.resources(flags=found.Flags(**flags))  # builds without running a kernel
    except found.Unavailable as error:
        raise Missing(str(error)) from None
    except Exception as error:
        raise Missing(f"CUDA C++ was built but does not load: {describe(error)}") from None
    return found


def build_ahead(builds: Sequence[Flags]) -> None:
    """Build with each of these flags, side by side in separate processes. A failed build is reported at its use."""
    if importlib.util.find_spec("kernels.cuda") is None:
        return
    code = f"import json, sys; from {__name__} import package; package(**json.loads(sys.argv[1]))"
    null = subprocess.DEVNULL
    running: list[subprocess.Popen] = []
    try:
        for flags in builds:
            command = [sys.executable, "-c", code, json.dumps(flags)]
            with held_back():  # a process that is started is one of those that are ended
                running.append(
                    subprocess.Popen(
                        command, cwd=ROOT, stdin=null, stdout=null, stderr=null, start_new_session=True
                    )
                )
        end = time.monotonic() + BUILDING_S
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(1.0, end - time.monotonic()))
    finally:
        surely(lambda: _end(running))


def _end(builds: Sequence[subprocess.Popen]) -> None:
    """End what still builds, compilers included. ninja hands SIGTERM on to nvcc, which is in a group of its own."""
    left = [build for build in builds if build.poll() is None]
    for build in left:
        os.killpg(build.pid, signal.SIGTERM)
    end = time.monotonic() + ENDING_S
    while (left := [build for build in left if _stands(build)]) and time.monotonic() < end:
        time.sleep(0.02)
    for build in left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(build.pid, signal.SIGKILL)
        build.wait()


def _stands(build: subprocess.Popen) -> bool:
    """Return whether a process of the build's group is left. The first one is reaped."""
    build.poll()
    try:
        os.killpg(build.pid, 0)
    except ProcessLookupError:
        return False
    return True


def check_device(x: Tensor) -> None:
    if x.device.type != "cuda":
        raise Missing("CUDA C++ needs a CUDA GPU")


def bound(name: str, flags: Flags | None = None, **how: Any) -> Function:
    """Return the function of that name in `kernels.cuda` as a function of x. It raises Missing when it is called."""

    def run(x: Tensor) -> Tensor:
        check_device(x)
        found = package(**(flags or {}))
        return getattr(found, name)(x, **how, flags=found.Flags(**(flags or {})))

    return run


@functools.cache
def unit(device: torch.device, samples: int, channels: int) -> tuple[Tensor, Tensor]:
    """Return scales and biases that change nothing. They are made once, so that filling them is not timed."""
    return torch.ones(samples, channels, device=device), torch.zeros(samples, channels, device=device)


def norm(flags: Flags | None = None, **how: Any) -> Function:
    """Return instance norm and leaky ReLU alone: scale 1, bias 0, gain 1."""

    def run(x: Tensor) -> Tensor:
        check_device(x)
        found = package(**(flags or {}))
        more = {"slope": SLOPE, "gain": 1.0, "flags": found.Flags(**(flags or {}))}
        return found.instance_norm_act(x, *unit(x.device, *x.shape[:2]), **more, **how)

    return run


def rows(name: str) -> Function:
    """Return a function that sums each plane."""
    return lambda x: bound(name)(x.flatten(2).flatten(0, 1))


def strided(x: Tensor, **how: Any) -> Tensor:
    return bound("strided_act", slope=SLOPE, **how)(x)


def coalesced(x: Tensor, **how: Any) -> Tensor:
    return bound("coalesced_act", slope=SLOPE, **how)(x)


def for_each_sample(function: Callable[..., Tensor]) -> Function:
    """Return the function as the article prints it: a block for each sample, a thread for each channel.

    Threads come in whole warps, 1024 at most.
    """
    return lambda x: function(x, blocks="samples", threads=min(1024, -(-x.shape[1] // 32) * 32))


def resources(threads: int = 256, **flags: Any) -> list[Any]:
    """Return the row of `kernels.cuda` for each of its kernels, built with these flags. Raises Missing."""
    found = package(**flags)
    return found.resources(threads=threads, flags=found.Flags(**flags))
