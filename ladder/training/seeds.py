"""Trainings from several seeds, and what samples are like beside the data; several at a time for `ladder quality`.

Trainings may share a GPU, each in its own process: one that dies loses only its training. Those are not timed.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from msgspec import structs
from torch import Tensor

import stylegan_lite
from ladder.core.plain import Fields
from ladder.machine import system
from ladder.training import distances, features, mishaps
from ladder.training.point import Point
from stylegan_lite.config import PairWorkload
from stylegan_lite.step import Input
from stylegan_lite.step.data import ImageFolder

MOST_SAMPLES = {"cuda": 2000, "cpu": 500}
LATENT_SEED = 4
SAMPLE_PIXELS = 2**18  # drawn at once, or a batch if that has more
PATCH = 7
PATCHES = 128  # per image and level
DIRECTIONS, REPEATS = 128, 4
LEAST = 16  # pixels, at the pyramid's coarsest level


class Task(NamedTuple):
    """A training: its recipe and seed, and what is planted in its step, `ladder.plan.variants`' study and name."""

    key: str
    recipe: Fields
    seed: int
    variant: Sequence[str] | None = None


@dataclass(frozen=True)
class Setup:
    """What all trainings have in common. `threads` is the number of CPU threads of each, None for torch's own.

    Samples are compared with the data `points` times, after equally many steps each, the last time at the end.
    """

    workload: Fields  # with the path of its images
    device: str
    steps: int
    threads: int | None = None
    points: int = 1


@dataclass(frozen=True)
class Outcome:
    """One training: what was measured of so many samples, or why it broke. `refused`: no training can succeed."""

    points: tuple[Point, ...] = ()
    samples: int = 0
    reason: str | None = None
    refused: bool = False


def train_task(setup: Setup, task: Task) -> Outcome:
    """Train a rung from a seed, in a process of its own."""
    if setup.threads is not None:  # equal to the parent process, because another number rounds differently
        torch.set_num_threads(setup.threads)
    return train_rung(setup, task, read_real(setup))


