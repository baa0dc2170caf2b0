"""Communication between GPUs in a profiled trace: how long it takes, and how much of that nothing hides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypedDict

from ladder.receipts.spans import union

BETWEEN = 3  # other kernels that begin in between make another burst
PATTERN = re.compile(r"nccl|Memcpy PtoP", re.IGNORECASE)

Event = tuple[str, bool, int, int, int]  # as `ladder.receipts.traces.events` gives them


class Communication(TypedDict):
    """Communication of a step. A kernel that waits for a slower rank counts as communication, too."""

    comm_ms: float  # the union of NCCL's kernels and of copies between GPUs
    exposed_ms: float  # the part of it in which nothing else ran on this GPU
    comm_bursts: float  # how often it begins after other kernels


def is_communication(name: str) -> bool:
    """Return whether a kernel or copy, by its name, moves data between GPUs."""
    return PATTERN.search(name) is not None


def communication(ran: Iterable[Event], steps: int) -> Communication:
    """Return the communication of one step, from the kernels and copies of `steps` steps of one GPU."""
    ours: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    bursts, since = 0, BETWEEN
    for name, _, _, begin, end in sorted(ran, key=lambda event: event[3]):
        if is_communication(name):
            bursts, since = bursts + (since >= BETWEEN), 0
            ours.append((begin, end))
        else:
            since += 1
            others.append((begin, end))
    exposed = union([*ours, *others]) - union(others)
    unit = 1e6 * steps
    return {"comm_ms": union(ours) / unit, "exposed_ms": exposed / unit, "comm_bursts": bursts / steps}
