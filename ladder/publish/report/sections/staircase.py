"""The staircase: a bar of milliseconds for each rung, its gains by both clocks, and the total."""

from __future__ import annotations

from ladder.base.text import between, bounds, factor, ms
from ladder.plan import modes
from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.report import panels
from ladder.report.view import Row, View
from ladder.results.values import AMBIGUOUS, TOO_FEW
from ladder.results.words import UNDECIDED, Seen, answer

PLACE = 10
OPEN = (AMBIGUOUS, TOO_FEW)


def section(found: Found) -> Section | None:
    """Return the staircase of the main result."""
    shown = found.shown
    most = panels.most_ms(shown) * 1.02
    rows = [_bar(row, shown, number) for number, row in enumerate(shown.rows)]
    chart = html.bars(rows, most, f"Milliseconds a step of each rung, {panels.NAMED[shown.mode]}")
    known = shown.has_gpu_time or any(row.host_bound is not None for row in shown.rows)
    tones = [("busy", "GPU working"), ("idle", "GPU waiting")] if known else [("busy", "milliseconds a step")]
    return Section(
        "staircase",
        "The staircase" if shown.mode == modes.CUMULATIVE else "The runs",
        html.joined([html.legend(tones), chart, html.lines(shown.sentences), html.lines(_below(shown))]),
        f"Milliseconds a step, lower is better; {panels.NAMED[shown.mode]}.",
    )


def _bar(row: Row, shown: View, number: int) -> html.Bar:
    if row.step_ms is None:
        return html.Bar(row.title, missing=f"{row.status}{': ' + row.reason if row.reason else ''}")
    busy = panels.busy_ms(row)
    waits = max(row.step_ms - busy, 0.0)
    known = row.gpu is not None or not shown.has_gpu_time
    figure, waiting = panels.short_ms(row.gpu.ms if row.gpu else busy), panels.short_ms(waits)
    parts = [html.Part(busy, "busy" if known else "unknown", [figure])]
    parts += [html.Part(waits, "idle", [f"waits {waiting}", waiting])] if waits else []
    return html.Bar(row.title, parts, f"{ms(row.step_ms)} ms", _gains(row, shown, number), row.interval)


def _gains(row: Row, shown: View, number: int) -> list[tuple[str, str]]:
    """Return what the rung gains by each clock, and its total."""
    clocks = [("step", row.seen, row.gain)]
    if row.gpu:
        clocks.insert(0, ("GPU", row.gpu.seen, row.gpu.gain))
    around = bounds if shown.generations else between
    before = "with it " if shown.mode == modes.LEAVE_ONE_OUT else ""
    said = [(clock, _answer(seen, around(gain), before)) for clock, seen, gain in clocks if number]
    if row.advice:
        said.append(("advice", row.advice))
    if shown.mode == modes.CUMULATIVE and row.total and number:
        totals = [f"{factor(row.gpu.total)} GPU" if row.gpu and row.gpu.total else "", factor(row.total)]
        beside = f", article {factor(row.article_total)}" if row.article_total else ""
        said.append(("total", f"{' / '.join(each for each in reversed(totals) if each)}{beside}"))
    return said


def _answer(seen: Seen, around: str, before: str) -> str:
    """Return an answer with words before it and the interval around it. An open one is said to be open."""
    told = f"{before}{answer(seen) or 'no verdict'}"
    if not seen.verdict or seen.verdict in OPEN:
        told = f"{told}, {UNDECIDED}"
    return f"{told} ({around})" if around else told


def _below(shown: View) -> list[str]:
    lines = [f"under a bar: its 95% interval over {shown.unit}s"] * any(row.interval for row in shown.rows)
    lines += [panels.ABOVE] * panels.is_above(shown.rows)
    if any(row.article_ms for row in shown.rows):
        lines.append(f"article: {shown.reference}; another machine and another PyTorch, not a target")
    return lines
