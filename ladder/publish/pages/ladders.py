"""Tables of `ladder run`: staircases, gains at the top, one row for each workload."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ladder.plan import modes
from ladder.publish import gallery
from ladder.publish.pages import studies
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import absent, link, text, under
from ladder.report import gpus as picture
from ladder.report import tables
from ladder.report.advising import ADOPT, Sources
from ladder.report.recommend import list_reasons, recommend, tabulate_rungs, tabulate_units
from ladder.report.view import Row, View, shown_gain, shown_verdict, view
from ladder.results import derive, sources
from ladder.results.combine import gains as across
from ladder.results.combine import series
from ladder.results.run import Result
from ladder.results.words import answer
from ladder.show.table import Column, Table, render_markdown
from ladder.studies import frame
from ladder.studies.profile.study import STUDY as PROFILE

CARDS, DRIVERS = (6, 8, 10, 12, 16, 24, 32, 40, 48, 80), 0.5  # GiB of memory, and what no process gets of it
NOT_BESIDE = {"95% interval", "reserved GiB", "device GiB"}
CUMULATIVE, LEAVE_ONE_OUT = modes.CUMULATIVE, modes.LEAVE_ONE_OUT

# A column with what it shows of a rung. An answer in words stands under numbers, at their side of the column.
Field: TypeAlias = tuple[Column, Callable[[Row], Any]]
RUNG: Field = Column("rung"), lambda row: row.title
STEP: Field = Column("ms/step", "ms"), lambda row: row.step_ms if row.status == "ok" else row.status
INTERVAL: Field = Column("95% interval", "ms_interval"), lambda row: row.interval
# GPU time without an interval has too few generations to be quoted.
GPU_MS: Field = Column("GPU ms", "ms"), lambda row: row.gpu.ms if row.gpu and row.gpu.interval else None
GPU_INTERVAL: Field = Column("95% interval", "ms_interval"), lambda row: row.gpu and row.gpu.interval
GPU_WORK: Field = Column("GPU work", "amount"), lambda row: answer(row.gpu.seen) if row.gpu else None
STEP_ANSWER: Field = Column("step", "amount"), lambda row: answer(row.seen)
GAIN_INTERVAL: Field = Column("interval", "interval"), lambda row: row.gain
VERDICT: Field = Column("verdict", "amount"), shown_verdict
ADVICE: Field = Column("advice", "amount"), lambda row: row.advice
TOTAL: Field = Column("total", "speedup"), lambda row: row.total
TOTAL_INTERVAL: Field = Column("total interval", "interval"), lambda row: row.total_interval
MAIN: Field = Column("without R1, path length", "ms"), lambda row: row.main_ms
ARTICLE: Field = Column("article, A100", "amount"), lambda row: row.article_ms and f"{row.article_ms:g}"
ARTICLE_TOTAL: Field = Column("its total", "speedup"), lambda row: row.article_total
TWO_CLOCKS = (GPU_MS, GPU_INTERVAL, GPU_WORK, STEP_ANSWER)


def render_rows(fields: Sequence[Field], rows: Iterable[Row]) -> str:
    """Return a table of rungs with these columns."""
    cells = [[value(row) for _, value in fields] for row in rows]
    return render_cells([column for column, _ in fields], cells)


def render_cells(columns: Sequence[Column], cells: Sequence[Sequence[Any]]) -> str:
    """Return a table of these values."""
    return render_markdown(Table(columns, cells)) + "\n"


def make_columns(*titles: str, kind: str) -> list[Column]:
    """Return columns of one kind."""
    return [Column(title, kind) for title in titles]


# --- the article's ladder on every GPU --------------------------------------------------------------------------------


def render_gpus(committed: Committed) -> str:
    """Return the article's ladder on every GPU, with a row of the ladder `full` and of NVIDIA's own step.

    A GPU without a decided run of the article's ladder is shown by its rungs in the run of `full`. Once a GPU has whole
    generations, which may be quoted, GPUs with older results alone are left out.
    """
    runs = enumerate(_list_staircases(committed))
    return "\n".join(_render_gpu(committed, run, is_first=not number) for number, run in runs)


def _list_staircases(committed: Committed) -> list[Result]:
    """Return the run that shows the article's ladder, of each GPU of `render_gpus`."""
    article = (gallery.ARTICLE, gallery.ARTICLE, CUMULATIVE)
    runs = [each for (_, *key), each in committed.best.items() if tuple(key) == article and each.machine.gpu]
    return list(filter(gallery.is_decided, runs)) or runs


