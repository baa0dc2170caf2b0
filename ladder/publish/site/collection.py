"""What the front page shows: ladders by machine, a card for each workload, histories, and the files behind them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlencode

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.text import bounds, factor, ms, plain
from ladder.plan import catalog, content, modes
from ladder.publish import gallery
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.history import series as asvseries
from ladder.publish.validation import validate
from ladder.report import panels
from ladder.report.panels import short_ms
from ladder.report.view import Row, View, shown_top, view
from ladder.results import identity, loading, ranking, sources, words
from ladder.results.combine import series
from ladder.results.publishable import publishable
from ladder.results.ranking import Stored
from ladder.results.run import Result

_LOUD = ("faster", "slower", "ADOPT", "SKIP")  # the texts that have a style of their own


@dataclass(frozen=True)
class Raw:
    """A published result file of `ladder run`. ``path`` is relative to the site's folder."""

    path: str
    machine: str
    workload: str
    ladder: str
    mode: str
    started: str
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A text of a table, with the class of its style. ``under``: a smaller text below it, for wide windows."""

    text: str
    kind: str = ""
    under: str = ""


@dataclass(frozen=True)
class Panel:
    """One machine's ladder. ``path`` is that of the raw result, ``stem`` the name of its charts and its report."""

    machine: str  # its short name, as in the folders of results
    shown: View
    result: Result | None  # absent if only asv measured the machine
    path: str  # relative to the site's folder
    stem: str

    @property
    def is_part(self) -> bool:
        """Return whether it shows some rungs of a run of another ladder."""
        return self.result is not None and self.result.part_of is not None

    @property
    def name(self) -> str:
        """Return the name of the GPU or CPU."""
        return self.shown.machine.partition(", ")[0]

    @property
    def headline(self) -> tuple[str, str]:
        """Return the milliseconds of the lowest and the highest rung with a number, and the factor between them."""
        rows = [row for row in self.shown.rows if row.step_ms]
        if not rows:
            return "no rung has a number", ""
        first, last = rows[0], rows[-1]
        if first is last:
            return f"{short_ms(first.step_ms)} ms a step", ""
        total = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
        return f"{short_ms(first.step_ms)} to {short_ms(last.step_ms)} ms a step", total

    @property
    def columns(self) -> list[tuple[Cell, list[Cell]]]:
        """Return the heading and the cells of each column; a column without any text is left out."""
        columns: list[tuple[Cell, Callable[[Row], Cell]]] = [
            (Cell("ms/step", "number"), lambda row: Cell(ms(row.step_ms or None) or row.status, "number")),
            (Cell("GPU ms", "number"), lambda row: Cell(ms(row.gpu.ms) if row.gpu else "", "number")),
            (Cell("GPU work"), lambda row: _gain(row.gpu.seen, row.gpu.gain) if row.gpu else Cell("")),
            (Cell("step"), lambda row: _gain(row.seen, row.gain)),
            (Cell("gain at top", "number"), lambda row: Cell(shown_top(row), "number")),
            (Cell("advice"), lambda row: Cell(row.advice, row.advice if row.advice in _LOUD else "")),
        ]
        cells = [(heading, [derive(row) for row in self.shown.rows]) for heading, derive in columns]
        return [(heading, column) for heading, column in cells if any(cell.text for cell in column)]


def _gain(seen: words.Seen, interval: tuple[float, float] | None) -> Cell:
    """Return the verdict on one quantity of a rung, over its interval."""
    return Cell(words.answer(seen), seen.verdict if seen.verdict in _LOUD else "", bounds(interval))


