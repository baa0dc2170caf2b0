"""The quality canary: a test whether a rung trains models as good as the baseline's.

Parity compares one step, and errors of many steps could still add up. The canary trains a small workload on every
rung for a fixed number of steps from several seeds. It compares the sliced Wasserstein distance between samples
and data with the baseline's band (`ladder.training.canary_file`). The canary sees a broken model, not a difference
of a fraction of a percent.

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
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import msgspec
import torch
from torch import Tensor

import stylegan_lite
from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.events import OnEvent
from ladder.base.paths import ROOT
from ladder.base.plain import Fields
from ladder.base.stopping import stop_on_sigterm
from ladder.core.job import Job
from ladder.core.records import Record, read_record
from ladder.images.prepare import ImageSet
from ladder.machine import system
from ladder.plan.catalog import Planned
from ladder.results import identity, record
from ladder.training import canary_file, mishaps, swd
from ladder.training.canary_file import Canary, Rung, Training
from stylegan_lite.data import ImageFolder

OUT = ROOT / "results" / "canary"
MOST_SAMPLES = {"cuda": 2000, "cpu": 500}
MOST_JOBS = 4
LATENT_SEED = 4

Task = tuple[str, Fields, int]  # rung, recipe, seed


class Options(Record):
    """The options of `ladder train --canary`. By default `jobs` is `choose_jobs`."""

    ladder: str = "article"
    steps: int = 500
    seeds: int = 3
    jobs: int | None = None


@dataclass(frozen=True)
class Setup:
    """What all trainings have in common. `threads` is the number of CPU threads of each, None for torch's own."""

    workload: Fields
    images: ImageSet
    samples: int
    device: str
    steps: int
    threads: int | None = None


def run(job: Job, planned: Sequence[Planned], images: ImageSet, on_event: OnEvent | None = None) -> Canary:
    """Train every rung from every seed, and return the result. It is incomplete after Ctrl-C, SIGTERM or SIGHUP.

    The file is written after every training. The number of trainings at a time changes neither the records nor their
    order. The first event is "start". Each training calls ``on_event`` with {"event": "trained", "rung", "seed",
    "done", "total", "distance"}. The last event, "end", has the ``path`` of the file.

    Raises:
        UserError: fewer than two seeds (no band), no rung can run here, or another canary writes there.
    """
    options: Options = job.options
    if options.seeds < 2:
        raise UserError(
            "--canary needs --seeds 2 or more: the baseline's band comes from the spread of its seeds"
        )
    if planned[0].skipped:
        raise UserError(f"--canary: the baseline cannot run here: {planned[0].skipped}")
    report, begin = on_event or (lambda event: None), time.monotonic()
    file = _begin_file(job, planned, images)
    folder = job.out / file.machine.name
    with locks.folder_lock(folder), stop_on_sigterm(), system.untimed(job.device):
        report({"event": "start"})
        path = folder / f"{job.name}-{file.ladder}-{text.stamp(file.started)}.json"
        # Seed by seed, so that an interrupted canary has whole rounds.
        runnable = [rung for rung in planned if not rung.skipped]
        tasks = [(rung.name, rung.recipe, seed) for seed in range(options.seeds) for rung in runnable]
        setup = Setup(job.workload, images, file.samples, job.device, options.steps)
        try:
            with contextlib.closing(train_all(setup, tasks, options.jobs)) as outcomes:
                for done, ((name, _, seed), one) in enumerate(outcomes, 1):
                    file = _add_training(file, name, one, time.monotonic() - begin)
                    canary_file.write(path, file)
                    report(
                        {"event": "trained", "rung": name, "seed": seed, "done": done, "total": len(tasks),
                         "distance": one.distance}
                    )  # fmt: skip
        except KeyboardInterrupt:
            pass
        canary_file.write(path, file)
    files.write(path.with_suffix(".md"), canary_file.render_page(file))
    report({"event": "end", "path": str(path)})
    return file


def _begin_file(job: Job, planned: Sequence[Planned], images: ImageSet) -> Canary:
    trained = {"name": job.name, **job.workload, "data": images.source}
    header = record.make_header("canary", job.machine, trained, images=identity.of_images(images.path))
    rungs = [
        {"name": each.name, "title": each.title, "recipe": each.recipe, "skipped": each.skipped}
        for each in planned
    ]
    counts = {"steps": job.options.steps, "seeds": job.options.seeds}
    counts["samples"] = min(MOST_SAMPLES[job.device], images.count)
    whole = {**header, "ladder": job.options.ladder, **counts, "rungs": rungs}
    return read_record(Canary, text.fit(whole))


