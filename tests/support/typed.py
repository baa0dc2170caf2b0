"""Results for tests, made as dicts of derived figures: the records that they are, and the raw files that they go to.

A rung with a time but without rounds gets rounds of that time when it is stored or judged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ladder.core import text
from ladder.core.records import write_whole
from ladder.results import derive, judging, store
from ladder.results.derive import MERGED, QUICK
from ladder.results.run import Result, Run, Rung, RungResult, TopGain, Twin

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
            return msgspec.convert(text.fit_texts(value), cls)
    return value


def untyped(value: Any) -> Any:
    """Return a result and its parts as data with every field; lists, pairs and mappings of these, too."""
    if isinstance(value, list | tuple):
        return type(value)(map(untyped, value))
    if isinstance(value, dict):
        return {key: untyped(each) for key, each in value.items()}
    if isinstance(value, Run) and not isinstance(value, Result):
        value = judging.derive_result(value)
    if isinstance(value, Result):
        data = write_whole(value)
        return data if data["at_top"] is not None else {k: v for k, v in data.items() if k != "at_top"}
    return write_whole(value) if isinstance(value, Rung | Twin | TopGain) else value


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


def run_of(made: Plain) -> Run:
    """Return the raw run of a result: what was observed, without derived figures."""
    return msgspec.convert(text.fit_texts(raw(made)), Run)


def raw(made: Plain) -> Plain:
    """Return the data of the raw file of a result; data of another kind as they are."""
    if made.get("kind") != "ladder" or "rungs" not in made:
        return made
    data = {key: copy.deepcopy(each) for key, each in made.items() if key in Run.__struct_fields__}
    notes = data["protocol"].get("notes", [])
    data["protocol"]["notes"] = [note for note in notes if not note.startswith((QUICK, MERGED))]
    data["rungs"] = [_observed(each, Rung, made) for each in made["rungs"]]
    data["twins"] = [_observed(each, Twin, made) for each in made.get("twins") or []]
    return {key: each for key, each in data.items() if each is not None}


def _observed(part: Plain, cls: type, made: Plain) -> Plain:
    names = cls.__struct_fields__  # type: ignore[attr-defined]
    data = {key: copy.deepcopy(part[key]) for key in names if part.get(key) is not None}
    if data.get("parity"):
        data["parity"] = {k: v for k, v in data["parity"].items() if k not in ("verdict", "reason")}
    if part.get("step_ms") and part.get("status") == "ok" and not data.get("rounds"):
        ms, peaks = part["step_ms"], ("peak_reserved_bytes", "peak_allocated_bytes", "main_ms", "prepare_s")
        one = {"samples_ms": [ms, ms], "passes": [0, 1], "still_s": 0.1} | {
            key: part.get(key) for key in peaks
        }
        data["rounds"] = [{"round": number} | one for number in range(made["protocol"]["rounds"])]
    return data


def fill(made: Plain) -> Plain:
    """Fill in every derived figure of a result, in place, and return it."""
    after = untyped(judging.derive_result(run_of(made)))
    for key in ("rungs", "twins"):
        for part, new in zip(made.get(key) or [], after.pop(key), strict=False):
            part.update(new)
    made.update(after)
    return made


def write_run(path: Path, made: Plain) -> Path:
    """Write the raw file of a result; data of another kind as they are."""
    store.write(path, text.fit_texts(raw(made)))
    return path


def round_medians(rung: Plain) -> dict[int, float]:
    """Return the median step time in ms of each round of a rung or twin."""
    return derive.round_medians(typed(rung))


def skipped(made: Plain) -> Mapping[str, str | None]:
    """Return the reason of each rung and twin that is skipped, as it stands on one that is out."""
    result = judging.derive_result(run_of(made))
    return {each.name: each.reason for each in (*result.rungs, *result.twins) if each.status == "skipped"}


def problem_of(made: Any) -> str | None:
    """Return the problem that validation has with the raw file of a result, or None."""
    from ladder.publish.validation import validate

    return validate.find_problem(raw(made) if isinstance(made, dict) else made)


def take_up(path: Path, fresh: Plain) -> Plain:
    """Return a run that goes on, with what follows from it so far."""
    from ladder.results.combine import resuming
    from tests.support import fake_runs

    return untyped(resuming.take_up(path, run_of(fresh), fake_runs.job(path.parent, [])))
