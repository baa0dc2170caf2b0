"""What `ladder doctor --roofline` measures: the rates of this GPU, and a prepared step.

For a rate, CUDA events time windows of at least 5 ms of replays of a captured graph, so launches cost nothing even for
kernels of microseconds. Inputs rotate through more than the L2 cache. They are random, because a GPU draws less power
on zeros and clocks higher. The best window counts, because it is a ceiling.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import stylegan_lite
from ladder.core.errors import format_error
from ladder.core.protocol import CYCLE_STEPS, PHASES
from ladder.core.records import Fields
from ladder.receipts import evidence, kernel_families, traces
from ladder.studies.kernelbench.bench import WAYS, copies
from ladder.studies.roofline.derive import KINDS, Kernels, Op, Timed, Today

WINDOW_S = 0.005
WINDOWS = 3
BUDGET_S = 60.0  # for the whole measurement; ops not reached by then have no rate of today
MOST_CALLS = 1024  # in one graph
MOST_SETS = 64  # sets of rotating inputs
CYCLES = 5  # timed cycles of a step; the median counts
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FORWARD, INPUT, WEIGHT = KINDS

Calls = Sequence[Callable[[], Any]]
Timer = Callable[[Calls], float]  # returns the best seconds of one call


def measure_rates(
    ops: dict[Op, float],
    layout: str,
    device: str = "cuda",
    timer: Timer | None = None,
    budget_s: float = BUDGET_S,
) -> Today:
    """Return today's rates in bytes/s or FLOP/s, and the reasons for those that it lacks.

    ``ops`` {convolution: FLOPs a step} are timed by descending weight until the budget is spent.
    """
    timer = timer or graph_seconds
    begin = time.perf_counter()
    rates: dict[str, float] = {}
    skipped: dict[str, str] = {}
    jobs: dict[str, Callable[[], float]] = {"copy": functools.partial(copy_rate, timer, device)}
    for name in ("bf16", "tf32", "fp32"):
        jobs[f"matmul {name}"] = functools.partial(matmul_rate, name, timer, device)
    for op in sorted(ops, key=lambda op: -ops[op]):
        jobs[op.key(layout)] = functools.partial(convolution_rate, op, layout, timer, device)
    for name, job in jobs.items():
        if time.perf_counter() - begin > budget_s:
            skipped[name] = "no time left"
            continue
        try:
            rates[name] = job()
        except (RuntimeError, NotImplementedError) as error:  # out of memory, or no algorithm for this shape
            skipped[name] = format_error(error)
    return Today(rates=rates, skipped=skipped, seconds=round(time.perf_counter() - begin, 1))


def copy_rate(timer: Timer, device: str = "cuda") -> float:
    """Return bytes read and written a second, device to device: the fastest of whole and split copies (`WAYS`).

    The driver copies some sizes at two thirds of the rate of others. A copy of a GiB is cold: no cache holds its next
    bytes.
    """
    size = 2**30 if device == "cuda" else 2**16
    rates = []
    for way in (*WAYS, (WAYS[0][0], size)):
        calls = copies(2 * size, 1, device, way)
        moved = 2 * sum(target.nbytes for target in calls[0]())  # rounded up to pages
        rates.append(moved / timer(calls))
        del calls  # frees the memory for the next copy
    return max(rates)


def matmul_rate(name: str, timer: Timer, device: str = "cuda") -> float:
    """Return FLOP/s of a large square matmul in "bf16", "tf32" or "fp32"."""
    size = 8192 if device == "cuda" else 16
    dtype = torch.bfloat16 if name == "bf16" else torch.float32
    pairs = [[torch.randn(size, size, device=device, dtype=dtype) for _ in range(2)] for _ in range(2)]
    with _set(torch.backends.cuda.matmul, "fp32_precision", "tf32" if name == "tf32" else "ieee"):
        return 2 * size**3 / timer([functools.partial(torch.matmul, a, b) for a, b in pairs])


def convolution_rate(op: Op, layout: str, timer: Timer, device: str = "cuda") -> float:
    """Return FLOP/s of a convolution with cuDNN's fastest algorithm, in PyTorch's default FP32 precision.

    Sets of inputs together larger than two L2 caches rotate.
    """
    cache = 2**16
    if device == "cuda":
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 2**26)
    order = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    calls = []
    for _ in range(min(MOST_SETS, max(2, math.ceil(2 * cache / op.bytes)))):
        shapes = (op.image, op.weight, op.result)
        tensors = [torch.randn(shape, device=device, dtype=DTYPES[op.dtype]) for shape in shapes]
        calls.append(
            functools.partial(convolve, op, *(each.contiguous(memory_format=order) for each in tensors))
        )
    with _set(torch.backends.cudnn, "benchmark", True):
        return op.flops / timer(calls)


def convolve(op: Op, image: Tensor, weight: Tensor, result: Tensor) -> Any:
    """Return what a convolution of this kind computes: one tensor, or one of the gradients and None."""
    how = ([op.stride] * 2, [op.padding] * 2, [1, 1], False, [0, 0], 1)
    if op.kind == FORWARD:
        return torch.ops.aten.convolution(image, weight, None, *how)
    mask = [op.kind == INPUT, op.kind == WEIGHT, False]
    return torch.ops.aten.convolution_backward(result, image, weight, None, *how, mask)


@contextlib.contextmanager
def _set(where: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


def graph_seconds(calls: Calls) -> float:
    """Return the seconds of one call on the GPU, in the best of ``WINDOWS`` windows of at least ``WINDOW_S``."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:  # libraries choose algorithms and make workspaces
            call()
        once = _elapsed(lambda: [call() for call in calls])
    torch.cuda.current_stream().wait_stream(side)
    rounds = max(1, min(math.ceil(WINDOW_S / 2 / once), MOST_CALLS // len(calls)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _, call in itertools.product(range(rounds), calls):
            call()
    try:
        return best_window(graph.replay, _elapsed) / (rounds * len(calls))
    finally:
        graph.reset()


def best_window(replay: Callable[[], Any], elapsed: Callable[[Callable[[], Any], int], float]) -> float:
    """Return the seconds of one replay. Windows grow until they are long enough."""
    replay()
    times, windows = 1, []
    while len(windows) < WINDOWS:
        took = elapsed(replay, times)
        if took < WINDOW_S:  # also lets the clocks rise
            times = max(times + 1, math.ceil(1.1 * times * WINDOW_S / max(took, 1e-6)))
            continue
        windows.append(took / times)
    return min(windows)


def _elapsed(call: Callable[[], Any], times: int = 1) -> float:
    """Return the seconds between CUDA events on the current stream around so many calls."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def time_run(run: Callable[[], Any], windows: int = 5, window_s: float = 0.02) -> float:
    """Return the median seconds of a run on the GPU, over ``windows`` windows of at least ``window_s``."""
    run()
    torch.cuda.synchronize()
    times = max(1, math.ceil(window_s / max(_elapsed(run), 1e-6)))
    return sorted(_elapsed(run, times) / times for _ in range(windows))[windows // 2]


def observe_step(workload: Fields, recipe: Fields) -> Timed:
    """Return phases and step of a prepared step on the GPU, and the families of kernels of a traced cycle.

    The phases of a whole-step graph are timed in a second step, which has a graph for each phase.
    """
    walls: list[float] = []

    def run_cycle() -> None:
        begin = time.perf_counter()
        step.cycle()
        evidence.synchronize_device(step)
        walls.append(time.perf_counter() - begin)

    with _prepare(workload, recipe) as step:
        phases_ms = {} if step.together else time_phases(step)
        seconds = time_run(run_cycle, windows=CYCLES, window_s=0.0)
        events = traces.record_events(step.cycle)
        settings = step.settings()
    del step  # frees its weights and optimizers before the second step exists
    if not phases_ms:
        torch.cuda.empty_cache()
        with _prepare(workload, recipe | {"whole_step_graph": False}) as step:
            phases_ms = time_phases(step)
    return Timed(
        phases_ms=phases_ms,
        step_ms=1000 * seconds / CYCLE_STEPS,
        wall_ms=1000 * statistics.median(walls[-CYCLES:]) / CYCLE_STEPS,
        busy_ms=traces.busy_ms(events),
        families=[Kernels(**row) for row in kernel_families.derive_shares(events, CYCLE_STEPS)],
        settings=settings,
    )


@contextlib.contextmanager
def _prepare(workload: Fields, recipe: Fields) -> Iterator[Any]:
    """Yield a step that has run a cycle, and give its memory back."""
    step = stylegan_lite.make_step(workload | {"data": None}, recipe, device="cuda")
    try:
        step.prepare()
        step.cycle()
        yield step
    finally:
        step.close()
        torch.cuda.empty_cache()


def time_phases(step: Any) -> dict[Any, float]:
    """Return the median of each phase alone, in ms."""
    return {phase: 1000 * time_run(functools.partial(step.run_phase, phase)) for phase in PHASES}
