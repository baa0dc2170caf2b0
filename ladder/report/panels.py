"""The panels of a chart, from the top: bars, names, speedups, numbers. Each draws a view into its axes."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from typing import Any

from ladder.base.text import amount, between, bounds, factor, percent
from ladder.plan import modes
from ladder.report import errorbars
from ladder.report.themes import LIGHT, Theme
from ladder.report.view import (
    Row,
    View,
    shown_gain,
    shown_top,
)
from ladder.results.values import NO_GAIN, TOO_FEW
from ladder.results.words import Seen, answer

BUSY, IDLE, ARTICLE, BAD = LIGHT.busy, LIGHT.idle, LIGHT.article, LIGHT.bad
INK, MUTED, GRID, GAP = LIGHT.ink, LIGHT.muted, LIGHT.grid, LIGHT.gap
LEFT, RIGHT = 1.3, 0.25  # inches
NAMED = {
    modes.CUMULATIVE: ("each rung with", "those before it"),
    modes.SOLO: ("each rung alone", "on the baseline"),
    modes.LEAVE_ONE_OUT: ("all rungs but", "the one named"),
}
SHORT = {NO_GAIN: "no measurable\ngain", TOO_FEW: "too few\ngenerations"}  # in two lines they fit a column
QUIET = ("n/a", "skipped")  # a rung without a number for a reason that is nobody's fault
SMALL = ("verdict", "advice", "interval", "parity", "GPU gain", "step gain")  # rows of long cells
PART = 7.5  # points of the text in a bar


def draw_bars(
    axes: Any, shown: View, column: float, theme: Theme = LIGHT, most: float | None = None, size: float = 10
) -> None:
    """A bar for each rung. ``most``: the highest of several pictures that share one scale; ``size``: of the figures."""
    rows = shown.rows
    wide = min(0.74, 1.1 / column)
    drawn = bars_window(shown)
    ends = [errorbars.within(row.interval, drawn)[1] for row in rows if row.step_ms and row.interval]
    top = max([row.step_ms for row in rows if row.step_ms] + ends, default=1.0)
    axes.set_ylim(0, (most or top) * 1.14)
    draw_scale(axes, "ms per step\n(lower is better)", theme)
    if not any(row.step_ms for row in rows):
        axes.set_yticks([])
    for x, row in enumerate(rows):
        if row.step_ms is None:
            _draw_gap(axes, x, row, column, wide, theme)
            continue
        busy = _busy_ms(row)
        known = row.gpu is not None or not shown.has_gpu_time
        axes.bar(x, busy, wide, color=theme.busy if known else theme.muted, zorder=2)
        axes.bar(x, row.step_ms - busy, wide, bottom=busy, color=theme.idle, zorder=2)
        high = row.step_ms
        if row.interval:
            _, high = errorbars.draw(axes, x, row.step_ms, row.interval, drawn, theme.ink)
        axes.annotate(
            f"{short_ms(row.step_ms)}{' ms' if size >= 10 else ''}", (x, max(high, row.step_ms)), xytext=(0, 4),
            textcoords="offset points", ha="center", va="bottom", fontsize=size, fontweight="bold", zorder=4,
        )  # fmt: skip


def _busy_ms(row: Row) -> float:
    """Return the milliseconds of a step in which the GPU works; all of them where that is unknown."""
    step_ms = row.step_ms or 0.0
    if row.gpu:
        return min(row.gpu.ms, step_ms)
    return step_ms if row.host_bound is None else step_ms * (1 - row.host_bound)


def draw_parts(axes: Any, shown: View, theme: Theme = LIGHT) -> None:
    """Write into each bar, where there is room, what the GPU works and gains, and for how long it waits."""
    low, high = axes.get_ylim()
    points = axes.get_window_extent().height * 72 / axes.figure.dpi / (high - low)
    for x, row in enumerate(shown.rows):
        if not (row.gpu and row.step_ms):
            continue
        busy = _busy_ms(row)
        said = "" if row.gpu.verdict == TOO_FEW else answer(row.gpu.seen)
        parts = [
            (busy / 2, busy, [f"{short_ms(row.gpu.ms)} ms", *textwrap.wrap(said, 12)], theme.ground),
            (
                (busy + row.step_ms) / 2,
                row.step_ms - busy,
                [f"waits {short_ms(row.step_ms - busy)}"],
                theme.ink,
            ),
        ]
        for y, height, lines, color in parts:
            if height * points > (PART + 2.5) * len(lines) + 3:
                axes.text(
                    x, y, "\n".join(lines), ha="center", va="center", fontsize=PART, color=color, zorder=4
                )


def bars_window(shown: View) -> tuple[float, float]:
    """Return the axis from 0 to somewhat above the highest bar."""
    return 0.0, errorbars.window([row.step_ms for row in shown.rows if row.step_ms], 0.0, 0.0)[1]


def _draw_gap(axes: Any, x: int, row: Row, column: float, wide: float, theme: Theme) -> None:
    """Draw a column without a number: its status, and why."""
    color = theme.muted if row.status in QUIET else theme.bad
    axes.axvspan(x - wide / 2, x + wide / 2, color=theme.gap, zorder=1, linewidth=0)
    reason = textwrap.wrap(
        row.reason, 44, max_lines=min(3, max(1, int(column * wide / 0.2) - 1)), placeholder=" ..."
    )
    axes.text(
        x, 0.04, "\n".join([row.status, *reason]), transform=axes.get_xaxis_transform(), rotation=90,
        ha="center", va="bottom", color=color, fontsize=8.5, linespacing=1.35, multialignment="left", zorder=3,
    )  # fmt: skip


def draw_names(axes: Any, shown: View, column: float, theme: Theme = LIGHT) -> None:
    """Names line by line on common baselines: a block of text would shift with its letters."""
    axes.set_yticks([])
    axes.set_ylim(0, 0.62)
    fits = max(9, int(column / 0.078))
    margin = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "baseline"}
    for y, line in zip((0.40, 0.24), NAMED[shown.mode], strict=True):
        axes.annotate(line, (0, y), xytext=(-8, 0), ha="right", color=theme.muted, fontsize=9, **margin)
    for x, row in enumerate(shown.rows):
        lines = textwrap.wrap(row.title, fits, max_lines=3, placeholder="...", break_on_hyphens=False)
        for index, line in enumerate(lines):
            axes.text(x, 0.40 - 0.16 * index, line, ha="center", va="baseline", fontsize=9.5)


def draw_speedups(axes: Any, shown: View, theme: Theme = LIGHT) -> list[Any]:
    """Ours and the article's cumulative speedups, or in the other modes what each rung gains.

    Returns the lines for the legend. Error bars are intervals over rounds. In the other modes
    the noise of each rung lies as a band around 1x.
    """
    staircase = shown.mode == modes.CUMULATIVE
    rows = [(x, row) for x, row in enumerate(shown.rows)]
    ours, spread, theirs = _speedups(shown)
    drawn = speedups_window(shown)
    bounds = [
        bound for interval in spread.values() if interval for bound in errorbars.within(interval, drawn)
    ]
    every = [*ours.values(), *theirs.values(), *bounds] or [1.0]
    low, high = min(0.9, *every), max(1.2, *every)
    room = 0.3 * (high - low)
    axes.set_ylim(low - room, high + room)
    draw_scale(
        axes,
        "gain\nat the top" if shown.mode == modes.LEAVE_ONE_OUT else f"speedup over\n{_base_name(shown)}",
        theme,
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.axhline(1, color=theme.muted, linewidth=0.8, zorder=1)
    lines = []
    if theirs:
        xs, ys = list(theirs), list(theirs.values())
        lines += axes.plot(xs, ys, color=theme.article, linestyle="--", marker="s", markersize=4.5)
        lines[-1].set_label(f"speedup, {_short(shown.reference)}")
    if ours:
        gaps = [ours.get(x, math.nan) for x, _ in rows]  # the line is broken where there is no number
        style = "-" if staircase else "none"
        lines += axes.plot(gaps, color=theme.busy, marker="o", markersize=5.5, linewidth=2, linestyle=style)
        lines[-1].set_label("speedup, this machine" if staircase else "gain, this machine")
    for x, interval in spread.items():
        if interval:
            spread[x] = errorbars.draw(axes, x, ours[x], interval, drawn, theme.ink)
    for x, row in [] if staircase else rows:
        if row.floor:
            axes.bar(x, 2 * row.floor, 0.74, bottom=1 - row.floor, color=theme.grid, zorder=0.5)
    _label_speedups(axes, shown, ours, spread, theirs, theme)
    return lines


def _speedups(shown: View) -> tuple[dict, dict, dict]:
    """By column: our speedups (in the other modes gains), their intervals, and the article's."""
    staircase = shown.mode == modes.CUMULATIVE
    rows = list(enumerate(shown.rows))
    ours = {x: row.total if staircase else row.previous for x, row in rows}
    ours = {x: value for x, value in ours.items() if value}
    spread = {x: row.total_interval if staircase else row.gain for x, row in rows if x in ours}
    return ours, spread, {x: row.article_total for x, row in rows if row.article_total and staircase}


