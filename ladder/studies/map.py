"""`ladder map`: where two rungs matter, over batches and resolutions.

Every cell has four recipes: the top of a ladder with both of two rungs, without the first, without the second, and
without both. Each runs in a fresh process, wall time before GPU time: so wall time is free of an earlier profiler, and
memory that ran out is that of one cell alone. A cell's four follow each other, so that what drifts hits all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.options import declare_option, whole_numbers
from ladder.core.records import Fields, Name, number_between, size_between
from ladder.core.text import fine_factor
from ladder.engine import models
from ladder.report import drawing
from ladder.results.file import Look
from ladder.show.table import Column, Table
from ladder.show.themes import LIGHT
from ladder.studies import frame
from ladder.studies.ablate import load_changes
from ladder.studies.base import Session, Study, StudyFile

PAIR = ("cuda_graphs", "channels_last")
BATCHES = {"cuda": (4, 8, 16, 32, 64), "cpu": (4, 8)}
RESOLUTIONS = {"cuda": (32, 64, 128, 256), "cpu": (16, 32)}
CYCLES = 2  # by the wall clock
ARTICLE_TO = 32  # the article's policy: CUDA graphs and NCHW up to here, channels_last without graphs above
GPU, WALL = "gpu", "wall"
CLOCKS = {WALL: "step", GPU: "GPU time"}
COUNTS = 1.02  # a factor from which on a rung matters: less is within the noise of one process
Out = tuple[str, ...]  # the rungs that a recipe leaves out
Cell = tuple[Any, int]  # resolution, None of a pair that reads no images, and batch


class Options(frame.Options):
    """The options of `ladder map`."""

    # fmt: off
    ladder: frame.Ladder = "article"
    rung: Annotated[list[Name], size_between(100), declare_option(
        "A rung whose gain is mapped; give two. [default: cuda_graphs and channels_last]", metavar="RUNG")] = []
    resolutions: Annotated[str | None, declare_option(
        "Resolutions of the cells. [default: 32,64,128,256; CPU: 16,32]", metavar="A,B,...")] = None
    batches: Annotated[str | None, declare_option(
        "Batches of the cells. [default: 4,8,16,32,64; CPU: 4,8; --model: a quarter of its own, to four times]",
        metavar="A,B,...")] = None
    seed: frame.Seed = 0
    # fmt: on


class Case(frame.Case, kw_only=True):
    """A recipe in a cell: the top of the ladder without the rungs in `out`."""

    resolution: Annotated[int, number_between(4, 2**16)] | None = None
    batch: Annotated[int, number_between(1, 2**16)]
    out: Annotated[list[Name], size_between(2)] = []

    @property
    def sizes(self) -> dict[str, int]:
        return {"batch": self.batch} | ({"resolution": self.resolution} if self.resolution else {})


class Observed(frame.Observation, kw_only=True):
    """Both clocks of one fresh process."""

    ANSWER = "look"
    look: Look | None = None

    def list_times(self) -> Iterable[float]:
        return [*(self.look.wall_ms or ()), *(self.look.gpu_ms or ())] if self.look else ()


File = StudyFile[Options, Case, Observed]


class Cells:
    """What was observed, by resolution, batch and recipe."""

    def __init__(self, file: File) -> None:
        cases = file.cases.items()
        self.pair: list[str] = next(case.out for _, case in cases if len(case.out) == 2)
        self.is_own = "pair" in (file.workload or {})
        self.cells = list(dict.fromkeys((case.resolution, case.batch) for _, case in cases))
        self.sizes, self.batches = (sorted({cell[k] for cell in self.cells}) for k in (0, 1))
        self.observed = {
            (case.resolution, case.batch, tuple(case.out)): file.observed[key]
            for key, case in cases
            if key in file.observed
        }
        looks = [each.look for each in self.observed.values() if each.look]
        self.clocks = [WALL, GPU] if any(look.gpu_ms for look in looks) else [WALL]

    def find_ms(self, cell: Cell, out: Out, clock: str = WALL) -> float | None:
        """Return the milliseconds a step of a recipe: the median of its cycles by a clock."""
        look = self.observed.get((*cell, out), Observed()).look
        cycles = look and (look.gpu_ms if clock == GPU else look.wall_ms)
        return statistics.median(cycles) if cycles else None

    def find_gain(self, cell: Cell, rung: str, clock: str = WALL) -> float | None:
        """Return what a rung gains in a cell at the top of the ladder, as a factor."""
        top, without = self.find_ms(cell, (), clock), self.find_ms(cell, (rung,), clock)
        return without / top if top and without else None

    def explain_gap(self, cell: Cell, rung: str, clock: str) -> str | None:
        """Return why a cell has no gain: "oom", another status, "void", or None if it was not measured."""
        both = [self.observed[place] for out in ((), (rung,)) if (place := (*cell, out)) in self.observed]
        void = clock == GPU and any(each.look and each.look.gpu_void for each in both)
        return next((each.status for each in both if each.status != "ok"), "void" if void else None)


def name_cell(size: int | None, batch: int) -> str:
    """Return the name of a cell."""
    return f"{size}x{size}, batch {batch}" if size else f"batch {batch}"


def title_recipe(out: Sequence[str]) -> str:
    """Return the name of a recipe by the rungs that it leaves out."""
    return "whole ladder" if not out else "without both" if len(out) > 1 else f"without {out[0]}"


def list_outs(pair: Sequence[str]) -> list[Out]:
    """Return the four recipes of two rungs by what they leave out."""
    return [(), (pair[0],), (pair[1],), (pair[0], pair[1])]


class MapStudy(Study[Options, Case, Observed]):
    """Four recipes in every cell, each in a fresh process."""

    name, kind, folder = "map", "map", "map"
    help = """Map where two rungs matter, over batches and resolutions.

    Every cell runs the top of the ladder, the ladder without one rung, without the other, and without both, each in a
    fresh process. The heat maps show where CUDA graphs stop mattering and where channels_last begins to. They also
    test the article's policy: CUDA graphs and NCHW up to 32x32, channels_last without graphs above. Running out of
    memory is a cell's value. On a CPU there is wall time alone.

    Exit status: 0 if every row has a time or ran out of memory. 1 if one failed. 2 if the request is impossible. 130
    if it was interrupted or the time was over.
    """
    examples = """
