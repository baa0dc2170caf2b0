"""The batches and resolutions at which two rungs matter, and trainings that grow: from the results of `ladder map`."""

from __future__ import annotations

from ladder.base.records import build
from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.report.themes import DARK, LIGHT
from ladder.results import publishable
from ladder.studies.map import chart, report
from ladder.studies.map.record import Result
from ladder.studies.map.schema import KIND

PLACE = 67
READS = (Reads(KIND, "map"),)


def section(found: Found) -> Section | None:
    """Return what maps say, None without any."""
    files = found.of(KIND)
    if not files:
        return None
    return Section(
        "maps",
        "Where two rungs matter",
        html.joined(_one(file) for file in files),
        "Gains by resolution and batch, as `ladder map` looks at them: one process for each recipe in each cell.",
    )


def _one(file: File) -> html.Markup:
    result = build(Result, file.data)
    said = report.sentences(result)
    parts = [html.lines(said)]
    if result.rows:
        light, dark = (chart.render(result, "svg", theme) for theme in (LIGHT, DARK))
        parts.append(html.chart(" ".join(said), light, dark))
    for headings, rows in report.tables(result):
        name = html.name(headings[0])
        table = html.table([list(headings), *map(list, rows)], f"{name}, {file.name}")
        parts.append(html.fold(f"Table: {name}", table, on_paper=False))
    marks = [*map(publishable.told, file.marks)]
    return html.joined([*parts, html.lines([*marks, f"{file.name}, {result.started[:10]}"])])