def speedups_window(shown: View) -> tuple[float, float]:
    """Return the part of the speedups' intervals that is drawn."""
    ours, _, theirs = _speedups(shown)
    return errorbars.window([*ours.values(), *theirs.values()], 0.9, 1.2)


def cut(shown: View) -> bool:
    """Whether some error bar goes beyond the picture."""
    bars = [row.interval for row in shown.rows if row.step_ms]
    speedups = _speedups(shown)[1].values()
    return any(errorbars.is_cut(each, bars_window(shown)) for each in bars) or any(
        errorbars.is_cut(each, speedups_window(shown)) for each in speedups
    )


def _label_speedups(axes: Any, shown: View, ours: dict, spread: dict, theirs: dict, theme: Theme) -> None:
    for x, value in ours.items():
        if shown.mode != modes.CUMULATIVE and not shown_gain(shown.rows[x]):
            continue  # inside the noise
        above = value >= theirs.get(x, 1.0)
        _label(axes, x, value, above, theme.busy, theme, "bold", spread.get(x))
        if x in theirs and shown.rows[x].name != shown.baseline:  # there both are 1.00x
            _label(axes, x, theirs[x], not above, theme.article, theme, "normal", spread.get(x))
    for x, value in theirs.items():
        if x not in ours:
            _label(axes, x, value, True, theme.article, theme, "normal")


