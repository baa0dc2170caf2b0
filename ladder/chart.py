"""The staircase: one picture of a ladder that is understood without the text around it.

From top to bottom, one column a rung: milliseconds a step as bars, split into GPU work and waiting for the CPU where
that was measured; cumulative speedup beside the article's; images/s, memory and the article's milliseconds as numbers.
A rung without a number is a labelled gap. The same result gives the same bytes.
"""

from __future__ import annotations

import io
import logging
import math
import textwrap
import warnings
from pathlib import Path
from typing import Any

from ladder import modes, report, verdicts
from ladder.errors import UserError
from ladder.view import Row, View, amount, factor, shown_gain, view

# Okabe and Ito's colour-blind safe palette, and greys that keep 4.5:1 on white for text.
BUSY, IDLE, ARTICLE, BAD = "#0072B2", "#A6CEE3", "#B34E00", "#A32020"
INK, MUTED, GRID, GAP = "#1B1F24", "#59636E", "#E4E7EB", "#F3F4F6"
STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters everywhere
    "font.size": 9.5,
    "text.parse_math": False,  # a `$` in a machine's name is a dollar sign
    "text.color": INK,
    "svg.hashsalt": "ladder",
    "svg.fonttype": "path",
}
LEFT, RIGHT, COLUMN, WIDTH = 1.3, 0.25, 1.05, 10.0  # inches
NAMED = {
    modes.CUMULATIVE: ("each rung with", "those before it"),
    modes.SOLO: ("each rung alone", "on the baseline"),
    modes.LEAVE_ONE_OUT: ("all rungs but", "the one named"),
}
SHORT = {verdicts.NO_GAIN: "no measurable\ngain"}  # in two lines it fits a column
STATUS_COLOR = {"n/a": MUTED}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the chart of one result as PNG or SVG, by the suffix of ``path``; whole or not at all.

    Raises:
        UserError: another suffix, or the file cannot be written; one line.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise UserError(f"{path}: a chart is written as .png or .svg")
    report.write(path, render(result, kind[1:]))


