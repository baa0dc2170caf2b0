"""`ladder host`: what the CPU needs to issue a step, and for what.

On an eager rung the GPU may wait for the CPU. Each step is called on an idle GPU and its calls are timed until they
return, without synchronizing. A cycle under the profiler then splits that time.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.options import declare_option
from ladder.core.records import Ms, Record, Samples, number_between, read_record, size_between
from ladder.core.text import format_ms
from ladder.plan import content
from ladder.report import drawing
from ladder.results import ranking
from ladder.results.file import Status
from ladder.results.run import HostTime, Result
from ladder.results.store import SERIES
from ladder.show.table import Column, Table
from ladder.studies import frame
from ladder.studies.base import RungCase, Session, Study, StudyFile

Part = Literal[
    "python", "operators", "casts", "own ops", "autograd", "optimizer", "data", "launches", "queue full"
]
PARTS: dict[str, str] = {
    "operators": "PyTorch's dispatch",
    "casts": "autocast's casts",
    "own ops": "our ops' launch code",
    "autograd": "autograd's engine",
    "optimizer": "the optimizer",
    "data": "data",
    "launches": "the driver's launches",
    "queue full": "launches that wait for room in the queue",
    "python": "Python between operators",
}
SHOWN = 10  # operators of a rung
GREW_MS = 0.5  # a smaller change of a part is not worth a sentence
INSIDE = 1.01  # parts over their whole: rounding


class Options(frame.Options):
    """The options of `ladder host`."""

    rungs: frame.Rungs = []
    ladder: frame.Ladder = "article"
    cycles: Annotated[int, Meta(ge=1, le=100), declare_option("Timed 16-step cycles of each rung.")] = 3
    seed: frame.Seed = 0


class Operator(Record):
    """What is called under one name in a profiled step: calls, and milliseconds without the calls inside."""

    name: Annotated[str, Meta(max_length=300)]
    part: Part
    calls: Annotated[float, number_between(0, 1e7)]
    ms: Annotated[float, number_between(0, 1e8)]


class Observed(frame.Observation, kw_only=True):
    """Host and wall time of a step in each cycle, and the calls of a profiled step."""

    host_ms: Samples = []
    wall_ms: Samples = []
    profiled_ms: Ms | None = None
    operators: Annotated[list[Operator], size_between(200)] = []


class Rung(Record):
    """What is derived of a rung, in ms of an unprofiled step. `parts_ms` add up to `host_ms`."""

    name: str
    status: Status
    reason: str | None
    host_ms: float | None
    wall_ms: float | None
    parts_ms: dict[str, float]
    calls: float | None
    grew: str | None
    operators: list[Operator]  # the most expensive ones, in profiled milliseconds


class Hosts(Record):
    """What `ladder report --json` prints beside the header."""

    rungs: list[Rung]
    notes: list[str]


File = StudyFile[Options, RungCase, Observed]


class Host(Study[Options, RungCase, Observed]):
    """Each rung in one process: some cycles timed step by step, then one under the profiler."""

    name, kind, folder = "host", "host", "host"
    help = """Measure what the CPU needs to issue a step, and for what.

    Each RUNG (with all below it; default: every eager rung of the ladder) runs in one process. Every step begins on
    an idle GPU; host time ends when its calls have returned. The parts are PyTorch's dispatch, autocast's casts, this
    project's ops, autograd, the optimizer, data, launches, and Python. On a CPU the operators' own work is a part of
    the dispatch.

    Exit status: 0 if every rung has a number. 1 if a rung has none. 2 if the request is impossible. 130 if
    interrupted.
    """
    examples = """
