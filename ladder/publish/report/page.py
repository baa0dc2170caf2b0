"""The page of a report: the outcome at its head, and its sections in their order, a function each.

A function returns None where the files say nothing of its subject. The frame shows the studies: `show_study`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path

from ladder.core import files
from ladder.core.errors import UserError
from ladder.core.protocol import AMBIGUOUS, TOO_FEW
from ladder.core.records import write_whole
from ladder.core.text import format_amount, format_bounds, format_factor, format_ms
from ladder.plan import modes
from ladder.publish.report.inputs import KINDS, Inputs, shorten_path
from ladder.receipts import categories
from ladder.report import chart, checks, explain, panels, recommend, tables
from ladder.report.advising import LEFT_OUT, STAIRCASE, Sources
from ladder.report.explain import Side
from ladder.report.recommend import Recommendation
from ladder.report.view import Row, View, view
from ladder.results import parts, publishable, store, words
from ladder.results.parts import Parts
from ladder.results.ranking import Stored
from ladder.results.run import Result, RungResult
from ladder.results.words import UNDECIDED, answer
from ladder.show.page import Bar, Bars, Block, Chart, Code, Files, Fold, Head, Part, Section, render_page
from ladder.show.table import Column, Table
from ladder.show.themes import DARK, LIGHT
from ladder.studies import frame
from ladder.studies.roofline import derive

FUSED = "fused kernels"
LEAST_MS = 0.005  # less is 0.00 in a table
# The categories in the order in which a bar holds them, each with its colour class in the style sheet.
ORDER = (
    categories.CONVOLUTION, categories.MATMUL, categories.NORMALIZATION, categories.RESAMPLING, categories.LAYOUT,
    categories.ELEMENTWISE, categories.REDUCTIONS, FUSED, categories.COMPILED, categories.OPTIMIZER, categories.COPIES,
    categories.RANDOM, categories.OTHER,
)  # fmt: skip
TONES = {name: f"k{min(number, 11)}" for number, name in enumerate(ORDER)}


def write_report(inputs: Inputs, path: Path) -> None:
    """Write the page, whole or not at all. The same files give the same text. Raises UserError."""
    files.write_file(path, render_page(make_head(inputs), list_sections(inputs)))


def list_sections(inputs: Inputs) -> list[Section]:
    """Return the sections of which the files say something, in order."""
    sections = [
        show_staircase(inputs),
        show_advice(inputs),
        show_verdicts(inputs),
        show_categories(inputs),
        show_steps(inputs),
        *(show_study(inputs, kind) for kind in ("profile", "ablation", "map")),
        show_mistakes(inputs),
        show_memory(inputs),
        *(show_study(inputs, kind) for kind in ("sustained", "roofline", "upstream")),
        show_proofs(inputs),
        show_environment(inputs),
        show_files(inputs),
    ]
    return [section for section in sections if section is not None]


# --- the outcome ------------------------------------------------------------------------------------------------------


def make_head(inputs: Inputs) -> Head:
    """Return the outcome: on which machine, by which protocol, and the figures of the first screen."""
    shown, batch = inputs.shown, int(inputs.main.workload["batch"])
    machine, _, facts = shown.machine.partition(", ")
    timed = [row for row in shown.rows if row.step_ms]
    if shown.mode == modes.LEAVE_ONE_OUT:
        timed = [row for row in timed if row.name == modes.ALL]
    tiles = []
    for first, last in zip(timed[:1], timed[-1:], strict=True):
        before, after = (
            recommend.units(row.step_ms or 0.0, batch, recommend.IMAGES, None) for row in (first, last)
        )
        total = words.whole(before.ms, after.ms, last.total, last.total_interval)
        tiles.append(("ms a step", before.ms, after.ms, total))
        if first.gpu and last.gpu:
            total = words.whole(first.gpu.ms, last.gpu.ms, last.gpu.total, None)
            tiles.append(("ms GPU work of a step", first.gpu.ms, last.gpu.ms, total))
        hours = f"hours for {recommend.count(recommend.IMAGES)} images"
        tiles.append((hours, before.hours, after.hours, ""))
        tiles.append(("images/s", before.images_per_s, after.images_per_s, ""))
    return Head(
        title=f"{machine}: {shown.workload.partition(':')[0]}, {shown.title}",
        heading=machine,
        facts=(facts, f"{shown.title}; workload {shown.workload}", shown.protocol),
        marks=shown.marks,
        tiles=[
            (name, " → ".join(dict.fromkeys(map(format_amount, ends))), total if len(timed) > 1 else "")
            for name, *ends, total in tiles
        ],
    )


# --- the staircase ----------------------------------------------------------------------------------------------------


def show_staircase(inputs: Inputs) -> Section:
    """Return a bar of milliseconds for each rung, its gains by both clocks, and the total."""
    shown = inputs.shown
    chart = Bars(
        [_draw_step(row, shown, number) for number, row in enumerate(shown.rows)],
        f"Milliseconds a step of each rung, {panels.NAMED[shown.mode]}",
        [("busy", "GPU working"), ("idle", "GPU waiting")],
        panels.most_ms(shown),
    )
    return Section(
        "staircase",
        "The staircase" if shown.mode == modes.CUMULATIVE else "The runs",
        f"Milliseconds a step, lower is better; {panels.NAMED[shown.mode]}. The line under a bar is its 95% interval.",
        [chart, [*shown.sentences, *([panels.ABOVE] if panels.is_above(shown.rows) else [])]],
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
    return Bar(
        row.title, drawn, f"{format_ms(row.step_ms)} ms", _list_gains(row, shown, number), row.interval
    )


def _list_gains(row: Row, shown: View, number: int) -> list[tuple[str, str]]:
    """Return what the rung gains by each clock, the advice, and its total; of the first rung the advice alone."""
    gains: list[tuple[str, str]] = []
    clocks = [*([("GPU", row.gpu.seen, row.gpu.gain)] if row.gpu else []), ("step", row.seen, row.gain)]
    for clock, seen, interval in clocks if number else []:
        is_open = not seen.verdict or seen.verdict in (AMBIGUOUS, TOO_FEW)
        words = [
            answer(seen) or "no verdict",
            f", {UNDECIDED}" if is_open else "",
            f" ({format_bounds(interval)})",
        ]
        gains.append((clock, "".join(words).removesuffix(" ()")))
    if row.advice:
        gains.append(("advice", row.advice))
    if number and shown.mode == modes.CUMULATIVE and row.total:
        gpu = f" / {format_factor(row.gpu.total)} GPU" if row.gpu and row.gpu.total else ""
        article = f", article {format_factor(row.article_total)}" if row.article_total else ""
        gains.append(("total", f"{format_factor(row.total)}{gpu}{article}"))
    return gains


# --- advice and verdicts ----------------------------------------------------------------------------------------------


def show_advice(inputs: Inputs) -> Section | None:
    """Return the recommendation, and every rung's time in units of practice; None where no rung has a number."""
    runs = {STAIRCASE: inputs.staircase, LEFT_OUT: inputs.left_out}
    staircase, left_out = (run and run[1] for run in runs.values())
    try:
        advice = recommend.recommend(Sources(staircase, left_out, {}), price=inputs.price)
    except UserError:
        return None
    blocks: list[Block] = [
        f"Recipe: {', '.join(advice.recipe_rungs)}",
        replace(recommend.tabulate_units(advice), title="The recommended recipe in units of practice"),
        replace(recommend.tabulate_rungs(advice), title="Advice on each rung"),
        recommend.list_notes(advice),
        Fold("Why, rung by rung", [recommend.list_reasons(advice.rungs)]),
        Fold("Every rung in units of practice", [_tabulate_units(inputs.main, advice)]),
    ]
    if advice.recipe is not None:
        code = Code(recommend.recipe_yaml(advice, inputs.whose))
        blocks.append(Fold("The recipe as YAML, for `ladder train --recipe`", [code]))
    names = ", ".join(f"{kind} {shorten_path(run[0])}" for kind, run in runs.items() if run)
    return Section("advice", "What to switch on", f"As `ladder recommend` says it, from {names}.", blocks)


