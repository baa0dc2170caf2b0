"""The files that a report is made of: a staircase, the leave-one-out run beside it, and results of other kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.text import plain, slug
from ladder.plan import content, modes
from ladder.publish.report.section import Reads, reads
from ladder.publish.validation import kinds
from ladder.publish.validation.kinds import RUN
from ladder.report.advising import LEFT_OUT, STAIRCASE, Sources
from ladder.report.view import View, view
from ladder.results import loading, ranking, store
from ladder.results.check import Kind
from ladder.results.combine import nearest, series
from ladder.results.ranking import Stored
from ladder.results.run import Result
from ladder.results.types import Plain, head

RESULTS = ("ladder",)  # the folder of runs below results/


@dataclass(frozen=True)
class File:
    """A result of another kind than a run of a ladder. ``marks`` say why not to quote it."""

    path: Path
    kind: str
    data: Plain
    marks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file's name with that of its folder."""
        return short(self.path)


@dataclass(frozen=True)
class Found:
    """Everything that a page is made of. Sections read it and nothing else."""

    staircase: Stored | None
    left_out: Stored | None
    whose: str  # a line on the machine that measured
    files: tuple[File, ...] = ()
    price: float | None = None  # of an hour
    studies: tuple[Stored, ...] = ()  # runs of mistakes and of levers, one of each mode

    @property
    def main(self) -> Result:
        """The result that names machine, workload and ladder: the staircase, where there is one.

        It has the gains at the top of the leave-one-out run.
        """
        path_and_result = self.staircase or self.left_out
        assert path_and_result is not None
        result = path_and_result[1]
        return series.with_top(result, [self.left_out[1]]) if self.staircase and self.left_out else result

    @property
    def main_path(self) -> Path:
        """The file of the main result, by its name and that of its folder."""
        path_and_result = self.staircase or self.left_out
        assert path_and_result is not None
        return Path(short(path_and_result[0]))

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
        return {kind: short(each[0]) for kind, each in both.items() if each}

    def of(self, kind: Kind) -> list[File]:
        """Return the files of a kind that belong to this machine and workload, the newest first."""
        return [each for each in self.files if each.kind == kind.name]

    @property
    def raw(self) -> dict[str, Plain]:
        """The data of all files, by the name of each."""
        runs = [each for each in (self.staircase, self.left_out, *self.studies) if each]
        return {short(path): store.read(path) for path, _ in runs} | {
            each.name: each.data for each in self.files
        }


def short(path: Path) -> str:
    """Return a file's name with that of its folder: a page tells no path of whoever made it."""
    return plain(
        "/".join(path.parts[-2:] if len(path.parts) > 1 and path.parts[-2] != "/" else path.parts[-1:])
    )


def stem(result: Result) -> str:
    """Return the name of a result's page without its suffix."""
    mode = ranking.mode(result)
    more = [] if mode == modes.CUMULATIVE else [mode]
    names = [result.machine.name, result.workload["name"], result.ladder.name, *more]
    return "-".join(map(slug, names))


def around(staircase: Stored, others: Sequence[Stored], results: Path) -> Found:
    """Return what belongs to one run.

    Args:
        staircase: the run with its file.
        others: runs among which the leave-one-out run and the studies are looked for.
        results: the folder of results of other kinds.
    """
    left_out = series.left_out_of(staircase[1], [result for _, result in others])
    pair = next((each for each in others if each[1] is left_out), None) if left_out else None
    whose = f"measured on {plain(staircase[1].machine.gpu or staircase[1].machine.cpu)}"
    return Found(
        staircase, pair, whose, _beside(staircase[1], results), studies=_studies(staircase[1], others)
    )


def find(paths: Sequence[Path], results: Path, price: float | None = None) -> Found:
    """Return what a page of these files is made of; without any, of this machine's best result.

    A folder stands for its best run. Kinds of which no file is named are looked for below `results`.

    Raises:
        UserError: a file is no result, is of another machine or workload, or there are two runs of one mode.
    """
    runs, named = _read(paths)
    if runs or named:
        chosen = _paired(runs, named)
    else:
        chosen = nearest.find(results / RESULTS[0], None)
    main = chosen.staircase or chosen.left_out
    assert main is not None
    for each in named:
        if not _is_of(each.data, main[1], any_workload=_reading(each).any_workload):
            of = plain(main[1].machine.gpu or main[1].machine.cpu)
            raise UserError(f"{each.path}: of another machine or workload than {main[0]} ({of})")
    given = {each.kind for each in named}
    beside = [each for each in _beside(main[1], results) if each.kind not in given]
    studies = _named_studies(main, runs)
    modes_named = {ranking.mode(each[1]) for each in studies}
    stored = _studies(main[1], _stored_studies(main[1], results))
    studies += tuple(each for each in stored if ranking.mode(each[1]) not in modes_named)
    return Found(chosen.staircase, chosen.left_out, chosen.whose, (*named, *beside), price, studies)


