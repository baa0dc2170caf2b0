"""The parts of a profiled step: milliseconds and launches by category, and how two steps differ. Pure functions.

Nothing here imports numpy or torch: `ladder show` reads parts, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ladder.core.text import clean_line
from ladder.receipts import categories, kernel_families
from ladder.results.file import KernelFamily

ROUNDED = 0.002  # ms: every part of a profile is rounded, and there are at most 200
SHOWN = 3  # kernels that a line names
REST = " other kernels"  # the end of the row for all kernels beside the heaviest
MOST = 4  # parts that a sentence names
LEAST = 0.1  # of the largest part: smaller ones belong to the rest
OVERLAP = "overlap of kernels"


@dataclass(frozen=True)
class Work:
    """The GPU's work of one category in a step: milliseconds and launches."""

    ms: float = 0.0
    launches: float = 0.0


@dataclass(frozen=True)
class Parts:
    """The parts of a step in the profiled cycle of one process."""

    gpu_ms: float  # the union of kernels over all streams, of that cycle
    generation: int  # of the process, from 0
    work: Mapping[str, Work]  # by category, with all milliseconds of its kernels
    own: Mapping[str, Work] | None  # without what counts for others, together `gpu_ms`; None in older files
    kernels: Mapping[str, float]  # ms of the heaviest by name
    ours: frozenset[str]  # names of all kernels of ours, the short ones, too
    unlisted_ms: float  # the most that a kernel takes that is not listed

    @property
    def overlap_ms(self) -> float:
        """The milliseconds that `work` counts twice, because two kernels ran at the same time."""
        return sum(each.ms for each in self.work.values()) - self.gpu_ms

    @property
    def shown(self) -> Mapping[str, Work]:
        """The categories as they are shown: together they are the GPU time where the file has it."""
        return self.own or self.work

    @property
    def launches(self) -> float:
        """The kernels and copies of a step."""
        return sum(each.launches for each in self.work.values())


@dataclass(frozen=True)
class Change:
    """One category in two steps."""

    category: str
    before: Work
    after: Work

    @property
    def ms(self) -> float:
        """The milliseconds that the second step has more of it."""
        return self.after.ms - self.before.ms


def parts_of(rung: Any) -> Parts | None:
    """Return the parts of a rung's profiled step, or None without a profile. A rung has `rounds` and `profile`.

    The profile is that of the first cycle of the first process that has one; if its GPU time is void, there are none.
    The union of kernels is never longer than their sum, so a shorter profile belongs to another cycle.
    """
    first = next((each for each in rung.rounds if each.profiled), None)
    if not rung.profile or first is None or first.gpu_void:
        return None
    rows, gpu_ms = rung.profile.families, first.profiled[0].gpu_ms
    own = [(row, row.own_ms) for row in rows if row.own_ms is not None]
    is_whole = len(own) == len(rows) and abs(sum(ms for _, ms in own) - gpu_ms) <= ROUNDED
    kernels = {row.name: row.ms for row in rung.profile.kernels if not row.name.endswith(REST)}
    prefixes = kernel_families.OURS, kernel_families.OURS_CPP
    parts = Parts(
        gpu_ms=gpu_ms,
        generation=first.round,
        work=_sum_categories((row, row.ms) for row in rows),
        own=_sum_categories(own) if is_whole else None,
        kernels=kernels,
        ours=frozenset(row.name.split(": ", 1)[1] for row in rows if row.name.startswith(prefixes)),
        unlisted_ms=min(kernels.values(), default=0.0) if len(kernels) < len(rung.profile.kernels) else 0.0,
    )
    return parts if parts.overlap_ms >= -ROUNDED else None


def by_family(rung: Any, once: bool) -> dict[str, float]:
    """Return ms of a rung's profile by family; with `once` only what counts for no other, where the file has it."""
    rows = rung.profile.families if rung.profile else []
    return {row.name: row.own_ms if once and row.own_ms is not None else row.ms for row in rows}


def _sum_categories(rows: Iterable[tuple[KernelFamily, float]]) -> dict[str, Work]:
    sums: dict[str, Work] = {}
    for family, ms in rows:
        name = categories.name_category(family.name)
        before = sums.get(name, Work())
        sums[name] = Work(before.ms + ms, before.launches + family.launches)
    return sums


def once(before: Parts, after: Parts) -> bool:
    """Return whether each instant of both steps counts for one category. Older files count it for each kernel."""
    return before.own is not None and after.own is not None


def changes(before: Parts, after: Parts) -> list[Change]:
    """Return every category of two steps, the largest change first, counted in one way."""
    was, now = (before.shown, after.shown) if once(before, after) else (before.work, after.work)
    rows = [
        Change(name, was.get(name, Work()), now.get(name, Work())) for name in dict.fromkeys([*was, *now])
    ]
    return sorted(rows, key=lambda row: -abs(row.ms))


def appeared(before: Parts, after: Parts) -> dict[str, float]:
    """Return ms by name of the second step's kernels that the first lacks, the heaviest first.

    A kernel counts only if the first step's list of the heaviest would show a kernel of that length.
    """
    known = {*before.kernels}
    rows = sorted(after.kernels.items(), key=lambda each: -each[1])
    return {
        n: ms
        for n, ms in rows
        if n not in known and n.split(" ")[0] not in before.ours and ms > before.unlisted_ms
    }


def came_and_went(before: Parts, after: Parts) -> list[str]:
    """Return a line on the kernels that appeared and one on those that went, with the heaviest; none without any."""
    lines = []
    for word, kernels in (("appeared", appeared(before, after)), ("went", appeared(after, before))):
        named = [f"{clean_line(name)} {ms:.2f} ms" for name, ms in list(kernels.items())[:SHOWN]]
        named += [f"{len(kernels) - SHOWN} more"] if len(kernels) > SHOWN else []
        lines += [f"kernels that {word}: {', '.join(named)}"] if named else []
    return lines


def made_of(before: Parts, after: Parts, most: int = MOST) -> str:
    """Return what a difference is made of: `elementwise -6.25 ms, reductions -2.42 ms, the rest +0.10 ms`.

    At most `most` categories are named. All numbers together are the difference of GPU time. Older files count two
    kernels at once twice, and what is subtracted for that is a part, too.
    """
    rows = changes(before, after)
    if not once(before, after):
        rows.append(Change(OVERLAP, Work(-before.overlap_ms), Work(-after.overlap_ms)))
        rows.sort(key=lambda row: -abs(row.ms))
    named = [row for row in rows[:most] if row.ms and abs(row.ms) >= LEAST * abs(rows[0].ms)]
    rest = after.gpu_ms - before.gpu_ms - sum(row.ms for row in named)
    words = [f"{clean_line(row.category)} {row.ms:+.2f} ms" for row in named]
    return ", ".join([*words, *([f"the rest {rest:+.2f} ms"] if abs(rest) >= 0.005 else [])])