def train_rung(setup: Setup, task: Task, real: Tensor) -> Outcome:
    """Train a rung from a seed. ``real`` are images [N, 3, R, R] in [-1, 1]."""
    seed = task.seed
    try:
        step = stylegan_lite.make_step(setup.workload, task.recipe, device=setup.device, seed=seed)
        if task.variant:
            importlib.import_module(f"ladder.studies.{task.variant[0]}").apply(step, task.variant[1])
        try:
            step.prepare()
            torch.manual_seed(seed)
            points, seconds, data = [], 0.0, real.to(setup.device)
            known = find_features(data)
            if problem := find_sampling_problem(step, data):
                return Outcome(reason=problem, refused=True)
            for number in range(setup.points):
                first, end = (setup.steps * k // setup.points for k in (number, number + 1))
                begin = time.perf_counter()
                for _ in range(first, end):
                    step.step()
                if setup.device == "cuda":
                    torch.cuda.synchronize()
                seconds += time.perf_counter() - begin
                if problem := step.check_finite():
                    return Outcome(reason=problem)
                point = measure_samples(data, draw_samples(step, len(real)), known)
                points.append(structs.replace(point, step=end, seconds=round(seconds, 4)))
        finally:
            step.close()
    except Exception as error:  # no error may stop the other rungs
        return Outcome(reason=mishaps.describe_error(error))
    if not all(math.isfinite(value) for point in points for value in point.levels.values()):
        return Outcome(reason="the samples are not finite")
    return Outcome(tuple(points), len(real))


def find_features(images: Tensor) -> Tensor | None:
    """Return the features of images of the classifier's size, None for others."""
    return features.extract_features(images) if images.shape[-1] == features.SIDE else None


def measure_samples(real: Tensor, fake: Tensor, known: Tensor | None = None) -> Point:
    """Return what images [N, 3, R, R] in [-1, 1] are like beside as many real ones, whose features may be `known`."""
    levels = {str(side): round(value, 3) for side, value in measure_distances(real, fake).items()}
    ours, theirs = find_features(real) if known is None else known, find_features(fake)
    if ours is None or theirs is None:
        return Point(levels=levels)
    return Point(
        levels=levels,
        frechet=round(distances.measure_frechet(ours, theirs), 5),
        kid=round(distances.measure_kid(ours, theirs), 6),
        precision=round(distances.measure_precision(ours, theirs), 4),
        recall=round(distances.measure_precision(theirs, ours), 4),
    )


def draw_samples(step: stylegan_lite.step.TrainingStep, count: int) -> Tensor:
    """Return ``count`` images of the averaged generator. The latents are the same for every rung and seed."""
    generator = torch.Generator().manual_seed(LATENT_SEED)
    z = torch.randn(count, find_latents(step), generator=generator).to(step.device, step.dtype)
    batch = max(step.workload.batch, SAMPLE_PIXELS // step.workload.resolution**2)
    return torch.cat([step.sample(part).float().clamp(-1, 1) for part in z.split(batch)])


def find_latents(step: stylegan_lite.step.TrainingStep) -> int:
    """Return the size of the latents that samples are drawn from, 0 if the user's pair has none."""
    declared = [one for inputs in step.given.values() for one in inputs.declared.values()]
    sizes = [
        one.shape[1]
        for one in declared if isinstance(one, Input) and one.source == "normal" and len(one.shape) == 2
    ]  # fmt: skip
    return int(getattr(step.workload, "z_dim", sizes[0] if sizes else 0))


def find_sampling_problem(step: stylegan_lite.step.TrainingStep, real: Tensor) -> str | None:
    """Return why samples of a user's pair cannot be compared with images [N, C, R, R], in one line, or None."""
    if not isinstance(step.workload, PairWorkload):
        return None
    where = ":".join(step.workload.model[1:])
    if not hasattr(step.pair, "sample"):
        return f"{where}: the pair needs sample(networks, z), which returns images of latents"
    if not find_latents(step):
        return (
            f"{where}: samples are drawn from latents, and no phase declares normal numbers of two dimensions"
        )
    if (shape := draw_samples(step, 1).shape[1:]) != real.shape[1:]:
        return f"{where}: sample returns images of {[*shape]}, the data are {[*real.shape[1:]]}"
    return None


def read_real(setup: Setup, half: int = 0) -> Tensor:
    """Return the images to compare with, spread evenly over a half of the set, [samples, 3, R, R] in [-1, 1]."""
    folder = ImageFolder(str(setup.workload["data"]), int(setup.workload["resolution"]), False)
    count = min(MOST_SAMPLES[setup.device], len(folder) // 2)
    return torch.stack([folder[len(folder) * (2 * k + half) // (2 * count), False] for k in range(count)])


def measure_floor(setup: Setup) -> Point:
    """Return what one half of the images is like beside the other: no samples of a training are nearer to them."""
    return measure_samples(*(read_real(setup, half).to(setup.device) for half in (0, 1)))


# --- several at a time ------------------------------------------------------------------------------------------------


def train_all(setup: Setup, tasks: Sequence[Task], jobs: int) -> Generator[tuple[Task, Outcome], None, None]:
    """Yield each task with its training, in the order of completion."""
    jobs = min(jobs, len(tasks))
    if jobs == 1 and "pair" not in setup.workload:  # this process imports no code of the user's
        real = read_real(setup)
        yield from ((task, train_rung(setup, task, real)) for task in tasks)
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


# --- the sliced Wasserstein distance between two sets of images, on the levels of a Laplacian pyramid -----------------
# Source: Karras et al. 2018 (arXiv:1710.10196), section 5, and the code published with it. Each level takes 128
# patches of 7x7 from every image and normalizes each colour channel over its set. The distance is the mean absolute
# difference of sorted projections on 4 x 128 random directions, times 1000. Coarse levels compare layout and colour,
# fine levels texture. No downloaded network is needed.


def build_pyramid(images: Tensor) -> list[Tensor]:
    """Return the pyramid of images [N, 3, R, R]: differences at R, R/2, ..., and the rest at 16x16.

    The rest is at R if R is below 16.
    """
    levels = []
    while images.shape[-1] > LEAST:
        small = _blur_images(images)[:, :, ::2, ::2]
        spread = torch.zeros_like(images)
        spread[:, :, ::2, ::2] = small
        levels.append(images - 4 * _blur_images(spread))
        images = small
    return [*levels, images]


def measure_distances(real: Tensor, fake: Tensor, seed: int = 0) -> dict[int, float]:
    """Return the distance at each level's resolution, times 1000.

    ``real`` and ``fake`` are [N, 3, R, R] in [-1, 1] with the same N. Patches and directions depend only on the seed,
    so all comparisons with one seed use the same ones.

    Raises:
        ValueError: the sets differ in shape.
    """
    if real.shape != fake.shape:
        raise ValueError(f"sets must have one shape, got {tuple(real.shape)} and {tuple(fake.shape)}")
    distances = {}
    for a, b in zip(build_pyramid(real.float()), build_pyramid(fake.float()), strict=True):
        generator = torch.Generator().manual_seed(seed)
        ours, theirs = (_draw_patches(x, torch.Generator().manual_seed(seed + 1)) for x in (a, b))
        distances[a.shape[-1]] = 1000 * _compare_patches(ours, theirs, generator)
    return distances


def _draw_patches(level: Tensor, generator: torch.Generator) -> Tensor:
    """Return random patches [N * PATCHES, 3 * 7 * 7] with mean 0 and deviation 1 in each colour."""
    n, size = level.shape[0], level.shape[-1]
    side = min(PATCH, size)
    corner = torch.randint(0, size - side + 1, (2, n, PATCHES), generator=generator).to(level.device)
    offset = torch.arange(side, device=level.device)
    rows = (corner[0][..., None] + offset)[..., :, None]
    columns = (corner[1][..., None] + offset)[..., None, :]
    sample = torch.arange(n, device=level.device).view(n, 1, 1, 1)
    patches = level.movedim(1, -1)[sample, rows, columns].flatten(0, 1)  # [N * PATCHES, 7, 7, 3]
    patches = patches - patches.mean((0, 1, 2))
    return (patches / patches.std((0, 1, 2)).clamp_min(1e-8)).flatten(1)


def _compare_patches(a: Tensor, b: Tensor, generator: torch.Generator) -> float:
    total = 0.0
    for _ in range(REPEATS):
        direction = torch.randn(a.shape[1], DIRECTIONS, generator=generator).to(a)
        direction = direction / direction.norm(dim=0)
        total += float(((a @ direction).sort(0).values - (b @ direction).sort(0).values).abs().mean())
    return total / REPEATS


def _blur_images(x: Tensor) -> Tensor:
    """Apply the pyramid's 5x5 binomial filter [1, 4, 6, 4, 1], mirrored at the border."""
    taps = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    kernel = torch.outer(taps, taps).to(x).expand(x.shape[1], 1, 5, 5)
    return F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), kernel, groups=x.shape[1])
