"""What asv's result files say of the ladder: the time of every rung at every commit, on every machine.

A figure here is the median of one process' samples, which no verdict can rest on: it is drawn, and called `single run`.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ladder.base.text import number, plain
from ladder.plan import catalog, modes
from ladder.publish.validation import asv_checks
from ladder.report.view import Row, View

STEP = "rungs.Rung.samples_step_time"  # benches/rungs.py; parameters: workload, rung
SOFTWARE = ("torch", "triton", "cuda", "python")
_UNCOMMITTED = "tree"  # a series of the working tree with changes: nobody can look up what it measured


@dataclass(frozen=True)
class Point:
    """One machine at one commit with one set of libraries: milliseconds a step by rung."""

    machine: str
    facts: tuple[tuple[str, str], ...]  # asv's parameters: gpu, cpu, torch, ...
    commit: str
    date: int
    workload: str
    ms: tuple[tuple[str, float], ...]  # in the order of the ladder
    path: str  # of its file, under the folder of results

    @property
    def name(self) -> str:
        """The GPU's, where there is one."""
        facts = dict(self.facts)
        gpu = facts.get("gpu", "none")
        return gpu if gpu != "none" else facts.get("cpu") or self.machine

    @property
    def software(self) -> tuple[str, ...]:
        facts = dict(self.facts)
        return tuple(f"{name} {facts[name]}" for name in SOFTWARE if facts.get(name))


@dataclass(frozen=True)
class Step:
    """The highest rung that a commit has a time of."""

    commit: str
    rung: str
    ms: float
    software: tuple[str, ...]
    whole: bool = True  # not where an earlier commit has a higher rung: then this one's were not measured yet


def points(accepted: Path) -> list[Point]:
    """Every time of a rung in a folder of asv's results (valid ones: `ladder.publish.validation.asv_accepted`)."""
    from asv.results import Results

    found, height = [], _heights()
    for path in sorted(
        accepted.glob("*/*.json")
    ):  # asv's own way looks into our notes, and complains of them
        if asv_checks.kind_of(path) != "results":
            continue
        result = Results.load(str(path))
        facts = {key: plain(value) for key, value in result.params.items() if isinstance(value, str)}
        if STEP not in result.get_all_result_keys() or _UNCOMMITTED in facts or not facts.get("machine"):
            continue
        params = result.get_result_params(STEP)
        values = result.get_result_value(STEP, params)
        if len(params) != 2 or not isinstance(values, list):
            continue
        times: dict[str, dict[str, float]] = {}
        for (workload, rung), seconds in zip(itertools.product(*params), values, strict=False):
            if (seconds := number(seconds)) is not None:
                times.setdefault(_text(workload), {})[_text(rung)] = 1000 * seconds
        for workload, ms in times.items():
            ordered = tuple(sorted(ms.items(), key=lambda item: (height.get(item[0], -1), item[0])))
            known = tuple(sorted(facts.items()))
            place = path.relative_to(accepted).as_posix()
            head = (facts["machine"], known, result.commit_hash, result.date or 0)
            found.append(Point(*head, workload, ordered, place))
    return found


def history(found: Iterable[Point], revisions: Mapping[str, int]) -> dict[tuple[str, str], list[Step]]:
    """By (machine, workload): the highest rung of each commit on the branch, oldest first."""
    steps: dict[tuple[str, str], list[tuple[int, Step]]] = {}
    for point in found:
        if point.commit in revisions:
            rung, ms = point.ms[-1]
            step = Step(point.commit, rung, ms, point.software)
            steps.setdefault((point.machine, point.workload), []).append((revisions[point.commit], step))
    height = _heights()
    return {
        key: _in_order(steps[key], height)
        for key in sorted(steps, key=lambda key: (len(steps[key]) == 1, key))  # a picture first
    }


def _in_order(steps: list[tuple[int, Step]], height: Mapping[str, int]) -> list[Step]:
    """Oldest first; those that were measured in part are marked, by the order of the ladder as it is now."""
    reached: dict[tuple[str, ...], int] = {}
    ordered = []
    for _, step in sorted(steps, key=lambda each: (each[0], each[1].software)):
        at, most = height.get(step.rung, -1), reached.get(step.software, -1)
        reached[step.software] = max(at, most)
        ordered.append(replace(step, whole=at >= most))
    return ordered


def single_runs(
    found: Iterable[Point], paired: set[tuple[str, str]], rungs: list[str]
) -> list[tuple[Point, View]]:
    """Machines that only asv measured, as a ladder of ``rungs`` is shown: no interval, no verdict, no round.

    Args:
        found: what asv has.
        paired: (machine, workload) that the paired protocol has measured; they need no single run.
        rungs: names, from the lowest to the highest.
    """
    newest: dict[tuple[str, str], Point] = {}
    for point in found:
        key = (point.machine, point.workload)
        if key not in paired and any(name in rungs for name, _ in point.ms):
            if key not in newest or (point.date, point.software) > (newest[key].date, newest[key].software):
                newest[key] = point
    return [(newest[key], _view(newest[key], rungs)) for key in sorted(newest)]


def _text(value: str) -> str:
    """asv keeps parameters as Python would print them."""
    try:
        return plain(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return plain(value)


def _heights() -> dict[str, int]:
    """Where each rung stands: as in the ladder `full`; what has left it stands below."""
    return {step.name: place for place, step in enumerate(catalog.load_ladder("full").rungs)}


def _view(point: Point, rungs: list[str]) -> View:
    times = dict(point.ms)
    measured = [name for name in rungs if name in times]
    base, rows, before = times[measured[0]], [], None
    for name in rungs:
        ms = times.get(name)
        rows.append(_row(name, ms, before and ms and before / ms, ms and base / ms))
        before = ms or before
    facts = dict(point.facts)
    parts = [
        point.name,
        facts.get("gpu_memory", "").replace("none", ""),
        f"PyTorch {facts['torch']}" if facts.get("torch") else "",
        f"CUDA {facts['cuda']}" if facts.get("cuda") and facts.get("gpu", "none") != "none" else "",
    ]
    return View(
        machine=plain(", ".join(part for part in parts if part)),
        workload=point.workload,
        protocol=f"one process a rung, by asv: no interval and no verdict; commit {point.commit[:10]}",
        marks=(),
        remarks=(),
        reference="",
        memory="",
        title="",
        quick=False,
        mode=modes.CUMULATIVE,
        versus="vs previous",
        visits=len(measured),
        rejected=None,
        noise="",
        baseline=measured[0],
        rows=tuple(rows),
    )


def _row(name: str, ms: float | None, previous: float | None, total: float | None) -> Row:
    title = catalog.load_rung(name).title if name in catalog.rungs() else name
    status, reason = ("ok", "") if ms else ("n/a", "not measured here")
    nothing = dict.fromkeys(Row.__dataclass_fields__)
    texts = {"verdict": "", "advice": "", "receipts": "", "parity": "", "notes": ()}
    known = {"name": name, "title": title, "status": status, "reason": reason, "step_ms": ms}
    return Row(**{**nothing, **texts, **known, "previous": previous, "total": total})
