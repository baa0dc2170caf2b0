"""Several rungs inspected at once: threads that each talk to a worker process, and a gate for what must be alone.

Most of an inspection is importing, compiling, warming up and comparing: one CPU core's work, during which a GPU waits.
Only the traced cycle, which says how long the GPU works in a step, must have the GPU for itself.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from ladder.pool import Pool, WorkerFailure

MOST_AHEAD = 12  # idle workers that have imported torch, about half a GB each


class Gate:
    """Many are inside together, or one alone. Whoever wants to be alone goes before those who want to enter."""

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
        """For one that is inside: until the block ends, no other is, but for those that are alone next."""
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


def each(jobs: Sequence[Callable[[], None]], lanes: int, stop: Callable[[], None]) -> None:
    """Run the jobs, `lanes` at a time. At the first exception, Ctrl-C included: call `stop`, start none, raise it."""
    with ThreadPoolExecutor(lanes) as threads:
        begun = [threads.submit(job) for job in jobs]
        try:
            for done in as_completed(begun):
                done.result()
        except BaseException:
            for job in begun:
                job.cancel()
            stop()
            raise


def inspect(run: Any, pool: Pool, names: Sequence[str], lanes: int) -> None:
    """Inspect rungs of a `ladder.measure` run, `lanes` at a time. One that runs out of memory so is left undecided."""
    names = [name for name in names if run.is_due(name, None)]
    if not names:
        return
    pool.start_ahead(min(len(names), MOST_AHEAD))
    gate = Gate()
    with run.device_lock():
        each([functools.partial(_inspect_one, run, pool, name, gate) for name in names], lanes, pool.kill)


def _inspect_one(run: Any, pool: Pool, name: str, gate: Gate) -> None:
    rung = run.rungs[name]
    with run.lock:
        if not run.is_due(name, None):  # what it depends on has failed since
            return
    run.place.at = {"rung": name, "round": None}
    run.emit("inspect")
    worker = pool.take()
    try:
        with gate.together():
            run.get_ready(worker, rung, keep_gradients=True)
            run.inspect(worker, rung, gate.alone)
    except WorkerFailure as failure:
        if failure.status == "oom":
            return  # perhaps not when it is alone
        with run.lock:
            run.fail(rung, None, failure)
    finally:
        worker.close()
    run.visited(rung, None)
