"""The staircase: one picture of a ladder that is understood without the text around it.

Each rung is one row. Beside its name stands a bar of milliseconds a step, split into GPU work and waiting. To the right
of it stand the gain by each clock with its interval and verdict, and the total beside the article's. A rung without a
number is a labelled row. The same result gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder.core import files
from ladder.core.errors import UserError
from ladder.plan import modes
from ladder.report import drawing, panels
from ladder.report.drawing import measured, wrapped
from ladder.report.panels import MARGIN, NAMED, WIDTH, short_ms
from ladder.report.view import View, view
from ladder.results import words
from ladder.results.run import Result
from ladder.show.themes import LIGHT, Theme

ROW = 0.44  # inches
NAMES = (2.1, 2.4, 2.7)  # inches from the margin to the bars: the first in which no name is cut, or the last


def draw(result: Result, path: Path) -> None:
    """Write the chart of one result as PNG or SVG, by the suffix of `path`; whole or not at all.

    Raises:
        UserError: another suffix, or the file cannot be written; one line.
    """
    files.write_file(path, render(result, kind_of(path)))


def kind_of(path: Path) -> str:
    """Return "png" or "svg", by the suffix of a chart's file. Raises UserError for another one."""
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise UserError(f"{path}: a chart is written as .png or .svg")
    return kind[1:]


def render(result: Result, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes; a function of `result` alone (and of the version of matplotlib)."""
    return drawing.save(lambda: draw_figure(view(result), theme), kind, theme)


def draw_figure(shown: View, theme: Theme = LIGHT) -> Any:
    """Lay out in inches, from the top: headline, marks, legend, a row for each rung, small print."""
    room, right = WIDTH - 2 * MARGIN, WIDTH - MARGIN
    marks = [line for text in shown.marks for line in wrapped(text, 9, room)]
    top = 0.74 + 0.19 * len(marks) + 0.64
    bottom = top + ROW * len(shown.rows)
    details = f"{shown.workload}   |   {shown.machine}"
    figure, axes = panels.lay_sheet(bottom, _describe(shown), details, _list_notes(shown), theme)
    for index, line in enumerate(marks):
        axes.text(MARGIN, 0.89 + 0.19 * index, line, color=theme.bad, fontsize=9, fontweight="bold")

    columns = panels.columns_of(shown, theme)
    titles = [(row.title, width) for width in NAMES for row in shown.rows]
    cut = {width for title, width in titles if wrapped(title, panels.NAME, width - 0.12)[-1].endswith("...")}
    left = MARGIN + next((width for width in NAMES if width not in cut), NAMES[-1])
    label = max([measured(short_ms(row.step_ms), 10, True) for row in shown.rows if row.step_ms], default=0.0)
    end = min(panels.edges(columns, right), default=right) - 0.35 - label
    strip = panels.Strip(left, end - left, top, ROW, panels.most_ms(shown))
    is_split = shown.has_gpu_time or any(row.host_bound is not None for row in shown.rows)
    tones = [(theme.busy, "milliseconds a step, lower is better", False)]
    if is_split:
        waits = "GPU waiting; together the step, lower is better"
        tones = [(theme.busy, "GPU working", False), (theme.idle, waits, False)]
    if shown.has_gpu_time and any(row.step_ms and not row.gpu for row in shown.rows):
        tones.append((theme.muted, "GPU time unknown", False))
    panels.draw_legend(axes, MARGIN, top - 0.4, tones)
    heading = "entry" if shown.is_study else NAMED[shown.mode]  # a study's own name is the chart's title
    for x, text in ((MARGIN, heading), (left, "ms per step")):
        axes.text(x, top - 0.1, text, color=theme.muted, fontsize=8.5)
    for index in range(len(shown.rows) + 1):
        panels.draw_rule(axes, top + ROW * index, theme)
    panels.draw_names(axes, shown, strip, MARGIN, theme)
    panels.draw_bars(axes, shown, strip, theme)
    panels.draw_gaps(axes, shown, strip, columns, right, theme)
    panels.draw_columns(axes, columns, [*map(strip.middle, range(len(shown.rows)))], top, right, theme)
    return figure


def _describe(shown: View) -> str:
    """Return machine and outcome: `NVIDIA H200: 96.4 to 25.3 ms a step, 3.81x`."""
    measured = [row for row in shown.rows if row.step_ms]
    if not measured:
        outcome = "no rung has a number"
    elif shown.mode != modes.CUMULATIVE:
        outcome = NAMED[shown.mode]
    else:
        first, last = measured[0], measured[-1]
        times = " to ".join(dict.fromkeys([short_ms(first.step_ms), short_ms(last.step_ms)]))
        total = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
        outcome = f"{times} ms a step" + (f", {total}" if total and last is not first else "")
    return f"{shown.machine.split(',')[0]}: {outcome}{f' ({shown.marks[0]})' if shown.marks else ''}"


def _list_notes(shown: View) -> list[str]:
    """Return the small print: what would mislead if it were left out."""
    intervals = [row.interval for row in shown.rows if row.interval and row.step_ms]
    lines = [f"under a bar: 95% interval over {shown.unit}s"] if intervals else []
    if any(interval[1] > panels.bars_limit(shown) for interval in intervals):
        lines.append("an arrow: it goes on, to what the table says")
    lines += [panels.ABOVE] if panels.is_above(shown.rows) else []
    lines += shown.noise
    if any(row.article_ms for row in shown.rows):
        lines.append(f"article: {shown.reference}; another machine, not a target")
    must = [remark for remark in shown.remarks if remark.startswith(("speedups refer", "part of "))]
    notes = [shown.protocol, ". ".join(f"{line[0].upper()}{line[1:]}" for line in lines), *must]
    return [f"{note[0].upper()}{note[1:]}." for note in notes if note]