@dataclass(frozen=True)
class Group:
    """The same ladder and workload on several machines, which share a scale.

    ``tops``: of each machine the run whose highest rung is the top of the ladder, mostly that of its panel.
    ``highest``: of each machine without one the run that came highest.
    """

    workload: str
    ladder: str
    title: str
    panels: tuple[Panel, ...]
    tops: tuple[Panel, ...] = ()
    highest: tuple[Panel, ...] = ()

    @property
    def most(self) -> float:
        """Return the milliseconds of the longest bar or error bar of all panels."""
        return max(panels.most_ms(panel.shown) for panel in self.panels)

    @property
    def about(self) -> str:
        """Return the facts of the workload."""
        return "; ".join(
            sorted({each.shown.workload for each in self.panels if each.result} or {self.workload})
        )

    @property
    def is_split(self) -> bool:
        """Return whether bars show the share of the GPU's work."""
        return any(row.host_bound is not None for panel in self.panels for row in panel.shown.rows)


@dataclass(frozen=True)
class Answer:
    """What a rung takes on a GPU: milliseconds a step and the total, by the step and by GPU time; "" if unknown."""

    title: str
    step: str = ""
    total: str = ""
    gpu: str = ""  # or why there is none
    gpu_total: str = ""


@dataclass(frozen=True)
class Gpu:
    """A column of a card.

    ``measured``: the days of its runs, or whose they are. ``marks``: why not to quote them. ``reports``: the ladder and
    the path of each full report.
    """

    name: str
    measured: str
    marks: tuple[str, ...]
    reports: tuple[tuple[str, str], ...] = ()
    is_article: bool = False


@dataclass(frozen=True)
class Line:
    """A row of a card."""

    title: str
    answers: list[Answer | None]


@dataclass(frozen=True)
class Card:
    """The answer for a workload. ``groups``: the places of its ladders on the page, from 1, with their titles."""

    workload: str
    about: str
    gpus: list[Gpu]
    lines: list[Line]
    groups: list[tuple[int, str]]


@dataclass(frozen=True)
class History:
    """The highest rung of each commit on one machine, or on one GPU in GPU time."""

    name: str
    machine: str
    workload: str
    steps: Sequence[asvseries.Step]
    is_gpu: bool = False

    @property
    def drawn(self) -> list[asvseries.Step]:
        """Return the steps of commits whose highest rung was measured."""
        return [step for step in self.steps if step.whole]

    @property
    def commits(self) -> int:
        """Return the number of commits that are drawn."""
        return len({step.commit for step in self.drawn})

    @property
    def about(self) -> str:
        """Return the story in words."""
        first, last = self.drawn[0], self.drawn[-1]
        about = f"One commit so far: {last.rung}, {short_ms(last.ms)} ms a step."
        if self.commits > 1:
            about = f"{self.commits} commits, from {short_ms(first.ms)} ms ({first.rung})"
            about += f" to {short_ms(last.ms)} ms ({last.rung})."
        if partial := len(self.steps) - len(self.drawn):
            about += f" {partial} measured without the highest rungs, and in the table alone."
        if any(step.marks for step in self.drawn):
            about += " A dotted line marks a new driver or cuDNN."
        return about

    @property
    def stem(self) -> str:
        """Return the name of its picture's file."""
        return _stem(self.machine, self.workload, "gpu-history" if self.is_gpu else "history")

    @property
    def address(self) -> str:
        """Return the address of asv's graph of it."""
        machine = None if self.is_gpu else self.machine
        quantity = asvseries.GPU_STEP if self.is_gpu else asvseries.STEP
        return asv_address(machine, self.workload, "commit", self.drawn[-1].rung, quantity)


def asv_address(
    machine: str | None, workload: str, axis: str, rung: str = "", quantity: str = asvseries.STEP
) -> str:
    """Return the address of asv's page with this selection."""
    selection = {"x-axis": axis, **({"machine": machine} if machine else {}), "p-workload": f"'{workload}'"}
    selection |= {"p-rung": f"'{rung}'"} if rung else {}
    return f"asv/index.html#{quantity}?{urlencode(selection)}"


# --- files ----------------------------------------------------------------------------------------------------------


