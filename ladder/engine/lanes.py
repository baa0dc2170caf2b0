"""Several rungs at once: threads that each talk to a worker process, and the parts that must run alone.

Most of an inspection is importing, compiling, warming up and comparing: one CPU core's work, during which a GPU
waits. Only the traced cycle, which shows how long the GPU works in a step, must have the GPU for itself. A timed rung
is prepared beside others too. Then all wait while one after another is timed, so nothing but the timed rung uses the
GPU or a core. A rung that chooses by measuring while it prepares is prepared alone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.machine.threads import share

MOST_AHEAD = 12  # idle workers that have imported torch, about half a GB each
NEXT = 3  # of these, always started while rungs are inspected
SHARE = 0.5  # of the GPU's memory for all prepared rungs, the timed one included
CONTEXT_BYTES = 2**30  # beside the allocator's: CUDA's context, cuDNN's and cuBLAS's workspaces


class Gate:
    """A shared/exclusive lock. A waiting exclusive holder goes before new shared ones."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = self._wanting = 0
        self._alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._change:
            self._change.wait_for(lambda: not self._wanting)
            self._inside += 1
        try:
            yield
        finally:
            with self._change:
                self._inside -= 1
                self._change.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Turn a shared hold into an exclusive one until the block ends.

        Only other exclusive holders may go in between.
        """
        with self._change:
            self._inside -= 1
            self._wanting += 1
            self._change.notify_all()
            self._change.wait_for(lambda: not self._inside and not self._alone)
            self._alone = True
        try:
            yield
        finally:
            with self._change:
                self._alone = False
                self._wanting -= 1
                self._inside += 1
                self._change.notify_all()


def each(jobs: Iterable[Callable[[], None]], lanes: int, stop: Callable[[], None]) -> None:
    """Run the jobs, `lanes` at a time.

    At the first exception, Ctrl-C included, call `stop`, start no more and raise it.
    """
    with ThreadPoolExecutor(lanes) as threads:
        begun: list[Future[None]] = []
        try:
            begun.extend(threads.submit(job) for job in jobs)
            for done in as_completed(begun):
                done.result()
        except BaseException:
            for job in begun:
                job.cancel()
            stop()
            raise


def inspect(run: Any, pool: Pool, names: Sequence[str], lanes: int) -> None:
    """Inspect rungs of a `ladder.engine.run` run, `lanes` at a time.

    A failure that other rungs may have caused is left undecided.
    """
    names = [name for name in names if run.is_due(name, None)]
    if not names:
        return
    pool.start_ahead(min(len(names), MOST_AHEAD))
    gate, held = Gate(), share(min(lanes, len(names)))
    with run.device_lock():
        jobs = [functools.partial(_inspect_one, run, pool, name, gate, held) for name in names]
        each(jobs, lanes, pool.kill)


def _inspect_one(run: Any, pool: Pool, name: str, gate: Gate, held: int | None) -> None:
    rung = run.rungs[name]
    with run.lock:
        if not run.is_due(name, None):  # a rung it depends on has failed since
            return
    run.place.at = {"rung": name, "round": None}
    run.emit("inspect")
    worker = pool.take()
    pool.begin_ahead(NEXT)
    try:
        with gate.together():
            run.get_ready(worker, rung, keep_gradients=True, threads=held)
            run.inspect(worker, rung, gate.alone)
    except WorkerFailure as failure:
        if pool.ended or is_unsure(failure):
            return  # interrupted; or the rung may pass when it is alone
        with run.lock:
            run.fail(rung, None, failure)
    finally:
        worker.close()
    run.visited(rung, None)


def fitting(most: int, memory_bytes: float, cores: int, peaks: Sequence[int]) -> int:
    """Return how many rungs to prepare side by side: at most `most`, half the cores, and as the GPU's memory allows.

    `peaks` are the bytes that visits of this run have reserved. If there are none yet it is one rung, whose peak then
    tells.
    """
    if not peaks:
        return 1
    return max(1, min(most, cores // 2, int(SHARE * memory_bytes / (max(peaks) + CONTEXT_BYTES))))


def chooses(recipe: dict[str, Any]) -> bool:
    """Return whether preparing times candidates and keeps the fastest. Work beside it would falsify that choice."""
    return bool(recipe.get("cudnn_benchmark")) or recipe.get("compile", "off") != "off"


def is_unsure(failure: WorkerFailure) -> bool:
    """Return whether rungs beside it may be at fault: the GPU's memory was short, or the system's ran out."""
    return failure.status in ("oom", "invalid") or failure.reply.get("signal") == "SIGKILL"


def time_all(run: Any, pool: Pool, names: Sequence[str], number: int) -> None:
    """Visit rungs of a `ladder.engine.run` run in this order.

    A failure that other rungs may have caused is left undecided.
    """
    left = [name for name in names if run.is_due(name, number) and not chooses(run.recipes[name])]
    while left:
        lanes = run.lanes()
        group, left = left[:lanes], left[lanes:]
        pool.start_ahead(len(group))
        # the next workers import while these are prepared
        pool.begin_ahead(min(len(group) + len(left), MOST_AHEAD))
        with run.device_lock():
            _time_group(run, pool, group, number)


def _time_group(run: Any, pool: Pool, names: Sequence[str], number: int) -> None:
    ready: dict[str, tuple[Worker, dict[str, Any]]] = {}
    held = share(len(names))
    jobs = [functools.partial(_prepare_one, run, pool, name, number, ready, held) for name in names]
    each(jobs, len(jobs), pool.kill)
    pool.start_ahead(pool.ahead)  # nobody imports while one is timed
    beside = len(ready) - 1
    for name in [name for name in names if name in ready]:
        alive = {worker.pid for worker, _ in ready.values() if not worker.ended}
        worker, prepared = ready[name]
        run.place.at = {"rung": name, "round": number}
        if not run.is_due(name, number):  # a rung it depends on has failed since
            continue
        try:
            run.time(worker, run.rungs[name], number, prepared | {"beside": beside}, alive)
        except WorkerFailure as failure:
            worker.close()  # it may hold the memory that the next one lacks
            if beside and is_unsure(failure):
                continue
            run.fail(run.rungs[name], number, failure)
        run.visited(run.rungs[name], number)
    # A process takes a second to give back its loaders and the GPU's memory. So all close at once, when nobody is
    # timed.
    each([worker.close for worker, _ in ready.values()], max(1, len(ready)), pool.kill)


def _prepare_one(
    run: Any,
    pool: Pool,
    name: str,
    number: int,
    ready: dict[str, tuple[Worker, dict[str, Any]]],
    held: int | None,
) -> None:
    rung = run.rungs[name]
    run.place.at = {"rung": name, "round": number}
    with run.lock:
        if not run.is_due(name, number):  # a rung it depends on has failed since
            return
    run.emit("visit")
    worker = pool.take()
    try:
        prepared = run.get_ready(worker, rung, keep_gradients=False, threads=held)
    except WorkerFailure as failure:
        worker.close()
        if pool.ended or (held and is_unsure(failure)):  # held to some threads: there are other rungs
            return
        with run.lock:
            run.fail(rung, number, failure)
        run.visited(rung, number)
        return
    ready[name] = worker, prepared
