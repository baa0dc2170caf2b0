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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ladder.core import stopping
from ladder.core.errors import UserError
from ladder.core.text import clean_line, format_factor, format_ms, make_slug
from ladder.plan import catalog, modes
from ladder.publish import gallery
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.history import screening
from ladder.publish.history.page import ASV, FRONT, read_branch, write_histories
from ladder.publish.report import File, draw_step, gather_inputs, read_files, write_report
from ladder.publish.validation import validate
from ladder.report import gpus
from ladder.report.chart import short_ms
from ladder.report.view import TITLE as ARTICLE_TITLE
from ladder.report.view import Row, View, view
from ladder.results import loading, ranking, words
from ladder.results.publishable import publishable
from ladder.results.ranking import Stored
from ladder.results.run import Result
from ladder.show.page import (
    Bar,
    Bars,
    Block,
    Card,
    Cards,
    Chart,
    Fold,
    Head,
    Part,
    Section,
    render_page,
)
from ladder.show.table import Column, Table
from ladder.studies.commits import known

MARKS = (f"{ASV}/info.json", "info.json")  # of our site, and of one that asv made without this publisher
TOO_FEW = "too few generations"  # GPU time without an interval is not to be quoted
TITLE = "The optimization ladder: what each rung is worth on each GPU"
ABOUT = "How much faster a StyleGAN2 training step becomes with each optimization, in milliseconds a step."
Pair = tuple[Result, Result | None]  # the article's staircase of a GPU, and that of the longer ladder


# --- the folder -------------------------------------------------------------------------------------------------------


def write_front(
    site: Path,
    results: Path,
    accepted: Path,
    revisions: Mapping[str, int],
    root: Path,
    tell: Callable[[str], None],
) -> list[str]:
    """Write the front page, the full reports, the history and the raw results into the folder ``site``.

    ``results`` has a folder for each kind of result, ``accepted`` asv's validated files, and ``revisions`` the number
    of each commit on the branch of the repository ``root``. `tell` gets a line before each report. Return one line for
    each refused result of `ladder run`.
    """
    stored, refused = publish_results(results / "ladder", site / "results" / "ladder")
    entries, studies = choose_entries(stored, site), read_files(results)
    drawn: dict[Path, Chart] = {}
    for number, entry in enumerate(entries, 1):
        tell(f"report {number} of {len(entries)}: {entry.report}")
        write_report(gather_inputs(entry.run, stored, studies, drawn), site / entry.report, f"../{FRONT}")
    tell("history")
    screened = accepted, results / "compare", known.read_entries(), "HEAD", screening.THRESHOLD, root
    history = write_histories(site, accepted, screening.screen(*screened)[0], read_branch(revisions, root))
    raw = tabulate_files(stored, publish_asv(accepted, site, revisions), site)
    sections = list_sections(entries, history, raw)
    pairs = gallery.pair_gpus([result for _, result in stored])
    sections[:0] = [show_staircase(pair, studies) for pair in pairs[:1]]
    (site / FRONT).write_text(render_page(make_head(pairs), sections), encoding="utf-8")
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


def make_head(pairs: Sequence[Pair]) -> Head:
    """Return the headline: the factor of all rungs, a mean over pairs, on the first GPU, and both clocks of each."""
    heading, tiles = "The optimization ladder", []
    for pair in pairs:
        machine = gpus.read_machine(*pair)
        first, last = view(pair[1] or pair[0]).rows[0], machine.top or machine.shown.rows[-1]
        total = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
        count = machine.rungs or len(machine.shown.rows)
        if not tiles:
            heading = f"With all {count} rungs, a StyleGAN2 step is {total} as fast on an {machine.name}"
        clocks = [("a step", last.step_ms, total)]
        clocks += [("GPU work", last.gpu.ms, format_factor(last.gpu.total))] if last.gpu else []
        name = f"{machine.name}, all {count} rungs"
        tiles += [(name, factor, f"to {short_ms(ms)} ms {clock}") for clock, ms, factor in clocks]
    return Head(TITLE, heading, [ABOUT], [], tiles)


def show_staircase(pair: Pair, studies: Sequence[File]) -> Section:
    """Return the article's rungs on a GPU as bars, NVIDIA's own code above them and the top of `full` below."""
    machine = gpus.read_machine(*pair)
    shown, bars = machine.shown, list[Bar]()
    upstream = [file.path for file in studies if file.study.kind == "upstream"]
    if ms := gallery.find_official(pair[0], lambda folder: upstream):
        bars.append(Bar("NVIDIA's own code", [Part(ms, "unknown")], f"{format_ms(ms)} ms"))
    for number, row in enumerate(shown.rows):
        bar = draw_step(row, shown, number)
        bars.append(replace(bar, words=[each for each in bar.words if each[0] == "total"]))
    if machine.top:
        bar, total = draw_step(machine.top, shown, 0), format_factor(machine.top.total)
        bars.append(replace(bar, name=f"all {machine.rungs} rungs of full", words=[("total", total)]))
    legend = [("busy", "GPU working"), ("idle", "GPU waiting")]
    about = f"{shown.workload}; milliseconds a step, lower is better; each rung with those before it."
    about += f" The article is {ARTICLE_TITLE}, {shown.reference.partition(',')[0]}."
    about += " A total is the geometric mean, over generations, of the ratio to the run's own baseline"
    about += f" ({format_ms(machine.began_ms)} ms for the last row)." if machine.began_ms else "."
    chart = Bars(bars, "Milliseconds a step of each rung", legend)
    return Section("staircase", f"The staircase on an {machine.name}", about, [chart])


