"""Taking up a run where it ended: its file is the plan, and only what is missing in it is measured."""

from pathlib import Path
from typing import Any

from ladder import measured, record, results, sources
from ladder.errors import UserError
from ladder.inspecting import FAILED_PARITY, NOT_ENGAGED

TRIED_AGAIN = ("failed", "skipped")  # statuses of rungs
MACHINE = (*results.SERIES, "driver", "python")  # what must not have changed


def load(path: Path) -> dict[str, Any]:
    """Read an unfinished (or finished) result of this schema. Raises `UserError` if it cannot be gone on with."""
    result = results.load(path)
    if "twins" not in result:
        raise UserError(f"{path}: --resume: made by an earlier version, without twins; start a new run")
    return result


def load_kind(path: Path, kind: str) -> dict[str, Any]:
    """Another command's file, judged as if from a stranger. `UserError`, one line, where it is not of this kind."""
    from ladder import validate

    if problem := validate.problem_of(path):
        raise UserError(f"{path}: {problem}")
    found = results.parse(path.read_bytes())
    if found.get("kind") != kind:
        raise UserError(f"{path}: not a result of ladder {kind}")
    return found


def refuse_another_machine(path: Path, before: dict[str, Any], fresh: dict[str, Any]) -> None:
    """`UserError`, one line, unless `fresh`, made fit for a file, is of the machine and software of the file."""
    for key in MACHINE:
        was, now = before["machine"].get(key), fresh["machine"].get(key)
        if was != now:
            raise UserError(f"{path}: --resume: {key} was {was} and is {now} here; start a new run")


def refuse_other_code(path: Path, before: dict[str, Any], fresh: dict[str, Any]) -> None:
    """`UserError`, one line, unless the code that would be measured now is that of the file."""
    if found := measured.differences(before, fresh):
        raise UserError(f"{path}: --resume: other code is measured here: {'; '.join(found)}; start a new run")


def take_up(path: Path, fresh: dict[str, Any], rounds: int | None = None) -> dict[str, Any]:
    """The result in `path`, if `fresh` (what a run started now would be) is the same measurement.

    `rounds` are those asked for now, if any; else the file's count, or the budget of `fresh`. Rungs that failed are
    tried again, and with them what was skipped for them; what is out of memory or invalid stays out, and so does what
    showed no receipt or no parity, except at another commit, which may have put receipts and budgets right.
    Raises `UserError` that says what differs: machine, software, workload, rungs or code.
    """
    planned = {rung["name"]: rung["recipe"] for rung in fresh["rungs"] if rung["recipe"] is not None}
    result, fresh = load(path), results.fit(fresh)  # the file's texts were made fit when it was written
    refuse_another_machine(path, result, fresh)
    for part in ("workload", "ladder"):
        if result[part] != fresh[part]:
            raise UserError(f"{path}: --resume: another {part} than this file's was asked for")
    refuse_other_code(path, result, fresh)
    again = [*TRIED_AGAIN]
    if fresh["commit"] and sources.commits(result)[-1:] != [fresh["commit"]]:
        again += [NOT_ENGAGED, FAILED_PARITY]
    result |= sources.gone_on_with(result, fresh)
    for rung in [*result["rungs"], *result["twins"]]:
        if rung["status"] in again:
            rung.pop("failed_at", None)
            if not rung.get("inspection"):  # what spoke against it was found by the other code
                rung.pop("parity", None)
                rung.pop("receipts", None)
            rung.update(status="ok" if rung["rounds"] else "n/a", reason=None)
    record.mark_skipped(result, planned)
    if rounds is not None:
        result["protocol"].update(rounds=rounds, fixed=True, budget_s=None)
    elif not result["protocol"]["fixed"]:
        result["protocol"]["budget_s"] = fresh["protocol"]["budget_s"]
    notes = result["protocol"]["notes"]
    notes[:] = [note for note in notes if not note.startswith("interrupted")]
    if "resumed" not in notes:
        notes.append("resumed")
    result["complete"] = False
    return result
