"""The worker processes: started, watched and ended here. `ladder.engine.worker` documents their commands.

A worker is its own process group (data-loader children included). So a watchdog can end exactly that group, and a
Ctrl-C in the terminal reaches the orchestrator alone. The orchestrator itself never touches CUDA.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ladder.core.errors import EnvironmentFailure, one_line
from ladder.core.plain import Plain
from ladder.core.stopping import end_surely
from ladder.engine.channel import ENVIRONMENT, SPOKEN
from ladder.engine.forkserver import ForkServer, ServerEnded, name_signal, read_last_lines, refuse_no_process

# Seconds without a word from a worker before it counts as hung. Generous: tuning and capturing take minutes
# on some GPUs, and one 16-step cycle of the article's workload takes many on a CPU.
TIMEOUTS = {
    **dict.fromkeys(("import", "join", "identify", "build"), 300.0),
    **dict.fromkeys(
        ("describe", "prepare", "visit", "begin", "cycle", "finish", "profile", "host", "prove"), 900.0
    ),
    **dict.fromkeys(("parity", "trace", "receipts", "examine", "scales"), 900.0),
    **dict.fromkeys(("canary", "release", "choices", "threads"), 60.0),
    "exit": 20.0,
}
TUNING = (
    3600.0  # if preparing tries candidates: torch.compile's max-autotune goes through thousands, silently
)
TIMED = ("visit", "cycle")  # commands whose replies have samples
_LEAST_CYCLE_TIMEOUT = 60.0
_CYCLE_TIMEOUT_FACTOR = 20.0


class WorkerFailure(Exception):
    """A visit without a result: `status` ("oom", "failed", "invalid", "n/a"), `reason` in one line.

    `reply` has the peaks, or the "signal" that killed the worker.
    """

    def __init__(self, status: str, reason: str, reply: Plain | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.reply = status, reason, reply or {}


class Worker:
    """One worker process, forked by a server that has imported, or imports now. The server must outlive it.

    Raises:
        WorkerFailure: the code cannot even be imported.
        EnvironmentFailure: the system has no room for a process.
    """

    def __init__(self, server: ForkServer, timeouts: dict[str, float] | None = None) -> None:
        self._timeouts, self._server = TIMEOUTS | (timeouts or {}), server
        begin = time.monotonic()
        with contextlib.ExitStack() as undone, refuse_no_process():
            self._stderr = undone.enter_context(tempfile.TemporaryFile())
            theirs_in, ours_in = os.pipe()
            self._in = undone.enter_context(os.fdopen(ours_in, "wb"))
            with os.fdopen(theirs_in):
                ours_out, theirs_out = os.pipe()
                self._out = undone.enter_context(os.fdopen(ours_out, "rb", buffering=0))
                with os.fdopen(theirs_out, "w"):
                    ends = theirs_in, theirs_out, self._stderr.fileno()
                    try:
                        self.pid = server.fork(ends, self._timeouts["import"])
                    except ServerEnded as ended:
                        raise WorkerFailure("failed", one_line(f"import: {ended}")) from None
            undone.pop_all()
        self.returncode: int | None = None
        self._killing = threading.Lock()
        self.start_s = time.monotonic() - begin  # most of it the server's importing, for the first worker
        os.set_blocking(ours_out, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._buffer = b""
        self._imported = False
        self._busy = False  # True while a command has no reply

    @property
    def ended(self) -> bool:
        """Return whether the worker has been closed or killed."""
        return self.returncode is not None

    def call(
        self,
        do: str,
        *,
        on_progress: Callable[[Plain], None] | None = None,
        patience: float | None = None,
        **fields: Any,
    ) -> Plain:
        """Give a command and wait for its reply. `patience`: seconds without a word, if not those of `TIMEOUTS`.

        Raises:
            WorkerFailure: the rung failed. The worker is then good for `close` only.
            EnvironmentFailure: the system is to blame, not the rung.
        """
        if not self._imported:
            self._send({"do": "import", "torch": self._server.torch})
            self._reply("import")
            self._imported = True
        self._send({"do": do, **fields})
        return self._reply(do, on_progress, patience)

    def close(self) -> None:
        """End the worker: a healthy one ends itself (loaders return their shared memory), then its group is killed."""
        if self.returncode is None:
            with contextlib.suppress(WorkerFailure):
                if not self._busy:
                    self._send({"do": "exit"})
                    self._reply("exit")
                    self._await_exit()
        self.kill()

    def kill(self) -> None:
        """Kill the worker's process group and free its handles. Safe to call again."""
        with self._killing:
            if self.returncode is None:
                # It is not reaped yet, so no other process can have its group's number.
                for end in (os.killpg, os.kill):  # a fork that has just begun leads no group yet
                    with contextlib.suppress(ProcessLookupError):
                        end(self.pid, signal.SIGKILL)
                status = self._server.reap(self.pid)
                self.returncode = -signal.SIGKILL if status is None else status
        self._selector.close()
        for file in (self._in, self._out, self._stderr):
            with contextlib.suppress(OSError, ValueError):  # ValueError: another thread closes it just now
                file.close()

    def _send(self, command: Plain) -> None:
        self._busy = True
        with contextlib.suppress(BrokenPipeError):  # the death is noticed and named when the reply is read
            self._in.write(json.dumps(command).encode() + b"\n")
            self._in.flush()

    def _reply(
        self, do: str, on_progress: Callable[[Plain], None] | None = None, patience: float | None = None
    ) -> Plain:
        patience = patience or self._timeouts[do]
        while "progress" in (message := self._read(do, patience)):
            if do in TIMED:  # once a cycle's time is known, a hang need not take the generous limit
                known = max(_LEAST_CYCLE_TIMEOUT, _CYCLE_TIMEOUT_FACTOR * message.get("seconds", 0.0))
                patience = min(known, self._timeouts[do])
                self._timeouts["cycle"] = min(patience, self._timeouts["cycle"])  # of a later command
            if on_progress:
                on_progress(message)
        self._busy = False
        if not message["ok"] and message["status"] == ENVIRONMENT:
            raise EnvironmentFailure(message["reason"])
        if not message["ok"]:
            raise WorkerFailure(message["status"], message["reason"], message)
        if do in TIMED and (problem := no_time(message)):
            raise WorkerFailure("invalid", problem, message)
        return message

    def _read(self, do: str, patience: float) -> Plain:
        name, deadline = SPOKEN.get(do, do), time.monotonic() + patience
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                stands = " (its process is stopped)" if is_stopped(self.pid) else ""
                self.kill()
                silence = f"no sign of life for {patience:.0f} s{stands}"
                raise WorkerFailure("failed", f"{name}: {silence}, worker ended by the watchdog")
            # Wake up now and then: a data-loader child can hold the pipe open after the worker itself has died.
            if self._selector.select(min(left, 1.0)):
                chunk = self._out.read()
                if chunk == b"":
                    raise self._death(name)
                self._buffer += chunk or b""
            elif self._exited():
                raise self._death(name)
        line, _, self._buffer = self._buffer.partition(b"\n")
        with contextlib.suppress(ValueError):
            if isinstance(message := json.loads(line), dict):
                return message
        self.kill()
        raise WorkerFailure("failed", f"{name}: something else wrote between the worker's replies")

    def _await_exit(self) -> None:
        deadline = time.monotonic() + 5.0
        while not self._exited() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _exited(self) -> bool:
        """Return whether the process has ended, without reaping it: until then its number is ours and safe to kill."""
        return self.ended or self._server.ended(self.pid)

    def _death(self, name: str) -> WorkerFailure | EnvironmentFailure:
        lines = read_last_lines(self._stderr)
        self._await_exit()  # its pipe is closed, its exit status a moment away
        exited = self._exited()
        self.kill()  # kill the whole group (loaders too) before the process number can be reused
        code = self.returncode if exited else None
        if code is None or code >= 0:
            last = f": {one_line(lines[-1])}" if lines else ""
            return WorkerFailure("failed", one_line(f"{name}: worker ended with status {code}{last}"))
        number, hint = name_signal(-code), ""
        if number == "SIGBUS":  # a page of a mapped file without room on the disk or in shared memory
            reason = f"No space left on device: {name}: a mapped file or shared memory, SIGBUS"
            return EnvironmentFailure(reason)
        if number == "SIGKILL":
            hint = " (the system may have run out of memory)"
        elif number == "SIGABRT" and lines:  # a CUDA error, say, that NCCL's watchdog saw first
            what = [line.partition("what():")[2] for line in lines if "what():" in line]
            hint = f": {one_line((what or lines[-1:])[0])}"
        return WorkerFailure(
            "failed", one_line(f"{name}: worker killed by {number}{hint}"), {"signal": number}
        )


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


