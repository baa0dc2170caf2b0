"""The sections of a ladder's run, a function each: None where the files say nothing of its subject."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ladder.base import records
from ladder.base.errors import UserError
from ladder.base.text import amount, between, bounds, factor, ms
from ladder.plan import modes
from ladder.publish.report.inputs import Inputs
from ladder.publish.report.studies import complete_recipe, list_joules, make_table
from ladder.receipts import categories
from ladder.report import checks, explain, gpus, panels, recommend, recommend_text, tables
from ladder.report.explain import Explained, Side
from ladder.report.recommend import Recommendation
from ladder.report.view import Row, View
from ladder.results import parts, publishable
from ladder.results.parts import Parts
from ladder.results.run import Result, RungResult
from ladder.results.values import AMBIGUOUS, TOO_FEW
from ladder.results.words import UNDECIDED, Seen, answer
from ladder.show.page import Bar, Bars, Block, Code, Files, Fold, Part, Section
from ladder.show.table import Column, Table

ROOM = 1.02  # the longest bar of a chart leaves two percent
PUBLISHED_AT = 256  # the resolution of NVIDIA's figures
# Columns of the table of `ladder report` that have a section of their own, and the lines below it on these.
ELSEWHERE = ("receipts", "parity", "allocated GiB", "device GiB", "reserved GiB", "peak RSS, GiB", "images/s")
LINES_ELSEWHERE = ("parity:", "device GiB:", "article:")
UNPROVED = "not in this result"
FUSED = "fused kernels"
# Colour class of each category, in the order in which a bar holds them. The style sheet has the colours.
TONES = {
    categories.CONVOLUTION: "k0",
    categories.MATMUL: "k1",
    categories.NORMALIZATION: "k2",
    categories.RESAMPLING: "k3",
    categories.LAYOUT: "k4",
    categories.ELEMENTWISE: "k5",
    categories.REDUCTIONS: "k6",
    FUSED: "k7",
    categories.COMPILED: "k8",
    categories.OPTIMIZER: "k9",
    categories.COPIES: "k10",
    categories.RANDOM: "k11",
    categories.OTHER: "k11",
}
LEAST_MS = 0.005
UNITS = {"gpu_memory_gb": "GPU memory, GiB", "ram_gb": "RAM, GiB", "gpu": "GPU", "cpu": "CPU", "os": "system"}


# --- the staircase ----------------------------------------------------------------------------------------------------


def show_staircase(inputs: Inputs) -> Section:
    """Return a bar of milliseconds for each rung, its gains by both clocks, and the total."""
    shown = inputs.shown
    has_waiting = shown.has_gpu_time or any(row.host_bound is not None for row in shown.rows)
    legend = [("busy", "GPU working"), ("idle", "GPU waiting")]
    chart = Bars(
        [_draw_step(row, shown, number) for number, row in enumerate(shown.rows)],
        panels.most_ms(shown) * ROOM,
        f"Milliseconds a step of each rung, {panels.NAMED[shown.mode]}",
        legend if has_waiting else [("busy", "milliseconds a step")],
    )
    lines = [*shown.sentences]
    if any(row.interval for row in shown.rows):
        lines.append(f"under a bar: its 95% interval over {shown.unit}s")
    if panels.is_above(shown.rows):
        lines.append(panels.ABOVE)
    if any(row.article_ms for row in shown.rows):
        lines.append(f"article: {shown.reference}; another machine and another PyTorch, not a target")
    return Section(
        "staircase",
        "The staircase" if shown.mode == modes.CUMULATIVE else "The runs",
        f"Milliseconds a step, lower is better; {panels.NAMED[shown.mode]}.",
        [chart, lines],
    )


def _draw_step(row: Row, shown: View, number: int) -> Bar:
    if row.step_ms is None:
        return Bar(row.title, missing=f"{row.status}{': ' + row.reason if row.reason else ''}")
    busy = panels.busy_ms(row)
    waits = max(row.step_ms - busy, 0.0)
    is_known = row.gpu is not None or not shown.has_gpu_time
    figure, waiting = panels.short_ms(row.gpu.ms if row.gpu else busy), panels.short_ms(waits)
    drawn = [Part(busy, "busy" if is_known else "unknown", [figure])]
    if waits:
        drawn.append(Part(waits, "idle", [f"waits {waiting}", waiting]))
    words = _list_gains(row, shown) if number else [("advice", row.advice)] if row.advice else []
    return Bar(row.title, drawn, f"{ms(row.step_ms)} ms", words, row.interval)


def _list_gains(row: Row, shown: View) -> list[tuple[str, str]]:
    """Return what the rung gains by each clock, and its total."""
    clocks = [("step", row.seen, row.gain)]
    if row.gpu:
        clocks.insert(0, ("GPU", row.gpu.seen, row.gpu.gain))
    around = bounds if shown.generations else between
    before = "with it " if shown.mode == modes.LEAVE_ONE_OUT else ""
    words = [(clock, _format_answer(seen, around(gain), before)) for clock, seen, gain in clocks]
    if row.advice:
        words.append(("advice", row.advice))
    if shown.mode == modes.CUMULATIVE and row.total:
        total = factor(row.total)
        if row.gpu and row.gpu.total:
            total = f"{total} / {factor(row.gpu.total)} GPU"
        article = f", article {factor(row.article_total)}" if row.article_total else ""
        words.append(("total", f"{total}{article}"))
    return words


def _format_answer(seen: Seen, around: str, before: str) -> str:
    """Return an answer with words before it and the interval around it. An open one is called open."""
    words = f"{before}{answer(seen) or 'no verdict'}"
    if not seen.verdict or seen.verdict in (AMBIGUOUS, TOO_FEW):
        words = f"{words}, {UNDECIDED}"
    return f"{words} ({around})" if around else words


# --- advice and verdicts ----------------------------------------------------------------------------------------------


def show_advice(inputs: Inputs) -> Section | None:
    """Return the recommendation, and every rung's time in units of practice; None where no rung has a number."""
    try:
        advice = recommend.recommend(inputs.sources, price=inputs.price)
    except UserError:
        return None
    has_published = inputs.main.workload.get("resolution") == PUBLISHED_AT
    published = [gpus.PUBLISHED_AS] if has_published else []
    rungs = [recommend_text.head(advice), *recommend_text.rows(advice)]
    blocks: list[Block] = [
        f"Recipe: {', '.join(advice.kept)}",
        make_table(recommend_text.figures(advice), "The recommended recipe in units of practice"),
        make_table(rungs, "Advice on each rung"),
        recommend_text.below(advice),
        Fold("Why, rung by rung", [recommend_text.reasons(advice)]),
        Fold("Every rung in units of practice", [_tabulate_units(inputs, advice, has_published), published]),
    ]
    if advice.recipe is not None:
        code = Code(recommend_text.recipe_yaml(advice, inputs.whose))
        blocks.append(Fold("The recipe as YAML, for `ladder train --recipe`", [code]))
    files = ", ".join(f"{kind} {name}" for kind, name in inputs.names.items())
    return Section("advice", "What to switch on", f"As `ladder recommend` says it, from {files}.", blocks)