ladder map                                    20 cells, four recipes in each
ladder map --rung bf16 --rung fused_act       another pair of rungs
ladder map --resolutions 32,256 --batches 8   a corner of the map
ladder map --model my_pair.py                 batches of your own networks, the setting `batch` of their function
ladder map --budget 15                        a part, then the rest of it:
ladder map --resume results/map/MACHINE-article-article-partial.json
"""
    uses_images, takes_pairs = False, True
    case_seconds = {"cuda": 24.0, "cpu": 8.0}

    def plan_cases(self, job: Job) -> dict[str, Case]:
        from stylegan_lite.config import ConfigError, Workload

        sizes: Any = whole_numbers("--resolutions", job.options.resolutions, 65536)
        batches = whole_numbers("--batches", job.options.batches, 65536)
        if job.facts is None:
            sizes, batches = sizes or RESOLUTIONS[job.device], batches or BATCHES[job.device]
        else:
            models.refuse_fixed(job, "batch", *(["resolution"] if sizes else []))
            own: Any = job.workload["batch"]
            most = 4 if job.device == "cuda" else 1
            sizes = sizes or [job.workload["resolution"]]
            batches = batches or sorted({max(1, own * k // 4) for k in (1, 2, 4, 8, 16) if k <= 4 * most})
        outs, cases = list(make_recipes(job)), {}
        for resolution, batch in itertools.product(sorted(sizes), sorted(batches)):
            cell = name_cell(resolution, batch)
            try:
                if job.facts is None:
                    Workload.from_dict(job.workload | {"resolution": resolution, "batch": batch}, where=cell)
            except ConfigError as error:
                raise UserError(str(error)) from None
            for out in outs:
                cases[f"{cell}, {title_recipe(out)}"] = Case(resolution=resolution, batch=batch, out=[*out])
        return cases

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        """Return a look. One whose GPU time is void is taken once more; a failure there leaves the first."""
        from ladder.engine import looks
        from ladder.engine.pool import WorkerFailure

        job = session.job
        session.settle()
        recipe = make_recipes(job)[tuple(case.out)]
        task = looks.Task(models.resize(job.workload, case.sizes), recipe, job.device, job.options.seed)

        def take_look() -> Look:
            with contextlib.closing(session.pool.take()) as worker:
                return looks.in_fresh_process(worker, task, session.visits, CYCLES)

        look = take_look()
        if look.gpu_void:
            with contextlib.suppress(WorkerFailure):
                look = take_look()
        return Observed(look=look)

    def describe(self, observation: Observed) -> str:
        cycles = observation.look.wall_ms if observation.look else None
        return f"{texts.format_ms(statistics.median(cycles))} ms" if cycles else ""

    def derive(self, file: File) -> Any:
        cells = Cells(file)
        gains = [
            {"resolution": cell[0], "batch": cell[1], "rung": rung}
            | {clock: cells.find_gain(cell, rung, clock) for clock in (WALL, GPU)}
            for cell, rung in itertools.product(cells.cells, cells.pair)
        ]
        protocol = {
            "ladder": file.ladder or file.options.ladder, "rungs": cells.pair, "cells": cells.cells,
            "cycles": CYCLES, "seed": file.options.seed, "notes": frame.list_cautions(self, file),
        }  # fmt: skip
        rows = [frame.write_row(file.cases[key], each) for key, each in file.observed.items()]
        return {"protocol": protocol, "rows": rows, "gains": gains}

    def list_problems(self, file: File) -> Iterable[str]:
        places = {(case.resolution, case.batch, *case.out) for case in file.cases.values()}
        outs = {tuple(case.out) for case in file.cases.values()}
        pair = next((out for out in outs if len(out) == 2), ("", ""))
        if len(places) < len(file.cases) or not outs <= {*list_outs(pair)} or "" in pair:
            yield "cases: one is there twice, or they are not of two rungs"

    def list_cautions(self, file: File) -> list[str]:
        from ladder.engine import looks

        return looks.find_marks(each.look for each in file.observed.values() if each.look)

    def name_file(self, file: File) -> list[str]:
        pair = Cells(file).pair
        ladder = file.ladder or file.options.ladder
        return [*super().name_file(file), ladder, *(pair if tuple(pair) != PAIR else [])]

    def summarize(self, file: File) -> list[str]:
        then = ", then two of GPU time" if file.machine.gpu else ""
        return [
            f"Where {' and '.join(Cells(file).pair)} matter: {file.machine.gpu or file.machine.cpu}",
            f"Workload {(file.workload or {})['name']} at other batches and resolutions{frame.describe_data(file)};"
            f" ladder {file.ladder or file.options.ladder}, every row in a fresh process: {CYCLES} cycles by the wall"
            f" clock{then}. {frame.describe_software(file)}",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        cells = Cells(file)
        tables = [make_table(cells, rung, clock) for clock in cells.clocks for rung in cells.pair]
        yield replace(tables[0], notes=list_findings(cells))
        yield from tables[1:]
        columns = [Column(title_recipe(out), "ms", place) for place, out in enumerate(list_outs(cells.pair))]
        rows: list[list[Any]] = []
        for cell in cells.cells:
            row: list[Any] = [name_cell(*cell)]
            for out in list_outs(cells.pair):
                each = cells.observed.get((*cell, out))
                row.append(cells.find_ms(cell, out) or (each and each.status))
            rows.append(row)
        yield Table([Column("ms/step"), *columns], rows)

    def draw(self, file: File, kind: str) -> bytes:
        return drawing.save(lambda: _draw_figure(file), kind)


STUDY = MapStudy()


def make_recipes(job: Job) -> dict[Out, Fields]:
    """Return the four recipes of a job, all of their fields, by the rungs that they leave out.

    Raises:
        UserError: a rung is not there or cannot run here, or the two always leave together.
    """
    from stylegan_lite.config import suggestion

    rungs, pair = load_changes(job), job.options.rung
    names = list(rungs.changes)
    if not pair:
        pair = PAIR if {*PAIR} <= {*names} else names[:2]
    if len({*pair}) != 2:
        raise UserError("--rung: name two rungs, --rung A --rung B; the map shows where each matters")
    for name in pair:
        if name in rungs.skipped:
            raise UserError(f"--rung: {name} cannot run here: {rungs.skipped[name]}")
        if name not in names:
            raise UserError(f"--rung: ladder {rungs.ladder} has no change {name!r}{suggestion(name, names)}")
    recipes = {out: rungs.make_recipe(rungs.leave_out(out)) for out in list_outs(pair)}
    if len({str(recipe) for recipe in recipes.values()}) < len(recipes):
        raise UserError(
            f"--rung: {' and '.join(pair)} are not apart in ladder {rungs.ladder}: take another pair"
        )
    return recipes


# --- the report -------------------------------------------------------------------------------------------------------


def make_table(cells: Cells, rung: str, clock: str) -> Table:
    """Return a heat map: what a rung gains by a clock, resolutions by batches."""
    columns = [Column(f"batch {batch}", "factor", place) for place, batch in enumerate(cells.batches)]
    rows = []
    for size in cells.sizes:
        places = [(size, batch) for batch in cells.batches]
        gains = [
            cells.find_gain(each, rung, clock) or cells.explain_gap(each, rung, clock) for each in places
        ]
        rows.append([f"{size}x{size}" if size else "", *gains])
    return Table([Column(f"{rung}, {CLOCKS[clock]}"), *columns], rows)


def list_findings(cells: Cells) -> list[str]:
    """Return the findings, one sentence each: where each rung matters, the article's policy, rows without a time."""
    findings = []
    for rung in cells.pair:
        places = []
        for size in cells.sizes:
            gains = {batch: cells.find_gain((size, batch), rung) for batch in cells.batches}
            good = [str(batch) for batch, gain in gains.items() if gain and gain >= COUNTS]
            batches = f"batch {', '.join(good)}" if good else "no batch"
            if len(good) == len(gains):
                batches = "every batch"
            places.append(f"{batches} at {size}x{size}" if size else batches)
        findings.append(f"{rung} saves {100 * (COUNTS - 1):.0f}% of the step or more: {'; '.join(places)}.")
    findings += [describe_policy(cells)] if tuple(cells.pair) == PAIR and not cells.is_own else []
    rows = list(cells.observed.values())
    if lacking := [each for each in rows if each.status == "oom"]:
        findings.append(f"{len(lacking)} of {len(rows)} rows ran out of memory.")
    if void := [each.look.gpu_void for each in rows if each.look and each.look.gpu_void]:
        findings.append(f"GPU time is void in {len(void)} of {len(rows)} rows: {void[0]}.")
    return findings