def publish_results(folder: Path, into: Path) -> tuple[list[Stored], list[str]]:
    """Copy the valid results of `ladder run` below ``folder`` to ``into``.

    Returns:
        (the copies with their content, one line for each refused file)
    """
    stored, refused = [], []
    files = {loading.show_path(path): path for path in sorted(folder.rglob("*.json"))}
    for judged in validate.validate([folder]) if files else []:
        if judged.problem:
            refused.append(f"{judged.path}: {judged.problem}")
            continue
        source = files[judged.path]
        try:
            result = loading.load_run(source)
        except UserError:
            refused.append(f"{judged.path}: not a result of `ladder run`, whose folder this is")
            continue
        # Named after the machine, not after the folder of the file.
        copy = into / text.slug(result.machine.name) / source.name
        if copy.exists():
            refused.append(f"{judged.path}: another file of this machine has its name")
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        stored.append((copy, result))
    return stored, refused


def publish_asv(accepted: Path, site: Path, revisions: Mapping[str, int]) -> list[str]:
    """Copy asv's results of commits on the branch, with their machines' records, and return their paths."""
    copied = []
    for path in sorted(accepted.glob("*/*.json")):
        if path.name == "machine.json" or json.loads(path.read_bytes())["commit_hash"] not in revisions:
            continue
        target = site / "results" / "asv" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        for name in ("machine.json", path.name):
            shutil.copyfile(path.with_name(name), target.with_name(name))
        copied.append(target.relative_to(site).as_posix())
    return copied


def list_raw(stored: Iterable[Stored], site: Path) -> list[Raw]:
    """Return all published result files, by machine and workload, newest first."""
    rows = [
        Raw(
            path.relative_to(site).as_posix(),
            plain(result.machine.name),
            plain(result.workload["name"]),
            plain(result.ladder.name),
            plain(ranking.mode(result)),
            plain(result.started)[:16].replace("T", " "),
            tuple(map(plain, publishable(result))),
        )
        for path, result in stored
    ]
    rows.sort(key=lambda each: each.started, reverse=True)
    return sorted(rows, key=lambda each: (each.machine, each.workload, each.ladder))


def name_reports(groups: Sequence[Group]) -> dict[str, str]:
    """Return the page of each full report by the path of its run. A whole run names its page before a part of it."""
    pages: dict[str, str] = {}
    measured = [panel for group in groups for panel in group.panels if panel.result]
    for panel in sorted(measured, key=lambda each: each.is_part):
        pages.setdefault(panel.path, f"reports/{panel.stem}.html")
    for panel in (each for group in groups for each in (*group.tops, *group.highest)):
        pages.setdefault(panel.path, f"reports/{panel.stem}-top.html")  # of a run that a card alone shows
    return pages


# --- ladders --------------------------------------------------------------------------------------------------------


def collect_groups(stored: list[Stored], points: list[asvseries.Point], site: Path) -> list[Group]:
    """Return the ladders by workload, GPUs before CPUs. A machine measured only by asv joins as a single run."""
    runs = gallery.prefer_article(sources.without_sources(result for _, result in stored))
    by_ladder: dict[tuple[str, str], dict[str, list[Result]]] = {}
    labels = identity.labels(result.workload for result in runs)
    for result in runs:
        if ranking.mode(result) == modes.CUMULATIVE:
            work, ladder = result.workload, result.ladder
            names = labels[work["name"], content.of_workload(work)], ladder.name
            # A user's ladders with one name may differ in their order.
            if ladder.digest and not names[1].endswith(ladder.digest):
                names = names[0], f"{names[1]}-{ladder.digest}"
            by_ladder.setdefault(names, {}).setdefault(result.machine.name, []).append(result)
    measured = {(result.machine.name, result.workload["name"]) for result in runs}
    groups = []
    for (workload, ladder), machines in by_ladder.items():
        shown, tops, highest = _panels(machines, stored, site, (workload, ladder))
        rungs = max((panel.result.ladder.rungs for panel in shown if panel.result), key=len)
        every = (*shown, *_single(points, measured, (workload, ladder), rungs))
        groups.append(Group(workload, ladder, shown[0].shown.title, every, tuple(tops), tuple(highest)))
    for workload in {point.workload for point in points} - {group.workload for group in groups}:
        full = catalog.load_ladder(FULL)
        timed = {name for point in points if point.workload == workload for name, _ in point.ms}
        rungs = [step.name for step in full.rungs if step.name in timed]
        single = _single(points, measured, (workload, FULL), rungs)
        groups.append(Group(workload, FULL, full.title, tuple(single)))
    groups = [group for group in groups if group.panels]
    return sorted(
        groups,
        key=lambda each: (
            _is_on_cpu(each), each.workload != ARTICLE, each.workload, each.ladder != ARTICLE, each.ladder
        ),
    )  # fmt: skip


