"""The trainings of the quality canary (`ladder.studies.canary`): each rung from each seed, several at a time.

Nothing is timed, so trainings may share a GPU, each in its own process: one that dies loses only its training.
"""

from __future__ import annotations

import collections
import contextlib
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch
from torch import Tensor

import stylegan_lite
from ladder.core.plain import Fields
from ladder.machine import system
from ladder.training import mishaps, swd
from stylegan_lite.data import ImageFolder

MOST_SAMPLES = {"cuda": 2000, "cpu": 500}
MOST_JOBS = 4
LATENT_SEED = 4

Task = tuple[str, Fields, int]  # its key, recipe and seed


@dataclass(frozen=True)
class Setup:
    """What all trainings have in common. `threads` is the number of CPU threads of each, None for torch's own."""

    workload: Fields  # with the path of its images
    device: str
    steps: int
    threads: int | None = None


@dataclass(frozen=True)
class Outcome:
    """One training: the distances of so many samples by resolution, or why it broke."""

    levels: dict[str, float] | None = None
    samples: int = 0
    reason: str | None = None


def train_task(setup: Setup, task: Task) -> Outcome:
    """Train a rung from a seed, in a process of its own."""
    if setup.threads is not None:  # equal to the parent process, because another number rounds differently
        torch.set_num_threads(setup.threads)
    return train_rung(setup, task[1], read_real(setup), task[2])


def train_rung(setup: Setup, recipe: Fields, real: Tensor, seed: int) -> Outcome:
    """Train a rung from a seed. ``real`` are images [N, 3, R, R] in [-1, 1]."""
    try:
        step = stylegan_lite.make_step(setup.workload, recipe, device=setup.device, seed=seed)
        try:
            step.prepare()
            torch.manual_seed(seed)
            for _ in range(setup.steps):
                step.step()
            if problem := step.check_finite():
                return Outcome(reason=problem)
            levels = swd.measure_distances(real.to(setup.device), draw_samples(step, len(real)))
        finally:
            step.close()
    except Exception as error:  # no error may stop the other rungs
        return Outcome(reason=mishaps.describe_error(error))
    if not all(math.isfinite(value) for value in levels.values()):
        return Outcome(reason="the samples are not finite")
    return Outcome({str(side): round(value, 3) for side, value in levels.items()}, len(real))


def draw_samples(step: stylegan_lite.step.TrainingStep, count: int) -> Tensor:
    """Return ``count`` images of the averaged generator. The latents are the same for every rung and seed."""
    generator = torch.Generator().manual_seed(LATENT_SEED)
    z = torch.randn(count, step.workload.z_dim, generator=generator)
    return torch.cat([step.sample(part) for part in z.split(step.workload.batch)])


def read_real(setup: Setup) -> Tensor:
    """Return the images to compare with, spread evenly over the set, [samples, 3, R, R] in [-1, 1]."""
    folder = ImageFolder(str(setup.workload["data"]), int(setup.workload["resolution"]), False)
    count = min(MOST_SAMPLES[setup.device], len(folder))
    return torch.stack([folder[len(folder) * k // count, False] for k in range(count)])


# --- several at a time ------------------------------------------------------------------------------------------------


def choose_jobs(device: str) -> int:
    """Return the default number of trainings at a time.

    On a GPU, eager steps wait for a core more than for the GPU. On a CPU, one training fills the machine.
    """
    return max(1, min(MOST_JOBS, system.usable_cores() // 3)) if device == "cuda" else 1


def train_all(
    setup: Setup, tasks: Sequence[Task], jobs: int | None
) -> Generator[tuple[Task, Outcome], None, None]:
    """Yield each task with its training, in the order of completion."""
    jobs = min(jobs or choose_jobs(setup.device), len(tasks))
    if jobs == 1:
        real = read_real(setup)
        yield from ((task, train_rung(setup, task[1], real, task[2])) for task in tasks)
    else:
        cpu = setup.device == "cpu"
        threads = torch.get_num_threads() if cpu else max(1, system.usable_cores() // jobs)
        yield from run_parallel(train_task, replace(setup, threads=threads), tasks, jobs)


def run_parallel(
    do: Callable[[Any, Any], Outcome], setup: Any, tasks: Sequence[Any], jobs: int
) -> Iterator[tuple[Any, Outcome]]:
    """Yield each task with ``do(setup, task)`` from a process of its own, in the order of completion.

    Everything must be picklable. The processes end when the iterator is closed or this process ends.
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the CUDA of its parent
    waiting = collections.deque(tasks)
    running: dict[Connection, tuple[multiprocessing.process.BaseProcess, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                here, there = context.Pipe()
                process = context.Process(target=_run_task, args=(there, do, setup, task))
                process.start()
                there.close()  # so that the pipe ends with the process
                running[here] = process, task
            for connection in cast(list[Connection], wait([*running])):
                process, task = running[connection]
                try:
                    outcome = connection.recv()
                except (EOFError, OSError):
                    process.join(10)
                    code = process.exitcode
                    killed = code is not None and code < 0
                    end = f"killed by {signal.Signals(-code).name}" if killed else f"ended with status {code}"
                    outcome = Outcome(reason=f"worker {end}")
                _end_process(process)
                del running[connection]
                yield task, outcome
    finally:
        for process, _ in running.values():
            _end_process(process)


def _end_process(process: multiprocessing.process.BaseProcess) -> None:
    """Kill a worker with its data loaders."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    process.kill()  # the process may not have its group yet
    process.join()


def _run_task(connection: Connection, do: Callable[[Any, Any], Outcome], setup: Any, task: Any) -> None:
    os.setpgid(0, 0)  # Ctrl-C goes to the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome = do(setup, task)
    except Exception as error:
        outcome = Outcome(reason=mishaps.describe_error(error))
    connection.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)
