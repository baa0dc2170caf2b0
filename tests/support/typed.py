"""Readers of results for tests that make results as their files have them.

Plain data become records on the way in, and records become plain data on the way out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ladder.report import tables
from ladder.results import derive, judging
from ladder.results.types import Result, RungResult, TopGain, Twin, build, plain

Plain = dict[str, Any]
_KEYS = (
    (Result, {"machine", "rungs", "ladder"}),
    (Twin, {"of", "rounds"}),
    (RungResult, {"title", "rounds"}),
)


def typed(value: Any) -> Any:
    """Return the record that a result, a rung or a twin is; lists and pairs of these, too. All else stays as it is."""
    if isinstance(value, list | tuple):
        return type(value)(map(typed, value))
    if not isinstance(value, dict):
        return value
    for cls, keys in _KEYS:
        if keys <= value.keys():
            made = build(cls, {key: each for key, each in value.items() if key != "at_top"})
            top = {name: TopGain(**each) for name, each in value.get("at_top", {}).items()}
            return dataclasses.replace(made, at_top=top) if top else made
    return value


def untyped(value: Any) -> Any:
    """Return what a file has of a result and its parts; lists, pairs and mappings of these, too."""
    if isinstance(value, Result):
        return tables.data_of(value)
    if isinstance(value, list | tuple):
        return type(value)(map(untyped, value))
    if isinstance(value, dict):
        return {key: untyped(each) for key, each in value.items()}
    if isinstance(value, TopGain):
        return dataclasses.asdict(value)
    stored = dataclasses.is_dataclass(value) and any(
        "rule" in each.metadata for each in dataclasses.fields(value)
    )
    return plain(value) if stored else value


class Reading:
    """A module whose functions take and give plain data."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **more: untyped(
            found(*map(typed, args), **{key: typed(each) for key, each in more.items()})
        )


def derived(made: Plain) -> str | None:
    """Fill in the derived numbers of a result; returns its baseline."""
    before = build(Result, made)
    judging.write_back(made, before, derive.derive(before))
    return made["baseline"]


def judged(made: Plain) -> None:
    """Fill in the verdicts and noise floors of a result."""
    before = build(Result, made)
    judging.write_back(made, before, judging.judge(before))


def skipped(made: Plain, recipes: Mapping[str, Plain]) -> list[str]:
    """Mark what depends on a rung that is out, as skipped; returns the names."""
    before = build(Result, made)
    after, names = derive.mark_skipped(before, recipes)
    judging.write_back(made, before, after)
    return names


def lazy_costs(rung: Plain) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """Return what each lazy phase adds to a step of a rung."""
    return derive.lazy_costs(build(RungResult, rung))


def round_medians(rung: Plain) -> dict[int, float]:
    """Return the median step time in ms of each round of a rung or twin."""
    return derive.round_medians(typed(rung))
