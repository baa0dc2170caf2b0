"""The report of one machine and workload: one self-contained page that is made from result files.

`find_inputs` chooses the files, and a function for each section shows what they say of its subject, or returns None
where they say nothing. The frame shows the studies: `show_study`.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ladder.core import files
from ladder.core.errors import UserError
from ladder.core.protocol import AMBIGUOUS, TOO_FEW
from ladder.core.records import write_whole
from ladder.core.text import clean_line, format_amount, format_bounds, format_factor, format_ms, make_slug
from ladder.plan import content, modes
from ladder.receipts import categories
from ladder.report import chart, explain, recommend, tables
from ladder.report.advising import LEFT_OUT, STAIRCASE, Sources
from ladder.report.explain import Side
from ladder.report.view import TITLE as ARTICLE_TITLE
from ladder.report.view import Row, View, view
from ladder.results import loading, parts, publishable, ranking, store, words
from ladder.results.combine import series
from ladder.results.file import Header
from ladder.results.ranking import Stored
from ladder.results.run import Result
from ladder.results.words import UNDECIDED, answer
from ladder.show.page import Bar, Bars, Block, Chart, Code, Files, Fold, Head, Part, Section, render_page
from ladder.show.table import Column, Table
from ladder.show.themes import DARK, LIGHT
from ladder.studies import frame
from ladder.studies.frame import Study, StudyFile
from ladder.studies.roofline import derive

LADDER = "ladder"  # the folder of runs below results/
KINDS = {  # the studies that a report shows, with the titles of their sections
    "profile": "What a step consists of",
    "ablation": "What each rung is worth in any order",
    "map": "Where two rungs matter",
    "sustained": "Energy, and whether the speed lasts",
    "roofline": "Distance to the speed of light",
    "upstream": "NVIDIA's own step beside ours",
}
FUSED = "fused kernels"
LEAST_MS = 0.005  # less is 0.00 in a table
# The categories in the order in which a bar holds them, each with its colour class in the style sheet.
ORDER = (
    categories.CONVOLUTION, categories.MATMUL, categories.NORMALIZATION, categories.RESAMPLING, categories.LAYOUT,
    categories.ELEMENTWISE, categories.REDUCTIONS, FUSED, categories.COMPILED, categories.OPTIMIZER, categories.COPIES,
    categories.RANDOM, categories.OTHER,
)  # fmt: skip
TONES = {name: f"k{min(number, 11)}" for number, name in enumerate(ORDER)}


# --- the files of a page ----------------------------------------------------------------------------------------------


class File(NamedTuple):
    """A study's result beside the run."""

    path: Path
    study: Study[Any, Any, Any]
    content: StudyFile[Any, Any, Any]


@dataclass(frozen=True)
class Inputs:
    """Everything that a page is made of. Sections read it and nothing else."""

    staircase: Stored | None
    left_out: Stored | None
    whose: str  # a line on the machine that measured
    files: tuple[File, ...] = ()  # of studies, the newest first
    price: float | None = None  # of an hour
    others: tuple[Stored, ...] = ()  # runs of mistakes and of levers, one of each mode
    drawn: dict[Path, Chart] = field(default_factory=dict)  # by file: pages of one machine share them

    @functools.cached_property
    def main(self) -> Result:
        """The staircase with the gains at the top of the leave-one-out run, or that run where there is no staircase."""
        if self.staircase is None:
            assert self.left_out is not None
            return self.left_out[1]
        return series.with_top(self.staircase[1], [self.left_out[1]] if self.left_out else [])

    @functools.cached_property
    def shown(self) -> View:
        """The view of the main result."""
        return view(self.main)


def shorten_path(path: Path) -> str:
    """Return a file's name with that of its folder: a page shows no path of whoever made it."""
    return clean_line("/".join(each for each in path.parts[-2:] if each != "/"))


def name_page(result: Result) -> str:
    """Return the name of a result's page without its suffix."""
    mode = ranking.mode(result)
    names = [result.machine.name, result.workload["name"], result.ladder.name]
    return "-".join(map(make_slug, [*names, *([] if mode == modes.CUMULATIVE else [mode])]))


