"""The tuning choices behind each of asv's numbers, and their changes between two commits.

The note beside asv's result file (`ladder.publish.history.notes`) holds the rows of `kernels.choices` that decided in
the timed process. It has one line for each row, by series. A page that shows a step of a series names the differences:

    choicehistory.between(before, after, "rungs.Rung.samples_step_time", ["article", "fused_act"])

`ladder.report.tiles` says how a line reads.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.publish.history import notes as asvnotes
from ladder.report.tiles import changes, lines
from ladder.results import store as results


def key(benchmark: str, params: Iterable[str]) -> str:
    """Return the name of a series in a note. Benchmarks of one class share a process and its choices.

    Args:
        benchmark: asv's name, "rungs.Rung.samples_step_time".
        params: its parameter values, plain or in quotes as asv writes them.
    """
    return f"{benchmark.rpartition('.')[0]}({', '.join(str(each).strip(chr(39)) for each in params)})"


def leave(folder: Path, series: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Leave the choices of a benchmark's process for the note of the result that asv will save."""
    told = [text.display(line) for line in lines(rows)]
    results.write(Path(folder) / f"choices-{uuid.uuid4().hex}.json", {"series": series, "lines": told})


def left(folder: Path) -> dict[str, list[str]]:
    """Return the choices that the benchmarks' processes left in `folder`, the newest of each series."""
    files = sorted(Path(folder).glob("choices-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return {each["series"]: each["lines"] for each in (json.loads(path.read_text()) for path in files)}


def between(before: Path, after: Path, benchmark: str, params: Iterable[str]) -> list[str]:
    """Return the `changes` of a series from one asv result file to another; none without two usable notes."""
    name = key(benchmark, params)
    notes = [asvnotes.of(Path(each)) or {} for each in (before, after)]
    return changes(*(note.get("choices", {}).get(name) for note in notes))
