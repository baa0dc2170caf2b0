"""Compile the Triton kernels that a piece of work needs before it runs, on all cores instead of one.

Triton compiles a kernel when it is first launched, one after the other: half a second each, several for long filters,
and a training step has hundreds. `compile_ahead(run)` runs the work once with the launches of kernels that are not in
Triton's cache left out, so that what comes out is garbage; meanwhile it notes what each would compile, with the real
arguments' types, alignment and constants. Processes of its own then compile all of them into Triton's cache on disk,
where the real launches find them.

Processes, not threads: MLIR, LLVM and ptxas leave the interpreter lock alone, but the front end, which walks the
kernel's syntax tree, holds it for a seventh to a fifth of the time, and that part would still take its turns. They
start when the run is over: cuDNN may be timing its algorithms in it, and must not be disturbed. Programs that begin
side by side with one empty cache share the work. If anything here fails, what is missing is compiled as ever, at its
first launch; the report says why.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernels.common.tiles import INTERPRETED, triton
from kernels.compile.jobs import Helper, Job, first_line, keep_cache

MOST_PROCESSES = 32  # each takes some hundred megabytes
COMPILE = "self key signature device constexprs options attrs warmup"  # parameters of Triton's, 3.6 and 3.7


@dataclass
class Report:
    """What came of it.

    Attributes:
        missing: kernels that were not in the cache. compiled: of these, how many now are.
        elsewhere: of those, how many another program compiled meanwhile.
        seconds: of compiling, after the run; what the run took is the run's.
        whole: the run ended, and no launch was left out: it counts as a run of the real thing.
        problem: why kernels are left to be compiled at their first launch, in one line, or None.
    """

    missing: int = 0
    compiled: int = 0
    elsewhere: int = 0
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
    keep_cache()
    helper = Helper(processes or _cores())
    recorder = _Recorder(helper.start)
    try:
        with recorder.listening():
            run()
        report.whole = not recorder.jobs
    except Exception as error:  # if it was not the garbage, it comes again without it
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
    """Why this Triton or this machine cannot, or None."""
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
            job = Job.of(function, *about)
            if job.is_cached():
                return False
            packed = job.packed()
        except Exception as error:  # a kernel, or a Triton, that this does not know: compiled here and now
            self.problem = self.problem or f"{function.__name__}: {first_line(error)}"
            return False
        self.known.add(name)
        self.jobs.append((job.work(), packed))
        if len(self.jobs) == 1:
            self.on_first()
        return True
