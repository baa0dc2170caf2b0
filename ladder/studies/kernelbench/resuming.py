"""The resuming of `ladder kernels`: its file is the plan, and cases with finished rows are not measured again.

All contenders of a case are measured together, so no comparison spans two sittings. Machine, software and measured
code must be the same, as for a ladder (`ladder.results.combine.resuming`). Otherwise the file is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from ladder.base.errors import UserError
from ladder.results.combine import resuming
from ladder.results.types import head as head_of
from ladder.studies.kernelbench import schema
from ladder.studies.kernelbench import verdicts as kernelverdicts
from ladder.studies.kernelbench.bench import OURS, OUT_OF_MEMORY
from ladder.studies.kernelbench.cases.registry import Case
from ladder.studies.kernelbench.schema import Head, Kernels, Measured, Plan, Protocol, Sitting

RULES = (
    "workloads",
    "ops",
    "quick",
    "smoke",
    "seed",
)  # keys of the protocol that must agree

Rows = dict[str, list[Measured]]  # rows by name of the case


def load(path: Path) -> Kernels:
    """Return the file's result. Raises UserError where it cannot be resumed."""
    found = schema.load(path)
    if not found.sittings:
        raise UserError(f"{path}: --resume: made by an earlier version; start a new run")
    return found


def continued(path: Path, before: Kernels, head: Head, plan: Plan, cases: Sequence[Case]) -> Head:
    """Return the head of a run of these cases that continues the file.

    Raises UserError unless the run, which would begin now, is the same measurement.
    """
    found = resuming.continued(path, head_of(before), head_of(head), _differences(before, plan, cases))
    return replace(head, **found)


def _differences(before: Kernels, plan: Plan, cases: Sequence[Case]) -> Iterator[str]:
    """Yield, in one line each, the differences of the options and of the cases."""
    for key in RULES:
        if getattr(before.protocol, key) != getattr(plan, key):
            yield f"another --{key.removesuffix('s')} than this file's"
    planned = {case.name for case in cases}
    for row in before.rows:
        if row.case not in planned:
            yield f"{row.case!r} would not be measured here; start a new run"


def finished(before: Kernels, cases: Sequence[Case]) -> Rows:
    """Return the rows of the cases that need not be measured again.

    All directions of a case must be there. A case of ours without a number, for want of time or by a failure, is
    tried again. Only cases that ran out of memory stay out.
    """
    found: Rows = {}
    for row in before.rows:
        found.setdefault(row.case, []).append(row)
    return {case.name: found[case.name] for case in cases if _whole(found.get(case.name, []), case)}


def _whole(rows: Sequence[Measured], case: Case) -> bool:
    told = [row.reasons.get(OURS, OUT_OF_MEMORY) for row in rows]
    return [row.direction for row in rows] == list(case.directions) and set(told) == {OUT_OF_MEMORY}


def merged(kept: Rows, measured_now: Sequence[Measured], cases: Sequence[Case]) -> list[Measured]:
    """Return the rows of both sittings in the order of `cases`. Rows of unmeasured cases are missing."""
    found = {name: list(rows) for name, rows in kept.items()}
    for row in measured_now:
        found.setdefault(row.case, []).append(row)
    return [row for case in cases for row in found.get(case.name, [])]


def assembled(
    earlier: Sequence[Sitting],
    head: Head,
    protocol: Protocol,
    rows: Sequence[Measured],
    sitting: Sitting,
    complete: bool,
) -> Kernels:
    """Return a result of these rows, the newest of them from ``sitting``, after the ``earlier`` sittings."""
    now = {row.case for row in rows if row.sitting == len(earlier)} - kernelverdicts.unreached(rows)
    notes = [*protocol.notes, *["dirty work tree: not to be published"] * bool(head.dirty)]
    notes += ["interrupted"] * (not complete)
    made = {field.name: getattr(head, field.name) for field in fields(Head)}
    return Kernels(
        **made | {"seconds": round(head.seconds + sitting.seconds, 1), "complete": complete},
        protocol=replace(protocol, notes=notes),
        sittings=[*earlier, replace(sitting, cases=len(now))],
        rows=kernelverdicts.derive(rows),
    )