def _tabulate_units(inputs: Inputs, advice: Recommendation, has_published: bool) -> Table:
    hours = f"hours for {recommend.count(advice.images)} images"
    columns = [
        Column("rung"),
        Column("ms/step", "ms"),
        Column("s/kimg", "decimal"),
        Column("images/s", "amount"),
        Column(hours, "decimal"),
        Column("money", "decimal"),
        Column("J/step", "amount"),
    ]
    rows = []
    joules = list_joules(inputs)
    for rung in inputs.main.rungs:
        if rung.status != "ok" or not rung.step_ms:
            continue
        each = recommend.units(rung.step_ms, advice.batch, advice.images, advice.price)
        recipe = None if rung.recipe is None else complete_recipe(rung.recipe)
        used = next((energy for other, energy in joules if other == recipe), None)
        rows.append([rung.name, each.ms, each.s_per_kimg, each.images_per_s, each.hours, each.money, used])
    for other in gpus.PUBLISHED if has_published else ():
        hours_there = other.s_kimg * advice.images / 3.6e6
        name = f"{gpus.PUBLISHER}, {other.gpu}"
        rows.append([name, None, other.s_kimg, 1000 / other.s_kimg, hours_there, None, None])
    return Table(columns, rows).drop_empty()


def show_verdicts(inputs: Inputs) -> Section:
    """Return every number of the table of `ladder report`, without those that have a section of their own."""
    shown = inputs.shown
    columns = [(heading, cell) for heading, cell in tables.columns_of(shown) if heading not in ELSEWHERE]
    rows = [["rung", *(heading for heading, _ in columns)]]
    rows += [[row.name, *(cell(row) for _, cell in columns)] for row in shown.rows]
    return Section(
        "verdicts",
        "Verdicts",
        "An interval is a 95% interval. A verdict asks it against the noise floor of this run.",
        [
            make_table(rows),
            [line for line in list_lines_below(shown) if not line.startswith(LINES_ELSEWHERE)],
        ],
    )


