"""The chart of `ladder kernels`: how near each op comes to a copy of the same bytes, beside its alternatives.

Each op has a row for each shape, the largest batch first; forward is left, backward right. The same result gives the
same bytes.
"""

from __future__ import annotations

from typing import Any

from ladder.report import drawing
from ladder.report.drawing import fitted
from ladder.report.panels import ARTICLE, BUSY, GAP, GRID, IDLE, INK, MUTED
from ladder.studies.kernelbench import report as kernelreport
from ladder.studies.kernelbench.schema import Kernels, Row

MARKS = {"plain": ("o", IDLE), "compile": ("D", ARTICLE)}  # ours is a bar
DIRECTIONS = ("forward", "backward")
WIDTH, ROW, BETWEEN, TOP, BOTTOM = 12.5, 0.21, 0.14, 1.15, 0.45  # inches
NAME, SHAPE, PANELS, PANEL = 0.2, 2.3, (4.3, 8.6), 3.3  # places and width, inches


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
    ops = shown_rows(result)
    lines = {op: _lines(directions) for op, directions in ops.items()}
    height = TOP + BOTTOM + ROW * sum(map(len, lines.values())) + BETWEEN * len(lines)
    made, axes = drawing.sheet(WIDTH, height)
    marks = [row.share for directions in ops.values() for rows in directions.values() for row in rows]
    ends = [
        end for share in marks for each in share.values() for end in (each.median, *(each.interval or ()))
    ]
    scale = PANEL / max([1.05, *ends])
    y = TOP
    if ops:
        _rule(axes, scale, height)
    for op, of_op in lines.items():
        axes.plot([NAME, WIDTH - 0.2], [y, y], color=GRID, linewidth=0.8)
        y += BETWEEN / 2
        axes.text(NAME, y + ROW / 2, op, fontsize=9.5, fontweight="bold", va="center")
        for shape, of_shape in of_op.items():
            axes.text(SHAPE, y + ROW / 2, shape, fontsize=8.5, color=MUTED, va="center")
            for left, direction in zip(PANELS, DIRECTIONS, strict=True):
                if row := of_shape.get(direction):
                    _bar(axes, left, y + ROW / 2, scale, row)
            y += ROW
        y += BETWEEN / 2
    _header(made, result, bool(ops))
    return made


def _lines(directions: dict[str, list[Row]]) -> dict[str, dict[str, Row]]:
    """Return shape -> direction -> row, in the order of the rows. The shape is as the case's name has it."""
    found: dict[str, dict[str, Row]] = {}
    for direction, rows in directions.items():
        for row in rows:
            shape = row.case.removeprefix(row.op).removesuffix(f"{row.dtype} {row.layout}").strip()
            found.setdefault(shape, {})[direction] = row
    return found


def _rule(axes: Any, scale: float, height: float) -> None:
    """Draw the directions' names, the scale, and the line of a copy."""
    for left, direction in zip(PANELS, DIRECTIONS, strict=True):
        axes.text(left, TOP - 0.3, direction, fontsize=11, fontweight="bold", va="center")
        for share in (0, 0.5, 1):
            x = left + share * scale
            axes.text(x, TOP - 0.1, f"{100 * share:.0f}%", fontsize=8, color=MUTED, ha="center", va="center")
            line: dict[str, Any] = {"color": GRID, "linewidth": 0.8}
            if share == 1:
                line = {"color": MUTED, "linewidth": 1, "linestyle": "--"}
            axes.plot([x, x], [TOP, height - BOTTOM], zorder=1, **line)


def _bar(axes: Any, left: float, y: float, scale: float, row: Row) -> None:
    """Draw the bar of our kernel with its interval, its number, and the marks of the others."""
    if not row.share:
        axes.barh(y, PANEL, 0.8 * ROW, left=left, color=GAP, zorder=2)
        axes.text(left + 0.06, y, "not measured", fontsize=7.5, color=MUTED, va="center", zorder=5)
    for name, (mark, color) in MARKS.items():
        if each := row.share.get(name):
            look = {"color": color, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.7}
            axes.plot(left + scale * each.median, y, mark, zorder=5, **look)
    if not (ours := row.share.get("ours")):
        return
    axes.barh(y, scale * ours.median, 0.55 * ROW, left=left, color=BUSY, zorder=2)
    low, high = ours.interval or (ours.median, ours.median)
    axes.plot([left + scale * low, left + scale * high], [y, y], color=INK, linewidth=1, zorder=4)
    axes.text(
        left - 0.08, y, f"{100 * ours.median:.0f}", fontsize=8.5, fontweight="bold", ha="right", va="center"
    )


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
    handles: list[Any] = [Patch(color=BUSY, label="this project's kernel, and its number")]
    handles += [
        Line2D([], [], marker=mark, color=color, linestyle="", label=kernelreport.CONTENDERS[name])
        for name, (mark, color) in MARKS.items()
    ]
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="copy of the same bytes"))
    made.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.12 / width, 1 - 0.42 / height), ncols=4,
        frameon=False, fontsize=9, handlelength=1.8, columnspacing=1.8, borderpad=0.2,
    )  # fmt: skip
    settings = {" ".join((row.dtype, row.layout)) for row in kernelreport.reached(result) if row.setting == 0}
    footer = (
        f"PyTorch {machine.torch}, Triton {machine.triton}; {', '.join(sorted(settings))}. Higher is better."
        " Line in a bar's end: 95% interval over repeats. Backward: autograd.grad alone."
    )
    if missing := kernelreport.lacking(result):
        footer += f" {missing.partition(':')[0]}."
    fitted(made, 0.2 / width, 0.12 / height, footer, 8, color=MUTED)
