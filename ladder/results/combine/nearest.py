"""The choice of the result that speaks for this machine: its own, else that of the same GPU, else of any GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.plain import Plain
from ladder.base.text import fit, plain
from ladder.machine import system
from ladder.plan import content, modes
from ladder.results import loading, ranking, sources
from ladder.results.combine import series
from ladder.results.ranking import Stored
from ladder.results.run import Result


@dataclass(frozen=True)
class Nearest:
    """A staircase, the leave-one-out run that goes with it, or that run alone, with their files.

    `whose` is a line that says on which machine they ran. `other_code` is the file of a leave-one-out run that measured
    other code than the staircase, if there is no better one.
    """

    staircase: Stored | None
    left_out: Stored | None
    whose: str
    here: bool  # whether this machine measured them
    other_code: Path | None = None


def of_file(path: Path) -> Nearest:
    """Return the result of a file, and the leave-one-out run beside it. Raises UserError."""
    result = loading.load_run(path)
    if (mode := ranking.mode(result)) in modes.BESIDE:
        how = "--recipe" if mode == modes.RECIPE else f"--mode {mode}"
        raise UserError(f"{path}: a run of {how}; name a staircase or a leave-one-out run")
    folder = path.resolve().parent
    beside = ranking.stored(folder.parent, [folder.name])
    here = any(_is_own(result, name) for name in ranking.machines_here())
    return _with_left_out(
        (path, result), beside, f"for {_machine(result)}, from the file that you named", here
    )


def find(folder: Path, workload: tuple[str, Plain] | None) -> Nearest:
    """Return the result below a folder that stands nearest to this machine, of a workload if one is given.

    Among results that stand equally near, a staircase of highest standing is chosen, from the baseline on if there is
    one. Of this machine it is the newest, of others the one with the most rungs.

    Raises:
        UserError: there is no result, or none of that workload; one line with the command that makes one.
    """
    names = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    read = [each for each in ranking.stored(folder, names) if ranking.mode(each[1]) not in modes.BESIDE]
    kept = {id(each) for each in sources.without_sources([result for _, result in read])}
    found = [each for each in read if id(each[1]) in kept]
    if workload is not None:
        found = [each for each in found if _is_of(each[1], *workload)]
    found = [each for each in found if any(rung.status == "ok" for rung in each[1].rungs)]
    if not found:
        of = f" of workload {plain(workload[0])}" if workload else ""
        command = f"ladder run -w {plain(workload[0])}" if workload else "ladder run"
        raise UserError(f"no stored result{of}: `{command}` measures this machine")
    here = ranking.machines_here()
    own = [each for name in here for each in found if _is_own(each[1], name)]
    same = [each for name in here for each in found if each[1].machine.name == name]
    if own or same:
        near = [each for each in own or same if each[1].machine.name == (own or same)[0][1].machine.name]
        chosen = _best(near) if own else _longest(near)
        return _with_left_out(chosen, found, (OWN if own else SAME).format(_machine(chosen[1])), bool(own))
    chosen = _longest([each for each in found if each[1].machine.gpu] or found)
    said = f"no result of this machine ({here[0]}) yet: this is advice for {_machine(chosen[1])}"
    return _with_left_out(chosen, found, said, here=False)


OWN = "for this machine, {}, from its own results"
SAME = (
    "no result of this machine yet: this is of {} in another host, and a step's waiting belongs to the host"
)


def _best(near: list[Stored]) -> Stored:
    """Return the newest staircase of highest standing."""
    return max(near, key=lambda each: (_rank(each), each[1].started))


def _longest(near: list[Stored]) -> Stored:
    """Return the staircase with the most timed rungs, among those of equal standing but for their time."""
    return max(near, key=lambda each: (_rank(each), len(_timed(each)), each[1].started))


def _rank(each: Stored) -> tuple[object, ...]:
    """Return how well a result answers, but for its rungs and time.

    A staircase from the baseline goes before others: a run of a ladder's last rungs says nothing of those below.
    """
    *standing, _ = ranking.standing(each[1])
    return _is_staircase(each[1]), *standing, _timed(each)[0] == "baseline"


def _timed(each: Stored) -> list[str]:
    return [rung.name for rung in each[1].rungs if rung.status == "ok"]


def _is_own(result: Result, name: str) -> bool:
    """Return whether a machine like this one, the host included, measured a result; `name` is one of its devices."""
    machine = result.machine
    host = (fit(system.cpu_name()), system.usable_cores())
    return machine.name == name and (machine.cpu, machine.cores) == host


def _machine(result: Result) -> str:
    return plain(result.machine.gpu or result.machine.cpu)


def _is_staircase(result: Result) -> bool:
    return ranking.mode(result) == modes.CUMULATIVE


def _is_of(result: Result, name: str, fields: Plain) -> bool:
    same = content.of_workload(result.workload) == content.of_workload(fields)
    return same and result.workload["name"] == name


def _with_left_out(chosen: Stored, others: list[Stored], whose: str, here: bool) -> Nearest:
    if not _is_staircase(chosen[1]):
        return Nearest(None, chosen, whose, here)
    runs = [result for _, result in others]
    files = {id(result): path for path, result in others}
    if (left_out := series.left_out_of(chosen[1], runs)) is not None:
        return Nearest(chosen, (files[id(left_out)], left_out), whose, here)
    other = series.left_out_of(chosen[1], runs, any_code=True)
    return Nearest(chosen, None, whose, here, None if other is None else files[id(other)])
