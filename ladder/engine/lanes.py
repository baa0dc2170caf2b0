"""Several rungs at once: threads that each talk to a worker process, and the parts that must run alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from ladder.core.stopping import end_surely
from ladder.engine.pool import WorkerFailure

MOST_ALIVE = 32  # processes of a generation, each with its data workers
SHARE = 0.85  # of the GPU's memory for all processes of a generation
CONTEXT_BYTES = 2**30  # beside the allocator's: CUDA's context, cuDNN's and cuBLAS's workspaces


def allocatable_bytes(card_gb: float | None) -> int | None:
    """Return the bytes that a process may allocate on a card of so many GiB; None without a card to simulate."""
    return None if card_gb is None else max(1, int(card_gb * 2**30) - CONTEXT_BYTES)


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
        """Turn a shared hold into an exclusive one until the block ends, after other exclusive holders."""
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
                self._change.notify_all()
                self._change.wait_for(lambda: not self._wanting)  # work in common waits until all were alone
                self._inside += 1


def run_each(jobs: Iterable[Callable[[], None]], lanes: int, stop: Callable[[], None]) -> None:
    """Run the jobs, `lanes` at a time. At the first exception, Ctrl-C included, call `stop` and start no more."""
    with ThreadPoolExecutor(lanes) as threads:
        begun: list[Future[None]] = []
        try:
            begun.extend(threads.submit(job) for job in jobs)
            for done in as_completed(begun):
                done.result()
        except BaseException:

            def end() -> None:
                for job in begun:
                    job.cancel()
                stop()

            end_surely(end)
            raise


def is_unsure(failure: WorkerFailure) -> bool:
    """Return whether rungs beside it may be at fault: the GPU's memory was short, or the system's ran out."""
    return failure.status in ("oom", "invalid") or failure.reply.get("signal") == "SIGKILL"