def _render_gpu(committed: Committed, result: Result, is_first: bool) -> str:
    """Return the table of a GPU. The article's figures stand in the first table alone."""
    shown = view(result)
    fields = [(Column("rung", "markdown"), lambda row: text(row.title)), STEP]
    fields += [GPU_MS, GPU_WORK, STEP_ANSWER] if shown.has_gpu_time else [INTERVAL, VERDICT]
    fields += [ADVICE] if any(row.advice for row in shown.rows) else []
    fields += [TOTAL, *((ARTICLE, ARTICLE_TOTAL) if is_first else ())]
    cells = [[value(row) for _, value in fields] for row in shown.rows]
    full = committed.top(result.machine.name, gallery.ARTICLE, gallery.FULL)
    if full is not None and (timed := _list_timed(all_rungs := view(full))):
        top = timed[-1]
        count = picture.rungs_up_to(full, top.name)
        name = name_all_rungs(count, len(all_rungs.rows), committed.chart(full))
        if _count_rounds(full) != _count_rounds(result):
            name += f", {_describe_rounds(full)}"
        if all_rungs.marks:
            name += ", not to be quoted"
        shared = (STEP, INTERVAL, GPU_MS, TOTAL)
        cells.append([name, *(field[1](top) if field in shared else None for field in fields[1:])])
    if theirs := studies.nvidias(committed, result.machine.name, gallery.ARTICLE):
        known = dict(zip(("rung", "ms/step", "GPU ms"), theirs, strict=True))
        cells.append([known.get(column.title) for column, _ in fields])
    table = render_cells([column for column, _ in fields], cells)
    return f"**{result.machine.gpu}**, `article`\n\n{table}{_cite(committed, result, shown, is_brief=True)}"


def name_all_rungs(count: int, rows: int, page: str) -> str:
    """Return the name of the top of `full`, whose run may have timed some rungs alone; the linked page shows these."""
    if rows == count:
        return f"all {count} rungs of {link('`full`', page)}"
    return f"all {count} rungs of `full` at once ({link(f'run of {rows} rungs', page)})"


def render_agreement(committed: Committed) -> str:
    """Return how the gains of GPU time on two GPUs compare, as `ladder compare` says it; a table for each pair."""
    # A part of a run is compared as the whole run, whose noise its verdicts rest on.
    runs = [committed.ladder(committed.path_of(each)) for each in _list_staircases(committed)]
    return "\n".join(_compare_gpus(*pair) for pair in itertools.combinations(runs, 2))


def _compare_gpus(first: Result, second: Result) -> str:
    rows = [row for row in across.compare(first, second, {}) if row.gpu]
    names = [str(each.machine.gpu) for each in (first, second)]
    columns = [
        Column("rung"), Column(f"gain of GPU time, {names[0]}", "factor"), Column(names[1], "factor"),
        Column("verdict"), Column("where it lies", "markdown"),
    ]  # fmt: skip
    cells = [
        # where it lies is of the step, unless the gains of GPU time differ
        [
            row.name,
            gain.before,
            gain.after,
            across.told(gain),
            text(row.lies_in) if gain.verdict in across.DIFFERS else None,
        ]
        for row in rows
        if (gain := row.gpu)
    ]
    summary = across.summary([(row.name, row.gpu) for row in rows], names[1])
    doubt = across.OTHER_CODE if across.other_code(first, second) else ""
    return f"{render_cells(columns, cells)}{under(text(summary), doubt)}"


def _list_timed(shown: View) -> list[Row]:
    return [row for row in shown.rows if row.status == "ok"]


def _count_rounds(result: Result) -> str:
    """Return the generations of the rungs with a number: `3`, or `2 to 4`."""
    counts = sorted({len(derive.counted(rung)) for rung in result.rungs if rung.status == "ok"})
    return " to ".join(map(str, counts[:1] + counts[1:][-1:])) or "0"


def _describe_rounds(result: Result) -> str:
    return f"{sources.unit(result)}s: {_count_rounds(result)}"


def _cite(committed: Committed, result: Result, shown: View, is_brief: bool = False) -> str:
    """Return the line under a table: its generations, table and samples; a brief one names either."""
    parts = [_describe_rounds(result)]
    if result.part_of and not is_brief:
        parts.append(f"rungs of a run of `{result.part_of}`")
    visits = [visit for rung in result.rungs for visit in rung.rounds]
    if loose := sum(visit.settled is False for visit in visits):
        parts.append(f"{loose} of {len(visits)} visits unsettled")
    has_page = committed.is_best(result)
    if has_page:
        parts.append(link("table", committed.chart(result)))
    if not (is_brief and has_page):
        parts.append(link("samples", committed.path_of(result)))
    return under(*parts, *map(text, shown.marks))


# --- one result -------------------------------------------------------------------------------------------------------


def render_rungs(committed: Committed, name: str) -> str:
    """Return every rung of one result, with its verdict; with GPU times where the run has them."""
    result = committed.ladder(name)
    shown = view(result)
    own: Sequence[Field] = ((Column(shown.versus, "amount"), shown_gain), GAIN_INTERVAL, VERDICT)
    fields = [RUNG, STEP, INTERVAL, *(TWO_CLOCKS if shown.has_gpu_time else own), TOTAL, TOTAL_INTERVAL, MAIN]
    return render_rows(fields, shown.rows) + _cite(committed, result, shown)


