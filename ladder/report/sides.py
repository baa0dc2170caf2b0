"""The two sides of an explanation: rungs of one result, or of two files, as a user names them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.text import plain
from ladder.plan import catalog, content
from ladder.report.explain import Side
from ladder.results import loading, parts, ranking
from ladder.results.run import Result, RungResult
from stylegan_lite.config import suggestion

MOST = 3  # files that an error line names


@dataclass(frozen=True)
class Asked:
    """A side as a user names it: a rung, a file, or FILE:RUNG."""

    file: Path | None
    rung: str | None


def asked(name: str) -> Asked:
    """Return what an argument names. A file is told by its suffix .json or by a folder in its path."""
    file, _, rung = name.rpartition(":")
    if file.endswith(".json") and rung:
        return Asked(Path(file).expanduser(), rung)
    if name.endswith(".json") or len(Path(name).parts) > 1:
        return Asked(Path(name).expanduser(), None)
    return Asked(None, name)


def sides(
    first: str, second: str, file: Path | None, workload: str | None, folder: Path
) -> tuple[Side, Side]:
    """Return both sides with their parts.

    Args:
        first, second: two rungs, or two files.
        file: the result that holds two rungs; the best of `folder` without it.
        workload: of the results of the folder.
        folder: where results are stored.

    Raises:
        UserError: an unknown rung, a file that is no result, a rung without a profile, two sides that are the same.
    """
    pair = asked(first), asked(second)
    if (pair[0].file is None) != (pair[1].file is None):
        raise UserError("name two rungs, or two files: a rung of a file is FILE:RUNG")
    if pair[0] == pair[1]:
        raise UserError(f"{first} is named twice: there is nothing to explain")
    if pair[0].file and (file or workload):
        raise UserError("two files are named: leave out FILE and --workload")
    if file and workload:
        raise UserError("FILE has its workload: leave out --workload")
    loaded = {path: loading.load_run(path) for path in (file, *(each.file for each in pair)) if path}
    if not loaded:
        path, result = _best([each.rung or "" for each in pair], workload, folder)
        file = Path(_short(path))
        loaded = {file: result}
    named = []
    for each in pair:
        path = each.file or file
        assert path is not None
        named.append((path, loaded[path], _rung(path, loaded[path], each.rung)))
    before, after = (_side(*each, folder) for each in named)
    return before, after


def _side(path: Path, result: Result, rung: RungResult, folder: Path) -> Side:
    """Return a side with its parts. UserError if the rung has no profile."""
    if (found := parts.parts_of(rung)) is None:
        raise UserError(_no_profile(path, result, rung, folder))
    return Side(path, result, rung, found)


def _rung(path: Path, result: Result, name: str | None) -> RungResult:
    """Return the rung of that name, or the top without a name. UserError if the rung has no number."""
    timed = [rung for rung in result.rungs if rung.status == "ok"]
    if name is None:
        if not timed:
            raise UserError(f"{path}: none of its rungs has a number")
        return timed[-1]
    found = next((rung for rung in result.rungs if rung.name == name), None)
    if found is None:
        names = [rung.name for rung in result.rungs]
        raise UserError(f"{path}: no rung {name!r}{suggestion(name, names)}")
    if found.status != "ok":
        raise UserError(f"{path}: rung {name} has no number ({found.reason or found.status})")
    return found


def _best(names: list[str], workload: str | None, folder: Path) -> ranking.Stored:
    """Return the result that `ladder report` would choose among those with both rungs and their profiles.

    A result of this machine stands before the others. Without any profile the best result with both rungs is returned.
    """
    fields = catalog.load_workload(workload)[1] if workload else None
    known = [
        (path, result)
        for path, result in _stored(folder)
        if fields is None or content.of_workload(result.workload) == content.of_workload(fields)
    ]
    if not known:
        of = f" of workload {workload}" if workload else ""
        raise UserError(f"{_short(folder)}: no results{of} here; `ladder run` makes one")
    for name in names:
        rungs = dict.fromkeys(rung.name for _, result in known for rung in result.rungs)
        if name not in rungs:
            raise UserError(f"no result here has a rung {name!r}{suggestion(name, rungs)}")
    both = [each for each in known if all(ranking.rung_of(each[1], name) for name in names)]
    if not both:
        raise UserError(f"no result here has a number for both {' and '.join(names)}; `ladder run` makes one")
    with_parts = [each for each in both if all(_has_parts(each[1], name) for name in names)]
    here = ranking.machines_here()

    def standing(each: ranking.Stored) -> tuple[object, ...]:
        result = each[1]
        staircase = ranking.mode(result) == ranking.CUMULATIVE
        return (result.machine.name in here, staircase, *ranking.standing(result))

    return max(with_parts or both, key=standing)


def _has_parts(result: Result, name: str) -> bool:
    rung = ranking.rung_of(result, name)
    return rung is not None and parts.parts_of(rung) is not None


def _stored(folder: Path) -> Iterator[ranking.Stored]:
    """Yield the readable results of all machines."""
    yield from ranking.stored(folder, sorted(each.name for each in folder.glob("*") if each.is_dir()))


def _no_profile(path: Path, result: Result, rung: RungResult, folder: Path) -> str:
    """Return why a rung has no parts, which files have some, and how to make them."""
    cpu = result.machine.device == "cpu"
    why = (
        "a CPU's run has none, only kernels of a GPU are profiled" if cpu else "its run stored none that fits"
    )
    if void := next((each.gpu_void for each in rung.rounds if each.profiled and each.gpu_void), None):
        why = f"it is of a process whose GPU time is void ({plain(void)})"
    have = (file for file, other in _stored(folder) if any(map(parts.parts_of, other.rungs)))
    names = [_short(file) for file in itertools.islice(have, MOST)]
    others = f"; files with one: {', '.join(names)}" if names else ""
    return f"{path}: rung {rung.name} has no profile: {why}{others}; `ladder run` on a GPU stores it"


def _short(path: Path) -> str:
    return os.path.relpath(path)