def gather_inputs(
    staircase: Stored, runs: Sequence[Stored], files: Iterable[File], drawn: dict[Path, Chart]
) -> Inputs:
    """Return what belongs to a staircase among these runs, and among the files of `read_files`.

    `drawn` collects the charts of pages that are written one after the other.
    """
    main = staircase[1]
    left_out = series.left_out_of(main, [result for _, result in runs])
    pair = next((run for run in runs if run[1] is left_out), None)
    whose = f"measured on {clean_line(main.machine.gpu or main.machine.cpu)}"
    others = tuple(_pick_others(main, runs).values())
    return Inputs(staircase, pair, whose, _pick_files(main, files), None, others, drawn)


def find_inputs(paths: Sequence[Path], results: Path, price: float | None = None) -> Inputs:
    """Return what a page of these files is made of; without any, of this machine's best result.

    A folder stands for its best run. Kinds of which no file is named are looked for below `results`.

    Raises:
        UserError: a file is no result, is of another machine or workload, or there are two runs of one mode.
    """
    runs, named = dict[str, Stored](), list[File]()
    for path in paths:
        if (opened := frame.open_stored(path)) is not None:
            if opened[0].kind not in KINDS:
                raise UserError(f"{path}: a report has no section for a result of {opened[0].kind}")
            named.append(File(path, *opened))
            continue
        run: Stored | None = None
        if path.is_dir():
            stairs = [run for run in _read_runs(path, "*.json") if ranking.mode(run[1]) == modes.CUMULATIVE]
            if (run := ranking.newest(stairs)) is None:
                raise UserError(f"{path}: no staircase here; `ladder run` makes one")
        run = run or (path, loading.load_run(path))
        if (mode := ranking.mode(run[1])) in runs:
            raise UserError(f"a page is about one run of each mode: {runs[mode][0]} and {run[0]} are {mode}")
        runs[mode] = run
    stairs, left_out = runs.get(modes.CUMULATIVE), runs.get(modes.LEAVE_ONE_OUT)
    if named and not runs:
        raise UserError(
            f"{named[0].path}: name a result of `ladder run` beside it: the page is about a ladder"
        )
    if stairs and left_out and series.key(stairs[1], modes.LEAVE_ONE_OUT) != series.key(left_out[1]):
        raise UserError(f"{left_out[0]}: of another machine, software, workload or ladder than {stairs[0]}")
    if runs:
        chosen = series.read_nearest((stairs or left_out or next(iter(runs.values())))[0])
    else:
        chosen = series.find_nearest(results / LADDER, None)
    staircase, left_out = chosen.staircase, left_out or chosen.left_out
    path, main = staircase or left_out or ("", None)
    assert main is not None
    for each, header in [*runs.values(), *((file.path, file.content) for file in named)]:
        if not _is_of(header, main):
            raise UserError(f"{each}: of another machine or workload than {path}")
    beside = _pick_files(main, read_files(results, KINDS.keys() - {file.study.kind for file in named}))
    patterns = [f"*-{mode}-*.json" for mode in modes.STUDIES]
    stored = _pick_others(main, _read_runs(results / LADDER / main.machine.name, *patterns))
    others = stored | _pick_others(main, runs.values())  # a named one replaces a stored one
    return Inputs(staircase, left_out, chosen.whose, (*named, *beside), price, tuple(others.values()))


def read_files(results: Path, kinds: Collection[str] = KINDS.keys()) -> list[File]:
    """Return the files of these kinds of studies below a folder. Refused files are left out."""
    found: list[File] = []
    for study in (frame.load_studies()[kind] for kind in KINDS if kind in kinds):
        for path in sorted((results / study.folder).rglob("*.json")):
            with contextlib.suppress(UserError):
                found.append(File(path, study, frame.read_file(study, path)))
    return found


def _pick_files(main: Result, files: Iterable[File]) -> tuple[File, ...]:
    """Return the files that belong to a run, the newest first."""
    own = [file for file in files if _is_of(file.content, main)]
    return tuple(sorted(own, key=lambda file: file.content.started, reverse=True))


