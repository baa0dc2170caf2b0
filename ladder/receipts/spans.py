"""Intervals of time in nanoseconds, as a profiler gives them."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Sequence


def union(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of intervals. Kernels on parallel streams count once."""
    return int(sum(last - first for first, last in _joined(spans)))


def once(spans: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the nanoseconds of each span (stream, begin, end) that count for it, so that they sum to the union.

    An instant of several streams belongs to the busiest one. On one stream it belongs to what began first.
    """
    streams: dict[int, list[int]] = defaultdict(list)
    for place, (stream, _, _) in enumerate(spans):
        streams[stream].append(place)
    busy = {stream: sum(spans[at][2] - spans[at][1] for at in places) for stream, places in streams.items()}
    own, taken = [0] * len(spans), list[tuple[int, int]]()
    for stream in sorted(streams, key=lambda each: (-busy[each], each)):
        ends, end = [last for _, last in taken], -math.inf
        for place in sorted(streams[stream], key=lambda at: spans[at][1:]):
            first, last = max(spans[place][1], end), spans[place][2]
            if first < last:
                own[place] = int(last - first) - _covered(int(first), last, taken, ends)
            end = max(end, last)
        taken = _joined([*taken, *(spans[at][1:] for at in streams[stream])])
    return own


def _covered(first: int, last: int, taken: list[tuple[int, int]], ends: list[int]) -> int:
    """Return the nanoseconds of a span that disjoint sorted intervals cover; ``ends``: those of the intervals."""
    total, place = 0, bisect.bisect_right(ends, first)
    while place < len(taken) and taken[place][0] < last:
        total += min(last, taken[place][1]) - max(first, taken[place][0])
        place += 1
    return total


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint sorted intervals with the same union."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        elif first < last:
            joined.append((first, last))
    return joined
