"""The series that results belong to: a newer torch, CUDA, cuDNN or Triton begins a new one.

A series is one machine, software, workload (by its fields), ladder and mode. Quick runs are apart, and so are those of
a simulated smaller card. `ladder.results.ranking` says which result is shown of each series. A rung's gain at the top
is shown beside a staircase of the same series and code.

The result nearest to this machine speaks for it: its own, else that of the same GPU, else of any GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.core.text import clean_line, fit_texts
from ladder.machine import system
from ladder.plan import content, modes
from ladder.results import code_digest, loading, ranking, sources
from ladder.results import store as results
from ladder.results.combine import merging
from ladder.results.file import Header
from ladder.results.ranking import Stored, top_gains
from ladder.results.run import Result


def key(result: Result, mode: str | None = None) -> tuple[Any, ...]:
    """Return a key that is equal for two results of one series; that of another `mode` if it is given.

    A workload counts by its fields, a user's ladder by its content. Another one of the same name is another series.
    """
    protocol, ladder = result.protocol, result.ladder
    return (
        *(result.machine.name, result.workload["name"], ladder.name, mode or protocol.mode, protocol.quick),
        *(protocol.gpu_memory_limit_gb, content.of_workload(result.workload), ladder.digest),
        *(getattr(result.machine, name) for name in results.SERIES),
    )


def collect(paths: list[Path]) -> tuple[list[Result], list[str]]:
    """Read results: files as they are named; of a folder the best of each series, merged before their sources.

    What other commands wrote into a folder, or asv, is left out. A cumulative result gets the gains at the top
    ("at_top") of the leave-one-out result that goes with it; for a named file that is looked for beside it.

    Returns:
        (results, refused): of a folder's files that cannot be read, one line each.

    Raises:
        UserError: a named file is not a result, or there is none at all.
    """
    chosen: list[Result] = []
    others: list[Result] = []
    refused: list[str] = []
    elsewhere: list[str] = []  # of other commands
    for path in paths:
        if not path.is_dir():
            chosen.append(loading.load_run(path))
            others += readable(path.parent)
            continue
        read = []
        for file in sorted(path.rglob("*.json")):
            is_asvs = any((folder / "benchmarks.json").is_file() for folder in [*file.parents][:3])
            try:
                read += [] if is_asvs else [loading.load_run(file)]
            except UserError as error:
                (elsewhere if isinstance(error, loading.OtherKind) else refused).append(str(error))
        best: dict[tuple[Any, ...], Result] = {}
        for result in sources.without_sources(read):
            others.append(result)
            best[key(result)] = max(best.get(key(result), result), result, key=ranking.rank)
        chosen += best.values()
    if not chosen:
        where = ", ".join(str(path) for path in paths)
        reasons = [*refused, *elsewhere, f"{where}: no results here; `ladder run` makes one"]
        raise UserError(reasons[0])
    return [with_top(result, [*chosen, *others]) for result in chosen], refused


def of_this_machine(found: list[Result]) -> tuple[list[Result], list[str]]:
    """Pick the newest result of this machine among the best of each series; of another machine if it has none.

    A complete staircase of enough rounds stands before others, however new they are.

    Returns:
        (that result alone, lines that say whose it is and how many others there are).
    """
    near = list_nearest([(Path(), each) for each in found])
    _, best = max(
        near.files, key=lambda each: (each[1].protocol.mode == modes.CUMULATIVE, *ranking.standing(each[1]))
    )
    lines = [] if near.here else [near.describe(best)]
    lines += [f"{len(found) - 1} more results: `ladder report --all`"] if len(found) > 1 else []
    return [best], [*map(clean_line, lines)]


def with_top(result: Result, others: list[Result]) -> Result:
    """Return a cumulative result with the gains at the top of the leave-one-out result that goes with it.

    A result of another mode is returned as it is.
    """
    chosen = left_out_of(result, others)
    return result if chosen is None else replace(result, at_top=top_gains(chosen))


def left_out_of(result: Result, others: list[Result], any_code: bool = False) -> Result | None:
    """Return the best leave-one-out result among `others` that goes with a cumulative result.

    It is of the same series, measured code (unless `any_code`) and workload, or it would be advice on another program.
    Returns None if there is none, or if `result` is of another mode.
    """
    if result.protocol.mode != modes.CUMULATIVE:
        return None
    series = key(result, modes.LEAVE_ONE_OUT)
    same = [
        other
        for other in others
        if key(other) == series
        and not merging.list_work_differences(other, result)
        and (any_code or code_digest.is_same(other, result))
    ]
    return max(same, key=ranking.rank, default=None)


def readable(folder: Path) -> list[Result]:
    """Return the results in one folder; other files are left out."""
    return [result for _, result in ranking.stored(folder.parent, [folder.name])]


# --- nearest to this machine -----------------------------------------------------------------------------------------

H = TypeVar("H", bound=Header)


@dataclass(frozen=True)
class Near(Generic[H]):
    """Files that stand equally near to this machine. `here`: they are its own. `line` has a place for their device."""

    files: list[tuple[Path, H]]
    here: bool
    line: str

    def describe(self, header: Header) -> str:
        """Return the line that says whose a file is."""
        return self.line.format(_name_machine(header))


def list_nearest(files: Sequence[tuple[Path, H]]) -> Near[H]:
    """Return the files of this machine, else those of its GPU in another host, else of any GPU, else of any machine."""
    here = ranking.machines_here()
    for name in here:
        if own := [each for each in files if _is_own(each[1], name)]:
            return Near(own, True, "for this machine, {}, from its own results")
    for name in here:
        if same := [each for each in files if each[1].machine.name == name]:
            line = "no result of this machine yet: this is of {} in another host"
            return Near(same, False, f"{line}, and a step's waiting belongs to the host")
    others = [each for each in files if each[1].machine.gpu] or [*files]
    return Near(others, False, f"no result of this machine ({here[0]}) yet: this is of {{}}")


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


def read_nearest(path: Path) -> Nearest:
    """Return the result of a file, and the leave-one-out run beside it. Raises UserError."""
    result = loading.load_run(path)
    if (mode := ranking.mode(result)) in modes.BESIDE:
        how = "--recipe" if mode == modes.RECIPE else f"--mode {mode}"
        raise UserError(f"{path}: a run of {how}; name a staircase or a leave-one-out run")
    folder = path.resolve().parent
    whose = f"for {_name_machine(result)}, from the file that you named"
    here = any(_is_own(result, name) for name in ranking.machines_here())
    return _add_left_out((path, result), ranking.stored(folder.parent, [folder.name]), whose, here)


def find_nearest(
    folder: Path, workload: tuple[str, Plain] | None, suits: Callable[[Result], bool] | None = None
) -> Nearest:
    """Return the result below a folder that stands nearest to this machine, of a workload if one is given.

    Among results that stand equally near, a staircase of highest standing is chosen, from the baseline on if there is
    one. Of this machine it is the newest, of others the one with the most rungs. `suits` says whether a result can
    be used; without it, runs of which each entry stands beside the first are left out.

    Raises:
        UserError: there is no result, or none of that workload; one line with the command that makes one.
    """
    names = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    suits = suits or (lambda result: ranking.mode(result) not in modes.BESIDE)
    read = [each for each in ranking.stored(folder, names) if suits(each[1])]
    whole = {id(each) for each in sources.without_sources([result for _, result in read])}
    able = [each for each in read if id(each[1]) in whole and _list_timed(each)]
    of = command = ""
    if workload is not None:
        name, fields = workload[0], content.of_workload(workload[1])
        of, command = f" of workload {clean_line(name)}", f" -w {clean_line(name)}"
        works = [(each, each[1].workload) for each in able]
        if pair := workload[1].get("pair"):
            of, command = (
                f" of the pair {clean_line(name)} with this source and these settings",
                " --model FILE",
            )
            able = [each for each, work in works if work.get("pair") == pair]
        else:
            able = [
                each for each, work in works if work["name"] == name and content.of_workload(work) == fields
            ]
    if not able:
        raise UserError(f"no stored result{of}: `ladder run{command}` measures this machine")
    near = list_nearest(able)
    chosen = max(
        near.files,
        key=lambda each: (_rank(each), 0 if near.here else len(_list_timed(each)), each[1].started),
    )
    return _add_left_out(chosen, able, near.describe(chosen[1]), near.here)


def _rank(each: Stored) -> tuple[object, ...]:
    """Return how well a result answers, but for its rungs and time.

    A staircase from the baseline goes before others: a run of a ladder's last rungs says nothing of those below.
    """
    *standing, _ = ranking.standing(each[1])
    is_staircase = ranking.mode(each[1]) == modes.CUMULATIVE
    return is_staircase, *standing, _list_timed(each)[0] == "baseline"


def _list_timed(each: Stored) -> list[str]:
    return [rung.name for rung in each[1].rungs if rung.status == "ok"]


def _is_own(file: Header, name: str) -> bool:
    """Return whether a machine like this one, the host included, measured a file; `name` is one of its devices."""
    machine = file.machine
    host = (fit_texts(system.cpu_name()), system.usable_cores())
    return machine.name == name and (machine.cpu, machine.cores) == host


def _name_machine(file: Header) -> str:
    return clean_line(file.machine.gpu or file.machine.cpu)


def _add_left_out(chosen: Stored, others: list[Stored], whose: str, here: bool) -> Nearest:
    """Return the chosen result with the leave-one-out run that goes with it."""
    if ranking.mode(chosen[1]) != modes.CUMULATIVE:
        return Nearest(None, chosen, whose, here)
    runs = [result for _, result in others]
    same = left_out_of(chosen[1], runs)
    best = same or left_out_of(chosen[1], runs, any_code=True)
    file = next((path for path, result in others if result is best), None)
    if same is None or file is None:
        return Nearest(chosen, None, whose, here, file)
    return Nearest(chosen, (file, same), whose, here)
