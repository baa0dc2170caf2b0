"""The chart of `ladder sustain`: step time over a process's seconds, relative to the first, with the clock below."""

from __future__ import annotations

from typing import Any

from ladder.base.text import ms
from ladder.report import drawing
from ladder.report.drawing import fitted
from ladder.report.panels import ARTICLE, BUSY, GRID, INK, MUTED
from ladder.studies.sustain.record import Result, Window

COLORS = (BUSY, ARTICLE, INK, MUTED)
STYLES = ("-", "--", ":", "-.")


def render(result: Result, kind: str) -> bytes:
    """Return the chart as PNG or SVG bytes. The same result gives the same bytes."""
    return drawing.save(lambda: figure(result), kind)


def figure(result: Result) -> Any:
    from matplotlib.figure import Figure

    made = Figure(figsize=(9.5, 6.0))
    grid = made.add_gridspec(
        2, 1, left=0.09, right=0.97, top=0.8, bottom=0.13, hspace=0.25, height_ratios=(2, 1)
    )
    panels = [made.add_subplot(cell) for cell in grid]
    shown = [rung for rung in result.rungs if rung.windows]
    for number, rung in enumerate(shown):
        look = {
            "color": COLORS[number % len(COLORS)],
            "linestyle": STYLES[number // len(COLORS) % len(STYLES)],
        }
        rows, label = (
            rung.windows,
            f"{rung.name}: {ms(rung.first_ms)} to {ms(rung.sustained_ms)} ms",
        )
        panels[0].plot(*_line(rows, "step_ms", rung.first_ms), marker="o", markersize=3, label=label, **look)
        panels[1].plot(*_line(rows, "sm_mhz"), marker="o", markersize=3, **look)
    for axes, label in zip(panels, ("step time, first = 1", "MHz"), strict=True):
        axes.set_ylabel(label, color=MUTED)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.tick_params(length=0, labelcolor=INK, labelsize=8.5)
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(min(low, 0.98), max(high, 1.02))
    panels[0].tick_params(labelbottom=False)
    panels[1].set_xlabel("seconds", color=MUTED)
    if not any(row.sm_mhz for rung in shown for row in rung.windows):
        panels[1].text(0.5, 0.5, "no clock is known", transform=panels[1].transAxes, ha="center", color=MUTED)
        panels[1].set_yticks([])
    if shown:
        made.legend(loc="upper left", bbox_to_anchor=(0.012, 0.915), ncols=2, frameon=False)
    _header(made, result)
    return made


def _line(rows: list[Window], key: str, unit: float = 1.0) -> tuple[list[float], list[float]]:
    known = [(row.at_s, getattr(row, key)) for row in rows if getattr(row, key) is not None]
    return [at for at, _ in known], [value / unit for _, value in known]


def _header(made: Any, result: Result) -> None:
    facts, work, rules = result.machine, result.workload, result.protocol
    notes = f" ({rules.notes[0]})" if rules.notes else ""
    fitted(
        made,
        0.02,
        0.945,
        f"{facts.gpu or facts.cpu}: does the speed last?{notes}",
        15,
        fontweight="bold",
    )
    said = f"{work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}; one process of each rung"
    fitted(made, 0.02, 0.02, f"{said}, PyTorch {facts.torch}. Lower is better above.", 8, color=MUTED)