def render_gains(committed: Committed, name: str) -> str:
    """Return the rungs of a leave-one-out result, the largest gain first."""
    result = committed.ladder(name)
    shown = view(result)
    own: Sequence[Field] = ((Column("gain at top", "amount"), shown_gain), GAIN_INTERVAL)
    left_out = Column("left out"), RUNG[1]
    fields = [left_out, STEP, INTERVAL, *(TWO_CLOCKS if shown.has_gpu_time else own), ADVICE]
    rows = sorted(shown.rows, key=lambda row: -(row.previous or 0))
    return render_rows(fields, rows) + _cite(committed, result, shown)


def render_memory(committed: Committed, name: str) -> str:
    """Return the time and the peak of memory of every rung of one result, and the largest batch where it is known.

    A run measures the workload's batch alone. `ladder profile RUNG --ladder LADDER --largest-batch` searches.
    """
    result = committed.ladder(name)
    shown, largest = view(result), _find_largest(committed, result)
    fields: list[Field] = [
        RUNG, STEP, INTERVAL, STEP_ANSWER, MAIN,
        (Column("reserved GiB", "amount"), lambda row: row.memory),
        (Column("allocated GiB", "amount"), lambda row: row.allocated),
        (Column("device GiB", "amount"), lambda row: row.device),
    ]  # fmt: skip
    if largest:
        fields.append((Column("largest batch", "amount"), lambda row: largest.get(row.name, (None, None))[0]))
        fields.append(
            (Column("images/s there", "amount"), lambda row: largest.get(row.name, (None, None))[1])
        )
    return render_rows(fields, shown.rows) + _cite(committed, result, shown)


def _find_largest(committed: Committed, result: Result) -> dict[str, tuple[str, float | None]]:
    """Return by rung the largest batch and its images a second, of profiles of that machine, workload and ladder."""
    largest = {}
    for name in committed.names("profile/*.json"):
        file = frame.decode_file(PROFILE, committed.read(name))
        profile, workload = PROFILE.derive(file), (file.workload or {}).get("name")
        names = file.machine.name, workload, profile.ladder
        same = names == (result.machine.name, result.workload["name"], result.ladder.name)
        if same and (most := profile.largest) is not None and most.batch:
            batch = f"{'' if most.settled else 'at least '}{most.batch}"
            largest[profile.rung or ""] = batch, most.images_per_s
    return largest


def render_beside(committed: Committed, name: str) -> str:
    """Return every entry of a study beside the first one.

    Its column of memory is what is allocated. The linked table has the other columns and a sentence on each entry.
    """
    result = committed.ladder(name)
    shown = view(result)
    table = replace(tables.tabulate(shown, titles=True).drop_columns(NOT_BESIDE), notes=())
    return f"{render_markdown(table)}\n{_cite(committed, result, shown)}"


def render_advice(committed: Committed, name: str) -> str:
    """Return what one run recommends: the advice on each rung, the units of practice, and why a rung is not ADOPT."""
    result = committed.ladder(name)
    left_out = series.left_out_of(result, [*committed.best.values()])
    is_alone = result.protocol.mode == LEAVE_ONE_OUT
    advice = recommend(Sources(None, result, {}) if is_alone else Sources(result, left_out, {}))
    reasons = list_reasons([each for each in advice.rungs if each.advice != ADOPT])
    both = "\n\n".join(map(render_markdown, (tabulate_rungs(advice), tabulate_units(advice))))
    lines = "".join(f"- {text(line)}\n" for line in reasons)
    return f"{both}\n\n{lines}{_cite(committed, result, view(result))}"


# --- one row for each workload ----------------------------------------------------------------------------------------


def render_workloads(committed: Committed, machine: str, ladder: str) -> str:
    """Return one row for each workload that climbed a ladder on a machine."""
    columns = [
        Column("workload", "markdown"), *make_columns("baseline, ms", "the article's eight, ms", "top, ms", kind="ms"),
        Column("interval", "ms_interval"), Column("top, GPU ms", "ms"), Column("speedup", "speedup"),
        Column("interval", "interval"), Column("without R1, path length", "speedup"), Column("generations", "amount"),
    ]  # fmt: skip
    cells = []
    for result in list_climbed(committed, machine, ladder):
        timed = {row.name: row for row in _list_timed(view(result))}
        top, eight = list(timed.values())[-1], timed.get("fused_act")
        work = result.workload
        name = link(f"`{work['name']}`", committed.chart(result))
        cells.append([
            f"{name}: {work['resolution']}x{work['resolution']}, batch {work['batch']}", timed["baseline"].step_ms,
            eight.step_ms if eight else "not measured", top.step_ms, top.interval, GPU_MS[1](top), top.total,
            top.total_interval, top.main_total, _count_rounds(result),
        ])  # fmt: skip
    return render_cells(columns, cells)