def _panels(
    machines: dict[str, list[Result]], stored: list[Stored], site: Path, names: tuple[str, str]
) -> tuple[list[Panel], list[Panel], list[Panel]]:
    """Return the panel of each machine's best run, that of the run with the ladder's top, and else of the highest."""
    everything = [result for _, result in stored]

    def show(result: Result) -> Panel:
        whole, (path, _) = series.with_top(result, everything), _find_run(result, stored)
        machine = plain(result.machine.name)
        path_in_site = path.relative_to(site).as_posix()
        return Panel(machine, view(whole), whole, path_in_site, _stem(machine, *names))

    shown: list[Panel] = []
    tops: list[Panel] = []
    highest: list[Panel] = []
    for _, runs in sorted(machines.items()):
        best, top = max(runs, key=ranking.rank), gallery.find_top(runs)
        shown.append(show(best))
        if (answer := top or gallery.find_highest(runs)) is not None:
            (tops if top else highest).append(shown[-1] if answer is best else show(answer))
    return shown, tops, highest


def _stem(*names: str) -> str:
    """Return the name of files without suffix. It stays when a newer result takes the place of an older one."""
    return "-".join(map(text.slug, names))


def _find_run(result: Result, stored: list[Stored]) -> Stored:
    """Return the stored run that a result is, or whose rungs it shows."""
    own = [each for each in stored if each[1] is result]
    return own[0] if own else next(each for each in stored if each[1].rungs[0] is result.rungs[0])


def _is_on_cpu(group: Group) -> bool:
    devices = {panel.result.machine.device for panel in group.panels if panel.result}
    return devices == {"cpu"} or (not devices and group.workload == "tiny")


def _single(
    points: list[asvseries.Point], measured: set[tuple[str, str]], names: tuple[str, str], rungs: list[str]
) -> list[Panel]:
    own = [point for point in points if point.workload == names[0]]
    return [
        Panel(point.machine, shown, None, f"results/asv/{point.path}", _stem(point.machine, *names))
        for point, shown in asvseries.single_runs(own, measured, rungs)
    ]


def collect_histories(
    points: list[asvseries.Point], gpu_points: list[asvseries.Point], revisions: Mapping[str, int]
) -> list[History]:
    """Return the histories in GPU time, then those in step time. Machines of one name have their short name, too."""
    names = {point.machine: point.name for point in (*gpu_points, *points)}
    histories = []
    for is_gpu, found in ((True, gpu_points), (False, points)):
        steps = asvseries.history(found, revisions)
        for (machine, workload), each in steps.items():
            namesakes = [other for other, of in steps if (of, names[other]) == (workload, names[machine])]
            name = names[machine] if len(namesakes) < 2 else f"{names[machine]} ({machine})"
            histories.append(History(name, machine, workload, each, is_gpu))
    return histories


# --- cards ----------------------------------------------------------------------------------------------------------


def collect_cards(groups: Sequence[Group], reports: Mapping[str, str] = MappingProxyType({})) -> list[Card]:
    """Return the cards of the workloads of which the article's ladder, or `full`, was measured by the protocol.

    ``reports``: the page of each full report, by the path of its run.
    """
    names = dict.fromkeys(group.workload for group in groups)
    return [card for name in names if (card := _card(name, groups, reports))]


