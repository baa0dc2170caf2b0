"""The publishable part of asv's results: `accepted` copies it, and nothing else, into a fresh folder.

asv trusts its results folder: a null, a wrongly named directory or an Infinity makes the whole site fail. A site
is therefore never made from that folder itself. The data of every accepted file are written again, and machine
records keep only known facts. File benchmarks.json decides what asv draws, so it is never taken from a
contributor. The site makes it from this checkout's own benchmarks.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.publish.validation import asv_files, validate
from ladder.publish.validation.validate import Judged
from ladder.results import loading

UNKNOWN_COMMIT = "its commit is not in this repository: not drawn"
NO_RESULTS = "no result of this machine was accepted: left out"


def accepted(source: Path, into: Path, root: Path | None = ROOT) -> list[Judged]:
    """Copy the accepted files of an asv results folder, without benchmarks.json, into a fresh folder.

    A commit known to the repository at `root` must have its date there, because asv orders every graph by date.

    Returns:
        A verdict for each file, with its path under `source`. Every file with a problem was left out.

    Raises:
        UserError: there is no such folder, or `into` exists and is not empty.
    """
    source, into = Path(source), Path(into)
    if not source.is_dir():
        raise UserError(f"{source}: no such folder of asv's results")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UserError(f"{into}: expected an empty folder, or none")
    into.mkdir(parents=True, exist_ok=True)

    def also(file: Path, data: Any) -> str | None:
        return _elsewhere(file.relative_to(source))

    every = list(validate.read_and_judge([source], source, also)) if any(source.iterdir()) else []
    commits = {data["commit_hash"] for _, data, _ in every if _is(data, "commit_hash")}
    dates = validate.commit_dates(root, commits) if root else None
    rows, taken = {}, set()
    for file, data, judged in sorted(every, key=lambda each: _order(each[0])):
        where = file.relative_to(source)
        problem = judged.problem or _misplaced(where, data, taken, dates)
        marks = list(judged.marks)
        if problem is None and where.name != "benchmarks.json":
            _copy(data, into / where)
            taken.add(where)
            if dates is not None and "commit_hash" in data and data["commit_hash"] not in dates:
                marks.append(UNKNOWN_COMMIT)
        rows[file] = Judged(loading.show_path(where if where.parts else source), problem, tuple(marks))
    for file, _, _ in every:
        where = file.relative_to(source)
        if where in taken and where.name == "machine.json" and not any(_results_beside(where, taken)):
            shutil.rmtree(into / where.parent)
            rows[file] = Judged(rows[file].path, None, (NO_RESULTS,))
    return [rows[file] for file, _, _ in every]


def _is(data: Any, key: str) -> bool:
    return isinstance(data, dict) and key in data


def _results_beside(where: Path, taken: set[Path]) -> Iterator[Path]:
    return (each for each in taken if each.parent == where.parent and each != where)


def _order(file: Path) -> tuple[int, str]:
    """Return the sorting key: machines, then results, then notes. Each is accepted only after the one before."""
    kinds = ("machine", "results", "note")
    kind = asv_files.kind_of(file)
    return (kinds.index(kind) if kind in kinds else len(kinds), os.fspath(file))


def _elsewhere(where: Path) -> str | None:
    """Return why a file at this path cannot be from asv, or None."""
    kind = asv_files.kind_of(where)
    if kind is None:
        return "not one of asv's files"
    if len(where.parts) != {"benchmarks": 1, "machine": 2, "results": 2, "note": 3}[kind]:
        return "not where asv would write it: MACHINE/machine.json, MACHINE/COMMIT-ENVIRONMENT.json"
    return None


def _misplaced(where: Path, data: Any, taken: set[Path], dates: dict[str, int] | None) -> str | None:
    """Return why a valid file at a valid path is still left out, or None."""
    kind = asv_files.kind_of(where)
    if kind in ("results", "note") and Path(where.parts[0], "machine.json") not in taken:
        return "the machine.json of its folder was not accepted"
    if kind == "note" and Path(where.parts[0], where.name) not in taken:
        return "the result that it belongs to was not accepted"
    return validate.misdated(data, dates or {}) if kind == "results" else None


def _copy(data: Any, path: Path) -> None:
    """Write the parsed data again: keys in our order, machine facts only, no infinite interval."""
    kind = asv_files.kind_of(path)
    path.parent.mkdir(exist_ok=True)
    if kind == "machine":
        data = {key: data[key] for key in asv_files.Machine.__struct_fields__}
    if kind == "results":
        data = data | {
            "results": {name: [_finite(each) for each in row] for name, row in data["results"].items()}
        }
    path.write_text(json.dumps(data) + "\n", encoding="utf-8")


def _finite(column: Any) -> Any:
    """Return the column with None for infinite bounds, which are the interval of one sample."""
    if not isinstance(column, list):
        return column
    return [None if isinstance(each, float) and math.isinf(each) else each for each in column]
