"""The staircase: one picture of a ladder that is understood without the text around it.

Each rung is one row. Beside its name stands a bar of milliseconds a step, split into GPU work and waiting. To the right
of it stand the gain by each clock with its interval and verdict, and the total beside the article's. A rung without a
number is a labelled row. The same result gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import UserError
from ladder.plan import modes
from ladder.report import drawing, panels
from ladder.report.drawing import fitted, measured, wrapped
from ladder.report.panels import NAMED, short_ms
from ladder.report.themes import LIGHT, Theme
from ladder.report.view import View, view
from ladder.results import words
from ladder.results.run import Result

WIDTH, MARGIN, ROW = 10.0, 0.2, 0.44  # inches
NAMES = (2.1, 2.4, 2.7)  # inches from the margin to the bars: the first in which no name is cut, or the last
SMALL = 8.0  # points of the footer


def draw(result: Result, path: Path) -> None:
    """Write the chart of one result as PNG or SVG, by the suffix of ``path``; whole or not at all.

    Raises:
        UserError: another suffix, or the file cannot be written; one line.
    """
    files.write(path, render(result, kind_of(path)))


def kind_of(path: Path) -> str:
    """Return "png" or "svg", by the suffix of a chart's file. Raises UserError for another one."""
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise UserError(f"{path}: a chart is written as .png or .svg")
    return kind[1:]


def render(result: Result, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes; a function of ``result`` alone (and of the version of matplotlib)."""
    return drawing.save(lambda: _figure(view(result), theme), kind, theme)


def _figure(shown: View, theme: Theme = LIGHT) -> Any:
    """Lay out in inches, from the top: headline, details, cautions, legend, rows, footer."""
    room = WIDTH - 2 * MARGIN
    marks = [line for mark in shown.marks[1:] for line in wrapped(mark, 9, room)]
    footer = [line for text in _footer(shown) for line in wrapped(text, SMALL, room, 4)]
    top = 0.74 + 0.19 * len(marks) + 0.64
    bottom = top + ROW * len(shown.rows)
    figure, axes = drawing.sheet(WIDTH, bottom + 0.3 + 0.17 * len(footer))

    fitted(
        figure,
        MARGIN / WIDTH,
        1 - 0.16 / figure.get_figheight(),
        _headline(shown),
        15,
        fontweight="bold",
        va="top",
    )
    details = f"{shown.workload}   |   {shown.machine}"
    fitted(figure, MARGIN / WIDTH, 1 - 0.5 / figure.get_figheight(), details, 10, va="top")
    for index, line in enumerate(marks):
        axes.text(MARGIN, 0.89 + 0.19 * index, line, color=theme.bad, fontsize=9, fontweight="bold")

    columns = panels.columns_of(shown, theme)
    left, right = (
        MARGIN + panels.names_width(shown, NAMES),
        min(panels.edges(columns, WIDTH - MARGIN), default=WIDTH - MARGIN) - 0.25,
    )
    label = (
        max([measured(short_ms(row.step_ms), 10, True) for row in shown.rows if row.step_ms], default=0) + 0.1
    )
    strip = panels.Strip(left, right - left - label, top, ROW, panels.most_ms(shown))
    _draw_legend(axes, shown, top - 0.4, theme)
    heading = "entry" if shown.is_study else NAMED[shown.mode]  # a study's own name is the chart's title
    axes.text(MARGIN, top - 0.1, heading, color=theme.muted, fontsize=8.5)
    axes.text(left, top - 0.1, "ms per step", color=theme.muted, fontsize=8.5)
    for index in range(len(shown.rows) + 1):
        axes.plot(
            [MARGIN, WIDTH - MARGIN], [top + ROW * index] * 2, color=theme.grid, linewidth=0.8, zorder=0
        )
    panels.draw_names(axes, shown, strip, MARGIN, theme)
    panels.draw_bars(axes, shown, strip, theme)
    panels.draw_gaps(axes, shown, strip, columns, WIDTH - MARGIN, theme)
    panels.draw_columns(axes, columns, strip, WIDTH - MARGIN, theme)
    for index, line in enumerate(footer):
        axes.text(MARGIN, bottom + 0.25 + 0.17 * index, line, color=theme.muted, fontsize=SMALL)
    return figure


def _draw_legend(axes: Any, shown: View, y: float, theme: Theme) -> None:
    """Name the tones of the bars in a line."""
    known = shown.has_gpu_time or any(row.host_bound is not None for row in shown.rows)
    tones = [(theme.busy, "GPU working" if known else "milliseconds a step, lower is better", False)]
    if known:
        waits = "GPU waiting" if shown.has_gpu_time else "GPU waiting for the CPU"
        tones.append((theme.idle, f"{waits}; together the step, lower is better", False))
    if shown.has_gpu_time and any(row.step_ms and not row.gpu for row in shown.rows):
        tones.append((theme.muted, "GPU time unknown", False))
    panels.draw_legend(axes, MARGIN, y, tones)


def _headline(shown: View) -> str:
    """Return machine and outcome: `NVIDIA H200: 96.4 to 25.3 ms a step, 3.81x`."""
    machine = shown.machine.split(",")[0]
    measured = [row for row in shown.rows if row.step_ms]
    if not measured:
        return f"{machine}: no rung has a number"
    first, last = measured[0], measured[-1]
    text = f"{machine}: {short_ms(first.step_ms)} ms a step"
    if shown.mode != modes.CUMULATIVE:
        text = f"{machine}: {NAMED[shown.mode]}"
    elif last is not first:
        times = f"{short_ms(first.step_ms)} to {short_ms(last.step_ms)}"
        told = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
        text = f"{machine}: {times} ms a step" + f", {told}" * bool(told)
    return text + (f" ({shown.marks[0]})" if shown.marks else "")


def _footer(shown: View) -> list[str]:
    """Return the small print: what would mislead if it were left out."""
    lines = [f"{shown.protocol}."]
    if any(row.interval for row in shown.rows):
        arrows = " An arrow: it goes on, to what the table says." if panels.is_cut(shown) else ""
        lines.append(f"Under a bar: 95% interval over {shown.unit}s.{arrows}")
    lines += [f"{panels.ABOVE}."] * panels.is_above(shown.rows)
    lines += [f"{line[0].upper()}{line[1:]}." for line in shown.noise]
    if any(row.article_ms for row in shown.rows):
        lines.append(f"Article: {shown.reference}; another machine, not a target.")
    told = ("speedups refer", "part of ")
    lines = [lines[0], " ".join(lines[1:])]
    lines += [f"{remark}." for remark in shown.remarks if remark.startswith(told)]
    return [f"{line[0].upper()}{line[1:]}" for line in lines if line]