def render(result: dict[str, Any], kind: str) -> bytes:
    """The chart as PNG or SVG bytes; a function of ``result`` alone (and of the version of matplotlib)."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font does not have are drawn as boxes
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        matplotlib.rcdefaults()  # not the settings of whoever draws
        matplotlib.rcParams.update(STYLE)
        figure = _figure(view(result))
        FigureCanvasAgg(figure)
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(out, format=kind, dpi=160, metadata=metadata, facecolor="white")
    return out.getvalue()


def _figure(shown: View) -> Any:
    """Lay out in inches, from the bottom: footer, numbers, speedups, rung names, bars, header."""
    from matplotlib.figure import Figure

    count = max(1, len(shown.rows))
    width = max(WIDTH, LEFT + RIGHT + COLUMN * count)
    column = (width - LEFT - RIGHT) / count
    footer = _footer(shown, width)
    numbers = _numbers(shown)
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
    _draw_numbers(axes(bottom, heights["numbers"]), shown, numbers)
    bottom += heights["numbers"] + 0.12
    speedups = axes(bottom, heights["speedups"])
    bottom += heights["speedups"]
    _draw_names(axes(bottom, heights["names"]), shown, column)
    bottom += heights["names"]
    _draw_bars(axes(bottom, heights["bars"]), shown, column)
    lines = _draw_speedups(speedups, shown)
    _draw_header(figure, shown, lines)
    for index, line in enumerate(reversed(footer)):
        figure.text(0.2 / width, (0.12 + 0.17 * index) / height, line, color=MUTED, fontsize=8)
    return figure


def _draw_bars(axes: Any, shown: View, column: float) -> None:
    rows = shown.rows
    wide = min(0.74, 1.1 / column)
    top = max((row.interval[1] if row.interval else row.step_ms for row in rows if row.step_ms), default=1.0)
    axes.set_ylim(0, top * 1.14)
    _scale(axes, "ms per step\n(lower is better)")
    if not any(row.step_ms for row in rows):
        axes.set_yticks([])
    for x, row in enumerate(rows):
        if row.step_ms is None:
            _draw_gap(axes, x, row, column, wide)
            continue
        busy = row.step_ms if row.host_bound is None else row.step_ms * (1 - row.host_bound)
        axes.bar(x, busy, wide, color=BUSY, zorder=2)
        axes.bar(x, row.step_ms - busy, wide, bottom=busy, color=IDLE, zorder=2)
        high = row.step_ms
        if row.interval:
            low, high = row.interval
            spread = [[max(0.0, row.step_ms - low)], [max(0.0, high - row.step_ms)]]
            axes.errorbar(x, row.step_ms, yerr=spread, color=INK, capsize=4, elinewidth=1.1, zorder=3)
        axes.annotate(
            f"{_short_ms(row.step_ms)} ms", (x, max(high, row.step_ms)), xytext=(0, 4), textcoords="offset points",
            ha="center", va="bottom", fontsize=10, fontweight="bold", zorder=4,
        )  # fmt: skip


def _draw_gap(axes: Any, x: int, row: Row, column: float, wide: float) -> None:
    """A column without a number: its status, and why."""
    color = STATUS_COLOR.get(row.status, BAD)
    axes.axvspan(x - wide / 2, x + wide / 2, color=GAP, zorder=1, linewidth=0)
    reason = textwrap.wrap(
        row.reason, 44, max_lines=min(3, max(1, int(column * wide / 0.2) - 1)), placeholder=" ..."
    )
    axes.text(
        x, 0.04, "\n".join([row.status, *reason]), transform=axes.get_xaxis_transform(), rotation=90,
        ha="center", va="bottom", color=color, fontsize=8.5, linespacing=1.35, multialignment="left", zorder=3,
    )  # fmt: skip


def _draw_names(axes: Any, shown: View, column: float) -> None:
    """Names line by line on common baselines: a block of text would shift with its letters."""
    axes.set_yticks([])
    axes.set_ylim(0, 0.62)
    fits = max(9, int(column / 0.078))
    margin = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "baseline"}
    for y, line in zip((0.40, 0.24), NAMED[shown.mode], strict=True):
        axes.annotate(line, (0, y), xytext=(-8, 0), ha="right", color=MUTED, fontsize=9, **margin)
    for x, row in enumerate(shown.rows):
        lines = textwrap.wrap(row.title, fits, max_lines=3, placeholder="...", break_on_hyphens=False)
        for index, line in enumerate(lines):
            axes.text(x, 0.40 - 0.16 * index, line, ha="center", va="baseline", fontsize=9.5)


def _draw_speedups(axes: Any, shown: View) -> list[Any]:
    """Ours and the article's cumulative speedups; returns the lines for the legend."""
    ours = [(x, row.total) for x, row in enumerate(shown.rows) if row.total]
    gaps = [row.total or math.nan for row in shown.rows]  # the line is broken where there is no number
    theirs = [(x, row.article_total) for x, row in enumerate(shown.rows) if row.article_total]
    every = [value for _, value in ours + theirs] or [1.0]
    low, high = min(0.9, *every), max(1.2, *every)
    room = 0.3 * (high - low)
    axes.set_ylim(low - room, high + room)
    _scale(axes, f"speedup over\n{_base_name(shown)}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.axhline(1, color=MUTED, linewidth=0.8, zorder=1)
    lines = []
    if theirs:
        lines += axes.plot(
            *zip(*theirs, strict=True), color=ARTICLE, linestyle="--", marker="s", markersize=4.5
        )
        lines[-1].set_label(f"speedup, {_short(shown.reference)}")
    if ours:
        lines += axes.plot(gaps, color=BUSY, marker="o", markersize=5.5, linewidth=2)
        lines[-1].set_label("speedup, this machine")
    both = dict(theirs)
    for x, value in ours:
        above = value >= both.get(x, 1.0)
        _label(axes, x, value, above, BUSY, "bold")
        if x in both and shown.rows[x].name != shown.baseline:  # there both are 1.00x
            _label(axes, x, both[x], not above, ARTICLE, "normal")
    mine = dict(ours)
    for x, value in theirs:
        if x not in mine:
            _label(axes, x, value, True, ARTICLE, "normal")
    return lines


def _label(axes: Any, x: int, value: float, above: bool, color: str, weight: str) -> None:
    from matplotlib import patheffects

    axes.annotate(
        factor(value), (x, value), xytext=(0, 6 if above else -6), textcoords="offset points", ha="center",
        va="bottom" if above else "top", color=color, fontsize=9.5 if weight == "bold" else 8.5, fontweight=weight,
        path_effects=[patheffects.withStroke(linewidth=2.5, foreground="white")], zorder=6,
    )  # fmt: skip


def _numbers(shown: View) -> list[tuple[str, list[str]]]:
    """Rows of numbers under the columns: those that have any."""
    rows = shown.rows
    made = [
        (shown.versus, [shown_gain(row) for row in rows]),
        ("verdict", [SHORT.get(row.verdict, row.verdict) for row in rows]),
        ("at the top", ["" if shown.mode == modes.LEAVE_ONE_OUT else factor(row.top_gain) for row in rows]),
        ("advice", [row.advice.lower() for row in rows]),
        ("images/s", [amount(row.images_per_s) for row in rows]),
        (shown.memory, [amount(row.memory) for row in rows]),
        ("article, ms", ["" if row.article_ms is None else f"{row.article_ms:g}" for row in rows]),
    ]
    return [(heading, cells) for heading, cells in made if any(cells)]


def _draw_numbers(axes: Any, shown: View, numbers: list[tuple[str, list[str]]]) -> None:
    axes.set_yticks([])
    axes.set_ylim(len(numbers) or 1, 0)
    margin = (LEFT - 0.2) / (axes.figure.get_figwidth() - LEFT - RIGHT)
    for y, (heading, cells) in enumerate(numbers):
        color = ARTICLE if heading.startswith("article") else INK
        axes.axhline(y, color=GRID, linewidth=0.8, xmin=-margin, clip_on=False)
        axes.annotate(
            heading, (0, y + 0.5), xycoords=("axes fraction", "data"), xytext=(-8, 0), textcoords="offset points",
            ha="right", va="center", color=color if color == ARTICLE else MUTED, fontsize=9,
        )  # fmt: skip
        for x, cell in enumerate(cells):
            absent = shown.rows[x].step_ms is None and color != ARTICLE
            axes.text(
                x,
                y + 0.5,
                cell or ("-" if absent else ""),
                ha="center",
                va="center",
                color=color,
                fontsize=9.5 if heading not in ("verdict", "advice") else 7.5,
                linespacing=1.0,
            )


def _draw_header(figure: Any, shown: View, lines: list[Any]) -> None:
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    _fitted(figure, 0.2 / width, 1 - 0.16 / height, _headline(shown), 15, fontweight="bold", va="top")
    details = f"{shown.workload}   |   {shown.machine}"
    _fitted(figure, 0.2 / width, 1 - 0.5 / height, details, 10, va="top")
    handles = [Patch(color=BUSY, label="ms per step")]
    if any(row.host_bound is not None for row in shown.rows):
        handles = [Patch(color=BUSY, label="GPU working"), Patch(color=IDLE, label="GPU waiting for the CPU")]
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
    text = f"{machine}: {_short_ms(first.step_ms)} ms a step"
    if shown.mode != modes.CUMULATIVE:
        text = f"{machine}: {' '.join(NAMED[shown.mode])}"
    elif last is not first:
        times = f"{_short_ms(first.step_ms)} to {_short_ms(last.step_ms)}"
        text = f"{machine}: {times} ms a step, {factor(last.total)}"
    return text + (f" ({shown.marks[0]})" if shown.marks else "")


def _footer(shown: View, width: float) -> list[str]:
    """Small print: what would mislead if it were left out."""
    lines = [f"{shown.protocol}."]
    if any(row.interval for row in shown.rows):
        lines.append("Error bars: 95% interval over rounds.")
    if shown.noise:
        lines.append(f"{shown.noise[0].upper()}{shown.noise[1:]}.")
    if any(row.article_ms for row in shown.rows):
        lines.append(f"Orange: the article, {shown.reference}; not a target.")
    lines = [lines[0], " ".join(lines[1:])]
    lines += [f"{mark}." for mark in shown.marks[1:]]  # the first is in the headline
    lines += [f"{remark}." for remark in shown.remarks if remark.startswith("speedups refer")]
    fits = int(width * 16)
    return [part for line in lines if line for part in textwrap.wrap(f"{line[0].upper()}{line[1:]}", fits)]


def _short_ms(value: float) -> str:
    """Three digits: the interval is in the table."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _base_name(shown: View) -> str:
    base = next((row for row in shown.rows if row.name == shown.baseline), None)
    return "baseline" if base is None or base.name == "baseline" else base.name


def _short(reference: str) -> str:
    return f"the article ({reference.split(',')[0][:40]})"


def _fitted(figure: Any, x: float, y: float, text: str, size: float, **more: Any) -> None:
    """Text that is made smaller until it fits the figure's width; at 8 points it is cut."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    made = figure.text(x, y, text, fontsize=size, **more)
    room = figure.bbox.width * (1 - 2 * x)
    while made.get_window_extent(renderer).width > room:
        if size > 8:
            size -= 0.5
            made.set_fontsize(size)
        else:
            text = text[: int(len(text) * 0.95) - 1]
            made.set_text(f"{text}...")


def _scale(axes: Any, name: str) -> None:
    """A quiet y axis: light lines, its name in the margin."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()
    axes.set_yticks(
        [y for y in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= y <= high]
    )
    axes.tick_params(axis="y", length=0, labelcolor=MUTED, labelsize=8.5)
    axes.grid(axis="y", color=GRID, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.annotate(
        name, (0, 0.5), xycoords="axes fraction", xytext=(-42, 0), textcoords="offset points", rotation=90,
        ha="center", va="center", color=MUTED, fontsize=9,
    )  # fmt: skip
