"""Compile the Triton kernels that a piece of work needs before it runs, on all cores instead of one.

Triton compiles a kernel when it is first launched, one after the other: half a second each, several for long filters,
and a training step has hundreds. `compile_ahead(run)` runs the work once with the launches of kernels that are not in
Triton's cache left out, so that what comes out is garbage; meanwhile it notes what each would compile, with the real
arguments' types, alignment and constants. Processes of its own then compile all of them into Triton's cache on disk,
where the real launches find them.

Processes, not threads: MLIR, LLVM and ptxas leave the interpreter lock alone, but the front end, which walks the
kernel's syntax tree, holds it for a seventh to a fifth of the time, and that part would still take its turns. They are
forked by one helper process that has imported the kernels and knows nothing of CUDA: forking this process, with its
driver and threads, would not be safe, and a process that imports torch anew takes seconds.

They start when the run is over: cuDNN may be timing its algorithms in it, and must not be disturbed. If anything here
fails, what is missing is compiled as ever, at its first launch; the report says what and why.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernels.tiles import INTERPRETED, triton

MOST_PROCESSES = 32  # each takes 200 to 400 MB
COMPILE = (
    "self",
    "key",
    "signature",
    "device",
    "constexprs",
    "options",
    "attrs",
    "warmup",
)  # Triton's parameters
STUCK_S = 600  # no run of all compilations takes so long
HELPER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from kernels.precompile import serve; serve()"
)


@dataclass
class Report:
    """What came of it.

    Attributes:
        missing: kernels that were not in the cache. compiled: of these, how many now are.
        seconds: of compiling, after the run; what the run took is the run's.
        whole: the run ended, and no launch was left out: it counts as a run of the real thing.
        problem: why kernels are left to be compiled at their first launch, in one line, or None.
    """

    missing: int = 0
    compiled: int = 0
    seconds: float = 0.0
    whole: bool = False
    problem: str | None = None


def compile_ahead(run: Callable[[], object], *, processes: int | None = None) -> Report:
    """Call `run` once without the launches that would have to compile, then compile those kernels side by side.

    Never raises what `run` or a compilation raised: the real run comes to it again. Where nothing is missing, `run`
    has run like any other time. Only launches of `triton.jit` functions are left out, not those of torch.compile's.
    """
    report = Report()
    if INTERPRETED or (why := _unsupported()):
        report.problem = "Triton's interpreter compiles nothing" if INTERPRETED else why
        return report
    helper = _Helper(processes or _cores())
    recorder = _Recorder(helper.start)
    try:
        with recorder.listening():
            run()
        report.whole = not recorder.jobs
    except Exception as error:  # if it was not the garbage, it comes again without it
        report.problem = f"the run without launches: {_first_line(error)}"
    except BaseException:
        helper.kill()
        raise
    begin = time.perf_counter()
    report.missing = len(recorder.jobs)
    if recorder.jobs:
        failed = helper.compile([job for _, job in sorted(recorder.jobs, key=lambda each: -each[0])])
        report.compiled = report.missing - len(failed)
        report.problem = report.problem or next(iter(failed.values()), None)
    report.problem = report.problem or recorder.problem
    report.seconds = time.perf_counter() - begin
    return report


def _unsupported() -> str | None:
    """Why this Triton or this machine cannot, or None."""
    function = getattr(getattr(triton, "runtime", None), "JITFunction", None)
    where = getattr(function, "_do_compile", None)
    if where is None or tuple(inspect.signature(where).parameters) != COMPILE:
        return "not known how this Triton compiles"
    if triton.knobs.compilation.always_compile:
        return "Triton is told to compile always"
    return None if hasattr(os, "fork") else "processes cannot be forked here"


def _cores() -> int:
    available = getattr(os, "sched_getaffinity", None)
    return min(MOST_PROCESSES, len(available(0)) if available else os.cpu_count() or 1)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:150]}" if lines else type(error).__name__


# ---- noting what would be compiled -------------------------------------------------------------------------------


class _Recorder:
    """Stands where Triton goes to compile for a launch: leaves the launch out, and notes what is missing.

    It stands in the class and not in this thread alone: autograd launches the backward pass from threads of its own.
    Triton has a hook at this place, too, but turns everything into JSON for it, which not every constant can be.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.on_first = on_first
        self.jobs: list[tuple[int, bytes]] = []  # with a guess at how long each takes
        self.known: set[tuple[int, str]] = set()
        self.problem: str | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        cls = triton.runtime.JITFunction
        compile_now = cls._do_compile

        def do_compile(function, key, signature, device, constexprs, options, attrs, warmup):
            if self.left_out(function, key, signature, constexprs, attrs, options):
                return None  # for Triton: no kernel, nothing to launch
            return compile_now(function, key, signature, device, constexprs, options, attrs, warmup)

        cls._do_compile = do_compile
        try:
            yield
        finally:
            cls._do_compile = compile_now

    def left_out(self, function: Any, key: str, *about: Any) -> bool:
        name = (id(function), key)
        if name in self.known:
            return True
        try:
            job = _Job.of(function, *about)
            if job.is_cached():
                return False
            packed = job.packed()
        except Exception as error:  # a kernel, or a Triton, that this does not know: compiled here and now
            self.problem = self.problem or f"{function.__name__}: {_first_line(error)}"
            return False
        self.known.add(name)
        self.jobs.append((job.work(), packed))
        if len(self.jobs) == 1:
            self.on_first()
        return True