ladder host                               the eager rungs of the article's ladder
ladder host baseline bf16 -w article-b32
"""

    def plan_cases(self, job: Job) -> dict[str, RungCase]:
        from ladder.engine.gpu_time import is_captured

        recipes = frame.plan_rungs(job, job.options.ladder, job.options.rungs)
        if not job.options.rungs:
            recipes = {name: recipe for name, recipe in recipes.items() if not is_captured(recipe)}
        if not recipes:
            raise UserError(f"ladder {job.options.ladder}: every rung is captured; name one")
        return {name: RungCase(recipe=recipe) for name, recipe in recipes.items()}

    def observe(self, session: Session, key: str, case: RungCase) -> Observed:
        options = session.job.options
        with session.prepare_worker(case.recipe, options.seed) as worker:
            reply = worker.call("host", cycles=options.cycles)
        return read_record(Observed, reply["host"])

    def describe(self, observation: Observed) -> str:
        return f"{format_ms(statistics.median(observation.host_ms))} ms of the CPU a step"

    def derive(self, file: File) -> Hosts:
        rungs: list[Rung] = []
        for name in file.cases:
            each = file.observed.get(name, Observed(status="n/a", reason="not measured"))
            if not each.host_ms:
                rungs.append(Rung(name, each.status, each.reason, None, None, {}, None, None, []))
                continue
            host_ms, before = statistics.median(each.host_ms), rungs[-1] if rungs else None
            scale = host_ms / (each.profiled_ms or host_ms)
            parts = {
                part: scale * sum(row.ms for row in each.operators if row.part == part) for part in PARTS
            }
            calls = sum(row.calls for row in each.operators)
            heaviest = sorted((row for row in each.operators if row.calls), key=lambda row: -row.ms)[:SHOWN]
            grew = describe_growth(name, host_ms, parts, before) if before and before.host_ms else None
            wall_ms = statistics.median(each.wall_ms)
            rungs.append(Rung(name, each.status, None, host_ms, wall_ms, parts, calls, grew, heaviest))
        return Hosts(rungs=rungs, notes=frame.list_cautions(self, file))

    def list_problems(self, file: File) -> Iterable[str]:
        for name, each in file.observed.items():
            if each.status == "ok" and not (each.host_ms and each.wall_ms and each.profiled_ms):
                yield f"{name}: ok without host and wall time"
            if any(host > INSIDE * wall for host, wall in zip(each.host_ms, each.wall_ms, strict=False)):
                yield f"{name}: the calls of a step took longer than the step"
            if sum(row.ms for row in each.operators) > INSIDE * (each.profiled_ms or 0.0):
                yield f"{name}: its operators took longer than their step"

    def summarize(self, file: File) -> list[str]:
        machine = file.machine
        return [
            f"What the CPU needs for a step: {machine.gpu or machine.cpu}",
            f"Workload {frame.describe_workload(file)}, CPU {machine.cpu}. Each step begins on an idle device; host ms"
            " ends when its calls have returned, wall ms"
            f" when its work is done. The parts are scaled from a profiled cycle. PyTorch {machine.torch}.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        derived, rows = self.derive(file), list[list[Any]]()
        columns = [Column("rung"), Column("host ms", "ms"), Column("wall ms", "ms", priority=1)]
        columns += [Column(part, "ms", priority=2 + k) for k, part in enumerate(PARTS)]
        columns.append(Column("calls", "count", priority=1))
        for rung in derived.rungs:
            host = rung.host_ms or f"{rung.status}: {rung.reason}"
            rows.append([rung.name, host, rung.wall_ms, *map(rung.parts_ms.get, PARTS), rung.calls])
        yield Table(columns, rows, "", [rung.grew for rung in derived.rungs if rung.grew])
        heads = [Column("operator"), Column("part", priority=1), Column("calls", "count")]
        heads += [Column("us a call", "microseconds"), Column("ms", "ms")]
        for rung in derived.rungs:
            cells = [
                [each.name[:60], each.part, each.calls, 1000 * each.ms / each.calls, each.ms]
                for each in rung.operators
            ]
            if cells:
                yield Table(heads, cells, f"{rung.name}: the most expensive calls of a profiled step")

    def draw(self, file: File, kind: str) -> bytes:
        return drawing.save(lambda: _draw_figure(file, self.derive(file)), kind)


STUDY = Host()


def attach_host(result: Result, folder: Path) -> Result:
    """Return a cumulative run with its rungs' host time, by the newest file in `folder` of its host and ladder."""
    same = []
    for path in folder.glob(f"{result.machine.name}-*.json"):
        with contextlib.suppress(UserError):
            file = frame.read_file(STUDY, path)
            is_same = all(getattr(file.machine, key) == getattr(result.machine, key) for key in SERIES)
            works = [content.of_workload(each.workload or {}) for each in (file, result)]
            if is_same and works[0] == works[1] and file.options.ladder == result.ladder.name:
                same.append(file)
    if not same or ranking.mode(result) != ranking.CUMULATIVE:
        return result
    rungs = STUDY.derive(max(same, key=lambda file: file.started)).rungs
    host = {each.name: HostTime(ms=each.host_ms, change=each.grew) for each in rungs if each.host_ms}
    return msgspec.structs.replace(result, host=host or None)


def describe_growth(name: str, host_ms: float, parts: dict[str, float], before: Rung) -> str:
    """Return which parts of the host time changed most from the rung before, as a sentence."""
    changes = {PARTS[part]: value - before.parts_ms.get(part, 0.0) for part, value in parts.items()}
    largest = sorted(changes.items(), key=lambda each: -abs(each[1]))[:3]
    named = ", ".join(f"{part} {change:+.1f} ms" for part, change in largest if abs(change) >= GREW_MS)
    total = host_ms - (before.host_ms or 0.0)
    words = f"{name}: {abs(total):.1f} ms {'more' if total > 0 else 'less'} than {before.name}"
    return f"{words}: {named}" if named else words


def _draw_figure(file: File, derived: Hosts) -> Any:
    shown = [rung for rung in derived.rungs if rung.host_ms]
    figure, axes = drawing.sheet(9.5, 1.3 + 0.42 * max(1, len(shown)))
    widest = max((rung.host_ms or 0.0 for rung in shown), default=1.0)
    colours = "#4477aa #66ccee #228833 #ccbb44 #ee6677 #aa3377 #bbbbbb #882255 #dddddd".split()
    for row, rung in enumerate(shown):
        x, y = 2.2, 0.75 + 0.42 * row
        axes.text(2.1, y + 0.14, rung.name, ha="right", va="center", fontsize=9)
        for part, colour in zip(PARTS, colours, strict=True):
            width = 6.2 * rung.parts_ms[part] / widest
            axes.barh(y + 0.14, width, height=0.28, left=x, color=colour)
            x += width
        axes.text(x + 0.08, y + 0.14, f"{format_ms(rung.host_ms)} ms", va="center", fontsize=9)
    for k, (part, colour) in enumerate(zip(PARTS, colours, strict=True)):
        x, y = 0.3 + 1.0 * k, 0.95 + 0.42 * len(shown)
        axes.barh(y, 0.12, height=0.12, left=x, color=colour)
        axes.text(x + 0.17, y, part, va="center", fontsize=7.5)
    device = file.machine.gpu or file.machine.cpu
    drawing.fitted(figure, 0.02, 0.88, f"{device}: host time of a step", 13, fontweight="bold")
    return figure
