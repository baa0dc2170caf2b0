"""The other side of `kernels.precompile`: kernels as jobs, and the processes that compile them.

One helper process imports the kernels, knows nothing of CUDA, and forks the processes that compile. Forking the
training process, with its driver and threads, would not be safe. A process that imports torch anew takes seconds.

Several programs that begin with the same empty cache (the rungs of a ladder, the ranks of a node) need the same
kernels. The locks of `Turns` let one of them compile each kernel.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import io
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.tiles import triton

STUCK_S = 600  # seconds; no run of all compilations takes so long
HELPER = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve()"


def keep_cache() -> None:
    """Keep Triton's cache where it is. Inductor moves it within a process if no variable names its place."""
    os.environ.setdefault("TRITON_CACHE_DIR", triton.knobs.cache.dir)


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:150]}" if lines else type(error).__name__


class _Missing(Exception):
    """The error that stops Triton where it is about to compile."""


@dataclass
class Job:
    """One kernel with everything that its code depends on, as `triton.compile` takes it."""

    function: Any
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]
    target: tuple[str, Any, int]  # backend, architecture, threads of a warp

    @classmethod
    def of(cls, function: Any, signature: dict, constants: dict, attributes: dict, options: Any) -> Job:
        target = triton.runtime.driver.active.get_current_target()
        where = (target.backend, target.arch, target.warp_size)
        return cls(function, signature, constants, attributes, dict(options.__dict__), where)

    def source(self, kind: type | None = None) -> Any:
        """Return the `ASTSource` that Triton compiles, or a source of that `kind`."""
        from triton.compiler import ASTSource

        return (kind or ASTSource)(self.function, self.signature, self.constants, self.attributes)

    def compile(self, kind: type | None = None) -> None:
        from triton.backends.compiler import GPUTarget

        triton.compile(self.source(kind), target=GPUTarget(*self.target), options=self.options)

    def is_cached(self) -> bool:
        """Return whether `compile` would find the kernel in the cache. It is called, and stopped
        where it would compile.
        """
        from triton.compiler import ASTSource

        class Probe(ASTSource):
            def make_ir(self, *_: Any, **__: Any) -> None:
                raise _Missing

        try:
            self.compile(Probe)
        except _Missing:
            return False
        return True

    def place(self) -> int:
        """Return a number of 60 bits for this kernel: the same in every process, different for every other kernel."""
        about = repr((self.source().hash(), self.target, sorted(self.options.items())))
        return int(hashlib.sha256(about.encode()).hexdigest()[:15], 16)

    def work(self) -> int:
        """Return an estimate of the compile time that is only good for an order. Loops are unrolled by the constants
        compiled in.
        """
        numbers = [v for v in self.constants.values() if type(v) is int and v > 0]
        return math.prod(numbers)

    def packed(self) -> bytes:
        out = io.BytesIO()
        _Pickler(out).dump(self)
        return out.getvalue()


class _Pickler(pickle.Pickler):
    """A pickler for jobs. It sends functions for Triton, the kernel and its argument functions, by name and source."""

    def persistent_id(self, value: Any) -> tuple[str, str, str] | None:
        if not isinstance(value, triton.runtime.JITFunction):
            return None
        module, name = value.__module__, value.fn.__qualname__
        if module == "__main__" or "<locals>" in name:
            raise ValueError(f"no other process can import {name}")
        return module, name, value.cache_key


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, about: tuple[str, str, str]) -> Any:
        module, name, source = about
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if found.cache_key != source:  # the source of the functions that it calls included
            raise ValueError(f"the source of {name} has changed since this process read it")
        return found


