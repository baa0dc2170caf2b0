"""The tables that documents show of committed results, a function each.

`ladder.publish.pages.__main__` has the names by which regions of documents call them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ladder.core.errors import UserError
from ladder.core.text import escape_markdown, fine_factor, format_factor, format_ms
from ladder.plan import beside, modes
from ladder.publish import gallery
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.pages.committed import Committed
from ladder.report import explain, tables
from ladder.report.advising import ADOPT, Sources
from ladder.report.recommend import list_reasons, recommend, tabulate_rungs, tabulate_units
from ladder.report.view import Row, view
from ladder.results import derive, parts, ranking, sources
from ladder.results.combine import comparing as across
from ladder.results.combine import series
from ladder.results.publishable import publishable
from ladder.results.run import Result, RungResult
from ladder.show.table import Column, Table, render_markdown
from ladder.studies import frame, quality
from ladder.studies.kernelbench.record import NO_AIM, derive_rows, describe_lack
from ladder.studies.kernelbench.record import Row as Kernel
from ladder.studies.profile.study import STUDY as PROFILE
from ladder.studies.profile.study import tabulate_passes
from ladder.studies.roofline.study import STUDY as ROOFLINE
from ladder.studies.upstream.record import Figures

CARDS, DRIVERS = (6, 8, 10, 12, 16, 24, 32, 40, 48, 80), 0.5  # GiB of memory, and what no process gets of it
LEAST_SHOWN_MS = 0.05  # a step
MACHINE = "nvidia-h200"  # the targets are about one H200
MEMORY_BOUND = ("bias_act", "modulate", "upfirdn2d")
LARGE = (128, 129, 256, 257)  # pixels a side; one more behind a transposed convolution
ENOUGH = 0.85  # of a cold copy
# Columns of the table of `ladder report` that documents leave to the linked page.
LEFT_OUT = {
    "waiting (ms)", "host ms", "host bound", "interval (GPU)", "interval (step)", "gain at top", "at the top",
    "at the top (GPU)", "receipts", "in force", "parity", "rejected", "images/s", "total (GPU)", "article ms",
    "article total",
}  # fmt: skip
# Those that the README leaves out, too.
FEW = {"95% interval", "total interval", "main ms", "reserved GiB", "allocated GiB", "device GiB"}
OF_ARTICLE = {"article ms", "article total"}


def link(words: str, path: str) -> str:
    """Return a link to a file below `results/`."""
    return f"[{words}](@/results/{path})"


def link_page(words: str, path: str) -> str:
    """Return a link to the page beside a result."""
    return link(words, path.removesuffix(".json") + ".md")


def make_table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> Table:
    """Return the table of these columns: a title and the kind of its values (`ladder.show.table.FORMATS`)."""
    return Table([Column(*column) for column in columns], rows)


def render(table: Table, sources: Iterable[str] = ()) -> str:
    """Return a table as Markdown, with the line below it: where it comes from, and why not to quote it."""
    return f"{render_markdown(table)}\n{join_sources(sources)}"


def join_sources(sources: Iterable[str]) -> str:
    """Return the line below a table or a page of them, "" without any."""
    line = " · ".join(filter(None, sources))
    return f"\n*{line}*\n" if line else ""


def describe_absence(command: str) -> str:
    """Return the line in place of a table that no whole result fills yet."""
    return f"*No complete run yet: `{command}`.*\n"


# --- runs of a ladder -------------------------------------------------------------------------------------------------


def cite(committed: Committed, result: Result) -> list[str]:
    """Return what stands below the table of a run: its generations, table and samples, and why not to quote it."""
    chart, path = committed.find_chart(result), committed.find_path(result)
    return [
        f"{sources.unit(result)}s: {count_rounds(result)}",
        link("table", chart) if chart != path else "",
        link("samples", path),
        *map(escape_markdown, publishable(result)),
    ]


def count_rounds(result: Result) -> str:
    """Return the generations of the rungs with a number: `3`, or `2 to 4`."""
    counts = {len(derive.counted(rung)) for rung in result.rungs if rung.status == "ok"} or {0}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def list_timed(result: Result) -> list[Row]:
    """Return the rungs with a number."""
    return [row for row in view(result).rows if row.status == "ok"]


def render_run(committed: Committed, name: str) -> str:
    """Return every rung of the run MACHINE/WORKLOAD/LADDER[/MODE], of a leave-one-out run the largest gain first."""
    result = committed.find_ladder(name)
    shown = view(result)
    table = tables.tabulate(shown, titles=True).drop_columns(LEFT_OUT)
    order = list(range(len(shown.rows)))
    if shown.mode == modes.LEAVE_ONE_OUT:
        order.sort(key=lambda k: -(shown.rows[k].seen.ratio or 0.0))
    return render(replace(table, notes=(), rows=[table.rows[k] for k in order]), cite(committed, result))


def render_pair(committed: Committed, name: str) -> str:
    """Return every rung of a pair's ladder on each machine that climbed it, or the command that does."""
    climbs = ["/".join(key) for key in sorted(committed.best) if key[1:] == (name, "pair", modes.CUMULATIVE)]
    shown = (f"{climb.split('/')[0]}:\n\n{render_run(committed, climb)}" for climb in climbs)
    return "\n".join(shown) or describe_absence(f"ladder run --model examples/pairs/{name}.py")


