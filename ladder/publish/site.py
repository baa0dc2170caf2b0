"""The published site: a front page of tables and pictures above full reports, raw results and asv's own pages.

`replacing` yields the folder in which `asv publish` builds, and `write_front` fills it (`benches/_publishing.py` calls
both). Every workload has a table of its baseline and tops on each machine, and asv's results give a history.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ladder.core import stopping
from ladder.core.errors import UserError
from ladder.core.text import clean_line, make_slug
from ladder.plan import catalog, modes
from ladder.publish import gallery
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.history import series
from ladder.publish.history.series import Point, Step
from ladder.publish.report import gather_inputs, read_files, write_report
from ladder.publish.validation import validate
from ladder.report import drawing, gpus
from ladder.report.chart import short_ms
from ladder.report.view import Row, View, view
from ladder.results import loading, ranking, words
from ladder.results.publishable import publishable
from ladder.results.ranking import Stored
from ladder.show.page import Block, Chart, Fold, Head, Section, render_page
from ladder.show.table import Column, Table
from ladder.show.themes import DARK, LIGHT, Theme

ASV = "asv"  # the folder of asv's pages
MARKS = (f"{ASV}/info.json", "info.json")  # of our site, and of one that asv made without this publisher
TOO_FEW = "too few generations"  # GPU time without an interval is not to be quoted
TITLE = "The optimization ladder: what each rung is worth on each GPU"
ABOUT = "How much faster a StyleGAN2 training step becomes with each optimization, in milliseconds a step."
ABOUT_HISTORY = (
    "The step time of the highest rung of each commit, as asv recorded it: the median of one process, on which no"
    " verdict can rest. A newer torch, Triton or CUDA begins a new line. Hosts with the same GPU share its GPU time."
)
WIDTH, HEIGHT, LEFT, RIGHT, BELOW = 9.0, 2.75, 0.95, 2.0, 0.75  # inches of the picture of a history
MOST_COMMITS = 12  # named under its axis


# --- the folder -------------------------------------------------------------------------------------------------------


def write_front(site: Path, ladder_results: Path, accepted: Path, revisions: Mapping[str, int]) -> list[str]:
    """Write the front page, the full reports and the raw results into the folder ``site``.

    ``ladder_results`` has the folders of other results beside it, ``accepted`` asv's validated files, and
    ``revisions`` the number of each commit on the branch. Return one line for each refused result of `ladder run`.
    """
    stored, refused = publish_results(ladder_results, site / "results" / "ladder")
    entries, studies = choose_entries(stored, site), read_files(ladder_results.parent)
    drawn: dict[Path, Chart] = {}
    for entry in entries:
        write_report(gather_inputs(entry.run, stored, studies, drawn), site / entry.report)
    histories = [
        *show_histories(series.points(accepted, series.GPU_STEP), revisions, series.GPU_STEP),
        *show_histories(series.points(accepted), revisions),
    ]
    sections = list_sections(entries, stored, histories, publish_asv(accepted, site, revisions), site)
    (site / "index.html").write_text(render_front(sections), encoding="utf-8")
    return refused


def publish_results(folder: Path, into: Path) -> tuple[list[Stored], list[str]]:
    """Copy the valid results of `ladder run`. Return (the copies with their content, a line for each refused file)."""
    stored, refused = [], []
    for judged in validate.validate([folder]) if any(folder.rglob("*.json")) else []:
        problem = judged.problem
        try:
            result = None if problem else loading.load_run(judged.file)
        except UserError:
            result, problem = None, "not a result of `ladder run`, whose folder this is"
        if result is not None:
            # Named after the machine, not after the folder of the file.
            copy = into / make_slug(result.machine.name) / judged.file.name
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(judged.file, copy)
                stored.append((copy, result))
                continue
            problem = "another file of this machine has its name"
        refused.append(f"{judged.path}: {problem}")
    return stored, refused


def publish_asv(accepted: Path, site: Path, revisions: Mapping[str, int]) -> list[str]:
    """Copy asv's results of commits on the branch, with their machines' records, and return their paths."""
    copied = []
    for path in sorted(accepted.glob("*/*.json")):
        if path.name != "machine.json" and json.loads(path.read_bytes())["commit_hash"] in revisions:
            target = site / "results" / "asv" / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            for name in ("machine.json", path.name):
                shutil.copyfile(path.with_name(name), target.with_name(name))
            copied.append(target.relative_to(site).as_posix())
    return copied


@contextmanager
def replacing(html: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``html`` that replaces ``html`` if the block succeeds.

    Raises:
        UserError: ``html`` is not a published site, or its parent folder cannot be written.
    """
    html = Path(os.path.abspath(html))
    is_site = html.is_dir() and (not any(html.iterdir()) or any((html / name).is_file() for name in MARKS))
    if html.is_symlink() or (html.exists() and not is_site):
        raise UserError(
            f"{html}: holds something else than a published site; name another folder with --html-dir"
        )
    work = None
    try:
        with stopping.held_back():
            try:
                html.parent.mkdir(parents=True, exist_ok=True)
                work = Path(tempfile.mkdtemp(prefix=f".{html.name}-", dir=html.parent))
            except OSError as error:
                raise UserError(f"{html}: cannot be written: {error.strerror}") from None
        (fresh := work / "site").mkdir()
        yield fresh
        with stopping.held_back():
            try:
                if html.exists():
                    os.replace(html, work / "before")
                os.replace(fresh, html)
            except BaseException:  # what is in the working folder goes
                if (work / "before").exists() and not html.exists():
                    os.replace(work / "before", html)
                raise
    finally:
        with stopping.held_back():
            if work:
                shutil.rmtree(work, ignore_errors=True)


