"""The results that git has and that documents may quote, by path and by what they measure.

A document quotes no stopped run, and none of fewer than three generations: here those files are absent.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ladder.base import git
from ladder.base.errors import UserError
from ladder.core.records import read_record
from ladder.plan import modes
from ladder.publish import gallery
from ladder.results import loading, ranking
from ladder.results import store as results
from ladder.results.run import Result
from ladder.results.types import Plain
from ladder.studies import frame, scale
from ladder.training.canary_file import KIND as CANARY
from ladder.training.canary_file import Canary

Key = tuple[str, str, str, str]


class Committed:
    """The committed results below a folder. A path of a file begins below `results/`."""

    def __init__(self, root: Path) -> None:
        self.root = root / "results"
        self._charts: dict[tuple[str, str, str], str] = {}

    def read(self, name: str) -> Plain:
        """Return the data of one result file.

        Raises:
            UserError: the file is missing, holds no result, or must not be quoted.
        """
        if not (path := self.root / name).is_file():
            raise UserError(f"results/{name} is not among the committed results")
        if reason := shortfall(data := results.read(path)):
            raise UserError(f"results/{name} {reason}: no document may quote it")
        return data

    def read_asv(self, name: str) -> Plain:
        """Return a result file of asv's, which marks a missing number with NaN."""
        return json.loads((self.root / name).read_text(encoding="utf-8"))

    def names(self, pattern: str) -> list[str]:
        """Return the paths of the files that match and that may be quoted, sorted."""
        names = self._names(pattern)
        if pattern.startswith("ladder/"):
            return [name for name in names if name in self._ladders]
        return [name for name in names if pattern.startswith("asv/") or not shortfall(self._data(name))]

    def _names(self, pattern: str) -> list[str]:
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.glob(pattern))

    def _data(self, name: str) -> Plain:
        return results.read(self.root / name) if name.endswith(".json") else {}

    @functools.cached_property
    def _all(self) -> dict[str, Result]:
        return {name: loading.load_run(self.root / name) for name in self._names("ladder/*/*.json")}

    @functools.cached_property
    def _ladders(self) -> dict[str, Result]:
        return {name: result for name, result in self._all.items() if is_whole(result)}

    @functools.cached_property
    def _drawn(self) -> set[tuple[str, str, str]]:
        """The results that `results/charts` shows. A stopped run may be among them."""
        return set(map(_shown_as, gallery.choose_best(list(self._all.values()))))

    @functools.cached_property
    def machines(self) -> list[str]:
        """Return the machines with a GPU that climbed a ladder, sorted."""
        return sorted({each.machine.name for each in self._ladders.values() if each.machine.gpu})

    @functools.cached_property
    def best(self) -> dict[Key, Result]:
        """Return the best result of each (machine, workload, ladder, mode), as in `results/charts`."""
        return {self._key(each): each for each in gallery.choose_best(list(self._ladders.values()))}

    def ladder(self, name: str) -> Result:
        """Return a result of `ladder run`: the file NAME.json, or the best of MACHINE/WORKLOAD/LADDER[/MODE].

        Raises:
            UserError: no committed result has that name.
        """
        if name.endswith(".json"):
            if name not in self._ladders:
                raise UserError(f"results/{name} is not among the committed results that may be quoted")
            return self._ladders[name]
        key = tuple([*name.split("/"), "cumulative"][:4])
        if key not in self.best:
            raise UserError(
                f"no committed result of {name} that may be quoted (MACHINE/WORKLOAD/LADDER[/MODE])"
            )
        return self.best[key]  # type: ignore[index]

    def top(self, machine: str, workload: str, ladder: str) -> Result | None:
        """Return the staircase whose highest rung is the top of a ladder, a whole one first; None if there is none."""
        wanted = (machine, workload, ladder, modes.CUMULATIVE)
        runs = gallery.prefer_article(self._ladders.values())
        return gallery.find_top(each for each in runs if self._key(each) == wanted)

    def path_of(self, result: Result) -> str:
        """Return the path of a result of `ladder run`."""
        return next(name for name, each in self._ladders.items() if _identity(each) == _identity(result))

    def is_best(self, result: Result) -> bool:
        """Return whether `results/charts` shows this result."""
        return _shown_as(result) in self._drawn

    def chart(self, result: Result) -> str:
        """Return the path of a result's table in `results/charts`, or of its samples if another run is shown there."""
        key = _shown_as(result)
        if key not in self._charts:
            self._charts[key] = (
                f"charts/{gallery.name_files(result)}.md" if self.is_best(result) else self.path_of(result)
            )
        return self._charts[key]

    @staticmethod
    def _key(result: Result) -> Key:
        """Return (machine, workload, ladder, mode)."""
        names = result.machine.name, result.workload["name"], gallery.find_ladder(result)
        return (*names, ranking.mode(result))


def _identity(result: Result) -> tuple[str, str]:
    return result.machine.name, result.started


def _shown_as(result: Result) -> tuple[str, str, str]:
    """Return the identity of a result and its ladder: a run of `full` may also show the article's."""
    return *_identity(result), gallery.find_ladder(result)


def is_whole(result: Result) -> bool:
    """Return whether a run of `ladder run` ended by itself and has three generations of each rung."""
    return result.complete and ranking.fewest_rounds(result) >= results.FEWEST_ROUNDS


def shortfall(data: Plain) -> str | None:
    """Return why no document may quote a result of another command, or None."""
    if data.get("kind") == scale.STUDY.kind:  # points are judged one by one, whole ones of a stopped run too
        points = scale.STUDY.derive(frame.decode_file(scale.STUDY, data)).points
        enough = any(point.runs and not scale.record.is_short(point, points) for point in points)
        return None if enough else f"has fewer than {results.FEWEST_ROUNDS} generations of each point"
    if data.get("kind") == CANARY.name:
        return None if read_record(Canary, data).is_complete else "was stopped"
    few = f"has fewer than {results.FEWEST_ROUNDS} generations"
    study = frame.load_studies().get(str(data.get("kind")))
    if study is not None and "observed" in data:  # an archived file has none
        file = frame.decode_file(study, data)
        if not file.is_complete:
            return "was stopped"
        return few if results.few() in study.list_cautions(file) else None
    if data.get("complete") is False:
        return "was stopped"
    parts = [*data.get("programs", ()), *data.get("questions", ())]
    seen = [part["rounds"] for part in (*parts, data.get("protocol") or {}) if "rounds" in part]
    counts = [len(each) if isinstance(each, list) else each for each in seen]
    if counts and min(counts) < results.FEWEST_ROUNDS:
        return few
    return None


@contextmanager
def checked_out(root: Path) -> Iterator[Committed]:
    """Yield the results that git has staged, whatever the checkout holds. Raises UserError where git cannot say."""
    names = git.read(root, "ls-files", "-z", "--", "results")
    with tempfile.TemporaryDirectory(prefix="ladder-committed-") as folder:
        git.read(root, *git.LF, "checkout-index", "-z", "--stdin", f"--prefix={folder}/", stdin=names)
        yield Committed(Path(folder))