def list_lines_below(shown: View) -> list[str]:
    """Return what a reader must know of a table, without the sentences and marks that stand elsewhere."""
    return [line for line in tables.lines_below(shown) if line not in (*shown.sentences, *shown.marks)]


# --- the GPU's work ---------------------------------------------------------------------------------------------------


def show_categories(inputs: Inputs) -> Section | None:
    """Return the GPU's work of each rung by what its kernels do, and the waiting; None without a profile."""
    profiles = [
        (rung, each) for rung in inputs.main.rungs if rung.status == "ok" and (each := parts.parts_of(rung))
    ]
    if not profiles:
        return None
    sizes = [_join_fused(each) for _, each in profiles]
    lengths = [
        max(sum(each.values()), sum(each.values()) + _waiting_ms(rung))
        for (rung, _), each in zip(profiles, sizes, strict=True)
    ]
    shown = {name for each in sizes for name, size in each.items() if size >= LEAST_MS}
    legend = [(tone, name) for name, tone in TONES.items() if name in shown]
    is_twice = any(each.own is None for _, each in profiles)
    note = (
        "The parts are of the first profiled cycle of one process, and the waiting is the median of all. "
        "Two kernels that ran at once are counted "
        + ("twice, so a bar may be a little longer than the GPU time." if is_twice else "once.")
    )
    chart = Bars(
        [_draw_categories(rung, each) for rung, each in profiles],
        max(lengths) * ROOM,
        "Milliseconds of GPU work of each rung by category",
        [*legend, ("idle", "waiting")],
    )
    return Section(
        "categories",
        "What the GPU does",
        "GPU milliseconds a step by category of kernels, and the time in which the GPU waits.",
        [chart, Fold("Milliseconds by category", [_tabulate_categories(profiles)]), [note]],
    )


def _join_fused(profile: Parts) -> dict[str, float]:
    """Return milliseconds by category, in the order of the bars; all kernels that join operations are one."""
    sizes = dict.fromkeys(TONES, 0.0)
    for name, work in profile.shown.items():
        own = FUSED if name.startswith(categories.FUSED) else name if name in TONES else categories.OTHER
        sizes[own] += work.ms
    return sizes


def _waiting_ms(rung: RungResult) -> float:
    return rung.waiting_ms or 0.0


def _draw_categories(rung: RungResult, profile: Parts) -> Bar:
    drawn = [(size, TONES[name]) for name, size in _join_fused(profile).items()]
    drawn.append((_waiting_ms(rung), "idle"))
    figures = [Part(size, tone, [panels.short_ms(size)]) for size, tone in drawn if size]
    return Bar(
        rung.title, figures, f"{ms(profile.gpu_ms)} ms GPU", [("", f"{profile.launches:,.0f} launches")]
    )