def _tabulate_units(result: Result, advice: Recommendation) -> Table:
    hours = f"hours for {recommend.count(advice.images)} images"
    kinds = {"ms/step": "ms", "s/kimg": "decimal", "images/s": "amount", hours: "decimal", "money": "decimal"}
    timed = {rung.name: rung.step_ms for rung in result.rungs if rung.status == "ok" and rung.step_ms}
    rows = [
        [name, *astuple(recommend.units(step_ms, advice.batch, advice.images, advice.price))]
        for name, step_ms in timed.items()
    ]
    return Table([Column("rung"), *(Column(*each) for each in kinds.items())], rows).drop_empty()


def show_verdicts(inputs: Inputs) -> Section:
    """Return the table of `ladder report`."""
    about = "An interval is a 95% interval. A verdict asks it against the noise floor of this run."
    return Section("verdicts", "Verdicts", about, _show_run(inputs.shown))


def _show_run(shown: View) -> list[Block]:
    """Return the table of `ladder report`, and the lines below it that stand nowhere else."""
    table = tables.tabulate(shown, titles=True)
    below = [line for line in table.notes if line not in (*shown.sentences, *shown.marks)]
    return [replace(table, notes=()), below]


def show_mistakes(inputs: Inputs) -> Section | None:
    """Return common mistakes and cheaper models: each entry beside the first one, by both clocks."""
    blocks: list[Block] = []
    for path, result in inputs.others:
        shown = view(result)
        light, dark = (chart.render(result, "svg", theme) for theme in (LIGHT, DARK))
        blocks += [
            Chart(f"{shown.title}: milliseconds a step of each entry", light, dark),
            [*shown.sentences, *map(publishable.told, shown.marks), shorten_path(path)],
            Fold(f"Table: {shown.title}", _show_run(shown), on_paper=False),
        ]
    about = (
        "Each entry beside the first one, in times of its GPU work and of its step. 2x takes twice as long."
    )
    title = "What mistakes cost, and what another model saves"
    return Section("studies", title, about, blocks) if blocks else None


