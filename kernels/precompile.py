"""Ahead-of-time compilation of the Triton kernels that a piece of work needs, on all cores instead of one.

Triton compiles a kernel at its first launch, one kernel after the other. A kernel takes half a second, several seconds
for long filters, and a training step has hundreds. The function `compile_ahead(run)` runs the work once. It leaves out
the launches of kernels that are missing in Triton's cache, so the results of that run are garbage. Meanwhile it notes
the jobs: each missing kernel with the real arguments' types, alignment and constants. Separate processes then compile
all jobs into Triton's cache on disk, and the real launches find them there.

Processes are used instead of threads because of the interpreter lock. MLIR, LLVM and ptxas release it. The front end
walks the kernel's syntax tree and holds it for a seventh to a fifth of the time. The processes start after the run:
cuDNN may time its algorithms during the run and must not be disturbed. Programs that begin side by side with one empty
cache share the work. If anything here fails, missing kernels are compiled at their first launch, and the report says
why.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .common.tiles import INTERPRETED, triton
from .compile.jobs import Helper, Job, first_line, keep_cache

MOST_PROCESSES = 32  # each takes some hundred megabytes
COMPILE = "self key signature device constexprs options attrs warmup"  # parameters of Triton's function, 3.6 and 3.7


@dataclass
class Report:
    """The outcome of compiling ahead.

    Attributes:
        missing: kernels that were not in the cache.
        compiled: missing kernels that are in the cache now.
        elsewhere: compiled kernels that another program compiled meanwhile.
        seconds: seconds of compiling after the run.
        whole: whether the run ended without leaving out a launch. It then counts as a real run.
        problem: one line that says why kernels are left to their first launch, or None.
    """

    missing: int = 0
    compiled: int = 0
    elsewhere: int = 0
    seconds: float = 0.0
    whole: bool = False
    problem: str | None = None


def compile_ahead(run: Callable[[], object], *, processes: int | None = None) -> Report:
    """Call `run` once without the launches that would have to compile, then compile those kernels side by side.

    Errors of `run` and of compilations are not raised here: the real run meets them again. If no kernel is missing,
    `run` has run normally. Only launches of `triton.jit` functions are left out, not those of torch.compile's kernels.
    """
    report = Report()
    if INTERPRETED or (why := _unsupported()):
        report.problem = "Triton's interpreter compiles nothing" if INTERPRETED else why
        return report
    keep_cache()
    helper = Helper(processes or _cores())
    recorder = _Recorder(helper.start)
    try:
        with recorder.listening():
            run()
        report.whole = not recorder.jobs
    except Exception as error:  # An error that the garbage did not cause comes again in the real run.
        report.problem = f"the run without launches: {first_line(error)}"
    except BaseException:
        helper.kill()
        raise
    begin = time.perf_counter()
    report.missing = len(recorder.jobs)
    if recorder.jobs:
        failed = helper.compile([job for _, job in sorted(recorder.jobs, key=lambda each: -each[0])])
        report.compiled, report.elsewhere = report.missing - len(failed), helper.elsewhere
        report.problem = report.problem or next(iter(failed.values()), None)
    report.problem = report.problem or recorder.problem
    report.seconds = time.perf_counter() - begin
    return report


def _unsupported() -> str | None:
    """Return why this Triton or this machine cannot compile ahead, or None."""
    function = getattr(getattr(triton, "runtime", None), "JITFunction", None)
    where = getattr(function, "_do_compile", None)
    if where is None or " ".join(inspect.signature(where).parameters) != COMPILE:
        return "not known how this Triton compiles"
    if triton.knobs.compilation.always_compile:
        return "Triton is told to compile always"
    return None if hasattr(os, "fork") else "processes cannot be forked here"


def _cores() -> int:
    available = getattr(os, "sched_getaffinity", None)
    return min(MOST_PROCESSES, len(available(0)) if available else os.cpu_count() or 1)


# ---- noting what would be compiled -------------------------------------------------------------------------------


class _Recorder:
    """A stand-in for Triton's compiler. It leaves launches of missing kernels out, and notes their jobs.

    It patches the class, because autograd launches the backward pass from threads of its own. Triton has a hook here
    too. The hook turns every constant into JSON, and some constants cannot be JSON.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.on_first = on_first
        self.jobs: list[tuple[int, bytes]] = []  # each with an estimate of its compile time
        self.known: set[tuple[int, str]] = set()
        self.problem: str | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        cls = triton.runtime.JITFunction
        compile_now = cls._do_compile

        def do_compile(function, key, signature, device, constexprs, options, attrs, warmup):
            if self.left_out(function, key, signature, constexprs, attrs, options):
                return None  # tells Triton: no kernel, nothing to launch
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
            job = Job.of(function, *about)
            if job.is_cached():
                return False
            packed = job.packed()
        # This module does not know the kernel or the Triton: compile it here and now.
        except Exception as error:
            self.problem = self.problem or f"{function.__name__}: {first_line(error)}"
            return False
        self.known.add(name)
        self.jobs.append((job.work(), packed))
        if len(self.jobs) == 1:
            self.on_first()
        return True
