"""Waiting until a process and its children use no CPU: a visit that has just ended must not disturb the next one."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
QUIET_S = 0.1  # without CPU time
LIMIT_S = 2.0
_POLL_S = 0.02


def wait_until_still(group: int, quiet_s: float = QUIET_S, limit_s: float = LIMIT_S) -> float | None:
    """Return the seconds until a process group's CPU time stood still for `quiet_s`; None if it never did.

    Without /proc the wait is over at once.
    """
    begin = changed = time.monotonic()
    members = [path for path, fields in _read_all(list(PROC.glob("[0-9]*/stat"))) if int(fields[2]) == group]
    before = [fields[11:13] for _, fields in _read_all(members)]  # ticks of user and system time
    while before:
        time.sleep(_POLL_S)
        now, ticks = time.monotonic(), [fields[11:13] for _, fields in _read_all(members)]
        if ticks != before:
            before, changed = ticks, now
        if now - changed >= quiet_s:
            return changed - begin
        if now - begin > limit_s:
            return None
    return 0.0


def _read_all(paths: list[Path]) -> list[tuple[Path, list[str]]]:
    """Return the fields after the command, which may hold spaces and brackets, of each process that still runs."""
    rows = []
    for path in paths:
        with suppress(OSError):
            rows.append((path, path.read_text(errors="replace").rpartition(")")[2].split()))
    return rows
