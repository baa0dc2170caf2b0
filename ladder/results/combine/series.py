"""The series that results belong to: a newer torch, CUDA, cuDNN or Triton begins a new one.

A series is one machine, software, workload (by its fields), ladder and mode. Quick runs are apart, and so are those of
a simulated smaller card. `ladder.results.ranking` says which result is shown of each series. A rung's gain at the top
is shown beside a staircase of the same series and code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.core.errors import UserError
from ladder.core.text import clean_line
from ladder.plan import content, modes
from ladder.results import code_digest, loading, ranking, sources
from ladder.results import store as results
from ladder.results.combine import merging
from ladder.results.ranking import top_gains
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
    here = ranking.machines_here()
    mine = [result for result in found if result.machine.name in here]
    best = max(
        mine or found, key=lambda each: (each.protocol.mode == modes.CUMULATIVE, *ranking.standing(each))
    )
    lines = [] if mine else [f"no result of this machine ({here[0]}) yet: this is {best.machine.name}'s"]
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
