"""Pure functions that derive the figures of `ladder sustain` from the stored numbers."""

from __future__ import annotations

import copy
import statistics
from typing import Any

from ladder.base.rules import alike
from ladder.machine import environment, neighbours
from ladder.results import plausible
from ladder.results import store as results

Result = dict[str, Any]

WINDOW_S = 2.0  # length of a row, about that of a visit of `ladder run` at the top

DERIVED = ("first_ms", "sustained_ms", "factor")


def derive(result: Result) -> None:
    """Compare the first row with the median of the later half, in place."""
    for rung in result["rungs"]:
        rung |= dict.fromkeys(DERIVED)
        if rows := rung["windows"]:
            late = later(rows)
            rung["first_ms"] = rows[0]["step_ms"]
            rung["sustained_ms"] = statistics.median(row["step_ms"] for row in late)
            rung["factor"] = rung["sustained_ms"] / rung["first_ms"]
    unseen = [rung["name"] for rung in result["rungs"] if not rung["inspected"]]
    also = [f"parity and receipts of {', '.join(unseen)} were not seen here"] * bool(unseen)
    also += neighbours.marks(result["rungs"])
    also += environment.said(result.get(environment.KEY))
    rounds = results.FEWEST_ROUNDS  # this kind has no rounds; the minimum avoids the note "too few rounds"
    result["protocol"]["notes"] = results.cautions(
        result["machine"]["device"], rounds, result["dirty"], result["complete"], also
    )


def contradiction(data: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the rows or are impossible, or None."""
    derived, least = copy.deepcopy(data), plausible.floor_ms(data["machine"], data["workload"])
    derive(derived)
    for found, wanted in zip(data["rungs"], derived["rungs"], strict=True):
        if found["status"] == "ok" and not found["windows"]:
            return f"{found['name']}: ok without a row"
        for key in DERIVED:
            if not alike(found[key], wanted[key]):
                return f"{found['name']}: {key} is not what its rows say"
        if least and any(row["step_ms"] < least[0] for row in found["windows"]):
            return f"{found['name']}: faster than this GPU can compute"
    if missing := [note for note in derived["protocol"]["notes"] if note not in data["protocol"]["notes"]]:
        return f"protocol.notes: lack {missing[0]!r}"
    return None


def later(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the later half of the time, at least one."""
    return [row for row in rows if row["at_s"] >= rows[-1]["at_s"] / 2]
