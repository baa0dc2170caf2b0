"""The expected duration of a `ladder run`, from earlier results of this machine or else from typical values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ladder.core.errors import UserError
from ladder.core.starting import shorten_path
from ladder.core.text import format_count
from ladder.plan import modes
from ladder.results import loading
from ladder.stats import rounds_budget

USUAL = {"cpu": "tiny", "cuda": "article"}
USUAL_S = {"cpu": 12.0, "cuda": 14.0}  # a visit on two cores, where BF16 may be emulated, and on an H100
QUICK_ROUNDS = 3
EAGER = 0.5  # of a usual visit's seconds, if nothing is captured and hardly anything profiled


@dataclass(frozen=True)
class PlannedRun:
    """A run about to begin: `folder` has this machine's results, and `rungs` can run here.

    `rounds` and `minutes` are None if not given. A visit takes a `share` of what it takes in a run of a ladder.
    """

    folder: Path
    workload: str
    device: str
    rungs: int
    quick: bool = False
    rounds: int | None = None
    minutes: float | None = None
    share: float = 1.0

    @property
    def exact_rounds(self) -> int | None:
        """Number of generations, or None if the budget decides."""
        return self.rounds or (QUICK_ROUNDS if self.quick else None)


def read_visit_seconds(folder: Path, workload: str) -> float | None:
    """Return the seconds of one visit in the newest result of a workload, or None if the folder has no such result."""
    for path in sorted(folder.glob(f"{workload}-*-2*.json"), key=lambda path: path.stem[-16:], reverse=True):
        try:
            result = loading.load_run(path)
        except UserError:
            continue
        visits = sum(len(part.rounds) for part in (*result.rungs, *(result.twins or ())))
        visits += sum(bool(rung.inspection) for rung in result.rungs)
        if visits and result.protocol.mode != modes.MISTAKES:  # whose visits are short
            return result.seconds / visits
    return None


def fit_minutes(run: PlannedRun, seconds: float) -> float:
    """Return the minutes of a run whose visits take `seconds`. The lowest and the highest rung also have a twin."""

    def minutes_of(rounds: int) -> float:
        return seconds * (run.rungs + rounds * (run.rungs + min(run.rungs, 2))) / 60

    if run.exact_rounds is not None:
        return minutes_of(run.exact_rounds)
    budget = run.minutes or rounds_budget.MINUTES
    return min(max(budget, minutes_of(rounds_budget.LEAST_ROUNDS)), minutes_of(rounds_budget.MOST_ROUNDS))


def estimate_minutes(run: PlannedRun) -> float | None:
    """Return the minutes of a new run, or None if nothing is known about its workload."""
    seconds = read_visit_seconds(run.folder, run.workload)
    if seconds is None and USUAL[run.device] == run.workload:
        seconds = USUAL_S[run.device]
    if seconds is None:
        return None if run.exact_rounds is not None else run.minutes or rounds_budget.MINUTES
    return fit_minutes(run, run.share * seconds)


def render_minutes(minutes: float | None) -> str:
    """Return the duration as text, `about 3 minutes`, in whole minutes and at least one."""
    if minutes is None:
        return "for how long the first visit will tell"
    return f"about {format_count(max(1, math.ceil(minutes - 0.25)), 'minute')}"


def render_first_line(run: PlannedRun, resumed: Path | None = None) -> str:
    """Return the first line of `ladder run`: what it measures, and about how long it takes."""
    what = f"{run.workload} on {run.device}: {format_count(run.rungs, 'rung')}"
    if resumed is not None:
        return f"{what}, going on with {shorten_path(resumed)}"
    most = f"{rounds_budget.LEAST_ROUNDS} to {rounds_budget.MOST_ROUNDS} generations"
    rounds = format_count(run.exact_rounds, "generation") if run.exact_rounds else most
    return f"{what}, {rounds}, {render_minutes(estimate_minutes(run))}"
