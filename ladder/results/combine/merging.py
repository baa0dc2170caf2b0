"""Merging: several runs of one measurement become one result, judged by today's rules.

A comparison is made inside a round. So rounds of several runs may stand side by side as long as every run measured the
same program in the same way on the same GPU and software. The program is told by a digest of its sources
(`ladder.results.code_digest`), or by the commit where a result has none. A run may have measured only some rungs. The
time of a host-bound rung belongs to its host, so another CPU is refused unless it is asked for. Samples are kept as
they are; a round only gets another number. Every derived number is computed anew.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from ladder.base import text
from ladder.base.errors import UserError
from ladder.results import check, code_digest, derive, judging, record, sources, types
from ladder.results import store as results
from ladder.results.combine import belonging
from ladder.results.types import (
    ABSENT,
    Absent,
    KernelProfile,
    Merged,
    Plain,
    Protocol,
    Result,
    RungResult,
    Twin,
)
from ladder.stats import rounds_budget
from stylegan_lite.config import Recipe

Record = TypeVar("Record", RungResult, Twin)
Numbers = list[dict[int, int]]  # for each file, the new number of each round
_CHECKED = ("inspection", "parity", "receipts")
_NEEDED = ("event_ms", "main_ms", "prepare_s", "settled")


def merge(paths: Sequence[Path], anyway: bool = False) -> Result:
    """Return the result of all rounds in these files, or one file judged anew.

    Raises:
        UserError: `ladder validate` refuses a file, or they do not belong together; one line.
    """
    found = sorted(((path, load(path)) for path in paths), key=lambda each: _when(each[1].started))
    if len(found) == 1:
        return judge_anew(found[0][1])
    belonging.refuse_the_same(found, sources.visits)
    for index, (path, result) in enumerate(found):
        if not sources.end(result):
            raise UserError(f"{path}: nothing was measured in it")
        for earlier_path, earlier in found[:index]:
            differ = functools.partial(belonging.differences, earlier, result)
            belonging.refuse_others(earlier_path, path, differ, anyway)
        if problem := belonging.unproven(result):
            raise UserError(f"{path}: {problem}")
        if not anyway and (why := belonging.unknown_code(result)):
            raise UserError(f"{path}: {why}; --anyway merges it nevertheless")
    merged = judge_anew(_merged([result for _, result in found]))
    if problem := check.problem_of(text.fit(types.plain(merged))):
        raise UserError(f"these cannot be one result: {problem}")
    return merged


def load(path: Path) -> Result:
    """Return the result in a file, if it can be derived anew. Raises UserError."""
    result = results.load(path)
    if problem := check.plain_problem(result) or check.contradiction(result):
        raise UserError(f"{path}: {problem}")
    for each in sources.records(result):
        for visit in each.rounds:
            if missing := [key for key in _NEEDED if getattr(visit, key) is ABSENT]:
                raise UserError(
                    f"{path}: {each.name}: a round lacks {missing[0]!r}: too old to be judged anew"
                )
    return result


def judge_anew(result: Result) -> Result:
    """Return the result with every derived number computed from the rounds, as a run does after each visit."""
    return judging.judge_anew(result, _recipes(result))


def _merged(found: list[Result]) -> Result:
    """Return one result around the rounds of all, oldest first; derived numbers are still those of the newest."""
    newest, names = found[-1], belonging.one_order(found)
    newer = {rung.name: rung for each in found for rung in each.rungs}
    numbers, merged = _renumbered(found)
    rungs = [
        _joined(newer[name], [_named(each.rungs, name) for each in found], numbers, found) for name in names
    ]
    heads = [types.head(each) for each in found]
    code: dict[str, Any] = {"commits": ABSENT} | sources.all_commits(heads)
    made = replace(
        newest,
        ladder=replace(newest.ladder, rungs=names),
        rungs=rungs,
        twins=_twins(found, numbers),
        merged=merged,
        measured_code=newest.measured_code if code_digest.known(*heads) else ABSENT,
        dirty=True if any(each.dirty for each in found) else newest.dirty,
        seconds=round(sum(each.seconds for each in found), 1),
        first_table_s=ABSENT,
        stored_twins=ABSENT,
        gpu=_gpu(found) or newest.gpu,
        choices=_choices(found),
        **code,
    )
    made = replace(made, protocol=_protocol(found, made))
    if not (all(each.complete for each in found) or _enough(made)):
        return replace(made, complete=False)
    notes = [note for note in made.protocol.notes if not note.startswith("interrupted")]
    return replace(made, complete=True, protocol=replace(made.protocol, notes=notes))


def _twins(found: list[Result], numbers: Numbers) -> list[Twin] | Absent:
    """Return the twins of all runs, each with the rounds of all."""
    if all(each.twins is ABSENT for each in found):
        return ABSENT
    twins = {twin.name: twin for each in reversed(found) for twin in reversed(each.twins or [])}
    return [
        _joined(twin, [_named(each.twins or [], twin.name) for each in found], numbers, found)
        for twin in reversed(twins.values())
    ]


def _choices(found: list[Result]) -> list[types.Noted | types.Choice] | Absent:
    """Return the rows of tables that decided in any run, each once, with its rungs."""
    made: Plain = {"choices": []}
    for row in [row for each in (found[-1], *found[:-1]) for row in each.choices or []]:
        for name in row.rungs:
            record.add_choices(made, name, [types.plain(row)])
    if not made["choices"] and found[-1].choices is ABSENT:
        return ABSENT
    return [
        types.build(types.Choice, row) if "tile" in row else types.build(types.Noted, row)
        for row in made["choices"]
    ]


def _renumbered(found: list[Result]) -> tuple[Numbers, list[Merged]]:
    """Return for each file the new number of each round, and all runs by their start: a file may be a merged one."""
    pieces = []
    for index, result in enumerate(found):
        first = 0
        for run in sources.runs(result):
            pieces.append((run, index, first))
            first += run.rounds
    pieces.sort(key=lambda piece: _when(piece[0].started))
    numbers: Numbers = [{} for _ in found]
    free = 0
    for run, index, first in pieces:
        numbers[index] |= {first + number: free + number for number in range(run.rounds)}
        free += run.rounds
    return numbers, [run for run, _, _ in pieces]


def _joined(newest: Record, parts: list[Record | None], numbers: Numbers, found: list[Result]) -> Record:
    """Return a rung or twin with the rounds of all its `parts`, one from each file or None.

    It is "ok" if it was in any run; that it was not in another is said in its notes. What is known of it beside its
    rounds is the newest that there is.
    """
    rounds = [
        replace(visit, round=number[visit.round])
        for part, number in zip(parts, numbers, strict=True)
        for visit in (part.rounds if part else [])
    ]
    known = [part for part in parts if part is not None]
    timed = [part for part in known if part.rounds] or known
    chosen = max(known, key=lambda part: _weight(part.status))
    failed_at = ABSENT
    if chosen.failed_at and chosen.status != "ok":
        number = numbers[next(index for index, part in enumerate(parts) if part is chosen)]
        failed_at = replace(chosen.failed_at, round=number.get(chosen.failed_at.round))
    changed: dict[str, Any] = {
        "rounds": sorted(rounds, key=lambda visit: visit.round),
        "recipe": timed[-1].recipe,
        "settings": timed[-1].settings,
        "status": chosen.status,
        "reason": chosen.reason,
        "failed_at": failed_at,
    }
    if isinstance(newest, RungResult):
        changed |= _checks(cast(Any, known)) | {
            "elsewhere": _elsewhere(cast(Any, parts), chosen.status, found),
            "profile": _profile(cast(Any, known)),
        }
    return replace(newest, **changed)


def _profile(known: Sequence[RungResult]) -> KernelProfile | Absent | None:
    """Return the profile of the oldest run with profiled cycles: a profile is that of the first of all cycles."""
    return next((rung.profile for rung in known if any(each.profiled for each in rung.rounds)), ABSENT)


def _checks(known: Sequence[RungResult]) -> dict[str, Any]:
    """Return the newest inspection, parity and receipts; an inspection that saw the GPU busy before others."""
    made = {}
    for key in _CHECKED:
        if there := [each for part in known if (each := types.given(getattr(part, key))) is not None]:
            busy = [each for each in there if key == "inspection" and each.gpu_busy_ms]
            made[key] = (busy or there)[-1]
    return made


def _weight(status: str) -> int:
    """Return the weight of a rung's status where runs differ: a number, else why there is none, else not known."""
    return {"ok": 3, "skipped": 1, "n/a": 0}.get(status, 2)


