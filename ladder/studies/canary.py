"""`ladder train --canary`: a test whether a rung trains models as good as the baseline's.

Parity compares one step, and errors of many steps could still add up. The canary trains a small workload on every
rung for a fixed number of steps from several seeds. It compares the sliced Wasserstein distance between samples and
data with the baseline's band. It sees a broken model, not a difference of a fraction of a percent.

A rung's distance is the mean over its trainings, and that of a training the mean over its levels. The mean of equally
many other seeds of the baseline falls into the band with 99%.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.core import records as r
from ladder.core.job import Job
from ladder.show.table import Column, Table
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.frame import Session, Study, StudyFile

CONFIDENCE = 0.99


class Options(frame.Options):
    """The options of `ladder train --canary`. By default `jobs` follows from the device."""

    ladder: r.Line = "article"
    steps: r.Positive = 500
    seeds: r.Positive = 3
    jobs: r.Positive | None = None


class Case(frame.Case, kw_only=True):
    """A training of a rung from a seed; `problem`: why the rung cannot run here."""

    rung: r.Name
    title: r.Text
    recipe: r.Fields | None = None
    seed: r.Count = 0
    problem: r.Line | None = None


class Observed(frame.Observation, kw_only=True):
    """The distances of a training's samples to the data by resolution, and how many images were compared."""

    levels: (
        Annotated[dict[Annotated[str, r.matching(r"\d{1,5}", "a size")], r.Amount], r.size(16, 1)] | None
    ) = None
    samples: r.Count = 0

    @property
    def distance(self) -> float | None:
        """Return the mean of the levels, None if it broke."""
        return None if self.levels is None else round(sum(self.levels.values()) / len(self.levels), 3)


File = StudyFile[Options, Case, Observed]


