"""The search for the largest batch that fits: double, then bisect. Each try costs seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from ladder.core.records import Count, Fields, Line, Record, size_between

LARGEST = 2**15


class Try(Record):
    """A batch, and the reason why it does not fit; None where it fits."""

    batch: Count
    reason: Line | None = None


class Search(Record):
    """The tries in order. More than the largest batch may fit where the search is not settled."""

    settled: bool
    tried: Annotated[list[Try], size_between(200)]

    def find_batch(self) -> int | None:
        """Return the largest batch that fitted, or None."""
        return max((each.batch for each in self.tried if each.reason is None), default=None)


def search(
    fits: Callable[[int], str | None],
    start: int,
    group: int,
    limit_s: float,
    most: int = LARGEST,
    clock: Callable[[], float] = time.monotonic,
) -> Search:
    """Find the largest batch: double, then bisect to a sixteenth or to one group.

    Args:
        fits: returns None where a batch fits, else one line that says why not.
        start, group: the first batch, and the number that each batch is a multiple of.
        limit_s, most: no try begins after `limit_s` seconds, nor above the batch `most`.
    """
    begin, tried = clock(), list[Try]()

    def fits_in(batch: int) -> bool:
        tried.append(Try(batch, fits(batch)))
        return tried[-1].reason is None

    def in_time() -> bool:
        return not tried or clock() - begin < limit_s

    low, high, batch = 0, None, start
    while high is None and batch <= most and in_time():
        if fits_in(batch):
            low, batch = batch, 2 * batch
        else:
            high = batch
    settled = high is not None
    while high is not None and high - low > max(group, low // 16):
        middle = (low + high) // 2 // group * group
        if middle in (low, 0) or not (settled := in_time()):
            break
        if fits_in(middle):
            low = middle
        else:
            high = middle
    return Search(settled, tried)


def first(batch: int, used: float, room: float | None, most: int = LARGEST) -> int:
    """Return the first batch to try: `batch`, doubled while half of the memory should suffice.

    Args:
        used, room: memory in use at `batch`, and all memory, in one unit. 0 or None if it is not known.
    """
    while used and room and 2 * 2 * used < room and 2 * batch <= most:
        batch, used = 2 * batch, 2 * used
    return batch


def group_of(workload: Fields, recipe: Fields) -> int:
    """Return the number that each batch must be a multiple of: whole minibatch-std groups in each micro-batch."""
    return int(workload.get("mbstd_group", 1)) * int(recipe.get("micro_batches", 1))
