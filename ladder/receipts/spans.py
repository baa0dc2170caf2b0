"""Intervals of time in nanoseconds, as a profiler gives them."""

from __future__ import annotations

import math


def union(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of intervals. Kernels on parallel streams count once."""
    total, end = 0, -math.inf
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return int(total)
