"""The chart of `ladder kernels`: how near each op comes to a copy of the same bytes, beside its alternatives.

Each op has a row of panels, forward left and backward right. Each group of bars is a shape, the largest batch first.
The same result gives the same bytes.
"""

from __future__ import annotations

import textwrap
from typing import Any

from ladder.report import drawing
from ladder.report.drawing import fitted
from ladder.report.panels import ARTICLE, BUSY, GAP, GRID, IDLE, INK, MUTED
from ladder.studies.kernelbench import report as kernelreport
from ladder.studies.kernelbench.schema import Kernels, Row, Summary

BARS = {"ours": BUSY, "plain": IDLE, "compile": ARTICLE}
DIRECTIONS = ("forward", "backward")
WIDTH, PANEL, LEFT, BETWEEN, TOP, BOTTOM = 12.5, 1.25, 1.45, 0.68, 1.2, 0.85  # inches


def render(result: Kernels, kind: str) -> bytes:
    """Return the chart as PNG or SVG bytes."""
    return drawing.save(lambda: figure(result), kind)


def shown_rows(result: Kernels) -> dict[str, dict[str, list[Row]]]:
    """Return op -> direction -> rows with a yardstick, in the setting of the ladder's top. The tables show the rest."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in kernelreport.reached(result):
        if row.setting == 0 and row.direction in DIRECTIONS:
            found.setdefault(row.op, {d: [] for d in DIRECTIONS})[row.direction].append(row)
    for directions in found.values():
        for rows in directions.values():
            rows.sort(key=lambda row: -row.batch)  # a stable sort keeps the largest first within a batch
    return found


def figure(result: Kernels) -> Any:
    from matplotlib.figure import Figure

    ops = shown_rows(result)
    count = max(1, len(ops))
    height = TOP + BOTTOM + count * PANEL + (count - 1) * BETWEEN + 0.25
    made = Figure(figsize=(WIDTH, height))
    wide = (WIDTH - LEFT - 0.9) / 2
    for index, (op, directions) in enumerate(ops.items()):
        bottom = height - TOP - PANEL - index * (PANEL + BETWEEN)
        for column, (direction, rows) in enumerate(directions.items()):
            left = LEFT + column * (wide + 0.65)
            axes = made.add_axes((left / WIDTH, bottom / height, wide / WIDTH, PANEL / height))
            _panel(axes, rows)
            if index == 0:
                axes.set_title(direction, loc="left", fontsize=11, fontweight="bold", pad=10)
        made.text(
            0.2 / WIDTH, (bottom + PANEL / 2) / height, _name(op),
            fontsize=9.5, fontweight="bold", va="center", linespacing=1.3,
        )  # fmt: skip
    _header(made, result, bool(ops))
    return made


def _name(op: str) -> str:
    """Return the op's name in lines that fit the margin, broken behind underscores too."""
    lines = textwrap.wrap(op.replace("_", "_ "), 10)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def _panel(axes: Any, rows: list[Row]) -> None:
    """Draw the bars of one op in one direction. A shape without a number is a grey gap."""
    for side in axes.spines.values():
        side.set_visible(False)
    top = max((each.median for row in rows for each in row.share.values()), default=1.0)
    axes.set_ylim(0, max(1.25, 1.2 * top))
    axes.set_xlim(-0.5, max(len(rows), 4) - 0.5)  # bars of few shapes are as wide as elsewhere
    axes.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    axes.tick_params(length=0, labelcolor=MUTED, labelsize=8.5)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.axhline(1, color=MUTED, linewidth=1, linestyle="--", zorder=3)
    for x, row in enumerate(rows):
        if not row.share:
            axes.axvspan(x - 0.4, x + 0.4, color=GAP, zorder=1, linewidth=0)
            axes.text(
                x, 0.05, "not measured", rotation=90, fontsize=7.5, color=MUTED, ha="center", va="bottom"
            )
        for place, (name, color) in enumerate(BARS.items()):
            _bar(axes, x + 0.27 * (place - 1), row.share.get(name), color, name)
    axes.set_xticks(range(len(rows)), [_shape(row) for row in rows])
    axes.tick_params(axis="x", labelcolor=INK, labelsize=8, pad=3)


def _bar(axes: Any, x: float, share: Summary | None, color: str, name: str) -> None:
    if share is None:
        return
    from matplotlib import patheffects

    value = share.median
    axes.bar(x, value, 0.25, color=color, zorder=2)
    if share.interval:
        low, high = share.interval
        spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar(x, value, yerr=spread, color=INK, capsize=1.5, elinewidth=0.8, zorder=4)
        value = max(value, high)
    axes.annotate(
        f"{100 * share.median:.0f}", (x, value), xytext=(0, 2), textcoords="offset points", ha="center",
        va="bottom", fontsize=8 if name == "ours" else 7, zorder=5,
        fontweight="bold" if name == "ours" else "normal", color=INK if name == "ours" else MUTED,
        path_effects=[patheffects.withStroke(linewidth=2, foreground="white")],
    )  # fmt: skip


def _shape(row: Row) -> str:
    """Return the shape in three lines, which fit a narrow group."""
    shape = row.shape[1:] if row.shape[0] == row.batch else row.shape
    lines = ["x".join(map(str, part)) for part in (shape[:-2], shape[-2:]) if part]
    return "\n".join([*lines, f"batch {row.batch}"])


def _header(made: Any, result: Kernels, any_rows: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    width, height = made.get_size_inches()
    machine = result.machine
    notes = f" ({result.protocol.notes[0]})" if result.protocol.notes else ""
    headline = f"{machine.gpu or machine.cpu}: share of a copy of the same bytes, cold L2{notes}"
    if not any_rows:
        headline = f"{machine.gpu or machine.cpu}: nothing was measured"
    fitted(made, 0.2 / width, 1 - 0.14 / height, headline, 15, fontweight="bold", va="top")
    names = {**kernelreport.CONTENDERS, "ours": "this project's kernel"}
    handles = [Patch(color=color, label=names[name]) for name, color in BARS.items()]
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="copy of the same bytes"))
    made.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.12 / width, 1 - 0.42 / height), ncols=4,
        frameon=False, fontsize=9, handlelength=1.8, columnspacing=1.8, borderpad=0.2,
    )  # fmt: skip
    settings = {" ".join((row.dtype, row.layout)) for row in kernelreport.reached(result) if row.setting == 0}
    footer = (
        f"PyTorch {machine.torch}, Triton {machine.triton}; {', '.join(sorted(settings))}. Higher is better."
        " Error bars: 95% interval over repeats. Backward: autograd.grad alone."
    )
    if missing := kernelreport.lacking(result):
        footer += f" {missing.partition(':')[0]}."
    fitted(made, 0.2 / width, 0.12 / height, footer, 8, color=MUTED)
