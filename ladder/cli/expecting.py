"""The expected duration of a `ladder run`, from earlier results of this machine or else from typical values."""

from __future__ import annotations

import math
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.starting import near
from ladder.base.text import counted
from ladder.machine import neighbours
from ladder.plan import modes
from ladder.results import loading
from ladder.results.run import Result, RungResult, Twin
from ladder.results.types import plain
from ladder.stats import rounds_budget

USUAL = {"cpu": "tiny", "cuda": "article"}
USUAL_S = {
    "cpu": 12.0,
    "cuda": 14.0,
}  # of a run, for each visit: on two cores, where BF16 may be emulated, and on an H100
QUICK_ROUNDS = 3
EAGER = 0.5  # of a usual visit's seconds, if nothing is captured and hardly anything profiled


def visit_seconds(folder: Path, workload: str) -> float | None:
    """Return the seconds of one visit in the newest result of a workload, or None if the folder has no such result.

    A result that other programs disturbed counts only if there is no other.
    """
    disturbed = None
    for path in sorted(folder.glob(f"{workload}-*-2*.json"), key=lambda path: path.stem[-16:], reverse=True):
        try:
            result = loading.load_run(path)
        except UserError:
            continue
        if result.protocol.mode == modes.MISTAKES:  # whose visits are short
            continue
        if count := _made(result):
            seconds = result.seconds / count
            rounds = (plain(each) for part in _parts(result) for each in part.rounds)
            if not neighbours.list_marks(rounds):
                return seconds
            disturbed = disturbed or seconds
    return disturbed


def _parts(result: Result) -> list[RungResult | Twin]:
    """Return the rungs of a result and their twins."""
    return [*result.rungs, *(result.twins or ())]


def _made(result: Result) -> int:
    """Return how many visits a result holds, inspections included."""
    visits = sum(len(part.rounds) for part in _parts(result))
    return visits + sum(bool(rung.inspection) for rung in result.rungs)


def minutes(rungs: int, seconds: float, *, rounds: int | None, budget_minutes: float | None) -> float:
    """Return the approximate minutes of a run.

    Args:
        rungs: number of rungs that can run here; the lowest and the highest also have a twin.
        seconds: duration of one visit.
        rounds: exact number of rounds, or None if the budget decides.
        budget_minutes: the budget, or None for the default.
    """

    def taking(number: int) -> float:
        return seconds * (rungs + number * (rungs + min(rungs, 2))) / 60

    if rounds is not None:
        return taking(rounds)
    wanted = budget_minutes or rounds_budget.MINUTES
    return min(max(wanted, taking(rounds_budget.LEAST_ROUNDS)), taking(rounds_budget.MOST_ROUNDS))


def of_run(
    folder: Path,
    workload: str,
    device: str,
    rungs: int,
    quick: bool,
    rounds: int | None,
    minutes_: float | None,
    share: float = 1.0,
) -> float | None:
    """Return the minutes of a new run, or None if nothing is known about its workload.

    A visit takes a `share` of what it takes in a run of a ladder.
    """
    seconds = visit_seconds(folder, workload) or (USUAL_S[device] if USUAL[device] == workload else None)
    rounds = rounds or (QUICK_ROUNDS if quick else None)
    if seconds is None:
        return None if rounds is not None else minutes_ or rounds_budget.MINUTES
    return minutes(rungs, share * seconds, rounds=rounds, budget_minutes=minutes_)


def words(about: float | None) -> str:
    """Return the duration as text, `about 3 minutes`, in whole minutes and at least one."""
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
    share: float = 1.0,
) -> str:
    """Return the first line of `ladder run`: what it measures, and about how long it takes.

    Args:
        folder: the folder of this machine's results.
        rungs: number of rungs that can run here.
        protocol: (quick, rounds, minutes); rounds and minutes are None if not given.
        share: of a usual visit's seconds.
    """
    quick, rounds, wanted = protocol
    what = f"{workload} on {device}: {counted(rungs, 'rung')}"
    if resumed is not None:
        return f"{what}, going on with {near(resumed)}"
    number = rounds or (QUICK_ROUNDS if quick else None)
    many = f"{rounds_budget.LEAST_ROUNDS} to {rounds_budget.MOST_ROUNDS}" if number is None else str(number)
    about = words(of_run(folder, workload, device, rungs, quick, rounds, wanted, share))
    return f"{what}, {many} generation{'s' * (number != 1)}, {about}"
