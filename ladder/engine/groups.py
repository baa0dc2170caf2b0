"""A process group of workers: a command goes to all ranks, and if one fails, all end.

Each rank is a worker of the pool, and the pool's watchdog looks after each. A rank that is gone or stands still leaves
the others waiting in an all-reduce for ever, which NCCL's own timeout does not see in a replayed graph. So the first
failure ends the whole group, and the rank at fault is named: one that died, else the one furthest behind.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ladder.core.errors import one_line
from ladder.core.plain import Plain
from ladder.engine.joining import BEATS, WIDTH
from ladder.engine.pool import Pool, Worker, WorkerFailure, is_stopped
from ladder.machine import threads

STOPPED = "its process is stopped"  # as the pool says it
SILENT = "no sign of life"  # likewise
GRACE_S = 1.0  # for the others: a rank that saw its peer go may speak before the death is seen
# Words of torch.distributed about another rank's end.
OF_PEERS = (
    "connection closed by peer", "connection reset", "broken pipe", "connection refused", "nccl", "gloo", "timed out",
)  # fmt: skip


class Group:
    """The ranks of one step, or the one process of a step alone, which joins no process group.

    Raises:
        WorkerFailure, EnvironmentFailure: a rank cannot be started or cannot join.
    """

    def __init__(self, pool: Pool, ranks: int, device: str) -> None:
        self.ranks, self.device = ranks, device
        self.folder = Path(tempfile.mkdtemp(prefix="ladder-group-"))
        self.beats = [0] * ranks  # all-reduces and replays that each rank had begun at the end
        self.workers: list[Worker] = []
        try:
            (self.folder / BEATS).write_bytes(bytes(WIDTH * ranks))
            for _ in range(ranks):
                self.workers.append(pool.take())
            if ranks > 1:
                each = [{"rank": rank} for rank in range(ranks)]
                self.call("join", each=each, ranks=ranks, folder=str(self.folder), device=device)
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> set[int]:
        return {worker.pid for worker in self.workers}

    def build(self, workload: Plain, recipe: Plain, seed: int, **more: Any) -> list[Plain]:
        """Give every rank the same step to build. On a CPU the ranks share its cores."""
        share = threads.share_threads(self.ranks) if self.device == "cpu" else None
        return self.call(
            "build", workload=workload, recipe=recipe, device=self.device, seed=seed, threads=share, **more
        )

    def call(self, do: str, *, each: Sequence[Plain] = (), **fields: Any) -> list[Plain]:
        """Give a command to all ranks and return their replies. `each` has fields of single ranks.

        Raises:
            WorkerFailure: a rank failed, and all have been ended. The reason names the rank at fault.
            EnvironmentFailure: the system is to blame.
        """
        replies: dict[int, Plain] = {}
        failures: list[tuple[int, WorkerFailure]] = []  # in the order in which they were seen
        others: list[BaseException] = []  # no fault of a rank
        failed = threading.Event()

        def ask(rank: int) -> None:
            own = each[rank] if each else {}
            try:
                replies[rank] = self.workers[rank].call(do, **fields, **own)
            except WorkerFailure as failure:
                failures.append((rank, failure))
                failed.set()
            except BaseException as error:  # lost in this thread, it would leave the caller without a reply
                if isinstance(error, ValueError) and self.workers[rank].ended:  # its pipes have been closed
                    failures.append((rank, WorkerFailure("failed", "the run was ended")))
                else:
                    others.append(error)
                failed.set()

        asking = [threading.Thread(target=ask, args=(rank,), daemon=True) for rank in range(self.ranks)]
        try:
            for thread in asking:
                thread.start()
            while any(thread.is_alive() for thread in asking) and not failed.wait(0.02):
                pass
            if not failed.is_set():
                return [replies[rank] for rank in range(self.ranks)]
            deadline = time.monotonic() + GRACE_S
            for thread in asking:
                thread.join(max(0.0, deadline - time.monotonic()))
            known, raised = [*failures], [*others]  # what comes from here on is of our own doing
            still = [rank for rank, worker in enumerate(self.workers) if is_stopped(worker.pid)]
            silent = WorkerFailure("failed", f"{SILENT} ({STOPPED})")
            known += [(rank, silent) for rank in still if rank not in dict(known)]
            with contextlib.suppress(OSError):
                counts = (self.folder / BEATS).read_bytes()[: WIDTH * self.ranks]
                self.beats = list(struct.unpack(f"<{self.ranks}q", counts))
            self.kill()
            for thread in asking:
                thread.join()
        except BaseException:
            self.kill()
            raise
        raise raised[0] if raised else self._blame(known)

    def cycle(self) -> float:
        """Return the seconds a step of the slowest rank in one timed cycle."""
        return max(reply["samples_s"][0] for reply in self.call("cycle"))

    def close(self) -> None:
        """End all ranks. They end themselves, side by side, unless one has failed."""
        with ThreadPoolExecutor(self.ranks) as closing:
            list(closing.map(Worker.close, self.workers))
        self.kill()

    def kill(self) -> None:
        """Kill every rank with its process group. Safe to call again."""
        for worker in self.workers:
            worker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _blame(self, failures: list[tuple[int, WorkerFailure]]) -> WorkerFailure:
        """Return the failure of the rank at fault, with its name."""
        rank, failure = at_fault(failures, self.beats)
        if self.ranks == 1:
            return failure
        reason = f"rank {rank} of {self.ranks}: {failure.reason}"
        if SILENT in failure.reason:
            counts = ", ".join(f"rank {k} {n}" for k, n in enumerate(self.beats))
            reason += f" (furthest behind: all-reduces and replays begun: {counts})"
        return WorkerFailure(failure.status, one_line(reason), failure.reply | {"rank": rank})


def at_fault(failures: list[tuple[int, WorkerFailure]], beats: list[int]) -> tuple[int, WorkerFailure]:
    """Return the rank at fault among those that failed, and its failure.

    A rank that was killed comes first; then one that failed for a reason of its own. If ranks only stand still, it is
    one whose process is stopped, else the one that has begun the fewest all-reduces: the others wait for it. NCCL's
    watchdog aborts a rank whose peer is gone, so a rank killed by another signal comes before it.
    """
    if killed := [each for each in failures if "signal" in each[1].reply]:
        return min(killed, key=lambda each: each[1].reply["signal"] == "SIGABRT")
    silent = [each for each in failures if SILENT in each[1].reason]
    for each in failures:
        if each not in silent and not any(sign in each[1].reason.lower() for sign in OF_PEERS):
            return each
    return min(silent or failures, key=lambda each: (STOPPED not in each[1].reason, beats[each[0]]))
