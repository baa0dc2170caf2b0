"""The chart of the claims: ours over the article's figure, and the time over block sizes and occupancy.

Above, each claim with a figure is a dot with its interval, in multiples of that figure, on a logarithmic scale. The
line is the article. Below, each sweep has a panel: time over the best of the sweep, and theoretical occupancy. The
same result gives the same bytes.
"""

from __future__ import annotations

from typing import Any

from ladder.report import drawing
from ladder.report.drawing import fitted
from ladder.report.panels import ARTICLE, BUSY, GAP, GRID, IDLE, INK, MUTED
from ladder.studies.claims import registry
from ladder.studies.claims.report import amount, figure
from ladder.studies.claims.schema import Claims
from ladder.studies.claims.view import EQUAL, View

SWEEPS = (
    ("block size", "threads a block, leaky ReLU, Triton"),
    ("block size in CUDA", "threads a block, activation, CUDA C++"),
    ("block size of the norm", "threads a block, instance norm, CUDA C++"),
    (EQUAL, "blocks of 128 threads an SM, Triton"),
)
UNEQUAL = ("occupancy", "elements a thread, 128 threads, Triton")  # for older results, which lack EQUAL
PAIRS = (
    ("coalescing", "strided", "coalesced", "strided / coalesced, full grid"),
    ("coalescing", "strided, N blocks", "coalesced, N blocks", "strided / coalesced, N blocks"),
    ("coalescing", "strided, N blocks", "strided", "N blocks / full grid, strided"),
    ("coalescing", "coalesced, N blocks", "coalesced", "N blocks / full grid, coalesced"),
    ("divergence", "divergent", "predicated", "divergent / predicated"),
    ("reduction", "shared memory", "shuffles", "shared memory / shuffles"),
    ("vector width", "2 bytes", "16 bytes", "2-byte / 16-byte accesses"),
    ("fusion", "three operators", "one", "three operators / one"),
    ("spectral norm", "PyTorch", "Triton", "spectral norm: PyTorch / Triton"),
)
WIDTH, HEIGHT = 12.5, 8.8  # inches


def render(result: Claims, kind: str) -> bytes:
    """Return the chart as PNG or SVG bytes."""
    return drawing.save(lambda: draw(result), kind)


def draw(result: Claims) -> Any:
    from matplotlib.figure import Figure

    made, view = Figure(figsize=(WIDTH, HEIGHT)), View(result)
    machine = result.machine
    notes = f" ({result.protocol.notes[0]})" if result.protocol.notes else ""
    headline = f"{machine.gpu or machine.cpu}: the article's claims, measured{notes}"
    fitted(made, 0.2 / WIDTH, 1 - 0.14 / HEIGHT, headline, 15, fontweight="bold", va="top")
    _figures(made.add_axes((0.19, 0.54, 0.34, 0.34)), result)
    _pairs(made.add_axes((0.73, 0.54, 0.25, 0.34)), view)
    sweeps = SWEEPS if EQUAL in view.experiments else (*SWEEPS[:-1], UNEQUAL)
    for index, (name, label) in enumerate(sweeps):
        _sweep(made.add_axes((0.06 + 0.24 * index, 0.12, 0.18, 0.27)), view, name, label)
    _footer(made, result)
    return made


def _plain(axes: Any, title: str) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelcolor=MUTED, labelsize=8.5)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=10)


