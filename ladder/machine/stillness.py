"""Waiting until a process and its children use no CPU: a visit that has just ended must not disturb the next one."""

from __future__ import annotations

import time
from pathlib import Path

PROC = Path("/proc")
QUIET_S = 0.1  # without CPU time
LIMIT_S = 2.0
_POLL_S = 0.02


def wait_until_still(group: int, quiet_s: float = QUIET_S, limit_s: float = LIMIT_S) -> float | None:
    """Return the seconds until a process group's CPU time stood still for `quiet_s`; None if it never did.

    Without /proc the wait is over at once.
    """
    members = _members(group)
    begin = changed = time.monotonic()
    before = _ticks(members)
    while members and before is not None:
        time.sleep(_POLL_S)
        now, ticks = time.monotonic(), _ticks(members)
        if ticks != before:
            before, changed = ticks, now
        if now - changed >= quiet_s:
            return changed - begin
        if now - begin > limit_s:
            return None
    return 0.0


def _members(group: int) -> list[Path]:
    """Return the stat files of a process group's processes."""
    paths = []
    try:
        for path in PROC.glob("[0-9]*/stat"):
            try:
                if int(_fields(path)[2]) == group:
                    paths.append(path)
            except (OSError, ValueError, IndexError):
                continue  # it has just ended
    except OSError:
        return []
    return paths


def _ticks(members: list[Path]) -> int | None:
    """Return the CPU time of these processes in the clock's ticks, None if none of them runs any more."""
    ticks = []
    for path in members:
        try:
            fields = _fields(path)
            ticks.append(int(fields[11]) + int(fields[12]))
        except (OSError, ValueError, IndexError):
            continue
    return sum(ticks) if ticks else None


def _fields(path: Path) -> list[str]:
    """Return the fields after the command, which may hold spaces and brackets."""
    return path.read_text(errors="replace").rpartition(")")[2].split()
