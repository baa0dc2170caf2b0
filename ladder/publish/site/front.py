"""The front page of the site: sections of tables and pictures, with links to the full reports and the files behind."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ladder.core.text import clean_line, format_factor, make_slug
from ladder.plan import catalog, modes
from ladder.publish import gallery
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.history import series
from ladder.publish.history.series import Point, Step
from ladder.publish.site import figures
from ladder.report import gpus
from ladder.report.panels import short_ms
from ladder.report.view import Row, View, view
from ladder.results import ranking, words
from ladder.results.publishable import publishable
from ladder.results.ranking import Stored
from ladder.show.page import Block, Chart, Fold, Head, Section, render_page
from ladder.show.table import Column, Table
from ladder.show.themes import DARK, LIGHT

TOO_FEW = "too few generations"  # GPU time without an interval is not to be quoted


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
    for (machine, workload, ladder), runs in groups.items():
        top = gallery.find_top(result for _, result in runs)
        (best,) = gallery.choose_best(result for _, result in runs)
        for path, result in runs:
            is_best, is_top = result.started == best.started, top is not None and result is top
            if is_best or is_top:
                stem = "-".join(map(make_slug, (machine, workload, ladder, *([] if is_best else ["top"]))))
                relative = path.relative_to(site).as_posix()
                entries.append(Entry((path, result), relative, f"reports/{stem}.html", is_top))
    return sorted(
        entries,
        key=lambda each: (
            each.run[1].machine.device == "cpu", each.key[0] != ARTICLE, each.key[0], each.key[1] != ARTICLE,
            each.key[1], each.machine, not each.is_top,
        ),
    )  # fmt: skip


def render_front(sections: Sequence[Section], machines: int) -> str:
    """Return the front page as HTML, which loads nothing."""
    about = (
        "How much faster a StyleGAN2 training step becomes with each optimization, measured in fresh processes on"
        f" {machines} machine{'' if machines == 1 else 's'}. Milliseconds a step, lower is better."
    )
    head = Head(
        "The optimization ladder: what each rung is worth on each GPU",
        "The optimization ladder",
        [about],
        [],
        [],
    )
    return render_page(head, sections)


def list_sections(
    entries: Sequence[Entry],
    stored: Sequence[Stored],
    histories: Sequence[History],
    files: Sequence[str],
    site: Path,
) -> list[Section]:
    """Return the sections of the front page that have content.

    Args:
        entries: the runs that are shown.
        stored: all published results of `ladder run`.
        histories: those of asv's results.
        files: asv's published result files, below the site's folder.
        site: the site's folder.
    """
    pairs = gallery.pair_gpus([result for _, result in stored])
    picture = [gpus.render(pairs, "svg", theme=theme) for theme in (LIGHT, DARK)] if pairs else []
    sections = [
        Section(
            "answers",
            "Every workload on every machine",
            "The article's ladder, and `full`, which goes on from it. Totals are over the baseline.",
            list_answers(entries),
        ),
        Section(
            "gpus",
            "Every GPU",
            "Each rung of the article's ladder on each GPU, and a whole training.",
            [Chart("Each rung on each GPU: the tables have its numbers", *picture)] if picture else [],
        ),
        Section(
            "ladders",
            "Every ladder",
            "A full report has every rung.",
            [_tabulate_ladders(entries)] if entries else [],
        ),
        Section(
            "history",
            "The highest rung over commits",
            "The step time of the highest rung of each commit, as asv recorded it: the median of one process, on which"
            " no verdict can rest. A newer torch, Triton or CUDA begins a new line. Hosts with the same GPU share its"
            " lines of GPU time.",
            [
                *([_link("asv's pages (asv preview)", "asv/index.html")] if histories else []),
                *(block for history in histories for block in _show_history(history)),
            ],
        ),
        Section(
            "raw",
            "Raw results",
            "Every file holds all samples in time order, recipes and settings. `ladder validate` accepted them all.",
            [_tabulate_files(stored, files, site)],
        ),
    ]
    return [section for section in sections if section.blocks]


# --- ladders ----------------------------------------------------------------------------------------------------------


def list_answers(entries: Sequence[Entry]) -> list[Block]:
    """Return a table for each workload: of each machine the baseline and the tops, by both clocks."""
    return [
        table
        for workload in dict.fromkeys(each.key[0] for each in entries)
        if (table := _tabulate_workload([each for each in entries if each.key[0] == workload])).rows
    ]


def _tabulate_workload(entries: Sequence[Entry]) -> Table:
    last = catalog.load_ladder(ARTICLE).rungs[-1].name
    columns = [Column("machine"), Column("baseline, ms"), Column("GPU ms")]
    for title in ("the article's top", "the top of full"):
        columns += [Column(f"{title}, ms"), Column("total"), Column("GPU ms"), Column("GPU total")]
    columns += [
        Column("measured"),
        Column("not to be quoted"),
        Column("report", "link"),
        Column("report of full", "link"),
    ]
    rows: list[list[Any]] = []
    for machine in dict.fromkeys(each.machine for each in entries):
        own = {
            each.key[1]: each for each in reversed(entries) if each.machine == machine
        }  # that with the top
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
        cells = [
            short_ms(base.step_ms or 0.0),
            _answer_gpu(base)[0],
            *_answer(top, base),
            *_answer(highest, base),
        ]
        rows.append([used[0].name, *cells, day, "; ".join(marks), *links])
    reference = [row for row in entries[0].rows if row.article_ms] if entries[0].key[1] == ARTICLE else []
    if rows and len(reference) > 1:
        base, top = reference[0], reference[-1]
        cells = [short_ms(base.article_ms), None, short_ms(top.article_ms), format_factor(top.article_total)]
        rows.append([f"the article, {entries[0].shown.reference.partition(',')[0]}", *cells, *[None] * 10])
    return Table(columns, rows, entries[0].shown.workload).drop_empty()


def _answer(row: Row | None, first: Row) -> list[str | None]:
    """Return what a rung takes and its total over the first one, by the step and by GPU time."""
    if row is None or row is first:
        return [None] * 4
    total = words.whole(first.step_ms, row.step_ms, row.total, row.total_interval)
    return [short_ms(row.step_ms or 0.0), total, *_answer_gpu(row)]


def _answer_gpu(row: Row) -> list[str | None]:
    if row.gpu is None:
        return [None, None]
    if row.gpu.interval is None:
        return [TOO_FEW, None]
    return [short_ms(row.gpu.ms), format_factor(row.gpu.total)]


def _tabulate_ladders(entries: Sequence[Entry]) -> Table:
    """Return a row for each run that is shown: its lowest and its highest rung, and where all of it is."""
    columns = [
        Column("workload"), Column("ladder"), Column("machine"), Column("from ms", "ms"), Column("to ms", "ms"),
        Column("total"), Column("highest rung"), Column("GPU ms", "ms"), Column("started"), Column("not to be quoted"),
        Column("report", "link"), Column("file", "link"),
    ]  # fmt: skip
    rows = []
    for each in entries:
        first, last = (each.rows[0], each.rows[-1]) if each.rows else (None, None)
        total = (
            words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
            if first and last
            else ""
        )
        rows.append([
            *each.key, each.name, first and first.step_ms, last and last.step_ms, total,
            last.title if last else "no rung has a number", last.gpu.ms if last and last.gpu else None,
            each.run[1].started[:10], "; ".join(each.shown.marks), ("full report", quote(each.report)),
            ("raw result", quote(each.path)),
        ])  # fmt: skip
    return Table(columns, rows).drop_empty()


def _tabulate_files(stored: Sequence[Stored], files: Sequence[str], site: Path) -> Table:
    """Return all published result files, by machine and workload, newest first; then asv's."""
    columns = [Column(title) for title in ("machine", "workload", "ladder", "mode", "started (UTC)")]
    columns += [Column("file", "link"), Column("not to be quoted")]
    rows: list[list[Any]] = [
        [
            result.machine.name, result.workload["name"], result.ladder.name, ranking.mode(result),
            result.started[:16].replace("T", " "), (path.name, quote(path.relative_to(site).as_posix())),
            "; ".join(publishable(result)),
        ]
        for path, result in stored
    ]  # fmt: skip
    rows.sort(key=lambda row: row[4], reverse=True)
    rows.sort(key=lambda row: row[:3])
    rows += [
        [Path(path).parent.name, None, None, "asv", None, (Path(path).name, quote(path)), None]
        for path in files
    ]
    return Table(columns, rows)


