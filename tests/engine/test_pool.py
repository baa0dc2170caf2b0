"""Worker processes: their commands, their end, the lock on a device."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ladder.core.locks import device_lock
from ladder.engine import pool
from ladder.engine.pool import Pool, Worker, WorkerFailure

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "support" / "fake_code"


def build(worker: Worker, **recipe: Any) -> dict[str, Any]:
    return worker.call("build", workload={}, recipe=recipe, device="cpu", seed=0)


def visit(worker: Worker) -> dict[str, Any]:
    return worker.call("visit", cycles=1, settle_s=0, settle_cycles=0, main=False)


@pytest.fixture
def worker() -> Any:
    with Pool(code=FAKE, torch=False) as workers:
        yield workers.take()


def test_a_worker_that_is_closed_has_exited_by_itself(worker: Worker) -> None:
    build(worker)
    visit(worker)
    worker.close()
    assert worker.returncode == 0
    worker.close()


def test_a_worker_killed_while_idle_is_noticed_at_the_next_command(worker: Worker) -> None:
    build(worker)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerFailure, match="killed by SIGKILL") as failure:
        visit(worker)
    assert failure.value.status == "failed"


def test_each_cycle_is_a_sign_of_life(worker: Worker) -> None:
    seen: list[dict] = []
    build(worker)
    worker.call("visit", cycles=3, settle_s=0, settle_cycles=0, main=True, on_progress=seen.append)
    assert len(seen) == 5 and all(message["seconds"] > 0 for message in seen)  # lead-in, 3 timed, main
    worker.call("begin", on_progress=seen.append)
    worker.call("cycle", on_progress=seen.append)
    worker.call("finish", main=True, on_progress=seen.append)
    assert len(seen) == 7
    worker.close()


def test_a_known_cycle_shortens_the_limit_of_the_next(worker: Worker, monkeypatch: Any) -> None:
    monkeypatch.setattr(pool, "_LEAST_CYCLE_TIMEOUT", 2.0)
    build(worker)
    worker.call("begin")
    worker.call("cycle")
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerFailure, match="no sign of life for 2 s"):
        worker.call("cycle")


def test_workers_do_not_outlive_an_orchestrator_that_is_killed() -> None:
    program = f"""
from pathlib import Path
from ladder.engine.pool import Pool
worker = Pool(code=Path({str(FAKE)!r}), torch=False).take()
worker.call("threads")
print(worker.pid, flush=True)
worker.call("build", workload={{}}, recipe=dict(fault="hang", at="build", pids="/dev/null"), device="cpu", seed=0)
"""
    orchestrator = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    pid = int(orchestrator.stdout.readline())
    orchestrator.kill()
    orchestrator.communicate()
    deadline = time.monotonic() + 120
    while group_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def group_alive(group: int) -> bool:
    """Whether a process of the group runs; zombies that nobody reaps do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state not in "ZX":
            return True
    return False


def test_a_device_is_held_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(pool.tempfile, "tempdir", None)
    program = "from ladder.core.locks import device_lock\nwith device_lock('gpu'): print('held', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    with device_lock("another gpu", lambda: pytest.fail("another device is free")):
        pass
    waited: list[str] = []

    def release() -> None:
        waited.append("waited")
        other.communicate("\n")

    with device_lock("gpu", release):
        assert waited == ["waited"] and other.returncode == 0


@pytest.mark.parametrize(
    "times", [{"samples_s": [0.1], "event_s": None, "main_s": None}, {"samples_s": [1, 2]}]
)
def test_a_visit_with_times_is_believed(times: dict[str, Any]) -> None:
    assert pool.no_time(times) is None


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"samples_s": []},
        {"samples_s": None},
        {"samples_s": [0.1, None]},
        {"samples_s": [0.1, True]},
        {"samples_s": ["0.1"]},
        {"samples_s": [0.1], "event_s": [0]},
        {"samples_s": [0.1], "main_s": -1.0},
    ],
)
def test_a_visit_without_possible_times_is_not(times: dict[str, Any]) -> None:
    assert "reported" in pool.no_time(times)
