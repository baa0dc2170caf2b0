"""The picture of a generation in docs/protocol.md: what each process does when. It shows the order, not the lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.report import drawing
from ladder.report.themes import DARK, LIGHT, Theme

PAGE, FOLDER = "docs/protocol.md", "docs/images"
PROCESSES = ("baseline", "its twin", "bf16", "cuda_graphs", "fused_act", "its twin")
PASSES = (
    (4, 1, 3, 0, 5, 2),
    (2, 5, 0, 4, 1, 3),
)  # the order of the visits in each, by the index of the process
PROFILED = (3, 0, 5, 2, 4, 1)
STARTED, PREPARED, VISIT, GAP = 1.6, 0.9, 1.0, 0.8  # lengths in the picture
WIDTH, HEIGHT = 10.0, 4.3  # inches


def write_pictures(root: Path) -> list[Path]:
    """Draw the picture on light and on dark ground, where the checkout has its page. Return the changed files."""
    changed = []
    for name, theme in (("light", LIGHT), ("dark", DARK)) if (root / PAGE).is_file() else ():
        path, picture = root / FOLDER / f"generation-{name}.svg", render_picture(theme)
        if not path.is_file() or path.read_bytes() != picture:
            files.write(path, picture)
            changed.append(path)
    return changed


def render_picture(theme: Theme) -> bytes:
    """Return the picture as SVG."""
    return drawing.save(lambda: draw_figure(theme), "svg", theme)


def draw_figure(theme: Theme) -> Any:
    """Draw a row for the server and for each process, with time from left to right."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    made = Figure(figsize=(WIDTH, HEIGHT))
    axes = made.add_axes((0.12, 0.06, 0.86, 0.74))
    axes.set_xticks([])
    rows = ("fork server", *PROCESSES)
    axes.set_yticks(range(len(rows)), rows, color=theme.ink, fontsize=9)
    axes.tick_params(length=0)
    axes.set_ylim(len(rows) - 0.4, -1.1)
    for side in axes.spines.values():
        side.set_visible(False)

    def block(row: int, begin: float, length: float, color: str) -> None:
        axes.barh(row, length, 0.56, left=begin, color=color, edgecolor=theme.ground, linewidth=0.8, zorder=3)

    begin = STARTED
    block(0, 0, STARTED, theme.muted)
    for index in range(len(PROCESSES)):
        block(index + 1, begin, PREPARED, theme.idle)
        begin += PREPARED
    ends = [STARTED + PREPARED * (index + 1) for index in range(len(PROCESSES))]
    marks = [(0.0, "import"), (STARTED, "prepare")]
    for number, order in enumerate(PASSES, start=1):
        begin += GAP
        marks.append((begin, f"pass {number}"))
        for index in order:
            block(index + 1, begin, VISIT, theme.busy)
            begin += VISIT
    begin += GAP
    marks.append((begin, "profile, prove"))
    next_at = begin
    for index in PROFILED:
        block(index + 1, begin, PREPARED, theme.article)
        block(index + 1, begin + PREPARED, 0.45 * PREPARED, theme.ink)
        begin += PREPARED
    last = begin + 0.45 * PREPARED
    block(0, next_at, STARTED, theme.muted)
    axes.text(next_at + STARTED + 0.2, 0, "next generation's", va="center", fontsize=8.5, color=theme.muted)
    for index, end in enumerate(ends):  # alive
        axes.plot([end, last], [index + 1, index + 1], color=theme.grid, linewidth=3, zorder=1)
    axes.set_xlim(-0.1, last + 0.1)
    for at, text in marks:
        axes.axvline(at, color=theme.grid, linewidth=1, zorder=0)
        axes.text(at + 0.1, -0.75, text, fontsize=8.5, color=theme.muted, va="center")
    colours = (
        (theme.muted, "imports"),
        (theme.idle, "builds, prepares"),
        (theme.busy, "visit: one timed cycle"),
        (theme.article, "two profiled cycles"),
        (theme.ink, "the timed step against the reference"),
    )
    made.legend(
        handles=[Patch(color=color, label=label) for color, label in colours], loc="upper left",
        bbox_to_anchor=(0.005, 0.94), ncols=5, frameon=False, fontsize=8.5, handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
    made.text(0.012, 0.95, "One generation (the order, not to scale)", fontsize=12, fontweight="bold")
    return made