def render_parts(committed: Committed, machine: str) -> str:
    """Return what a batch of 32 costs in four parts, and in four steps of 8, over one step of 32."""
    places = [
        ("article-b32/accumulation", "fused_modulation"),
        ("article-b32/accumulation", "accumulate_4"),
        ("article/full", "fused_modulation"),
    ]
    steps = [ranking.rung_of(committed.find_ladder(f"{machine}/{run}"), rung) for run, rung in places]
    whole, in_parts, small = (step.step_ms or 0.0 if step else 0.0 for step in steps)
    return (
        f"Four parts cost {in_parts / whole - 1:.0%}. Four steps at batch 8 cost {4 * small / whole - 1:.1%} more than"
        " one at batch 32, so most of it is the smaller batch."
    )


def render_gpus(committed: Committed) -> str:
    """Return the article's ladder on every GPU, with a row of the ladder `full` and of NVIDIA's own step."""
    blocks: list[str] = []
    for result in _list_staircases(committed):
        left_out = (LEFT_OUT | FEW) - (set() if blocks else OF_ARTICLE)
        table = tables.tabulate(view(result), titles=True).drop_columns(left_out)
        rows: list[dict[str, Any]] = []
        if full := committed.find_top(result.machine.name, ARTICLE, FULL):
            top = list_timed(full)[-1]
            count = [rung.name for rung in full.rungs].index(top.name) + 1
            rows.append({"rung": f"all {count} rungs of {link('`full`', committed.find_chart(full))}"})
            rows[-1] |= {"ms/step": top.step_ms, "GPU ms": top.gpu and top.gpu.ms, "total": top.total}
        for _, file in committed.list_files("upstream", f"{result.machine.name}-{ARTICLE}"):
            steps = Figures(file)
            rows.append({"rung": "NVIDIA's own", "ms/step": steps.programs["upstream"].step_ms})
            rows[-1] |= {"GPU ms": steps.derive_gpu_ms("upstream")}
        cells = [[escape_markdown(row[0]), *row[1:]] for row in table.rows]
        cells += [[row.get(column.title) for column in table.columns] for row in rows]
        shown = render(
            Table([Column("rung", "markdown"), *table.columns[1:]], cells), cite(committed, result)
        )
        blocks.append(f"**{result.machine.gpu}**, `{ARTICLE}`\n\n{shown}")
    return "\n".join(blocks)


def _list_staircases(committed: Committed) -> list[Result]:
    """Return the run that shows the article's ladder on each GPU; undecided ones only where no GPU has another."""
    article = (ARTICLE, ARTICLE, modes.CUMULATIVE)
    runs = [run for (_, *key), run in committed.best.items() if tuple(key) == article and run.machine.gpu]
    return list(filter(gallery.is_decided, runs)) or runs


