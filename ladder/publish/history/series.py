"""The reader of asv's result files: every benchmark as a series over commits, and the rungs of each commit.

A figure here is the median of one process' samples. No verdict can rest on it: it is drawn, and called `single run`.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ladder.base.text import plain, slug
from ladder.plan import catalog
from ladder.publish.history import notes as asvnotes
from ladder.publish.validation import asv_files
from ladder.report.view import Row, View

STEP = "rungs.Rung.samples_step_time"  # benches/rungs.py; parameters: workload, rung
GPU_STEP = "rungs.Rung.samples_gpu_time"
# A result of asv has the first four. The notes have cuDNN and the driver's major version, which GPU time goes by.
SOFTWARE = ("torch", "triton", "cuda", "python", "cudnn", "driver")
# With the GPU all that GPU time depends on, whatever the host.
GPU_SOFTWARE = ("torch", "cuda", "cudnn", "driver")
STEP_TIME = re.compile(r"(?:.*\.)?samples_(step|gpu)_time")  # what bench-compare measures too
_TYPED = re.compile(r"[A-Za-z0-9_.,'() -]{1,140}")  # may stand in a command that somebody copies into a shell
_UNCOMMITTED = "tree"  # a series of the working tree with changes: nobody can look up what it measured


@dataclass
class Series:
    """A benchmark with its parameters on one machine in one environment: value and weight by commit.

    GPU time does not depend on the host. There `machine` is named after the GPU alone, and a value is the median over
    hosts. `environment` is then torch, CUDA, cuDNN and the major version of the driver.
    """

    machine: str
    environment: str
    benchmark: str
    params: tuple[str, ...]
    torch: str | None
    quoted: tuple[str, ...] = ()  # the parameters as asv writes them: "'bf16'"
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float | None] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    by_host: dict[str, list[float]] = field(default_factory=dict)  # values of each host
    gpu: dict[str, float] = field(default_factory=dict)  # behind a wall time: GPU seconds of that process
    card: str = "none"  # the machine's GPU

    def add(self, commit: str, value: float, weight: float | None, path: Path) -> None:
        """Enter the value that a host has of a commit."""
        self.by_host.setdefault(commit, []).append(value)
        self.values[commit] = float(statistics.median(self.by_host[commit]))
        self.weights[commit], self.files[commit] = weight, path

    @property
    def is_gpu(self) -> bool:
        """Return whether it is the GPU time of a rung."""
        return self.rung is not None and is_gpu_time(self.benchmark)

    @property
    def is_memory(self) -> bool:
        """Return whether it is the memory that a GPU's allocator reserved."""
        return self.card != "none" and self.benchmark.endswith(".track_peak_memory")

    @property
    def accepted_as(self) -> str:
        """Return the name by which a slowdown is accepted: `article/bf16` in both quantities."""
        return "/".join(self.rung) if self.rung else self.name

    @property
    def name(self) -> str:
        """Return `article/bf16` for the step time of a rung, else the benchmark with its parameters."""
        if self.rung:
            return "/".join(self.rung) + (" GPU time" if self.is_gpu else "")
        return f"{self.benchmark}({', '.join(self.params)})" if self.params else self.benchmark

    @property
    def rung(self) -> tuple[str, str] | None:
        """Return (workload, rung) of a step's wall or GPU time, which two commits can be compared by; else None."""
        return (
            (self.params[0], self.params[1])
            if STEP_TIME.fullmatch(self.benchmark) and len(self.params) == 2
            else None
        )

    @property
    def pattern(self) -> str | None:
        """Return the regular expression that selects this series alone for asv; None if its name is not plain."""
        full = f"{self.benchmark}({', '.join(self.quoted)})" if self.quoted else self.benchmark
        return re.sub(r"([().])", r"\\\1", full) if _TYPED.fullmatch(full) else None