# --- the page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A run that the page shows. `path` is its file's, `report` that of its full report, below the site's folder."""

    run: Stored
    path: str
    report: str
    is_top: bool  # whether its highest rung is the top of its ladder

    @functools.cached_property
    def shown(self) -> View:
        """The view of the run."""
        return view(self.run[1])

    @property
    def rows(self) -> list[Row]:
        """The rungs with a number."""
        return [row for row in self.shown.rows if row.step_ms]

    @property
    def name(self) -> str:
        """The name of the GPU or CPU."""
        return self.shown.machine.partition(", ")[0]

    @property
    def machine(self) -> str:
        """The machine's short name, as in the folders of results."""
        return clean_line(self.run[1].machine.name)

    @property
    def key(self) -> tuple[str, str]:
        """The names of workload and ladder."""
        return self.run[1].workload["name"], self.run[1].ladder.name


def choose_entries(stored: Sequence[Stored], site: Path) -> list[Entry]:
    """Return of each machine, workload and ladder the best staircase, and the one with the ladder's top if another.

    GPUs stand before CPUs, and the article's workload and ladder before others.
    """
    groups: dict[tuple[str, str, str], list[Stored]] = {}
    for each in stored:
        if ranking.mode(each[1]) == modes.CUMULATIVE:
            names = each[1].machine.name, each[1].workload["name"], each[1].ladder.name
            groups.setdefault(names, []).append(each)
    entries = []
    for names, runs in groups.items():
        top = gallery.find_top(result for _, result in runs)
        (best,) = gallery.choose_best(result for _, result in runs)
        for path, result in runs:
            is_best, is_top = result.started == best.started, top is not None and result is top
            if is_best or is_top:
                stem = "-".join(map(make_slug, names)) + ("" if is_best else "-top")
                relative = path.relative_to(site).as_posix()
                entries.append(Entry((path, result), relative, f"reports/{stem}.html", is_top))
    return sorted(
        entries,
        key=lambda each: (
            each.run[1].machine.device == "cpu", each.key[0] != ARTICLE, each.key[0], each.key[1] != ARTICLE,
            each.key[1], each.machine, not each.is_top,
        ),
    )  # fmt: skip