def _label(
    axes: Any,
    x: int,
    value: float,
    above: bool,
    color: str,
    theme: Theme,
    weight: str,
    spread: tuple[float, float] | None = None,
) -> None:
    """A factor over or under its point, clear of the column's error bar and of the 1x line."""
    from matplotlib import patheffects

    size = 9.5 if weight == "bold" else 8.5
    low, high = axes.get_ylim()
    unit = axes.get_window_extent().height * 72 / axes.figure.dpi / (high - low)  # points
    sign, end = (1, spread and spread[1]) if above else (-1, spread and spread[0])
    away = max(6.0, sign * ((end or value) - value) * unit + 3)
    line = sign * (1 - value) * unit  # where the 1x line lies on the label's side
    if away - 3 < line < away + size + 4:
        away = line + 3.5
    axes.annotate(
        factor(value), (x, value), xytext=(0, sign * away), textcoords="offset points", ha="center",
        va="bottom" if above else "top", color=color, fontsize=size, fontweight=weight,
        path_effects=[patheffects.withStroke(linewidth=2.5, foreground=theme.ground)], zorder=6,
    )  # fmt: skip


def numbers_of(shown: View) -> list[tuple[str, list[str]]]:
    """Rows of numbers under the columns: those that have any."""
    rows = shown.rows
    leave_out = shown.mode == modes.LEAVE_ONE_OUT  # there the rows themselves are about the top
    made = [
        *(_two_clocks(shown) if shown.has_gpu_time else _one_clock(shown)),
        ("gain at top", ["" if leave_out else shown_top(row) for row in rows]),
        ("interval", ["" if leave_out else between(row.top_interval) for row in rows]),
        ("advice", [row.advice.lower() for row in rows]),
        ("parity", [row.parity for row in rows]),
        ("images/s", [amount(row.images_per_s) for row in rows]),
        (shown.memory, [amount(row.memory) for row in rows]),
        ("article, ms", ["" if row.article_ms is None else f"{row.article_ms:g}" for row in rows]),
    ]
    return [(heading, cells) for heading, cells in made if any(cells)]


