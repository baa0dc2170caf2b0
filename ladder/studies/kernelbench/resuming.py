"""The resuming of `ladder kernels`: its file is the plan, and cases with finished rows are not measured again.

All contenders of a case are measured together, so no comparison spans two sittings. Machine, software and measured
code must be the same, as for a ladder (`ladder.results.combine.resuming`). Otherwise the file is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.results import loading, sources
from ladder.results.combine import resuming
from ladder.studies.kernelbench import schema
from ladder.studies.kernelbench import verdicts as kernelverdicts
from ladder.studies.kernelbench.bench import OURS, OUT_OF_MEMORY
from ladder.studies.kernelbench.cases.registry import Case

# Modules that time a case, in addition to those that time a rung.
ENGINE = (
    *(f"studies/kernelbench/{name}" for name in ("bench", "calls", "compiling", "launches", "timing")),
    *(f"studies/kernelbench/cases/{name}" for name in ("registry", "groups", "fused", "op")),
)
RULES = (
    "workloads",
    "ops",
    "quick",
    "smoke",
    "seed",
)  # keys of the protocol that must agree

Result = dict[str, Any]
Rows = dict[str, list[dict[str, Any]]]  # rows by name of the case


def load(path: Path) -> Result:
    """Return the file's result. Raises UserError where it cannot be resumed."""
    found = loading.load_kind(path, schema.KIND)
    if "sittings" not in found:
        raise UserError(f"{path}: --resume: made by an earlier version; start a new run")
    return found


def check(path: Path, before: Result, fresh: Result, cases: Sequence[Case]) -> None:
    """Raise UserError unless `fresh`, the result that would begin now with these cases, is the same measurement."""
    resuming.refuse_another_machine(path, before, {"machine": text.fit(fresh["machine"])})
    for key in RULES:
        if before["protocol"][key] != fresh["protocol"][key]:
            raise UserError(f"{path}: --resume: another --{key.removesuffix('s')} than this file's")
    resuming.refuse_other_code(path, before, fresh)
    resuming.refuse_other_environment(path, before, text.fit(fresh))
    planned = {case.name for case in cases}
    if strange := [row["case"] for row in before["rows"] if row["case"] not in planned]:
        raise UserError(f"{path}: --resume: {strange[0]!r} would not be measured here; start a new run")


def finished(before: Result, cases: Sequence[Case]) -> Rows:
    """Return the rows of the cases that need not be measured again.

    All directions of a case must be there. A case of ours without a number, for want of time or by a failure, is
    tried again. Only cases that ran out of memory stay out.
    """
    found: Rows = {}
    for row in before["rows"]:
        found.setdefault(row["case"], []).append(row)
    return {case.name: found[case.name] for case in cases if _whole(found.get(case.name, []), case)}


def _whole(rows: list[dict[str, Any]], case: Case) -> bool:
    told = [row["reasons"].get(OURS, OUT_OF_MEMORY) for row in rows]
    return [row["direction"] for row in rows] == list(case.directions) and set(told) == {OUT_OF_MEMORY}


def merged(kept: Rows, measured_now: Sequence[dict[str, Any]], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return the rows of both sittings in the order of `cases`. Rows of unmeasured cases are missing."""
    found = {name: list(rows) for name, rows in kept.items()}
    for row in measured_now:
        found.setdefault(row["case"], []).append(row)
    return [row for case in cases for row in found.get(case.name, [])]


def assembled(
    before: Result | None, head: Result, rows: list[dict[str, Any]], seconds: float, complete: bool
) -> Result:
    """Return a result of these rows, which continues `before`, if there is one, under `head`."""
    kernelverdicts.derive(rows)
    head = {**head, "protocol": dict(head["protocol"])}
    earlier = [dict(each) for each in before["sittings"]] if before else []
    seconds = round(seconds, 1)
    now = {
        "started": head["started"],
        "seconds": seconds,
        "minutes": head["protocol"]["minutes"],
        "cases": len(
            {row["case"] for row in rows if row.get("sitting") == len(earlier)}
            - kernelverdicts.unreached(rows)
        ),
    }
    if before:
        head |= sources.gone_on_with(before, head) | {"started": before["started"]}
        seconds = round(seconds + before["seconds"], 1)
    notes = [*head["protocol"]["notes"]]
    notes += ["dirty work tree: not to be published"] * bool(head["dirty"])
    head["protocol"]["notes"] = notes + ["interrupted"] * (not complete)
    return head | {"seconds": seconds, "complete": complete, "sittings": [*earlier, now], "rows": rows}
