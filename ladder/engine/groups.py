"""A process group of workers: a command goes to all ranks, and if one fails, all end.

Each rank is a worker of the pool, and the pool's watchdog looks after each. A rank that is gone or stands still leaves
the others waiting in an all-reduce for ever. NCCL's own timeout does not see that in a replayed graph. So the first
failure ends the whole group, and the rank at fault is named: one that died, else the one furthest behind.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ladder.core.errors import one_line
from ladder.engine import joining
from ladder.engine.pool import Pool, Worker, WorkerFailure, is_stopped
from ladder.machine import threads

STOPPED = "its process is stopped"  # as the pool says it
GRACE_S = 1.0  # for the others to say what they have: a rank that saw its peer go may speak before the death is seen
# Words of torch.distributed about another rank's end.
OF_PEERS = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "connection refused",
    "nccl",
    "gloo",
    "timed out",
)

Reply = dict[str, Any]


class Group:
    """The ranks of one step, or the one process of a step alone.

    Args:
        ranks: how many processes. One joins no process group.

    Raises:
        WorkerFailure, EnvironmentFailure: a rank cannot be started or cannot join.
    """

    def __init__(self, pool: Pool, ranks: int, device: str) -> None:
        self.ranks, self.device = ranks, device
        self.heartbeats = [0] * ranks  # cycles that each rank has told of
        self.folder = Path(tempfile.mkdtemp(prefix="ladder-group-"))
        self.beats = [0] * ranks  # all-reduces and replays that each rank had begun at the end
        self.workers: list[Worker] = []
        self._failures: list[tuple[int, WorkerFailure]] = []  # in the order in which they were seen
        self._others: list[BaseException] = []  # exceptions that are no fault of a rank
        try:
            joining.beats_in(self.folder).write_bytes(bytes(joining.WIDTH * ranks))
            for _ in range(ranks):
                self.workers.append(pool.take())
            if ranks > 1:
                self.call("join", each=[{"rank": rank} for rank in range(ranks)], ranks=ranks,
                          folder=str(self.folder), device=device)  # fmt: skip
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> set[int]:
        return {worker.pid for worker in self.workers}

    def build(self, workload: dict[str, Any], recipe: dict[str, Any], seed: int, **more: Any) -> list[Reply]:
        """Give every rank the same step to build. On a CPU the ranks share its cores."""
        share = threads.share_threads(self.ranks) if self.device == "cpu" else None
        return self.call(
            "build", workload=workload, recipe=recipe, device=self.device, seed=seed, threads=share, **more
        )

    def call(self, do: str, *, each: Sequence[Reply] = (), **fields: Any) -> list[Reply]:
        """Give a command to all ranks and return their replies. `each` has fields of single ranks.

        Raises:
            WorkerFailure: a rank failed, and all have been ended. The reason names the rank at fault.
            EnvironmentFailure: the system is to blame.
            Any other exception of asking a rank: all have been ended too.
        """
        replies: list[Reply | None] = [None] * self.ranks
        self._failures, self._others, failed = [], [], threading.Event()

        def ask(rank: int) -> None:
            try:
                own = each[rank] if each else {}
                replies[rank] = self.workers[rank].call(do, on_progress=self._heard(rank), **fields, **own)
            except WorkerFailure as failure:
                self._failures.append((rank, failure))
                failed.set()
            except BaseException as error:  # lost in this thread, it would leave the caller without a reply
                if isinstance(error, ValueError) and self.workers[rank].ended:  # its pipes have been closed
                    self._failures.append((rank, WorkerFailure("failed", "the run was ended")))
                else:
                    self._others.append(error)
                failed.set()

        asking = [threading.Thread(target=ask, args=(rank,), daemon=True) for rank in range(self.ranks)]
        try:
            for thread in asking:
                thread.start()
            while any(thread.is_alive() for thread in asking) and not failed.wait(0.02):
                pass
            if failed.is_set():
                self._end(asking)
        except BaseException:
            self.kill()
            raise
        if self._others:
            raise self._others[0]
        if self._failures:
            raise self._blamed(do)
        return [reply for reply in replies if reply is not None]

    def cycle(self) -> float:
        """Return the seconds a step of the slowest rank in one timed cycle."""
        return max(reply["samples_s"][0] for reply in self.call("cycle"))

    def close(self) -> None:
        """End all ranks. They end themselves, side by side, unless one has failed."""
        closing = [threading.Thread(target=worker.close) for worker in self.workers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self.kill()

    def kill(self) -> None:
        """Kill every rank with its process group. Safe to call again."""
        for worker in self.workers:
            worker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _heard(self, rank: int) -> Callable[[Reply], None]:
        def heard(message: Reply) -> None:
            self.heartbeats[rank] += message.get("progress") == "cycle"

        return heard

    def _end(self, asking: list[threading.Thread]) -> None:
        """Let the others speak for a moment, then end all of them."""
        deadline = time.monotonic() + GRACE_S
        for thread in asking:
            thread.join(max(0.0, deadline - time.monotonic()))
        seen, others = [*self._failures], [*self._others]  # what is said from here on is of our own doing
        still = [rank for rank, worker in enumerate(self.workers) if is_stopped(worker.pid)]
        silent = WorkerFailure("failed", f"no sign of life ({STOPPED})")
        seen += [(rank, silent) for rank in still if rank not in dict(seen)]
        with contextlib.suppress(OSError):
            self.beats = joining.read_beats(self.folder, self.ranks)
        self.kill()
        for thread in asking:
            thread.join()
        self._failures, self._others = seen, others

    def _blamed(self, do: str) -> WorkerFailure:
        """Return the failure of the rank at fault, with its name."""
        rank, failure = at_fault(self._failures, self.beats)
        if self.ranks == 1:
            return failure
        reason = f"rank {rank} of {self.ranks}: {failure.reason}"
        if is_silence(failure):
            reason += f" (furthest behind: {count_beats(self.beats)})"
        return WorkerFailure(failure.status, one_line(reason), failure.reply | {"rank": rank})


def at_fault(failures: list[tuple[int, WorkerFailure]], beats: list[int]) -> tuple[int, WorkerFailure]:
    """Return the rank at fault among those that failed, and its failure.

    A rank that was killed comes first. Then comes one that failed for a reason of its own. If ranks only stand still,
    it is one whose process is stopped. Else it has begun the fewest all-reduces: the others wait for it. NCCL's
    watchdog aborts a rank whose peer is gone, so a rank killed by another signal comes before it.
    """
    if killed := [each for each in failures if "signal" in each[1].reply]:
        return min(killed, key=lambda each: each[1].reply["signal"] == "SIGABRT")
    if own := [each for each in failures if not is_silence(each[1]) and not _of_peers(each[1].reason)]:
        return own[0]
    silent = [each for each in failures if is_silence(each[1])]
    return min(silent or failures, key=lambda each: (STOPPED not in each[1].reason, beats[each[0]]))


def is_silence(failure: WorkerFailure) -> bool:
    """Return whether the watchdog ended the rank."""
    return "no sign of life" in failure.reason


def count_beats(beats: list[int]) -> str:
    return "all-reduces and replays begun: " + ", ".join(f"rank {k} {n}" for k, n in enumerate(beats))


def _of_peers(reason: str) -> bool:
    return any(sign in reason.lower() for sign in OF_PEERS)
