"""The files that a report is made of: a staircase, the leave-one-out run beside it, and results of other kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.text import plain, slug
from ladder.plan import content, modes
from ladder.publish.validation import kinds
from ladder.publish.validation.kinds import RUN
from ladder.report.advising import LEFT_OUT, STAIRCASE, Sources
from ladder.report.view import View, view
from ladder.results import loading, publishable, ranking, store
from ladder.results.combine import nearest, series
from ladder.results.ranking import Stored
from ladder.results.run import Result
from ladder.results.types import Plain, head

LADDER = "ladder"  # the folder of runs below results/
# The kinds of result that a section shows beside the ladder's. Each is the name of a folder below results/, too.
KINDS = ("ablation", "map", "profile", "roofline", "sustained", "upstream")


@dataclass(frozen=True)
class File:
    """A result of another kind than a run of a ladder. `marks` say why not to quote it."""

    path: Path
    kind: str
    data: Plain
    marks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file's name with that of its folder."""
        return shorten_path(self.path)

    def list_remarks(self) -> list[str]:
        """Return why not to quote the file, then its name and its day if it has one."""
        day = str(self.data.get("started", ""))[:10]
        return [*map(publishable.told, self.marks), ", ".join(filter(None, (self.name, day)))]


@dataclass(frozen=True)
class Inputs:
    """Everything that a page is made of. Sections read it and nothing else."""

    staircase: Stored | None
    left_out: Stored | None
    whose: str  # a line on the machine that measured
    files: tuple[File, ...] = ()
    price: float | None = None  # of an hour
    studies: tuple[Stored, ...] = ()  # runs of mistakes and of levers, one of each mode

    @property
    def main_run(self) -> Stored:
        """The staircase with its file, or the leave-one-out run where there is none."""
        run = self.staircase or self.left_out
        assert run is not None
        return run

    @property
    def main(self) -> Result:
        """The result that names machine, workload and ladder: the staircase, where there is one.

        It has the gains at the top of the leave-one-out run.
        """
        result = self.main_run[1]
        return series.with_top(result, [self.left_out[1]]) if self.staircase and self.left_out else result

    @property
    def shown(self) -> View:
        """The view of the main result."""
        return view(self.main)

    @property
    def sources(self) -> Sources:
        """The results that a recommendation comes from. A page names no file to go on with."""
        stairs, left_out = self.staircase, self.left_out
        return Sources(stairs[1] if stairs else None, left_out[1] if left_out else None, {})

    @property
    def names(self) -> dict[str, str]:
        """The file of each of the two runs by its kind, as a recommendation names them."""
        both = {STAIRCASE: self.staircase, LEFT_OUT: self.left_out}
        return {kind: shorten_path(run[0]) for kind, run in both.items() if run}

    def list_files(self, kind: str) -> list[File]:
        """Return the files of a kind that belong to this machine and workload, the newest first."""
        return [file for file in self.files if file.kind == kind]

    @property
    def raw(self) -> dict[str, Plain]:
        """The data of all files, by the name of each."""
        runs = [run for run in (self.staircase, self.left_out, *self.studies) if run]
        ladders = {shorten_path(path): store.read(path) for path, _ in runs}
        return ladders | {file.name: file.data for file in self.files}


def shorten_path(path: Path) -> str:
    """Return a file's name with that of its folder: a page shows no path of whoever made it."""
    return plain("/".join(each for each in path.parts[-2:] if each != "/"))


def name_page(result: Result) -> str:
    """Return the name of a result's page without its suffix."""
    mode = ranking.mode(result)
    more = [] if mode == modes.CUMULATIVE else [mode]
    names = [result.machine.name, result.workload["name"], result.ladder.name, *more]
    return "-".join(map(slug, names))


def gather_inputs(staircase: Stored, others: Sequence[Stored], results: Path) -> Inputs:
    """Return what belongs to one run.

    Args:
        staircase: the run with its file.
        others: runs among which the leave-one-out run and the studies are looked for.
        results: the folder of results of other kinds.
    """
    main = staircase[1]
    left_out = series.left_out_of(main, [result for _, result in others])
    pair = next((run for run in others if run[1] is left_out), None) if left_out else None
    whose = f"measured on {plain(main.machine.gpu or main.machine.cpu)}"
    return Inputs(
        staircase, pair, whose, _find_files(main, results, KINDS), None, _pick_studies(main, others)
    )


def find_inputs(paths: Sequence[Path], results: Path, price: float | None = None) -> Inputs:
    """Return what a page of these files is made of; without any, of this machine's best result.

    A folder stands for its best run. Kinds of which no file is named are looked for below `results`.

    Raises:
        UserError: a file is no result, is of another machine or workload, or there are two runs of one mode.
    """
    runs, named = _read_files(paths)
    if runs or named:
        chosen = _choose_runs(runs, named)
    else:
        chosen = nearest.find(results / LADDER, None)
    main = chosen.staircase or chosen.left_out
    assert main is not None
    studies = _pick_studies(main[1], [run for run in runs if ranking.mode(run[1]) in modes.STUDIES])
    for path, data in [(file.path, file.data) for file in named] + [(run[0], head(run[1])) for run in runs]:
        if not _is_of(data, main[1]):
            of = plain(main[1].machine.gpu or main[1].machine.cpu)
            raise UserError(f"{path}: of another machine or workload than {main[0]} ({of})")
    beside = _find_files(
        main[1], results, [kind for kind in KINDS if kind not in {each.kind for each in named}]
    )
    modes_named = {ranking.mode(run[1]) for run in studies}
    stored = _pick_studies(main[1], _read_studies(main[1], results))
    studies += tuple(run for run in stored if ranking.mode(run[1]) not in modes_named)
    return Inputs(chosen.staircase, chosen.left_out, chosen.whose, (*named, *beside), price, studies)


