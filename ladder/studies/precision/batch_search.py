"""How large a batch fits: a search by trying, of which each try costs seconds. Pure but for what it is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LARGEST = 2**15


def search(
    fits: Callable[[int], str | None],
    start: int,
    group: int,
    limit_s: float,
    most: int = LARGEST,
    clock: Callable[[], float] = time.monotonic,
    tried: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Double, then bisect to a sixteenth or one group.

    Args:
        fits: None where a batch fits, else one line why not. start, group: a batch, and what it must be a multiple of.
        limit_s, most: no try begins after so many seconds, nor above that batch.
        tried: those of a search that was cut short, which this one goes on with; new ones are added in place, so that
            whoever interrupts it has them (`cut_short`).

    Returns:
        batch: the largest that fitted, None if none did. settled: whether the search came to its end; where not, more
        may fit. tried: [{"batch", "reason"}] in order.
    """
    begin, tried = clock(), [] if tried is None else tried
    before = len(tried)

    def try_(batch: int) -> bool:
        tried.append({"batch": batch, "reason": fits(batch)})
        return tried[-1]["reason"] is None

    def in_time() -> bool:
        return len(tried) == before or clock() - begin < limit_s

    low = largest(tried)
    high = min((each["batch"] for each in tried if each["reason"] is not None), default=None)
    batch = start if low is None else 2 * low
    while high is None and batch <= most and in_time():
        if try_(batch):
            low, batch = batch, 2 * batch
        else:
            high = batch
    settled = high is not None
    while settled and high - (low or 0) > max(group, (low or 0) // 16):
        middle = ((low or 0) + high) // 2 // group * group
        if middle in (low or 0, 0) or not (settled := in_time()):
            break
        if try_(middle):
            low = middle
        else:
            high = middle
    return {"batch": low, "settled": settled, "tried": tried}


def cut_short(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """What `search` would have returned, had its time been over after these tries."""
    return {"batch": largest(tried), "settled": False, "tried": tried}


def largest(tried: list[dict[str, Any]]) -> int | None:
    """The largest batch that fitted."""
    return max((each["batch"] for each in tried if each["reason"] is None), default=None)