# --- the GPU's work ---------------------------------------------------------------------------------------------------


def _list_profiles(result: Result) -> list[tuple[RungResult, Parts]]:
    return [(rung, each) for rung in result.rungs if rung.status == "ok" and (each := parts.parts_of(rung))]


def show_categories(inputs: Inputs) -> Section | None:
    """Return the GPU's work of each rung by what its kernels do, and the waiting; None without a profile."""
    bars: list[Bar] = []
    rows: list[tuple[str, dict[str, float], list[float]]] = []
    for rung, profile in _list_profiles(inputs.main):
        waits = rung.waiting_ms or 0.0
        sizes = dict.fromkeys(TONES, 0.0)  # all kernels that join operations are one
        for name, work in profile.shown.items():
            is_fused = name.startswith(categories.FUSED)
            sizes[FUSED if is_fused else name if name in TONES else categories.OTHER] += work.ms
        drawn = [(size, TONES[name]) for name, size in sizes.items()] + [(waits, "idle")]
        figures = [Part(size, tone, [panels.short_ms(size)]) for size, tone in drawn if size]
        launches = [("", f"{profile.launches:,.0f} launches")]
        bars.append(Bar(rung.title, figures, f"{format_ms(profile.gpu_ms)} ms GPU", launches))
        milliseconds = {name: work.ms for name, work in profile.shown.items()}
        rows.append((rung.name, milliseconds, [profile.gpu_ms, waits]))
    if not bars:
        return None
    # Names of categories have spaces to break at, and names of rungs have none: 25 of them are wider than paper.
    sums = {name: sum(each.get(name, 0.0) for _, each, _ in rows) for _, each, _ in rows for name in each}
    names = sorted(sums, key=lambda name: -sums[name])
    columns = [Column(name, "decimal") for name in (*names, "GPU time of that cycle", "waiting")]
    table = Table(
        [Column("ms a step"), *columns],
        [[rung, *(each.get(name, 0.0) for name in names), *ends] for rung, each, ends in rows],
    )
    tones = {part.tone for bar in bars for part in bar.parts if part.size >= LEAST_MS}
    legend = [(tone, name) for name, tone in TONES.items() if tone in tones] + [("idle", "waiting")]
    picture = Bars(bars, "Milliseconds of GPU work of each rung by category", legend)
    about = "GPU milliseconds a step by category of kernels, of the first profiled cycle, and the median of waiting."
    return Section(
        "categories", "What the GPU does", about, [picture, Fold("Milliseconds by category", [table])]
    )


