"""The chart of `ladder map`: heat maps of two rungs by both clocks."""

from __future__ import annotations

import math
from typing import Any

from ladder.base.text import counted
from ladder.report import drawing
from ladder.report.drawing import fitted, wrapped
from ladder.report.heatmap import heatmap
from ladder.report.themes import LIGHT, Theme
from ladder.studies.map import report
from ladder.studies.map.record import Result

NAMED = {"wall": "the step", "gpu": "GPU time"}
WIDE = 12.5  # inches


def render(result: Result, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes. The same result gives the same bytes."""
    return drawing.save(lambda: figure(result, theme), kind, theme)


def figure(result: Result, theme: Theme = LIGHT) -> Any:
    """Draw a heat map for each of the two rungs by each clock. The colours of a rung mean the same in both."""
    from matplotlib.figure import Figure

    clocks, (sizes, batches) = report.clocks(result), report.axes(result)
    said = [line for each in report.sentences(result) for line in wrapped(each, 9, WIDE - 0.5, 3)]
    top, row = 0.95 + 0.19 * len(said), 1.15 + 0.48 * len(sizes)
    high = top + row * len(clocks) + 0.45
    made = Figure(figsize=(WIDE, high))
    grid = made.add_gridspec(
        len(clocks), 2, left=0.075, right=0.985, top=1 - (top + 0.35) / high, bottom=0.85 / high, wspace=0.16,
        hspace=0.5,
    )  # fmt: skip
    for x, rung in enumerate(result.protocol.rungs):
        known = [value for each in result.gains if each.rung == rung for value in (each.wall, each.gpu)]
        most = max((abs(math.log(value)) for value in known if value), default=0.0)
        for y, clock in enumerate(clocks):
            axes = made.add_subplot(grid[y, x])
            heading = f"{rung}: gain in {NAMED[clock]}"
            axes.set_title(heading, loc="left", fontsize=10.5, fontweight="bold", color=theme.ink)
            values = [
                [_log(report.cell_factor(result, rung, clock, s, b)) for b in batches] for s in sizes[::-1]
            ]
            instead = [[report.cell_word(result, rung, clock, s, b) for b in batches] for s in sizes[::-1]]
            names = [f"{size}x{size}" for size in sizes[::-1]]
            heatmap(axes, names, [str(batch) for batch in batches], values, theme, _word, instead, most)
            axes.set_xlabel("batch", color=theme.muted, fontsize=8.5)
    _header(made, result, said, theme)
    return made


def _log(value: float | None) -> float | None:
    return None if value is None else math.log(value)


def _word(log: float | None) -> str:
    return "" if log is None else f"{math.exp(log):.2f}x"


def _header(made: Any, result: Result, said: list[str], theme: Theme) -> None:
    facts, work, rules = result.machine, result.workload, result.protocol
    high = made.get_figheight()
    notes = f" ({rules.notes[0]})" if rules.notes else ""
    title = f"{facts.gpu or facts.cpu}: where two rungs matter{notes}"
    fitted(made, 0.02, 1 - 0.42 / high, title, 15, fontweight="bold", color=theme.ink)
    for number, line in enumerate(said):
        made.text(0.02, 1 - (0.74 + 0.19 * number) / high, line, fontsize=9, color=theme.ink)
    how = f"{work['name']} at other sizes, ladder {rules.ladder}; a fresh process for every recipe in every cell"
    fitted(
        made,
        0.02,
        0.14 / high,
        f"{how}, {counted(rules.cycles, 'cycle')}. PyTorch {facts.torch}.",
        8,
        color=theme.muted,
    )
