"""Common mistakes and cheaper models: each entry beside the first one, by both clocks."""

from __future__ import annotations

from ladder.publish.report import html
from ladder.publish.report.found import Found, short
from ladder.publish.report.section import Section
from ladder.report import chart, tables
from ladder.report.themes import DARK, LIGHT
from ladder.report.view import view
from ladder.results import publishable
from ladder.results.ranking import Stored

PLACE = 68


def section(found: Found) -> Section | None:
    """Return the runs of `--mode mistakes` and `--mode levers`, None without any."""
    if not found.studies:
        return None
    return Section(
        "studies",
        "What mistakes cost, and what another model saves",
        html.joined(_one(each) for each in found.studies),
        "Each entry beside the first one, in times of its GPU work and of its step. 2x takes twice as long.",
    )


def _one(study: Stored) -> html.Markup:
    """Return the picture of a study, its sentences and its table."""
    path, result = study
    shown = view(result)
    columns = [("entry", lambda row: row.title), *tables.columns_of(shown)]
    rows = [[heading for heading, _ in columns], *([cell(row) for _, cell in columns] for row in shown.rows)]
    light, dark = (chart.render(result, "svg", theme) for theme in (LIGHT, DARK))
    told = (*shown.sentences, *shown.marks)
    below = [line for line in tables.lines_below(shown) if line not in told]
    return html.joined(
        [
            html.chart(f"{shown.title}: milliseconds a step of each entry", light, dark),
            html.lines(shown.sentences),
            html.fold(
                f"Table: {shown.title}", html.table(rows, f"{shown.title}, {short(path)}"), on_paper=False
            ),
            html.lines([*map(publishable.told, shown.marks), *below, short(path)]),
        ]
    )