def _tabulate_categories(profiles: Sequence[tuple[RungResult, Parts]]) -> Table:
    """Return a row for each rung and a column for every category, those of fused kernels apart, the heaviest first.

    Names of categories have spaces to break at, and names of rungs have none: 25 of them are wider than paper.
    """
    sizes = [{name: work.ms for name, work in each.shown.items()} for _, each in profiles]
    names = dict.fromkeys(name for each in sizes for name in each)
    order = sorted(names, key=lambda name: -sum(each.get(name, 0.0) for each in sizes))
    headings = [*order, "GPU time of that cycle", "waiting"]
    rows = [
        [rung.name, *(each.get(name, 0.0) for name in order), profile.gpu_ms, _waiting_ms(rung)]
        for (rung, profile), each in zip(profiles, sizes, strict=True)
    ]
    return Table([Column("ms a step"), *(Column(name, "decimal") for name in headings)], rows)


def show_steps(inputs: Inputs) -> Section | None:
    """Return what the difference of two neighbours consists of; None if no two of them have a profile."""
    if inputs.staircase is None:
        return None
    path, main = inputs.main_run[0], inputs.main
    sides = [
        Side(path, main, rung, each)
        for rung in main.rungs
        if rung.status == "ok" and (each := parts.parts_of(rung))
    ]
    explained = [explain.explain(*pair) for pair in pairwise(sides)]
    if len(explained) > 1:
        explained.append(explain.explain(sides[0], sides[-1]))
    if not explained:
        return None
    return Section(
        "steps",
        "Why: each step explained",
        "As `ladder explain A B` says it. A difference inside the noise, or not decided, is not explained.",
        [_explain_step(each) for each in explained],
    )


def _explain_step(step: Explained) -> Fold:
    first, second = step.names
    table = make_table([explain.head(step), *explain.rows(step)])
    sentence = explain.sentence(step).removeprefix(f"{second}: ")
    name = f"{first} → {second}"
    return Fold(sentence, [table, explain.notes(step)], name, is_muted=not step.differs)


# --- memory, proofs, circumstances, files -----------------------------------------------------------------------------


def show_memory(inputs: Inputs) -> Section | None:
    """Return what was allocated, reserved, and held on the device; None where no rung knows it."""
    shown = inputs.shown
    rows = [row for row in shown.rows if row.status == "ok" and _most_gib(row)]
    if not rows:
        return None
    legend = [("busy", "allocated"), ("idle", "reserved"), ("more", "on the device")]
    if not any(row.allocated for row in rows):
        legend = [("busy", shown.memory)]
    columns = [
        Column("rung"),
        *(Column(name, "amount") for name in ("allocated GiB", shown.memory, "device GiB")),
    ]
    table = Table(columns, [[row.name, row.allocated, row.memory, row.device] for row in rows]).drop_empty()
    device = tables.DEVICE_ADDED if shown.generations else tables.DEVICE
    return Section(
        "memory",
        "Memory",
        "Peaks of one process of each rung, in GiB.",
        [
            Bars(
                [_draw_memory(row) for row in rows],
                max(map(_most_gib, rows)) * ROOM,
                "GiB of each rung",
                legend,
            ),
            Fold("GiB of each rung", [table]),
            [device] if any(row.device for row in rows) else [],
        ],
    )


def _most_gib(row: Row) -> float:
    return max(row.allocated or 0.0, row.memory or 0.0, row.device or 0.0)


