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
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec.structs import replace

from ladder.core import records as r
from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.show.table import Column, Table
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.base import Session, Study, StudyFile
from ladder.training.point import Size

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

    ANSWER = "levels"
    levels: Annotated[dict[Size, r.Amount], r.size_between(16, 1)] | None = None
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

    def plan_cases(self, job: Job) -> dict[str, Case]:
        """Return all trainings, seed by seed, so that an interrupted canary has whole rounds."""
        from ladder.machine import system
        from ladder.plan import catalog, needs

        able = needs.join_capabilities(system.list_capabilities(job.device), job.workload)
        base, *rest = catalog.plan_climb(catalog.load_ladder(job.options.ladder), able)
        if base.skipped:
            raise UserError(f"--canary: the baseline cannot run here: {base.skipped}")
        cases = {}
        for seed in range(job.options.seeds):
            for rung in (base, *rest):
                case = Case(rung=rung.name, title=rung.title, recipe=rung.recipe, problem=rung.skipped)
                if rung.skipped is None or seed == 0:
                    cases[f"{rung.name}, seed {seed}"] = replace(case, seed=seed)
        return cases

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        many = text.format_count(sum(case.problem is None for case in cases.values()), "training")
        return f"canary: {job.name} on {job.device}, {many} of {text.format_count(job.options.steps, 'step')}"

    def observe_all(self, session: Session) -> None:
        from ladder.core.stopping import stop_on_sigterm
        from ladder.machine import system
        from ladder.training import canary

        job, waiting = session.job, []
        for key, case in session.file.cases.items():
            if case.problem is not None:
                session.keep(key, Observed(status="n/a", reason=text.make_display(case.problem)))
            elif key not in session.file.observed:
                waiting.append(canary.Task(key, case.recipe or {}, case.seed))
        setup = canary.Setup(job.workload, job.device, job.options.steps)
        with stop_on_sigterm(), system.hold_untimed(job.device):
            with contextlib.closing(canary.train_all(setup, waiting, job.options.jobs)) as trainings:
                for done, ((key, *_), each) in enumerate(trainings, 1):
                    reason = each.reason and text.make_display(each.reason)
                    observed = Observed(
                        status="failed" if reason else "ok", reason=reason, levels=each.levels, samples=each.samples
                    )  # fmt: skip
                    session.keep(key, observed)
                    distance = "broke" if observed.distance is None else f"{observed.distance:.1f}"
                    session.report(f"{done}/{len(waiting)} {key}: {distance}")

    def has_answers(self, file: File) -> bool:
        return super().has_answers(file) and all(rung.verdict != "worse" for rung in list_rungs(file))

    def derive(self, file: File) -> Any:
        rungs = [
            {
                "name": rung.name, "title": rung.case.title, "recipe": rung.case.recipe, "skipped": rung.case.problem,
                "runs": [{"seed": k, "levels": each.levels, "reason": each.reason} for k, each in rung.runs.items()],
                "distance": rung.distance, "verdict": rung.verdict,
            }
            for rung in list_rungs(file)
        ]  # fmt: skip
        counts = {"steps": file.options.steps, "seeds": file.options.seeds, "samples": count_samples(file)}
        return {"ladder": file.ladder, **counts, "band": derive_band(file), "rungs": rungs}

    def name_file(self, file: File) -> list[str]:
        return [*super().name_file(file), file.ladder or file.options.ladder]

    def summarize(self, file: File) -> list[str]:
        band = derive_band(file)
        between = f"{band[0]:.1f} to {band[1]:.1f}" if band else "none, the baseline did not finish"
        return [
            f"Quality canary: {file.ladder} on {file.machine.gpu or file.machine.cpu}",
            f"Workload {frame.describe_workload(file)}, {text.format_count(file.options.steps, 'step')} from"
            f" {file.options.seeds} seeds each: sliced Wasserstein distance x 1000 of {count_samples(file)} samples to"
            f" the data, mean of the levels; the baseline's band ({CONFIDENCE:.0%}): {between}.",
            frame.describe_software(file),
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        rows = []
        for rung in list_rungs(file):
            each = ["broke" if one.distance is None else f"{one.distance:.1f}" for one in rung.runs.values()]
            reason = next((one.reason for one in rung.runs.values() if one.reason), rung.case.problem)
            verdict = rung.verdict or ("n/a" if rung.case.problem else "")
            about = "; ".join(filter(None, (", ".join(each), reason)))
            rows.append([rung.name, rung.distance and f"{rung.distance:.1f}", verdict, about])
        columns = [Column("rung"), Column("mean", "ratio"), Column("verdict", "verdict"), Column("each seed")]
        yield Table(columns, rows)


STUDY = Canary()


@dataclass(frozen=True)
class Rung:
    """A rung with its trainings by seed, and its verdict: None while seeds are missing, or where it cannot run."""

    name: str
    case: Case
    runs: dict[int, Observed]
    verdict: str | None = None

    @property
    def distance(self) -> float | None:
        """Return the mean of the trainings, None if one broke or there is none."""
        distances = [each.distance for each in self.runs.values()]
        return None if None in distances or not distances else round(sum(distances) / len(distances), 3)  # type: ignore[arg-type]


def list_rungs(file: File) -> list[Rung]:
    """Return every rung, judged: "as good", "better", "worse" or "broke"."""
    rungs: dict[str, Rung] = {}
    for key, case in file.cases.items():
        rung = rungs.setdefault(case.rung, Rung(case.rung, case, {}))
        if case.problem is None and key in file.observed:
            rung.runs[case.seed] = file.observed[key]
    base, band = next(iter(rungs.values())), derive_band(file)
    judged = []
    for rung in rungs.values():
        mean, verdict = rung.distance, None
        if rung.runs and mean is None:
            verdict = "broke"
        elif mean is not None and band is not None and len(rung.runs) == len(base.runs):
            verdict = "worse" if mean > band[1] else "better" if mean < band[0] else "as good"
        judged.append(Rung(rung.name, rung.case, rung.runs, verdict))
    return judged


def count_samples(file: File) -> int:
    """Return how many images were compared of each training."""
    return max((each.samples for each in file.observed.values()), default=0)


def derive_band(file: File) -> tuple[float, float] | None:
    """Return mean +- t * sd * sqrt(2 / n) of the baseline, None if it broke or has one seed."""
    base = next(iter(file.cases.values())).rung
    runs = [each for key, each in file.observed.items() if file.cases[key].rung == base]
    distances = [each.distance for each in runs if each.distance is not None]
    if len(distances) < max(2, len(runs)):
        return None
    mean = sum(distances) / len(distances)
    t = estimates.t_quantile(0.5 + CONFIDENCE / 2, len(distances) - 1)
    half = t * estimates.standard_error(distances) * math.sqrt(2)
    return round(max(0.0, mean - half), 3), round(mean + half, 3)
