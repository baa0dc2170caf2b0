"""The work that fused kernels replaced, told from the profiles of stored results.

A category of ours that joins operations appears with a rung. The other categories that shrank with that rung held the
work before. So a fused category is shown against the sum of what they lost, if most of what grew there is its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.records import build
from ladder.plan import content
from ladder.receipts import categories
from ladder.results import loading, parts, ranking
from ladder.results.types import Plain
from ladder.studies.profile import schema
from ladder.studies.profile.record import Replaced, Result

Work = Mapping[str, float]  # ms of a step, by category
MOST = 0.5  # of what all categories gained at a rung: a category with less did not take the place of what others lost
LEAST = 0.05  # of what others lost: no kernel does their work in less, since its own bytes must still move


@dataclass(frozen=True)
class Known:
    """The profiles of rungs in their order, from one source."""

    source: str
    rungs: Sequence[tuple[str, Work]]


def replaced(known: Iterable[Known]) -> dict[str, Replaced]:
    """Return what each fused category replaced at the rung where it appears.

    The first source in which a category appears counts. A category that gained less than half of what all gained at
    that rung has no entry: others took the place of most of what was lost there. Neither has one that takes less than a
    twentieth of what was lost: the rung saved that elsewhere, as `joint_batch` does in convolutions.
    """
    found: dict[str, Replaced] = {}
    judged: set[str] = set()
    for source in known:
        for (_, before), (rung, after) in itertools.pairwise(source.rungs):
            new = [name for name in after if name.startswith(categories.FUSED) and not before.get(name)]
            gained = {name: max(0.0, ms - before.get(name, 0.0)) for name, ms in after.items()}
            lost = sum(max(0.0, ms - after.get(name, 0.0)) for name, ms in before.items())
            for name in set(new) - judged:
                if gained[name] >= max(MOST * sum(gained.values()), LEAST * lost):
                    found[name] = Replaced(
                        at=rung,
                        lost_ms=round(lost, 5),
                        fused_ms=round(after[name], 5),
                        source=source.source,
                    )
            judged |= set(new)
    return found


def of_ladders(folder: Path, machine: str, workload: Plain, ladder: str, rung: str) -> list[Known]:
    """Return the profiles up to a rung in this machine's stored runs of a ladder, the best run first."""
    wanted = content.of_workload(workload)
    found = []
    for path, result in ranking.stored(folder, [machine]):
        if ranking.mode(result) != ranking.CUMULATIVE or content.of_workload(result.workload) != wanted:
            continue
        rungs: list[tuple[str, Work]] = []
        for each in result.rungs:
            if seen := parts.parts_of(each):
                rungs.append((each.name, {name: work.ms for name, work in seen.work.items()}))
            if each.name == rung:
                break
        if len(rungs) > 1:
            standing = (result.ladder.name == ladder, rungs[-1][0] == rung, ranking.standing(result))
            found.append((standing, Known(path.name, rungs)))
    return [known for _, known in sorted(found, key=lambda each: each[0], reverse=True)]


def of_profiles(
    folder: Path, machine: str, workload: Plain, below: str | None, now: tuple[str, Work]
) -> list[Known]:
    """Return this machine's stored profile of the rung below, together with the profile that was made now."""
    if below is None:
        return []
    wanted, found = content.of_workload(workload), []
    for path in sorted(folder.glob(f"{machine}-*-{below}.json")):
        try:
            result = build(Result, loading.load_kind(path, schema.KIND))
        except UserError:
            continue
        if result.rung == below and content.of_workload(result.workload) == wanted:
            work = {each.name: each.ms for each in result.categories}
            found.append(Known(path.name, [(below, work), now]))
    return found
