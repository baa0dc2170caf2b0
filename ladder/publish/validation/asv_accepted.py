"""The publishable part of asv's results: `accepted` copies it, and nothing else, into a fresh folder.

asv trusts its results folder: a null, a wrongly named directory or an Infinity makes the whole site fail. A site
is therefore never made from that folder itself. The data of every accepted file are written again. File
benchmarks.json decides what asv draws, so the site makes it from this checkout's own benchmarks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.publish.validation import asv_files, validate
from ladder.publish.validation.validate import Judged

UNKNOWN_COMMIT = "its commit is not in this repository: not drawn"
NO_RESULTS = "no result of this machine was accepted: left out"
PARTS = {"benchmarks": 1, "machine": 2, "results": 2, "note": 3}  # of a file's path, by its kind


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

    def find_wrong_place(file: Path, data: Any) -> str | None:
        kind, where = asv_files.kind_of(file), file.relative_to(source)
        if kind is None:
            return "not one of asv's files"
        if len(where.parts) != PARTS[kind]:
            return "not where asv would write it: MACHINE/machine.json, MACHINE/COMMIT-ENVIRONMENT.json"
        return None

    judged = validate.validate([source], source, find_wrong_place) if any(source.iterdir()) else []
    taken: dict[Path, Judged] = {}
    for kind in ("machine", "results", "note"):  # each is accepted only after the one before
        for one in judged:
            if one.problem is None and asv_files.kind_of(one.file) == kind:
                where = one.file.relative_to(source)
                _judge_beside(one, kind, where, taken, root)
                if one.problem is None:
                    taken[where] = one
    for where, one in taken.items():
        if where.name == "machine.json" and not any(
            each.parent == where.parent and each != where for each in taken
        ):
            one.marks = [NO_RESULTS]
        else:
            _copy_file(one.data, into / where)
    return judged


def _judge_beside(one: Judged, kind: str, where: Path, taken: dict[Path, Judged], root: Path | None) -> None:
    """Fill in why a valid file at a valid path is still left out, for what was accepted before it or its date."""
    folder = Path(where.parts[0])
    if kind != "machine" and folder / "machine.json" not in taken:
        one.problem = "the machine.json of its folder was not accepted"
    elif kind == "note" and folder / where.name not in taken:
        one.problem = "the result that it belongs to was not accepted"
    elif kind == "results" and root is not None:
        date = validate.read_date(root, one.data["commit_hash"])
        if date is None:
            one.marks.append(UNKNOWN_COMMIT)
        elif date != one.data["date"]:
            one.problem = asv_files.WRONG_DATE


def _copy_file(data: Any, path: Path) -> None:
    """Write the data again, without infinite bounds, which are the interval of one sample."""
    if asv_files.kind_of(path) == "results":
        rows = {name: list(map(_drop_infinite, row)) for name, row in data["results"].items()}
        data = data | {"results": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data) + "\n", encoding="utf-8")


def _drop_infinite(column: Any) -> Any:
    if not isinstance(column, list):
        return column
    return [None if isinstance(each, float) and math.isinf(each) else each for each in column]
