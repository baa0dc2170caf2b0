"""Worker processes and the server that forks them: their commands and end, and code that cannot be imported."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.core.locks import device_lock
from ladder.engine import pool
from ladder.engine.forkserver import ForkServer
from ladder.engine.pool import Pool, Worker, WorkerFailure
from tests.support.fake_runs import FAKE, ROOT, alive, wait_for


def build(worker: Worker, **recipe: Any) -> dict[str, Any]:
    return worker.call("build", workload={}, recipe=recipe, device="cpu", seed=0)


def visit(worker: Worker, cycles: int = 1, **more: Any) -> dict[str, Any]:
    return worker.call("visit", **{"cycles": cycles, "settle_s": 0, "settle_cycles": 0, "main": False} | more)


def write_code(does: str, folder: Path) -> Path:
    (folder / "stylegan_lite").mkdir()
    (folder / "stylegan_lite" / "__init__.py").write_text(does)
    return folder


@pytest.fixture
def workers() -> Iterator[Pool]:
    with Pool(code=FAKE, torch=False) as made:
        yield made


@pytest.fixture
def worker(workers: Pool) -> Worker:
    return workers.take()


def test_a_worker_that_is_closed_has_exited_by_itself(worker: Worker) -> None:
    build(worker)
    visit(worker)
    worker.close()
    assert worker.returncode == 0
    worker.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_killed_while_idle_is_noticed_at_the_next_command(worker: Worker, number: int) -> None:
    build(worker)
    assert os.getsid(worker.pid) == os.getpgid(worker.pid) == worker.pid  # a session of its own
    os.kill(worker.pid, number)
    with pytest.raises(WorkerFailure, match=f"killed by {signal.Signals(number).name}") as failure:
        visit(worker)
    assert failure.value.status == "failed" and worker.returncode == -number


def test_each_cycle_is_a_sign_of_life_and_shortens_the_limit_of_the_next(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_LEAST_CYCLE_TIMEOUT", 2.0)
    messages: list[dict] = []
    build(worker)
    visit(worker, cycles=3, main=True, on_progress=messages.append)
    assert len(messages) == 5 and all(
        message["seconds"] > 0 for message in messages
    )  # lead-in, 3 timed, main
    worker.call("begin", on_progress=messages.append)
    worker.call("cycle", on_progress=messages.append)
    worker.call("finish", main=True, on_progress=messages.append)
    assert len(messages) == 7
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerFailure, match="no sign of life for 2 s"):
        worker.call("cycle")


def test_a_device_is_held_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = "from ladder.core.locks import device_lock\nwith device_lock('gpu'): print('held', flush=True); input()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **pipes)
    assert other.stdout.readline() == "held\n"
    with device_lock("another gpu", lambda: pytest.fail("another device is free")):
        pass
    waited: list[object] = []
    with device_lock("gpu", lambda: waited.append(other.communicate("\n"))):
        assert len(waited) == 1 and other.returncode == 0


@pytest.mark.parametrize(
    ("times", "possible"),
    [
        ({"samples_s": [0.1], "event_s": None, "main_s": None}, True),
        ({"samples_s": [1, 2]}, True),
        ({}, False),
        ({"samples_s": []}, False),
        ({"samples_s": None}, False),
        ({"samples_s": [0.1, None]}, False),
        ({"samples_s": [0.1, True]}, False),
        ({"samples_s": ["0.1"]}, False),
        ({"samples_s": [0.1], "event_s": [0]}, False),
        ({"samples_s": [0.1], "main_s": -1.0}, False),
    ],
)
def test_a_visit_without_possible_times_is_refused(times: dict[str, Any], possible: bool) -> None:
    assert (pool.no_time(times) is None) is possible


# --- the server ---


@pytest.mark.slow
def test_a_server_with_torch_has_one_thread_no_context_and_quiet_threads() -> None:
    server = ForkServer(None, torch=True)
    try:
        assert server.ready(120)["threads"] == 1
        assert b"GOMP_SPINCOUNT=0" in Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        opened = [os.readlink(each) for each in Path(f"/proc/{server.pid}/fd").iterdir()]
        assert opened and not [name for name in opened if name.startswith("/dev/nvidia-uvm")]  # of a context
    finally:
        server.close()


def test_workers_of_one_server_are_forks_that_imported_once(tmp_path: Path) -> None:
    log = tmp_path / "imports"
    code = write_code(f"CONTRACT = 1\nopen({str(log)!r}, 'a').write('x')\n", tmp_path)
    with Pool(code=code, torch=False) as forks:
        three = [forks.take() for _ in range(3)]
        assert all(worker.call("threads") for worker in three) and len({worker.pid for worker in three}) == 3
    assert log.read_text() == "x" and not any(alive(worker.pid) for worker in three)


def test_a_server_outlives_a_question_on_a_worker_that_another_thread_has_just_reaped(workers: Pool) -> None:
    """Else one rank's end took the server, and every later process of the generation, with it."""
    worker, server = workers.take(), workers._server
    assert not server.ended(worker.pid)
    worker.kill()
    assert server.ended(worker.pid) and server.reap(worker.pid) == -signal.SIGKILL
    assert workers.take().call("threads")


@pytest.mark.parametrize(
    ("does", "status", "says"),
    [
        ("import nothing_like_this\n", "failed", "nothing_like_this"),
        ("CONTRACT = 2\n", "n/a", "CONTRACT is not 1"),
        ("import os\nos._exit(7)\n", "failed", "import: worker ended with status 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "failed", "killed by SIGKILL"),
        ("import time\ntime.sleep(60)\n", "failed", "import: no sign of life"),
    ],
)
def test_code_that_cannot_be_imported_is_a_failure_in_one_line(
    does: str, status: str, says: str, tmp_path: Path
) -> None:
    code, begin = write_code(does, tmp_path), time.monotonic()
    limit = {"import": 0.5} if "sleep" in does else None
    with Pool(code=code, torch=False, timeouts=limit) as forks:
        with pytest.raises(WorkerFailure, match=says) as failure:
            forks.take().call("threads")
    assert failure.value.status == status and "\n" not in failure.value.reason
    assert time.monotonic() - begin < 50  # a hung import was ended by the watchdog


def test_neither_server_nor_busy_workers_outlive_their_orchestrator() -> None:
    program = f"""
from pathlib import Path
from ladder.engine.pool import Pool
pool = Pool(code=Path({str(FAKE)!r}), torch=False)
worker = pool.take()
worker.call("threads")
print(pool._server.pid, worker.pid, flush=True)
worker.call("build", workload={{}}, recipe=dict(fault="hang", at="build", pids="/dev/null"), device="cpu", seed=0)
"""
    command = [sys.executable, "-c", program]
    orchestrator = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert orchestrator.stdout is not None
    pids = [int(word) for word in orchestrator.stdout.readline().split()]
    orchestrator.kill()
    orchestrator.communicate()
    wait_for(lambda: len(pids) == 2 and not any(alive(pid) for pid in pids))
