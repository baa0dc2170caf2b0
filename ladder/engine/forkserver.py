"""A server that imports the measured code once and forks a worker for each rung of a generation.

Starting a process that imports PyTorch takes 3 to 13 seconds, and a generation has a process for each rung. The
server (`python -m ladder.engine.forkserver`) imports everything, runs no tensor operation and never touches CUDA, so
its forks may. Each generation has a server of its own, because forks share the layout of their memory.

Requests and replies are JSON messages on a pair of sockets. `{"do": "fork"}` comes with the worker's stdin, stdout and
stderr. A worker that has ended stays a zombie until `reap`, so nobody else can get its number before that.

| do | fields | keys of the reply |
|---|---|---|
| ready | | threads: of the server, start_s: seconds of importing |
| fork | three descriptors | pid |
| ended | pid | ended: bool, also true after `reap` |
| reap | pid | status: exit status, negative for a signal, or null while it runs; the same when asked again |
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from ladder.core import files
from ladder.core.errors import EnvironmentFailure, one_line, raise_if_environment
from ladder.core.paths import ROOT
from ladder.machine.threads import QUIET

_MOST = 4096  # bytes of a message
_LONGEST_END_S = 60.0  # of a worker that was killed: its GPU memory is freed first
_ALONE = "OPENBLAS_NUM_THREADS"  # NumPy's library starts its threads when it is imported


class ServerEnded(Exception):
    """The server has ended, or said nothing for too long. The message is one line that says how."""


class ForkServer:
    """The orchestrator's side. The server begins to import when this is made, and ends with `close`.

    Args:
        code: a checkout whose `stylegan_lite` and `kernels` are measured, by default this one.
        torch: whether to import torch.
    """

    def __init__(self, code: Path | None = None, torch: bool = True) -> None:
        self._lock, self.torch, self._number = threading.Lock(), torch, 0
        command = [sys.executable, "-m", "ladder.engine.forkserver"]
        command += ["--code", str(Path(code).resolve())] if code else []
        command += ["--torch"] if torch else []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, refuse_no_process():
            self._stderr: IO[bytes] = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                [*command, "--socket", str(theirs.fileno())],
                cwd=ROOT,  # `-m` looks there first, so ladder is always this file's
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
                env=os.environ | files.cache_variables() | QUIET,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, ends: tuple[int, int, int], patience: float) -> int:
        """Return the number of a new worker with these descriptors as stdin, stdout and stderr.

        Waits until the server has imported, `patience` seconds at most.
        """
        return int(self._request({"do": "fork"}, patience, ends)["pid"])

    def ready(self, patience: float) -> Mapping[str, float]:
        """Return the server's number of threads and its seconds of importing, once it has imported."""
        return self._request({"do": "ready"}, patience)

    def ended(self, pid: int) -> bool:
        """Return whether a worker has ended. Its number stays its own until `reap`."""
        try:
            return bool(self._request({"do": "ended", "pid": pid})["ended"])
        except ServerEnded:
            return True

    def reap(self, pid: int) -> int | None:
        """Free the number of a worker that ends and return its exit status, or None if it hangs, as in a driver."""
        deadline = time.monotonic() + _LONGEST_END_S
        with contextlib.suppress(ServerEnded):
            while time.monotonic() <= deadline:
                if (status := self._request({"do": "reap", "pid": pid})["status"]) is not None:
                    return int(status)
                time.sleep(0.005)
        return None

    def close(self) -> None:
        """End the server. Workers that still run end when their own pipes close. Safe to call again."""
        self._socket.close()
        self.stop()
        self._process.wait()
        with contextlib.suppress(OSError, ValueError):
            self._stderr.close()

    def stop(self) -> None:
        """Kill the server. A thread that waits for its reply gets `ServerEnded`."""
        if self._process.poll() is None:
            self._process.kill()

    def _request(
        self, request: Mapping[str, object], patience: float = 60.0, ends: tuple[int, ...] = ()
    ) -> Mapping[str, float]:
        with self._lock:
            try:
                self._socket.settimeout(patience)
                self._number += 1
                message = json.dumps({**request, "number": self._number}).encode()
                socket.send_fds(self._socket, [message], list(ends))
                while reply := self._socket.recv(_MOST):
                    if (answer := json.loads(reply))["number"] == self._number:
                        return answer  # else Ctrl-C fell between a reply and its request
            except TimeoutError:
                self._process.kill()
                raise ServerEnded(f"no sign of life for {patience:.0f} s, ended by the watchdog") from None
            except OSError:
                pass
            if self._stderr.closed:
                raise ServerEnded("the run was ended")
            status, lines = self._process.wait(), read_last_lines(self._stderr)
            if status < 0:
                raise ServerEnded(f"worker killed by {name_signal(-status)}")
            last = f": {one_line(lines[-1])}" if lines else ""
            raise ServerEnded(f"worker ended with status {status}{last}")