class Helper:
    """The process that forks those that compile. Started early, it imports while the run goes on."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.process: subprocess.Popen | None = None
        self.problem: str | None = None
        self.elsewhere = 0  # jobs that another program had compiled when it was their turn

    def start(self) -> None:
        """Start the process without a visible GPU. A context there would take memory, and no work here needs one."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        try:
            self.said = tempfile.TemporaryFile()
            self.process = subprocess.Popen(
                [sys.executable, "-c", HELPER, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                env=environment,
            )
        except (OSError, TypeError, ValueError) as error:
            self.problem = f"no process to compile in: {first_line(error)}"

    def compile(self, jobs: list[bytes]) -> dict[int, str]:
        """Compile the jobs. Return {number of a job: why it is not in the cache now}, empty if all went well.

        It also counts `elsewhere`.
        """
        self.elsewhere = 0
        if self.process is None:
            return dict.fromkeys(range(len(jobs)), self.problem or "no process to compile in")
        work = {"jobs": jobs, "processes": self.processes, "cache": triton.knobs.cache.dir}
        try:
            answers, _ = self.process.communicate(pickle.dumps(work), timeout=STUCK_S)
        except subprocess.TimeoutExpired:
            self.kill()
            answers = b""
            self.problem = f"compiling took more than {STUCK_S} s"
        except OSError:  # the helper is gone
            answers = b""
        except BaseException:
            self.kill()
            raise
        done = {}
        for line in answers.splitlines():
            with contextlib.suppress(ValueError, KeyError):  # a torn line is no answer
                answer = json.loads(line)
                done[answer["job"]] = answer["error"]
                self.elsewhere += answer["elsewhere"]
        lost = self.problem or f"a process that compiled ended early{self._last_words()}"
        failed = {job: done.get(job, lost) for job in range(len(jobs))}
        return {job: error for job, error in failed.items() if error is not None}

    def _last_words(self) -> str:
        self.said.seek(0)
        lines = self.said.read()[-4000:].decode(errors="replace").split("\n")
        return next((f": {line.strip()[:150]}" for line in reversed(lines) if line.strip()), "")

    def kill(self) -> None:
        """End the helper. Its compilers end at the latest when they try to answer."""
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.close()
                self.process.stdout.close()
            self.process.wait()


class Turns:
    """Locks by which one process compiles a kernel, and others wait and take the result from the cache.

    A kernel's turn is a lock on one byte of a file in the cache, at `Job.place`, far beyond the file's end. Nothing is
    written. The system gives the lock back when its process ends, in whatever way. On a file system without locks every
    process compiles everything.
    """

    NAME = "compiling.lock"

    def __init__(self, cache: str) -> None:
        self.file: Any = None
        with contextlib.suppress(OSError):
            Path(cache).mkdir(parents=True, exist_ok=True)
            # Kept open, because closing it gives up the locks
            self.file = open(Path(cache) / self.NAME, "ab")

    def take(self, place: int, wait: bool) -> bool:
        """Return whether it is this process's turn. With `wait` it always is, in the end."""
        import fcntl

        if self.file is None:
            return True
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except OSError as error:
            return wait or error.errno not in (errno.EAGAIN, errno.EACCES)
        return True

    def give(self, place: int) -> None:
        import fcntl

        if self.file is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self.file, fcntl.LOCK_UN, 1, place)


def serve() -> None:
    """Run the helper's whole life: read jobs, fork processes that compile them, wait. Answers are lines of JSON."""
    answers = os.dup(1)
    os.dup2(2, 1)  # Triton's own prints are no answers.
    # This hashes Triton's own files: once here instead of in each process.
    with contextlib.suppress(Exception):
        triton.runtime.cache.triton_key()
    work = pickle.load(sys.stdin.buffer)
    triton.knobs.cache.dir = work["cache"]
    jobs, turns = work["jobs"], Turns(work["cache"])
    queue, fill = os.pipe()
    children = [_fork(queue, fill, jobs, turns, answers) for _ in range(min(work["processes"], len(jobs)))]
    os.close(queue)
    with contextlib.suppress(BrokenPipeError):
        for number in range(len(jobs)):
            os.write(fill, number.to_bytes(4, "little"))
    os.close(fill)
    for child in children:
        os.waitpid(child, 0)


def _fork(queue: int, fill: int, jobs: list[bytes], turns: Turns, answers: int) -> int:
    """Start a process that takes jobs from the pipe until it is empty. A read of 4 bytes is one job's number.

    It puts aside the jobs that another program is compiling just then. It comes back to them when no others are left.
    """
    if child := os.fork():
        return child
    try:
        os.close(fill)
        aside = []
        while taken := os.read(queue, 4):
            number = int.from_bytes(taken, "little")
            if (answer := _compile(jobs[number], turns, wait=False)) is None:
                aside.append(number)
            else:
                _answer(answers, number, answer)
        for number in aside:
            _answer(answers, number, _compile(jobs[number], turns, wait=True))
    finally:
        os._exit(0)


def _answer(answers: int, number: int, answer: dict[str, Any]) -> None:
    line = json.dumps({"job": number} | answer)
    os.write(answers, line.encode() + b"\n")  # short enough to be written in one piece


def _compile(packed: bytes, turns: Turns, wait: bool) -> dict[str, Any] | None:
    """Return the outcome of a job. Returns None if it is another process's turn and `wait` is off."""
    name = "a kernel"
    try:
        job = _Unpickler(io.BytesIO(packed)).load()
        name = job.function.__name__
        place = job.place()
        if not turns.take(place, wait):
            return None
        try:
            if done := job.is_cached():
                return {"error": None, "elsewhere": done}
            job.compile()
        finally:
            turns.give(place)
    except Exception as error:
        return {"error": f"{name}, ahead of time: {first_line(error)}", "elsewhere": False}
    return {"error": None, "elsewhere": False}
