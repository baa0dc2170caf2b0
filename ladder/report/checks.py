"""Receipts and parity of a rung as they are shown: a word for the table of a run, and all of them as tables.

`ladder.receipts.receipt` and `ladder.parity.check` made them, in a process that ended before timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ladder.report import tiles
from ladder.results.run import JudgedParity, ParityEntry, Result, RungResult
from ladder.show.table import Column, Table, join_lines

EXEMPT = "exempt"
RECEIPTS = (Column("rung"), Column("receipt of"), Column("engaged"), Column("evidence"))
PARITY = (
    Column("rung"), Column("phase"), Column("quantity"), Column("error", "error"), Column("budget", "error"),
    Column("nearest tensor", "text", 3), Column("its error", "error", 2), Column("its budget", "error", 2),
    Column("of budget", "decimal"),
)  # fmt: skip


def receipts_word(rung: RungResult) -> str:
    """Return "ok" if every receipt of the rung's recipe says so, else "not engaged"; "" without receipts."""
    engaged = [receipt.engaged for receipt in (rung.receipts or {}).values()]
    return "" if not engaged else "ok" if all(engaged) else "not engaged"


def parity_share(parity: JudgedParity | None) -> float | None:
    """Return the largest error of a judged quantity as a share of its budget; above 1 is outside.

    Returns None if no quantity was judged.
    """
    entries = [entry for each in ((parity and parity.phases) or {}).values() for entry in each.values()]
    return max((share for entry in entries if (share := _derive_share(entry)) is not None), default=None)


def _derive_share(entry: ParityEntry) -> float | None:
    """Return the nearest tensor's error by its budget; None where plain PyTorch itself is too far off."""
    error, budget = entry.nearest_error, entry.nearest_budget
    return error / max(budget, 1e-12) if entry.judged and error is not None and budget is not None else None


def parity_word(rung: RungResult) -> str:
    """Return "0.41 of budget", "failed" or "exempt"; "" where parity was not checked."""
    if not rung.parity:
        return EXEMPT if rung.status == "ok" and rung.variant and rung.variant.exempt else ""
    share = parity_share(rung.parity)
    return "failed" if rung.parity.verdict != "ok" else "ok" if share is None else f"{share:.2f} of budget"


def tabulate_checks(result: Result) -> list[Table]:
    """Return every receipt, every parity error, and the tiles that the kernels ran with, as far as there are any."""
    receipts = [
        [rung.name, name, "ok" if receipt.engaged else "not engaged", line]
        for rung in result.rungs
        for name, receipt in (rung.receipts or {}).items()
        for line in receipt.lines
    ]
    errors = [[rung.name, *row] for rung in result.rungs for row in _list_errors(rung)]
    choices = []
    for each in result.choices or []:
        choice = each.entry or _describe_tile(msgspec.to_builtins(each))
        choices.append([each.op, each.case or each.direction, ", ".join(each.rungs), choice])
    headings = [Column("op"), Column("call"), Column("in", "text", 1), Column("choice")]
    notes = join_lines((rung.name, note) for rung in result.rungs for note in _list_notes(rung))
    tables = [
        Table(RECEIPTS, receipts, "Receipts"),
        Table(PARITY, errors, "Parity: errors of the whole, and of the tensor nearest to its budget", notes),
        Table(headings, choices, "Tiles that the kernels ran with"),
    ]
    return [table for table in tables if table.rows or table.notes]


def _list_errors(rung: RungResult) -> Iterator[list[Any]]:
    for phase, quantities in ((rung.parity and rung.parity.phases) or {}).items():
        for name, entry in quantities.items():
            share, nearest = _derive_share(entry), (entry.nearest_error, entry.nearest_budget)
            of_budget = "not judged" if share is None else share
            yield [phase, name, entry.error, entry.budget, entry.nearest, *nearest, of_budget]


def _list_notes(rung: RungResult) -> list[str]:
    """Return what kept parity from holding, and how reference and budget were made."""
    if not (parity := rung.parity):
        return []
    notes = [] if parity.verdict == "ok" else [parity.verdict, *parity.problems]
    if reference := parity.reference:
        notes += [f"reference: FP64 on {reference.made_on}, batch {reference.batch}", *reference.notes]
    if budget := parity.budget:
        notes.append(f"budget: {budget.factor:g} times the spread of plain PyTorch in {budget.precision}")
    return notes


def _describe_tile(row: dict[str, Any]) -> str:
    fields = ("size", "itemsize", "layout", "architecture", *tiles.CHOICE)
    return ", ".join(f"{name} {row[name]}" for name in fields if row.get(name) is not None)
