"""The quality canary: does a model trained on a rung come out as good as one trained on the baseline?

Parity compares one step; errors of many steps could still add up. So every rung trains a small workload for a fixed
number of steps from several seeds, and the sliced Wasserstein distance between its samples and the data is compared
with the baseline's: the band where the mean of as many seeds of the baseline itself would fall, 99 times in 100. A
canary, not a benchmark: it sees a model that has broken, not a fraction of a percent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stylegan_lite
from ladder import machine, record, results, stats, swd
from ladder.catalog import Planned
from ladder.errors import UserError, describe
from ladder.images import ImageSet
from stylegan_lite.data import ImageFolder

OUT = Path(__file__).resolve().parent.parent / "results" / "canary"
MOST_SAMPLES = {"cuda": 2000, "cpu": 500}
CONFIDENCE = 0.99

OnEvent = Callable[[dict[str, Any]], None]


def run(
    name: str,
    workload: dict[str, Any],
    ladder: str,
    planned: Sequence[Planned],
    images: ImageSet,
    device: str,
    *,
    steps: int,
    seeds: int,
    out: Path,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Train every rung ``seeds`` times and judge it against the first; writes the result after every training.

    ``on_event`` gets {"event": "trained", "rung", "seed", "done", "total", "distance"}.

    Returns the result, ``complete`` false after Ctrl-C: ``path`` of the file is in the last event, "end".

    Raises:
        UserError: fewer than two seeds (there is no band), or no rung can run here.
    """
    if seeds < 2:
        raise UserError(
            "--canary needs --seeds 2 or more: the baseline's band comes from the spread of its seeds"
        )
    if planned[0].skipped:
        raise UserError(f"--canary: the baseline cannot run here: {planned[0].skipped}")
    tell, begin = on_event or (lambda event: None), time.monotonic()
    result = _new(name, workload, ladder, planned, images, device, steps, seeds)
    started = datetime.now(timezone.utc)
    path = Path(out) / result["machine"]["name"] / f"{name}-{ladder}-{started:%Y%m%dT%H%M%SZ}.json"
    real = real_images(images, workload["resolution"], result["samples"])
    runnable = [rung for rung in planned if not rung.skipped]
    records = {rung["name"]: rung for rung in result["rungs"]}
    done, total = 0, len(runnable) * seeds
    try:
        for seed in range(seeds):  # seed by seed: an interrupted canary has whole rounds
            for rung in runnable:
                one = records[rung.name]
                one["runs"].append(train(workload, rung.recipe, images, real, device, steps, seed))
                done += 1
                _save(path, result, begin)
                last = one["runs"][-1]
                tell(
                    {
                        "event": "trained",
                        "rung": rung.name,
                        "seed": seed,
                        "done": done,
                        "total": total,
                        **last,
                    }
                )
        result["complete"] = True
    except KeyboardInterrupt:
        result["notes"].append("interrupted: what was finished is kept")
    _save(path, result, begin)
    tell({"event": "end", "path": str(path)})
    return result


def train(
    workload: dict[str, Any],
    recipe: dict[str, Any],
    images: ImageSet,
    real: Tensor,
    device: str,
    steps: int,
    seed: int,
) -> dict[str, Any]:
    """One training: {"seed", "distance" (mean of the levels; None if it broke), "levels", "reason"}."""
    broke = {"seed": seed, "distance": None, "levels": None}
    try:
        step = stylegan_lite.make_step({**workload, "data": images.path}, recipe, device=device, seed=seed)
        try:
            step.prepare()
            torch.manual_seed(seed)
            for _ in range(steps):
                step.step()
            bad = step.check_finite()
            if bad:
                return broke | {"reason": bad}
            levels = swd.distances(real.to(device), samples(step, len(real)))
        finally:
            step.close()
    except RuntimeError as error:
        return broke | {"reason": describe(error)}
    if not all(math.isfinite(value) for value in levels.values()):
        return broke | {"reason": "the samples are not finite"}
    mean = sum(levels.values()) / len(levels)
    named = {str(size): round(value, 3) for size, value in levels.items()}
    return {"seed": seed, "distance": round(mean, 3), "levels": named, "reason": None}


def samples(step: stylegan_lite.step.TrainingStep, count: int) -> Tensor:
    """``count`` images of the averaged generator, of latents that are the same for every rung and seed."""
    generator = torch.Generator().manual_seed(4)
    z = torch.randn(count, step.workload.z_dim, generator=generator)
    return torch.cat([step.sample(part) for part in z.split(step.workload.batch)])


def real_images(images: ImageSet, resolution: int, count: int) -> Tensor:
    """[count, 3, R, R] in [-1, 1]: spread evenly over the set."""
    folder = ImageFolder(images.path, resolution, False)
    return torch.stack([folder[len(folder) * k // count, False] for k in range(count)])


def judge(result: dict[str, Any]) -> None:
    """Fill in each rung's mean and verdict: "as good", "better", "worse", "broke", or None while seeds are missing."""
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


def _distances(rung: dict[str, Any]) -> list[float] | None:
    found = [run["distance"] for run in rung["runs"]]
    return None if None in found else found


def _band(distances: list[float] | None) -> list[float] | None:
    """Where the mean of as many other seeds falls with ``CONFIDENCE``: mean +- t * sd * sqrt(2 / n)."""
    if distances is None or len(distances) < 2:
        return None
    n, mean = len(distances), sum(distances) / len(distances)
    t = stats.t_quantile(0.5 + CONFIDENCE / 2, n - 1)
    half = t * stats.standard_error(distances) * math.sqrt(2)
    return [round(max(0.0, mean - half), 3), round(mean + half, 3)]


def table(result: dict[str, Any]) -> str:
    """For a terminal: a line for each rung."""
    band = result["band"]
    lines = [
        f"{result['workload']['name']}, {result['steps']} steps, {result['seeds']} seeds: sliced Wasserstein distance"
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


def _new(
    name: str,
    workload: dict[str, Any],
    ladder: str,
    planned: Sequence[Planned],
    images: ImageSet,
    device: str,
    steps: int,
    seeds: int,
) -> dict[str, Any]:
    commit, dirty = record.commit_of(record.ROOT)
    facts = machine.facts(device)
    return {
        "schema": 1,
        "kind": "canary",
        "machine": facts | {"name": results.slug(facts["name"])},
        "workload": {"name": name, **workload, "data": images.source},
        "ladder": ladder,
        "steps": steps,
        "seeds": seeds,
        "samples": min(MOST_SAMPLES[device], images.count),
        "commit": commit,
        "dirty": dirty,
        "complete": False,
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


def _save(path: Path, result: dict[str, Any], begin: float) -> None:
    judge(result)
    result["seconds"] = round(time.monotonic() - begin, 1)
    try:
        results.write(path, result)
    except OSError as error:
        raise UserError(f"{path}: cannot write the result: {error.strerror or error}") from None