class Canary(Study[Options, Case, Observed]):
    """Each rung from each seed, several at a time."""

    name, kind, folder = "train --canary", "canary", "canary"
    help, examples = "Train every rung from several seeds.", "ladder train --canary"
    default_workload = {"cuda": "tiny", "cpu": "tiny"}
    extendable, answers, final = ("jobs",), ("ok", "n/a"), ("ok", "n/a")

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        """Return all trainings, seed by seed, so that an interrupted canary has whole rounds."""
        from ladder.machine import system
        from ladder.plan import catalog, needs

        if file is not None and file.cases:
            return file.cases
        able = needs.possible(system.capabilities(job.device), job.workload)
        base, *rest = catalog.climb(catalog.load_ladder(job.options.ladder), able)
        if base.skipped:
            raise UserError(f"--canary: the baseline cannot run here: {base.skipped}")
        cases = {}
        for seed in range(job.options.seeds):
            for rung in (base, *rest):
                case = Case(
                    rung=rung.name, title=rung.title, recipe=rung.recipe, seed=seed, problem=rung.skipped
                )
                if rung.skipped is None or seed == 0:
                    cases[f"{rung.name}, seed {seed}"] = case
        return cases

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        many = text.counted(sum(case.problem is None for case in cases.values()), "training")
        return f"canary: {job.name} on {job.device}, {many} of {text.counted(job.options.steps, 'step')}"

    def observe_all(self, session: Session) -> None:
        from ladder.base.stopping import stop_on_sigterm
        from ladder.machine import system
        from ladder.training import canary

        job, waiting = session.job, []
        for key, case in session.file.cases.items():
            if case.problem is not None:
                session.keep(key, Observed(status="n/a", reason=text.display(case.problem)))
            elif key not in session.file.observed:
                waiting.append((key, case.recipe or {}, case.seed))
        setup = canary.Setup(job.workload, job.device, job.options.steps)
        with stop_on_sigterm(), system.untimed(job.device):
            with contextlib.closing(canary.train_all(setup, waiting, job.options.jobs)) as trainings:
                for done, ((key, *_), each) in enumerate(trainings, 1):
                    reason = each.reason and text.display(each.reason)
                    observed = Observed(
                        status="failed" if reason else "ok", reason=reason, levels=each.levels, samples=each.samples
                    )  # fmt: skip
                    session.keep(key, observed)
                    distance = "broke" if observed.distance is None else f"{observed.distance:.1f}"
                    session.report(f"{done}/{len(waiting)} {key}: {distance}")

    def has_answers(self, file: File) -> bool:
        return super().has_answers(file) and "worse" not in judge_rungs(file).values()

    def derive(self, file: File) -> Any:
        verdicts, rungs = judge_rungs(file), []
        for name, trainings in group_trainings(file).items():
            case = next(case for case in file.cases.values() if case.rung == name)
            runs = [
                {"seed": seed, "levels": each.levels, "reason": each.reason}
                for seed, each in trainings.items()
                if each.status != "n/a"
            ]
            about = {"name": name, "title": case.title, "recipe": case.recipe, "skipped": case.problem}
            rungs.append(about | {"runs": runs, "distance": average(trainings), "verdict": verdicts[name]})
        counts = {"steps": file.options.steps, "seeds": file.options.seeds, "samples": count_samples(file)}
        return {"ladder": file.ladder, **counts, "band": derive_band(file), "rungs": rungs}

    def list_problems(self, file: File) -> Iterable[str]:
        for key, each in file.observed.items():
            if (each.status == "ok") != (each.levels is not None):
                yield f"{key}: {each.status}, with distances or without"

    def name_file(self, file: File) -> list[str]:
        return [*super().name_file(file), file.ladder or file.options.ladder]

    def summarize(self, file: File) -> list[str]:
        band = derive_band(file)
        between = f"{band[0]:.1f} to {band[1]:.1f}" if band else "none, the baseline did not finish"
        return [
            f"Quality canary: {file.ladder} on {file.machine.gpu or file.machine.cpu}",
            f"Workload {frame.describe_workload(file)}, {text.counted(file.options.steps, 'step')} from"
            f" {file.options.seeds} seeds each: sliced Wasserstein distance x 1000 of {count_samples(file)} samples to"
            f" the data, mean of the levels; the baseline's band ({CONFIDENCE:.0%}): {between}.",
            frame.describe_software(file),
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        rows: list[list[Any]] = []
        for name, trainings in group_trainings(file).items():
            each = ", ".join(
                "broke" if one.distance is None else f"{one.distance:.1f}"
                for one in trainings.values()
                if one.status != "n/a"
            )
            reason = next((one.reason for one in trainings.values() if one.reason), None)
            mean, verdict = average(trainings), judge_rungs(file)[name]
            shown = verdict or ("n/a" if any(one.status == "n/a" for one in trainings.values()) else "")
            rows.append([name, mean and f"{mean:.1f}", shown, "; ".join(filter(None, (each, reason)))])
        columns = [
            Column("rung"),
            Column("mean", "ratio"),
            Column("verdict", "verdict"),
            Column("each seed"),
        ]
        yield Table(columns, rows)


STUDY = Canary()


def group_trainings(file: File) -> dict[str, dict[int, Observed]]:
    """Return the trainings of each rung that were observed, by seed."""
    groups: dict[str, dict[int, Observed]] = {case.rung: {} for case in file.cases.values()}
    for key, case in file.cases.items():
        if key in file.observed:
            groups[case.rung][case.seed] = file.observed[key]
    return groups


def count_samples(file: File) -> int:
    """Return how many images were compared of each training."""
    return max((each.samples for each in file.observed.values()), default=0)


def average(trainings: Mapping[int, Observed]) -> float | None:
    """Return the mean distance of a rung, None if a training broke or there is none."""
    distances = [each.distance for each in trainings.values()]
    return None if None in distances or not distances else round(sum(distances) / len(distances), 3)  # type: ignore[arg-type]


def derive_band(file: File) -> tuple[float, float] | None:
    """Return mean +- t * sd * sqrt(2 / n) of the baseline, None if it broke or has one seed."""
    baseline = next(iter(group_trainings(file).values()))
    distances = [each.distance for each in baseline.values() if each.distance is not None]
    if len(distances) < max(2, len(baseline)):
        return None
    mean = sum(distances) / len(distances)
    t = estimates.t_quantile(0.5 + CONFIDENCE / 2, len(distances) - 1)
    half = t * estimates.standard_error(distances) * math.sqrt(2)
    return round(max(0.0, mean - half), 3), round(mean + half, 3)


def judge_rungs(file: File) -> dict[str, str | None]:
    """Return "as good", "better", "worse" or "broke" for each rung, None while seeds are missing or it cannot run."""
    groups, band = group_trainings(file), derive_band(file)
    many = len(next(iter(groups.values())))
    verdicts: dict[str, str | None] = {}
    for name, trainings in groups.items():
        mean, statuses = average(trainings), [each.status for each in trainings.values()]
        if not statuses or "n/a" in statuses:
            verdicts[name] = None
        elif mean is None:
            verdicts[name] = "broke"
        elif band is None or len(trainings) < many:
            verdicts[name] = None
        else:
            verdicts[name] = "worse" if mean > band[1] else "better" if mean < band[0] else "as good"
    return verdicts
