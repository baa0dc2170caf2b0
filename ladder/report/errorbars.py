"""Error bars that do not rule the picture: one that goes far beyond every point is cut, and an arrow says so.

One process that was held up widens the interval of its rung by ten times where rounds are few. Drawn whole, it would
press all bars of the chart flat; the table beside the chart still gives its ends.
"""

from __future__ import annotations

from typing import Any

Interval = tuple[float, float]

BEYOND = 0.6  # how far an error bar may reach beyond the longest bar, in parts of that bar


def window(values: list[float]) -> Interval:
    """Return the part of the scale that is drawn: from 0 to somewhat above the highest value."""
    return 0.0, (1 + BEYOND) * max(values, default=0.0)


def within(interval: Interval, drawn: Interval) -> Interval:
    """Return the part of ``interval`` that is drawn."""
    return max(interval[0], drawn[0]), min(interval[1], drawn[1])


def is_cut(interval: Interval | None, drawn: Interval) -> bool:
    """Return whether a part of the interval is not drawn."""
    return interval is not None and within(interval, drawn) != tuple(interval)


def draw(
    axes: Any, y: float, interval: Interval, drawn: Interval, left: float, scale: float, color: str
) -> None:
    """Draw an error bar as a line with two ends, an arrow in place of an end that is cut.

    Args:
        left, scale: place of 0 and length of a unit, in inches.
    """
    ends = within(interval, drawn)
    places = [left + scale * end for end in ends]
    axes.plot(places, [y, y], color=color, linewidth=1.1, solid_capstyle="butt", zorder=5)
    for end, shown, place, marker in zip(interval, ends, places, "<>", strict=True):
        cut = end != shown
        axes.plot([place], [y], marker=marker if cut else "|", markersize=4.5, color=color, zorder=6)
