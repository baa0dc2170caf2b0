"""Several runs of one measurement become one result, judged by today's rules: what they measured merges as rounds.

A comparison is made inside a round, so rounds of several runs may stand side by side as long as every run measured
the same program in the same way on the same GPU and software. Which program that was is told by a digest of its
sources (`ladder.results.code_digest`), by the commit where a result has none. A run may have measured some rungs of
the ladder only. What a host-bound rung takes belongs to its host, so another CPU is refused as well, unless it is
asked for. Samples are kept as they are; a round only gets another number. Every derived number is computed anew.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.results import check, code_digest, judging, record, sources
from ladder.results import store as results
from ladder.results.combine import belonging
from ladder.stats import verdicts
from stylegan_lite.config import Recipe

Result = dict[str, Any]
_CHECKED = ("inspection", "parity", "receipts")
_NEEDED = ("event_ms", "main_ms", "prepare_s", "settled")


def merge(paths: Sequence[Path], anyway: bool = False) -> Result:
    """The result of all rounds in these files, or one file judged anew.

    Raises `UserError`, in one line, for what `ladder validate` refuses and for what does not belong together.
    """
    found = sorted(((path, load(path)) for path in paths), key=lambda each: _when(each[1]))
    if len(found) == 1:
        return judge_anew(found[0][1])
    _refuse_the_same(found)
    for index, (path, result) in enumerate(found):
        if not sources.end(result):
            raise UserError(f"{path}: nothing was measured in it")
        for earlier_path, earlier in found[:index]:
            _refuse_others(earlier_path, earlier, path, result, anyway)
        if problem := belonging.unproven(result):
            raise UserError(f"{path}: {problem}")
        if not anyway and (why := belonging.unknown_code(result)):
            raise UserError(f"{path}: {why}; --anyway merges it nevertheless")
    merged = judge_anew(_merged([result for _, result in found]))
    if problem := check.problem_of(text.fit(merged)):
        raise UserError(f"these cannot be one result: {problem}")
    return merged


def load(path: Path) -> Result:
    """Read a result that can be derived anew. Raises `UserError`."""
    result = results.load(path)
    if problem := check.problem_of(result):
        raise UserError(f"{path}: {problem}")
    for each in sources.records(result):
        for visit in each["rounds"]:
            if missing := [key for key in _NEEDED if key not in visit]:
                raise UserError(
                    f"{path}: {each['name']}: a round lacks {missing[0]!r}: too old to be judged anew"
                )
    return result


def judge_anew(result: Result) -> Result:
    """A copy with every derived number computed from the rounds, as a run does after each visit."""
    made = copy.deepcopy(result)
    recipes = _recipes(made)
    batch = made["workload"]["batch"]
    made["baseline"] = record.derive(made["rungs"], batch)
    judging.judge(made)
    if record.mark_skipped(made, recipes):
        made["baseline"] = record.derive(made["rungs"], batch)
        judging.judge(made)
    return made


def _refuse_others(path: Path, result: Result, other_path: Path, other: Result, anyway: bool) -> None:
    if differ := belonging.differences(result, other, anyway):
        hint = (
            ""
            if anyway or belonging.differences(result, other, True)
            else "; --anyway merges them nevertheless"
        )
        raise UserError(f"{path} and {other_path} do not belong together: {'; '.join(differ)}{hint}")


def _refuse_the_same(found: Sequence[tuple[Path, Result]]) -> None:
    seen: list[tuple[Path, sources.Visits]] = []
    for path, result in found:
        own = sources.visits(result)
        for other, theirs in seen:
            if own & theirs:
                raise UserError(f"{other} and {path} hold the same run of {result['started']}")
        seen.append((path, own))


def _merged(found: list[Result]) -> Result:
    """One result around the rounds of all, oldest first; derived numbers are still those of the newest."""
    newest = found[-1]
    made = copy.deepcopy({key: value for key, value in newest.items() if key != "commits"})
    names = belonging.one_order(found)
    newer = {rung["name"]: rung for each in found for rung in each["rungs"]}
    made["ladder"]["rungs"], made["rungs"] = names, [copy.deepcopy(newer[name]) for name in names]
    numbers, made["merged"] = _renumbered(found)
    for rung in made["rungs"]:
        _join(rung, [_named(each["rungs"], rung["name"]) for each in found], numbers, found)
    if any("twins" in each for each in found):
        twins = {twin["name"]: twin for each in reversed(found) for twin in reversed(each.get("twins", []))}
        made["twins"] = [copy.deepcopy(twin) for twin in reversed(twins.values())]
    for twin in made.get("twins", []):
        _join(twin, [_named(each.get("twins", []), twin["name"]) for each in found], numbers, found)
    made |= sources.all_commits(found)
    if not code_digest.known(*found):
        made.pop(code_digest.KEY, None)
    made["protocol"] = _protocol(found, made)
    made["dirty"] = True if any(each["dirty"] for each in found) else newest["dirty"]
    made["seconds"] = round(sum(each["seconds"] for each in found), 1)
    made["stored_twins"] = _stored(found)
    if gpu := _gpu(found):
        made["gpu"] = gpu
    for row in [row for each in found[:-1] for row in each.get("choices", [])]:
        for name in row["rungs"]:
            record.add_choices(made, name, [row])
    made["complete"] = all(each["complete"] for each in found) or _enough(made)
    if made["complete"]:
        notes = made["protocol"]["notes"]
        notes[:] = [note for note in notes if not note.startswith("interrupted")]
    return made


def _renumbered(found: list[Result]) -> tuple[list[dict[int, int]], list[dict[str, Any]]]:
    """For each file the new number of each round, and all runs by their start: a file may be a merged one."""
    pieces = []
    for index, result in enumerate(found):
        first = 0
        for run in sources.runs(result):
            pieces.append((run, index, first))
            first += run["rounds"]
    pieces.sort(key=lambda piece: _when(piece[0]))
    numbers: list[dict[int, int]] = [{} for _ in found]
    free = 0
    for run, index, first in pieces:
        numbers[index] |= {first + number: free + number for number in range(run["rounds"])}
        free += run["rounds"]
    return numbers, [run for run, _, _ in pieces]


def _join(
    into: dict[str, Any],
    parts: list[dict[str, Any] | None],
    numbers: list[dict[int, int]],
    found: list[Result],
) -> None:
    """A rung or twin with the rounds of all its `parts`, one from each file or None.

    It is "ok" if it was in any run; that it was not in another is said in its notes. What is known of it beside its
    rounds is the newest that there is.
    """
    moved = [
        {**visit, "round": number[visit["round"]]}
        for part, number in zip(parts, numbers, strict=True)
        for visit in (part or {}).get("rounds", [])
    ]
    into["rounds"] = sorted(copy.deepcopy(moved), key=lambda visit: visit["round"])
    known = [part for part in parts if part is not None]
    timed = [part for part in known if part["rounds"]] or known
    into.update(recipe=timed[-1]["recipe"], settings=timed[-1]["settings"])
    for key in _CHECKED:
        if there := [part[key] for part in known if part.get(key) is not None]:
            busy = [each for each in there if key == "inspection" and each.get("gpu_busy_ms")]
            into[key] = copy.deepcopy((busy or there)[-1])
    chosen = max(known, key=lambda part: _weight(part["status"]))
    into.pop("failed_at", None)
    into.update(status=chosen["status"], reason=chosen["reason"])
    if "failed_at" in chosen and chosen["status"] != "ok":
        number = numbers[next(i for i, part in enumerate(parts) if part is chosen)]
        at = chosen["failed_at"].get("round")
        into["failed_at"] = {**chosen["failed_at"], "round": number.get(at)}
    if "of" not in into:
        said = [note for part in known for note in part.get("elsewhere", [])]
        if chosen["status"] == "ok":
            pairs = zip(parts, found, strict=True)
            said += [_elsewhere(p, run) for p, run in pairs if p and p["status"] in results.OUT]
        into.pop("elsewhere", None)
        if said:
            into["elsewhere"] = said[:64]


def _weight(status: str) -> int:
    """Which status of a rung counts where runs differ: a number, else why there is none, else that it is not known."""
    return {"ok": 3, "skipped": 1, "n/a": 0}.get(status, 2)


def _elsewhere(part: dict[str, Any], run: Result) -> str:
    return text.display(f"{part['status']} in the run of {run['started'][:16]}: {part['reason']}")


def _protocol(found: list[Result], made: Result) -> dict[str, Any]:
    protocols = [each["protocol"] for each in found]
    made_of, commits = len(made["merged"]), sources.commits(made)
    seeds = sorted({each["seed"] for each in protocols})
    notes = [note for each in protocols for note in each["notes"] if not note.startswith("merged: ")]
    rounds = sum(run["rounds"] for run in made["merged"])
    at = commits[0] if len(commits) == 1 else f"{len(commits)} commits" if commits else "an unknown commit"
    notes.append(f"merged: {rounds} rounds of {made_of} runs at {at}")
    for each in found:
        if (some := len(each["rungs"])) < (all_ := len(made["rungs"])):
            notes.append(f"only {some} of {all_} rungs in the run of {each['started'][:16]}")
    if len(seeds) > 1:
        notes.append(f"merged: seeds {', '.join(map(str, seeds))}")
    if not sources.one_host(made):
        hosts = dict.fromkeys(f"{run['cores']} cores of {run['cpu']}" for run in made["merged"])
        notes += [f"merged: {host}" for host in hosts]
    fixed = all(each.get("fixed", True) for each in protocols)
    budget = None if fixed else sum(each.get("budget_s") or 0.0 for each in protocols)
    plan = {"fixed": fixed, "budget_s": budget, "rounds": rounds}
    return {**protocols[-1], **plan, "notes": list(dict.fromkeys(notes))[:64]}


def _stored(found: list[Result]) -> dict[str, list[float]]:
    """Twins of earlier runs, as the newest knew them, without those that are now this result's own."""
    own = [value for each in found for _, values in judging.twin_ratios(each) for value in values]
    stored = found[-1].get("stored_twins") or {}
    return {
        kind: [value for value in values if all(abs(value - mine) > 1e-12 for mine in own)]
        for kind, values in stored.items()
    }