def render_agreement(committed: Committed) -> str:
    """Return how the gains of GPU time on two GPUs compare, as `ladder compare` says it; a table for each pair."""
    blocks = []
    for first, second in itertools.combinations(_list_staircases(committed), 2):
        rows = [(row, row.gpu) for row in across.compare_gains(first, second, {}) if row.gpu]
        one, other = (str(each.machine.gpu) for each in (first, second))
        columns = [("rung", "text"), (f"gain of GPU time, {one}", "factor"), (other, "factor")]
        columns += [("verdict", "text"), ("where it lies", "text")]
        # Where it lies is of the step, unless the gains of GPU time differ.
        cells = [
            [
                row.name, gain.before, gain.after, across.told(gain),
                row.lies_in if gain.verdict in across.DIFFERS else None,
            ]
            for row, gain in rows
        ]  # fmt: skip
        summary = across.summary([(row.name, gain) for row, gain in rows], other)
        doubt = across.OTHER_CODE if across.other_code(first, second) else ""
        blocks.append(render(make_table(columns, cells), [escape_markdown(summary), doubt]))
    return "\n".join(blocks)


def render_advice(committed: Committed, name: str) -> str:
    """Return what one run recommends: the advice on each rung, the units of practice, and why a rung is not ADOPT."""
    result = committed.find_ladder(name)
    left_out = series.left_out_of(result, [*committed.best.values()])
    is_alone = ranking.mode(result) == modes.LEAVE_ONE_OUT
    advice = recommend(Sources(None, result, {}) if is_alone else Sources(result, left_out, {}))
    reasons = list_reasons([each for each in advice.rungs if each.advice != ADOPT])
    both = "\n\n".join(map(render_markdown, (tabulate_rungs(advice), tabulate_units(advice))))
    lines = "".join(f"- {escape_markdown(line)}\n" for line in reasons)
    return f"{both}\n\n{lines}{join_sources(cite(committed, result))}"


def render_workloads(committed: Committed, machine: str, ladder: str) -> str:
    """Return one row for each workload whose run has the top of a ladder on a machine."""
    rows = []
    for result in list_tops(committed, machine, ladder):
        timed = {row.name: row for row in list_timed(result)}
        top, eight, work = list(timed.values())[-1], timed.get("fused_act"), result.workload
        name = link(f"`{work['name']}`", committed.find_chart(result))
        rows.append([
            f"{name}: {work['resolution']}x{work['resolution']}, batch {work['batch']}", timed["baseline"].step_ms,
            eight.step_ms if eight else "not measured", top.step_ms, top.interval, top.gpu and top.gpu.ms, top.total,
            top.total_interval, top.main_total, count_rounds(result),
        ])  # fmt: skip
    columns = [
        ("workload", "markdown"), ("baseline, ms", "ms"), ("the article's eight, ms", "ms"), ("top, ms", "ms"),
        ("interval", "ms_interval"), ("top, GPU ms", "ms"), ("speedup", "speedup"), ("interval", "interval"),
        ("without R1, path length", "speedup"), ("generations", "amount"),
    ]  # fmt: skip
    return render(make_table(columns, rows))


def list_tops(committed: Committed, machine: str, ladder: str) -> list[Result]:
    """Return of each workload the best staircase that has the top of the ladder."""
    names = [
        key[1] for key in committed.best if (key[0], key[2], key[3]) == (machine, ladder, modes.CUMULATIVE)
    ]
    return [run for name in names if (run := committed.find_top(machine, name, ladder))]


def render_cards(committed: Committed, ladder: str) -> str:
    """Return what each workload's ends of a ladder hold on the device, most of all GPUs, and the cards that suffice."""
    held: dict[str, list[tuple[float, float, float]]] = {}  # of the baseline, of any rung, of the top
    for machine in committed.machines:
        for result in list_tops(committed, machine, ladder):
            if gib := [row.device for row in view(result).rows if row.device]:
                held.setdefault(result.workload["name"], []).append((gib[0], max(gib), gib[-1]))
    rows = []
    for name, each in held.items():
        first, most, top = map(max, zip(*each, strict=True))
        rows.append([f"`{name}`", first, most, _find_card(most), top, _find_card(top)])
    titles = ("baseline, GiB", "most of any rung, GiB", "card for all", "top, GiB", "card for it")
    columns = [("workload", "markdown"), *((title, "amount") for title in titles)]
    rows.sort(key=lambda row: row[2])
    return render(make_table(columns, rows)) if rows else describe_absence(f"ladder run --ladder {ladder}")


