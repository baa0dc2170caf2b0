"""The staircase: one picture of a ladder that is understood without the text around it.

Each rung is one column. At the top stand milliseconds a step as bars, split into GPU work and waiting for the CPU.
Below it stands the cumulative speedup beside the article's. The rest are numbers (`ladder.report.panels`): gain,
interval, noise floor, verdict and advice. A rung without a number is a labelled gap. The same result gives the same
bytes.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import UserError
from ladder.base.text import factor
from ladder.plan import modes
from ladder.report import drawing
from ladder.report.drawing import fitted
from ladder.report.panels import (
    LEFT,
    NAMED,
    RIGHT,
    cut,
    draw_bars,
    draw_names,
    draw_numbers,
    draw_parts,
    draw_speedups,
    numbers_of,
    short_ms,
)
from ladder.report.themes import LIGHT, Theme
from ladder.report.view import View, view
from ladder.results.types import Result

COLUMN, WIDTH = 1.05, 10.0  # inches


def draw(result: Result, path: Path) -> None:
    """Write the chart of one result as PNG or SVG, by the suffix of ``path``; whole or not at all.

    Raises:
        UserError: another suffix, or the file cannot be written; one line.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise UserError(f"{path}: a chart is written as .png or .svg")
    files.write(path, render(result, kind[1:]))


def render(result: Result, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes; a function of ``result`` alone (and of the version of matplotlib)."""
    return drawing.save(lambda: _figure(view(result), theme), kind, theme)


def _figure(shown: View, theme: Theme = LIGHT) -> Any:
    """Lay out in inches, from the bottom: footer, numbers, speedups, rung names, bars, header."""
    from matplotlib.figure import Figure

    count = max(1, len(shown.rows))
    width = max(WIDTH, LEFT + RIGHT + COLUMN * count)
    column = (width - LEFT - RIGHT) / count
    footer = _footer(shown, width)
    numbers = numbers_of(shown)
    below = 0.22 + 0.17 * len(footer)
    heights = {"numbers": 0.26 * len(numbers), "speedups": 1.35, "names": 0.62, "bars": 3.1, "header": 1.0}
    height = below + sum(heights.values()) + 0.2
    figure = Figure(figsize=(width, height))

    def axes(bottom: float, tall: float) -> Any:
        made = figure.add_axes((LEFT / width, bottom / height, (width - LEFT - RIGHT) / width, tall / height))
        made.set_xlim(-0.5, count - 0.5)
        made.set_xticks([])
        for side in made.spines.values():
            side.set_visible(False)
        return made

    bottom = below
    draw_numbers(axes(bottom, heights["numbers"]), shown, numbers, theme)
    bottom += heights["numbers"] + 0.12
    speedups = axes(bottom, heights["speedups"])
    bottom += heights["speedups"]
    draw_names(axes(bottom, heights["names"]), shown, column, theme)
    bottom += heights["names"]
    bars = axes(bottom, heights["bars"])
    draw_bars(bars, shown, column, theme)
    draw_parts(bars, shown, theme)
    lines = draw_speedups(speedups, shown, theme)
    _draw_header(figure, shown, lines, theme)
    for index, line in enumerate(reversed(footer)):
        figure.text(0.2 / width, (0.12 + 0.17 * index) / height, line, color=theme.muted, fontsize=8)
    return figure


def _draw_header(figure: Any, shown: View, lines: list[Any], theme: Theme) -> None:
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    fitted(figure, 0.2 / width, 1 - 0.16 / height, _headline(shown), 15, fontweight="bold", va="top")
    details = f"{shown.workload}   |   {shown.machine}"
    fitted(figure, 0.2 / width, 1 - 0.5 / height, details, 10, va="top")
    handles = [Patch(color=theme.busy, label="ms per step")]
    if shown.has_gpu_time or any(row.host_bound is not None for row in shown.rows):
        handles = [
            Patch(color=theme.busy, label="GPU working"),
            Patch(color=theme.idle, label="GPU waiting" if shown.has_gpu_time else "GPU waiting for the CPU"),
        ]
    if shown.has_gpu_time and any(row.step_ms and not row.gpu for row in shown.rows):
        handles.append(Patch(color=theme.muted, label="GPU time unknown"))
    figure.legend(
        handles=handles + lines[::-1], loc="upper left", bbox_to_anchor=(0.12 / width, 1 - 0.7 / height),
        ncols=4, frameon=False, fontsize=9, handlelength=1.8, columnspacing=1.8, borderpad=0.2,
    )  # fmt: skip


def _headline(shown: View) -> str:
    """Machine and outcome: `NVIDIA H200: 96.4 to 25.3 ms a step, 3.81x`."""
    machine = shown.machine.split(",")[0]
    measured = [row for row in shown.rows if row.step_ms]
    if not measured:
        return f"{machine}: no rung has a number"
    first, last = measured[0], measured[-1]
    text = f"{machine}: {short_ms(first.step_ms)} ms a step"
    if shown.mode != modes.CUMULATIVE:
        text = f"{machine}: {' '.join(NAMED[shown.mode])}"
    elif last is not first:
        times = f"{short_ms(first.step_ms)} to {short_ms(last.step_ms)}"
        text = f"{machine}: {times} ms a step, {factor(last.total)}"
    return text + (f" ({shown.marks[0]})" if shown.marks else "")


def _footer(shown: View, width: float) -> list[str]:
    """Small print: what would mislead if it were left out."""
    lines = [f"{shown.protocol}."]
    if any(row.interval for row in shown.rows):
        arrows = " An arrow: it goes on, to what the table says." if cut(shown) else ""
        over = "generations" if shown.generations else "rounds"
        lines.append(f"Error bars: 95% interval over {over}.{arrows}")
    lines += [f"{line[0].upper()}{line[1:]}." for line in (shown.gpu_noise, shown.noise) if line]
    if any(row.article_ms for row in shown.rows):
        lines.append(f"Orange: the article, {shown.reference}; not a target.")
    lines = [lines[0], " ".join(lines[1:])]
    lines += [f"{mark}." for mark in shown.marks[1:]]  # the first is in the headline
    told = ("speedups refer", "part of ")
    lines += [f"{remark}." for remark in shown.remarks if remark.startswith(told)]
    fits = int(width * 16)
    return [part for line in lines if line for part in textwrap.wrap(f"{line[0].upper()}{line[1:]}", fits)]
