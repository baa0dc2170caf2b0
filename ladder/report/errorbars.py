"""Error bars that do not rule the picture: one that goes far beyond every point is cut, and an arrow says so.

One process that was held up widens the interval of its rung by ten times where rounds are few. Drawn whole, it would
press all bars of the chart flat; the numbers under the chart, and the table, still give its ends.
"""

from __future__ import annotations

from typing import Any

Interval = tuple[float, float]

BEYOND = 0.6  # how far an error bar may reach beyond the points, in parts of what these span


def window(values: list[float], low: float, high: float) -> Interval:
    """What is drawn: all ``values``, at least from ``low`` to ``high``, and as much again as `BEYOND` says."""
    low, high = min([low, *values]), max([high, *values])
    room = BEYOND * (high - low)
    return low - room, high + room


def within(interval: Interval, drawn: Interval) -> Interval:
    """The part of ``interval`` that is drawn."""
    return max(interval[0], drawn[0]), min(interval[1], drawn[1])


def is_cut(interval: Interval | None, drawn: Interval) -> bool:
    return interval is not None and within(interval, drawn) != tuple(interval)


def draw(axes: Any, x: float, value: float, interval: Interval, drawn: Interval, color: str) -> Interval:
    """One error bar around ``value``, an arrow for each end that is cut. Returns the ends as drawn."""
    low, high = within(interval, drawn)
    around = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar(x, value, yerr=around, color=color, capsize=3.5, elinewidth=1.1, zorder=5)
    for end, shown, marker in ((interval[0], low, "v"), (interval[1], high, "^")):
        if end != shown:
            axes.plot([x], [shown], marker=marker, markersize=5, color=color, linestyle="none", zorder=6)
    return low, high
