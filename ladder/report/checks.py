"""Receipts and parity of a rung as they are shown: a word for the table, and every line of them.

`ladder.receipts` and `ladder.parity.check` made them, in a process that ended before timing.
"""

from __future__ import annotations

from ladder.report import tiles
from ladder.results.run import JudgedParity, ParityEntry, Result, RungResult
from ladder.show.table import Column, Table

ENGAGED, NOT_ENGAGED, FAILED, EXEMPT = "ok", "not engaged", "failed", "exempt"
CHOICE_OF = ("size", "itemsize", "layout", "architecture")
ERROR = "error"  # a kind of column
PARITY = (
    Column("phase"), Column("quantity"), Column("error", ERROR), Column("budget", ERROR), Column("nearest tensor"),
    Column("its error", ERROR), Column("its budget", ERROR), Column("of budget", "decimal"),
)  # fmt: skip


def receipts_word(rung: RungResult) -> str:
    """Return "ok" if every receipt of the rung's recipe says so, else "not engaged"; "" without receipts."""
    engaged = [receipt.engaged for receipt in (rung.receipts or {}).values()]
    return "" if not engaged else ENGAGED if all(engaged) else NOT_ENGAGED


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
    return FAILED if rung.parity.verdict != "ok" else ENGAGED if share is None else f"{share:.2f} of budget"


def tabulate_parity(rung: RungResult) -> Table:
    """Return the errors of each quantity in each phase: of the whole, and of the tensor nearest to its budget."""
    rows = []
    for phase, quantities in ((rung.parity and rung.parity.phases) or {}).items():
        for quantity, entry in quantities.items():
            share = _derive_share(entry)
            whole, nearest = (entry.error, entry.budget), (entry.nearest_error, entry.nearest_budget)
            of_budget = "not judged" if share is None else share
            rows.append([phase, quantity, *whole, entry.nearest, *nearest, of_budget])
    return Table(PARITY, rows)


def receipt_lines(rung: RungResult) -> list[str]:
    """Return every line of every receipt, as `bf16: ok: convolution FLOPs in BF16 100 percent`."""
    return [
        f"{name}: {ENGAGED if receipt.engaged else NOT_ENGAGED}: {line}"
        for name, receipt in (rung.receipts or {}).items()
        for line in receipt.lines
    ]


def parity_lines(rung: RungResult) -> list[str]:
    """Return lines on the fault, and on how reference and budget were made."""
    if not (parity := rung.parity):
        return []
    lines = [f"verdict: {parity.verdict}", *(f"problem: {problem}" for problem in parity.problems)]
    if reference := parity.reference:
        notes = [f"FP64 on {reference.made_on}, batch {reference.batch}", *reference.notes]
        lines += [f"reference: {note}" for note in notes]
    if budget := parity.budget:
        lines.append(f"budget: {budget.factor:g} times the spread of plain PyTorch in {budget.precision}")
    return lines


def choice_lines(result: Result) -> list[str]:
    """Return which tiles the kernels ran with: `modulate backward (size large): tile 2048, ...; in fused_norm`."""
    lines = []
    for row in result.choices or []:
        call = ", ".join(f"{key} {value}" for key in CHOICE_OF if (value := getattr(row, key)) is not None)
        tile = ", ".join(f"{key} {getattr(row, key)}" for key in tiles.CHOICE)
        name = f"{row.op} {row.direction} ({call}): {tile}" if call else f"{row.op} {row.direction}: {tile}"
        name = name if row.case is None else f"{row.op} {row.case}: {row.entry}"
        lines.append(f"{name}; in {', '.join(row.rungs)}")
    return lines
