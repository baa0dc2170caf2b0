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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
COPY_BYTES = 2**30
MATMUL = 8192
CYCLES = 5  # timed cycles of a step; the median counts
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FORWARD, INPUT, WEIGHT = KINDS

Calls = list[Callable[[], Any]]
Timer = Callable[[Calls], float]  # returns the best seconds of one call


def measure_rates(
    ops: dict[Op, float],
    layout: str,
    *,
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
    jobs: dict[str, Callable[[Timer], float]] = {"copy": functools.partial(copy_rate, device=device)}
    for name in ("bf16", "tf32", "fp32"):
        jobs[f"matmul {name}"] = functools.partial(matmul_rate, name, device=device)
    for op in sorted(ops, key=lambda op: -ops[op]):
        jobs[op.key(layout)] = functools.partial(convolution_rate, op, layout, device=device)
    for name, job in jobs.items():
        if time.perf_counter() - begin > budget_s:
            skipped[name] = "no time left"
            continue
        try:
            rates[name] = job(timer)
        except (RuntimeError, NotImplementedError) as error:  # out of memory, or no algorithm for this shape
            skipped[name] = format_error(error)
    return Today(rates=rates, skipped=skipped, seconds=round(time.perf_counter() - begin, 1))


def copy_rate(timer: Timer, device: str = "cuda", size: int = COPY_BYTES) -> float:
    """Return bytes read and written a second, device to device: the fastest of whole and split copies (`WAYS`).

    The driver copies some sizes at two thirds of the rate of others. A copy of a GiB is cold: no cache holds its next
    bytes.
    """
    size = size if device == "cuda" else 2**16
    rates = []
    for way in (*WAYS, (WAYS[0][0], size)):
        calls = copies(2 * size, 1, device, way)
        moved = 2 * sum(target.nbytes for target in calls[0]())  # rounded up to pages
        rates.append(moved / timer(calls))
        del calls  # frees the memory for the next copy
    return max(rates)


def matmul_rate(name: str, timer: Timer, device: str = "cuda", size: int = MATMUL) -> float:
    """Return FLOP/s of a large square matmul in "bf16", "tf32" or "fp32"."""
    size = size if device == "cuda" else 16
    dtype = torch.bfloat16 if name == "bf16" else torch.float32
    pairs = [[torch.randn(size, size, device=device, dtype=dtype) for _ in range(2)] for _ in range(2)]
    with _set(torch.backends.cuda.matmul, "fp32_precision", "tf32" if name == "tf32" else "ieee"):
        return 2 * size**3 / timer([functools.partial(torch.matmul, a, b) for a, b in pairs])


def convolution_rate(op: Op, layout: str, timer: Timer, device: str = "cuda") -> float:
    """Return FLOP/s of a convolution with cuDNN's fastest algorithm, in PyTorch's default FP32 precision."""
    calls = [_make_call(op, *tensors) for tensors in _make_inputs(op, layout, device)]
    with _set(torch.backends.cudnn, "benchmark", True):
        return op.flops / timer(calls)


def _make_inputs(op: Op, layout: str, device: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return sets of (image, weight, result side), together larger than two L2 caches."""
    cache = 2**16
    if device == "cuda":
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 2**26)
    sets = min(MOST_SETS, max(2, math.ceil(2 * cache / op.bytes)))
    place = {"device": device, "dtype": DTYPES[op.dtype]}
    order = torch.channels_last if layout == "channels_last" else torch.contiguous_format

    def random(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, **place).contiguous(memory_format=order)

    return [(random(op.image), random(op.weight), random(op.result)) for _ in range(sets)]


def _make_call(op: Op, image: Tensor, weight: Tensor, result: Tensor) -> Callable[[], Any]:
    how = ([op.stride] * 2, [op.padding] * 2, [1, 1], False, [0, 0], 1)
    if op.kind == FORWARD:
        return lambda: torch.ops.aten.convolution(image, weight, None, *how)
    mask = [op.kind == INPUT, op.kind == WEIGHT, False]
    return lambda: torch.ops.aten.convolution_backward(result, image, weight, None, *how, mask)


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


def best_window(replay: Callable[[], Any], elapsed: Callable[[Callable[[], Any]], float]) -> float:
    """Return the seconds of one replay. Windows grow until they are long enough."""
    replay()
    times, windows = 1, []
    while len(windows) < WINDOWS:
        took = elapsed(functools.partial(_repeat, replay, times))
        if took < WINDOW_S:  # also lets the clocks rise
            times = max(times + 1, math.ceil(1.1 * times * WINDOW_S / max(took, 1e-6)))
            continue
        windows.append(took / times)
    return min(windows)


def _repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def _elapsed(run: Callable[[], Any]) -> float:
    """Return the seconds between CUDA events on the current stream around ``run``."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def time_runs(runs: Iterable[Callable[[], Any]], windows: int = 5, window_s: float = 0.02) -> list[float]:
    """Return the median seconds of each of ``runs`` on the GPU, over ``windows`` windows of at least ``window_s``."""
    medians = []
    for run in runs:
        run()
        torch.cuda.synchronize()
        once = max(_elapsed(run), 1e-6)
        times = max(1, math.ceil(window_s / once))
        took = sorted(_elapsed(functools.partial(_repeat, run, times)) / times for _ in range(windows))
        medians.append(took[windows // 2])
    return medians


# --- the step ---------------------------------------------------------------------------------------------------------


def observe_step(workload: Fields, recipe: Fields) -> Timed:
    """Return phases and step of a prepared step on the GPU, and the families of kernels of a traced cycle.

    In a whole-step graph no phase has a time: alone it would run outside the graph, launch by launch. So phases are
    timed in a second step, which has a graph for each phase.
    """
    with _prepare(workload, recipe) as step:
        together = bool(step.together)
        phases_ms = {} if together else time_phases(step, PHASES)
        step_ms, wall_ms = time_step(step)
        busy_ms, families = trace_cycle(step)
        settings = step.settings()
    del step  # frees its weights and optimizers before the second step exists
    if together:
        torch.cuda.empty_cache()
        with _prepare(workload, recipe | {"whole_step_graph": False}) as step:
            phases_ms = time_phases(step, PHASES)
    return Timed(
        phases_ms=phases_ms,  # type: ignore[arg-type]
        step_ms=step_ms,
        wall_ms=wall_ms,
        busy_ms=busy_ms,
        families=families,
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


def time_phases(step: Any, phases: Sequence[str]) -> dict[str, float]:
    """Return the median of each phase alone, in ms."""
    took = time_runs([functools.partial(step.run_phase, phase) for phase in phases])
    return {name: 1000 * seconds for name, seconds in zip(phases, took, strict=True)}


def time_step(step: Any) -> tuple[float, float]:
    """Return the median ms of a step by events, and by the wall clock, which includes what the GPU does not see."""
    walls: list[float] = []

    def cycle() -> None:
        begin = time.perf_counter()
        step.cycle()
        evidence.synchronize_device(step)
        walls.append(time.perf_counter() - begin)

    (median,) = time_runs([cycle], windows=CYCLES, window_s=0.0)
    return 1000 * median / CYCLE_STEPS, 1000 * statistics.median(walls[-CYCLES:]) / CYCLE_STEPS


def trace_cycle(step: Any) -> tuple[float, list[Kernels]]:
    """Return the ms in which any kernel ran and the families of kernels, for one step of a profiled cycle."""
    events = traces.record_events(step.cycle)
    rows = kernel_families.derive_shares(events, CYCLE_STEPS)
    return traces.busy_ms(events), [Kernels(**row) for row in rows]