def list_climbed(committed: Committed, machine: str, ladder: str) -> list[Result]:
    """Return of each workload the best staircase that has the top of the ladder."""
    names = [name for where, name, *rest in committed.best if (where, *rest) == (machine, ladder, CUMULATIVE)]
    return [each for name in names if (each := committed.top(machine, name, ladder))]


def render_cards(committed: Committed, ladder: str) -> str:
    """Return what each workload's ends of a ladder hold on the device, most of all GPUs, and the cards that suffice."""
    machines = sorted({machine for (machine, *_), each in committed.best.items() if each.machine.gpu})
    held: dict[str, list[tuple[float, float, float]]] = {}  # of any rung, of the baseline, of the top
    for result in (each for machine in machines for each in list_climbed(committed, machine, ladder)):
        rows = [row.device for row in view(result).rows if row.device]
        if rows:
            held.setdefault(result.workload["name"], []).append((max(rows), rows[0], rows[-1]))
    most = {name: tuple(map(max, zip(*each, strict=True))) for name, each in held.items()}
    cells = [
        [f"`{name}`", first, any_, _find_card(any_), top, _find_card(top)]
        for name, (any_, first, top) in sorted(most.items(), key=lambda item: item[1])
    ]
    titles = ("baseline, GiB", "most of any rung, GiB", "card for all", "top, GiB", "card for it")
    columns = [Column("workload", "markdown"), *make_columns(*titles, kind="amount")]
    return render_cells(columns, cells) if cells else absent(f"ladder run --ladder {ladder}")


def _find_card(gib: float) -> str:
    """Return the smallest usual card that holds so much, its driver's part left out."""
    return next((f"{card} GB" for card in CARDS if gib <= card - DRIVERS), f"over {CARDS[-1]} GB")


def render_lazy(committed: Committed, machine: str, ladder: str) -> str:
    """Return the milliseconds that R1 and path length add to a step, at both ends of a ladder.

    They are measured in one generation of a run, so they have no interval.
    """
    cells = []
    for result in list_climbed(committed, machine, ladder):
        timed = [rung for rung in result.rungs if rung.status == "ok"]
        for rung in (timed[0], timed[-1]):
            costs = derive.lazy_costs(rung)
            added = (costs[phase][0] if phase in costs else None for phase in ("D_r1", "G_pl"))
            cells.append([f"`{result.workload['name']}`", rung.title, *added])
    added_columns = make_columns("R1 adds, ms", "path length adds, ms", kind="ms")
    shown = render_cells([Column("workload", "markdown"), Column("rung"), *added_columns], cells)
    return f"{shown}{under('of one generation of each run')}" if cells else shown


def list_staircases(committed: Committed, machine: str, workload: str, ladder: str) -> list[str]:
    """Return the names of all runs of one ladder that timed its baseline and another rung, the newest first."""
    names = reversed(committed.names(f"ladder/{machine}/{workload}-{ladder}-2*.json"))
    timed = ((name, _list_timed(view(committed.ladder(name)))) for name in names)
    return [name for name, rows in timed if len(rows) > 1 and rows[0].name == "baseline"]


def render_hosts(committed: Committed, names: list[str]) -> str:
    """Return the lowest and the highest rung of each of these staircases."""
    columns = [
        Column("run", "markdown"), Column("baseline, ms", "ms"), Column("interval", "ms_interval"),
        Column("last rung, ms", "ms"), Column("interval", "ms_interval"), Column("speedup", "speedup"),
        Column("interval", "interval"), *make_columns("ambiguous verdicts", "generations", kind="amount"),
    ]  # fmt: skip
    cells = []
    for name in names:
        result = committed.ladder(name)
        first, *_, last = timed = _list_timed(view(result))
        unclear = sum(row.verdict == "ambiguous" for row in timed)
        started = text(result.started[:16].replace("T", " "))
        cells.append([
            link(started, name), first.step_ms, first.interval, last.step_ms, last.interval, last.total,
            last.total_interval, f"{unclear} of {len(timed) - 1}", _count_rounds(result),
        ])  # fmt: skip
    return render_cells(columns, cells)


TABLES: dict[str, Callable[..., str]] = {
    "hosts": render_hosts,
    "gpus": render_gpus,
    "agreement": render_agreement,
    "rungs": render_rungs,
    "memory": render_memory,
    "beside": render_beside,
    "gains": render_gains,
    "workloads": render_workloads,
    "cards": render_cards,
    "lazy": render_lazy,
    "recommended": render_advice,
}
