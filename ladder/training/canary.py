"""The quality canary: a test whether a rung trains models as good as the baseline's.

Parity compares one step, and errors of many steps could still add up. The canary trains a small workload on every
rung for a fixed number of steps from several seeds. It compares the sliced Wasserstein distance between samples
and data with the baseline's band. The mean of equally many other seeds of the baseline falls into the band 99
times in 100. The canary sees a broken model, not a difference of a fraction of a percent.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypedDict, cast

import torch
from torch import Tensor

import stylegan_lite
from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.events import OnEvent
from ladder.base.paths import ROOT
from ladder.base.plain import Fields
from ladder.base.stopping import stop_on_sigterm
from ladder.images.prepare import ImageSet
from ladder.machine import system
from ladder.plan.catalog import Planned
from ladder.results import identity, record
from ladder.results import store as results
from ladder.stats import estimates
from ladder.training import mishaps, swd, trainings
from stylegan_lite.data import ImageFolder

OUT = ROOT / "results" / "canary"
MOST_SAMPLES = {"cuda": 2000, "cpu": 500}
MOST_JOBS = 4
CONFIDENCE = 0.99

Task = tuple[str, Fields, int]  # rung, recipe, seed


class Run(trainings.Record):
    """One training of a rung. Without "reason" it came to its end."""

    seed: int
    distance: float | None  # the mean of the levels
    levels: dict[str, float] | None  # by resolution


class Rung(TypedDict):
    """The trainings of one rung, and its verdict."""

    name: str
    title: str
    recipe: Fields | None
    skipped: str | None
    distance: float | None  # the mean of the runs
    verdict: str | None
    runs: list[Run]


class Canary(record.Header):
    """A canary's result, as its file has it."""

    kind: str
    workload: Fields
    ladder: str
    steps: int
    seeds: int
    samples: int
    notes: list[str]
    band: list[float] | None  # from, to
    rungs: list[Rung]


def run(
    name: str,
    workload: Fields,
    ladder: str,
    planned: Sequence[Planned],
    images: ImageSet,
    device: str,
    *,
    steps: int,
    seeds: int,
    out: Path,
    jobs: int | None = None,
    on_event: OnEvent | None = None,
) -> Canary:
    """Train every rung ``seeds`` times, judge it against the first, and return the result.

    The file is written after every training. Up to ``jobs`` trainings run at a time (None: ``usual_jobs``). Their
    number changes neither the records nor their order. The first event is "start". Each training calls ``on_event``
    with {"event": "trained", "rung", "seed", "done", "total", "distance"}. The last event, "end", has the
    ``path`` of the file.

    Returns:
        The result. Its ``complete`` is false after Ctrl-C, SIGTERM or SIGHUP.

    Raises:
        UserError: fewer than two seeds (no band), no rung can run here, or another canary writes there.
    """
    if seeds < 2:
        raise UserError(
            "--canary needs --seeds 2 or more: the baseline's band comes from the spread of its seeds"
        )
    if planned[0].skipped:
        raise UserError(f"--canary: the baseline cannot run here: {planned[0].skipped}")
    tell, begin = on_event or (lambda event: None), time.monotonic()
    result = _new(name, workload, ladder, planned, images, device, steps, seeds)
    folder = Path(out) / result["machine"]["name"]
    with locks.folder_lock(folder), stop_on_sigterm(), system.untimed(device):
        tell({"event": "start"})
        path = folder / f"{name}-{ladder}-{text.stamp(result['started'])}.json"
        runnable = [rung for rung in planned if not rung.skipped]
        records = {rung["name"]: rung for rung in result["rungs"]}
        # Seed by seed, so that an interrupted canary has whole rounds.
        tasks = [(rung.name, rung.recipe, seed) for seed in range(seeds) for rung in runnable]
        arguments = workload, images, result["samples"], device, steps
        jobs = min(jobs or usual_jobs(device), len(tasks))
        done = 0
        try:
            with contextlib.closing(_trained(arguments, tasks, jobs)) as trained:
                for (rung, _, seed), record in trained:
                    one: Run = {"seed": seed, "distance": None, "levels": None, **record}
                    runs = records[rung]["runs"]
                    runs.append(one)
                    runs.sort(key=lambda each: each["seed"])
                    done += 1
                    _save(path, result, begin)
                    tell({"event": "trained", "rung": rung, "done": done, "total": len(tasks), **one})
            result["complete"] = True
        except KeyboardInterrupt:
            result["notes"].append("interrupted: what was finished is kept")
        _save(path, result, begin)

    files.write(path.with_suffix(".md"), markdown(result))
    tell({"event": "end", "path": str(path)})
    return result


