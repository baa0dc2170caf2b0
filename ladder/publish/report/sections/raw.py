"""The raw data: every file that the page is made of, inside the page, to be saved from it."""

from __future__ import annotations

import json

from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.results import publishable

PLACE = 95


def section(found: Found) -> Section | None:
    """Return a row and a button for each file, and the data of all in one script element."""
    raw = found.raw
    marks = {each.name: each.marks for each in found.files}
    rows = []
    for name, data in raw.items():
        size = len(json.dumps(data, separators=(",", ":")))
        said = "; ".join(map(publishable.told, marks.get(name, ())))
        rows.append(
            html.Markup(
                '<li><button type="button" data-file="{}">Save {}</button> <span class="muted">{} KB{}</span></li>'
            ).format(name, name, f"{size / 1000:,.0f}", f"; {said}" if said else "")
        )
    body = html.Markup('<ul class="files">{}</ul>\n<script type="application/json" id="data">{}</script>')
    return Section(
        "raw",
        "Raw data",
        body.format(html.joined(rows), html.Markup(embedded(raw))),
        "Every file that this page is made of, with all samples in time order. The data is in the page itself.",
    )


def embedded(data: object) -> str:
    """Return JSON that cannot end the script element that holds it, and is the same data."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
