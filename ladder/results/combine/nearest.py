"""The choice of the result that speaks for this machine: its own, else that of the same GPU, else of any GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.core.text import clean_line, fit_texts
from ladder.machine import system
from ladder.plan import content, modes
from ladder.results import loading, ranking, sources
from ladder.results.combine import series
from ladder.results.ranking import Stored
from ladder.results.run import Result

SAME = (
    "no result of this machine yet: this is of {} in another host, and a step's waiting belongs to the host"
)


@dataclass(frozen=True)
class Nearest:
    """A staircase, the leave-one-out run that goes with it, or that run alone, with their files.

    `whose` is a line that says on which machine they ran, `here` whether it is this one. `other_code` is the file of a
    leave-one-out run that measured other code than the staircase, if there is no better one.
    """

    staircase: Stored | None
    left_out: Stored | None
    whose: str
    here: bool
    other_code: Path | None = None


def of_file(path: Path) -> Nearest:
    """Return the result of a file, and the leave-one-out run beside it. Raises UserError."""
    result = loading.load_run(path)
    if (mode := ranking.mode(result)) in modes.BESIDE:
        how = "--recipe" if mode == modes.RECIPE else f"--mode {mode}"
        raise UserError(f"{path}: a run of {how}; name a staircase or a leave-one-out run")
    folder = path.resolve().parent
    whose = f"for {_name_machine(result)}, from the file that you named"
    here = any(_is_own(result, name) for name in ranking.machines_here())
    return _add_left_out((path, result), ranking.stored(folder.parent, [folder.name]), whose, here)


def find(folder: Path, workload: tuple[str, Plain] | None) -> Nearest:
    """Return the result below a folder that stands nearest to this machine, of a workload if one is given.

    Among results that stand equally near, a staircase of highest standing is chosen, from the baseline on if there is
    one. Of this machine it is the newest, of others the one with the most rungs.

    Raises:
        UserError: there is no result, or none of that workload; one line with the command that makes one.
    """
    names = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    read = [each for each in ranking.stored(folder, names) if ranking.mode(each[1]) not in modes.BESIDE]
    whole = {id(each) for each in sources.without_sources([result for _, result in read])}
    able = [each for each in read if id(each[1]) in whole and _list_timed(each)]
    of = command = ""
    if workload is not None:
        name, key = workload[0], content.of_workload(workload[1])
        of, command = f" of workload {clean_line(name)}", f" -w {clean_line(name)}"
        works = [(each, each[1].workload) for each in able]
        able = [each for each, work in works if work["name"] == name and content.of_workload(work) == key]
    if not able:
        raise UserError(f"no stored result{of}: `ladder run{command}` measures this machine")
    here = ranking.machines_here()
    for name in here:
        if own := [each for each in able if _is_own(each[1], name)]:
            chosen = max(own, key=lambda each: (_rank(each), each[1].started))
            whose = f"for this machine, {_name_machine(chosen[1])}, from its own results"
            return _add_left_out(chosen, able, whose, True)
    same = next(filter(None, ([each for each in able if each[1].machine.name == name] for name in here)), [])
    chosen = max(
        same or [each for each in able if each[1].machine.gpu] or able,
        key=lambda each: (_rank(each), len(_list_timed(each)), each[1].started),
    )
    whose = f"no result of this machine ({here[0]}) yet: this is advice for {_name_machine(chosen[1])}"
    return _add_left_out(chosen, able, SAME.format(_name_machine(chosen[1])) if same else whose, False)


def _rank(each: Stored) -> tuple[object, ...]:
    """Return how well a result answers, but for its rungs and time.

    A staircase from the baseline goes before others: a run of a ladder's last rungs says nothing of those below.
    """
    *standing, _ = ranking.standing(each[1])
    is_staircase = ranking.mode(each[1]) == modes.CUMULATIVE
    return is_staircase, *standing, _list_timed(each)[0] == "baseline"


def _list_timed(each: Stored) -> list[str]:
    return [rung.name for rung in each[1].rungs if rung.status == "ok"]


def _is_own(result: Result, name: str) -> bool:
    """Return whether a machine like this one, the host included, measured a result; `name` is one of its devices."""
    machine = result.machine
    host = (fit_texts(system.cpu_name()), system.usable_cores())
    return machine.name == name and (machine.cpu, machine.cores) == host


def _name_machine(result: Result) -> str:
    return clean_line(result.machine.gpu or result.machine.cpu)


def _add_left_out(chosen: Stored, others: list[Stored], whose: str, here: bool) -> Nearest:
    """Return the chosen result with the leave-one-out run that goes with it."""
    if ranking.mode(chosen[1]) != modes.CUMULATIVE:
        return Nearest(None, chosen, whose, here)
    runs = [result for _, result in others]
    same = series.left_out_of(chosen[1], runs)
    best = same or series.left_out_of(chosen[1], runs, any_code=True)
    file = next((path for path, result in others if result is best), None)
    if same is None or file is None:
        return Nearest(chosen, None, whose, here, file)
    return Nearest(chosen, (file, same), whose, here)