def strip_protocol(reply: Plain) -> Plain:
    """Return a worker's reply, or several in one, without the keys of the pipe's protocol, which are never stored."""
    return {key: value for key, value in reply.items() if key not in ("ok", "did", "gpu_uuid")}


def no_time(reply: Plain) -> str | None:
    """Return one line if a visit's reply has no sample, or one that cannot be the seconds of a step; else None."""
    for key in ("samples_s", "event_s", "main_s"):
        seconds = reply.get(key)
        if seconds is None:  # not requested, or no GPU
            continue
        for value in seconds if isinstance(seconds, list) else [seconds]:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                return one_line(f"visit: a step of {value} s was reported")
    return None if reply.get("samples_s") else "visit: no sample was reported"


def chooses_kernels(recipe: Mapping[str, Any]) -> bool:
    """Return whether preparing times candidates and keeps the fastest. Work beside it would falsify that choice."""
    return bool(recipe.get("cudnn_benchmark")) or recipe.get("compile", "off") != "off"


def prepare_step(worker: Worker, recipe: Mapping[str, Any]) -> Plain:
    """Prepare the step that a worker has built, with the patience that its recipe needs. Return the reply."""
    return worker.call("prepare", patience=TUNING if chooses_kernels(recipe) else None)


class Pool:
    """Fresh workers of one checkout, forked by one server, which begins to import when the pool is made."""

    def __init__(
        self, *, code: Path | None = None, torch: bool = True, timeouts: dict[str, float] | None = None
    ) -> None:
        self._timeouts = timeouts
        self._server = ForkServer(code, torch)
        self._taken: list[Worker] = []
        self._lock = threading.RLock()  # Ctrl-C may fall between taking it and giving it back
        self.ended = False  # after `kill()`: a worker that dies then was ended by us, its rung did not fail

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End every worker, busy ones included: a thread that waits for one is told that it died."""
        self.ended = True
        end_surely(self._end)

    def _end(self) -> None:
        if not self._lock.acquire(timeout=0.2):  # another thread waits for the server, which imports
            self._server.stop()
            self._lock.acquire()
        try:
            for worker in self._taken:
                worker.kill()
            self._taken = []
            self._server.close()
        finally:
            self._lock.release()

    def take(self) -> Worker:
        """Return a fresh worker, which the caller must close. Once all have been killed no late thread gets another."""
        with self._lock:
            if self.ended:
                raise WorkerFailure("failed", "the run was ended")
            self._taken = [worker for worker in self._taken if not worker.ended]
            self._taken.append(Worker(self._server, self._timeouts))
            return self._taken[-1]

    def wait(self) -> None:
        """Return when the server has imported, or has failed to: `take` then says why."""
        with contextlib.suppress(ServerEnded):
            self._server.ready((TIMEOUTS | (self._timeouts or {}))["import"])
