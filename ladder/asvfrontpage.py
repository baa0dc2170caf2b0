"""What asv's results say of each machine, for a page of ours: the rungs of its newest commit, in seconds a step.

A GPU that nobody has climbed with `ladder run` is known from `asv run` alone: one process a rung, no rounds, no noise
floor and so no verdict. Its figures are shown, marked `single run`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder import asvchecks, asvschema, catalog, results
from ladder.publishing import DIRTY

MARK = "single run"
TIME, MEMORY = "rungs.Rung.samples_step_time", "rungs.Rung.track_peak_memory"


@dataclass(frozen=True)
class Rung:
    """One rung in one process: the median of its samples and their quartiles, and the peak of memory."""

    name: str
    seconds: float
    quartiles: tuple[float, float] | None
    samples: int | None
    bytes: int | None


@dataclass(frozen=True)
class SingleRun:
    """The newest commit that a machine has a step time of, for one workload; rungs in the order of the ladder."""

    machine: dict[str, str]  # asv's facts: machine, os, arch, cpu, num_cpu, ram, gpu, gpu_memory
    workload: str
    commit: str
    date: int  # of the commit, milliseconds since 1970
    python: str
    libraries: dict[str, str]  # torch, triton, cuda
    path: str  # of the result file, under the folder that was read
    rungs: tuple[Rung, ...]
    marks: tuple[str, ...] = (MARK,)


def machines(folder: Path) -> list[SingleRun]:
    """One entry for each machine and workload in a folder that `ladder.asvfiles.accepted` made, by machine.

    Of several environments of the newest commit the one that was measured last counts. A machine without any step
    time has no entry.
    """
    newest: dict[tuple[str, str], tuple[tuple[Any, ...], SingleRun]] = {}
    for path in sorted(Path(folder).glob("*/*.json")):
        if asvchecks.kind_of(path) != "results":
            continue
        data = asvchecks.parse(path.read_bytes(), "results")
        for workload, rungs in _rungs(data).items():
            key, when = (data["params"]["machine"], workload), (data["date"], _measured_at(data), path.name)
            if key not in newest or when > newest[key][0]:
                newest[key] = when, _entry(data, workload, rungs, path.relative_to(folder).as_posix())
    return [run for _, (_, run) in sorted(newest.items())]


def _entry(data: dict[str, Any], workload: str, rungs: list[Rung], path: str) -> SingleRun:
    dirty = asvchecks.marks(data, "results")
    return SingleRun(
        machine={key: data["params"][key] for key in asvschema.FACTS},
        workload=workload,
        commit=data["commit_hash"],
        date=data["date"],
        python=data["python"],
        libraries={key: value for key, value in data["requirements"].items() if key in results.SOFTWARE},
        path=path,
        rungs=tuple(sorted(rungs, key=_place)),
        marks=(MARK, *([DIRTY] if dirty else [])),
    )


def _measured_at(data: dict[str, Any]) -> int:
    row = _columns(data["results"][TIME])
    return row["started_at"] or 0


def _columns(row: list[Any]) -> dict[str, Any]:
    return dict.fromkeys(asvschema.COLUMNS) | dict(zip(asvschema.COLUMNS, row, strict=False))


def _rungs(data: dict[str, Any]) -> dict[str, list[Rung]]:
    """The rungs that have a step time, by workload."""
    if TIME not in data["results"]:
        return {}
    row = data["results"][TIME]
    columns, memory = _columns(row), _peaks(data["results"].get(MEMORY))
    found: dict[str, list[Rung]] = {}
    for index, pair in asvchecks.combinations(row):
        seconds = asvchecks.number((columns["result"] or [None] * (index + 1))[index])
        if seconds is None or len(pair) != 2:
            continue
        low, high, repeat = (
            columns[key][index] if columns[key] else None
            for key in ("stats_q_25", "stats_q_75", "stats_repeat")
        )
        quartiles = None if low is None or high is None else (low, high)
        found.setdefault(pair[0], []).append(Rung(pair[1], seconds, quartiles, repeat, memory.get(pair)))
    return found


def _peaks(row: list[Any] | None) -> dict[tuple[str, ...], int]:
    if row is None or row[0] is None:
        return {}
    pairs = ((pair, asvchecks.number(row[0][index])) for index, pair in asvchecks.combinations(row))
    return {pair: int(value) for pair, value in pairs if value is not None}


def _place(rung: Rung) -> tuple[int, str]:
    order = [step.name for step in catalog.load_ladder("full").rungs]
    return (order.index(rung.name) if rung.name in order else len(order), rung.name)