def render_front(sections: Sequence[Section]) -> str:
    """Return the front page as HTML, which loads nothing."""
    return render_page(Head(TITLE, "The optimization ladder", [ABOUT], [], []), sections)


def list_sections(
    entries: Sequence[Entry],
    stored: Sequence[Stored],
    histories: Sequence[Block],
    files: Sequence[str],
    site: Path,
) -> list[Section]:
    """Return the sections of the front page that have content: of the runs that it shows, of all published runs, of
    asv's histories, and of asv's published files.
    """
    pairs = gallery.pair_gpus([result for _, result in stored])
    pictures = [gpus.render(pairs, "svg", theme=theme) for theme in (LIGHT, DARK)] if pairs else []
    about_answers = "The article's ladder, and `full`, which goes on from it. Totals are over the baseline."
    about_gpus = "Each rung of the article's ladder on each GPU, and a whole training."
    gpu_charts = [Chart("Each rung on each GPU: the tables have its numbers", *pictures)] if pictures else []
    ladders = [tabulate_ladders(entries)] if entries else []
    pages = [_link("asv's pages (asv preview)", f"{ASV}/index.html")] if histories else []
    about_raw = "Every file holds all samples in time order. `ladder validate` accepted them all."
    sections = [
        Section("answers", "Every workload on every machine", about_answers, list_answers(entries)),
        Section("gpus", "Every GPU", about_gpus, gpu_charts),
        Section("ladders", "Every ladder", "A full report has every rung.", ladders),
        Section("history", "The highest rung over commits", ABOUT_HISTORY, [*pages, *histories]),
        Section("raw", "Raw results", about_raw, [tabulate_files(stored, files, site)]),
    ]
    return [section for section in sections if section.blocks]


def list_answers(entries: Sequence[Entry]) -> list[Block]:
    """Return a table for each workload: of each machine the baseline and the tops, by both clocks."""
    workloads = dict.fromkeys(each.key[0] for each in entries)
    tables = [_tabulate_workload([each for each in entries if each.key[0] == name]) for name in workloads]
    return [table for table in tables if table.rows]


def _tabulate_workload(entries: Sequence[Entry]) -> Table:
    last = catalog.load_ladder(ARTICLE).rungs[-1].name
    columns = [Column("machine"), Column("baseline, ms", "ms"), Column("GPU ms", "ms")]
    for title in ("the article's top", "the top of full"):
        columns += [Column(f"{title}, ms", "ms"), Column("total", "speedup")]
        columns += [Column("GPU ms", "ms"), Column("GPU total", "speedup")]
    columns += [Column("measured", "date"), Column("not to be quoted")]
    columns += [Column("report", "link"), Column("report of full", "link")]
    rows: list[list[Any]] = []
    for machine in dict.fromkeys(each.machine for each in entries):
        # Of two runs of a ladder, that with its top.
        own = {each.key[1]: each for each in reversed(entries) if each.machine == machine}
        article, full = own.get(ARTICLE), own.get(FULL)
        used = [each for each in (article, full) if each is not None]
        base = next((row for each in used for row in each.rows if row.name == "baseline"), None)
        if base is None:
            continue
        top = next((row for each in used for row in each.rows if row.name == last), None)
        highest = full.rows[-1] if full and full.rows[0] is not full.rows[-1] else None
        day = max(each.run[1].started for each in used)[:10]
        marks = dict.fromkeys(mark for each in used for mark in each.shown.marks)
        links = [each and ("full report", quote(each.report)) for each in (article, full)]
        cells = [base.step_ms, *_answer_gpu(base)[:1], *_answer(top, base), *_answer(highest, base)]
        rows.append([used[0].name, *cells, day, "; ".join(marks), *links])
    reference = [row for row in entries[0].rows if row.article_ms] if entries[0].key[1] == ARTICLE else []
    if rows and len(reference) > 1:
        base, top = reference[0], reference[-1]
        name = f"the article, {entries[0].shown.reference.partition(',')[0]}"
        rows.append([name, base.article_ms, None, top.article_ms, top.article_total, *[None] * 10])
    return Table(columns, rows, entries[0].shown.workload).drop_empty()


