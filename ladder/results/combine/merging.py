"""Merging: several runs of one measurement become one result, judged by today's rules.

A comparison is made inside a round. So rounds of several runs may stand side by side as long as every run measured the
same program in the same way on the same GPU and software. The program is told by a digest of its sources
(`ladder.results.code_digest`), or by the commit where a result has none. A run may have measured only some rungs. The
time of a host-bound rung belongs to its host, so another CPU is refused unless it is asked for. Samples are kept as
they are; a round only gets another number. Every derived number is computed anew.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from ladder.base import text
from ladder.base.errors import UserError
from ladder.core.records import read_record, write_record
from ladder.results import code_digest, derive, judging, loading, record, sources
from ladder.results.combine import belonging
from ladder.results.derive import INTERRUPTED
from ladder.results.file import OUT, KernelProfile
from ladder.results.run import Choice, Merged, Protocol, Result, Run, Rung, RunGpu, Twin
from ladder.results.types import head
from ladder.stats import rounds_budget

Part = TypeVar("Part", Rung, Twin)
Numbers = list[dict[int, int]]  # for each file, the new number of each round
_CHECKED = ("inspection", "parity", "receipts")


def merge(paths: Sequence[Path], anyway: bool = False) -> Run:
    """Return the run of all rounds in these files.

    Raises:
        UserError: a file cannot be read, or they do not belong together; one line.
    """
    found = sorted(
        ((path, loading.load_record(path)) for path in paths), key=lambda each: _when(each[1].started)
    )
    if len(found) == 1:
        return found[0][1]
    belonging.refuse_the_same(found, sources.visits)
    for index, (path, run) in enumerate(found):
        if not sources.end(run):
            raise UserError(f"{path}: nothing was measured in it")
        if run.reported_then:
            raise UserError(f"{path}: its judgement was reported then: too old to be judged anew")
        for earlier_path, earlier in found[:index]:
            differ = functools.partial(belonging.differences, earlier, run)
            belonging.refuse_others(earlier_path, path, differ, anyway)
        if problem := belonging.unproven(run):
            raise UserError(f"{path}: {problem}")
        if not anyway and (why := belonging.unknown_code(run)):
            raise UserError(f"{path}: {why}; --anyway merges it nevertheless")
    merged = read_record(Run, text.fit(write_record(_merged([run for _, run in found]))))
    if problem := loading.find_problem(merged):
        raise UserError(f"these cannot be one result: {problem}")
    return merged


def _merged(found: list[Run]) -> Run:
    """Return one run around the rounds of all, oldest first."""
    newest, names = found[-1], belonging.one_order(found)
    newer = {rung.name: rung for each in found for rung in each.rungs}
    numbers, merged = _renumbered(found)
    derived = [judging.derive_result(each) for each in found]
    heads = [head(each) for each in found]
    code: dict[str, Any] = {"commits": None} | sources.all_commits(heads)
    made = replace(
        newest,
        ladder=replace(newest.ladder, rungs=names),
        rungs=[
            _join_rungs(newer[name], [_named(each.rungs, name) for each in found], numbers, derived)
            for name in names
        ],
        twins=_twins(found, numbers),
        merged=merged,
        measured_code=newest.measured_code if code_digest.known(*heads) else None,
        dirty=True if any(each.dirty for each in found) else newest.dirty,
        seconds=round(sum(each.seconds for each in found), 1),
        first_table_s=None,
        stored_twins=None,
        gpu=_gpu(found) or newest.gpu,
        choices=_choices(found),
        **code,
    )
    return replace(made, protocol=_protocol(derived, made))


def _twins(found: list[Run], numbers: Numbers) -> list[Twin]:
    """Return the twins of all runs, each with the rounds of all."""
    twins = {twin.name: twin for each in reversed(found) for twin in reversed(each.twins)}
    return [
        _join(twin, [_named(each.twins, twin.name) for each in found], numbers)
        for twin in reversed(twins.values())
    ]


def _choices(found: list[Run]) -> list[Choice] | None:
    """Return the rows of tables that decided in any run, each once, with its rungs."""
    made: list[Choice] | None = found[-1].choices and []
    for row in [row for each in (found[-1], *found[:-1]) for row in each.choices or []]:
        used = {key: value for key, value in write_record(row).items() if key != "rungs"}
        for name in row.rungs:
            made = record.add_choices(made, name, [used])
    return made


def _renumbered(found: list[Run]) -> tuple[Numbers, list[Merged]]:
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


def _join(newest: Part, parts: Sequence[Part | None], numbers: Numbers) -> Part:
    """Return a rung or twin with the rounds of all its `parts`, one from each file or None.

    It is "ok" if it was in any run. What is known of it beside its rounds is the newest that there is.
    """
    rounds = [
        replace(visit, round=number[visit.round])
        for part, number in zip(parts, numbers, strict=True)
        for visit in (part.rounds if part else [])
    ]
    known = [part for part in parts if part is not None]
    timed = [part for part in known if part.rounds] or known
    chosen = max(known, key=lambda part: _weight(part.status))
    failed_at = None
    if chosen.failed_at and chosen.status != "ok":
        number = numbers[next(index for index, part in enumerate(parts) if part is chosen)]
        at = chosen.failed_at.round
        failed_at = replace(chosen.failed_at, round=None if at is None else number.get(at))
    return replace(
        newest,
        rounds=sorted(rounds, key=lambda visit: visit.round),
        recipe=timed[-1].recipe,
        settings=timed[-1].settings,
        status=chosen.status,
        reason=chosen.reason,
        failed_at=failed_at,
    )


def _join_rungs(newest: Rung, parts: Sequence[Rung | None], numbers: Numbers, derived: list[Result]) -> Rung:
    """Return `_join` of a rung, with its findings, and with what runs in which it has no number say of it."""
    made, known = _join(newest, parts, numbers), [part for part in parts if part is not None]
    said = [note for part in known for note in part.elsewhere or []]
    if made.status == "ok":
        said += [
            text.display(f"{rung.status} in the run of {run.started[:16]}: {rung.reason}")
            for run in derived
            for rung in run.rungs
            if rung.name == made.name and rung.status in OUT
        ]
    return replace(made, **_checks(known), elsewhere=said[:64] or None, profile=_profile(known))


def _profile(known: Sequence[Rung]) -> KernelProfile | None:
    """Return the profile of the oldest run with profiled cycles: a profile is that of the first of all cycles."""
    return next((rung.profile for rung in known if any(each.profiled for each in rung.rounds)), None)


def _checks(known: Sequence[Rung]) -> dict[str, Any]:
    """Return the newest inspection, parity and receipts; an inspection that saw the GPU busy before others."""
    made = {}
    for key in _CHECKED:
        if there := [each for part in known if (each := getattr(part, key)) is not None]:
            busy = [each for each in there if key == "inspection" and each.gpu_busy_ms]
            made[key] = (busy or there)[-1]
    return made


def _weight(status: str) -> int:
    """Return the weight of a rung's status where runs differ: a number, else why there is none, else not known."""
    return {"ok": 3, "skipped": 1, "n/a": 0}.get(status, 2)


