"""The batches and resolutions at which two rungs matter: from the results of `ladder map`."""

from __future__ import annotations

import dataclasses

from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.report.themes import DARK, LIGHT
from ladder.results import publishable
from ladder.show.table import render_html
from ladder.studies import frame
from ladder.studies.map import STUDY, draw_chart, list_findings

PLACE = 67
KIND = frame.as_kind(STUDY)
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
    raw = frame.decode_file(STUDY, file.data)
    derived = STUDY.derive(raw)
    findings = list_findings(derived)
    parts = [html.lines(findings)]
    if derived.rows:
        light, dark = (draw_chart(derived, raw, "svg", theme) for theme in (LIGHT, DARK))
        parts.append(html.chart(" ".join(findings), light, dark))
    for table in STUDY.list_tables(raw):
        name = html.name(table.columns[0].title)
        bare = dataclasses.replace(table, title=f"{name}, {file.name}", notes=())
        parts.append(html.fold(f"Table: {name}", render_html(bare), on_paper=False))
    marks = [*map(publishable.told, file.marks)]
    return html.joined([*parts, html.lines([*marks, f"{file.name}, {raw.started[:10]}"])])
