"""The tuning choices behind each of asv's numbers, and their changes between two commits.

The note beside asv's result file (`ladder.publish.history.notes`) holds the rows of `kernels.choices` that decided in
the timed process. It has one line for each row, by series. A page that shows a step of a series names the differences:

    choicehistory.between(before, after, "rungs.Rung.samples_step_time", ["article", "fused_act"])

A line is "bias_act backward 2B nhwc sm90 large: 4096/64/8/2/1". First stands the call as far as the row names it: bytes
of an element, memory format, architecture, size. Then stand tile, columns, warps, programs for each SM, stages. Other
tables, by `kernels.choices.note`, have lines like "upfirdn2d nhwc up 2 down 1: rows 8, cols 2, ...".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.publish.history import notes as asvnotes
from ladder.results import store as results

CALL = {  # fields of kernels.choices.Key, and how a line shows them
    "op": "{}",
    "direction": "{}",
    "itemsize": "{}B",
    "layout": "{}",
    "architecture": "sm{}",
    "size": "{}",
}
CHOICE = ("tile", "columns", "warps", "per_sm", "stages")  # fields of kernels.choices.Choice


def key(benchmark: str, params: Iterable[str]) -> str:
    """Return the name of a series in a note. Benchmarks of one class share a process and its choices.

    Args:
        benchmark: asv's name, "rungs.Rung.samples_step_time".
        params: its parameter values, plain or in quotes as asv writes them.
    """
    return f"{benchmark.rpartition('.')[0]}({', '.join(str(each).strip(chr(39)) for each in params)})"


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return rows of `kernels.choices.used` as text for a note."""
    return [f"{_call(row)}: {row.get('entry') or '/'.join(str(row.get(n)) for n in CHOICE)}" for row in rows]


def leave(folder: Path, series: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Leave the choices of a benchmark's process for the note of the result that asv will save."""
    told = [text.display(line) for line in lines(rows)]
    results.write(Path(folder) / f"choices-{uuid.uuid4().hex}.json", {"series": series, "lines": told})


def left(folder: Path) -> dict[str, list[str]]:
    """Return the choices that the benchmarks' processes left in `folder`, the newest of each series."""
    files = sorted(Path(folder).glob("choices-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return {each["series"]: each["lines"] for each in (json.loads(path.read_text()) for path in files)}


def changes(before: list[str] | None, after: list[str] | None) -> list[str]:
    """Return one line for each row that changed from one commit's choices of a series to another's.

    A line is "bias_act backward 2B nhwc large: warps 4 -> 8", "...: new" or "...: used no more". The list is empty
    where the choices of a commit are unknown.
    """
    if before is None or after is None:
        return []
    old, new = (dict(line.rpartition(": ")[::2] for line in each) for each in (before, after))
    told = []
    for call in sorted({*old, *new}):
        if call not in new or call not in old:
            told.append(f"{call}: {'new' if call in new else 'used no more'}")
        elif old[call] != new[call]:
            told.append(f"{call}: {_difference(old[call], new[call])}")
    return told


def between(before: Path, after: Path, benchmark: str, params: Iterable[str]) -> list[str]:
    """Return the `changes` of a series from one asv result file to another; none without two usable notes."""
    name = key(benchmark, params)
    notes = [asvnotes.of(Path(each)) or {} for each in (before, after)]
    return changes(*(note.get("choices", {}).get(name) for note in notes))


def _call(row: Mapping[str, Any]) -> str:
    shown = [how.format(row[name]) for name, how in CALL.items() if row.get(name) is not None]
    return " ".join([*shown, *([row["case"]] if row.get("case") else [])])


def _difference(old: str, new: str) -> str:
    was, now = old.split("/"), new.split("/")
    if len(was) != len(CHOICE) or len(now) != len(CHOICE):  # of another version of ours
        return f"{old} -> {new}"
    pairs = zip(CHOICE, was, now, strict=True)
    return ", ".join(f"{name} {a} -> {b}" for name, a, b in pairs if a != b)