# --- history ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The highest rung of each commit on one machine, or on one GPU in GPU time."""

    name: str
    machine: str | None  # in asv's words; None for GPU time, which hosts share
    workload: str
    steps: Sequence[Step]

    @property
    def drawn(self) -> list[Step]:
        """The steps of commits whose highest rung was measured."""
        return [step for step in self.steps if step.whole]

    @property
    def about(self) -> str:
        """The story in words."""
        first, last = self.drawn[0], self.drawn[-1]
        commits = len({step.commit for step in self.drawn})
        about = f"One commit so far: {last.rung}, {short_ms(last.ms)} ms a step."
        if commits > 1:
            about = f"{commits} commits, from {short_ms(first.ms)} ms ({first.rung})"
            about += f" to {short_ms(last.ms)} ms ({last.rung})."
        if partial := len(self.steps) - len(self.drawn):
            about += f" {partial} measured without the highest rungs, and in the table alone."
        return about

    @property
    def address(self) -> str:
        """The address of asv's graph of it."""
        selection = {"x-axis": "commit", **({"machine": self.machine} if self.machine else {})}
        selection |= {"p-workload": f"'{self.workload}'", "p-rung": f"'{self.drawn[-1].rung}'"}
        quantity = series.STEP if self.machine else series.GPU_STEP
        return f"asv/index.html#{quantity}?{urlencode(selection)}"


