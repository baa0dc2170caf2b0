"""The proofs of each rung: its receipts, which show that it was on, and its parity with the reference."""

from __future__ import annotations

from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.report import checks

PLACE = 85
UNPROVED = "not in this result"


def section(found: Found) -> Section | None:
    """Return receipts and parity of each rung. A rung without either is said to have none."""
    shown, main = found.shown, found.main
    rows = [["rung", "receipts", "parity"]]
    rows += [
        [row.name, row.receipts or UNPROVED, row.parity or UNPROVED]
        for row in shown.rows
        if row.status not in ("n/a", "skipped")
    ]
    folds = []
    for rung in main.rungs:
        receipts, cells = checks.receipt_lines(rung), checks.parity_cells(rung)
        if not (receipts or cells):
            continue
        table = [list(checks.PARITY_HEADINGS), *map(list, cells)]
        parts = [html.lines(receipts), html.lines(checks.parity_lines(rung))]
        parts += [html.table(table, f"Parity of {html.name(rung.name)}")] if cells else []
        folds.append(html.fold(html.name(rung.name), html.joined(parts), on_paper=False))
    if tiles := checks.choice_lines(main):
        folds.append(html.fold("Tiles that the kernels ran with", html.lines(tiles), on_paper=False))
    return Section(
        "proofs",
        "Receipts and parity",
        html.joined([html.table(rows, "Receipts and parity of each rung"), *folds]),
        "A receipt shows that a rung was on. Parity is the largest error as a share of its budget.",
    )
