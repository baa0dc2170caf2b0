"""The worth of each rung in any order, and which rungs act on each other: from the results of `ladder ablate`."""

from __future__ import annotations

from ladder.base.records import build
from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.report.themes import DARK, LIGHT
from ladder.results import publishable
from ladder.studies.ablate import chart, report
from ladder.studies.ablate.record import Result
from ladder.studies.ablate.schema import KIND

PLACE = 65
READS = (Reads(KIND, "ablation"),)
MOST = 21  # pairs in the folded table: all of seven rungs


def section(found: Found) -> Section | None:
    """Return what ablations say, None without any."""
    files = sorted(found.of(KIND), key=lambda file: not file.data["protocol"]["whole"])  # orders first
    if not files:
        return None
    return Section(
        "ablation",
        "What each rung is worth in any order",
        html.joined(_one(file) for file in files),
        "As `ladder ablate` finds it: a rung's mean gain over all orders of the ladder (its Shapley value); of a"
        " longer ladder its gain on top of all others.",
    )


def _one(file: File) -> html.Markup:
    result = build(Result, file.data)
    headings, rows = report.table(result)
    pairs = report.pair_rows(result, MOST)
    alone, both = "Worth of each rung", "Two rungs together, beyond each without the other"
    parts = [
        html.lines(report.sentences(result)),
        html.table([list(headings), *map(list, rows)], f"{alone}, {file.name}", caption=_about(file, result)),
    ]
    if result.worth:
        light, dark = (chart.render(result, "svg", theme) for theme in (LIGHT, DARK))
        parts.append(
            html.chart(f"{alone}, and a heat map of pairs. {report.pair_sentence(result)}", light, dark)
        )
    if pairs:
        table = html.table([list(report.PAIRED), *map(list, pairs)], f"{both}, {file.name}")
        parts.append(html.fold(f"{both}: {len(pairs)} pairs", table))
    if stored := report.stored_rows(result):
        rows_ = [list(report.STORED), *map(list, stored)]
        parts.append(html.fold("Stored runs beside", html.table(rows_, f"Stored runs beside {file.name}")))
    return html.joined([*parts, html.lines(map(publishable.told, file.marks))])


def _about(file: File, result: Result) -> str:
    return f"{file.name}, {result.started[:10]}; {report.clock(result)}, ladder {html.name(result.protocol.ladder)}"