@dataclass(frozen=True)
class Point:
    """A machine at a commit with a set of libraries: milliseconds a step by rung."""

    machine: str
    facts: tuple[tuple[str, str], ...]  # asv's parameters: gpu, cpu, torch, ...
    commit: str
    date: int
    workload: str
    ms: tuple[tuple[str, float], ...]  # in the order of the ladder
    path: str  # of its file, under the folder of results
    conditions: Mapping[asvnotes.Condition, str] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Return the name of the GPU; where there is none, of the CPU or the machine."""
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
    conditions: Mapping[asvnotes.Condition, str] = field(default_factory=dict, hash=False)
    marks: tuple[str, ...] = ()  # "cuDNN 9.19.0 -> 9.20.1", since the step before with the same software


def read(folder: Path) -> list[Series]:
    """Return every series of a folder of accepted results (`ladder.publish.validation.asv_accepted`)."""
    every: dict[tuple[str, ...], Series] = {}
    for path in _list_results(folder):
        _add_file(path, every)
    return list(every.values())


def _list_results(accepted: Path) -> list[Path]:
    """Return asv's result files. asv's own way looks into our notes, and complains of them."""
    return [path for path in sorted(accepted.glob("*/*.json")) if asv_files.kind_of(path) == "results"]


def _add_file(path: Path, every: dict[tuple[str, ...], Series]) -> None:
    """Add the values of a file to the series."""
    from asv.results import Results

    result, machine = Results.load(str(path)), path.parent.name
    taken = [(name, each) for name in result.get_all_result_keys() for each in _values(result, name)]
    gpu = {(name, quoted): value for name, (quoted, value, _) in taken if is_gpu_time(name)}
    for benchmark, (quoted, value, weight) in taken:
        params = tuple(map(_text, quoted))
        where, libraries = machine, result.env_name
        if is_gpu_time(benchmark):
            where, libraries = _gpu_place(result.params, path, benchmark)
        key = (where, libraries, benchmark, str(result.benchmark_version.get(benchmark)), *params)
        torch = result.params.get("torch")
        one = every.setdefault(key, Series(where, libraries, benchmark, params, torch, quoted))
        one.add(result.commit_hash, value, weight, path)
        one.card = str(result.params.get("gpu") or "none")
        beside = benchmark.replace("samples_step_time", "samples_gpu_time"), quoted
        if not one.is_gpu and beside in gpu:
            one.gpu[result.commit_hash] = gpu[beside]


def is_gpu_time(benchmark: str) -> bool:
    """Return whether a benchmark is the GPU time of a step."""
    match = STEP_TIME.fullmatch(benchmark)
    return match is not None and match[1] == "gpu"


def _gpu_place(params: Mapping[str, str], path: Path, benchmark: str) -> tuple[str, str]:
    """Return the machine and the environment of a series of GPU time: the GPU, and its software."""
    facts = _gpu_facts(params, asvnotes.find_conditions(asvnotes.read_note(path), benchmark))
    software = ", ".join(f"{name} {facts[name]}" for name in GPU_SOFTWARE if name in facts)
    return facts["machine"], software or "unknown software"


def _gpu_facts(params: Mapping[str, str], conditions: Mapping[asvnotes.Condition, str]) -> dict[str, str]:
    """Return the facts that GPU time depends on: the GPU, torch, CUDA, cuDNN and the driver's major version."""
    gpu = str(params.get("gpu") or "none")
    known = {"machine": slug(gpu), "gpu": gpu}
    known |= {name: str(params[name]) for name in ("torch", "cuda") if params.get(name)}
    known |= {"cudnn": conditions["cudnn"]} if "cudnn" in conditions else {}
    known |= {"driver": conditions["driver"].partition(".")[0]} if "driver" in conditions else {}
    return {name: plain(value) for name, value in known.items()}


class _Value(NamedTuple):
    """A number that asv has of a benchmark."""

    quoted: tuple[str, ...]  # the parameters as asv writes them
    value: float
    weight: float | None


def _values(result: Any, benchmark: str) -> Iterator[_Value]:
    """Yield each combination of parameters for which a result of asv has a positive number."""
    from asv import _stats

    params = result.get_result_params(benchmark) or []
    values, stats = (get(benchmark, params) for get in (result.get_result_value, result.get_result_stats))
    for each, value, stat in zip(itertools.product(*params), values, stats, strict=True):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and value > 0:
            yield _Value(tuple(map(str, each)), float(value), _stats.get_weight(stat))


def points(accepted: Path, benchmark: str = STEP) -> list[Point]:
    """Return every time of a rung in a folder of accepted results (`ladder.publish.validation.asv_accepted`).

    Args:
        benchmark: STEP for wall time, by machine. GPU_STEP for GPU time: hosts with one GPU and one software are one.
    """
    from asv.results import Results

    every, height = [], _heights()
    for path in _list_results(accepted):
        result = Results.load(str(path))
        facts = {key: plain(value) for key, value in result.params.items() if isinstance(value, str)}
        if benchmark not in result.get_all_result_keys() or _UNCOMMITTED in facts or not facts.get("machine"):
            continue
        if len(result.get_result_params(benchmark)) != 2:
            continue
        conditions = asvnotes.find_conditions(asvnotes.read_note(path), benchmark)
        if is_gpu_time(benchmark):
            facts = _gpu_facts(facts, conditions)
        times: dict[str, dict[str, float]] = {}
        for (workload, rung), seconds, _ in _values(result, benchmark):
            times.setdefault(_text(workload), {})[_text(rung)] = 1000 * seconds
        for workload, ms in times.items():
            known = tuple(sorted(facts.items()))
            place = path.relative_to(accepted).as_posix()
            head = (facts["machine"], known, result.commit_hash, result.date or 0)
            every.append(Point(*head, workload, _by_height(ms.items(), height), place, conditions))
    return _joined(every, height) if is_gpu_time(benchmark) else every


