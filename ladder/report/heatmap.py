"""A heat map of gains: blue where something helps, orange where it hurts, with its number in every cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ladder.show.themes import Theme

LEAST = 0.02  # of the colours' range: noise must not look like a finding


def heatmap(
    axes: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    theme: Theme,
    word: Callable[[float | None], str],
    instead: Sequence[Sequence[str]] = (),
    most: float = 0.0,
) -> None:
    """Draw values around 0 onto axes.

    Args:
        values: by row and column; None is an empty cell.
        word: writes a value.
        instead: by row and column, words of cells without a value.
        most: a value that the colours must reach, so that several maps share them.
    """
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
    from matplotlib.patches import Rectangle

    most = max([most, LEAST, *(abs(value) for row in values for value in row if value is not None)])
    colours = LinearSegmentedColormap.from_list("gains", [theme.article, theme.gap, theme.busy])
    norm = TwoSlopeNorm(0.0, -most, most)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            colour = None if value is None else colours(norm(value))
            text = word(value) if value is not None else (instead[y][x] if instead else "")
            if colour is not None or text:
                ground = colour or theme.ground
                axes.add_patch(
                    Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=ground, edgecolor=theme.ground, linewidth=2)
                )
            ink = theme.muted if colour is None else pick_ink(colour)
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color=ink)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    tilted = any(len(name) > 5 for name in columns)
    axes.set_xticks(
        range(len(columns)), columns, rotation=30 if tilted else 0, ha="right" if tilted else "center"
    )
    axes.set_yticks(range(len(rows)), rows)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelcolor=theme.ink, labelsize=8.5)


def pick_ink(colour: Sequence[float]) -> str:
    """Return black or white, whichever stands out more from a colour: by 4.5 to 1 at least (WCAG's contrast)."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return "#000000" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 else "#FFFFFF"
