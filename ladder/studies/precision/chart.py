"""The chart of `ladder precision`: time, memory and largest batch of each precision, and FP16's loss scales."""

from __future__ import annotations

from typing import Any

from ladder.base.text import counted
from ladder.report import drawing
from ladder.report.drawing import fitted
from ladder.report.panels import ARTICLE, BUSY, GRID, IDLE, INK, MUTED
from ladder.studies.precision import record
from ladder.studies.precision.record import History, Result, Row

COLORS = {"baseline": IDLE, "top": BUSY}
PANELS = {"step_ms": "ms a step", "memory": "GiB, at most", "batch": "largest batch"}
SCALES = {"G": BUSY, "D": ARTICLE}


def render(result: Result, kind: str) -> bytes:
    """Return the chart as PNG or SVG bytes. The same result gives the same bytes."""
    return drawing.save(lambda: figure(result), kind)


def figure(result: Result) -> Any:
    from matplotlib.figure import Figure

    made = Figure(figsize=(12.5, 7.2))
    grid = made.add_gridspec(
        2, 3, left=0.06, right=0.98, top=0.84, bottom=0.12, hspace=0.42, wspace=0.2, height_ratios=(1, 0.9)
    )
    for column, (key, label) in enumerate(PANELS.items()):
        axes = made.add_subplot(grid[0, column])
        _bars(axes, result.rows, key)
        axes.set_title(label, loc="left", fontsize=11, fontweight="bold")
    _history(made.add_subplot(grid[1, :]), result.history)
    _header(made, result)
    return made


def value_of(row: Row, key: str) -> float | None:
    if key == "batch":
        return row.largest.batch if row.largest else None
    if key == "memory":  # the whole GPU's, if known: PyTorch's allocator does not see pools of graphs
        return row.device_gib if row.device_gib is not None else row.rss_gib
    return getattr(row, key)


def _bars(axes: Any, rows: list[Row], key: str) -> None:
    names = list(dict.fromkeys(row.precision for row in rows))
    bases = [base for base in COLORS if any(row.on == base for row in rows)]
    wide = 0.8 / max(1, len(bases))
    top = max((value_of(row, key) or 0 for row in rows), default=0) or 1.0
    for row in rows:
        value = value_of(row, key)
        x = names.index(row.precision) + wide * (bases.index(row.on) - (len(bases) - 1) / 2)
        if value is None:
            said = row.status if row.status != "ok" else "not tried"
            axes.text(x, 0.02 * top, said, rotation=90, fontsize=7.5, color=MUTED, ha="center", va="bottom")
            continue
        axes.bar(x, value, 0.92 * wide, color=COLORS[row.on], zorder=2)
        high = value
        if key == "step_ms" and row.interval_ms:
            low, high = row.interval_ms
            spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
            axes.errorbar(x, value, yerr=spread, color=INK, capsize=2, elinewidth=0.8, zorder=4)
            high = min(max(value, high), 1.3 * top)
        more = "+" if key == "batch" and not row.largest.settled else ""
        shown = f"{value:.0f}{more}" if key == "batch" or value >= 100 else f"{value:.1f}"
        axes.annotate(
            shown, (x, high), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=8
        )
    axes.set_ylim(0, 1.3 * top)
    axes.set_xlim(-0.6, max(len(names), 1) - 0.4)
    axes.set_xticks(range(len(names)), [record.NAMES[name].replace(", ", "\n") for name in names])
    _quiet(axes)


def _history(axes: Any, history: History | None) -> None:
    axes.set_title("FP16: loss scales while training", loc="left", fontsize=11, fontweight="bold")
    _quiet(axes)
    if not history:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "not followed", transform=axes.transAxes, ha="center", color=MUTED)
        return
    steps = [change[0] for change in history.changes] + [history.steps + 1]
    for place, (name, color) in enumerate(SCALES.items(), start=1):
        scales = [change[place] for change in history.changes]
        label = f"{name}: {history.skipped[name]} of {history.updates[name]} updates skipped"
        axes.step(steps, [*scales, scales[-1]], where="post", color=color, linewidth=1.6, label=label)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.set_xlabel("step", color=MUTED)
    axes.legend(frameon=False, fontsize=9, loc="best")


def _quiet(axes: Any) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=INK, labelsize=8.5)


def _header(made: Any, result: Result) -> None:
    from matplotlib.patches import Patch

    facts, rules = result.machine, result.protocol
    notes = f" ({rules.notes[0]})" if rules.notes else ""
    headline = f"{facts.gpu or facts.cpu}: FP32, TF32, BF16 and FP16, {result.workload['name']}{notes}"
    fitted(made, 0.02, 0.955, headline, 15, fontweight="bold")
    labels = {"baseline": "the baseline in this precision", "top": f"top of the ladder {rules.ladder}"}
    handles = [Patch(color=color, label=labels[base]) for base, color in COLORS.items()]
    made.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.012, 0.945), ncols=2, frameon=False)
    batch = result.workload["batch"]
    parts = f"batch {batch}, {counted(rules.rounds, 'generation')}; PyTorch {facts.torch}. Lower is better in"
    fitted(
        made,
        0.02,
        0.02,
        f"{parts} time and memory. Error bars: 95% interval over generations.",
        8,
        color=MUTED,
    )