def _add_training(file: Canary, name: str, one: Training, seconds: float) -> Canary:
    rungs: list[Rung] = []
    for rung in file.rungs:
        runs = sorted([*rung.runs, *([one] if rung.name == name else [])], key=lambda each: each.seed)
        rungs.append(msgspec.structs.replace(rung, runs=runs))
    return msgspec.structs.replace(file, rungs=rungs, seconds=round(seconds, 1))


# --- one training -----------------------------------------------------------------------------------------------------


def train_task(setup: Setup, task: Task) -> Training:
    """Train a rung from a seed, in a process of its own, and return its record."""
    if setup.threads is not None:  # equal to the parent process, because another number rounds differently
        torch.set_num_threads(setup.threads)
    return train(setup, task[1], read_real(setup), task[2])


def train(setup: Setup, recipe: Fields, real: Tensor, seed: int) -> Training:
    """Train a rung from a seed and return its record. ``real`` are images [N, 3, R, R] in [-1, 1]."""
    workload = {**setup.workload, "data": setup.images.path}
    try:
        step = stylegan_lite.make_step(workload, recipe, device=setup.device, seed=seed)
        try:
            step.prepare()
            torch.manual_seed(seed)
            for _ in range(setup.steps):
                step.step()
            if problem := step.check_finite():
                return Training(seed, reason=problem)
            levels = swd.measure_distances(real.to(setup.device), draw_samples(step, len(real)))
        finally:
            step.close()
    except Exception as error:  # no error may stop the other rungs
        return Training(seed, reason=mishaps.describe_error(error))
    if not all(math.isfinite(value) for value in levels.values()):
        return Training(seed, reason="the samples are not finite")
    return Training(seed, {str(side): round(value, 3) for side, value in levels.items()})


def draw_samples(step: stylegan_lite.step.TrainingStep, count: int) -> Tensor:
    """Return ``count`` images of the averaged generator. The latents are the same for every rung and seed."""
    generator = torch.Generator().manual_seed(LATENT_SEED)
    z = torch.randn(count, step.workload.z_dim, generator=generator)
    return torch.cat([step.sample(part) for part in z.split(step.workload.batch)])


def read_real(setup: Setup) -> Tensor:
    """Return the images to compare with, spread evenly over the set, [samples, 3, R, R] in [-1, 1]."""
    folder, count = ImageFolder(setup.images.path, int(setup.workload["resolution"]), False), setup.samples
    return torch.stack([folder[len(folder) * k // count, False] for k in range(count)])


# --- several at a time ------------------------------------------------------------------------------------------------


def choose_jobs(device: str) -> int:
    """Return the default number of trainings at a time.

    On a GPU, eager steps wait for a core more than for the GPU. On a CPU, one training fills the machine.
    """
    return max(1, min(MOST_JOBS, system.usable_cores() // 3)) if device == "cuda" else 1


def train_all(
    setup: Setup, tasks: Sequence[Task], jobs: int | None
) -> Generator[tuple[Task, Training], None, None]:
    """Yield each task with its training, in the order of completion."""
    jobs = min(jobs or choose_jobs(setup.device), len(tasks))
    if jobs == 1:
        real = read_real(setup)
        yield from ((task, train(setup, task[1], real, task[2])) for task in tasks)
    else:
        cpu = setup.device == "cpu"
        threads = torch.get_num_threads() if cpu else max(1, system.usable_cores() // jobs)
        yield from run_parallel(train_task, replace(setup, threads=threads), tasks, jobs)


def run_parallel(
    do: Callable[[Any, Any], Training], setup: Any, tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Training]]:
    """Yield each task with ``do(setup, task)`` from a process of its own, in the order of completion.

    Everything must be picklable, and the seed is the last of a task. The processes end when the iterator is closed or
    this process ends.
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the CUDA of its parent
    waiting = collections.deque(tasks)
    running: dict[Connection, tuple[multiprocessing.process.BaseProcess, Task]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, do, setup, task))
                process.start()
                there.close()  # so that the pipe ends with the process
                running[here] = process, task
            for connection in wait([*running]):
                process, task = running[cast(Any, connection)]
                try:
                    outcome = cast(Any, connection).recv()
                except (EOFError, OSError):
                    process.join(10)
                    code = process.exitcode
                    killed = code is not None and code < 0
                    end = f"killed by {signal.Signals(-code).name}" if killed else f"ended with status {code}"
                    outcome = Training(task[-1], reason=f"worker {end}")
                _end_process(process)
                del running[cast(Any, connection)]
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


def _work(connection: Connection, do: Callable[[Any, Any], Training], setup: Any, task: Task) -> None:
    os.setpgid(0, 0)  # Ctrl-C goes to the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome = do(setup, task)
    except Exception as error:
        outcome = Training(task[-1], reason=mishaps.describe_error(error))
    connection.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)
