"""The results that git has and that documents may quote, by path and by what they measure.

A document quotes no stopped run, and none of fewer than three generations: here those files are absent.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder.core import git
from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.plan import modes
from ladder.publish import gallery
from ladder.results import loading, ranking
from ladder.results import store as results
from ladder.results.run import Result
from ladder.studies import frame, scale
from ladder.studies.frame import StudyFile

Key = tuple[str, str, str, str]  # machine, workload, ladder, mode


class Committed:
    """The committed results below a folder. A path of a file begins below `results/`."""

    def __init__(self, root: Path) -> None:
        self.root = root / "results"

    def list_files(self, kind: str, pattern: str = "*") -> list[tuple[str, StudyFile[Any, Any, Any]]]:
        """Return the files of a study that may be quoted, with their paths; the pattern is of names without suffix."""
        study, files = frame.load_studies()[kind], []
        for path in sorted(self.root.glob(f"{study.folder}/{pattern}.json")):
            data = results.read(path)
            if data.get("kind") == kind and not find_shortfall(data):
                files.append((path.relative_to(self.root).as_posix(), frame.decode_file(study, data)))
        return files

    @functools.cached_property
    def _runs(self) -> list[tuple[str, Result]]:
        paths = sorted(self.root.glob("ladder/*/*.json"))
        return [(path.relative_to(self.root).as_posix(), loading.load_run(path)) for path in paths]

    @functools.cached_property
    def _whole(self) -> dict[str, Result]:
        """The runs that ended by themselves and have three generations of each rung, by path."""
        return {
            name: run
            for name, run in self._runs
            if run.complete and ranking.fewest_rounds(run) >= results.FEWEST_ROUNDS
        }

    @functools.cached_property
    def _drawn(self) -> set[tuple[str, str]]:
        """The runs that `results/charts` shows. A stopped one may be among them."""
        return set(map(_identify, gallery.choose_best(run for _, run in self._runs)))

    @functools.cached_property
    def best(self) -> dict[Key, Result]:
        """Return the best result of each (machine, workload, ladder, mode)."""
        best = gallery.choose_best(self._whole.values())
        return {(*map(str, _name(run)), ranking.mode(run)): run for run in best}  # type: ignore[misc]

    @property
    def machines(self) -> list[str]:
        """Return the machines with a GPU that climbed a ladder, sorted."""
        return sorted({run.machine.name for run in self.best.values() if run.machine.gpu})

    def find_ladder(self, name: str) -> Result:
        """Return the best run of MACHINE/WORKLOAD/LADDER[/MODE]. Raises UserError."""
        key = tuple([*name.split("/"), modes.CUMULATIVE][:4])
        if key not in self.best:
            raise UserError(f"no committed result of {name} may be quoted (MACHINE/WORKLOAD/LADDER[/MODE])")
        return self.best[key]  # type: ignore[index]

    def find_top(self, machine: str, workload: str, ladder: str) -> Result | None:
        """Return the staircase whose highest rung is the top of a ladder, a whole one first; None if there is none."""
        stairs = (run for run in self._whole.values() if ranking.mode(run) == modes.CUMULATIVE)
        return gallery.find_top(run for run in stairs if _name(run) == (machine, workload, ladder))

    def find_path(self, result: Result) -> str:
        """Return the path of a result of `ladder run`."""
        return next(name for name, run in self._whole.items() if _identify(run) == _identify(result))

    def find_chart(self, result: Result) -> str:
        """Return the path of a result's table in `results/charts`, or of its samples if another run is shown there."""
        is_drawn = _identify(result) in self._drawn
        return f"charts/{gallery.name_files(result)}.md" if is_drawn else self.find_path(result)


def _name(result: Result) -> tuple[str, str, str]:
    return result.machine.name, result.workload["name"], result.ladder.name


def _identify(result: Result) -> tuple[str, str]:
    return result.machine.name, result.started


def find_shortfall(data: Plain) -> str | None:
    """Return why no document may quote a result of another command than `ladder run`, or None."""
    few = f"has fewer than {results.FEWEST_ROUNDS} generations"
    study = frame.load_studies().get(str(data.get("kind")))
    if study is not None and "observed" in data:  # an archived file has none
        file = frame.decode_file(study, data)
        is_complete, is_enough = file.is_complete, results.few() not in study.list_cautions(file)
        if study is scale.STUDY:  # points are judged one by one, whole ones of a stopped run too
            points = scale.record.derive_points(file)
            is_complete = is_enough = any(
                each.runs and not scale.record.is_short(each, points) for each in points
            )
    else:
        is_complete = data.get("complete") is not False
        is_enough = (data.get("protocol") or {}).get("rounds", results.FEWEST_ROUNDS) >= results.FEWEST_ROUNDS
    return "was stopped" if not is_complete else None if is_enough else few


@contextmanager
def check_out(root: Path) -> Iterator[Committed]:
    """Yield the results that git has staged, whatever the checkout holds. Raises UserError where git cannot say."""
    names = git.read_output(root, "ls-files", "-z", "--", "results")
    with tempfile.TemporaryDirectory(prefix="ladder-committed-") as folder:
        git.read_output(root, *git.LF, "checkout-index", "-z", "--stdin", f"--prefix={folder}/", stdin=names)
        yield Committed(Path(folder))