def _joined(every: list[Point], height: Mapping[str, int]) -> list[Point]:
    """Return the points with those of several hosts made one: the median of each rung."""
    together: dict[tuple[Any, ...], list[Point]] = {}
    for point in every:
        together.setdefault((point.facts, point.commit, point.workload), []).append(point)
    medians_of_hosts = []
    for same in together.values():
        rungs = dict.fromkeys(rung for point in same for rung, _ in point.ms)
        ms = {rung: [dict(point.ms)[rung] for point in same if rung in dict(point.ms)] for rung in rungs}
        medians = tuple((rung, float(statistics.median(each))) for rung, each in ms.items())
        medians_of_hosts.append(replace(same[-1], ms=_by_height(medians, height)))
    return medians_of_hosts


def _by_height(ms: Iterable[tuple[str, float]], height: Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(ms, key=lambda item: (height.get(item[0], -1), item[0])))


def history(every: Iterable[Point], revisions: Mapping[str, int]) -> dict[tuple[str, str], list[Step]]:
    """Return the highest rung of each commit on the branch, oldest first, by (machine, workload).

    A history with a picture goes before one of a single commit. The machines of a workload stand together.
    """
    steps: dict[tuple[str, str], list[tuple[int, Step]]] = {}
    for point in every:
        if point.commit in revisions:
            rung, ms = point.ms[-1]
            step = Step(point.commit, rung, ms, point.software, conditions=point.conditions)
            steps.setdefault((point.machine, point.workload), []).append((revisions[point.commit], step))
    height = _heights()
    return {
        key: _in_order(steps[key], height)
        for key in sorted(steps, key=lambda key: (len(steps[key]) == 1, key[::-1]))
    }


def _in_order(steps: list[tuple[int, Step]], height: Mapping[str, int]) -> list[Step]:
    """Sort steps, oldest first. Mark those measured in part, by the order of the ladder as it is now.

    A step with another driver or cuDNN than the one before is marked, too.
    """
    reached: dict[tuple[str, ...], int] = {}
    before: dict[tuple[str, ...], Mapping[asvnotes.Condition, str]] = {}
    ordered = []
    for _, step in sorted(steps, key=lambda each: (each[0], each[1].software)):
        at, most = height.get(step.rung, -1), reached.get(step.software, -1)
        reached[step.software] = max(at, most)
        marks = asvnotes.list_excuses(before.get(step.software, {}), step.conditions)
        before[step.software] = {**before.get(step.software, {}), **step.conditions}
        ordered.append(replace(step, whole=at >= most, marks=marks))
    return ordered


def single_runs(
    every: Iterable[Point], paired: set[tuple[str, str]], rungs: list[str]
) -> list[tuple[Point, View]]:
    """Return machines that only asv measured, with a view of their rungs: no interval, no verdict, no round.

    Args:
        every: what asv has.
        paired: (machine, workload) that the paired protocol has measured; they need no single run.
        rungs: names, from the lowest to the highest.
    """
    newest: dict[tuple[str, str], Point] = {}
    for point in every:
        key = (point.machine, point.workload)
        if key not in paired and any(name in rungs for name, _ in point.ms):
            if key not in newest or (point.date, point.software) > (newest[key].date, newest[key].software):
                newest[key] = point
    return [(newest[key], _view(newest[key], rungs)) for key in sorted(newest)]


def _text(value: str) -> str:
    """Return a parameter, which asv keeps as Python would print it."""
    try:
        return plain(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return plain(value)


def _heights() -> dict[str, int]:
    """Return the place of each rung in the ladder `full`; a rung that has left it stands below."""
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
        baseline=measured[0],
        rows=tuple(rows),
    )


def _row(name: str, ms: float | None, previous: float | None, total: float | None) -> Row:
    title = catalog.load_rung(name).title if name in catalog.rungs() else name
    status, reason = ("ok", "") if ms else ("n/a", "not measured here")
    return Row(
        name=name, title=title, status=status, reason=reason, step_ms=ms, previous=previous, total=total
    )
