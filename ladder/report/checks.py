"""Receipts and parity as they are shown: a word for the table, every line for whoever asks.

`ladder.receipts.receipt` and `ladder.parity.check` made them, in a process that ended before timing. A result may
come from a stranger, so nothing is taken for what it should be.
"""

from __future__ import annotations

import math
from typing import Any

ENGAGED, NOT_ENGAGED, FAILED = "ok", "not engaged", "failed"


def receipts_word(rung: dict[str, Any]) -> str:
    """ "ok" if every receipt of the rung's recipe says so, "not engaged" if one does not, "" without receipts."""
    found = _receipts(rung)
    if not found:
        return ""
    return ENGAGED if all(receipt.get("engaged") is True for receipt in found.values()) else NOT_ENGAGED


def parity_share(rung: dict[str, Any]) -> float | None:
    """Return the largest error of a judged quantity as a share of its budget: above 1 is outside.

    Returns None if no quantity was judged.
    """
    shares = [entry["share"] for entry in parity_rows(rung) if entry["share"] is not None]
    return max(shares, default=None)


def parity_word(rung: dict[str, Any]) -> str:
    """ "0.41 of budget", or "failed"; "" where it was not checked."""
    found = _dict(rung.get("parity"))
    if not found:
        return ""
    share = parity_share(rung)
    if found.get("verdict") != "ok":
        return FAILED
    return "ok" if share is None else f"{share:.2f} of budget"


def parity_rows(rung: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry for each phase and quantity: errors and budgets of the whole and of the tensor nearest to its budget.

    `share` is that tensor's error by its budget, which is what was judged; None where plain PyTorch itself is too far
    off for a judgement.
    """
    rows = []
    for phase, quantities in _dict(_dict(rung.get("parity")).get("phases")).items():
        for quantity, entry in _dict(quantities).items():
            entry = _dict(entry)
            keys = ("error", "budget", "nearest_error", "nearest_budget", "judged", "unresolved")
            row: dict[str, Any] = {key: _number(entry.get(key)) for key in keys}
            share = None
            if row["judged"] and row["nearest_error"] is not None and row["nearest_budget"] is not None:
                share = row["nearest_error"] / max(row["nearest_budget"], 1e-12)
            nearest = entry.get("nearest")
            rows.append(
                {"phase": phase, "quantity": quantity, "nearest": nearest or "", **row, "share": share}
            )
    return rows


def receipt_lines(rung: dict[str, Any]) -> list[str]:
    """Every line of every receipt, with the rung it belongs to: `bf16: ok: convolution FLOPs in BF16 100 percent`."""
    return [
        f"{name}: {ENGAGED if receipt.get('engaged') is True else NOT_ENGAGED}: {line}"
        for name, receipt in _receipts(rung).items()
        for line in (receipt.get("lines") if isinstance(receipt.get("lines"), list) else [])
    ]


def choice_lines(result: dict[str, Any]) -> list[str]:
    """Which tiles the kernels ran with: `modulate backward (size large): tile 2048, ...; in fused_norm`."""
    found, lines = result.get("choices"), []
    for each in map(_dict, found if isinstance(found, list) else []):
        of = ", ".join(f"{key} {each[key]}" for key in CHOICE_OF if key in each)
        says = ", ".join(f"{key} {each[key]}" for key in CHOICE_SAYS if key in each) or each.get("entry")
        rungs = each.get("rungs") if isinstance(each.get("rungs"), list) else []
        case = each.get("case", each.get("direction"))
        where = f"{each.get('op')} {case}" + (f" ({of})" if of else "")
        lines.append(f"{where}: {says}; in {', '.join(map(str, rungs))}")
    return lines


CHOICE_OF = ("size", "itemsize", "layout", "architecture")
CHOICE_SAYS = ("tile", "columns", "warps", "per_sm", "stages")
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


def parity_cells(rung: dict[str, Any]) -> list[tuple[str, ...]]:
    """The parity table of a rung, as text, a tuple for each row."""
    cells = []
    for row in parity_rows(rung):
        share = "not judged" if row["share"] is None else f"{row['share']:.2f}"
        numbers = [_error(row[key]) for key in ("error", "budget", "nearest_error", "nearest_budget")]
        head = (str(row["phase"]), str(row["quantity"]))
        cells.append((*head, *numbers[:2], str(row["nearest"]), *numbers[2:], share))
    return cells


def parity_lines(rung: dict[str, Any]) -> list[str]:
    """Return lines that say the fault, and how reference and budget were made."""
    found = _dict(rung.get("parity"))
    if not found:
        return []
    problems = found.get("problems") if isinstance(found.get("problems"), list) else []
    made, budget = _dict(found.get("reference")), _dict(found.get("budget"))
    said = [f"verdict: {found.get('verdict')}", *(f"problem: {problem}" for problem in problems)]
    if made:
        notes = made.get("notes") if isinstance(made.get("notes"), list) else []
        said.append(f"reference: FP64 on {made.get('made_on')}, batch {made.get('batch')}")
        said += [f"reference: {note}" for note in notes]
    if budget:
        said.append(
            f"budget: {budget.get('factor')} times the spread of plain PyTorch in {budget.get('precision')}"
        )
    return said


def _receipts(rung: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = _dict(rung.get("receipts"))
    return {str(name): receipt for name, receipt in found.items() if isinstance(receipt, dict)}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    known = (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
    return float(value) if known else None


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
