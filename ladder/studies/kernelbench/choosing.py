"""Which rows `kernels.alternatives` should have, by a result of `ladder kernels`: where plain PyTorch is faster.

A case counts forward and backward together, repeat by repeat (an op without gradients: forward), and is judged as the
table's verdicts are: log ratios, Student's t, Holm over all cases, against what the twins, added up alike, differ by.
A row is made only where plain PyTorch is faster in every case of its kind; where one interval straddles, ours stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.base.errors import UserError
from ladder.stats import estimates, verdicts

DOUBLE = "double backward"
KEYS = ("variant", "architecture", "dtype", "layout", "size")  # of `kernels.alternatives.Where`
Row = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """One case: how many times faster plain PyTorch is, its interval, and whether all of that is faster."""

    case: str
    key: tuple[Any, ...]  # op, then KEYS
    times: float
    interval: tuple[float, float] | None
    faster: bool
    double: float | None  # times faster where it is differentiated twice, which decides nothing


def check(result: dict[str, Any], path: Path) -> None:
    """UserError, one line, where no row can be made of this result."""
    if result.get("kind") != "kernels":
        raise UserError(f"{path}: not a result of ladder kernels")
    notes = [note for note in result["protocol"]["notes"] if "not to be" in note]
    if notes:
        raise UserError(f"{path}: {notes[0]}, and so not to choose by")
    if not any("dispatch" in row for row in result["rows"]):
        raise UserError(f"{path}: made by an earlier version, which did not say how calls are dispatched")


def judge(rows: Sequence[Row]) -> list[Judged]:
    """Every case with an alternative in which both were measured, in the order of the rows."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.get("dispatch"):
            cases.setdefault(row["case"], {})[row["direction"]] = row
    names, comparisons = [], []
    for name, found in cases.items():
        together = [row for direction, row in found.items() if direction != DOUBLE]
        times = {who: _added(together, who) for who in ("ours", "twin", "plain")}
        if times["ours"] is None or times["plain"] is None:
            continue
        floor = verdicts.noise_floor(
            [_logs(times["twin"], times["ours"])] if times["twin"] is not None else []
        )
        names.append(name)
        comparisons.append(verdicts.Comparison(_logs(times["ours"], times["plain"]), floor or 0.0))
    return [
        _judged(name, cases[name], verdict)
        for name, verdict in zip(names, verdicts.judge(comparisons), strict=True)
    ]


def _judged(name: str, found: dict[str, Row], verdict: verdicts.Verdict) -> Judged:
    row = next(iter(found.values()))
    at = dict(row["dispatch"])
    at["variant"] = at["variant"].strip("-")  # an empty text is written so
    key = (at["op"], *(at[each] for each in KEYS))
    double = None
    if DOUBLE in found and "plain" in found[DOUBLE]["against"]:
        double = 1 / found[DOUBLE]["against"]["plain"]["times_faster"]
    interval = verdict.interval and tuple(float(np.exp(bound)) for bound in verdict.interval)
    faster = verdict.verdict == verdicts.FASTER
    return Judged(name, key, float(np.exp(verdict.effect)), interval, faster, double)


def _added(rows: Sequence[Row], who: str) -> np.ndarray | None:
    """Microseconds of all these directions together, cold, one a repeat; None where one of them has none."""
    samples = [row["samples_us"]["cold"].get(who, []) for row in rows]
    if not samples or len({len(each) for each in samples}) > 1 or not samples[0]:
        return None
    return np.sum(samples, axis=0)


def _logs(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """Positive where the second gains."""
    return estimates.log_ratios(dict(enumerate(map(float, slow))), dict(enumerate(map(float, fast))))


def chosen(judged: Sequence[Judged]) -> dict[tuple[Any, ...], list[Judged]]:
    """The rows of the table, by key, each with the cases that speak for it: all that were measured of that kind."""
    kinds: dict[tuple[Any, ...], list[Judged]] = {}
    for each in judged:
        kinds.setdefault(each.key, []).append(each)
    return {key: cases for key, cases in sorted(kinds.items()) if all(each.faster for each in cases)}


def table(rows: dict[tuple[Any, ...], list[Judged]], stem: str) -> str:
    """The table as `kernels/alternatives.py` has it."""
    lines = ["TABLE: dict[str, dict[Where, str]] = {"]
    for op in dict.fromkeys(key[0] for key in rows):
        lines.append(f'    "{op}": {{')
        for key, cases in rows.items():
            if key[0] == op:
                variant, architecture, dtype, layout, size = key[1:]
                where = f'Where("{variant}", {architecture}, torch.{dtype}, "{layout}", {size})'
                lines.append(f"        {where}: (")
                lines += [f'            "{said(each)}; "' for each in cases]
                lines += [f'            "{stem}"', "        ),"]
        lines.append("    },")
    return "\n".join([*lines, "}"])


def said(each: Judged) -> str:
    """One case in a line."""
    low, high = each.interval or (0.0, 0.0)
    text = f"{each.case}: {each.times:.2f}x, {low:.2f} to {high:.2f}"
    return text + (f", twice differentiated {each.double:.2f}x" if each.double is not None else "")


def stays(judged: Sequence[Judged], rows: dict[tuple[Any, ...], list[Judged]]) -> list[str]:
    """A line for each case that was faster, or may have been, and stays with ours."""
    return [
        f"stays with ours: {said(each)}" + (", but not in all cases of its kind" if each.faster else "")
        for each in judged
        if each.key not in rows and each.times > 1
    ]