def _read_runs(folder: Path, *patterns: str) -> list[Stored]:
    """Return the readable runs whose files match in a folder and below it."""
    runs: list[Stored] = []
    for path in sorted(path for pattern in patterns for path in folder.rglob(pattern)):
        with contextlib.suppress(UserError):
            runs.append((path, loading.load_run(path)))
    return runs


def _pick_others(main: Result, runs: Iterable[Stored]) -> dict[str, Stored]:
    """Return the best run of mistakes and that of levers by mode, of the machine and workload of a run."""
    own = [run for run in runs if _is_of(run[1], main)]
    best = {
        mode: ranking.newest(run for run in own if ranking.mode(run[1]) == mode) for mode in modes.STUDIES
    }
    return {mode: run for mode, run in best.items() if run is not None}


def _is_of(each: Result | Header, main: Result) -> bool:
    """Return whether a file is of the machine and the workload of a run."""
    same = content.of_workload(each.workload or {}) == content.of_workload(main.workload)
    return same and each.machine.name == main.machine.name


# --- the page ---------------------------------------------------------------------------------------------------------


def write_report(inputs: Inputs, path: Path, home: str = "") -> None:
    """Write the page, whole or not at all. The same files give the same text. `home` is a site's. Raises UserError."""
    files.write_file(path, render_page(replace(make_head(inputs), home=home), list_sections(inputs)))


def list_sections(inputs: Inputs) -> list[Section]:
    """Return the sections of which the files say something, in order."""
    sections = [
        show_staircase(inputs), show_advice(inputs), show_verdicts(inputs), show_categories(inputs),
        show_steps(inputs), *(show_study(inputs, kind) for kind in ("profile", "ablation", "map")),
        show_mistakes(inputs), show_memory(inputs),
        *(show_study(inputs, kind) for kind in ("sustained", "roofline", "upstream")), show_proofs(inputs),
        show_environment(inputs), show_files(inputs),
    ]  # fmt: skip
    return [section for section in sections if section is not None]


def make_head(inputs: Inputs) -> Head:
    """Return the outcome: on which machine, by which protocol, and the figures of the first screen."""
    shown, batch = inputs.shown, int(inputs.main.workload["batch"])
    machine, _, facts = shown.machine.partition(", ")
    whole = shown.mode != modes.LEAVE_ONE_OUT
    timed = [row for row in shown.rows if row.step_ms and (whole or row.name == modes.ALL)]
    figures = []  # what it is, before, after, the total
    for first, last in zip(timed[:1], timed[-1:], strict=True):
        before, after = (recommend.units(row.step_ms, batch, recommend.IMAGES, None) for row in (first, last))
        total = words.whole(before.ms, after.ms, last.total, last.total_interval)
        figures.append(("ms a step", before.ms, after.ms, total))
        if first.gpu and last.gpu:
            total = words.whole(first.gpu.ms, last.gpu.ms, last.gpu.total, None)
            figures.append(("ms GPU work of a step", first.gpu.ms, last.gpu.ms, total))
        hours = f"hours for {recommend.count(recommend.IMAGES)} images"
        figures.append((hours, before.hours, after.hours, ""))
        figures.append(("images/s", before.images_per_s, after.images_per_s, ""))
    tiles = [
        (name, " → ".join(dict.fromkeys(map(format_amount, ends))), total if len(timed) > 1 else "")
        for name, *ends, total in figures
    ]
    title = f"{machine}: {shown.workload.partition(':')[0]}, {shown.title}"
    lines = (facts, f"{shown.title}; workload {shown.workload}", shown.protocol)
    return Head(title, machine, lines, shown.marks, tiles)


def show_staircase(inputs: Inputs) -> Section:
    """Return a bar of milliseconds for each rung, its gains by both clocks, and the total."""
    shown, named = inputs.shown, chart.NAMED[inputs.shown.mode]
    bars = [draw_step(row, shown, number) for number, row in enumerate(shown.rows)]
    legend = [("busy", "GPU working"), ("idle", "GPU waiting")]
    picture = Bars(bars, f"Milliseconds a step of each rung, {named}", legend, chart.most_ms(shown))
    title = "The staircase" if shown.mode == modes.CUMULATIVE else "The runs"
    about = f"Milliseconds a step, lower is better; {named}. The line under a bar is its 95% interval."
    if any(row.article_ms for row in shown.rows):
        about += f" The article is {ARTICLE_TITLE}, {shown.reference.partition(',')[0]}."
    below = [*shown.sentences, *([chart.ABOVE] if chart.is_above(shown.rows) else [])]
    return Section("staircase", title, about, [picture, below])