def _protocol(found: list[Result], made: Run) -> Protocol:
    """Return how all runs measured. A note says which of them lack something that the whole lacks, too."""
    raw, merged = [each.protocol for each in found], made.merged or []
    seeds = sorted({each.seed for each in raw})
    notes = [
        note
        for each in found
        for note in each.protocol.notes
        if not note.startswith((derive.QUICK, derive.MERGED))
    ]
    for each in found:
        if (some := len(each.rungs)) < (all_ := len(made.rungs)):
            notes.append(f"only {some} of {all_} rungs in the run of {each.started[:16]}")
    if len(seeds) > 1:
        notes.append(f"seeds {', '.join(map(str, seeds))}")
    if all(each.complete for each in found) or _is_enough(made):
        notes = [note for note in notes if not note.startswith(INTERRUPTED)]
    elif not any(note.startswith(INTERRUPTED) for note in notes):
        notes.append(f"{INTERRUPTED}: a run that was merged is not whole")
    fixed = all(each.fixed for each in raw)
    return replace(
        raw[-1],
        fixed=fixed,
        budget_s=None if fixed else sum(each.budget_s or 0.0 for each in raw),
        rounds=sum(run.rounds for run in merged),
        notes=list(dict.fromkeys(notes))[:60],
    )


def _gpu(found: list[Run]) -> RunGpu | None:
    """Return the state of the GPU over all runs: alone, or known, only if every run was. Noise stays noted."""
    there = [each.gpu for each in found if each.gpu]
    if not there:
        return None
    words = {each.gpu.tenancy if each.gpu else "unknown" for each in found}
    states = {each.gpu.state if each.gpu else "unknown" for each in found}
    return RunGpu(
        state="unknown" if "unknown" in states else "known",
        tenancy="shared" if "shared" in words else "unknown" if "unknown" in words else "alone",
        rejected_visits=sum(each.rejected_visits for each in there),
        notes=sorted({note for each in there for note in each.notes})[:64],
    )


def _is_enough(made: Run) -> bool:
    """Return whether every rung and twin that can run here and is not out has the rounds of a whole run."""
    parts = sources.records(made)
    waiting = [each for each in parts if each.status == "n/a" and each.recipe is not None]
    timed = [each for each in parts if each.status == "ok"]
    return not waiting and all(len(derive.counted(each)) >= rounds_budget.LEAST_ROUNDS for each in timed)


def _named(records: Sequence[Part], name: str) -> Part | None:
    return next((each for each in records if each.name == name), None)


def _when(started: str) -> str:
    return started[:19]
