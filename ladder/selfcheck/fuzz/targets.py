"""The files that `ladder.selfcheck.fuzz` damages, their readers, and the watch over what is written meanwhile."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from asv.results import Results

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.rules import shown
from ladder.plan import catalog
from ladder.publish.history import series as asvseries
from ladder.publish.validation import asv_accepted, asv_checks, kinds, validate
from ladder.report import tables
from ladder.results import store as results
from ladder.results.types import build
from ladder.studies.kernelbench import report as kernelreport
from ladder.studies.kernelbench import schema as kernelschema
from ladder.studies.precision import record as precisions
from ladder.studies.precision import report as precisionreport
from ladder.studies.roofline import schema as roofline
from ladder.studies.roofline import view as roofline_view
from stylegan_lite.config import Recipe

RESULTS = ROOT / "results"
RUN = "run"  # a ladder's, which has no kind in its file
WEIGHTS = {
    RUN: 60,
    **dict.fromkeys(("compare", "kernels", "precision", "roofline", "sustained"), 10),
}
PAGES: dict[str, Callable[[Any], str]] = {  # how an accepted result of another kind is shown
    "kernels": lambda data: kernelreport.markdown(kernelschema.of_data(data)),
    "precision": lambda data: precisionreport.markdown(build(precisions.Result, data)),
    "roofline": lambda data: roofline_view.markdown(build(roofline.Result, data)),
}

# What becomes of a damaged file: "accepted", or "refused" in one good line. Anything else is an exception.
Read = Callable[[Path, Path], str]


class Uncaught(Exception):
    """Something that a stranger's file brought about and must not."""


@dataclass
class Target:
    """A kind of file: genuine ones to be damaged, where they lie, and who reads them."""

    name: str
    bases: list[bytes]
    place: Path  # under the folder of the damaged files
    read: Read
    kind: str = "results"  # or "yaml"
    weight: int = 2  # how often among the files of its kind


# --- what is watched ----------------------------------------------------------------------------------------------

_allowed: list[str] = []  # while something is being read: folders that may be written to; else empty
_outside: list[str] = []
_hooked = False
_WRITES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
}
# Python's own, of a module that is imported late
_COMPILED = re.compile(r"/__pycache__(/[^/]+\.pyc(\.\d+)?)?$")
_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _allowed:
        return
    if event == "open":
        path, _, flags = arguments
        paths = [path] if isinstance(flags, int) and flags & _FLAGS else []
    elif event in _WRITES:
        paths = [each for each in arguments[:2] if isinstance(each, str | bytes | os.PathLike)]
    elif event in ("os.system", "os.exec", "pickle.find_class"):
        paths = [event]
    else:
        return
    for path in paths:
        where = os.path.abspath(os.fsdecode(path)) if not isinstance(path, int) else ""
        if where in ("", os.devnull) or _COMPILED.search(where) or where.startswith(tuple(_allowed)):
            continue
        _outside.append(where)


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Yield a list that fills with the files written outside `folder`, by Python's audit events."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    _outside.clear()
    _allowed.append(str(folder) + os.sep)
    try:
        yield _outside
    finally:
        _allowed.clear()


# --- who reads ----------------------------------------------------------------------------------------------------


def _line(problem: str) -> str:
    """Return "refused" if any terminal can print the reason in one line and the reason was foreseen."""
    if not (problem.isascii() and problem.isprintable() and len(problem) < 500):
        raise Uncaught(f"a reason that is not one plain line: {ascii(problem)[:80]}")
    if problem.startswith("not a result file: ") and problem.rpartition(" ")[2].endswith(
        ("Error", "Exception")
    ):
        raise Uncaught(problem)  # the last resort of ladder.publish.validation.validate
    return "refused"


def read_result(path: Path, out: Path) -> str:
    """Judge a result of ours, and show an accepted one as table, Markdown and CSV."""
    if problem := validate.problem_of(path):
        return _line(problem)
    data = json.loads(path.read_bytes())
    if (kind := kinds.kind_of(data)) is None:
        result = results.load(path)
        (out / "table.md").write_text(tables.markdown(result), encoding="utf-8")
        (out / "table.csv").write_text(tables.csv_text([result]), encoding="utf-8")
    elif markdown := PAGES.get(kind):
        (out / "page.md").write_text(markdown(data), encoding="utf-8")
    return "accepted"


def read_comparison(path: Path, out: Path) -> str:
    """Read a comparison as the second stage of the GPU's workflow reads the file of a pull request."""
    from ladder.publish.regressions import judging
    from ladder.publish.regressions import report as page

    try:
        found = judging.load(path)
    except UserError as error:
        return _line(str(error))
    (out / "comparison.md").write_text(page.markdown(found), encoding="utf-8")
    (out / "comparison.txt").write_text(page.text(found), encoding="utf-8")
    return "accepted"