def _read(paths: Sequence[Path]) -> tuple[list[Stored], list[File]]:
    """Return the runs and the other results that were named."""
    runs: list[Stored] = []
    named: list[File] = []
    for path in paths:
        if path.is_dir():
            runs.append(_best(path))
            continue
        data = store.read(path)
        kind = kinds.kind_of(data) if isinstance(data, dict) else None
        if kind in (None, RUN):
            runs.append((path, loading.load_run(path)))
        elif (reading := next((each for each in reads() if each.kind.name == kind), None)) is None:
            raise UserError(f"{path}: a result of {plain(kind)}, of which the report has no section")
        else:
            named.append(_file(path, reading))
    return runs, named


def _best(folder: Path) -> Stored:
    folders = {path.parent for path in folder.rglob("*.json")}
    every = [each for name in sorted(folders) for each in ranking.stored(name.parent, [name.name])]
    stairs = [each for each in every if ranking.mode(each[1]) == ranking.CUMULATIVE]
    if (found := ranking.newest(stairs)) is None:
        raise UserError(f"{folder}: no staircase here; `ladder run` makes one")
    return found


def _paired(runs: Sequence[Stored], named: Sequence[File]) -> nearest.Nearest:
    """Return the one staircase and the one leave-one-out run among the named files."""
    if not runs:
        raise UserError(
            f"{named[0].path}: name a result of `ladder run` beside it: the page is about a ladder"
        )
    by_mode: dict[str, list[Stored]] = {}
    for each in runs:
        by_mode.setdefault(ranking.mode(each[1]), []).append(each)
    for mode, several in by_mode.items():
        if len(several) > 1:
            files = ", ".join(str(path) for path, _ in several[:3])
            raise UserError(
                f"a page is about one ladder, and {len(several)} runs of mode {mode} are named: {files}"
            )
    stairs, left_out = (
        next(iter(by_mode.get(mode, [])), None) for mode in (modes.CUMULATIVE, modes.LEAVE_ONE_OUT)
    )
    if stairs and left_out:
        one, other = stairs[1], left_out[1]
        if series.key(one, modes.LEAVE_ONE_OUT) != series.key(other):
            raise UserError(
                f"{left_out[0]}: of another machine, software, workload or ladder than {stairs[0]}"
            )
    found = nearest.of_file((stairs or left_out or runs[0])[0])
    return nearest.Nearest(found.staircase, left_out or found.left_out, found.whose, found.here)


def _reading(file: File) -> Reads:
    return next(each for each in reads() if each.kind.name == file.kind)


def _beside(main: Result, results: Path) -> tuple[File, ...]:
    """Return the files of other kinds below a folder that belong to a run. Refused files are left out."""
    found: list[File] = []
    for reading in reads():
        for path in sorted((results / reading.folder).rglob("*.json")):
            try:
                file = _file(path, reading)
            except UserError:
                continue
            if _is_of(file.data, main, any_workload=reading.any_workload):
                found.append(file)
    return tuple(_newest_first(found))


def _studies(main: Result, runs: Iterable[Stored]) -> tuple[Stored, ...]:
    """Return the run of highest standing of each study of the machine and workload of a run."""
    own = [each for each in runs if _is_of(head(each[1]), main, any_workload=False)]
    best = (ranking.newest(e for e in own if ranking.mode(e[1]) == mode) for mode in modes.STUDIES)
    return tuple(each for each in best if each is not None)


def _stored_studies(main: Result, results: Path) -> list[Stored]:
    """Return the readable runs of studies on the machine of a run. Their files have the mode in their names."""
    folder, found = results / RESULTS[0] / main.machine.name, list[Stored]()
    for path in sorted(path for mode in modes.STUDIES for path in folder.glob(f"*-{mode}-*.json")):
        with contextlib.suppress(UserError):
            found.append((path, loading.load_run(path)))
    return found


def _named_studies(main: Stored, runs: Iterable[Stored]) -> tuple[Stored, ...]:
    """Return the studies among the named runs. Raises UserError if one is not of the machine and workload."""
    named = [each for each in runs if ranking.mode(each[1]) in modes.STUDIES]
    found = _studies(main[1], named)
    for each in named:
        if each not in found:
            raise UserError(f"{each[0]}: of another machine or workload than {main[0]}")
    return found


def _newest_first(files: Iterable[File]) -> list[File]:
    return sorted(files, key=lambda each: str(each.data.get("started") or ""), reverse=True)


def _file(path: Path, reading: Reads) -> File:
    """Return a file of a kind, checked as if a stranger had sent it. UserError."""
    data = loading.load_kind(path, reading.kind)
    marks = kinds.marks(data) if reading.kind.name in kinds.KINDS else []
    return File(path, reading.kind.name, data, tuple(map(plain, marks)))


def _is_of(data: Mapping[str, object], main: Result, *, any_workload: bool) -> bool:
    """Return whether a file is of the machine of a run and, unless any counts, of its workload."""
    machine, workload = data.get("machine"), data.get("workload")
    if not isinstance(machine, Mapping) or machine.get("name") != main.machine.name:
        return False
    if any_workload:
        return True
    mine = head(main)["workload"]
    return isinstance(workload, Mapping) and content.of_workload(workload) == content.of_workload(mine)
