"""The chart of `ladder ablate`: what each rung gains on average over all orders, and which rungs need each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ladder.report import drawing
from ladder.report.drawing import fitted
from ladder.report.heatmap import heatmap
from ladder.report.themes import LIGHT, Theme
from ladder.studies.ablate import report
from ladder.studies.ablate.record import Result, Worth

WIDE, ROW = 12.5, 0.42  # inches
ROUND = 0.0005  # below it a percentage has no sign


def render(result: Result, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes. The same result gives the same bytes."""
    return drawing.save(lambda: figure(result, theme), kind, theme)


def figure(result: Result, theme: Theme = LIGHT) -> Any:
    """Draw bars of the rungs on the left, and the heat map of pairs on the right if any pair was measured."""
    from matplotlib.figure import Figure

    rungs = [each.rung for each in result.worth]
    named = rungs if result.protocol.whole else _paired(result)
    above = 0.95 + 0.19 * len(_said(result))
    high = above + 1.05 + ROW * max(len(rungs), 6)
    made = Figure(figsize=(WIDE, high))
    top, bottom = 1 - above / high, 0.9 / high
    grid = made.add_gridspec(
        1, 2, left=0.135, right=0.98, top=top, bottom=bottom, wspace=0.42, width_ratios=(1.05, 1)
    )
    _bars(made.add_subplot(grid[0, 0]), result, theme)
    axes = made.add_subplot(grid[0, 1])
    place = axes.get_position()
    tall = min(place.height, 1.35 * ROW * max(len(named) - 1, 1) / high)
    axes.set_position((place.x0, place.y1 - tall, place.width, tall))
    _title(axes, "two rungs together, beyond each without the other", theme)
    heatmap(axes, named[1:], named[:-1], _cells(result, named), theme, percent)
    _header(made, result, theme)
    return made


def _said(result: Result) -> list[str]:
    """Return the findings above the panels, in lines that fit."""
    found = (report.order_sentence(result), report.pair_sentence(result))
    return [line for each in found for line in drawing.wrapped(each, 9, WIDE - 0.5)]


def percent(log: float | None) -> str:
    """Return a gain as percent: +2.0% is a factor of 1.02."""
    if log is None:
        return ""
    change = 100 * math.expm1(log)
    return "0" if abs(change) < 100 * ROUND else f"{change:+.1f}%"


def _paired(result: Result) -> list[str]:
    """Return the rungs of a longer ladder that were left out in pairs."""
    return [
        each.rung
        for each in result.worth
        if any(each.rung in (pair.first, pair.second) for pair in result.pairs)
    ]


def _cells(result: Result, names: Sequence[str]) -> list[list[float | None]]:
    """Return the gains of the pairs, each once: rows from the second name on, columns up to the last but one."""
    known = {frozenset((pair.first, pair.second)): pair.gain for pair in result.pairs}
    return [
        [
            known.get(frozenset((row, column))) if place >= other else None
            for other, column in enumerate(names[:-1])
        ]
        for place, row in enumerate(names[1:])
    ]


def _bars(axes: Any, result: Result, theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator

    whole = result.protocol.whole
    _title(axes, "gain on average over all orders" if whole else "gain at the top of the ladder", theme)
    for place, each in enumerate(result.worth):
        value, interval = (each.gain, each.interval) if whole else (each.left_out, each.left_out_interval)
        if value is None:
            axes.text(0, place, " no time", va="center", color=theme.muted, fontsize=8.5)
            continue
        axes.barh(place, value, 0.56, color=theme.busy if value >= 0 else theme.article, zorder=2)
        end = _ends(axes, place, each, value, interval, theme)
        axes.annotate(
            f"{math.exp(value):.3f}x", (end, place), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=8.5, color=theme.ink,
        )  # fmt: skip
    axes.set_yticks(range(len(result.worth)), [each.rung for each in result.worth])
    axes.set_ylim(len(result.worth) - 0.4, -0.6)
    low, high = axes.get_xlim()
    low, high = min(low, -0.004), high + 0.18 * (high - min(low, 0))
    axes.axvline(0, color=theme.muted, linewidth=0.8, zorder=1)
    found = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(math.exp(low), math.exp(high))
    ticks = [tick for tick in found if tick > 0]
    axes.set_xticks([math.log(tick) for tick in ticks], [f"{tick:g}x" for tick in ticks])
    axes.set_xlim(low, high)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(axis="x", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=theme.ink, labelsize=9)


def _ends(
    axes: Any, place: int, each: Worth, value: float, interval: Sequence[float] | None, theme: Theme
) -> float:
    """Draw the interval, the worst and best order, and the ladder's own order. Return where the last of them ends."""
    ends = [value, 0.0]
    if each.least is not None and each.most is not None:
        axes.plot([each.least, each.most], [place + 0.37] * 2, color=theme.muted, linewidth=1.4, zorder=3)
        ends += [each.least, each.most]
    if interval is not None:
        axes.plot(interval, [place] * 2, color=theme.ink, linewidth=1.2, zorder=4)
        ends += interval
    if each.staircase is not None:
        axes.plot(
            each.staircase, place, marker="D", markersize=5, color=theme.ink, zorder=5,
            markeredgecolor=theme.ground,
        )  # fmt: skip
        ends.append(each.staircase)
    return max(ends)


def _title(axes: Any, text: str, theme: Theme) -> None:
    axes.set_title(text, loc="left", fontsize=10.5, fontweight="bold", color=theme.ink)


def _header(made: Any, result: Result, theme: Theme) -> None:
    facts, work, rules = result.machine, result.workload, result.protocol
    notes = f" ({rules.notes[0]})" if rules.notes else ""
    high = made.get_figheight()
    title = f"{facts.gpu or facts.cpu}: what each rung is worth {report.where(result)}{notes}"
    fitted(made, 0.02, 1 - 0.42 / high, title, 15, fontweight="bold", color=theme.ink)
    for number, line in enumerate(_said(result)):
        made.text(0.02, 1 - (0.72 + 0.19 * number) / high, line, fontsize=9, color=theme.ink)
    said = f"{work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}; {report.clock(result)}"
    marks = "Diamond: in the ladder's order. Line in a bar: 95% interval. Line under it: worst to best order."
    marks = marks if rules.whole else "Line in a bar: 95% interval."
    fitted(made, 0.02, 0.16 / high, f"{said}. {marks} PyTorch {facts.torch}.", 8, color=theme.muted)
