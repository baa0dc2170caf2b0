"""Receipts and parity of a rung as they are shown: a word for the table, and every line of them.

`ladder.receipts.receipt` and `ladder.parity.check` made them, in a process that ended before timing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ladder.report import tiles
from ladder.results.run import Choice, JudgedParity, Receipt, Result, RungResult

ENGAGED, NOT_ENGAGED, FAILED, EXEMPT = "ok", "not engaged", "failed", "exempt"
CHOICE_OF = ("size", "itemsize", "layout", "architecture")
PARITY_HEADINGS = (
    "phase",
    "quantity",
    "error",
    "budget",
    "nearest tensor",
    "its error",
    "its budget",
    "of budget",
)


@dataclass(frozen=True)
class ParityRow:
    """The errors of one quantity in one phase: of the whole, and of the tensor nearest to its budget."""

    phase: str
    quantity: str
    error: float | None
    budget: float | None
    nearest: str
    nearest_error: float | None
    nearest_budget: float | None
    share: float | None  # that tensor's error by its budget; None where plain PyTorch itself is too far off


def receipts_word(rung: RungResult) -> str:
    """Return "ok" if every receipt of the rung's recipe says so, else "not engaged"; "" without receipts."""
    found = _receipts(rung)
    if not found:
        return ""
    return ENGAGED if all(receipt.engaged for receipt in found.values()) else NOT_ENGAGED


def parity_share(parity: JudgedParity | None) -> float | None:
    """Return the largest error of a judged quantity as a share of its budget; above 1 is outside.

    Returns None if no quantity was judged.
    """
    return max((row.share for row in parity_rows(parity) if row.share is not None), default=None)


def parity_word(rung: RungResult) -> str:
    """Return "0.41 of budget", "failed" or "exempt"; "" where parity was not checked."""
    if not rung.parity:
        return EXEMPT if rung.status == "ok" and rung.variant and rung.variant.exempt else ""
    share = parity_share(rung.parity)
    if rung.parity.verdict != "ok":
        return FAILED
    return "ok" if share is None else f"{share:.2f} of budget"


def parity_rows(parity: JudgedParity | None) -> list[ParityRow]:
    """Return one row for each phase and quantity."""
    rows = []
    for phase, quantities in ((parity and parity.phases) or {}).items():
        for quantity, entry in quantities.items():
            error, budget = entry.nearest_error, entry.nearest_budget
            known = entry.judged and error is not None and budget is not None
            share = error / max(budget, 1e-12) if known else None
            nearest = entry.nearest or ""
            rows.append(ParityRow(phase, quantity, entry.error, entry.budget, nearest, error, budget, share))
    return rows


def receipt_lines(rung: RungResult) -> list[str]:
    """Return every line of every receipt, as `bf16: ok: convolution FLOPs in BF16 100 percent`."""
    return [
        f"{name}: {ENGAGED if receipt.engaged else NOT_ENGAGED}: {line}"
        for name, receipt in _receipts(rung).items()
        for line in receipt.lines
    ]


def choice_lines(result: Result) -> list[str]:
    """Return which tiles the kernels ran with: `modulate backward (size large): tile 2048, ...; in fused_norm`."""
    return [f"{_choice(each)}; in {', '.join(each.rungs)}" for each in result.choices or []]


def _choice(row: Choice) -> str:
    if row.case is not None:
        return f"{row.op} {row.case}: {row.entry}"
    of = ", ".join(f"{key} {value}" for key in CHOICE_OF if (value := getattr(row, key)) is not None)
    says = ", ".join(f"{key} {getattr(row, key)}" for key in tiles.CHOICE)
    return f"{row.op} {row.direction}{f' ({of})' if of else ''}: {says}"


def parity_cells(rung: RungResult) -> list[tuple[str, ...]]:
    """Return the parity table of a rung, as text, a tuple for each row."""
    cells = []
    for row in parity_rows(rung.parity or None):
        share = "not judged" if row.share is None else f"{row.share:.2f}"
        whole, nearest = (row.error, row.budget), (row.nearest_error, row.nearest_budget)
        cells.append(
            (row.phase, row.quantity, *map(_error, whole), row.nearest, *map(_error, nearest), share)
        )
    return cells


def parity_lines(rung: RungResult) -> list[str]:
    """Return lines that say the fault, and how reference and budget were made."""
    if not (found := rung.parity):
        return []
    said = [f"verdict: {found.verdict}", *(f"problem: {problem}" for problem in found.problems)]
    if made := found.reference:
        said.append(f"reference: FP64 on {made.made_on}, batch {made.batch}")
        said += [f"reference: {note}" for note in made.notes]
    if budget := found.budget:
        said.append(f"budget: {budget.factor:g} times the spread of plain PyTorch in {budget.precision}")
    return said


def _receipts(rung: RungResult) -> dict[str, Receipt]:
    return rung.receipts or {}


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
