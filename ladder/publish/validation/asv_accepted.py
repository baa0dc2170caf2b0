"""The asv results that may be published: `accepted` copies them, and nothing else, into a fresh folder.

asv trusts what lies in its results folder: one null, a directory of the wrong name or one Infinity ends the whole
site. So a site is never made from that folder itself. Of each file that is accepted the data are written anew, machine
records hold the facts that are known here and no others, and benchmarks.json, which says what asv draws and how, is
never taken from a contributor: `regenerate` makes it of this checkout's own benchmarks.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ladder.base.errors import UserError, one_line
from ladder.base.paths import ROOT
from ladder.publish.validation import asv_checks, asv_schema, validate
from ladder.publish.validation.validate import Judged
from ladder.results import loading

UNKNOWN_COMMIT = "its commit is not in this repository: not drawn"
NO_RESULTS = "no result of this machine was accepted: left out"


def accepted(source: Path, into: Path, root: Path | None = ROOT) -> list[Judged]:
    """Copy what is accepted of an asv results folder into a fresh one; benchmarks.json is not among it.

    A commit that the repository at `root` knows must have the date that it has there: asv orders every graph by it.

    Returns:
        A verdict for each file, paths as they are under `source`; whatever has a problem was left out.

    Raises:
        UserError: there is no such folder, or `into` is there already and not empty.
    """
    source, into = Path(source), Path(into)
    if not source.is_dir():
        raise UserError(f"{source}: no such folder of asv's results")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UserError(f"{into}: expected an empty folder, or none")
    into.mkdir(parents=True, exist_ok=True)

    def also(file: Path, data: Any) -> str | None:
        return _elsewhere(file.relative_to(source))

    found = list(validate.read_and_judge([source], source, also)) if any(source.iterdir()) else []
    commits = {data["commit_hash"] for _, data, _ in found if _is(data, "commit_hash")}
    dates = validate.commit_dates(root, commits) if root else None
    rows, taken = {}, set()
    for file, data, judged in sorted(found, key=lambda each: _order(each[0])):
        where = file.relative_to(source)
        problem = judged.problem or _misplaced(where, data, taken, dates)
        marks = list(judged.marks)
        if problem is None and where.name != "benchmarks.json":
            _copy(data, into / where)
            taken.add(where)
            if dates is not None and "commit_hash" in data and data["commit_hash"] not in dates:
                marks.append(UNKNOWN_COMMIT)
        rows[file] = Judged(loading.show_path(where), problem, tuple(marks))
    for file, _, _ in found:
        where = file.relative_to(source)
        if where in taken and where.name == "machine.json" and not any(_results_beside(where, taken)):
            shutil.rmtree(into / where.parent)
            rows[file] = Judged(rows[file].path, None, (NO_RESULTS,))
    return [rows[file] for file, _, _ in found]


def regenerate(into: Path, root: Path = ROOT) -> Path:
    """Write `into`/benchmarks.json of the benchmarks that the checkout at `root` has, by asv's own discovery.

    Raises:
        UserError: asv could not discover them; one line.
    """
    path = Path(into) / "benchmarks.json"
    with tempfile.TemporaryDirectory(prefix="asv-discovery-") as folder:
        import json5  # asv's own reader of its configuration, which has comments

        conf = json5.loads((root / "asv.conf.json").read_text(encoding="utf-8"))
        conf |= {"repo": str(root), "benchmark_dir": str(root / conf["benchmark_dir"])}
        conf |= {f"{name}_dir": str(Path(folder) / name) for name in ("results", "env", "html")}
        config = Path(folder) / "asv.conf.json"
        config.write_text(json.dumps(conf))
        command = [sys.executable, "-m", "asv", "run", "--config", str(config), "--bench", "just-discover"]
        run = subprocess.run(
            [*command, "--python=same"], cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        made = Path(folder) / "results" / "benchmarks.json"
        if run.returncode or not made.is_file():
            said = (run.stderr.strip() or run.stdout.strip() or "no message").splitlines()[-1]
            raise UserError(f"asv could not discover the benchmarks: {one_line(said)}")
        Path(into).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, path)
    return path


def _is(data: Any, key: str) -> bool:
    return isinstance(data, dict) and key in data


def _results_beside(where: Path, taken: set[Path]) -> Iterator[Path]:
    return (each for each in taken if each.parent == where.parent and each != where)


def _order(file: Path) -> tuple[int, str]:
    """Machines first, then their results, then the notes of results: each is taken only with the one before."""
    kinds = ("machine", "results", "note")
    kind = asv_checks.kind_of(file)
    return (kinds.index(kind) if kind in kinds else len(kinds), os.fspath(file))


def _elsewhere(where: Path) -> str | None:
    """Why a file cannot be asv's where it lies."""
    kind = asv_checks.kind_of(where)
    if kind is None:
        return "not one of asv's files"
    if len(where.parts) != {"benchmarks": 1, "machine": 2, "results": 2, "note": 3}[kind]:
        return "not where asv would write it: MACHINE/machine.json, MACHINE/COMMIT-ENVIRONMENT.json"
    return None


def _misplaced(
    where: Path, data: dict[str, Any], taken: set[Path], dates: dict[str, int] | None
) -> str | None:
    """Why a file that is good in itself, and where it belongs, cannot be taken."""
    kind = asv_checks.kind_of(where)
    if kind in ("results", "note") and Path(where.parts[0], "machine.json") not in taken:
        return "the machine.json of its folder was not accepted"
    if kind == "note" and Path(where.parts[0], where.name) not in taken:
        return "the result that it belongs to was not accepted"
    return validate.misdated(data, dates or {}) if kind == "results" else None


def _copy(data: dict[str, Any], path: Path) -> None:
    """Write what was read, not what lies there: keys in our order, machine facts alone, no infinite interval."""
    kind = asv_checks.kind_of(path)
    path.parent.mkdir(exist_ok=True)
    if kind == "machine":
        data = {key: data[key] for key in (*asv_schema.FACTS, "version")}
    if kind == "results":
        data = data | {
            "results": {name: [_finite(each) for each in row] for name, row in data["results"].items()}
        }
    path.write_text(json.dumps(data) + "\n", encoding="utf-8")


def _finite(column: Any) -> Any:
    """An infinite bound, of an interval of one sample, is no bound."""
    if not isinstance(column, list):
        return column
    return [None if isinstance(each, float) and math.isinf(each) else each for each in column]
