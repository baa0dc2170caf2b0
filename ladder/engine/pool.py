"""The worker processes: started, watched and ended here. `ladder.engine.worker` documents their commands.

A worker is its own process group (data-loader children included). So a watchdog can end exactly that group, and a
Ctrl-C in the terminal reaches the orchestrator alone. The orchestrator itself never touches CUDA.
"""

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import EnvironmentFailure, one_line, raise_if_environment
from ladder.base.paths import ROOT

# Seconds without a word from a worker before it counts as hung. Generous: tuning and capturing take minutes
# on some GPUs, and one 16-step cycle of the article's workload takes many on a CPU.
TIMEOUTS = {
    "import": 300.0,
    "build": 300.0,
    "prepare": 900.0,
    "visit": 900.0,
    "parity": 900.0,
    "receipts": 900.0,
    "choices": 60.0,
    "threads": 60.0,
    "scales": 900.0,
    "exit": 20.0,
}
TUNING = (
    3600.0  # if preparing tries candidates: torch.compile's max-autotune goes through thousands, silently
)
ENVIRONMENT = "environment"  # `ladder.engine.worker`'s status for a lack of the system
_LEAST_CYCLE_TIMEOUT = 60.0
_CYCLE_TIMEOUT_FACTOR = 20.0


class WorkerFailure(Exception):
    """A visit without a result: `status` ("oom", "failed", "invalid", "n/a"), `reason` in one line.

    `reply` has the peaks, or the "signal" that killed the worker.
    """

    def __init__(self, status: str, reason: str, reply: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.reply = status, reason, reply or {}


class Worker:
    """One worker process. It begins to import as soon as it is made."""

    def __init__(
        self, *, code: Path | None = None, torch: bool = True, timeouts: dict[str, float] | None = None
    ) -> None:
        self._timeouts = TIMEOUTS | (timeouts or {})
        command = [sys.executable, "-m", "ladder.engine.worker"]
        if code:
            command += ["--code", str(Path(code).resolve())]
        try:
            self._stderr = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,  # `-m` looks there first, so ladder is always this file's
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
                env=os.environ | files.cache_variables(),
            )
        except OSError as error:
            raise_if_environment(error)
            raise EnvironmentFailure(
                f"no process can be started: {one_line(error.strerror or str(error))}"
            ) from None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._buffer = b""
        self._imported = False
        self.start_s: float | None = None  # seconds of importing
        self._busy = False  # True while a command has no reply
        self._send({"do": "import", "torch": torch})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Return whether the worker has been closed or killed."""
        return self._process.returncode is not None

    def wait_imported(self) -> None:
        """Return when the imports are done, so that they cannot disturb another worker's timing."""
        if not self._imported:
            self.start_s = self._reply("import", None).get("start_s")
            self._imported = True

    def call(
        self,
        do: str,
        *,
        on_progress: Callable[[dict], None] | None = None,
        patience: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Give a command and wait for its reply.

        patience: seconds without a word, if not those of `TIMEOUTS`.

        Raises:
            WorkerFailure: the rung failed. The worker is then good for `close` only.
            EnvironmentFailure: the system is to blame, not the rung.
        """
        self.wait_imported()
        self._send({"do": do, **fields})
        return self._reply(do, on_progress, patience)

    def close(self) -> None:
        """End the worker.

        A healthy one ends itself (loaders return their shared memory), then its whole group is killed.
        """
        if self._process.returncode is None:
            with contextlib.suppress(WorkerFailure):
                if not self._busy:
                    self._send({"do": "exit"})
                    self._reply("exit", None)
                    self._await_exit(5.0)
        self.kill()

    def kill(self) -> None:
        """Kill the worker's process group and free its handles. Safe to call again."""
        if self._process.returncode is None:
            # It is not reaped yet, so no other process can have its group's number.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._selector.close()
        for file in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(OSError, ValueError):  # ValueError: another thread closes it just now
                file.close()

    def _send(self, command: dict[str, Any]) -> None:
        self._busy = True
        with contextlib.suppress(BrokenPipeError):  # the death is noticed and named when the reply is read
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def _reply(
        self, do: str, on_progress: Callable[[dict], None] | None, patience: float | None = None
    ) -> dict[str, Any]:
        patience = patience or self._timeouts[do]
        while "progress" in (message := self._read(do, patience)):
            if do == "visit":  # once a cycle's time is known, a hang need not take the generous limit
                known = max(_LEAST_CYCLE_TIMEOUT, _CYCLE_TIMEOUT_FACTOR * message["seconds"])
                patience = min(known, self._timeouts[do])
            if on_progress:
                on_progress(message)
        self._busy = False
        if not message["ok"] and message["status"] == ENVIRONMENT:
            raise EnvironmentFailure(message["reason"])
        if not message["ok"]:
            raise WorkerFailure(message["status"], message["reason"], message)
        if do == "visit" and (problem := no_time(message)):
            raise WorkerFailure("invalid", problem, message)
        return message

    def _read(self, do: str, patience: float) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
                raise WorkerFailure(
                    "failed", f"{do}: no sign of life for {patience:.0f} s, worker ended by the watchdog"
                )
            # Wake up now and then: a data-loader child can hold the pipe open after the worker itself has died.
            if self._selector.select(min(left, 1.0)):
                chunk = self._process.stdout.read()
                if chunk:
                    self._buffer += chunk
                elif chunk == b"":
                    raise self._death(do)
            elif self._exited():
                raise self._death(do)
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError
        except ValueError:
            self.kill()
            raise WorkerFailure(
                "failed", f"{do}: something else wrote between the worker's replies"
            ) from None
        return message

    def _await_exit(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._exited() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _exited(self) -> bool:
        """Return whether the process has ended, without reaping it: until then its number is ours and safe to kill."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _death(self, do: str) -> WorkerFailure | EnvironmentFailure:
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 4000))
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        self._await_exit(5.0)  # its pipe is closed, its exit status a moment away
        exited = self._exited()
        self.kill()  # kill the whole group (loaders too) before the process number can be reused
        code = self._process.returncode if exited else None
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            if name == "SIGBUS":  # a page of a mapped file without room on the disk or in shared memory
                return EnvironmentFailure(
                    f"No space left on device: {do}: a mapped file or shared memory, SIGBUS"
                )
            hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
            return WorkerFailure("failed", f"{do}: worker killed by {name}{hint}", {"signal": name})
        last = f": {one_line(said[-1])}" if said else ""
        return WorkerFailure("failed", one_line(f"{do}: worker ended with status {code}{last}"))


def plain(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a worker's reply, or several in one, without the keys of the pipe's protocol, which are never stored."""
    return {key: value for key, value in reply.items() if key not in ("ok", "did", "gpu_uuid")}


def no_time(reply: dict[str, Any]) -> str | None:
    """Return one line if a visit's reply has no sample, or one that cannot be the seconds of a step; else None.

    A clock that was set back, or that the measured code replaced, must not become a speedup.
    """
    for key in ("samples_s", "event_s", "main_s"):
        seen = reply.get(key)
        for value in seen if isinstance(seen, list) else [seen]:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            absent = value is None and seen is None  # not requested, or no GPU
            if not absent and not (number and 0 < value < math.inf):
                return one_line(f"visit: a step of {value} s was reported")
    return None if reply.get("samples_s") else "visit: no sample was reported"


class Pool:
    """A pool of fresh workers. Some are started ahead, so that a round waits once for all of its imports."""

    def __init__(
        self, *, code: Path | None = None, torch: bool = True, timeouts: dict[str, float] | None = None
    ) -> None:
        self._make = lambda: Worker(code=code, torch=torch, timeouts=timeouts)
        self._ahead: list[Worker] = []
        self._taken: list[Worker] = []
        self._lock = threading.Lock()
        # true after `kill()`: a worker that dies then was ended by us, its rung did not fail
        self.ended = False

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End every worker, busy ones included: a thread that waits for one is told that it died."""
        with self._lock:
            self.ended = True
            for worker in (*self._taken, *self._ahead):
                worker.kill()
            self._taken, self._ahead = [], []

    def take(self) -> Worker:
        """Return a fresh worker, which the caller must close. Workers that died while idle are passed over.

        Raises `WorkerFailure` once all have been killed, so that no late thread starts another.
        """
        with self._lock:
            if self.ended:
                raise WorkerFailure("failed", "the run was ended")
            while self._ahead and self._ahead[0]._exited():
                self._ahead.pop(0).kill()
            self._taken = [worker for worker in self._taken if not worker.ended]
            self._taken.append(self._ahead.pop(0) if self._ahead else self._make())
            return self._taken[-1]

    def first(self) -> Worker:
        """Return the worker that `take` hands out next, for a question that leaves it unchanged."""
        self.begin_ahead(1)
        return self._ahead[0]

    @property
    def ahead(self) -> int:
        """Return how many workers have been started ahead and not been taken yet."""
        return len(self._ahead)

    def begin_ahead(self, count: int) -> None:
        """Start workers until ``count`` are ahead. They import meanwhile; `start_ahead` waits for them."""
        with self._lock:
            while len(self._ahead) < count and not self.ended:
                self._ahead.append(self._make())

    def start_ahead(self, count: int) -> None:
        """Start workers until ``count`` are ahead, and wait until all have imported: idle, they disturb nothing.

        A worker that dies while it imports is dropped. The ``take`` that misses it starts another and says why.
        """
        self.begin_ahead(count)
        for worker in list(self._ahead):
            try:
                worker.wait_imported()
            except WorkerFailure:
                worker.kill()
                self._ahead.remove(worker)