def show_steps(inputs: Inputs) -> Section | None:
    """Return what the difference of two neighbours consists of; None if no two of them have a profile."""
    if inputs.staircase is None:
        return None
    sides = [Side(inputs.staircase[0], inputs.main, *each) for each in _list_profiles(inputs.main)]
    pairs = [*pairwise(sides), *([(sides[0], sides[-1])] if len(sides) > 2 else [])]
    folds = []
    for step in (explain.explain(*pair) for pair in pairs):
        first, second = step.names
        sentence = explain.describe(step).removeprefix(f"{second}: ")
        name = f"{first} → {second}"
        folds.append(Fold(sentence, [explain.tabulate(step)], name, is_muted=not step.differs))
    about = (
        "As `ladder explain A B` says it. A difference inside the noise, or not decided, is not explained."
    )
    return Section("steps", "Why: each step explained", about, folds) if folds else None


# --- studies, memory --------------------------------------------------------------------------------------------------


def show_study(inputs: Inputs, kind: str) -> Section | None:
    """Return the files of a study as the frame shows them: its chart, its tables, and why not to quote them."""
    blocks: list[Block] = []
    about = f"As `ladder {frame.load_studies()[kind].name}` measures it."
    if kind == "roofline" and (frozen := derive.find_frozen(inputs.main.machine.name, inputs.main.workload)):
        blocks.append(_tabulate_scores(inputs, frozen))
    for file in inputs.list_files(kind):
        heading, *sentences = file.study.summarize(file.content)
        cautions = map(publishable.told, frame.list_cautions(file.study, file.content))
        if picture := file.study.draw(file.content, "svg"):
            blocks.append(Chart(heading, picture))
        for number, table in enumerate(file.study.list_tables(file.content)):
            name = table.title or f"Table: {table.columns[0].title}"
            blocks.append(Fold(name, [table], on_paper=False) if number else replace(table, title=heading))
        blocks.append([*sentences, *cautions, f"{shorten_path(file.path)}, {file.content.started[:10]}"])
    return Section(kind, KINDS[kind], about, blocks) if blocks else None


def _tabulate_scores(inputs: Inputs, frozen: derive.Frozen) -> Table:
    """Return the score of each rung by the floor that is frozen for the machine and workload."""
    kinds = {"rung": "text", "ms/step": "ms", "times the floor": "decimal", "score": "ratio"}
    times = {rung.name: rung.step_ms for rung in inputs.main.rungs if rung.status == "ok" and rung.step_ms}
    rows = [
        [
            name,
            step_ms,
            step_ms / frozen.floor_ms,
            derive.derive_score(step_ms, frozen.base_ms, frozen.floor_ms),
        ]
        for name, step_ms in times.items()
    ]
    notes = [
        "score: 1 / (1 + (t - floor) / (base - floor)), as SOL-ExecBench defines it: 1 at the floor, 0.5 at the base",
        f"floor: {frozen.floor_ms:.2f} ms, frozen on {frozen.since} ({frozen.floor_of})",
        f"base: {frozen.base_ms:.2f} ms, torch.compile ({frozen.base_of})",
    ]
    return Table([Column(*each) for each in kinds.items()], rows, "Speed-of-light score of each rung", notes)


