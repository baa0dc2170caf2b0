"""The files that a report is made of: a staircase, the leave-one-out run beside it, and results of other kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.errors import UserError
from ladder.core.text import clean_line, make_slug
from ladder.plan import content, modes
from ladder.report.view import View, view
from ladder.results import loading, ranking
from ladder.results.combine import nearest, series
from ladder.results.file import Header
from ladder.results.ranking import Stored
from ladder.results.run import Result
from ladder.studies import frame
from ladder.studies.frame import Study, StudyFile

LADDER = "ladder"  # the folder of runs below results/
KINDS = {  # the studies that a report shows, with the titles of their sections
    "profile": "What a step consists of",
    "ablation": "What each rung is worth in any order",
    "map": "Where two rungs matter",
    "sustained": "Energy, and whether the speed lasts",
    "roofline": "Distance to the speed of light",
    "upstream": "NVIDIA's own step beside ours",
}


@dataclass(frozen=True)
class File:
    """A study's result beside the run."""

    path: Path
    study: Study[Any, Any, Any]
    content: StudyFile[Any, Any, Any]


@dataclass(frozen=True)
class Inputs:
    """Everything that a page is made of. Sections read it and nothing else."""

    staircase: Stored | None
    left_out: Stored | None
    whose: str  # a line on the machine that measured
    files: tuple[File, ...] = ()  # of studies, the newest first
    price: float | None = None  # of an hour
    others: tuple[Stored, ...] = ()  # runs of mistakes and of levers, one of each mode

    @property
    def main(self) -> Result:
        """The staircase with the gains at the top of the leave-one-out run, or that run where there is no staircase."""
        if self.staircase is None:
            assert self.left_out is not None
            return self.left_out[1]
        return series.with_top(self.staircase[1], [self.left_out[1]] if self.left_out else [])

    @property
    def shown(self) -> View:
        """The view of the main result."""
        return view(self.main)

    def list_files(self, kind: str) -> list[File]:
        """Return the files of a kind, the newest first."""
        return [file for file in self.files if file.study.kind == kind]


def shorten_path(path: Path) -> str:
    """Return a file's name with that of its folder: a page shows no path of whoever made it."""
    return clean_line("/".join(each for each in path.parts[-2:] if each != "/"))


def name_page(result: Result) -> str:
    """Return the name of a result's page without its suffix."""
    mode = ranking.mode(result)
    names = [result.machine.name, result.workload["name"], result.ladder.name]
    return "-".join(map(make_slug, [*names, *([] if mode == modes.CUMULATIVE else [mode])]))


def gather_inputs(staircase: Stored, runs: Sequence[Stored], results: Path) -> Inputs:
    """Return what belongs to a staircase among these runs, and among the studies below `results`."""
    main = staircase[1]
    left_out = series.left_out_of(main, [result for _, result in runs])
    pair = next((run for run in runs if run[1] is left_out), None) if left_out else None
    whose = f"measured on {clean_line(main.machine.gpu or main.machine.cpu)}"
    return Inputs(staircase, pair, whose, _find_files(main, results, KINDS), None, _pick_others(main, runs))


def find_inputs(paths: Sequence[Path], results: Path, price: float | None = None) -> Inputs:
    """Return what a page of these files is made of; without any, of this machine's best result.

    A folder stands for its best run. Kinds of which no file is named are looked for below `results`.

    Raises:
        UserError: a file is no result, is of another machine or workload, or there are two runs of one mode.
    """
    runs: dict[str, Stored] = {}
    files: list[File] = []
    for path in paths:
        if (opened := frame.open_stored(path)) is not None:
            if opened[0].kind not in KINDS:
                raise UserError(f"{path}: a report has no section for a result of {opened[0].kind}")
            files.append(File(path, *opened))
            continue
        if path.is_dir():
            stairs = [run for run in _read_runs(path, "*.json") if ranking.mode(run[1]) == modes.CUMULATIVE]
            if (run := ranking.newest(stairs)) is None:
                raise UserError(f"{path}: no staircase here; `ladder run` makes one")
        else:
            run = path, loading.load_run(path)
        mode = ranking.mode(run[1])
        if mode in runs:
            raise UserError(f"a page is about one run of each mode: {runs[mode][0]} and {run[0]} are {mode}")
        runs[mode] = run
    if files and not runs:
        raise UserError(
            f"{files[0].path}: name a result of `ladder run` beside it: the page is about a ladder"
        )
    if not runs:
        chosen = nearest.find(results / LADDER, None)
    else:
        stairs, left_out = runs.get(modes.CUMULATIVE), runs.get(modes.LEAVE_ONE_OUT)
        if stairs and left_out and series.key(stairs[1], modes.LEAVE_ONE_OUT) != series.key(left_out[1]):
            raise UserError(
                f"{left_out[0]}: of another machine, software, workload or ladder than {stairs[0]}"
            )
        chosen = nearest.of_file((stairs or left_out or next(iter(runs.values())))[0])
    staircase, left_out = chosen.staircase, runs.get(modes.LEAVE_ONE_OUT, chosen.left_out)
    main = staircase or left_out
    assert main is not None
    headers: list[tuple[Path, Result | Header]] = [*runs.values()]
    for path, header in [*headers, *((file.path, file.content) for file in files)]:
        if not _is_of(header, main[1]):
            raise UserError(f"{path}: of another machine or workload than {main[0]}")
    missing = [kind for kind in KINDS if kind not in {file.study.kind for file in files}]
    beside = _find_files(main[1], results, missing)
    patterns = (f"*-{mode}-*.json" for mode in modes.STUDIES)
    stored = _read_runs(results / LADDER / main[1].machine.name, *patterns)
    others = _pick_others(main[1], stored) + _pick_others(main[1], runs.values())
    latest = {ranking.mode(run[1]): run for run in others}  # a named one replaces a stored one
    return Inputs(staircase, left_out, chosen.whose, (*files, *beside), price, tuple(latest.values()))


def _find_files(main: Result, results: Path, kinds: Iterable[str]) -> tuple[File, ...]:
    """Return the files of these kinds below a folder that belong to a run. Refused files are left out."""
    files: list[File] = []
    for study in (frame.load_studies()[kind] for kind in kinds):
        for path in sorted((results / study.folder).rglob("*.json")):
            with contextlib.suppress(UserError):
                file = frame.read_file(study, path)
                if _is_of(file, main):
                    files.append(File(path, study, file))
    return tuple(sorted(files, key=lambda file: file.content.started, reverse=True))


def _read_runs(folder: Path, *patterns: str) -> list[Stored]:
    """Return the readable runs whose files match in a folder and below it."""
    runs: list[Stored] = []
    for path in sorted(path for pattern in patterns for path in folder.rglob(pattern)):
        with contextlib.suppress(UserError):
            runs.append((path, loading.load_run(path)))
    return runs


def _pick_others(main: Result, runs: Iterable[Stored]) -> tuple[Stored, ...]:
    """Return the best run of mistakes and that of levers, of the machine and workload of a run."""
    own = [run for run in runs if _is_of(run[1], main)]
    best = (ranking.newest(run for run in own if ranking.mode(run[1]) == mode) for mode in modes.STUDIES)
    return tuple(run for run in best if run is not None)


def _is_of(each: Result | Header, main: Result) -> bool:
    """Return whether a file is of the machine and the workload of a run."""
    same = content.of_workload(each.workload or {}) == content.of_workload(main.workload)
    return same and each.machine.name == main.machine.name
