"""NVIDIA's own step beside ours, by both clocks: from the results of `ladder upstream`."""

from __future__ import annotations

from ladder.base.records import build
from ladder.base.text import counted
from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.results import publishable
from ladder.studies.upstream import report
from ladder.studies.upstream.record import Result
from ladder.studies.upstream.schema import KIND

PLACE = 82
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
    result = build(Result, file.data)
    label = f"Steps, {file.name}"
    about = f"{file.name}, {result.started[:10]}; {counted(result.protocol.rounds, 'generation')}"
    parts = [html.table([list(report.HEADINGS), *map(list, report.cells(result))], label, caption=about)]
    parts.append(html.lines([*report.lines(result), *map(publishable.told, file.marks)]))
    if phases := report.phase_cells(result):
        rows = [list(report.PHASE_HEADINGS), *map(list, phases)]
        parts.append(html.fold("By phase", html.table(rows, f"Phases, {file.name}")))
    return html.joined(parts)