def show_memory(inputs: Inputs) -> Section | None:
    """Return what was allocated, reserved, and held on the device; None where no rung knows it."""
    bars = []
    for row in inputs.shown.rows:
        drawn, reached = list[Part](), 0.0  # each size is drawn beyond the one before
        for size, tone in ((row.allocated, "busy"), (row.memory, "idle"), (row.device, "more")):
            if size and size > reached:
                drawn.append(Part(size - reached, tone))
                reached = size
        if row.status == "ok" and reached:
            bars.append(Bar(row.title, drawn, f"{format_amount(reached)} GiB"))
    if not bars:
        return None
    tones = {"busy": "allocated", "idle": inputs.shown.memory.partition(",")[0], "more": "on the device"}
    picture = Bars(bars, "GiB of each rung", [*tones.items()])
    return Section("memory", "Memory", "Peaks of one process of each rung, in GiB.", [picture])


# --- proofs, circumstances, files -------------------------------------------------------------------------------------


def show_proofs(inputs: Inputs) -> Section:
    """Return the receipts of each rung, which show that it was on, and its parity with the reference."""
    tables = checks.tabulate_checks(inputs.main)
    folds = [Fold(table.title, [replace(table, title="")], on_paper=False) for table in tables]
    about = "A receipt shows that a rung was on. Parity is the largest error as a share of its budget."
    return Section("proofs", "Receipts and parity", about, folds or ["This result has neither."])


def show_environment(inputs: Inputs) -> Section:
    """Return hardware, software, protocol, the GPU's state and the settings of PyTorch."""
    main = inputs.main
    gpu = main.gpu or None
    facts = write_whole(main.machine) | {
        "started": main.started,
        "minutes": f"{main.seconds / 60:.1f}",
        "commit": f"{main.commit or 'unknown'}{' with changes' if main.dirty else ''}",
        "measured code": ", ".join(f"{name} {code}" for name, code in (main.measured_code or {}).items()),
        "GPU during the run": f"{gpu.state}, {gpu.tenancy}" if gpu else "not watched",
        "visits rejected": gpu.rejected_visits if gpu else None,
    }
    folds = {
        "Workload": main.workload,
        "Protocol": write_whole(main.protocol),
        "Variables": main.environment,
    }
    for rung in [rung for rung in main.rungs if rung.status == "ok"][-1:]:
        folds |= {f"Recipe of {rung.name}": rung.recipe, f"PyTorch's settings in {rung.name}": rung.settings}
    about = "Compare times only with results of the same machine and software."
    blocks = [Fold(name, [_tabulate_facts(each)], on_paper=False) for name, each in folds.items() if each]
    return Section("environment", "Environment", about, [_tabulate_facts(facts), *blocks])


def _tabulate_facts(facts: Mapping[str, object]) -> Table:
    rows = [
        [name, value if isinstance(value, str) else json.dumps(value)]
        for name, value in facts.items()
        if value is not None
    ]
    return Table([Column(""), Column("")], rows)


def show_files(inputs: Inputs) -> Section:
    """Return every file that the page is made of, inside the page, to be saved from it."""
    runs: list[Stored | None] = [inputs.staircase, inputs.left_out, *inputs.others]
    paths = [*(run[0] for run in runs if run), *(file.path for file in inputs.files)]
    data = {shorten_path(path): store.read(path) for path in paths}
    rows = [(name, f"{len(json.dumps(each)) / 1000:,.0f} KB") for name, each in data.items()]
    about = "Every file that this page is made of, with all samples in time order. The data is in the page itself."
    return Section("raw", "Raw data", about, [Files(rows, data)])