def _draw_memory(row: Row) -> Bar:
    """Return a bar of what is allocated, what is reserved beyond it, and what the device holds beyond that."""
    drawn, reached = [], 0.0
    tones = ("busy", "idle", "more") if row.allocated else ("idle", "busy", "more")
    for size, tone in zip((row.allocated, row.memory, row.device), tones, strict=True):
        if size and size > reached:
            drawn.append(Part(size - reached, tone))
            reached = size
    return Bar(row.title, drawn, f"{amount(reached)} GiB")


def show_proofs(inputs: Inputs) -> Section:
    """Return the receipts of each rung, which show that it was on, and its parity with the reference."""
    main = inputs.main
    rows = [
        [row.name, row.receipts or UNPROVED, row.parity or UNPROVED]
        for row in inputs.shown.rows
        if row.status not in ("n/a", "skipped")
    ]
    folds = []
    for rung in main.rungs:
        receipts, cells = checks.receipt_lines(rung), checks.parity_cells(rung)
        if receipts or cells:
            errors = [make_table([checks.PARITY_HEADINGS, *cells])] if cells else []
            folds.append(Fold(rung.name, [receipts, checks.parity_lines(rung), *errors], on_paper=False))
    if tiles := checks.choice_lines(main):
        folds.append(Fold("Tiles that the kernels ran with", [tiles], on_paper=False))
    return Section(
        "proofs",
        "Receipts and parity",
        "A receipt shows that a rung was on. Parity is the largest error as a share of its budget.",
        [make_table([["rung", "receipts", "parity"], *rows]), *folds],
    )


def show_environment(inputs: Inputs) -> Section:
    """Return hardware, software, protocol, the GPU's state and the settings of PyTorch."""
    main = inputs.main
    folds = [
        Fold("Workload", [_tabulate_facts(main.workload)]),
        Fold("Protocol", [_tabulate_facts(records.plain(main.protocol))]),
    ]
    timed = [rung for rung in main.rungs if rung.status == "ok"]
    for rung in timed[:1] + timed[1:][-1:]:
        facts = [
            (f"Recipe of {rung.name}", rung.recipe),
            (f"PyTorch's settings in {rung.name}", rung.settings),
        ]
        folds += [Fold(title, [_tabulate_facts(each)], on_paper=False) for title, each in facts if each]
    if main.environment:
        folds.append(Fold("Variables that were set", [_tabulate_facts(main.environment)]))
    return Section(
        "environment",
        "Environment",
        "Compare times only with results of the same machine and software.",
        [_tabulate_facts(_list_machine_facts(main)), *folds],
    )


def _list_machine_facts(main: Result) -> dict[str, object]:
    facts = {UNITS.get(key, key): value for key, value in records.plain(main.machine).items()}
    gpu = main.gpu or None
    return facts | {
        "started": main.started,
        "minutes": f"{main.seconds / 60:.1f}",
        "commit": f"{main.commit or 'unknown'}{' with changes' if main.dirty else ''}",
        "measured code": ", ".join(f"{name} {code}" for name, code in (main.measured_code or {}).items()),
        "GPU during the run": f"{gpu.state}, {gpu.tenancy}" if gpu else "not watched",
        "visits rejected": gpu.rejected_visits if gpu else None,
    }


def _tabulate_facts(facts: Mapping[str, object]) -> Table:
    rows = [
        [name, value if isinstance(value, str) else json.dumps(value)]
        for name, value in facts.items()
        if value is not None
    ]
    return Table([Column(""), Column("")], rows)


def show_files(inputs: Inputs) -> Section:
    """Return every file that the page is made of, inside the page, to be saved from it."""
    marks = {file.name: file.marks for file in inputs.files}
    rows = []
    for name, data in inputs.raw.items():
        size = len(json.dumps(data, separators=(",", ":")))
        remarks = map(publishable.told, marks.get(name, ()))
        rows.append((name, "; ".join([f"{size / 1000:,.0f} KB", *remarks])))
    return Section(
        "raw",
        "Raw data",
        "Every file that this page is made of, with all samples in time order. The data is in the page itself.",
        [Files(rows, inputs.raw)],
    )
