"""The speed of light: how far a step is from its floor, and the score of each rung."""

from __future__ import annotations

from ladder.base.records import build
from ladder.base.text import ms
from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.results import publishable
from ladder.studies.roofline import distance, view
from ladder.studies.roofline.schema import KIND, Result

PLACE = 80
READS = (Reads(KIND, "roofline"),)


def section(found: Found) -> Section | None:
    """Return scores and distances, None where neither a frozen floor nor a roofline is known."""
    rooflines = sorted(((file, build(Result, file.data)) for file in found.of(KIND)), key=_step_ms)
    known = distance.frozen(found.main.machine.name, found.main.workload)
    if not rooflines and known is None:
        return None
    today = rooflines[0][1].step["light_ms"] if rooflines else None
    parts = [_scores(found, known, today)] if known else []
    if known is None:
        parts.append(html.text("No score: no floor is frozen for this GPU and workload.", "muted"))
    parts += [_one(file, each, is_open=number == 0) for number, (file, each) in enumerate(rooflines)]
    return Section(
        "light",
        "Distance to the speed of light",
        html.joined(parts),
        "The floor is the arithmetic of the convolutions and the bytes that must move, at this GPU's best rates.",
    )


def _step_ms(pair: tuple[File, Result]) -> float:
    return pair[1].measured.step_ms


def _scores(found: Found, known: distance.Frozen, today: float | None) -> html.Markup:
    rows = [["rung", "ms/step", "times the floor", "score", "score, today's floor"]]
    bars = []
    for rung in found.main.rungs:
        if rung.status == "ok" and rung.step_ms:
            by = [distance.scored(rung.step_ms, known.base_ms, floor) for floor in (known.floor_ms, today)]
            cells = ["" if each is None else f"{each:.3f}" for each in by]
            times = f"{rung.step_ms / known.floor_ms:.2f}"
            rows.append([html.name(rung.name), ms(rung.step_ms), times, *cells])
            drawn = [html.Part(by[0], "busy")] if by[0] else []
            missing = "" if drawn else "no score: below the floor"
            bars.append(html.Bar(html.name(rung.title), drawn, cells[0], missing=missing))
    beside = "" if today is None else f" Today's floor is {today:.2f} ms."
    notes = [
        "score: 1 / (1 + (t - floor) / (base - floor)), as SOL-ExecBench defines it: 1 at the floor, 0.5 at the base",
        f"floor: {known.floor_ms:.2f} ms, frozen on {known.since} ({known.floor_of}).{beside}",
        f"base: {known.base_ms:.2f} ms, torch.compile ({known.base_of})",
    ]
    name = "Speed-of-light score of each rung"
    chart, table = html.bars(bars, 1.0, name), html.fold("Scores and floors", html.table(rows, name))
    return html.joined([html.Markup("<h3>Speed-of-light score</h3>"), chart, html.lines(notes), table])


def _one(file: File, found: Result, *, is_open: bool) -> html.Markup:
    tables = [
        html.table(rows, f"{html.name(rows[0][0] or 'phase')}, {file.name}") for rows in view.tables(found)
    ]
    notes = [*map(publishable.told, file.marks), *view.notes(found)]
    return html.fold(
        html.plain_line(view.title(found)), html.joined([*tables, html.lines(notes)]), is_open=is_open
    )
