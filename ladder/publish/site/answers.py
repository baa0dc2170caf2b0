"""The first screen of the front page: a card for each workload, with its GPUs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ladder.base.text import factor
from ladder.plan import catalog
from ladder.publish.site.collected import FULL, Group, Panel
from ladder.report.panels import short_ms
from ladder.report.view import Row
from ladder.results import words

ARTICLE = "article"  # the ladder


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


def cards(groups: Sequence[Group], reports: Mapping[int, str] = MappingProxyType({})) -> list[Card]:
    """Return the cards of the workloads of which the article's ladder, or `full`, was measured by the protocol.

    ``reports``: the path of each full report, by the id of its panel.
    """
    found = [_card(name, groups, reports) for name in dict.fromkeys(group.workload for group in groups)]
    return [card for card in found if card]


def _card(workload: str, groups: Sequence[Group], reports: Mapping[int, str]) -> Card | None:
    places = [(number, group) for number, group in enumerate(groups, start=1) if group.workload == workload]
    of = {name: [group for _, group in places if group.ladder == name] for name in (ARTICLE, FULL)}
    best, tops, highest = (
        {name: _by_machine(panel for group in of[name] for panel in pick(group)) for name in of}
        for pick in (lambda group: group.panels, lambda group: group.tops, lambda group: group.highest)
    )
    machines = list(dict.fromkeys([*best[ARTICLE], *best[FULL]]))
    if not machines:
        return None
    told = (tops[ARTICLE], highest[ARTICLE], tops[FULL], highest[FULL])
    last = catalog.load_ladder(ARTICLE).rungs[-1].name
    columns = [_told(machine, told) or _told(machine, tuple(best.values())) for machine in machines]
    titles = ("the article's top", "the article's highest rung that ran")
    titles += ("the top of full", "the highest rung of full that ran")
    lines = [Line("baseline", [_baseline(panels) for panels in columns])]
    lines += [
        Line(title, [_top(found.get(machine)) for machine in machines])
        for title, found in zip(titles, told, strict=True)
    ]
    for place, machine in enumerate(machines):  # a run of selected rungs of `full` may hold the article's top
        longer = tops[FULL].get(machine) or highest[FULL].get(machine)
        lines[1].answers[place] = lines[1].answers[place] or _top(longer, last)
    gpus = [_gpu(panels, reports) for panels in columns]
    article = next(iter(tops[ARTICLE].values()), columns[0][0]).shown.rows
    rows = [row for row in article if row.article_ms and row.article_total]
    if rows and rows[-1].name == last:
        gpus.append(Gpu("the article", columns[0][0].shown.reference.partition(",")[0], ()))
        for line, row in zip(lines, (rows[0], rows[-1], None, None, None), strict=True):
            said = Answer(row.title, short_ms(row.article_ms), factor(row.article_total)) if row else None
            line.answers.append(said)
    return Card(
        workload,
        columns[0][0].shown.workload,
        gpus,
        [line for line in lines if any(line.answers)],
        [(number, group.title) for number, group in places],
    )


def _told(machine: str, found: Iterable[Mapping[str, Panel]]) -> list[Panel]:
    """Return the runs of a machine, each once: a card has the notes of those whose numbers it shows."""
    return list({id(panel): panel for each in found if (panel := each.get(machine))}.values())


def _by_machine(panels: Iterable[Panel]) -> dict[str, Panel]:
    return {panel.machine: panel for panel in panels if panel.result}


def _gpu(panels: Sequence[Panel], reports: Mapping[int, str]) -> Gpu:
    days = sorted({panel.result.started[:10] for panel in panels if panel.result})
    marks = dict.fromkeys(mark for panel in panels for mark in panel.shown.marks)
    known = [
        (panel.result.ladder.name, reports[id(panel)])
        for panel in panels
        if panel.result and id(panel) in reports and not panel.is_part  # it has the report of its whole run
    ]
    return Gpu(panels[0].shown.machine.partition(",")[0], " and ".join(days), tuple(marks), tuple(known))


def _baseline(panels: Sequence[Panel]) -> Answer | None:
    rows = (row for panel in panels for row in panel.shown.rows)
    return next((_answer(row, row) for row in rows if row.name == "baseline" and row.step_ms), None)


def _top(panel: Panel | None, name: str = "") -> Answer | None:
    """Return the highest rung with a number, or the one of that name; None if it is the lowest or has none."""
    rows = [row for row in panel.shown.rows if row.step_ms] if panel else []
    return next((_answer(row, rows[0]) for row in rows[:0:-1] if name in ("", row.name)), None)


def _answer(row: Row, first: Row) -> Answer:
    total = words.whole(first.step_ms, row.step_ms, row.total, row.total_interval)
    made = Answer(row.title, short_ms(row.step_ms or 0.0), total)
    if row.gpu is None:
        return made
    if row.gpu.interval is None:  # not to be quoted
        return replace(made, gpu="GPU: too few generations")
    return replace(made, gpu=f"GPU {short_ms(row.gpu.ms)} ms", gpu_total=factor(row.gpu.total))