def usual_jobs(device: str) -> int:
    """Return the default number of parallel trainings.

    On a GPU, eager steps wait for a core more than for the GPU. On a CPU, one training fills the machine.
    """
    return max(1, min(MOST_JOBS, system.usable_cores() // 3)) if device == "cuda" else 1


def _trained(
    arguments: tuple[Fields, ImageSet, int, str, int], tasks: list[Task], jobs: int
) -> Generator[tuple[trainings.Task, trainings.Record], None, None]:
    if jobs == 1:
        one = trainer(*arguments)
        yield from ((task, one(*task)) for task in tasks)
    else:
        threads = torch.get_num_threads() if arguments[3] == "cpu" else max(1, system.usable_cores() // jobs)
        yield from trainings.run(trainer, (*arguments, threads), tasks, jobs)


def trainer(
    workload: Fields,
    images: ImageSet,
    count: int,
    device: str,
    steps: int,
    threads: int | None = None,
) -> Callable[[str, Fields, int], Run]:
    """Return the function that trains (rung, recipe, seed). It reads the real images once."""
    if threads is not None:
        torch.set_num_threads(
            threads
        )  # equal to the parent process, because another number rounds differently
    real = real_images(images, int(workload["resolution"]), count)
    return lambda rung, recipe, seed: train(workload, recipe, images, real, device, steps, seed)


def train(
    workload: Fields,
    recipe: Fields,
    images: ImageSet,
    real: Tensor,
    device: str,
    steps: int,
    seed: int,
) -> Run:
    """Train one rung from one seed and return its record."""

    def broke(reason: str) -> Run:
        return {"seed": seed, "distance": None, "levels": None, "reason": reason}

    try:
        step = stylegan_lite.make_step({**workload, "data": images.path}, recipe, device=device, seed=seed)
        try:
            step.prepare()
            torch.manual_seed(seed)
            for _ in range(steps):
                step.step()
            bad = step.check_finite()
            if bad:
                return broke(bad)
            levels = swd.distances(real.to(device), samples(step, len(real)))
        finally:
            step.close()
    except Exception as error:  # no error may stop the other rungs
        return broke(mishaps.told(error))
    if not all(math.isfinite(value) for value in levels.values()):
        return broke("the samples are not finite")
    mean = sum(levels.values()) / len(levels)
    named = {str(size): round(value, 3) for size, value in levels.items()}
    return {"seed": seed, "distance": round(mean, 3), "levels": named, "reason": None}


def samples(step: stylegan_lite.step.TrainingStep, count: int) -> Tensor:
    """Return ``count`` images of the averaged generator. The latents are the same for every rung and seed."""
    generator = torch.Generator().manual_seed(4)
    z = torch.randn(count, step.workload.z_dim, generator=generator)
    return torch.cat([step.sample(part) for part in z.split(step.workload.batch)])


def real_images(images: ImageSet, resolution: int, count: int) -> Tensor:
    """Return ``count`` images spread evenly over the set, [count, 3, R, R] in [-1, 1]."""
    folder = ImageFolder(images.path, resolution, False)
    return torch.stack([folder[len(folder) * k // count, False] for k in range(count)])


def judge(result: Canary) -> None:
    """Fill in the band, and each rung's mean and verdict.

    Verdicts are "as good", "better", "worse", "broke", and None while seeds are missing.
    """
    baseline = result["rungs"][0]
    result["band"] = _band(_distances(baseline))
    for rung in result["rungs"]:
        if not rung["runs"]:
            continue
        found = _distances(rung)
        rung["distance"] = None if found is None else round(sum(found) / len(found), 3)
        if found is None:
            rung["verdict"] = "broke"
        elif result["band"] is None or len(found) < len(_distances(baseline)):
            rung["verdict"] = None
        else:
            low, high = result["band"]
            mean = rung["distance"]
            rung["verdict"] = "worse" if mean > high else "better" if mean < low else "as good"


def _distances(rung: Rung) -> list[float] | None:
    found = [run["distance"] for run in rung["runs"]]
    return None if None in found else found


def _band(distances: list[float] | None) -> list[float] | None:
    """Return the interval that holds the mean of equally many other seeds with ``CONFIDENCE``, or None.

    It is mean +- t * sd * sqrt(2 / n).
    """
    if distances is None or len(distances) < 2:
        return None
    n, mean = len(distances), sum(distances) / len(distances)
    t = estimates.t_quantile(0.5 + CONFIDENCE / 2, n - 1)
    half = t * estimates.standard_error(distances) * math.sqrt(2)
    return [round(max(0.0, mean - half), 3), round(mean + half, 3)]


def table(result: Canary) -> str:
    """Return the result as text for a terminal, one line per rung."""
    band = result["band"]
    many = f"{text.counted(result['steps'], 'step')}, {text.counted(result['seeds'], 'seed')}"
    lines = [
        f"{result['workload']['name']}, {many}: sliced Wasserstein distance"
        f" x 1000 of {result['samples']} samples",
        f"the baseline's band: {band[0]:.1f} to {band[1]:.1f}"
        if band
        else "no band: the baseline did not finish",
        "",
    ]
    for rung in result["rungs"]:
        each = "  ".join("broke" if r["distance"] is None else f"{r['distance']:.1f}" for r in rung["runs"])
        mean = "" if rung["distance"] is None else f"{rung['distance']:.1f}"
        reason = next((r["reason"] for r in rung["runs"] if r["reason"]), rung["skipped"]) or ""
        verdict = rung["verdict"] or ("n/a" if rung["skipped"] else "")
        lines.append(f"{rung['name']:<16}{mean:>8}  {verdict:<8}  {each}{reason and '  ' + reason}".rstrip())
    return "\n".join(lines)


def markdown(result: Canary) -> str:
    """Return the result as a Markdown page, one table row per rung."""
    facts, band, workload = result["machine"], result["band"], result["workload"]
    where = f"{facts['gpu'] or facts['cpu']}, PyTorch {facts['torch']}"
    commit = results.commit_words(dict(result))
    known = f"{band[0]:.1f} to {band[1]:.1f}" if band else "none, the baseline did not finish"
    lines = [
        f"# Quality canary: {workload['name']}, {result['ladder']} on {where}",
        "",
        f"{workload['resolution']}x{workload['resolution']}, batch {workload['batch']}, "
        f"{text.counted(result['steps'], 'step')} from {text.counted(result['seeds'], 'seed')} each; sliced"
        f" Wasserstein distance x 1000 of {result['samples']} samples to the data, mean of the"
        f" levels. The baseline's band ({CONFIDENCE:.0%}): {known}."
        f" Commit {commit}, {result['seconds']:.0f} s{'' if result['complete'] else ', not complete'}.",
        "",
    ]
    table = [["rung", "mean", "verdict", "each seed"]]
    for rung in result["rungs"]:
        each = ", ".join("broke" if r["distance"] is None else f"{r['distance']:.1f}" for r in rung["runs"])
        reason = next((r["reason"] for r in rung["runs"] if r["reason"]), rung["skipped"])
        mean = "" if rung["distance"] is None else f"{rung['distance']:.1f}"
        verdict = rung["verdict"] or ("n/a" if rung["skipped"] else "")
        told = "; ".join(filter(None, (each, reason and text.display(reason))))
        table.append([rung["name"], mean, verdict, told])
    return "\n".join([*lines, *text.piped(table, words=(0, 2, 3), show=str)]) + "\n"


def _new(
    name: str,
    workload: Fields,
    ladder: str,
    planned: Sequence[Planned],
    images: ImageSet,
    device: str,
    steps: int,
    seeds: int,
) -> Canary:
    facts = system.facts(device)
    named = facts | {"name": text.slug(facts["name"])}
    trained = {"name": name, **workload, "data": images.source}
    made = {
        **record.header("canary", named, trained, images=identity.of_images(images.path)),
        "ladder": ladder,
        "steps": steps,
        "seeds": seeds,
        "samples": min(MOST_SAMPLES[device], images.count),
        "notes": [],
        "band": None,
        "rungs": [
            {
                "name": rung.name,
                "title": rung.title,
                "recipe": rung.recipe,
                "skipped": rung.skipped,
                "distance": None,
                "verdict": None,
                "runs": [],
            }
            for rung in planned
        ],
    }
    return cast(Canary, made)


def _save(path: Path, result: Canary, begin: float) -> None:
    judge(result)
    result["seconds"] = round(time.monotonic() - begin, 1)
    results.write(path, result)
