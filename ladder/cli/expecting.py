"""How long a `ladder run` will take, from earlier results of this machine; else from what is usual."""

from __future__ import annotations

import math
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.starting import near
from ladder.results import store as results
from ladder.results.types import Result
from ladder.stats import rounds_budget, verdicts

USUAL_S = 8.0  # of one visit: of the tiny workload on a CPU with two cores, and of article on a GPU
USUAL = {"cpu": "tiny", "cuda": "article"}
QUICK_ROUNDS = 3


def visit_seconds(folder: Path, workload: str) -> float | None:
    """Return the seconds of one visit in the newest result of a workload in a machine's folder; None without one."""
    for path in sorted(folder.glob(f"{workload}-*-2*.json"), key=lambda path: path.stem[-16:], reverse=True):
        try:
            result = results.load(path)
        except UserError:
            continue
        if count := _made(result):
            return result.seconds / count
    return None


def _made(result: Result) -> int:
    """Return how many visits a result holds, inspections included."""
    visits = sum(len(part.rounds) for part in (*result.rungs, *(result.twins or ())))
    return visits + sum(bool(rung.inspection) for rung in result.rungs)


def minutes(rungs: int, seconds: float, *, rounds: int | None, budget_minutes: float | None) -> float:
    """Return about how many minutes a run takes.

    Args:
        rungs: how many can run here; the lowest and the highest have a twin.
        seconds: of one visit.
        rounds: exactly so many, or None where the budget decides.
        budget_minutes: of a run whose rounds it decides; None is the default.
    """

    def taking(number: int) -> float:
        return seconds * (rungs + number * (rungs + min(rungs, 2))) / 60

    if rounds is not None:
        return taking(rounds)
    wanted = budget_minutes or rounds_budget.MINUTES
    return min(max(wanted, taking(rounds_budget.FEWEST_ROUNDS)), taking(verdicts.MOST_ROUNDS))


def of_run(
    folder: Path,
    workload: str,
    device: str,
    rungs: int,
    quick: bool,
    rounds: int | None,
    minutes_: float | None,
) -> float | None:
    """Return the minutes of a run that starts from nothing; None where nothing is known of such a workload."""
    seconds = visit_seconds(folder, workload) or (USUAL_S if USUAL[device] == workload else None)
    rounds = rounds or (QUICK_ROUNDS if quick else None)
    if seconds is None:
        return None if rounds is not None else minutes_ or rounds_budget.MINUTES
    return minutes(rungs, seconds, rounds=rounds, budget_minutes=minutes_)


def words(about: float | None) -> str:
    """Return `about 3 minutes`, in whole minutes and no fewer than one."""
    if about is None:
        return "for how long the first visit will tell"
    number = max(1, math.ceil(about - 0.25))
    return f"about {number} minute{'s' * (number > 1)}"


def first_line(
    folder: Path,
    workload: str,
    device: str,
    rungs: int,
    protocol: tuple[bool, int | None, float | None],
    resumed: Path | None = None,
) -> str:
    """Return what `ladder run` says at first: what it measures, and about how long it takes.

    Args:
        folder: of this machine's results.
        rungs: how many of them can run here.
        protocol: whether it is quick; the rounds and the minutes that were asked for, or None.
    """
    quick, rounds, wanted = protocol
    what = f"{workload} on {device}: {rungs} rung{'s' * (rungs != 1)}"
    if resumed is not None:
        return f"{what}, going on with {near(resumed)}"
    number = rounds or (QUICK_ROUNDS if quick else None)
    many = f"{verdicts.LEAST_ROUNDS} to {verdicts.MOST_ROUNDS}" if number is None else str(number)
    about = words(of_run(folder, workload, device, rungs, quick, rounds, wanted))
    return f"{what}, {many} round{'s' * (number != 1)}, {about}"