def read_asv(path: Path, out: Path) -> str:
    """Judge a file of asv's; copy an accepted one with its folder and have asv read the copy."""
    if problem := validate.problem_of(path):
        return _line(problem)
    source = next(parent for parent in path.parents if parent.name == "asv")
    into = out / "accepted"
    _empty(into)
    for row in asv_accepted.accepted(source, into, root=None):
        if row.problem:
            _line(row.problem)
    for copied in into.glob("*/*.json"):
        if asv_checks.kind_of(copied) == "results":
            Results.load(str(copied), machine_name=copied.parent.name)
    asvseries.points(into)
    return "accepted"


def reading_yaml(load: Callable[[Path], Any]) -> Read:
    def read(path: Path, out: Path) -> str:
        try:
            load(path)
        except UserError as error:
            if "\n" in str(error) or (not str(error).isprintable() and len(str(error)) > 1000):
                raise Uncaught(f"a reason of several lines: {shown(str(error))}") from None
            return "refused"
        return "accepted"

    return read


def _empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


# --- what is damaged ----------------------------------------------------------------------------------------------


def targets() -> list[Target]:
    """Return our results, then asv's, then YAML. Bases are the committed files, cut small where that is accepted."""
    ours: dict[str, list[bytes]] = {}
    for path in sorted(RESULTS.glob("[!a]*/**/*.json")):
        data = json.loads(path.read_bytes())
        ours.setdefault(kinds.kind_of(data) or RUN, []).append(_small(data))
    found = [
        Target(
            name, bases, Path("others", f"{text.slug(name)}.json"),
            read_comparison if name == "compare" else read_result, weight=WEIGHTS.get(name, 2),
        )
        for name, bases in ours.items()
    ]  # fmt: skip
    found += _asv_targets()
    found += [
        Target(name, bases, Path("file.yaml"), reading_yaml(load), "yaml")
        for name, bases, load in _yaml_readers()
    ]
    return [target for target in found if target.bases]


def _small(data: Any) -> bytes:
    """Return the file with three entries of each list; the whole file where three are refused."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(each) for key, each in value.items()}
        return [cut(each) for each in value[:3]] if isinstance(value, list) else value

    less = cut(data)
    return json.dumps(data if validate.check(less) else less).encode()


def _asv_targets() -> list[Target]:
    """Return a target for each file of asv's; the files beside a damaged one are genuine."""
    folder, found = RESULTS / "asv", []
    for path in sorted(folder.glob("*/*.json")):
        kind, raw = asv_checks.kind_of(path), path.read_bytes()
        found.append((f"asv's {kind}", raw, path.relative_to(folder), 4 if kind == "results" else 10))
        if kind == "results":
            note = path.parent / asv_checks.NOTES / path.name
            held = note.read_bytes() if note.is_file() else _note(asv_checks.parse(raw, kind))
            found.append(("our note beside asv's", held, note.relative_to(folder), 1))
    benchmarks = folder / "benchmarks.json"
    found.append(("asv's benchmarks", benchmarks.read_bytes(), benchmarks.relative_to(folder), 10))
    return [
        Target(name, [raw], Path("asv", place), read_asv, weight=weight) for name, raw, place, weight in found
    ]


def _note(result: Mapping[str, Any]) -> bytes:
    seen = {
        "started": "2026-11-21T12:00:00+00:00",
        "driver": "580.65.06",
        "kernel_release": "6.8.0-45-generic",
    }
    note = {"schema": 1, "commit": result["commit_hash"], "environment": result["env_name"], **seen}
    note |= {"benchmarks": dict.fromkeys(result["results"], seen), "choices": {"article bf16": ["tile 16"]}}
    return json.dumps(note).encode()


def _yaml_readers() -> list[tuple[str, list[bytes], Callable[[Path], Any]]]:
    workloads, ladders = (_held(folder.glob("*.yaml")) for folder in (catalog.WORKLOADS, catalog.LADDERS))
    recipe = yaml.safe_dump(Recipe().to_dict()).encode()
    found = [
        ("workload", workloads, lambda path: catalog.load_workload(str(path))),
        ("ladder", ladders, lambda path: catalog.load_ladder(str(path))),
        ("recipe", [recipe], lambda path: catalog.load_recipe(str(path), [])),
    ]
    known = ROOT / "benches" / "known-regressions.yaml"
    if known.is_file() and importlib.util.find_spec("ladder.publish.regressions"):
        from ladder.publish.regressions import known as reader

        entry = {"commit": "0123456789", "series": "article/bf16", "reason": "why", "expires": "2027-06-30"}
        listed = yaml.safe_dump({"regressions": [entry, entry | {"machine": "nvidia-h200"}]}).encode()
        found.append(("known-regressions", [known.read_bytes(), listed], reader.read))
    return found


def _held(paths: Iterable[Path]) -> list[bytes]:
    return [path.read_bytes() for path in sorted(paths)]