@contextlib.contextmanager
def refuse_no_process() -> Iterator[None]:
    """Raise `EnvironmentFailure` where the system refuses files or processes."""
    try:
        yield
    except OSError as error:
        raise_if_environment(error)
        message = f"no process can be started: {one_line(error.strerror or str(error))}"
        raise EnvironmentFailure(message) from None


def read_last_lines(file: IO[bytes]) -> list[str]:
    """Return the last lines, at most 4,000 bytes, that a process has written into a file."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - 4000))
    return file.read().decode(errors="replace").strip().splitlines()


def name_signal(number: int) -> str:
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def _serve_requests(connection: socket.socket, code: Path | None, start_s: float) -> None:
    """Answer requests until the orchestrator closes its side."""
    reaped: dict[int, int] = {}  # exit statuses; a thread may ask for a worker that another has just reaped
    while True:
        message, ends, _, _ = socket.recv_fds(connection, _MOST, 3)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if request["do"] == "fork":
            begun, begins = os.pipe()
            pid = os.fork()
            if pid == 0:
                connection.close()
                _become_worker(ends, (begun, begins), code)
            os.close(begins)
            os.read(begun, 1)  # it leads a group now, which the orchestrator may kill
            os.close(begun)
            for end in ends:
                os.close(end)
            reaped.pop(pid, None)
            reply: dict[str, object] = {"pid": pid}
        elif request["do"] == "ended":
            pid, how = request["pid"], os.WEXITED | os.WNOHANG | os.WNOWAIT
            reply = {"ended": pid in reaped or os.waitid(os.P_PID, pid, how) is not None}
        elif request["do"] == "reap":
            pid = request["pid"]
            if pid not in reaped and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                reaped[pid] = os.waitstatus_to_exitcode(ended[1])
            reply = {"status": reaped.get(pid)}
        else:
            reply = {"threads": len(os.listdir("/proc/self/task")), "start_s": start_s}
        connection.send(json.dumps({**reply, "number": request["number"]}).encode())


def _become_worker(ends: list[int], held: tuple[int, int], code: Path | None) -> None:
    """Become a worker with these descriptors, in a session of its own. Never returns."""
    try:
        os.setsid()
        for end in held:
            os.close(end)
        for number, end in enumerate(ends):
            os.dup2(end, number)
            os.close(end)
        from ladder.engine import worker

        worker.run_worker(code)
    except SystemExit as leaving:
        if isinstance(leaving.code, int):
            os._exit(leaving.code)
        print(leaving.code or "", file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="ladder.engine.forkserver")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--code", type=Path)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    begin = time.perf_counter()
    from ladder.engine import worker

    # Processes of loaders are forks, too. Each would import torch anew by the default of Python 3.14.
    multiprocessing.set_start_method("fork")
    before = os.environ.get(_ALONE)
    os.environ[_ALONE] = "1"
    try:
        worker.preload_code(options.code, options.torch)
    finally:
        del os.environ[_ALONE]
        if before is not None:
            os.environ[_ALONE] = before
    gc.collect()
    gc.freeze()  # pages that no collection writes to stay shared
    start_s = time.perf_counter() - begin
    _serve_requests(socket.socket(fileno=options.socket), options.code, start_s)


if __name__ == "__main__":
    main()
