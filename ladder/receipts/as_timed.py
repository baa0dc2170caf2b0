"""A prepared training step as it is timed: its batches, its operators, and the profiler's figures of a cycle."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ladder.base.protocol import CYCLE_STEPS
from ladder.base.protocol import IN_ORDER as PHASES
from ladder.receipts import traces
from ladder.receipts.seen import Crossing, Trace
from ladder.receipts.watch import Watch

ON_CPU = 4  # traced steps, instead of a cycle


@dataclass(frozen=True)
class Traced:
    """Findings about a step as it is timed, from its batches to the profiler's figures of a cycle."""

    crossings: list[Crossing]
    copying: int  # operators of the step's request for a batch
    replayed: int | None  # operators issued for one run of each phase; None without graphs
    trace: Trace
    waiting_ms: float
    fetched: float
    tallied: dict[str, int]  # images, by the way in which they were read


def nothing() -> None:
    """Do nothing."""


def trace(step: Any, ran: Callable[[], None] = nothing, align: Callable[[], None] = nothing) -> Traced:
    """See a prepared ``TrainingStep`` as it is timed. The GPU must do nothing else until `ran` is called.

    `align` waits for other ranks. A profiler's start takes each of them another time, and the first to be ready would
    wait in an all-reduce, which counts as communication.
    """
    crossings, copying = watch_data(step)
    replayed = operators(step) if step.graphs else None
    before = tally(step)  # after the batches that were fetched here: only a cycle's own count
    with fetches_counted(step) as fetched:
        seen, waiting = traced_cycle(step, ran, align)
    tallied = {key: count - before[key] for key, count in tally(step).items()}
    return Traced(crossings, copying, replayed, seen, round(waiting, 3), fetched["fetched"], tallied)


def traced_cycle(
    step: Any, ran: Callable[[], None] = nothing, align: Callable[[], None] = nothing
) -> tuple[Trace, float]:
    """Run a lead-in, then one cycle as it is timed. On a CPU, where no kernels are counted, it is a few steps.

    Returns the profiler's figures (on CUDA), and the milliseconds a step spent waiting for data.
    """
    for _ in range(math.ceil(step.data_capacity)):  # batches that idle workers hold would hide the waiting
        step.step()
    synchronize(step)
    waited: list[float] = []

    def cycle() -> None:
        align()
        waited.append(fetching(step, step.cycle))

    if step.device == "cuda":
        seen = traces.traced(cycle, ran)
        return seen, waited[0] / CYCLE_STEPS
    waited = [fetching(step, step.step) for _ in range(ON_CPU)]
    ran()
    return {}, sum(waited) / ON_CPU


def fetching(step: Any, run: Callable[[], None]) -> float:
    """Run steps and return the milliseconds that the CPU spent getting their batches from the loader."""
    spent, original = 0.0, step.feed._fetch

    def fetch():
        nonlocal spent
        begin = time.perf_counter()
        batch = original()
        spent += time.perf_counter() - begin
        return batch

    with replaced(step.feed, "_fetch", fetch):
        run()
    return 1000 * spent


@contextlib.contextmanager
def fetches_counted(step: Any) -> Iterator[dict[str, float]]:
    """Yield a dict that gets ``fetched``: batches requested from the loader a step, on average over the block."""
    counted, calls, steps, fetch = {"fetched": 0.0}, 0, step.count, step.feed._fetch

    def fetching() -> Any:
        nonlocal calls
        calls += 1
        return fetch()

    with replaced(step.feed, "_fetch", fetching):
        yield counted
    counted["fetched"] = round(calls / max(1, step.count - steps), 3)


def tally(step: Any) -> dict[str, int]:
    """Return how many images were decoded, and how many read from a memory map, so far.

    Loader's workers are included.
    """
    counted = getattr(getattr(step.feed, "dataset", None), "tally", dict)()
    counted["decoded_on_gpu"] = getattr(getattr(step.feed, "decode", None), "decoded", 0)
    return {key: counted.get(key, 0) for key in ("decoded", "mapped", "decoded_on_gpu")}


def watch_data(step: Any) -> tuple[list[Crossing], int]:
    """Return the copies between devices that one batch of images causes, and the operators of the step's request.

    The second batch is watched, as the first may have been fetched early.
    """
    watch, operators = Watch(), 0
    for _ in range(2):
        watch.crossings.clear()
        before = watch.calls
        with watch:
            step.feed.next()
            operators = watch.calls - before
            getattr(step.feed, "prefetch", lambda: None)()
    return watch.crossings, operators


def operators(step: Any) -> int:
    """Return the operators that the CPU issues for one run of each phase, as it is timed.

    For whole steps: the worst kind.
    """

    def issued(run: Callable[[], None]) -> int:
        watch = Watch()
        with watch:
            run()
        return watch.calls

    def each_phase() -> None:
        for phase in PHASES:
            step.run_phase(phase)

    kinds = getattr(step, "together", [])
    if kinds:
        found = max(issued(functools.partial(step.run, kind)) for kind in kinds)
    else:
        found = issued(each_phase)
    synchronize(step)
    return found


def synchronize(step: Any) -> None:
    if step.device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def replaced(thing: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a method of one instance while the block runs."""
    before = vars(thing).get(name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        delattr(thing, name)
        if before is not None:
            setattr(thing, name, before)
