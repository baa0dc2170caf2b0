"""`ladder map`: where two rungs matter, over batches and resolutions.

Every cell has four recipes: the top of a ladder with both of two rungs, without the first, without the second, and
without both. Each runs in a fresh process, wall time before GPU time: so wall time is free of an earlier profiler, and
memory that ran out is that of one cell alone. A cell's four follow each other, so that what drifts hits all of them.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.text import fine_factor
from ladder.core.job import Job
from ladder.core.options import Seed, option, whole_numbers
from ladder.core.records import Fields, Name, Record, between, size, write_whole
from ladder.report.themes import LIGHT, Theme
from ladder.results import plausible
from ladder.results.file import Look, Status
from ladder.show.table import Column, Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study, StudyFile

if TYPE_CHECKING:
    from ladder.engine.looks import Task

PAIR = ("cuda_graphs", "channels_last")
BATCHES = {"cuda": (4, 8, 16, 32, 64), "cpu": (4, 8)}
RESOLUTIONS = {"cuda": (32, 64, 128, 256), "cpu": (16, 32)}
CYCLES = 2  # by the wall clock
ARTICLE_TO = 32  # the article's policy: CUDA graphs and NCHW up to here, channels_last without graphs above
GPU, WALL = "gpu", "wall"
CLOCKS = {WALL: "step", GPU: "GPU time"}
COUNTS = 1.02  # a factor from which on a rung matters: less is within the noise of one process
EVERY_BATCH = "at every batch"
Out = tuple[str, ...]  # the rungs that a recipe leaves out


class Options(frame.Options):
    """The options of `ladder map`."""

    ladder: Annotated[str, option("The ladder whose rungs are used.", metavar="NAME|FILE")] = "article"
    rung: Annotated[
        list[Name],
        size(100),
        option(
            "A rung whose gain is mapped; give two. [default: cuda_graphs and channels_last]", metavar="RUNG"
        ),
    ] = []
    resolutions: Annotated[
        str | None,
        option("Resolutions of the cells. [default: 32,64,128,256; CPU: 16,32]", metavar="A,B,..."),
    ] = None
    batches: Annotated[
        str | None, option("Batches of the cells. [default: 4,8,16,32,64; CPU: 4,8]", metavar="A,B,...")
    ] = None
    seed: Annotated[Seed, option("Seed for weights, latents and the order of images.")] = 0


class Case(frame.Case, kw_only=True):
    """A recipe in a cell: the top of the ladder without the rungs in `out`."""

    resolution: Annotated[int, between(4, 2**16)]
    batch: Annotated[int, between(1, 2**16)]
    out: Annotated[list[Name], size(2)] = []


class Observed(frame.Observation, kw_only=True):
    """Both clocks of one fresh process."""

    look: Look | None = None


File = StudyFile[Options, Case, Observed]


class Row(Record, kw_only=True):
    """A recipe in a cell: its look, or why there is none."""

    resolution: int
    batch: int
    out: list[str]
    status: Status
    reason: str | None
    look: Look | None


class Gain(Record, kw_only=True):
    """The gains of a rung in a cell while the other rungs are on, as factors."""

    resolution: int
    batch: int
    rung: str
    wall: float | None
    gpu: float | None


class Protocol(Record, kw_only=True):
    """How the cells were measured, and why the figures must not be quoted."""

    ladder: str
    rungs: list[str]
    cells: list[list[int]]
    cycles: int
    seed: int
    notes: list[str]


class Map(Record, kw_only=True):
    """What `ladder report --json` prints beside the header."""

    protocol: Protocol
    rows: list[Row]
    gains: list[Gain]

    def list_clocks(self) -> list[str]:
        """Return the clocks of which there are times, wall time first."""
        return [clock for clock in (WALL, GPU) if any(time_ms(row, clock) for row in self.rows)] or [WALL]

    def find_row(self, resolution: int, batch: int, out: Out) -> Row | None:
        """Return the row of a recipe in a cell."""
        place = (resolution, batch, [*out])
        return next((row for row in self.rows if (row.resolution, row.batch, row.out) == place), None)

    def find_ms(self, resolution: int, batch: int, out: Out) -> float | None:
        """Return the milliseconds a step of a recipe in a cell by the wall clock."""
        return time_ms(self.find_row(resolution, batch, out), WALL)

    def find_gain(self, rung: str, clock: str, resolution: int, batch: int) -> float | None:
        """Return what a rung gains in a cell, as a factor."""
        place = (resolution, batch, rung)
        gain = next(each for each in self.gains if (each.resolution, each.batch, each.rung) == place)
        return gain.wall if clock == WALL else gain.gpu

    def explain_gap(self, rung: str, clock: str, resolution: int, batch: int) -> str:
        """Return why a cell has no gain: "oom", another status, "void", or nothing if it was not measured."""
        rows = [row for out in ((), (rung,)) if (row := self.find_row(resolution, batch, out))]
        if broken := [row.status for row in rows if row.status != "ok"]:
            return broken[0]
        return "void" if clock == GPU and any(row.look and row.look.gpu_void for row in rows) else ""

    @property
    def axes(self) -> tuple[list[int], list[int]]:
        """Return the resolutions and the batches, from small to large."""
        return sorted({cell[0] for cell in self.protocol.cells}), sorted(
            {cell[1] for cell in self.protocol.cells}
        )


def time_ms(row: Row | None, clock: str) -> float | None:
    """Return the milliseconds a step of a row: the median of its cycles by a clock."""
    if row is None or row.look is None:
        return None
    cycles = row.look.gpu_ms if clock == GPU else row.look.wall_ms
    return statistics.median(cycles) if cycles else None


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
ladder map --budget 15                        a part, then the rest of it:
ladder map --resume results/map/MACHINE-article-article-partial.json
"""
    uses_images = False
    case_seconds = {"cuda": 24.0, "cpu": 8.0}

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        from stylegan_lite.config import ConfigError, Workload

        if file is not None and file.cases:
            return file.cases
        sizes = whole_numbers("--resolutions", job.options.resolutions, 65536) or RESOLUTIONS[job.device]
        batches = whole_numbers("--batches", job.options.batches, 65536) or BATCHES[job.device]
        outs, cases = list(make_recipes(job)), {}
        for resolution in sorted(sizes):
            for batch in sorted(batches):
                cell = f"{resolution}x{resolution}, batch {batch}"
                fields = job.workload | {"resolution": resolution, "batch": batch, "data": None}
                try:
                    Workload.from_dict(fields, where=cell)
                except ConfigError as error:
                    raise UserError(str(error)) from None
                for out in outs:
                    case = Case(resolution=resolution, batch=batch, out=[*out])
                    cases[f"{cell}, {title_recipe(out)}"] = case
        return cases

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        """Return a look. One whose GPU time is void is taken once more; a failure there leaves the first."""
        from ladder.engine.looks import Task
        from ladder.engine.pool import WorkerFailure

        job = session.job
        session.share(_settle)
        workload = job.workload | {"resolution": case.resolution, "batch": case.batch, "data": None}
        task = Task(workload, session.share(_open_recipes)[tuple(case.out)], job.device, job.options.seed)
        look = _look(session, task)
        if look.gpu_void:
            with contextlib.suppress(WorkerFailure):
                look = _look(session, task)
        return Observed(look=look)

    def describe(self, observation: Observed) -> str:
        cycles = observation.look.wall_ms if observation.look else None
        return f"{texts.ms(statistics.median(cycles))} ms" if cycles else ""

    def derive(self, file: File) -> Map:
        rows = {}
        for key, case in file.cases.items():
            if (each := file.observed.get(key)) is not None:
                rows[case.resolution, case.batch, tuple(case.out)] = Row(
                    resolution=case.resolution, batch=case.batch, out=case.out, status=each.status,
                    reason=each.reason, look=each.look,
                )  # fmt: skip
        pair = next(case.out for case in file.cases.values() if len(case.out) == 2)
        cells = list(dict.fromkeys((case.resolution, case.batch) for case in file.cases.values()))

        def gain(cell: tuple[int, int], rung: str, clock: str) -> float | None:
            """Return what a rung gains at the top of the ladder."""
            top, without = (time_ms(rows.get((*cell, out)), clock) for out in ((), (rung,)))
            return without / top if top and without else None

        return Map(
            protocol=Protocol(
                ladder=file.ladder or file.options.ladder,
                rungs=pair,
                cells=[[*cell] for cell in cells],
                cycles=CYCLES,
                seed=file.options.seed,
                notes=frame.list_cautions(self, file),
            ),
            rows=list(rows.values()),
            gains=[
                Gain(
                    resolution=cell[0], batch=cell[1], rung=rung, wall=gain(cell, rung, WALL),
                    gpu=gain(cell, rung, GPU),
                )
                for cell in cells
                for rung in pair
            ],
        )  # fmt: skip

    def list_problems(self, file: File) -> Iterable[str]:
        places = {(case.resolution, case.batch, *case.out) for case in file.cases.values()}
        outs = {tuple(case.out) for case in file.cases.values()}
        pair = next((out for out in outs if len(out) == 2), ("", ""))
        if len(places) < len(file.cases) or not outs <= {*list_outs(pair)} or "" in pair:
            yield "cases: one is there twice, or they are not of two rungs"
        for key, each in file.observed.items():
            case, look = file.cases[key], each.look
            if (each.status == "ok") != (look is not None and look.wall_ms is not None):
                yield f"{key}: a time, but not the status ok, or the other way round"
            workload = (file.workload or {}) | {"resolution": case.resolution, "batch": case.batch}
            least = plausible.floor_ms(write_whole(file.machine), workload)
            times = [*(look.wall_ms or ()), *(look.gpu_ms or ())] if look else []
            if least and any(ms < least[0] for ms in times):
                yield f"{key}: faster than this machine can compute"

    def list_cautions(self, file: File) -> list[str]:
        from ladder.engine import looks

        return looks.marks(each.look for each in file.observed.values() if each.look)

    def name_file(self, file: File) -> list[str]:
        pair = self.derive(file).protocol.rungs
        rungs = pair if tuple(pair) != PAIR else []
        return [*super().name_file(file), file.ladder or file.options.ladder, *rungs]

    def summarize(self, file: File) -> list[str]:
        then = ", then two of GPU time" if file.machine.gpu else ""
        facts, work, rules = file.machine, file.workload or {}, self.derive(file).protocol
        return [
            f"Where {' and '.join(rules.rungs)} matter: {facts.gpu or facts.cpu}",
            f"Workload {work['name']} at other batches and resolutions, random images; ladder {rules.ladder}, every row"
            f" in a fresh process: {texts.counted(rules.cycles, 'cycle')} by the wall clock{then}."
            f" PyTorch {facts.torch}, commit {(file.commit or 'unknown')[:12]}{' with changes' if file.dirty else ''}.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        found = self.derive(file)
        first, *others = [
            make_table(found, rung, clock) for clock in found.list_clocks() for rung in found.protocol.rungs
        ]
        return [replace(first, notes=list_findings(found)), *others, make_cell_table(found)]

    def draw(self, file: File, kind: str) -> bytes:
        return draw_chart(self.derive(file), file, kind)


STUDY = MapStudy()


def make_recipes(job: Job) -> dict[Out, Fields]:
    """Return the four recipes of a job, all of their fields, by the rungs that they leave out.

    Raises:
        UserError: a rung is not there or cannot run here, or the two always leave together.
    """
    from ladder.machine import system
    from ladder.plan import catalog, modes, needs
    from stylegan_lite.config import Recipe

    ladder = catalog.load_ladder(job.options.ladder)
    able = needs.possible(system.capabilities(job.device), job.workload)
    climbed = catalog.climb(replace(ladder, rival=None), able)
    base, *rest = [rung for rung in climbed if rung.recipe is not None]
    changes = {rung.name: catalog.load_rung(rung.name).change for rung in rest}
    skipped = {rung.name: rung.skipped for rung in climbed if rung.skipped is not None}
    pair = choose_pair(job.options.rung, list(changes), skipped, ladder.name)
    recipes: dict[Out, Fields] = {}
    for out in list_outs(pair):
        left = changes
        for name in out:  # with those that extend or rest on it
            left = modes.without(name, left) if name in left else left
        laid = dict(catalog.load_rung(base.name).change)
        for change in left.values():
            laid |= change
        recipes[out] = Recipe.from_dict(laid, where="it").to_dict()
    if len({str(recipe) for recipe in recipes.values()}) < len(recipes):
        raise UserError(
            f"--rung: {' and '.join(pair)} are not apart in ladder {ladder.name}: take another pair"
        )
    return recipes


def choose_pair(
    asked: Sequence[str], names: Sequence[str], skipped: dict[str, str], ladder: str
) -> tuple[str, str]:
    """Return the two rungs: those of the user, else the article's policy's, else the first two that run here."""
    from stylegan_lite.config import suggestion

    if not asked:
        usual = PAIR if {*PAIR} <= {*names} else names[:2]
        if len(usual) < 2:
            raise UserError(f"ladder {ladder}: fewer than two of its rungs run here")
        return usual[0], usual[1]
    if len({*asked}) != 2:
        raise UserError("--rung: name two rungs, --rung A --rung B; the map shows where each matters")
    for name in asked:
        if name in skipped:
            raise UserError(f"--rung: {name} cannot run here: {skipped[name]}")
        if name not in names:
            raise UserError(f"--rung: ladder {ladder} has no change {name!r}{suggestion(name, names)}")
    return asked[0], asked[1]


def _open_recipes(session: Session) -> contextlib.nullcontext[dict[Out, Fields]]:
    return contextlib.nullcontext(make_recipes(session.job))


@contextlib.contextmanager
def _settle(session: Session) -> Iterator[None]:
    """Wait until nothing else disturbs the first look."""
    session.pool.wait()
    session.visits.look_around()
    yield


def _look(session: Session, task: Task) -> Look:
    from ladder.engine import looks

    worker = session.pool.take()
    try:
        return looks.in_fresh_process(worker, task, session.visits, CYCLES)
    finally:
        worker.close()


# --- the report -------------------------------------------------------------------------------------------------------


def make_table(found: Map, rung: str, clock: str) -> Table:
    """Return a heat map: what a rung gains by a clock, resolutions by batches."""
    sizes, batches = found.axes
    columns = [Column(f"batch {batch}", "factor", place) for place, batch in enumerate(batches)]
    rows = []
    for resolution in sizes:
        places = [(rung, clock, resolution, batch) for batch in batches]
        gains = [found.find_gain(*each) or found.explain_gap(*each) or None for each in places]
        rows.append([f"{resolution}x{resolution}", *gains])
    return Table([Column(f"{rung}, {CLOCKS[clock]}"), *columns], rows)


def make_cell_table(found: Map) -> Table:
    """Return the times of every cell by recipe: ms a step by the wall clock."""
    outs, rows = list_outs(found.protocol.rungs), []
    for resolution, batch in found.protocol.cells:
        cells = [found.find_row(resolution, batch, out) for out in outs]
        times = [time_ms(row, WALL) or (row.status if row else None) for row in cells]
        rows.append([f"{resolution}x{resolution}, batch {batch}", *times])
    columns = [Column(title_recipe(out), "ms", place) for place, out in enumerate(outs)]
    return Table([Column("ms/step"), *columns], rows)


def describe_rung(found: Map, rung: str) -> str:
    """Return the batches at which a rung matters, by resolution, as a sentence."""
    places: dict[str, list[str]] = {}
    sizes, batches = found.axes
    for resolution in sizes:
        gains = [(batch, found.find_gain(rung, WALL, resolution, batch)) for batch in batches]
        known = [(batch, gain) for batch, gain in gains if gain is not None]
        if known:
            some = (
                f" ({len(known)} of {len(batches)} batches have a time)" if len(known) < len(batches) else ""
            )
            places.setdefault(_describe_batches(known), []).append(f"{resolution}x{resolution}{some}")
    if not places:
        return f"{rung}: no cell has a time with it and one without it."
    where = [f"{batches_} at {' and '.join(at)}" for batches_, at in places.items()]
    if places == {EVERY_BATCH: [f"{resolution}x{resolution}" for resolution in sizes]}:
        cells = len(found.protocol.cells)
        where = [f"in all {cells} cells" if cells > 1 else "in the one cell"]
    return f"{rung} saves {100 * (COUNTS - 1):.0f}% of the step or more {', '.join(where)}."


def _describe_batches(known: Sequence[tuple[int, float]]) -> str:
    """Return at which batches a factor counts, in the shortest words."""
    batches = [batch for batch, _ in known]
    good = [batch for batch, value in known if value >= COUNTS]
    if not good:
        return "at no batch"
    if good == batches:
        return EVERY_BATCH
    if good == batches[: len(good)]:
        return f"up to batch {good[-1]}"
    if good == batches[-len(good) :]:
        return f"from batch {good[0]}"
    return f"at batch {', '.join(map(str, good))}"


def describe_policy(found: Map) -> str:
    """Return how the article's policy fares against the fastest recipe of each cell."""
    pair = found.protocol.rungs
    if tuple(pair) != PAIR:
        return "The article's policy is about CUDA graphs and channels_last, so this pair does not test it."
    lost, whole = {}, []
    for resolution, batch in found.protocol.cells:
        times = {out: found.find_ms(resolution, batch, out) for out in list_outs(pair)}
        best = min((ms for ms in times.values() if ms), default=None)
        ruled, top = times[(pair[1],) if resolution <= ARTICLE_TO else (pair[0],)], times[()]
        if best and ruled and top:
            lost[resolution, batch] = ruled / best
            whole.append(top / best)
    if not lost:
        return "The article's policy is not tested: no cell has a time under it."
    good = sum(value <= COUNTS for value in lost.values())
    worst = max(lost, key=lambda each: lost[each])
    return (
        f"The article's policy (graphs and NCHW up to {ARTICLE_TO}x{ARTICLE_TO}, channels_last and no graphs above) is"
        f" within {100 * (COUNTS - 1):.0f}% of the fastest recipe in {good} of {len(lost)} cells; it takes"
        f" {fine_factor(statistics.geometric_mean(lost.values()))} the time of the fastest on average and"
        f" {lost[worst]:.2f}x at {worst[0]}x{worst[0]}, batch {worst[1]}, where the whole ladder everywhere takes"
        f" {fine_factor(statistics.geometric_mean(whole))} on average."
    )


def list_findings(found: Map) -> list[str]:
    """Return the findings, one sentence each."""
    findings = [describe_rung(found, rung) for rung in found.protocol.rungs] + [describe_policy(found)]
    rows = found.rows
    if lacking := [row for row in rows if row.status == "oom"]:
        findings.append(f"{len(lacking)} of {len(rows)} rows ran out of memory.")
    if void := [row for row in rows if row.look and row.look.gpu_void]:
        first = void[0]
        where = f"{first.resolution}x{first.resolution}, batch {first.batch}, {title_recipe(first.out)}"
        reason = first.look.gpu_void if first.look else ""
        findings.append(f"GPU time is void in {len(void)} of {len(rows)} rows, first at {where}: {reason}.")
    return findings


# --- the chart: a heat map for each of the two rungs by each clock ----------------------------------------------------

WIDE = 12.5  # inches


def draw_chart(found: Map, file: File, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes. The same result gives the same bytes."""
    from ladder.report import drawing

    return drawing.save(lambda: _draw_figure(found, file, theme), kind, theme)


def _draw_figure(found: Map, file: File, theme: Theme) -> Any:
    """Draw the heat maps. The colours of a rung mean the same by both clocks."""
    from matplotlib.figure import Figure

    from ladder.report.drawing import wrapped
    from ladder.report.heatmap import heatmap

    clocks, (sizes, batches) = found.list_clocks(), found.axes
    lines = [line for each in list_findings(found) for line in wrapped(each, 9, WIDE - 0.5, 3)]
    top, row = 0.95 + 0.19 * len(lines), 1.15 + 0.48 * len(sizes)
    high = top + row * len(clocks) + 0.45
    figure = Figure(figsize=(WIDE, high))
    grid = figure.add_gridspec(
        len(clocks), 2, left=0.075, right=0.985, top=1 - (top + 0.35) / high, bottom=0.85 / high, wspace=0.16,
        hspace=0.5,
    )  # fmt: skip
    for x, rung in enumerate(found.protocol.rungs):
        known = [value for each in found.gains if each.rung == rung for value in (each.wall, each.gpu)]
        most = max((abs(math.log(value)) for value in known if value), default=0.0)
        for y, clock in enumerate(clocks):
            axes = figure.add_subplot(grid[y, x])
            heading = f"{rung}: gain in {'the step' if clock == WALL else 'GPU time'}"
            axes.set_title(heading, loc="left", fontsize=10.5, fontweight="bold", color=theme.ink)
            places = [[(rung, clock, size_, batch) for batch in batches] for size_ in sizes[::-1]]
            values = [[_log(found.find_gain(*each)) for each in line] for line in places]
            instead = [[found.explain_gap(*each) for each in line] for line in places]
            names = [f"{size_}x{size_}" for size_ in sizes[::-1]]
            heatmap(axes, names, [str(batch) for batch in batches], values, theme, _format_log, instead, most)
            axes.set_xlabel("batch", color=theme.muted, fontsize=8.5)
    _draw_header(figure, found, file, lines, theme)
    return figure


def _log(value: float | None) -> float | None:
    return None if value is None else math.log(value)


def _format_log(log: float | None) -> str:
    return "" if log is None else f"{math.exp(log):.2f}x"


def _draw_header(figure: Any, found: Map, file: File, lines: Sequence[str], theme: Theme) -> None:
    from ladder.report.drawing import fitted

    facts, rules, high = file.machine, found.protocol, figure.get_figheight()
    notes = f" ({rules.notes[0]})" if rules.notes else ""
    title = f"{facts.gpu or facts.cpu}: where two rungs matter{notes}"
    fitted(figure, 0.02, 1 - 0.42 / high, title, 15, fontweight="bold", color=theme.ink)
    for number, line in enumerate(lines):
        figure.text(0.02, 1 - (0.74 + 0.19 * number) / high, line, fontsize=9, color=theme.ink)
    how = f"{(file.workload or {})['name']} at other sizes, ladder {rules.ladder}; a fresh process for every recipe"
    under = f"{how} in every cell, {texts.counted(rules.cycles, 'cycle')}. PyTorch {facts.torch}."
    fitted(figure, 0.02, 0.14 / high, under, 8, color=theme.muted)
