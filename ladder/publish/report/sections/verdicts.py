"""The verdicts: every number of the table of `ladder report`, without those that have a section of their own."""

from __future__ import annotations

from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.report import tables

PLACE = 30
ELSEWHERE = ("receipts", "parity", "allocated GiB", "device GiB", "reserved GiB", "peak RSS, GiB", "images/s")


def section(found: Found) -> Section | None:
    """Return the table of verdicts with what a reader must know of it."""
    shown = found.shown
    columns = [(heading, cell) for heading, cell in tables.columns_of(shown) if heading not in ELSEWHERE]
    rows = [["rung", *(heading for heading, _ in columns)]]
    rows += [[row.name, *(cell(row) for _, cell in columns)] for row in shown.rows]
    told = (*shown.sentences, *shown.marks)
    below = [
        line
        for line in tables.lines_below(shown)
        if line not in told and not line.startswith(("parity:", "device GiB:", "article:"))
    ]
    return Section(
        "verdicts",
        "Verdicts",
        html.joined([html.table(rows, "Verdicts of each rung"), html.lines(below)]),
        "An interval is a 95% interval. A verdict asks it against the noise floor of this run.",
    )