def list_sections(entries: Sequence[Entry], history: Sequence[Card], raw: Table) -> list[Section]:
    """Return the sections of the front page that have content: of the runs that it shows, and of all its files."""
    about_answers = (
        "Milliseconds a step, and of GPU work. A total is a mean of ratios to the baseline of its own run."
    )
    about_raw = "Every file holds all samples in time order. `ladder validate` accepted them all."
    ladders = [tabulate_ladders(entries)] if entries else []
    sections = [
        Section("answers", "Every workload on every machine", about_answers, list_answers(entries)),
        Section("history", "Speed over commits", "", [Cards(history)] if history else []),
        Section("ladders", "Every ladder", "Each link leads to the full report.", ladders),
        Section("raw", "Raw results", about_raw, [Fold(f"{len(raw.rows)} files", [raw])] if raw.rows else []),
    ]
    return [section for section in sections if section.blocks]


def list_answers(entries: Sequence[Entry]) -> list[Block]:
    """Return a card for each workload: of each machine the baseline and the tops, by both clocks, and its reports."""
    workloads = dict.fromkeys(each.key[0] for each in entries)
    cards = [_make_card([each for each in entries if each.key[0] == name]) for name in workloads]
    return [Cards(cards)] if (cards := [card for card in cards if card]) else []


def _make_card(entries: Sequence[Entry]) -> Card | None:
    last = catalog.load_ladder(ARTICLE).rungs[-1].name
    columns = [Column("ms"), Column("baseline", "ms")]
    for title in ("the article's top", "the top of full"):
        columns += [Column(title, "ms"), Column("total", "speedup")]
    rows, links, marks = list[list[Any]](), list[tuple[str, str]](), dict[str, None]()
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
        name = gpus.shorten_gpu(used[0].name)
        rows.append([name, base.step_ms, *_answer(top, base), *_answer(highest, base)])
        if base.gpu:
            rows.append(
                ["its GPU work", *_answer_gpu(base)[:1], *_answer_gpu(top, base), *_answer_gpu(highest, base)]
            )
        for each in used:
            subject = ", ".join((*each.key, name, each.run[1].started[:10]))
            links.append((f"Report of {subject}", quote(each.report)))
            marks |= dict.fromkeys(f"{name}: {mark}" for mark in each.shown.marks)
    reference = [row for row in entries[0].rows if row.article_ms] if entries[0].key[1] == ARTICLE else []
    if rows and len(reference) > 1:
        base, top = reference[0], reference[-1]
        name = f"the article, {entries[0].shown.reference.partition(',')[0]}"
        rows.append([name, base.article_ms, top.article_ms, top.article_total, None, None])
    blocks: list[Block] = [Table(columns, rows).drop_empty(), [*marks]]
    return Card(entries[0].shown.workload, blocks, links) if rows else None


def _answer(row: Row | None, first: Row) -> list[Any]:
    """Return what a rung takes, and its total over the first one."""
    if row is None or row is first:
        return [None, None]
    return [row.step_ms, words.whole(first.step_ms, row.step_ms, row.total, row.total_interval)]


def _answer_gpu(row: Row | None, first: Row | None = None) -> list[Any]:
    if row is None or row is first or row.gpu is None:
        return [None, None]
    return [row.gpu.ms, row.gpu.total] if row.gpu.interval else [TOO_FEW, None]


def tabulate_ladders(entries: Sequence[Entry]) -> Table:
    """Return a row for each run that is shown: its lowest and its highest rung, and where all of it is."""
    columns = [
        Column("workload, ladder, machine", "link"), Column("from ms", "ms"), Column("to ms", "ms"),
        Column("total", "speedup"), Column("highest rung"), Column("GPU ms", "ms"), Column("started", "date"),
        Column("not to be quoted"),
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for each in entries:
        cells: list[Any] = [None, None, None, "no rung has a number", None]
        if each.rows:
            first, last = each.rows[0], each.rows[-1]
            total = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
            cells = [first.step_ms, last.step_ms, total, last.title, last.gpu and last.gpu.ms]
        link = ", ".join((*each.key, each.name)), quote(each.report)
        rows.append([link, *cells, each.run[1].started[:10], "; ".join(each.shown.marks)])
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