def describe_policy(cells: Cells) -> str:
    """Return how the article's policy fares against the fastest recipe of each cell."""
    lost, whole = {}, []
    for cell in cells.cells:
        times = {out: cells.find_ms(cell, out) for out in list_outs(PAIR)}
        best = min((ms for ms in times.values() if ms), default=None)
        ruled, top = times[(PAIR[1],) if cell[0] <= ARTICLE_TO else (PAIR[0],)], times[()]
        if best and ruled and top:
            lost[cell] = ruled / best
            whole.append(top / best)
    if not lost:
        return "The article's policy is not tested: no cell has a time under it."
    good = sum(value <= COUNTS for value in lost.values())
    size, batch = worst = max(lost, key=lambda each: lost[each])
    return (
        f"The article's policy (graphs and NCHW up to {ARTICLE_TO}x{ARTICLE_TO}, channels_last and no graphs above) is"
        f" within {100 * (COUNTS - 1):.0f}% of the fastest recipe in {good} of {len(lost)} cells; it takes"
        f" {fine_factor(statistics.geometric_mean(lost.values()))} the time of the fastest on average and"
        f" {lost[worst]:.2f}x at {size}x{size}, batch {batch}. The whole ladder everywhere takes"
        f" {fine_factor(statistics.geometric_mean(whole))} on average."
    )