def _find_card(gib: float) -> str:
    """Return the smallest usual card that holds so much, its driver's part left out."""
    return next((f"{card} GB" for card in CARDS if gib <= card - DRIVERS), f"over {CARDS[-1]} GB")


def render_explanation(committed: Committed, name: str, before: str, after: str) -> str:
    """Return the milliseconds of two rungs of one run by category. Raises UserError where one has no profile."""
    result = committed.find_ladder(name)
    path = committed.find_path(result)
    sides = []
    for wanted in (before, after):
        rung = ranking.rung_of(result, wanted)
        profile = parts.parts_of(rung) if rung else None
        if rung is None or profile is None:
            raise UserError(f"results/{path}: rung {wanted} has no profile")
        sides.append(explain.Side(Path(path), result, rung, profile))
    shown = explain.render_page(explain.explain(*sides)).partition("\n\n")[2]
    return shown + join_sources([link("samples", path), *map(escape_markdown, publishable(result))])


# --- other commands ---------------------------------------------------------------------------------------------------


def render_files(kind: str, shown: slice) -> Callable[..., str]:
    """Return the function that shows some tables of every complete file of a study, or of those of a machine."""

    def fill(committed: Committed, machine: str = "") -> str:
        study, blocks = frame.load_studies()[kind], []
        for name, file in committed.list_files(kind, f"{machine}*"):
            about = f"**{file.machine.gpu or file.machine.cpu}**"
            about += f", `{file.workload['name']}`" if file.workload else ""
            about += f", ladder `{file.ladder}`" if file.ladder else ""
            tables = [render_markdown(table) for table in list(study.list_tables(file))[shown]]
            sources = [link_page("page", name), link("samples", name)]
            sources += map(escape_markdown, frame.list_cautions(study, file))
            blocks.append("\n\n".join([about, *tables]) + "\n" + join_sources(sources))
        return "\n".join(blocks) or describe_absence(f"ladder {study.name}")

    return fill


def render_passes(committed: Committed, name: str) -> str:
    """Return our larger kernels in a step beside copies of as many bytes, by the profile with this name."""
    for path, file in committed.list_files("profile", name):
        if passes := PROFILE.derive(file).passes:
            table = tabulate_passes(passes)
            rows = [row for row in table.rows if row[1] >= LEAST_SHOWN_MS]
            commit = f"commit {(file.commit or '')[:7]}"
            return render(replace(table, rows=rows, title=""), [link_page("profile", path), commit])
    return describe_absence("ladder profile graph_fills")


def find_share(row: Kernel) -> float:
    """Return the time of a cold copy of the same bytes, divided by ours."""
    return row.share["ours"].median


def list_large(rows: Iterable[Kernel]) -> list[Kernel]:
    """Return the memory-bound ones of the rows of `ladder kernels` with large maps."""
    bound = [row for row in rows if "ours" in row.share and row.function not in NO_AIM]
    return [row for row in bound if len(row.shape) == 4 and row.shape[2] in LARGE]


def list_kernel_files(committed: Committed, machine: str) -> list[tuple[str, Any]]:
    """Return a machine's files of `ladder kernels` that have the GPU's time."""
    return [each for each in committed.list_files("kernels", f"{machine}*") if not each[1].options.host]


