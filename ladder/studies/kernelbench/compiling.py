"""The compiling ahead of `ladder kernels`, on all cores: our Triton kernels, and torch.compile of plain PyTorch.

Both end up in caches on disk, where the measuring process finds them. Compiling and measuring never overlap.
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

from ladder.studies.kernelbench.bench import call_of, compiling
from ladder.studies.kernelbench.cases.registry import Case, named

AT_ONCE = 64  # cases in a batch; small, so that a run that ends early compiles little in vain
MOST_PROCESSES = 16  # each imports torch and holds a GPU context of half a gigabyte
STUCK_S = 300  # longer than any batch takes
GPU_BYTES_EACH = 8 * 2**30  # for the inputs, results and gradients of the largest cases
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ladder.studies.kernelbench.compiling import serve; serve(*sys.argv[2:])"
)


def compile_ours(cases: Sequence[Case], gpu: Any) -> Any:
    """Compile every Triton kernel of these cases into Triton's cache. A failed kernel is compiled at its launch.

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
    """Processes that call torch.compile on cases to fill its cache on disk. They wait between two batches.

    Cases that they cannot compile, for want of memory say, are left to the measuring process.
    """

    def __init__(self, processes: int, backend: str, device: str) -> None:
        self.threads = ThreadPoolExecutor(max(1, processes))
        self.lock = threading.Lock()
        self.running: list[subprocess.Popen] = []
        if processes:
            from kernels.precompile import keep_cache

            keep_cache()  # the processes share this process's cache
        # One thread each: by default Inductor starts a thread for every core in each process.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with contextlib.suppress(OSError):  # without room for a process there are fewer, or none
            for _ in range(processes):
                command = [sys.executable, "-c", WORKER, json.dumps(sys.path), backend, device]
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches only the measuring process, which ends these
                )
                self.running.append(process)

    def compile(self, names: Sequence[str]) -> list[str]:
        """Compile cases by name, each on the next free process. Return the names that succeeded."""
        waiting, done = iter(names), []

        def feed(process: subprocess.Popen) -> None:
            with contextlib.suppress(OSError, ValueError):  # this process has died; the others go on
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
        """End the processes. If this process is killed, their input ends, and they end too."""
        self._kill()
        self.threads.shutdown()
        for process in self.running:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()
            process.stdout.close()
            process.wait()


def serve(backend: str, device: str) -> None:
    """Read names of cases, and answer each with a line after compiling it: one process of `Compilers`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps other output out of the answers
    for line in sys.stdin:
        try:
            compile_theirs(named(line.strip()), backend, device)
        except Exception:  # it comes again, and is then a row's reason
            print("failed", file=answers)
        else:
            print("ok", file=answers)


def compile_theirs(case: Case, backend: str, device: str) -> None:
    """Compile a case as `kernelbench` does for its contender `compile`, once in each supported direction."""
    import torch
    from torch._inductor import config

    # Tiles are timed only while nothing else uses the GPU; here they are just compiled.
    with compiling(), config.patch(autotune_local_cache=False):
        torch.compiler.reset()
        function = torch.compile(case.reference(), backend=backend, dynamic=False, fullgraph=True)
        for direction in case.directions:
            if direction != "double backward":  # torch.compile does not support it
                call_of(case, direction, function, device)()
    if device == "cuda":
        torch.cuda.empty_cache()


class Ahead:
    """A compiler of a run's cases, batch by batch, each before its first case is measured."""

    def __init__(
        self, cases: Sequence[Case], gpu: Any, backend: str, tell: Callable[[int, int], None]
    ) -> None:
        """Store the arguments. `tell` gets the first index and the number of cases before each batch."""
        self.cases, self.gpu, self.backend, self.tell = cases, gpu, backend, tell
        self.compilers: Compilers | None = None

    def __call__(self, index: int) -> None:
        """Compile the batch that begins at case `index`, if one does."""
        if index % AT_ONCE:
            return
        batch = self.cases[index : index + AT_ONCE]
        self.tell(index, len(batch))
        if self.compilers is None:
            self.compilers = Compilers(processes(self.gpu), self.backend, self.gpu.name)
        with contextlib.suppress(Exception):  # a failure comes again when its case is measured
            compile_ours(batch, self.gpu)  # meanwhile the processes import torch
        self.compilers.compile([case.name for case in batch])

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *how: Any) -> None:
        if self.compilers:
            self.compilers.close()


def processes(gpu: Any) -> int:
    """Return how many processes compile side by side, 0 on a CPU: there a smoke test compiles nothing."""
    if gpu.name != "cuda":
        return 0
    from ladder.machine import system

    return min(MOST_PROCESSES, system.usable_cores(), gpu.memory // GPU_BYTES_EACH)