WIDE = 12.5  # inches


def _draw_figure(file: File) -> Any:
    """Draw a heat map for each of the two rungs by each clock. The colours of a rung mean the same by both clocks."""
    from matplotlib.figure import Figure

    cells = Cells(file)
    lines = [line for each in list_findings(cells) for line in drawing.wrapped(each, 9, WIDE - 0.5, 3)]
    top, row = 0.95 + 0.19 * len(lines), 1.15 + 0.48 * len(cells.sizes)
    high = top + row * len(cells.clocks) + 0.45
    figure = Figure(figsize=(WIDE, high))
    above, below = 1 - (top + 0.35) / high, 0.85 / high
    grid = figure.add_gridspec(
        len(cells.clocks), 2, left=0.075, right=0.985, top=above, bottom=below, wspace=0.16, hspace=0.5
    )
    names = [f"{size}x{size}" if size else "" for size in cells.sizes[::-1]]
    places = [[(size, batch) for batch in cells.batches] for size in cells.sizes[::-1]]
    for x, rung in enumerate(cells.pair):
        gains = {
            (cell, clock): math.log(gain)
            for cell, clock in itertools.product(cells.cells, cells.clocks)
            if (gain := cells.find_gain(cell, rung, clock))
        }
        most = max((abs(log) for log in gains.values()), default=0.0)
        for y, clock in enumerate(cells.clocks):
            axes = figure.add_subplot(grid[y, x])
            heading = f"{rung}: gain in {'the step' if clock == WALL else 'GPU time'}"
            axes.set_title(heading, loc="left", fontsize=10.5, fontweight="bold", color=LIGHT.ink)
            values = [[gains.get((cell, clock)) for cell in line] for line in places]
            instead = [[cells.explain_gap(cell, rung, clock) or "" for cell in line] for line in places]
            drawing.heatmap(
                axes, names, [str(n) for n in cells.batches], values, LIGHT, _format_log, instead, most
            )
            axes.set_xlabel("batch", color=LIGHT.muted, fontsize=8.5)
    about = f"{(file.workload or {})['name']} at other sizes; a fresh process for every recipe in every cell."
    frame.draw_heading(
        STUDY, file, figure, "where two rungs matter", f"{about} PyTorch {file.machine.torch}.", lines
    )
    return figure


def _format_log(log: float | None) -> str:
    return "" if log is None else f"{math.exp(log):.2f}x"