def render_kernels(committed: Committed, machine: str) -> str:
    """Return each op's share of a copy, and the comparisons that an alternative wins, of the newest file."""
    files = list_kernel_files(committed, machine)
    if not files:
        return describe_absence("ladder kernels")
    name, file = max(files, key=lambda each: each[1].started)
    derived = derive_rows(file)
    ops = {op: [row for row in derived if row.function == op] for op in {row.function for row in derived}}
    rows: list[list[Any]] = []
    for op, group in [*sorted((f"`{op}`", group) for op, group in ops.items()), ("all", derived)]:
        shares = [find_share(row) for row in list_large(group)]
        between = f"{100 * min(shares):.0f}-{100 * max(shares):.0f}%" if shares else None
        cells: list[Any] = [sum(share >= ENOUGH for share in shares) if shares else None]
        for other in ("compile", "plain"):
            won = [row.against[other].times_faster for row in group if row.verdict == f"{other} faster"]
            cells += [len(won), 1 / min(won) if won else None]
        rows.append([op, len(shares), between, *cells])
    columns = [
        ("op", "markdown"), ("figures at 128x128 and 256x256", "count"), ("share of a cold copy", "amount"),
        ("at least 85%", "count"), ("torch.compile faster", "count"), ("by at most", "speedup"),
        ("plain PyTorch faster", "count"), ("by at most", "speedup"),
    ]  # fmt: skip
    cases = f"{len({row.case for row in derived if row.is_reached})} cases"
    return render(make_table(columns, rows), [cases, describe_lack(derived), link_page("every shape", name)])


# --- usual advice -----------------------------------------------------------------------------------------------------


H100, H200 = "nvidia-h100-80gb-hbm3", "nvidia-h200"
# Advice on faster training, its usual figure and the bounds of that: times faster, or what is left of the memory; what
# it is about, and the rung that judges it beside the rung above.
USUAL = (
    ("BF16 after TF32 convolutions", "2x", (2, 2), "GPU work", f"{H200}/article/article", "bf16"),
    ("BF16 after TF32 convolutions", "half", (0.5, 0.5), "memory", f"{H200}/article/article", "bf16"),
    ("`cudnn.benchmark`", "5 to 20%", (1.05, 1.2), "GPU work", f"{H100}/article/cudnn_benchmark", "cudnn_benchmark"),
    ("fused Adam", "10 to 15% faster", (1.1, 1.15), "optimizer", f"{H200}/article/full", "fused_adam"),
    ("`torch.compile`", "20 to 70%", (1.2, 1.7), "GPU work", f"{H200}/article/compile_default", "compile"),
    ("checkpointing", "half", (0.5, 0.5), "memory", f"{H100}/article-b32/memory", "checkpointing"),
    ("checkpointing", "10% slower", (1 / 1.1, 1 / 1.1), "step", f"{H100}/article-b32/memory", "checkpointing"),
    ("accumulating in two parts", "", None, "memory", f"{H100}/article-b32/accumulation", "accumulate_2"),
    ("pinned memory, workers", "", None, "step", f"{H200}/article/article", "data_loading"),
)  # fmt: skip


def render_usual(committed: Committed) -> str:
    """Return usual advice beside what committed results show of it, or the command that would show it."""
    rows = []
    for words, figure, usual, quantity, run, name in USUAL:
        here, judged, place = "no complete run", "", f"`ladder run --ladder {run.rpartition('/')[2]}`"
        if result := committed.best.get((*run.split("/"), modes.CUMULATIVE)):  # type: ignore[arg-type]
            timed = list_timed(result)
            at = [row.name for row in timed].index(name)
            before, after = (read_quantity(row, quantity) for row in timed[at - 1 : at + 1])
            ratio = after / before if quantity == "memory" else before / after
            here, judged = fine_factor(ratio), judge_usual(ratio, usual)
            place = link("table", committed.find_chart(result))
        rows.append((words, figure, quantity, here, judged, place))
    titles = ("advice", "usually", "of", "here", "judged", "from")
    return render(make_table([(title, "markdown") for title in titles], rows))


def read_quantity(row: Row, quantity: str) -> float:
    """Return a rung's ms of the step, of its GPU work or of the optimizer's kernels, or GiB; NaN without it."""
    profile, gpu = parts.parts_of(row.rung), row.gpu.ms if row.gpu else None
    own = profile.shown["optimizer"].ms if profile else None
    return {"step": row.step_ms, "GPU work": gpu, "memory": row.allocated, "optimizer": own}[
        quantity
    ] or math.nan