def _elsewhere(parts: Sequence[RungResult | None], status: str, found: list[Result]) -> list[str] | Absent:
    """Return what other runs say of a rung that has a number in one of them."""
    said = [note for part in parts if part for note in part.elsewhere or []]
    if status == "ok":
        pairs = zip(parts, found, strict=True)
        said += [
            text.display(f"{part.status} in the run of {run.started[:16]}: {part.reason}")
            for part, run in pairs
            if part and part.status in results.OUT
        ]
    return said[:64] or ABSENT


def _protocol(found: list[Result], made: Result) -> Protocol:
    protocols, merged = [each.protocol for each in found], made.merged or []
    commits = sources.commits(types.head(made))
    seeds = sorted({each.seed for each in protocols})
    notes = [note for each in protocols for note in each.notes if not note.startswith("merged: ")]
    rounds = sum(run.rounds for run in merged)
    at = commits[0] if len(commits) == 1 else f"{len(commits)} commits" if commits else "an unknown commit"
    notes.append(f"merged: {text.counted(rounds, sources.unit(made))} of {len(merged)} runs at {at}")
    for each in found:
        if (some := len(each.rungs)) < (all_ := len(made.rungs)):
            notes.append(f"only {some} of {all_} rungs in the run of {each.started[:16]}")
    if len(seeds) > 1:
        notes.append(f"merged: seeds {', '.join(map(str, seeds))}")
    if not sources.one_host(made):
        notes += [
            f"merged: {host}" for host in dict.fromkeys(f"{run.cores} cores of {run.cpu}" for run in merged)
        ]
    fixed = all(each.fixed is not False for each in protocols)
    budget = None if fixed else sum(each.budget_s or 0.0 for each in protocols)
    notes = list(dict.fromkeys(notes))[:64]
    return replace(protocols[-1], fixed=fixed, budget_s=budget, rounds=rounds, notes=notes)


