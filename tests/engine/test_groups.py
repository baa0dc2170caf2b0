"""Process groups of workers: one step on several ranks, and no rank that hangs or stays behind when one fails."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ladder.engine.groups import Group, at_fault
from ladder.engine.pool import Pool, WorkerFailure
from tests.support.fake_runs import wait_for
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"batch": 8}
RECIPE = {"ranks": 2, "reduce": "flat"}
PATIENCE_S = 8.0  # of a cycle that takes a tenth of a second


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(timeouts={"cycle": PATIENCE_S}) as made:
        yield made


@pytest.fixture
def group(pool: Pool) -> Iterator[Group]:
    made = Group(pool, 2, "cpu")
    try:
        made.build(WORKLOAD, RECIPE, 0)
        made.call("prepare")
        made.call("begin")
        yield made
    finally:
        made.kill()


def exists(group: int) -> bool:
    """Whether a process of the group is left, loaders included."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pids: set[int]) -> None:
    wait_for(lambda: not any(exists(pid) for pid in pids))


def end_at_random(group: Group, rank: int, number: signal.Signals, after_s: float) -> WorkerFailure:
    """Send the signal to a rank while cycles run, and return the failure."""
    pids = group.pids
    threading.Timer(after_s, os.kill, (group.workers[rank].pid, number)).start()
    begin = time.monotonic()
    with pytest.raises(WorkerFailure) as failed:
        while time.monotonic() - begin < 60:
            group.cycle()
    assert time.monotonic() - begin < after_s + PATIENCE_S + 30  # the watchdog ended it, not a longer limit
    wait_until_gone(pids)
    assert not group.folder.exists()
    return failed.value


def test_a_group_times_its_slowest_rank_profiles_and_finishes(group):
    assert 0 < group.cycle() < 60
    finished = group.call("finish", main=False, lazy=False)
    assert len(finished) == 2 and all(each["peak_rss_bytes"] > 0 for each in finished)
    group.call("profile", part="load")
    assert [each["cycles"] for each in group.call("profile", part="record")] == [None, None]
    seen = group.call("receipts", rungs=["flat_reduce"])
    assert all(each["receipts"]["flat_reduce"]["engaged"] for each in seen)
    pids = group.pids
    group.close()
    wait_until_gone(pids)


def test_a_rank_that_is_killed_ends_the_group_and_is_named(group):
    failure = end_at_random(group, 1, signal.SIGKILL, random.uniform(0.05, 0.6))
    assert failure.reason.startswith("rank 1 of 2: visit: worker killed by SIGKILL")


def test_a_rank_that_stands_still_ends_the_group_and_is_named(group):
    group.cycle()
    failure = end_at_random(group, 0, signal.SIGSTOP, 0.1)
    assert "rank 0 of 2" in failure.reason and "no sign of life" in failure.reason
    assert "its process is stopped" in failure.reason and "furthest behind" in failure.reason


@pytest.mark.exhaustive
@pytest.mark.parametrize("moment", range(50))
def test_ranks_killed_at_random_moments_leave_no_hang_and_no_orphan(pool, moment):
    """Either rank in each of 25 slices of the time, which begins before the build and ends in the cycles."""
    made, rank = Group(pool, 2, "cpu"), moment % 2
    try:
        pids, after_s = made.pids, (moment // 2 + random.Random(moment).random()) * 1.5 / 25
        threading.Timer(after_s, os.kill, (made.workers[rank].pid, signal.SIGKILL)).start()
        with pytest.raises(WorkerFailure, match=rf"rank {rank} of 2.*SIGKILL"):
            made.build(WORKLOAD, RECIPE, 0)
            made.call("prepare")
            while True:
                made.cycle()
    finally:
        made.kill()
    wait_until_gone(pids)


def test_a_step_that_cannot_be_built_is_told_by_its_rank(pool):
    made = Group(pool, 2, "cpu")
    with pytest.raises(WorkerFailure, match=r"rank [01] of 2: build: .*multiple of ranks"):
        made.build(LITTLE | {"batch": 5, "mbstd_group": 1}, RECIPE, 0)
    assert all(worker.ended for worker in made.workers)


def test_the_rank_at_fault_died_or_failed_by_itself_or_is_furthest_behind():
    def failure(reason: str, **reply: str) -> WorkerFailure:
        return WorkerFailure("failed", reason, reply)

    silent = failure("visit: no sign of life for 60 s, worker ended by the watchdog")
    peer = failure("visit: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    died = failure("visit: worker killed by SIGKILL", signal="SIGKILL")
    memory = failure("out of memory in visit")
    assert at_fault([(0, peer), (1, died)], [3, 3])[0] == 1
    assert at_fault([(0, peer), (2, memory), (1, silent)], [3, 3, 3])[0] == 2
    assert at_fault([(0, silent), (1, silent), (2, silent)], [7, 7, 6])[0] == 2
    assert at_fault([(1, peer), (0, peer)], [1, 1])[0] == 1
    aborted = failure("visit: worker killed by SIGABRT", signal="SIGABRT")  # NCCL saw its peer go
    assert at_fault([(0, aborted), (1, died)], [3, 3])[0] == 1
    assert at_fault([(0, silent), (1, aborted)], [3, 3])[0] == 1
    stopped = failure("visit: no sign of life for 4 s (its process is stopped), worker ended by the watchdog")
    assert at_fault([(1, silent), (0, stopped)], [8, 8])[0] == 0
