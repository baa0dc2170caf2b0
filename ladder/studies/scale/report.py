"""The report of `ladder scale`: the table of points, and the chart of efficiency over the number of GPUs."""

from __future__ import annotations

from typing import Any

from ladder.machine import environment
from ladder.report.drawing import fitted
from ladder.report.panels import ARTICLE, BUSY, GRID, INK, MUTED
from ladder.show.table import Column, Table
from ladder.studies.scale.record import FEW_OF, STRONG, WEAK, File, Point, Proof, Scaled, derive_proofs

TOO_FEW = "too few generations"
COLORS = (BUSY, ARTICLE, INK, MUTED)
STYLES = ("-", "--", ":")
NOTHING = "no efficiency: no way was measured on two numbers of GPUs"
TITLES = {WEAK: "weak: a fixed batch on each GPU", STRONG: "strong: a fixed total batch"}


def name_ranks(file: File) -> str:
    """Return what a point has a number of: GPUs, or ranks that share a CPU."""
    return "GPUs" if file.machine.gpu else "ranks"


def describe_generations(found: Scaled) -> str:
    """Return how many generations the points have, in words."""
    counts = sorted({len(point.runs) for point in found.points if point.runs}) or [0]
    span = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    runs = f" in {len(found.merged)} runs" if found.merged else ""
    return f"{span} generation{'' if counts == [1] else 's'}{runs}"


def judge_proof(proof: Proof) -> str:
    """Return what a proof came to."""
    return f"parity {proof.parity}, engaged" if proof.status == "ok" else f"{proof.status}: {proof.reason}"


def make_proofs_table(file: File) -> Table:
    """Return what the proofs came to, a row for each line of a receipt."""
    columns = [
        Column("proof, as reported then"), Column("batch", "count"), Column("result"), Column("receipt", priority=1),
    ]  # fmt: skip
    rows = [
        [f"{proof.way} on {proof.gpus} {name_ranks(file)}", proof.batch, judge_proof(proof), line]
        for proof in derive_proofs(file)
        for line in proof.lines or [""]
    ]
    return Table(columns, rows)


def make_table(file: File, found: Scaled, is_quoted: bool = False) -> Table:
    """Return a row for each point. `is_quoted`: without the numbers of a point that must not be quoted."""
    columns = [
        Column("way"), Column("scaling"), Column(name_ranks(file), "count"), Column("batch", "count", 3),
        Column("ms/step", "ms"), Column("images/s", "amount", 2), Column("efficiency", "share"),
        Column("95% interval", "shares", 1), Column("communication ms", "ratio", 5), Column("exposed ms", "ratio", 4),
        Column("GiB reserved", "gib", 6),
    ]  # fmt: skip
    return Table(columns, [_make_row(point, found, is_quoted) for point in found.points])


def _make_row(point: Point, found: Scaled, is_quoted: bool) -> list[Any]:
    has_few = found.has_too_few(point)
    row: list[Any] = [point.way, point.scaling, point.gpus, point.batch]
    if point.step_ms is None or point.status != "ok":
        return [*row, f"{point.status}: {point.reason}", *[None] * 6]
    if has_few and is_quoted:
        return [*row, TOO_FEW, *[None] * 6]
    interval = None if point.low is None or point.high is None else (point.low, point.high)
    return [
        *row, point.step_ms, point.images_per_s, found.find_efficiency(point), TOO_FEW if has_few else interval,
        point.comm_ms, point.exposed_ms, point.peak_bytes,
    ]  # fmt: skip


# --- the chart: weak and strong scaling side by side ------------------------------------------------------------------


def draw_figure(file: File, found: Scaled) -> Any:
    """Return the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.2))
    shown = [each for each in found.points if found.find_efficiency(each) is not None]
    scalings = [each for each in (WEAK, STRONG) if any(p.scaling == each for p in shown)] or [WEAK]
    grid = figure.add_gridspec(1, len(scalings), left=0.08, right=0.97, top=0.74, bottom=0.17, wspace=0.15)
    ways = list(dict.fromkeys(point.way for point in shown))
    gpus = sorted({point.gpus for point in shown})
    for number, scaling in enumerate(scalings):
        axes = figure.add_subplot(grid[number])
        _draw_panel(axes, [p for p in shown if p.scaling == scaling], ways, gpus, found)
        axes.set_xlabel(name_ranks(file), color=MUTED)
        axes.set_title(TITLES[scaling], loc="left", fontsize=9.5, color=INK)
        if number == 0:
            axes.set_ylabel("efficiency", color=MUTED)
            if ways:
                figure.legend(
                    *axes.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0.012, 0.915),
                    ncols=3, frameon=False,
                )  # fmt: skip
    _draw_header(figure, file, found)
    return figure


def _draw_panel(axes: Any, points: list[Point], ways: list[str], gpus: list[int], found: Scaled) -> None:
    axes.axhline(1.0, color=GRID, linewidth=1.2)
    if not points:
        axes.text(0.5, 0.5, NOTHING, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    for number, way in enumerate(ways):
        mine = sorted((p for p in points if p.way == way), key=lambda p: p.gpus)
        values = [p.efficiency or 0.0 for p in mine]
        below = [max(0.0, v - p.low) if p.low is not None else 0.0 for v, p in zip(values, mine, strict=True)]
        above = [
            max(0.0, p.high - v) if p.high is not None else 0.0 for v, p in zip(values, mine, strict=True)
        ]
        look = {
            "color": COLORS[number % len(COLORS)],
            "linestyle": STYLES[number // len(COLORS) % len(STYLES)],
        }
        few, label = any(found.has_too_few(p) for p in mine), way
        if few:  # hollow: not to be quoted
            look["markerfacecolor"], label = "white", f"{way} ({TOO_FEW})"
        at = [gpus.index(p.gpus) for p in mine]
        axes.errorbar(
            at, values, yerr=[below, above], marker="o", markersize=4, capsize=3, label=label, **look
        )
    axes.set_xticks(range(len(gpus)), [str(n) for n in gpus])
    axes.set_ylim(0, max([1.05, *(p.high or p.efficiency or 0.0 for p in points)]) * 1.02)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.tick_params(length=0, labelcolor=INK, labelsize=8.5)


def _draw_header(figure: Any, file: File, found: Scaled) -> None:
    facts, work, rules = file.machine, file.workload or {}, found.protocol
    under = environment.describe_variables(file.environment)
    # The legend names ways with too few generations, and the last line the environment.
    left = [n for n in rules.notes if not n.startswith(FEW_OF) and n not in under]
    title = f"{facts.gpu or facts.cpu}: does it scale?" + (f" ({left[0]})" if left else "")
    fitted(figure, 0.02, 0.945, title, 15, fontweight="bold")
    size_ = f"{work['resolution']}x{work['resolution']}"
    said = f"{work['name']}: {size_}, {describe_generations(found)}, {rules.backend}, PyTorch {facts.torch}"
    fitted(figure, 0.02, 0.02, "; ".join([f"{said}. Higher is better", *under]), 8, color=MUTED)