def _gpu(found: list[Result]) -> types.RunGpu | None:
    """Return the state of the GPU over all runs: alone, or known, only if every run was. Noise stays noted."""
    seen = [each.gpu or None for each in found]
    there = [each for each in seen if each]
    if not there:
        return None
    words = {each.tenancy if each else "unknown" for each in seen}
    states = {each.state if each else "unknown" for each in seen}
    return types.RunGpu(
        state="unknown" if "unknown" in states else "known",
        tenancy=next((word for word in ("shared", "unknown") if word in words), "alone"),
        rejected_visits=sum(each.rejected_visits for each in there),
        notes=sorted({note for each in there for note in each.notes})[:64],
    )


def _enough(made: Result) -> bool:
    """Return whether every rung and twin that can run here and is not out has the rounds of a whole run."""
    parts = sources.records(made)
    waiting = [each for each in parts if each.status == "n/a" and each.recipe is not None]
    timed = [each for each in parts if each.status == "ok"]
    return not waiting and all(len(derive.counted(each)) >= rounds_budget.LEAST_ROUNDS for each in timed)


def _recipes(result: Result) -> dict[str, Plain]:
    """Return every planned recipe in ladder order, twins last, with all of its fields."""
    default = {field.name: field.default for field in dataclasses.fields(Recipe)}
    parts = sources.records(result)
    return {each.name: default | each.recipe for each in parts if each.recipe is not None}


def _named(records: Sequence[Record], name: str) -> Record | None:
    return next((each for each in records if each.name == name), None)


def _when(started: str) -> str:
    return started[:19]
