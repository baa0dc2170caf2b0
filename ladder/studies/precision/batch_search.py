"""The search for the largest batch that fits. Each try costs seconds; the only side effects are the callbacks'."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ladder.results.types import Plain
from ladder.studies.precision.record import Largest, Try

LARGEST = 2**15


def search(
    fits: Callable[[int], str | None],
    start: int,
    group: int,
    limit_s: float,
    most: int = LARGEST,
    clock: Callable[[], float] = time.monotonic,
    tried: list[Try] | None = None,
) -> Largest:
    """Find the largest batch: double, then bisect to a sixteenth or to one group.

    Args:
        fits: returns None where a batch fits, else one line that says why not.
        start, group: the first batch, and the number that each batch is a multiple of.
        limit_s, most: no try begins after `limit_s` seconds, nor above the batch `most`.
        tried: the tries of an interrupted search, to continue. New tries are appended in place, so an interrupt keeps
            them (`cut_short`).

    Returns:
        The largest batch that fitted, whether the search finished, and the tries in order.
    """
    begin, tried = clock(), [] if tried is None else tried
    before = len(tried)

    def try_(batch: int) -> bool:
        tried.append(Try(batch=batch, reason=fits(batch)))
        return tried[-1].reason is None

    def in_time() -> bool:
        return len(tried) == before or clock() - begin < limit_s

    low = largest(tried)
    high = min((each.batch for each in tried if each.reason is not None), default=None)
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
    return Largest(batch=low, settled=settled, tried=tried)


def first(batch: int, used: float, room: float | None, most: int = LARGEST) -> int:
    """Return the first batch to try: `batch`, doubled while half of the memory should suffice.

    Args:
        used, room: memory in use at `batch`, and all memory, in one unit. 0 or None if it is not known.
    """
    while used and room and 2 * 2 * used < room and 2 * batch <= most:
        batch, used = 2 * batch, 2 * used
    return batch


def group_of(workload: Plain, recipe: Plain) -> int:
    """Return the number that each batch must be a multiple of: whole minibatch-std groups in each micro-batch."""
    return int(workload["mbstd_group"]) * int(recipe.get("micro_batches", 1))


def cut_short(tried: list[Try]) -> Largest:
    """Return the result of a `search` whose time was over after these tries."""
    return Largest(batch=largest(tried), settled=False, tried=tried)


def largest(tried: Iterable[Try]) -> int | None:
    """Return the largest batch that fitted, or None."""
    return max((each.batch for each in tried if each.reason is None), default=None)
