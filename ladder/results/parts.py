"""The parts of a profiled step: milliseconds and launches by category, and how two steps differ. Pure functions.

Nothing here imports numpy or torch: `ladder show` reads parts, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ladder.base.text import plain
from ladder.receipts import categories, kernel_families
from ladder.results.types import ABSENT, Absent, KernelFamily, KernelProfile, Round

ROUNDED = 0.002  # ms: every part of a profile is rounded, and there are at most 200
SHOWN = 3  # kernels that a line names
REST = " other kernels"  # the end of the row for all kernels beside the heaviest
MOST = 4  # parts that a sentence names
LEAST = 0.1  # of the largest part: smaller ones are told as the rest
OVERLAP = "overlap of kernels"


@dataclass(frozen=True)
class Work:
    """The GPU's work of one category in a step: milliseconds and launches."""

    ms: float = 0.0
    launches: float = 0.0


@dataclass(frozen=True)
class Parts:
    """The parts of a step in the profiled cycle of one process."""

    gpu_ms: float  # union over all streams, of that cycle
    generation: int  # of the process, from 0
    work: Mapping[str, Work]  # by category; all milliseconds of its kernels
    own: (
        Mapping[str, Work] | None
    )  # the same without what counts for others: together gpu_ms; None in older files
    kernels: Mapping[str, float]  # ms of the heaviest kernels by name
    ours: frozenset[str]  # names of all kernels of ours, the short ones, too
    unlisted_ms: float  # a kernel that is not listed takes at most so many ms

    @property
    def overlap_ms(self) -> float:
        """The milliseconds that `work` counts twice, because two kernels ran at the same time."""
        return sum(each.ms for each in self.work.values()) - self.gpu_ms

    @property
    def shown(self) -> Mapping[str, Work]:
        """The categories as they are shown: together they are the GPU time where the file tells so."""
        return self.own or self.work

    @property
    def named_earlier(self) -> bool:
        """Whether names are those of before 26 November 2026, which were cut and had other words of templates."""
        longest = max(map(len, self.kernels), default=0)  # a longer name than 60 characters was not cut there
        return longest == 60 or any("(" in name or name.endswith(" ") for name in self.kernels)

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


class Profiled(Protocol):
    """A rung's rounds, with the profile of the first that has one."""

    @property
    def rounds(self) -> list[Round]: ...

    @property
    def profile(self) -> KernelProfile | Absent | None: ...


def parts_of(rung: Profiled) -> Parts | None:
    """Return the parts of a rung's profiled step, or None without a profile.

    The profile is that of the first cycle of the first process that has one. The union of kernels is never longer than
    their sum, so a profile that is shorter than its cycle belongs to another one. Its parts are None, too. So are those
    of a process whose GPU time is void.
    """
    first = next((each for each in rung.rounds if each.profiled), None)
    if not rung.profile or first is None or not first.profiled or first.gpu_void:
        return None
    rows, gpu_ms = rung.profile.families, first.profiled[0].gpu_ms
    known = [family.own_ms for family in rows if family.own_ms not in (None, ABSENT)]
    work = _by_category(rows, [family.ms for family in rows])
    told = len(known) == len(rows) and abs(sum(known) - gpu_ms) <= ROUNDED
    own = _by_category(rows, known) if told else None
    kernels, unlisted = _heaviest(rung.profile.kernels)
    prefixes = kernel_families.OURS, kernel_families.OURS_CPP
    ours = frozenset(row.name.split(": ", 1)[1] for row in rows if row.name.startswith(prefixes))
    found = Parts(gpu_ms, first.round, work, own, kernels, ours, unlisted)
    return found if found.overlap_ms >= -ROUNDED else None


def by_family(rung: Profiled, once: bool) -> dict[str, float]:
    """Return ms of a rung's profile by family; with `once` only what counts for no other, where the file tells it."""
    rows = rung.profile.families if rung.profile else []
    return {row.name: row.own_ms if once and row.own_ms not in (None, ABSENT) else row.ms for row in rows}


def _by_category(rows: list[KernelFamily], ms: list[float]) -> dict[str, Work]:
    made: dict[str, Work] = {}
    for family, took in zip(rows, ms, strict=True):
        name = categories.category(family.name)
        had = made.get(name, Work())
        made[name] = Work(had.ms + took, had.launches + family.launches)
    return made


def _heaviest(rows: list[KernelFamily]) -> tuple[dict[str, float], float]:
    """Return the listed kernels' ms by name, and how long an unlisted kernel may take at most."""
    listed = {row.name: row.ms for row in rows if not row.name.endswith(REST)}
    return listed, min(listed.values(), default=0.0) if len(listed) < len(rows) else 0.0


def once(before: Parts, after: Parts) -> bool:
    """Return whether each instant of both steps counts for one category. Older files count it for each kernel."""
    return before.own is not None and after.own is not None


def changes(before: Parts, after: Parts) -> list[Change]:
    """Return every category of two steps, the largest change first, counted in one way."""
    was, now = (before.shown, after.shown) if once(before, after) else (before.work, after.work)
    names = dict.fromkeys([*was, *now])
    rows = [Change(name, was.get(name, Work()), now.get(name, Work())) for name in names]
    return sorted(rows, key=lambda row: -abs(row.ms))


def appeared(before: Parts, after: Parts) -> dict[str, float]:
    """Return ms by name of the second step's kernels that the first lacks, the heaviest first.

    A kernel counts only if the first step's list of the heaviest would show a kernel of that length. Of steps that are
    named in two ways none counts.
    """
    if before.named_earlier != after.named_earlier:
        return {}
    new = {
        name: ms
        for name, ms in after.kernels.items()
        if name not in before.kernels and name.split(" ")[0] not in before.ours and ms > before.unlisted_ms
    }
    return dict(sorted(new.items(), key=lambda each: -each[1]))


def came_and_went(before: Parts, after: Parts) -> list[str]:
    """Return a line on the kernels that appeared and one on those that went, with the heaviest; none without any."""
    lines = []
    for said, names in (("appeared", appeared(before, after)), ("went", appeared(after, before))):
        told = [f"{plain(name)} {ms:.2f} ms" for name, ms in list(names.items())[:SHOWN]]
        told += [f"{len(names) - SHOWN} more"] * (len(names) > SHOWN)
        lines += [f"kernels that {said}: {', '.join(told)}"] * bool(told)
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
    said = [f"{plain(row.category)} {row.ms:+.2f} ms" for row in named]
    return ", ".join([*said, *([f"the rest {rest:+.2f} ms"] if abs(rest) >= 0.005 else [])])
