"""The server that forks workers: what it may not do, how it ends, and what is said of code that cannot be imported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ladder.engine.forkserver import ForkServer
from ladder.engine.pool import Pool, WorkerFailure
from tests.support.fake_runs import FAKE, ROOT, alive, wait_for


def code_that(does: str, folder: Path) -> Path:
    (folder / "stylegan_lite").mkdir()
    (folder / "stylegan_lite" / "__init__.py").write_text(does)
    return folder


@pytest.mark.slow
def test_a_server_with_torch_has_one_thread_no_context_and_quiet_threads() -> None:
    server = ForkServer(None, torch=True)
    try:
        assert server.ready(120)["threads"] == 1
        environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        assert b"GOMP_SPINCOUNT=0" in environment
        opened = [os.readlink(each) for each in Path(f"/proc/{server.pid}/fd").iterdir()]
        assert opened and not [name for name in opened if name.startswith("/dev/nvidia-uvm")]  # of a context
    finally:
        server.close()


def test_workers_of_one_server_are_forks_that_imported_once(tmp_path: Path) -> None:
    log = tmp_path / "imports"
    code = code_that(f"CONTRACT = 1\nopen({str(log)!r}, 'a').write('x')\n", tmp_path)
    with Pool(code=code, torch=False) as workers:
        pids = [workers.take() for _ in range(3)]
        assert all(worker.call("threads") for worker in pids)
        assert len({worker.pid for worker in pids}) == 3
    assert log.read_text() == "x" and not any(alive(worker.pid) for worker in pids)


def test_a_worker_leads_a_session_of_its_own() -> None:
    with Pool(code=FAKE, torch=False) as workers:
        worker = workers.take()
        worker.call("threads")  # it works by now
        assert os.getsid(worker.pid) == os.getpgid(worker.pid) == worker.pid
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(WorkerFailure, match="killed by SIGTERM"):
            worker.call("threads")
        assert worker.returncode == -signal.SIGTERM


def test_a_server_outlives_a_question_on_a_worker_that_another_thread_has_just_reaped() -> None:
    """Else one rank's end took the server, and every later process of the generation, with it."""
    with Pool(code=FAKE, torch=False) as workers:
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
    ],
)
def test_code_that_cannot_be_imported_is_a_failure_in_one_line(
    does: str, status: str, says: str, tmp_path: Path
) -> None:
    with (
        Pool(code=code_that(does, tmp_path), torch=False) as workers,
        pytest.raises(WorkerFailure, match=says) as failure,
    ):
        workers.take().call("threads")
    assert failure.value.status == status and "\n" not in failure.value.reason


def test_an_import_that_hangs_is_ended_by_the_watchdog(tmp_path: Path) -> None:
    code = code_that("import time\ntime.sleep(60)\n", tmp_path)
    begin = time.monotonic()
    with Pool(code=code, torch=False, timeouts={"import": 0.5}) as workers:
        with pytest.raises(WorkerFailure, match="import: no sign of life"):
            workers.take()
    assert time.monotonic() - begin < 30


def test_a_server_does_not_outlive_its_orchestrator() -> None:
    program = f"""
import time
from pathlib import Path
from ladder.engine.pool import Pool
pool = Pool(code=Path({str(FAKE)!r}), torch=False)
worker = pool.take()
print(pool._server.pid, worker.pid, flush=True)
time.sleep(60)
"""
    orchestrator = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert orchestrator.stdout is not None
    pids = [int(word) for word in orchestrator.stdout.readline().split()]
    orchestrator.kill()
    orchestrator.communicate()
    wait_for(lambda: not any(alive(pid) for pid in pids))
