"""NVIDIA's own step beside ours, by both clocks: from the results of `ladder upstream`."""

from __future__ import annotations

import dataclasses

from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.results import publishable
from ladder.show.table import render_html
from ladder.studies import frame
from ladder.studies.upstream.study import STUDY

PLACE = 82
KIND = frame.as_kind(STUDY)
READS = (Reads(KIND, "upstream"),)


def section(found: Found) -> Section | None:
    """Return what comparisons with NVIDIA's step say, None without any."""
    files = found.of(KIND)
    if not files:
        return None
    return Section(
        "upstream",
        "NVIDIA's own step beside ours",
        html.joined(_one(file) for file in files),
        "As `ladder upstream` times them. An eager step waits for its host, so read GPU time first.",
    )


def _one(file: File) -> html.Markup:
    raw = frame.decode_file(STUDY, file.data)
    steps, *phases = STUDY.list_tables(raw)
    steps = dataclasses.replace(steps, title=f"{file.name}, {raw.started[:10]}")
    parts = [render_html(steps), html.lines(map(publishable.told, file.marks))]
    parts += [html.fold("By phase", render_html(table)) for table in phases]
    return html.joined(parts)
