"""The file of `ladder train --canary`: the distances that were measured; the band and the verdicts follow from them.

A rung's distance is the mean over its trainings, and that of a training the mean over its levels. The mean of equally
many other seeds of the baseline falls into the band with 99%.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Literal

from ladder.base import files, text
from ladder.base.plain import Plain
from ladder.core.records import (
    Amount,
    Count,
    Fields,
    Line,
    Name,
    Record,
    Text,
    matching,
    size,
    write_record,
    write_whole,
)
from ladder.results import fields, loading, publishable
from ladder.results.file import Header
from ladder.show.table import Column, Table, render_markdown, render_text
from ladder.stats import estimates
from ladder.studies import frame

CONFIDENCE = 0.99
Verdict = Literal["as good", "better", "worse", "broke"]


class Training(Record):
    """One training of a rung. `levels` are the distances by resolution; `reason` is why it broke."""

    seed: Count
    levels: Annotated[dict[Annotated[str, matching(r"\d{1,5}", "a size")], Amount], size(16, 1)] | None = None
    reason: Line | None = None

    @property
    def distance(self) -> float | None:
        """Return the mean of the levels, None if it broke."""
        return None if self.levels is None else round(sum(self.levels.values()) / len(self.levels), 3)


class Rung(Record):
    """A rung with its trainings in the order of seeds, or why it cannot run on this machine."""

    name: Name
    title: Text
    recipe: Fields | None = None
    skipped: Line | None = None
    runs: Annotated[list[Training], size(1000)] = []

    @property
    def distance(self) -> float | None:
        """Return the mean of the trainings, None if one broke or there is none."""
        distances = [run.distance for run in self.runs]
        return None if None in distances or not distances else round(sum(distances) / len(distances), 3)


class Canary(Header, kw_only=True):
    """A result. The first rung is the baseline; `samples` images were compared of each training."""

    ladder: Name
    steps: Count
    seeds: Count
    samples: Count
    rungs: Annotated[list[Rung], size(100, 1)]

    @property
    def is_complete(self) -> bool:
        """Return whether every rung that can run here was trained from every seed."""
        return all(rung.skipped or len(rung.runs) == self.seeds for rung in self.rungs)

    @property
    def band(self) -> tuple[float, float] | None:
        """Return mean +- t * sd * sqrt(2 / n) of the baseline, None if it broke or has one seed."""
        baseline = self.rungs[0]
        if baseline.distance is None or len(baseline.runs) < 2:
            return None
        distances = [run.distance for run in baseline.runs]
        mean = sum(distances) / len(distances)
        t = estimates.t_quantile(0.5 + CONFIDENCE / 2, len(distances) - 1)
        half = t * estimates.standard_error(distances) * math.sqrt(2)
        return round(max(0.0, mean - half), 3), round(mean + half, 3)

    def judge(self, rung: Rung) -> Verdict | None:
        """Return the verdict on a rung, None while seeds are missing."""
        if not rung.runs:
            return None
        mean, band = rung.distance, self.band
        if mean is None:
            return "broke"
        if band is None or len(rung.runs) < len(self.rungs[0].runs):
            return None
        low, high = band
        return "worse" if mean > high else "better" if mean < low else "as good"


def write(path: Path, file: Canary) -> None:
    """Write the file, whole or not at all. Raises UserError."""
    files.write(path, json.dumps(text.fit(write_record(file)), indent=1, allow_nan=False) + "\n")


def write_derived(file: Canary) -> Plain:
    """Return what `ladder train --canary --json` prints: the file with what follows from it."""
    rungs = [
        write_whole(rung) | {"distance": rung.distance, "verdict": file.judge(rung)} for rung in file.rungs
    ]
    return write_whole(file) | {"complete": file.is_complete, "band": file.band, "rungs": rungs}


def list_rungs(file: Canary) -> Table:
    """Return a row for each rung."""
    columns = [Column("rung"), Column("mean", "ratio"), Column("verdict", "verdict"), Column("each seed")]
    rows: list[list[str | None]] = []
    for rung in file.rungs:
        each = ", ".join("broke" if run.distance is None else f"{run.distance:.1f}" for run in rung.runs)
        reason = next((run.reason for run in rung.runs if run.reason), rung.skipped)
        mean = None if rung.distance is None else f"{rung.distance:.1f}"
        about = "; ".join(filter(None, (each, reason and text.display(reason))))
        rows.append([rung.name, mean, file.judge(rung) or ("n/a" if rung.skipped else ""), about])
    return Table(columns, rows)


def describe(file: Canary) -> str:
    """Return what was trained, and the band."""
    band = f"{file.band[0]:.1f} to {file.band[1]:.1f}" if file.band else "none, the baseline did not finish"
    return (
        f"{file.workload['name']}, {text.counted(file.steps, 'step')} from {file.seeds} seeds each: sliced Wasserstein"
        f" distance x 1000 of {file.samples} samples to the data, mean of the levels; the baseline's band"
        f" ({CONFIDENCE:.0%}): {band}."
    )


def render_terminal(file: Canary, width: int) -> str:
    """Return what the command prints at its end."""
    return f"{describe(file)}\n\n{render_text(list_rungs(file), width)}"


def render_page(file: Canary) -> str:
    """Return the Markdown page beside a file."""
    state = "" if file.is_complete else ", not complete"
    title = f"# Quality canary: {file.ladder} on {file.machine.gpu or file.machine.cpu}"
    about = f"{describe(file)} {file.seconds:.0f} s{state}. {frame.describe_software(file)}"
    return "\n\n".join([title, about, render_markdown(list_rungs(file))]) + "\n"


def _find_problem(file: Canary) -> str | None:
    """Return why a file of the right form cannot be genuine, in one line, or None."""
    problems = (
        fields.find_recipe_problem(rung.recipe, f"rungs[{k}].recipe") for k, rung in enumerate(file.rungs)
    )
    return next(filter(None, problems), None) or loading.find_header_problem(file)


def _list_cautions(file: Canary) -> list[str]:
    return [publishable.DIRTY] * bool(file.dirty) + [publishable.PARTIAL] * (not file.is_complete)


KIND = loading.Kind("canary", Canary, _find_problem, _list_cautions)
