"""The share of the CPU that other processes took while a rung was timed: all work less that of our process tree.

A step that waits for the CPU is slower beside them, by a factor of a hundred if every core is taken. Time that the
hypervisor took (steal) counts as theirs. In a container with a CPU quota only the processes that share it are seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.text import as_number

MOST = 0.15  # of the cores
LEAST_S = 0.05  # core seconds: less cannot be told from the clock's steps of 10 ms
KEY = "others_cpu"  # key of a round: a share of the cores, None if unknown
PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_IDLE = (3, 4)  # idle and iowait in a line of /proc/stat
_GUEST = 8  # columns after steal are in user and nice already


@dataclass(frozen=True)
class Sample:
    """Core seconds so far: of all processes, and of this process with all below it. `at` is in a clock's seconds."""

    at: float
    all_s: float
    own_s: float
    cores: float


def take_sample(at: float | None = None, pid: int | None = None) -> Sample | None:
    """Return the core seconds so far, `at` seconds of a clock; None if unknown (no /proc, say)."""
    at = time.perf_counter() if at is None else at
    try:
        tick = float(os.sysconf("SC_CLK_TCK"))
        own = _own_ticks(os.getpid() if pid is None else pid) / tick
        if (quota := _read_quota()) is not None:
            used, cores = quota
            return Sample(at, used, own, cores)
        ticks, cores = _all_ticks()
        return Sample(at, ticks / tick, own, cores)
    except (OSError, ValueError, IndexError, KeyError, AttributeError):
        return None


def derive_share(before: Sample | None, after: Sample | None) -> float | None:
    """Return the share of the cores, 0 to 1, that others took between two samples; None if unknown."""
    if before is None or after is None or before.cores != after.cores:
        return None
    room = (after.at - before.at) * after.cores
    everything, own = after.all_s - before.all_s, after.own_s - before.own_s
    if room < LEAST_S or everything < 0.5 * own - LEAST_S or everything <= 0:
        return None  # too short; or a /proc without figures of the CPU, as in some sandboxes
    return min(1.0, max(0.0, everything - max(0.0, own)) / room)


def average_rounds(rounds: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the share over all visits, each weighted by its duration; None if no visit knows it."""
    known = [
        (value, as_number(each.get("visit_s"), zero=True) or 1e-9)
        for each in rounds
        if (value := as_number(each.get(KEY), zero=True)) is not None
    ]
    whole = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / whole if known else None


def list_marks(rounds: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line if others took too much of the CPU to publish these rounds, else an empty list."""
    share = average_rounds(rounds)
    if share is None or share <= MOST:
        return []
    return [f"noisy: not publishable: others took {100 * share:.0f} percent of the CPU: run again when idle"]


def _all_ticks() -> tuple[int, int]:
    """Return (busy ticks, number of cores) of the cores that this process may use."""
    mine = os.sched_getaffinity(0)
    ticks = {}
    for line in (PROC / "stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in mine:
            counted = list(map(int, numbers))[:_GUEST]
            ticks[name] = sum(value for place, value in enumerate(counted) if place not in _IDLE)
    if not ticks:
        raise ValueError("no core of ours is listed")
    return sum(ticks.values()), len(ticks)


def _read_quota() -> tuple[float, float] | None:
    """Return (core seconds used, cores of the quota) of this container; None without a quota below its cores."""
    try:
        limit, period = (CGROUP / "cpu.max").read_text().split()
        if limit == "max" or int(limit) >= int(period) * len(os.sched_getaffinity(0)):
            return None
        counters = dict(line.split() for line in (CGROUP / "cpu.stat").read_text().splitlines())
        return int(counters["usage_usec"]) / 1e6, int(limit) / int(period)
    except (OSError, ValueError, KeyError):
        return None


def _own_ticks(root: int) -> int:
    """Return the ticks of a process and all below it, including children that ended and were waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    if root not in ticks:
        raise ValueError("this process is not listed")
    whole, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        whole += ticks[pid]
        waiting += children.get(pid, [])
    return whole
