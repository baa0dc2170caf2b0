"""What a merged result holds of other files: the runs it was merged from, and which rounds two files share.

A merged file and its sources may lie in one folder. The same round must not be shown, or counted as noise, twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Visits = set[tuple[Any, ...]]


def runs(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs whose rounds a result holds, in the order of their rounds: started, rounds, cpu, cores.

    Those of a merged file follow one another; what was added to it later (`--resume`) belongs to the last.
    """
    found = [dict(run) for run in result.get("merged") or [_own(result)]]
    found[-1]["rounds"] = max(found[-1]["rounds"], end(result) - sum(run["rounds"] for run in found[:-1]))
    return found


def _own(result: Mapping[str, Any]) -> dict[str, Any]:
    machine = result["machine"]
    host = {"cpu": machine.get("cpu"), "cores": machine.get("cores")}
    return {"started": result["started"], "rounds": end(result), **host}


def commits(result: Mapping[str, Any]) -> list[str]:
    """The known commits of a result's rounds, oldest first: several where all of them measured the same code."""
    several = result.get("commits")
    return list(several) if several else [commit for commit in [result.get("commit")] if commit]


def all_commits(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`commit`, None if one of the results has none, and `commits` if there are several: of the whole of them."""
    found = list(found)
    seen = list(dict.fromkeys(commit for each in found for commit in commits(each)))
    known = all(each["commit"] for each in found)
    return {"commit": found[-1]["commit"] if known else None} | ({"commits": seen} if len(seen) > 1 else {})


def gone_on_with(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What a result says of its code that was begun as `before` and is gone on with: its commits, and whether dirty."""
    dirty = bool(before["dirty"] or now["dirty"]) if before["commit"] else before["dirty"]
    return all_commits([before, now]) | {"dirty": dirty}


def end(result: Mapping[str, Any]) -> int:
    """The number after that of the last round of any rung or twin."""
    return max((visit["round"] + 1 for each in records(result) for visit in each["rounds"]), default=0)


def records(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rungs and twins."""
    twins = result.get("twins")
    return [*result["rungs"], *(twins if isinstance(twins, list) else [])]


def one_host(result: Mapping[str, Any]) -> bool:
    """Whether all rounds come from one kind of host."""
    return len({(run.get("cpu"), run.get("cores")) for run in result.get("merged") or ()}) <= 1


def visits(result: Mapping[str, Any]) -> Visits:
    """Every visit by rung and samples, whatever its number: two clocks do not agree to the last digit by chance."""
    found = ((each["name"], visit.get("samples_ms")) for each in records(result) for visit in each["rounds"])
    return {(name, *samples) for name, samples in found if samples}


def without_sources(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """`found` without those whose every visit is in another one that was merged from them."""
    found = list(found)
    merged = [(each, visits(each)) for each in found if each.get("merged")]
    return [each for each in found if not any(_is_in(each, *whole) for whole in merged)]


def _is_in(result: dict[str, Any], whole: dict[str, Any], held: Visits) -> bool:
    started = [run["started"] for run in whole["merged"]]
    if result is whole or len(result.get("merged") or [result]) >= len(started):
        return False
    return result["started"] in started and bool(own := visits(result)) and own <= held