class _Missing(Exception):
    """Triton was about to compile."""


@dataclass
class _Job:
    """One kernel with everything that its code depends on, as `triton.compile` takes it."""

    function: Any
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]
    target: tuple[str, Any, int]  # backend, architecture, threads of a warp

    @classmethod
    def of(cls, function: Any, signature: dict, constants: dict, attributes: dict, options: Any) -> _Job:
        target = triton.runtime.driver.active.get_current_target()
        where = (target.backend, target.arch, target.warp_size)
        return cls(function, signature, constants, attributes, dict(options.__dict__), where)

    def compile(self, kind: type | None = None) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        source = (kind or ASTSource)(self.function, self.signature, self.constants, self.attributes)
        triton.compile(source, target=GPUTarget(*self.target), options=self.options)

    def is_cached(self) -> bool:
        """Whether `compile` would find it in the cache: asks it to, and stops it where it would begin to compile."""
        from triton.compiler import ASTSource

        class Probe(ASTSource):
            def make_ir(self, *_: Any, **__: Any) -> None:
                raise _Missing

        try:
            self.compile(Probe)
        except _Missing:
            return False
        return True

    def work(self) -> int:
        """A guess at how long it takes, only good for an order: loops are unrolled by the numbers compiled in."""
        numbers = [v for v in self.constants.values() if type(v) is int and v > 0]
        return math.prod(numbers)

    def packed(self) -> bytes:
        out = io.BytesIO()
        _Pickler(out).dump(self)
        return out.getvalue()


class _Pickler(pickle.Pickler):
    """Functions for Triton, the kernel and those that are its arguments, go by name and source."""

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
        if found.cache_key != source:  # that of the functions it calls included
            raise ValueError(f"the source of {name} has changed since this process read it")
        return found


# ---- compiling, elsewhere ----------------------------------------------------------------------------------------


class _Helper:
    """The process that forks those that compile. Started early, it imports while the run goes on."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.process: subprocess.Popen | None = None
        self.problem: str | None = None

    def start(self) -> None:
        """No GPU is to be seen: a context there would take memory, and nothing here needs one."""
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
            self.problem = f"no process to compile in: {_first_line(error)}"

    def compile(self, jobs: list[bytes]) -> dict[int, str]:
        """{number of a job: why it is not in the cache now}, empty if all went well."""
        if self.process is None:
            return dict.fromkeys(range(len(jobs)), self.problem or "no process to compile in")
        work = {"jobs": jobs, "processes": self.processes, "cache": triton.knobs.cache.dir}
        try:
            answers, _ = self.process.communicate(pickle.dumps(work), timeout=STUCK_S)
        except subprocess.TimeoutExpired:
            self.kill()
            answers = b""
            self.problem = f"compiling took more than {STUCK_S} s"
        except OSError:  # it is gone
            answers = b""
        done = {}
        for line in answers.splitlines():
            with contextlib.suppress(ValueError, KeyError):  # a line that is torn is no answer
                answer = json.loads(line)
                done[answer["job"]] = answer["error"]
        lost = self.problem or f"a process that compiled ended early{self._last_words()}"
        failed = {job: done.get(job, lost) for job in range(len(jobs))}
        return {job: error for job, error in failed.items() if error is not None}

    def _last_words(self) -> str:
        self.said.seek(0)
        lines = self.said.read()[-4000:].decode(errors="replace").split("\n")
        return next((f": {line.strip()[:150]}" for line in reversed(lines) if line.strip()), "")

    def kill(self) -> None:
        """Those that compile end at the latest when they are about to answer: there is no one to answer to."""
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.close()
                self.process.stdout.close()
            self.process.wait()


def serve() -> None:
    """The helper's whole life: reads jobs, forks processes that compile them, waits. Answers are lines of JSON."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what Triton prints is no answer
    with contextlib.suppress(Exception):  # hashes Triton's own files: once here instead of in each process
        triton.runtime.cache.triton_key()
    work = pickle.load(sys.stdin.buffer)
    triton.knobs.cache.dir = work["cache"]
    jobs = work["jobs"]
    queue, fill = os.pipe()
    children = [_fork(queue, fill, jobs, answers) for _ in range(min(work["processes"], len(jobs)))]
    os.close(queue)
    with contextlib.suppress(BrokenPipeError):
        for number in range(len(jobs)):
            os.write(fill, number.to_bytes(4, "little"))
    os.close(fill)
    for child in children:
        os.waitpid(child, 0)


def _fork(queue: int, fill: int, jobs: list[bytes], answers: int) -> int:
    """Start a process that takes jobs from the pipe until there are no more: a read of 4 bytes is one job's number."""
    if child := os.fork():
        return child
    try:
        os.close(fill)
        while taken := os.read(queue, 4):
            number = int.from_bytes(taken, "little")
            answer = {"job": number, "error": _compile(jobs[number])}
            os.write(answers, json.dumps(answer).encode() + b"\n")  # short enough to be written in one piece
    finally:
        os._exit(0)


def _compile(packed: bytes) -> str | None:
    name = "a kernel"
    try:
        job = _Unpickler(io.BytesIO(packed)).load()
        name = job.function.__name__
        job.compile()
    except Exception as error:
        return f"{name}, ahead of time: {_first_line(error)}"
    return None
