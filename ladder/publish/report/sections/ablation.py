"""The worth of each rung in any order, and which rungs act on each other: from the results of `ladder ablate`."""

from __future__ import annotations

import dataclasses

from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.report.themes import DARK, LIGHT
from ladder.results import publishable
from ladder.show.table import render_html
from ladder.studies import frame
from ladder.studies.ablate import STUDY, report
from ladder.studies.ablate.record import MOST_RUNGS, PARITY

PLACE = 65
KIND = frame.as_kind(STUDY)
READS = (Reads(KIND, "ablation"),)
MOST = 21  # pairs in the folded table: all of seven rungs


def section(found: Found) -> Section | None:
    """Return what ablations say, None without any."""
    files = sorted(
        found.of(KIND), key=lambda file: len(file.data["cases"][PARITY]["rungs"]) > MOST_RUNGS
    )  # orders first
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
    raw = frame.decode_file(STUDY, file.data)
    ablation = STUDY.derive(raw)
    both = "Two rungs together, beyond each without the other"
    clock, ladder = report.describe_clock(ablation), ablation.protocol.ladder
    about = f"Worth of each rung: {file.name}, {raw.started[:10]}; {clock}, ladder {ladder}"
    parts = [
        html.lines(report.list_findings(ablation)),
        render_html(dataclasses.replace(report.make_table(ablation), title=about)),
    ]
    if ablation.worth:
        light, dark = (report.draw_chart(ablation, raw, "svg", theme) for theme in (LIGHT, DARK))
        about = f"Worth of each rung, and a heat map of pairs. {report.describe_pairs(ablation)}"
        parts.append(html.chart(about, light, dark))
    pairs, stored = report.make_pairs_table(ablation, MOST), report.make_beside_table(ablation)
    if pairs.rows:
        parts.append(html.fold(f"{both}: {len(pairs.rows)} pairs", render_html(pairs)))
    if stored.rows:
        parts.append(html.fold("Stored runs beside", render_html(stored)))
    return html.joined([*parts, html.lines(map(publishable.told, file.marks))])