def judge_usual(ratio: float, usual: tuple[float, float] | None) -> str:
    """Return whether a ratio has the usual effect within a tenth: "holds", "less" or "more"; "" without a figure."""
    effects = sorted((ratio - 1) / (each - 1) for each in usual or ())
    return "" if not effects else "less" if effects[-1] < 0.9 else "more" if effects[0] > 1.1 else "holds"


# --- trainings --------------------------------------------------------------------------------------------------------


def list_qualities(committed: Committed, bugs: bool) -> list[tuple[str, quality.File]]:
    """Return the comparisons of trainings on GPUs by path, or the files of planted bugs on any machine."""
    files = committed.list_files("quality")
    return [(path, file) for path, file in files if file.options.bugs == bugs and (bugs or file.machine.gpu)]


def render_quality(committed: Committed) -> str:
    """Return every comparison of trainings: its sentence, its chart and its table."""
    blocks = []
    for path, file in list_qualities(committed, bugs=False):
        _, about, *_ = quality.STUDY.summarize(file)
        chart = f"!{link('Distance to the data over images, a line for each seed', path.removesuffix('json') + 'png')}"
        (table,) = quality.STUDY.list_tables(file)
        blocks.append(
            f"**{file.machine.gpu}.** {about}\n\n{chart}\n\n{render(table, [link('samples', path)])}"
        )
    return "\n".join(blocks) or describe_absence("ladder quality")


def render_bugs(committed: Committed) -> str:
    """Return what finds each planted bug, from all files that tried it, and how many are found."""
    if not (files := list_qualities(committed, bugs=True)):
        return describe_absence("ladder quality --bugs")
    found = {name: quality.Bug(name=name) for name in beside.load_beside(quality.BUGS).names}
    for _, file in files:
        found |= {bug.name: quality.join_bugs(found[bug.name], bug) for bug in quality.derive_bugs(file)}
    bugs = [*found.values()]
    count = (
        f"{sum(bug.is_found for bug in bugs[1:])} of {len(bugs) - 1} are found; an empty cell was not tried."
    )
    sources = [link(file.machine.gpu or file.machine.cpu, path) for path, file in files]
    return f"{count}\n\n{render(quality.tabulate_bugs(bugs), sources)}"


def render_trained(committed: Committed) -> str:
    """Return the README's limit: which trainings were compared, and with which answer."""
    more = "([more](@/docs/quality.md))"
    answers = [quality.describe_answer(file) for _, file in list_qualities(committed, bugs=False)]
    if not answers:
        return f"- Only the article's eight rungs were compared by training: 500 steps at 32x32 {more}.\n"
    return f"- Trainings were compared for so long and no longer: {'; '.join(answers)} {more}.\n"


# --- targets ----------------------------------------------------------------------------------------------------------


def render_targets(committed: Committed) -> str:
    """Return every target: the figure of a whole run, or the command that would give it."""
    columns = [(title, "markdown") for title in ("target", "seen", "where")]
    return render(make_table(columns, list_targets(committed)))