def _card(workload: str, groups: Sequence[Group], reports: Mapping[str, str]) -> Card | None:
    places = [(number, group) for number, group in enumerate(groups, start=1) if group.workload == workload]
    of = {name: [group for _, group in places if group.ladder == name] for name in (ARTICLE, FULL)}
    best, tops, highest = (
        {name: _by_machine(panel for group in of[name] for panel in pick(group)) for name in of}
        for pick in (lambda group: group.panels, lambda group: group.tops, lambda group: group.highest)
    )
    machines = list(dict.fromkeys([*best[ARTICLE], *best[FULL]]))
    if not machines:
        return None
    quoted = (tops[ARTICLE], highest[ARTICLE], tops[FULL], highest[FULL])
    last = catalog.load_ladder(ARTICLE).rungs[-1].name
    columns = [_runs_of(machine, quoted) or _runs_of(machine, tuple(best.values())) for machine in machines]
    titles = ("the article's top", "the article's highest rung that ran")
    titles += ("the top of full", "the highest rung of full that ran")
    lines = [Line("baseline", [_baseline(panels) for panels in columns])]
    lines += [
        Line(title, [_top(by_machine.get(machine)) for machine in machines])
        for title, by_machine in zip(titles, quoted, strict=True)
    ]
    for place, machine in enumerate(machines):  # a run of selected rungs of `full` may hold the article's top
        longer = tops[FULL].get(machine) or highest[FULL].get(machine)
        lines[1].answers[place] = lines[1].answers[place] or _top(longer, last)
    gpus = [_gpu(panels, reports) for panels in columns]
    article = next(iter(tops[ARTICLE].values()), columns[0][0]).shown.rows
    rows = [row for row in article if row.article_ms and row.article_total]
    if rows and rows[-1].name == last:
        reference = columns[0][0].shown.reference.partition(",")[0]
        gpus.append(Gpu("the article", reference, (), is_article=True))
        for line, row in zip(lines, (rows[0], rows[-1], None, None, None), strict=True):
            answer = Answer(row.title, short_ms(row.article_ms), factor(row.article_total)) if row else None
            line.answers.append(answer)
    return Card(
        workload,
        columns[0][0].shown.workload,
        gpus,
        [line for line in lines if any(line.answers)],
        [(number, group.title) for number, group in places],
    )


def _runs_of(machine: str, quoted: Iterable[Mapping[str, Panel]]) -> list[Panel]:
    """Return the runs of a machine, each once: a card has the notes of those whose numbers it shows."""
    return list({id(panel): panel for each in quoted if (panel := each.get(machine))}.values())


def _by_machine(panels: Iterable[Panel]) -> dict[str, Panel]:
    return {panel.machine: panel for panel in panels if panel.result}


def _gpu(panels: Sequence[Panel], reports: Mapping[str, str]) -> Gpu:
    days = sorted({panel.result.started[:10] for panel in panels if panel.result})
    marks = dict.fromkeys(mark for panel in panels for mark in panel.shown.marks)
    pages = [
        (panel.result.ladder.name, reports[panel.path])
        for panel in panels
        if panel.result and panel.path in reports and not panel.is_part  # it has the report of its whole run
    ]
    return Gpu(panels[0].shown.machine.partition(",")[0], " and ".join(days), tuple(marks), tuple(pages))


def _baseline(panels: Sequence[Panel]) -> Answer | None:
    rows = (row for panel in panels for row in panel.shown.rows)
    return next((_answer(row, row) for row in rows if row.name == "baseline" and row.step_ms), None)


def _top(panel: Panel | None, name: str = "") -> Answer | None:
    """Return the highest rung with a number, or the one of that name; None if it is the lowest or has none."""
    rows = [row for row in panel.shown.rows if row.step_ms] if panel else []
    return next((_answer(row, rows[0]) for row in rows[:0:-1] if name in ("", row.name)), None)


def _answer(row: Row, first: Row) -> Answer:
    total = words.whole(first.step_ms, row.step_ms, row.total, row.total_interval)
    answer = Answer(row.title, short_ms(row.step_ms or 0.0), total)
    if row.gpu is None:
        return answer
    if row.gpu.interval is None:  # not to be quoted
        return replace(answer, gpu="GPU: too few generations")
    return replace(answer, gpu=f"GPU {short_ms(row.gpu.ms)} ms", gpu_total=factor(row.gpu.total))
