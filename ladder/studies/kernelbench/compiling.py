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
from ladder.studies.kernelbench.cases import Case, parse_case

AT_ONCE = 64  # cases in a batch; small, so that a run that ends early compiles little in vain
MOST_PROCESSES = 16  # each imports torch and holds a GPU context of half a gigabyte
STUCK_S = 300  # longer than any batch takes
GPU_BYTES_EACH = 8 * 2**30  # for the inputs, results and gradients of the largest cases
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ladder.studies.kernelbench.compiling import serve; serve(*sys.argv[2:])"
)


class Ahead:
    """A compiler of a run's cases, batch by batch, each before its first case is measured.

    `report` gets the number of cases before each batch. The processes that call torch.compile wait between batches.
    """

    def __init__(self, cases: Sequence[Case], gpu: Any, backend: str, report: Callable[[int], Any]) -> None:
        self.cases, self.gpu, self.backend, self.report = cases, gpu, backend, report
        self.running: list[subprocess.Popen] | None = None

    def __call__(self, index: int) -> None:
        """Compile the batch that begins at case `index`, if one does."""
        if index % AT_ONCE:
            return
        batch = self.cases[index : index + AT_ONCE]
        self.report(len(batch))
        if self.running is None:
            self.running = start_processes(count_processes(self.gpu), self.backend, self.gpu.name)
        with contextlib.suppress(Exception):  # a failure comes again when its case is measured
            compile_ours(batch, self.gpu)  # meanwhile the processes import torch
        compile_by(self.running, [case.name for case in batch])

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *how: Any) -> None:
        end_processes(self.running or [])


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


def count_processes(gpu: Any) -> int:
    """Return how many processes compile side by side, 0 on a CPU: there a smoke test compiles nothing."""
    from ladder.machine import system

    if gpu.name != "cuda":
        return 0
    return min(MOST_PROCESSES, system.usable_cores(), gpu.memory // GPU_BYTES_EACH)


def start_processes(count: int, backend: str, device: str) -> list[subprocess.Popen]:
    """Start processes that `serve`. If this process is killed, their input ends, and they end too."""
    if count:
        from kernels.precompile import keep_cache

        keep_cache()  # the processes share this process's cache
    # One thread each: by default Inductor starts a thread for every core in each process.
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, json.dumps(sys.path), backend, device]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
    }
    # In a session of their own, as Ctrl-C is for the measuring process, which ends these.
    return [subprocess.Popen(command, env=env, start_new_session=True, **pipes) for _ in range(count)]


def compile_by(running: Sequence[subprocess.Popen], names: Sequence[str]) -> list[str]:
    """Compile cases by name, each on the next free process. Return the names that succeeded.

    Others, those that want more memory for example, are left to the measuring process.
    """
    waiting, lock, done = iter(names), threading.Lock(), []

    def take() -> Iterator[str]:
        while True:
            with lock:
                name = next(waiting, None)
            if name is None:
                return
            yield name

    def feed(process: subprocess.Popen) -> None:
        with contextlib.suppress(OSError, ValueError):  # this process has died; the others go on
            for name in take():
                process.stdin.write(f"{name}\n".encode())
                process.stdin.flush()
                if not (answer := process.stdout.readline()):
                    return
                if answer.strip() == b"ok":
                    done.append(name)

    def kill() -> None:
        for process in running:
            process.kill()

    watch = threading.Timer(STUCK_S, kill)
    watch.start()
    try:
        with ThreadPoolExecutor(max(1, len(running))) as threads:
            list(threads.map(feed, running))
    finally:
        watch.cancel()
    return done


def end_processes(running: Sequence[subprocess.Popen]) -> None:
    for process in running:
        process.kill()
    for process in running:
        with contextlib.suppress(BrokenPipeError), process:  # closes its pipes and waits
            pass


def serve(backend: str, device: str) -> None:
    """Read names of cases, and answer each with a line after compiling it."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps other output out of the answers
    for line in sys.stdin:
        try:
            compile_theirs(parse_case(line.strip()), backend, device)
            print("ok", file=answers)
        except Exception:  # it comes again, and is then a row's reason
            print("failed", file=answers)


def compile_theirs(case: Case, backend: str, device: str) -> None:
    """Compile a case as `Bench` does for its contender `compile`, once in each supported direction."""
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