def _gpu(found: list[Result]) -> dict[str, Any] | None:
    """Of the whole: alone, or known, only if every run was; what was noisy stays so."""
    seen = [each.get("gpu") for each in found]
    if not any(seen):
        return None
    words = {each["tenancy"] if each else "unknown" for each in seen}
    states = {each["state"] if each else "unknown" for each in seen}
    there = [each for each in seen if each]
    return {
        "state": "unknown" if "unknown" in states else "known",
        "tenancy": next((word for word in ("shared", "unknown") if word in words), "alone"),
        "rejected_visits": sum(each["rejected_visits"] for each in there),
        "notes": sorted({note for each in there for note in each["notes"]})[:64],
    }


def _enough(made: Result) -> bool:
    """Whether every rung that can run here and is not out, and its twin, has the rounds that a run should have."""
    waiting = [
        each for each in sources.records(made) if each["status"] == "n/a" and each["recipe"] is not None
    ]
    timed = [each for each in sources.records(made) if each["status"] == "ok"]
    return not waiting and all(len(record.counted(each)) >= verdicts.LEAST_ROUNDS for each in timed)


def _recipes(result: Result) -> dict[str, dict[str, Any]]:
    """Every planned recipe in ladder order, twins last, with all of its fields: what `record.mark_skipped` asks for."""
    default = {field.name: field.default for field in dataclasses.fields(Recipe)}
    return {
        each["name"]: default | each["recipe"]
        for each in sources.records(result)
        if each["recipe"] is not None
    }


def _named(records: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((each for each in records if each["name"] == name), None)


def _when(result: dict[str, Any]) -> str:
    return result["started"][:19]