def collect_histories(
    points: Iterable[Point], gpu_points: Iterable[Point], revisions: Mapping[str, int]
) -> list[History]:
    """Return the histories in GPU time, then those in step time. Machines of one name have their short name, too."""
    histories = []
    for is_gpu, each in ((True, list(gpu_points)), (False, list(points))):
        names = {point.machine: point.name for point in each}
        for (machine, workload), steps in series.history(each, revisions).items():
            is_alone = list(names.values()).count(names[machine]) < 2
            name = names[machine] if is_alone else f"{names[machine]} ({machine})"
            histories.append(History(name, None if is_gpu else machine, workload, steps))
    return histories


def _show_history(history: History) -> list[Block]:
    title = f"{history.name}, workload {history.workload}{'' if history.machine else ', GPU time'}"
    columns = [
        Column("commit"),
        Column("highest rung"),
        Column("ms/step", "ms"),
        Column("libraries"),
        Column("with"),
    ]
    rows = [
        [step.commit[:8], step.rung, step.ms, ", ".join(step.software), ", ".join(step.marks)]
        for step in history.steps
    ]
    blocks: list[Block] = [f"{title}. {history.about}"]
    if len({step.commit for step in history.drawn}) > 1:
        pictures = [figures.draw_history(history.drawn, theme) for theme in (LIGHT, DARK)]
        blocks.append(Chart(f"{title}: milliseconds a step of the highest rung over commits", *pictures))
    return [
        *blocks,
        Fold(
            f"{len(rows)} measurements", [Table(columns, rows).drop_empty(), _link("in asv", history.address)]
        ),
    ]


def _link(words: str, address: str) -> Table:
    return Table([Column("", "link")], [[(words, address)]])
