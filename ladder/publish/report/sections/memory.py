"""The memory of each rung: what was allocated, reserved, and held on the device."""

from __future__ import annotations

from ladder.base.text import amount
from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.report import tables
from ladder.report.view import Row

PLACE = 70


def section(found: Found) -> Section | None:
    """Return the memory of the rungs, None where no rung knows it."""
    shown = found.shown
    rows = [row for row in shown.rows if row.status == "ok" and _most(row)]
    if not rows:
        return None
    most = max(_most(row) for row in rows) * 1.02
    chart = html.bars([_bar(row) for row in rows], most, "GiB of each rung")
    head = ["rung", "allocated GiB", shown.memory, "device GiB"]
    table = [[row.name, *map(amount, (row.allocated, row.memory, row.device))] for row in rows]
    tones = [("busy", "allocated"), ("idle", "reserved"), ("more", "on the device")]
    if not any(row.allocated for row in rows):
        tones = [("busy", shown.memory)]
    notes = (
        [tables.DEVICE_ADDED if shown.generations else tables.DEVICE] if any(r.device for r in rows) else []
    )
    return Section(
        "memory",
        "Memory",
        html.joined(
            [
                html.legend(tones),
                chart,
                html.fold("GiB of each rung", html.table([head, *table], "GiB of each rung")),
                html.lines(notes),
            ]
        ),
        "Peaks of one process of each rung, in GiB.",
    )


def _most(row: Row) -> float:
    return max(row.allocated or 0.0, row.memory or 0.0, row.device or 0.0)


def _bar(row: Row) -> html.Bar:
    """Return a bar of what is allocated, what is reserved beyond it, and what the device holds beyond that."""
    parts, reached = [], 0.0
    kinds = ("busy", "idle", "more") if row.allocated else ("idle", "busy", "more")
    for size, kind in zip((row.allocated, row.memory, row.device), kinds, strict=True):
        if size and size > reached:
            parts.append(html.Part(size - reached, kind))
            reached = size
    return html.Bar(row.title, parts, f"{amount(reached)} GiB")
