"""The cost of launching a kernel: on the CPU, where an eager step waits for it, and in a graph.

- launch: CPU seconds for one call from Python. A burst of calls fits into the GPU's queue, which is drained before and
  after, so that nothing waits for the GPU inside.
- replay: GPU seconds for one kernel of a graph of many, including the pauses between kernels.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ladder.studies.claims.timed import Missing, reason_of
from ladder.studies.claims.view import ADD, EMPTY_CUDA, EMPTY_TRITON, LAUNCH, REPLAY, WHOLE
from ladder.studies.kernelbench import cuda
from ladder.studies.kernelbench.timing import Call

BURST = 200  # launches; the driver's queue holds about 1000
NODES = 1000  # kernels in a graph
BURSTS = 5  # bursts for one value, the quickest: an interrupt of the CPU can only lengthen a burst


def contenders(device: str) -> dict[str, Callable[[], Call]]:
    x = torch.zeros(1, device=device)

    def empty_triton() -> Call:
        from ladder.studies.claims.small_kernels import empty_kernel

        return lambda: empty_kernel[(1,)](x, num_warps=1)

    def empty_cuda() -> Call:
        if device != "cuda":
            raise Missing("CUDA C++ needs a CUDA GPU")
        return cuda.package().empty

    return {ADD: lambda: lambda: x.add_(1.0), EMPTY_TRITON: empty_triton, EMPTY_CUDA: empty_cuda}


@dataclass(frozen=True)
class Launches:
    """Microseconds by "launch: NAME" and "replay: NAME", one value a repeat; by name the reasons for missing ones."""

    samples_us: dict[str, list[float]]
    reasons: dict[str, str]


def measure(gpu: Any, repeats: int, smoke: bool, seed: int = 0) -> Launches:
    """Return the cost of a launch of each contender."""
    burst, nodes = (3, 3) if smoke else (BURST, NODES)
    samples: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    dice = random.Random(seed)
    made = contenders(gpu.name)
    for _ in range(repeats):
        names = [name for name in made if name not in reasons]
        dice.shuffle(names)
        for name in names:
            try:
                call = made[name]()
                for what, seconds in _one(gpu, call, burst, nodes).items():
                    samples.setdefault(f"{what}: {name}", []).append(1e6 * seconds)
            except Exception as error:
                reasons[name] = reason_of(error)
            gpu.forget()
    for name in reasons:
        for what in (LAUNCH, REPLAY, WHOLE):
            samples.pop(f"{what}: {name}", None)
    return Launches(samples, reasons)


def _one(gpu: Any, call: Call, burst: int, nodes: int) -> dict[str, float]:
    call()
    launched = min(_burst(gpu, call, burst) for _ in range(BURSTS))

    def body() -> None:
        for _ in range(nodes):
            call()

    graph = gpu.capture(body)
    start, end = gpu.event(), gpu.event()
    graph.replay()  # warms up, and keeps the GPU busy while the CPU queues the next lines
    start.record()
    graph.replay()
    end.record()
    gpu.synchronize()
    replayed = start.elapsed_time(end) / 1e3 / nodes
    whole = min(_burst(gpu, graph.replay, 1) for _ in range(BURSTS))
    return {LAUNCH: launched, REPLAY: replayed, WHOLE: whole}


def _burst(gpu: Any, call: Call, count: int) -> float:
    """Return the CPU seconds of one of `count` calls in a row."""
    gpu.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    took = time.perf_counter() - begin
    gpu.synchronize()
    return took / count