def _answer(row: Row | None, first: Row) -> list[Any]:
    """Return what a rung takes and its total over the first one, by the step and by GPU time."""
    if row is None or row is first:
        return [None] * 4
    total = words.whole(first.step_ms, row.step_ms, row.total, row.total_interval)
    return [row.step_ms, total, *_answer_gpu(row)]


def _answer_gpu(row: Row) -> list[Any]:
    if row.gpu is None:
        return [None, None]
    return [row.gpu.ms, row.gpu.total] if row.gpu.interval else [TOO_FEW, None]


def tabulate_ladders(entries: Sequence[Entry]) -> Table:
    """Return a row for each run that is shown: its lowest and its highest rung, and where all of it is."""
    columns = [
        Column("workload"), Column("ladder"), Column("machine"), Column("from ms", "ms"), Column("to ms", "ms"),
        Column("total", "speedup"), Column("highest rung"), Column("GPU ms", "ms"), Column("started", "date"),
        Column("not to be quoted"), Column("report", "link"), Column("file", "link"),
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for each in entries:
        cells: list[Any] = [None, None, None, "no rung has a number", None]
        if each.rows:
            first, last = each.rows[0], each.rows[-1]
            total = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
            cells = [first.step_ms, last.step_ms, total, last.title, last.gpu and last.gpu.ms]
        links = ("full report", quote(each.report)), ("raw result", quote(each.path))
        day, marks = each.run[1].started[:10], "; ".join(each.shown.marks)
        rows.append([*each.key, each.name, *cells, day, marks, *links])
    return Table(columns, rows).drop_empty()


def tabulate_files(stored: Sequence[Stored], files: Sequence[str], site: Path) -> Table:
    """Return all published result files, by machine and workload, newest first; then asv's."""
    columns = [*map(Column, ("machine", "workload", "ladder", "mode")), Column("started (UTC)", "date")]
    columns += [Column("file", "link"), Column("not to be quoted")]
    rows: list[list[Any]] = [
        [
            run.machine.name, run.workload["name"], run.ladder.name, ranking.mode(run),
            run.started[:16].replace("T", " "), (path.name, quote(path.relative_to(site).as_posix())),
            "; ".join(publishable(run)),
        ]
        for path, run in stored
    ]  # fmt: skip
    rows.sort(key=lambda row: row[4], reverse=True)
    rows.sort(key=lambda row: row[:3])
    for name in map(Path, files):
        rows.append([name.parent.name, None, None, "asv", None, (name.name, quote(str(name))), None])
    return Table(columns, rows)


def _link(text: str, address: str) -> Table:
    return Table([Column("", "link")], [[(text, address)]])


# --- history ----------------------------------------------------------------------------------------------------------


def show_histories(
    every: Iterable[Point], revisions: Mapping[str, int], quantity: str = series.STEP
) -> list[Block]:
    """Return what the page shows of asv's results: the highest rung of each commit on each machine.

    GPU time (`quantity` is `series.GPU_STEP`) goes by GPU, which hosts share. Machines of one name have their short
    name, too.
    """
    points = list(every)
    names = {point.machine: point.name for point in points}
    blocks: list[Block] = []
    for (machine, workload), steps in series.history(points, revisions).items():
        is_alone = list(names.values()).count(names[machine]) < 2
        title = f"{names[machine]}{'' if is_alone else f' ({machine})'}, workload {workload}"
        selection = {"x-axis": "commit", "p-workload": f"'{workload}'"}
        if quantity == series.GPU_STEP:
            title += ", GPU time"
        else:
            selection["machine"] = machine
        # A commit whose highest rungs were not measured is in the table alone.
        drawn = [step for step in steps if step.whole]
        first, last = drawn[0], drawn[-1]
        selection["p-rung"] = f"'{last.rung}'"
        blocks.append(
            f"{title}. {short_ms(first.ms)} ms ({first.rung}) to {short_ms(last.ms)} ms ({last.rung})."
        )
        if len({step.commit for step in drawn}) > 1:
            pictures = [
                drawing.save(functools.partial(draw_history, drawn, theme), "svg", theme)
                for theme in (LIGHT, DARK)
            ]
            blocks.append(Chart(f"{title}: milliseconds a step of the highest rung over commits", *pictures))
        columns = [Column("commit"), Column("highest rung"), Column("ms/step", "ms"), Column("libraries")]
        rows = [
            [step.commit[:8], step.rung, step.ms, ", ".join(step.software), ", ".join(step.marks)]
            for step in steps
        ]
        table = Table([*columns, Column("with")], rows).drop_empty()
        link = _link("in asv", f"{ASV}/index.html#{quantity}?{urlencode(selection)}")
        blocks.append(Fold(f"measurements: {len(rows)}", [table, link]))
    return blocks


def draw_history(steps: Sequence[Step], theme: Theme) -> Any:
    """Return the figure of the milliseconds of the highest rung at each commit, one line per set of libraries.

    A line's last point is labelled. A dotted line marks a new driver or cuDNN.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    commits = list(dict.fromkeys(step.commit for step in steps))
    figure = Figure(figsize=(WIDTH, HEIGHT))
    width, height = (WIDTH - LEFT - RIGHT) / WIDTH, (HEIGHT - BELOW - 0.3) / HEIGHT
    axes = figure.add_axes((LEFT / WIDTH, BELOW / HEIGHT, width, height))
    axes.spines[:].set_visible(False)
    low, high = min(step.ms for step in steps), max(step.ms for step in steps)
    # So wide that noise looks small.
    axes.set_ylim(*((0.0, high * 1.25) if high > 1.3 * low else (low * 0.85, high * 1.15)))
    axes.set_xlim(-0.5, len(commits) - 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.tick_params(axis="y", length=0, labelcolor=theme.muted, labelsize=8.5)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8, zorder=0)
    axes.set_ylabel("ms per step,\nhighest rung", color=theme.muted, fontsize=9)
    looks = ((theme.busy, "o", "-"), (theme.article, "s", "--"), (theme.muted, "^", ":"))
    several = list(dict.fromkeys(step.software for step in steps))
    for index, software in enumerate(several):
        color, marker, line = looks[index % len(looks)]
        own = [step for step in steps if step.software == software]
        places, times = [commits.index(step.commit) for step in own], [step.ms for step in own]
        name = ", ".join(name_software(software, several))
        axes.plot(places, times, color=color, marker=marker, linestyle=line, markersize=5, label=name)
        axes.annotate(
            f"{own[-1].rung}, {short_ms(own[-1].ms)}", (places[-1], times[-1]), xytext=(8, 0), color=color,
            fontsize=8.5, textcoords="offset points", va="center", annotation_clip=False,
        )  # fmt: skip
    for place in {commits.index(step.commit) for step in steps if step.marks}:
        axes.axvline(place - 0.5, color=theme.muted, linestyle=":", linewidth=1, zorder=1)
    if len(several) > 1:
        figure.legend(loc="upper right", ncols=3, frameon=False, fontsize=8.5, borderpad=0)
    every = -(-len(commits) // MOST_COMMITS)
    axes.set_xticks(range(0, len(commits), every), [commit[:8] for commit in commits[::every]])
    axes.tick_params(axis="x", length=0, labelcolor=theme.muted, labelsize=8, rotation=45)
    return figure


def name_software(software: tuple[str, ...], several: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the parts that name a set of libraries: its torch, and what distinguishes it from the others."""
    return [*software[:1], *(part for part in software[1:] if any(part not in other for other in several))]
