"""The runs that a merged result holds, the commits of a result's rounds, and the visits that two files share.

A merged file and its sources may lie in one folder. The same round must not be shown, or counted as noise, twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from ladder.results.file import Header
from ladder.results.run import Merged, Result, Run, RungResult, Twin

Visits = set[tuple[Any, ...]]
UNITS = {True: "generation", False: "round"}  # by whether a run timed live processes


def runs(result: Run) -> list[Merged]:
    """Return the runs whose rounds a result holds, in the order of their rounds.

    The rounds of a merged file follow one another; what was added to it later (`--resume`) belongs to the last run.
    """
    found = list(result.merged or [as_merged(result, end(result))])
    rest = end(result) - sum(run.rounds for run in found[:-1])
    return [*found[:-1], replace(found[-1], rounds=max(found[-1].rounds, rest))]


def as_merged(result: Any, rounds: int) -> Merged:
    """Return a run of any kind as a merged file names it."""
    machine = result.machine
    return Merged(started=result.started, rounds=rounds, cpu=machine.cpu, cores=machine.cores)


def commits(header: Header) -> list[str]:
    """Return the known commits of a result's rounds, oldest first. Several have the same code."""
    return list(header.commits or [commit for commit in [header.commit] if commit])


def join_commits(headers: Sequence[Header]) -> dict[str, Any]:
    """Return the fields `commit`, None if a result has none, and `commits` of results together."""
    every = list(dict.fromkeys(commit for each in headers for commit in commits(each)))
    commit = headers[-1].commit if all(each.commit for each in headers) else None
    return {"commit": commit, "commits": every if len(every) > 1 else None}


def end(result: Run) -> int:
    """Return the number after that of the last round of any rung or twin."""
    return max((visit.round + 1 for each in records(result) for visit in each.rounds), default=0)


def records(result: Run) -> list[Any]:
    """Return rungs and twins."""
    return [*result.rungs, *result.twins]


def timed_alive(rung: RungResult | Twin) -> bool:
    """Return whether a rung's processes were timed while those of all rungs were alive."""
    return any(visit.passes for visit in rung.rounds)


def in_generations(result: Run) -> bool:
    """Return whether a run timed generations of live processes; older ones had rounds of visits."""
    return any(map(timed_alive, records(result)))


def unit(result: Result) -> str:
    """Return the word for what a run's numbers are medians of: "generation", of older runs "round"."""
    return UNITS[in_generations(result)]


def one_host(result: Result) -> bool:
    """Return whether all rounds come from one kind of host."""
    return len({(run.cpu, run.cores) for run in result.merged or []}) <= 1


def visits(result: Result) -> Visits:
    """Return every visit by rung and samples, whatever its number.

    Two clocks do not agree to the last digit by chance.
    """
    samples = [(each.name, visit.samples_ms) for each in records(result) for visit in each.rounds]
    return {(name, *each) for name, each in samples if each}


def without_sources(results: Iterable[Result]) -> list[Result]:
    """Return the results without those whose every visit is in another result that was merged from them."""
    every = list(results)
    merged = [({run.started for run in each.merged}, visits(each)) for each in every if each.merged]

    def is_source(result: Result) -> bool:
        own, count = visits(result), len(result.merged or [result])
        wholes = [held for started, held in merged if result.started in started and count < len(started)]
        return bool(own) and any(own <= held for held in wholes)

    return [each for each in every if not is_source(each)]
