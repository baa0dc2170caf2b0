"""Compiles what `ladder kernels` is about to time on all cores instead of one after the other: our Triton kernels, and
what torch.compile makes of plain PyTorch.

Both end up in caches on disk, where the measuring process finds them. It compiles nothing while others do, and nobody
compiles while it measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ladder.studies.kernelbench.calls import call_of, compiling
from ladder.studies.kernelbench.cases.registry import Case, named

AT_ONCE = (
    64  # cases compiled before they are measured: a run that ends early has not compiled all that it leaves
)
MOST_PROCESSES = 16  # each imports torch and holds a GPU context, half a gigabyte
STUCK_S = 300  # no batch takes so long
GPU_BYTES_EACH = 8 * 2**30  # for the inputs, results and gradients of the largest cases
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ladder.studies.kernelbench.compiling import serve; serve(*sys.argv[2:])"
)


def compile_ours(cases: Sequence[Case], gpu: Any) -> Any:
    """Every Triton kernel that these cases launch, into Triton's cache; what fails is compiled when it is launched.

    Returns:
        a `kernels.precompile.Report`.
    """
    from kernels.precompile import compile_ahead

    def call_each() -> None:
        for case in cases:
            for direction in case.directions:
                with contextlib.suppress(Exception):  # it comes again, and is then a row's reason
                    call_of(case, direction, case.fused(), gpu.name)()
                gpu.forget()

    with gpu.running():
        return compile_ahead(call_each)


class Compilers:
    """Processes that call torch.compile on cases, for the cache that it keeps on disk. They wait between two batches.

    What they cannot compile, for want of memory say, is left to who measures.
    """

    def __init__(self, processes: int, backend: str, device: str) -> None:
        self.threads = ThreadPoolExecutor(max(1, processes))
        self.lock = threading.Lock()
        self.running: list[subprocess.Popen] = []
        if processes:
            from kernels.precompile import keep_cache

            keep_cache()  # theirs is then this process's
        # One thread each: Inductor would start as many as there are cores in every one of them.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with contextlib.suppress(OSError):  # no room for a process: fewer, or none
            for _ in range(processes):
                command = [sys.executable, "-c", WORKER, json.dumps(sys.path), backend, device]
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for who measures, and ends these with it
                )
                self.running.append(process)

    def compile(self, names: Sequence[str]) -> list[str]:
        """Cases by name, as each process is free; returns those that went through."""
        waiting, done = iter(names), []

        def feed(process: subprocess.Popen) -> None:
            with contextlib.suppress(OSError, ValueError):  # it has died: the others go on
                while name := self._next(waiting):
                    process.stdin.write(f"{name}\n".encode())
                    process.stdin.flush()
                    if not (answer := process.stdout.readline()):
                        return
                    if answer.strip() == b"ok":
                        done.append(name)

        watch = threading.Timer(STUCK_S, self._kill)
        watch.start()
        try:
            list(self.threads.map(feed, self.running))
        finally:
            watch.cancel()
        return done

    def _next(self, names: Iterator[str]) -> str | None:
        with self.lock:
            return next(names, None)

    def _kill(self) -> None:
        for process in self.running:
            process.kill()

    def close(self) -> None:
        """End them. Were this process killed, they would get no more names, and end too."""
        self._kill()
        self.threads.shutdown()
        for process in self.running:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()
            process.stdout.close()
            process.wait()


def serve(backend: str, device: str) -> None:
    """A process of `Compilers`: reads names of cases, answers each with a line when it has been compiled."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what is printed on the way is no answer
    for line in sys.stdin:
        try:
            compile_theirs(named(line.strip()), backend, device)
        except Exception:  # it comes again, and is then a row's reason
            print("failed", file=answers)
        else:
            print("ok", file=answers)


def compile_theirs(case: Case, backend: str, device: str) -> None:
    """What `kernelbench` does with its contender `compile`, once in each direction that it can."""
    import torch
    from torch._inductor import config

    # Its kernels' tiles are timed where nobody else uses the GPU; here they are compiled only.
    with compiling(), config.patch(autotune_local_cache=False):
        torch.compiler.reset()
        function = torch.compile(case.reference(), backend=backend, dynamic=False, fullgraph=True)
        for direction in case.directions:
            if direction != "double backward":  # torch.compile has none
                call_of(case, direction, function, device)()
    if device == "cuda":
        torch.cuda.empty_cache()


class Ahead:
    """Compiles the cases of a run batch by batch, each before its first case is measured."""

    def __init__(
        self, cases: Sequence[Case], gpu: Any, backend: str, tell: Callable[[int, int], None]
    ) -> None:
        """tell: gets the first's number and how many there are whenever cases are about to be compiled."""
        self.cases, self.gpu, self.backend, self.tell = cases, gpu, backend, tell
        self.compilers: Compilers | None = None

    def __call__(self, index: int) -> None:
        """Case number `index` is measured next."""
        if index % AT_ONCE:
            return
        batch = self.cases[index : index + AT_ONCE]
        self.tell(index, len(batch))
        if self.compilers is None:
            self.compilers = Compilers(processes(self.gpu), self.backend, self.gpu.name)
        with contextlib.suppress(Exception):  # what goes wrong comes again when a case is measured
            compile_ours(batch, self.gpu)  # while the others import torch
        self.compilers.compile([case.name for case in batch])

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *how: Any) -> None:
        if self.compilers:
            self.compilers.close()


def processes(gpu: Any) -> int:
    """How many compile side by side. None on a CPU, where a smoke test compiles nothing."""
    if gpu.name != "cuda":
        return 0
    from ladder.machine import system

    return min(MOST_PROCESSES, system.usable_cores(), gpu.memory // GPU_BYTES_EACH)