def draw_step(row: Row, shown: View, number: int) -> Bar:
    """Return the bar of a rung: the GPU's work, its waiting, and the gains over the rung before it."""
    if row.step_ms is None:
        return Bar(row.title, missing=f"{row.status}{': ' + row.reason if row.reason else ''}")
    busy = chart.busy_ms(row)
    waits = max(row.step_ms - busy, 0.0)
    tone = "busy" if row.gpu is not None or not shown.has_gpu_time else "unknown"
    figure, waiting = format_amount(row.gpu.ms if row.gpu else busy), format_amount(waits)
    drawn = [Part(busy, tone, [figure])]
    drawn += [Part(waits, "idle", [f"waits {waiting}", waiting])] if waits else []
    return Bar(
        row.title, drawn, f"{format_ms(row.step_ms)} ms", _list_gains(row, shown, number), row.interval
    )


def _list_gains(row: Row, shown: View, number: int) -> list[tuple[str, str]]:
    """Return what the rung gains by each clock, the advice, and its total; of the first rung the advice alone."""
    gains: list[tuple[str, str]] = []
    clocks = [*([("GPU", row.gpu.seen)] if row.gpu else []), ("step", row.seen)]
    for clock, seen in clocks if number else []:
        is_open = not seen.verdict or seen.verdict in (AMBIGUOUS, TOO_FEW)
        line = f"{answer(seen) or 'no verdict'}{f', {UNDECIDED}' if is_open else ''}"
        gains.append((clock, f"{line} ({format_bounds(seen.interval)})".removesuffix(" ()")))
    if row.advice:
        gains.append(("advice", row.advice))
    if number and shown.mode == modes.CUMULATIVE and row.total:
        gpu = f" / {format_factor(row.gpu.total)} GPU" if row.gpu and row.gpu.total else ""
        article = f", article {format_factor(row.article_total)}" if row.article_total else ""
        gains.append(("total", f"{format_factor(row.total)}{gpu}{article}"))
    return gains


def show_advice(inputs: Inputs) -> Section | None:
    """Return the recommendation; None where no rung has a number."""
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
    ]
    if advice.recipe is not None:
        code = Code(recommend.recipe_yaml(advice, inputs.whose))
        blocks.append(Fold("The recipe as YAML, for `ladder train --recipe`", [code]))
    names = ", ".join(f"{kind} {shorten_path(run[0])}" for kind, run in runs.items() if run)
    return Section("advice", "What to switch on", f"As `ladder recommend` says it, from {names}.", blocks)


def _list_times(result: Result) -> dict[str, float]:
    return {rung.name: rung.step_ms for rung in result.rungs if rung.status == "ok" and rung.step_ms}


def show_verdicts(inputs: Inputs) -> Section:
    """Return the table of `ladder report`."""
    about = "An interval is a 95% interval. A verdict asks it against the noise floor of this run."
    return Section("verdicts", "Verdicts", about, _show_run(inputs.shown))


def _show_run(shown: View) -> list[Block]:
    """Return the table of `ladder report`, and the lines below it that stand nowhere else."""
    table = tables.tabulate(shown, titles=True)
    return [replace(table, notes=()), [line for line in table.notes if line not in shown.sentences]]


def show_mistakes(inputs: Inputs) -> Section | None:
    """Return common mistakes and cheaper models: each entry beside the first one, by both clocks."""
    blocks: list[Block] = []
    for path, result in inputs.others:
        shown = view(result)
        if path not in inputs.drawn:
            pictures = (chart.render(result, "svg", theme) for theme in (LIGHT, DARK))
            inputs.drawn[path] = Chart(f"{shown.title}: milliseconds a step of each entry", *pictures)
        blocks += [
            inputs.drawn[path],
            [*shown.sentences, *map(publishable.told, shown.marks), shorten_path(path)],
            Fold(f"Table: {shown.title}", _show_run(shown), on_paper=False),
        ]
    about = (
        "Each entry beside the first one, in times of its GPU work and of its step. 2x takes twice as long."
    )
    title = "What mistakes cost, and what another model saves"
    return Section("studies", title, about, blocks) if blocks else None