def _one_clock(shown: View) -> list[tuple[str, list[str]]]:
    rows, around = shown.rows, bounds if shown.generations else between
    return [
        (shown.versus, [shown_gain(row) for row in rows]),
        ("interval", [around(row.gain) for row in rows]),
        ("noise floor", [percent(row.floor) if row.floor else "" for row in rows]),
        ("verdict", [_cell(dataclasses.replace(row.seen, ratio=None)) for row in rows]),
    ]


def _two_clocks(shown: View) -> list[tuple[str, list[str]]]:
    """Return the rows of what each rung gains by GPU time and by the step's time."""
    rows = shown.rows
    return [
        ("GPU gain", [_cell(row.gpu.seen) if row.gpu else "" for row in rows]),
        ("interval", [bounds(row.gpu.gain) if row.gpu else "" for row in rows]),
        ("step gain", [_cell(row.seen) for row in rows]),
        ("interval", [bounds(row.gain) for row in rows]),
    ]


def _cell(seen: Seen) -> str:
    return SHORT.get(seen.verdict) or answer(seen)


def draw_numbers(axes: Any, shown: View, numbers: list[tuple[str, list[str]]], theme: Theme = LIGHT) -> None:
    axes.set_yticks([])
    axes.set_ylim(len(numbers) or 1, 0)
    margin = (LEFT - 0.2) / (axes.figure.get_figwidth() - LEFT - RIGHT)
    for y, (heading, cells) in enumerate(numbers):
        color = theme.article if heading.startswith("article") else theme.ink
        axes.axhline(y, color=theme.grid, linewidth=0.8, xmin=-margin, clip_on=False)
        axes.annotate(
            heading, (0, y + 0.5), xycoords=("axes fraction", "data"), xytext=(-8, 0), textcoords="offset points",
            ha="right", va="center", color=color if color == theme.article else theme.muted, fontsize=9,
        )  # fmt: skip
        for x, cell in enumerate(cells):
            absent = shown.rows[x].step_ms is None and color != theme.article
            axes.text(
                x,
                y + 0.5,
                cell or ("-" if absent else ""),
                ha="center",
                va="center",
                color=color,
                fontsize=7.5 if heading in SMALL else 9.5,
                linespacing=1.0,
            )


def draw_scale(axes: Any, name: str, theme: Theme) -> None:
    """A quiet y axis: light lines, its name in the margin."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()
    axes.set_yticks(
        [y for y in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= y <= high]
    )
    axes.tick_params(axis="y", length=0, labelcolor=theme.muted, labelsize=8.5)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.annotate(
        name, (0, 0.5), xycoords="axes fraction", xytext=(-42, 0), textcoords="offset points", rotation=90,
        ha="center", va="center", color=theme.muted, fontsize=9,
    )  # fmt: skip


def _base_name(shown: View) -> str:
    base = next((row for row in shown.rows if row.name == shown.baseline), None)
    return "baseline" if base is None or base.name == "baseline" else base.name


def _short(reference: str) -> str:
    return f"the article ({reference.split(',')[0][:40]})"


def short_ms(value: float) -> str:
    """Three digits: the interval is in the table."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