def _figures(axes: Any, result: Claims) -> None:
    """Draw ours in multiples of the article's figure. The middle of its range counts, and the range is a band."""
    from matplotlib import patheffects

    rows = [row for row in result.claims if row.figure is not None]
    _plain(axes, "Ours, in multiples of the article's figure")
    axes.set_xscale("log")
    axes.axvline(1, color=ARTICLE, linewidth=1.4, zorder=2)
    reach = 2.0
    for y, row in enumerate(rows):
        claim, low, high = registry.BY_NAME[row.name], *row.figure
        middle = (low + high) / 2
        if high > low:
            axes.barh(y, (high - low) / middle, 0.5, left=low / middle, color=ARTICLE, alpha=0.2, zorder=1)
        if row.ours is None:
            axes.axhspan(y - 0.4, y + 0.4, color=GAP, zorder=0, linewidth=0)
            axes.annotate(
                "n/a",
                (1, y),
                xytext=(6, 0),
                textcoords="offset points",
                fontsize=8.5,
                color=MUTED,
                va="center",
            )
            continue
        value, interval = row.ours.median / middle, row.ours.interval
        reach = max(reach, value, 1 / value)
        if interval:
            axes.plot([b / middle for b in interval], [y, y], color=INK, linewidth=1.4, zorder=3)
        axes.plot([value], [y], "o", color=BUSY, markersize=8, zorder=4)
        text = f"{amount(row.ours.median, claim.unit)} for {figure(claim)}"
        axes.annotate(
            text, (value, y), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8, zorder=5,
            path_effects=[patheffects.withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
    reach = min(reach * 1.8, 1e4)
    axes.set_xlim(1 / reach, reach)
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    near, far = (0.25, 0.5, 1, 2, 4), (0.001, 0.01, 0.1, 1, 10, 100, 1000)
    ticks = [t for t in (near if reach < 8 else far) if 1 / reach <= t <= reach]
    axes.set_xticks(ticks, [f"{t:g}x" for t in ticks])
    axes.minorticks_off()
    axes.tick_params(axis="y", labelcolor=INK, labelsize=9)


def _pairs(axes: Any, view: View) -> None:
    _plain(axes, "Times of one thing changed")
    top = 1.5
    for y, (name, slow, quick, _) in enumerate(PAIRS):
        found = view.faster(name, slow, quick)
        if found is None:
            axes.axhspan(y - 0.4, y + 0.4, color=GAP, zorder=0, linewidth=0)
            axes.text(0.05, y, "n/a", fontsize=8.5, color=MUTED, va="center")
            continue
        value = found.median
        top = max(top, value)
        axes.barh(y, value, 0.6, color=BUSY, zorder=2)
        if found.interval:
            axes.plot(found.interval, [y, y], color=INK, linewidth=1.2, zorder=4)
        axes.annotate(
            f"{amount(value, 'x')}", (value, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5
        )  # fmt: skip
    axes.axvline(1, color=MUTED, linewidth=1, linestyle="--", zorder=3)
    axes.set_xlim(0, top * 1.2)
    axes.set_ylim(len(PAIRS) - 0.4, -0.6)
    axes.set_yticks(range(len(PAIRS)), [label for *_, label in PAIRS])
    axes.tick_params(axis="y", labelcolor=INK, labelsize=9)


def _sweep(axes: Any, view: View, name: str, label: str) -> None:
    """Draw time over the best of the sweep as bars, and theoretical occupancy as a line, both from 0."""
    _plain(axes, "")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.grid(axis="x", visible=False)
    found = view.experiments.get(name)
    contenders = list(dict.fromkeys((*found.bytes, *found.samples_us))) if found else []
    best = view.quickest(name)
    axes.set_xlabel(label, fontsize=8.5, color=MUTED)
    axes.set_xticks(range(len(contenders)), [each.split()[0] for each in contenders])
    axes.set_xlim(-0.6, max(1, len(contenders)) - 0.4)
    if best is None:
        axes.set_yticks([])
        reason = next(iter(found.reasons.values() if found else ()), "not measured")
        axes.text(
            0.5, 0.5, f"n/a: {reason}"[:40], transform=axes.transAxes, fontsize=7.5, color=MUTED, ha="center"
        )
        return
    ratios = [view.ratio(name, each, best) for each in contenders]
    for x, ratio in enumerate(ratios):
        if ratio:
            axes.bar(x, ratio.median, 0.7, color=IDLE, zorder=2)
            axes.text(x, ratio.median + 0.02, f"{ratio.median:.2f}", fontsize=7.5, ha="center", zorder=4)
    shares = [
        (x, share) for x, each in enumerate(contenders) if (share := view.occupancy(name, each)) is not None
    ]
    axes.plot([x for x, _ in shares], [s for _, s in shares], "-o", color=BUSY, markersize=4, zorder=5)
    top = max([ratio.median for ratio in ratios if ratio] + [1.2])
    axes.set_ylim(0, top * 1.12)


def _footer(made: Any, result: Claims) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=IDLE, label="time over the best of the sweep"),
        Line2D([], [], color=BUSY, marker="o", markersize=4, label="theoretical occupancy, 1 = 100%"),
        Line2D([], [], color=ARTICLE, label="the article"),
    ]
    made.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.05, 0.475), ncols=3, frameon=False, fontsize=9
    )
    machine = result.machine
    text = (
        f"PyTorch {machine.torch}, Triton {machine.triton}; 8x512x256x256; cold L2."
        " Lines: 95% intervals over repeats."
    )
    if result.protocol.smoke:
        text = "Tiny shapes in Triton's interpreter: no time means anything."
    fitted(made, 0.2 / WIDTH, 0.12 / HEIGHT, text, 8, color=MUTED)