def show_categories(inputs: Inputs) -> Section | None:
    """Return the GPU's work of each rung by what its kernels do, and the waiting; None without a profile."""
    bars, rows = list[Bar](), list[tuple[str, dict[str, float], list[float]]]()
    for side in _list_sides(inputs):
        waits, profile = side.rung.waiting_ms or 0.0, side.parts
        sizes = dict.fromkeys(TONES, 0.0)  # all kernels that join operations are one
        for name, work in profile.shown.items():
            is_fused = name.startswith(categories.FUSED)
            sizes[FUSED if is_fused else name if name in TONES else categories.OTHER] += work.ms
        drawn = [(size, TONES[name]) for name, size in sizes.items()] + [(waits, "idle")]
        figures = [Part(size, tone, [format_amount(size)]) for size, tone in drawn if size]
        launches = [("", f"{profile.launches:,.0f} launches")]
        bars.append(Bar(side.rung.title, figures, f"{format_ms(profile.gpu_ms)} ms GPU", launches))
        rows.append(
            (side.rung.name, {name: work.ms for name, work in profile.shown.items()}, [profile.gpu_ms, waits])
        )
    if not bars:
        return None
    # Names of categories have spaces to break at, and names of rungs have none: 25 of them are wider than paper.
    sums = {name: sum(each.get(name, 0.0) for _, each, _ in rows) for _, each, _ in rows for name in each}
    names = sorted(sums, key=lambda name: -sums[name])
    columns = [Column(name, "decimal") for name in (*names, "GPU time of that cycle", "waiting")]
    cells = [[rung, *(each.get(name, 0.0) for name in names), *ends] for rung, each, ends in rows]
    table = Table([Column("ms a step"), *columns], cells)
    tones = {part.tone for bar in bars for part in bar.parts if part.size >= LEAST_MS}
    legend = [(tone, name) for name, tone in TONES.items() if tone in tones] + [("idle", "waiting")]
    picture = Bars(bars, "Milliseconds of GPU work of each rung by category", legend)
    about = "GPU milliseconds a step by category of kernels, of the first profiled cycle, and the median of waiting."
    fold = Fold("Milliseconds by category", [table])
    return Section("categories", "What the GPU does", about, [picture, fold])


def _list_sides(inputs: Inputs) -> list[Side]:
    """Return the rungs with a profile."""
    path = (inputs.staircase or inputs.left_out or (Path(),))[0]
    timed = [(rung, parts.parts_of(rung)) for rung in inputs.main.rungs if rung.status == "ok"]
    return [Side(path, inputs.main, rung, profile) for rung, profile in timed if profile]


def show_steps(inputs: Inputs) -> Section | None:
    """Return what the difference of two neighbours consists of; None if no two of them have a profile."""
    sides = _list_sides(inputs) if inputs.staircase else []
    pairs = [*pairwise(sides), *([(sides[0], sides[-1])] if len(sides) > 2 else [])]
    folds = []
    for step in (explain.explain(*pair) for pair in pairs):
        first, second = step.names
        sentence = explain.describe(step).removeprefix(f"{second}: ")
        folds.append(
            Fold(sentence, [explain.tabulate(step)], f"{first} → {second}", is_muted=not step.differs)
        )
    about = (
        "As `ladder explain A B` says it. A difference inside the noise, or not decided, is not explained."
    )
    return Section("steps", "Why: each step explained", about, folds) if folds else None