def list_targets(committed: Committed) -> list[tuple[str, str, str]]:
    """Return every target with the figure of a whole run and where it is, or the command that would give it."""
    rows: list[tuple[str, str, str]] = []

    def add(target: str, seen: str, where: str, command: str) -> None:
        rows.append((target, seen, where) if seen else (target, "no complete run", f"`{command}`"))

    run = f"ladder run --ladder {FULL} -w {ARTICLE}"
    top, where = _pick_top(committed, committed.find_top(MACHINE, ARTICLE, FULL))
    b32, where_b32 = _pick_top(committed, committed.find_top(MACHINE, f"{ARTICLE}-b32", FULL))
    add("`article` (batch 8), top: at most 13 ms", _format_time(top), where, run)
    main = f"{_format_total(top)}, without {format_factor(top.main_speedup_total)}" if top else ""
    add("top over baseline: at least 8 times, without R1 and path length 5 times", main, where, run)
    seen = f"{_format_time(b32)}, {_format_total(b32)} the baseline" if b32 else ""
    add("`article-b32`, top: at most 42 ms", seen, where_b32, f"{run}-b32")
    costs = derive.lazy_costs(top) if top else {}
    seen = " and ".join(f"{format_ms(costs[phase][0])} ms" for phase in ("D_r1", "G_pl") if top)
    add("batch 8: R1 at most 8 ms, path length at most 12 ms", seen, where, run)

    times, places = [], []
    for name, file in committed.list_files("upstream", f"{MACHINE}-article*"):
        figures, batch = Figures(file), (file.workload or {})["batch"]
        ratios = {"by the wall clock": figures.derive_wall_ratio(), "in GPU time": figures.derive_gpu_ratio()}
        both = " and ".join(
            f"{format_factor(ratio.median)} ({low:.2f}-{high:.2f}) {clock}"
            for clock, ratio in ratios.items()
            if ratio
            for low, high in [ratio.interval or (0, 0)]
        )
        times.append(f"{both} at batch {batch}")
        rounds = min(len(program.rounds) for program in figures.programs.values())
        places.append(f"{link_page(f'batch {batch}', name)}, generations: {rounds}")
    places.append("[what is compared](@/docs/upstream.md); a slow host slows NVIDIA's step alone")
    goal = "NVIDIA's stylegan3, same widths, FP16: at least 10 times as fast at batch 8, 5 at batch 32"
    add(goal, "; ".join(times), "; ".join(places), "ladder upstream CLONE")

    compiled = committed.best.get((MACHINE, ARTICLE, "compile_autotune", modes.CUMULATIVE))
    last, place = _pick_top(committed, compiled)
    seen = ""
    if compiled and last:
        seen = (
            f"{_format_total(last)}: {format_ms(compiled.rungs[0].step_ms)} and {format_ms(last.step_ms)} ms"
        )
    goal = "BF16 and channels_last under `torch.compile(max-autotune)`: ours at least 1.25 times as fast"
    place += "; without coordinate descent and Triton templates for matmuls"
    add(goal, seen, place, "ladder run --ladder compile_autotune")

    seen, place = "", ""
    name = top.name if top else "RUNG"
    for path, file in committed.list_files("roofline", f"{MACHINE}-article-full-{name}"):
        floor = ROOFLINE.derive(file).step["light_ms"]
        ms = (top and top.step_ms) or 0.0
        seen = f"{ms / floor:.2f} times: {format_ms(ms)} ms and a floor of {format_ms(floor)}"
        place = f"{where}; {link_page('floor', path)}"
    doctor = f"ladder doctor --roofline --rung {name}"
    add("within 1.8 times the speed of light", seen, place, doctor if top else run)

    seen, place = "", ""
    for path, file in list_kernel_files(committed, MACHINE)[:1]:
        large = list_large(derive_rows(file))
        ours = sorted(find_share(row) for row in large if row.function in MEMORY_BOUND)
        others = [find_share(row) for row in large if row.function not in MEMORY_BOUND]
        missed = [f"{100 * share:.1f}%" for share in ours if share < ENOUGH]
        seen = f"{len(ours) - len(missed)} of {len(ours)}; below: {', '.join(missed) or 'none'}"
        below = (
            f"{sum(share < ENOUGH for share in others)} of {len(others)} figures of the other ops are below"
        )
        place = f"{link_page('table', path)}; {below}"
    goal = (
        "`bias_act`, `modulate`, `upfirdn2d` at 128x128 and 256x256: at least 85% of a copy of the same bytes"
    )
    add(goal, seen, place, "ladder kernels")
    return rows


def _pick_top(committed: Committed, result: Result | None) -> tuple[RungResult | None, str]:
    """Return the highest rung of a run with a number, and a link to the run's file."""
    if result is None:
        return None, ""
    top = next(rung for rung in reversed(result.rungs) if rung.status == "ok")
    return top, f"{link('file', committed.find_path(result))}, generations: {len(derive.counted(top))}"


def _format_time(rung: RungResult | None) -> str:
    low, high = (rung and rung.interval_ms) or (None, None)
    return f"{format_ms(rung.step_ms)} ms ({format_ms(low)}-{format_ms(high)})" if rung else ""


def _format_total(rung: RungResult) -> str:
    low, high = rung.total_interval or (0, 0)
    return f"{format_factor(rung.speedup_total)} ({low:.3g}-{high:.3g})"