def _read_files(paths: Sequence[Path]) -> tuple[list[Stored], list[File]]:
    """Return the runs and the other results that were named."""
    runs: list[Stored] = []
    named: list[File] = []
    for path in paths:
        if path.is_dir():
            runs.append(_find_best(path))
            continue
        data = store.read(path)
        kind = kinds.kind_of(data) if isinstance(data, dict) else None
        if kind in (None, RUN):
            runs.append((path, loading.load_run(path)))
        elif kind not in KINDS:
            raise UserError(f"{path}: a result of {plain(kind)}, of which the report has no section")
        else:
            named.append(_read_file(path, kind))
    return runs, named


def _find_best(folder: Path) -> Stored:
    folders = {path.parent for path in folder.rglob("*.json")}
    every = [run for name in sorted(folders) for run in ranking.stored(name.parent, [name.name])]
    best = ranking.newest(run for run in every if ranking.mode(run[1]) == ranking.CUMULATIVE)
    if best is None:
        raise UserError(f"{folder}: no staircase here; `ladder run` makes one")
    return best


def _choose_runs(runs: Sequence[Stored], named: Sequence[File]) -> nearest.Nearest:
    """Return the one staircase and the one leave-one-out run among the named files."""
    if not runs:
        raise UserError(
            f"{named[0].path}: name a result of `ladder run` beside it: the page is about a ladder"
        )
    by_mode: dict[str, list[Stored]] = {}
    for run in runs:
        by_mode.setdefault(ranking.mode(run[1]), []).append(run)
    for mode, several in by_mode.items():
        if len(several) > 1:
            files = ", ".join(str(path) for path, _ in several[:3])
            raise UserError(
                f"a page is about one ladder, and {len(several)} runs of mode {mode} are named: {files}"
            )
    stairs, left_out = (
        next(iter(by_mode.get(mode, [])), None) for mode in (modes.CUMULATIVE, modes.LEAVE_ONE_OUT)
    )
    if stairs and left_out and series.key(stairs[1], modes.LEAVE_ONE_OUT) != series.key(left_out[1]):
        raise UserError(f"{left_out[0]}: of another machine, software, workload or ladder than {stairs[0]}")
    chosen = nearest.of_file((stairs or left_out or runs[0])[0])
    return nearest.Nearest(chosen.staircase, left_out or chosen.left_out, chosen.whose, chosen.here)


def _find_files(main: Result, results: Path, wanted: Iterable[str]) -> tuple[File, ...]:
    """Return the files of these kinds below a folder that belong to a run. Refused files are left out."""
    files: list[File] = []
    for kind in wanted:
        for path in sorted((results / kind).rglob("*.json")):
            with contextlib.suppress(UserError):
                file = _read_file(path, kind)
                if _is_of(file.data, main):
                    files.append(file)
    return tuple(sorted(files, key=lambda file: str(file.data.get("started") or ""), reverse=True))


def _pick_studies(main: Result, runs: Iterable[Stored]) -> tuple[Stored, ...]:
    """Return the run of highest standing of each study of the machine and workload of a run."""
    own = [run for run in runs if _is_of(head(run[1]), main)]
    best = (ranking.newest(run for run in own if ranking.mode(run[1]) == mode) for mode in modes.STUDIES)
    return tuple(run for run in best if run is not None)


def _read_studies(main: Result, results: Path) -> list[Stored]:
    """Return the readable runs of studies on the machine of a run. Their files have the mode in their names."""
    folder, runs = results / LADDER / main.machine.name, list[Stored]()
    for path in sorted(path for mode in modes.STUDIES for path in folder.glob(f"*-{mode}-*.json")):
        with contextlib.suppress(UserError):
            runs.append((path, loading.load_run(path)))
    return runs


def _read_file(path: Path, kind: str) -> File:
    """Return a file of a kind, checked as if a stranger had sent it. UserError."""
    data = loading.load_kind(path, kinds.KINDS[kind])
    return File(path, kind, data, tuple(map(plain, kinds.marks(data))))


def _is_of(data: Mapping[str, object], main: Result) -> bool:
    """Return whether a file is of the machine and the workload of a run."""
    machine, workload = data.get("machine"), data.get("workload")
    if not (isinstance(machine, Mapping) and isinstance(workload, Mapping)):
        return False
    own = head(main)["workload"]
    return machine.get("name") == main.machine.name and content.of_workload(workload) == content.of_workload(
        own
    )