def show_study(inputs: Inputs, kind: str) -> Section | None:
    """Return the files of a study as the frame shows them: its chart, its tables, and why not to quote them."""
    blocks: list[Block] = []
    about = f"As `ladder {frame.load_studies()[kind].name}` measures it."
    if kind == "roofline" and (frozen := derive.find_frozen(inputs.main.machine.name, inputs.main.workload)):
        blocks.append(_tabulate_scores(inputs.main, frozen))
    for path, study, file in (file for file in inputs.files if file.study.kind == kind):
        heading, *sentences = study.summarize(file)
        cautions = map(publishable.told, frame.list_cautions(study, file))
        if path not in inputs.drawn and (picture := study.draw(file, "svg")):
            inputs.drawn[path] = Chart(heading, picture)
        blocks += [inputs.drawn[path]] if path in inputs.drawn else []
        for number, table in enumerate(study.list_tables(file)):
            name = table.title or f"Table: {table.columns[0].title}"
            blocks.append(Fold(name, [table], on_paper=False) if number else replace(table, title=heading))
        blocks.append([*sentences, *cautions, f"{shorten_path(path)}, {file.started[:10]}"])
    return Section(kind, KINDS[kind], about, blocks) if blocks else None


def _tabulate_scores(main: Result, frozen: derive.Frozen) -> Table:
    """Return the score of each rung by the floor that is frozen for the machine and workload."""
    kinds = {"rung": "text", "ms/step": "ms", "times the floor": "decimal", "score": "ratio"}
    rows = []
    for name, step_ms in _list_times(main).items():
        score = derive.derive_score(step_ms, frozen.base_ms, frozen.floor_ms)
        rows.append([name, step_ms, step_ms / frozen.floor_ms, score])
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
    tones = {"busy": "allocated", "idle": inputs.shown.memory.partition(",")[0], "more": "on the device"}
    picture = Bars(bars, "GiB of each rung", [*tones.items()])
    about = "Peaks of one process of each rung, in GiB."
    return Section("memory", "Memory", about, [picture]) if bars else None


def show_proofs(inputs: Inputs) -> Section:
    """Return the receipts of each rung, which show that it was on, and its parity with the reference."""
    shown = tables.tabulate_checks(inputs.main)
    folds = [Fold(table.title, [replace(table, title="")], on_paper=False) for table in shown]
    about = "A receipt shows that a rung was on. Parity is the largest error as a share of its budget."
    return Section("proofs", "Receipts and parity", about, folds or ["This result has neither."])


def show_environment(inputs: Inputs) -> Section:
    """Return hardware, software, protocol, the GPU's state and the settings of PyTorch."""
    main, gpu = inputs.main, inputs.main.gpu
    facts = write_whole(main.machine) | {
        "started": main.started,
        "minutes": f"{main.seconds / 60:.1f}",
        "commit": f"{main.commit or 'unknown'}{' with changes' if main.dirty else ''}",
        "measured code": ", ".join(f"{name} {code}" for name, code in (main.measured_code or {}).items()),
        "GPU during the run": f"{gpu.state}, {gpu.tenancy}" if gpu else "not watched",
        "visits rejected": gpu.rejected_visits if gpu else None,
    }
    folds = {"Workload": main.workload, "Protocol": write_whole(main.protocol), "Variables": main.environment}
    for rung in [rung for rung in main.rungs if rung.status == "ok"][-1:]:
        folds |= {f"Recipe of {rung.name}": rung.recipe, f"PyTorch's settings in {rung.name}": rung.settings}
    about = "Compare times only with results of the same machine and software."
    blocks = [Fold(name, [_tabulate_facts(each)], on_paper=False) for name, each in folds.items() if each]
    return Section("environment", "Environment", about, [_tabulate_facts(facts), *blocks])


def _tabulate_facts(facts: Mapping[str, object]) -> Table:
    known = {name: value for name, value in facts.items() if value is not None}
    rows = [[name, each if isinstance(each, str) else json.dumps(each)] for name, each in known.items()]
    return Table([Column(""), Column("")], rows)


def show_files(inputs: Inputs) -> Section:
    """Return every file that the page is made of, inside the page, to be saved from it."""
    runs = [run for run in (inputs.staircase, inputs.left_out, *inputs.others) if run]
    paths = [*(path for path, _ in runs), *(file.path for file in inputs.files)]
    data = {shorten_path(path): store.read(path) for path in paths}
    rows = [(name, f"{len(json.dumps(each)) / 1000:,.0f} KB") for name, each in data.items()]
    about = "Every file that this page is made of, with all samples in time order. The data is in the page itself."
    return Section("raw", "Raw data", about, [Files(rows, data)])
