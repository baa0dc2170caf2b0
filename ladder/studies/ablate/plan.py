"""The plan of `ladder ablate`: which subsets of a ladder's rungs are measured.

A ladder of at most seven changes is measured in every subset that `Recipe` and `rests_on` allow. A longer one is
measured at its ends, without each rung, and without each two of the five rungs that save most.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ladder.base.errors import UserError
from ladder.base.plain import Fields
from ladder.machine import system
from ladder.plan import catalog, modes, needs
from ladder.results.types import Plain
from ladder.stats.shapley import NOTHING, Subset
from ladder.studies.ablate.record import MOST_RUNGS
from stylegan_lite.config import ConfigError, Recipe, Workload

LARGEST = 5  # rungs of a longer ladder that are left out in pairs
TENTH, LEAST_AGAIN = 10, 3  # of the subsets, and how many at least, are measured again in fresh processes


@dataclass(frozen=True)
class Plan:
    """The user's request: rungs that change something and run here, in the order of the ladder, with their changes."""

    name: str
    workload: Plain
    device: str
    ladder: str
    base: Fields  # the change of the lowest rung, which is in every subset
    changes: dict[str, Fields]
    skipped: dict[str, str]  # rungs that cannot run here, and why
    seed: int = 0
    minutes: float | None = None

    @property
    def rungs(self) -> tuple[str, ...]:
        return tuple(self.changes)

    @property
    def everything(self) -> Subset:
        return frozenset(self.changes)

    @property
    def whole(self) -> bool:
        """Return whether every allowed subset is measured."""
        return len(self.changes) <= MOST_RUNGS

    def laid(self, subset: Subset) -> Fields:
        """Return the changed fields of a subset's recipe, laid in the order of the ladder, as `climb` does."""
        laid = dict(self.base)
        for name, change in self.changes.items():
            laid |= change if name in subset else {}
        return laid

    def recipe(self, subset: Subset) -> Fields:
        """Return all fields of a subset's recipe. Raises ConfigError if it is impossible."""
        return Recipe.from_dict(self.laid(subset), where="it").to_dict()


def make(
    name: str, workload: Plain, device: str, ladder_name: str, seed: int = 0, minutes: float | None = None
) -> Plan:
    """Return the plan for a ladder. Raises UserError if fewer than two of its rungs can run here."""
    ladder = catalog.load_ladder(ladder_name)
    able = needs.possible(system.capabilities(device), workload)
    climbed = catalog.climb(replace(ladder, rival=None), able)
    base, *rest = [rung for rung in climbed if rung.recipe is not None]
    changes = {rung.name: catalog.load_rung(rung.name).change for rung in rest}
    skipped = {rung.name: rung.skipped for rung in climbed if rung.skipped is not None}
    if len(changes) < 2:
        raise UserError(f"ladder {ladder.name}: fewer than two of its rungs run here: nothing to take apart")
    return Plan(
        name, workload, device, ladder.name, catalog.load_rung(base.name).change, changes, skipped, seed, minutes
    )  # fmt: skip


def allowed(plan: Plan, subset: Subset) -> bool:
    """Return whether the recipe of a subset is possible, and has all that each rung in it rests on."""
    for name in subset:
        needed = catalog.load_rung(name).rests_on
        if any(each in plan.changes and each not in subset for each in needed):
            return False
    try:
        made = Recipe.from_dict(plan.recipe(subset))
        made.refuse_on(plan.device)
        made.refuse_for(Workload.from_dict(plan.workload | {"data": None}))
    except ConfigError:
        return False
    return True


def subsets(plan: Plan, savings: Mapping[str, float] | None = None) -> list[Subset]:
    """Return the subsets to measure, in order: the ends first, then the others by chance, so that drift is noise.

    Args:
        savings: of a longer ladder, what each rung saves when it alone is left out; None as long as that is unknown.
    """
    ends = [plan.everything, NOTHING]
    if plan.whole:
        found = [
            frozenset(names)
            for size in range(1, len(plan.rungs))
            for names in itertools.combinations(plan.rungs, size)
        ]
        rest = [subset for subset in found if allowed(plan, subset)]
        random.Random(plan.seed).shuffle(rest)
    else:
        rest = list(outs(plan, savings))
    return list(dict.fromkeys([*ends, *rest]))


def outs(plan: Plan, savings: Mapping[str, float] | None = None) -> dict[Subset, tuple[str, ...]]:
    """Return, of a longer ladder, the subsets with the rungs that were to be left out: one each, then two.

    A rung whose change the others contain is not there, because nothing changes without it.
    """
    names: list[tuple[str, ...]] = [(name,) for name in plan.rungs]
    random.Random(plan.seed).shuffle(names)
    names += itertools.combinations(largest(savings), 2) if savings is not None else ()
    whole, found = plan.recipe(plan.everything), {}
    for each in names:
        if plan.recipe(kept := left_out(plan, *each)) != whole:
            found.setdefault(kept, each)
    return found


def largest(savings: Mapping[str, float]) -> list[str]:
    """Return the rungs that save most, the first the most."""
    return sorted(savings, key=lambda name: -savings[name])[:LARGEST]


def left_out(plan: Plan, *names: str) -> Subset:
    """Return all rungs without some, and without those that extend or rest on them."""
    kept = plan.changes
    for name in names:
        kept = modes.without(name, kept) if name in kept else kept
    return frozenset(kept)


def again(plan: Plan, measured: Sequence[Subset]) -> list[Subset]:
    """Return the subsets to repeat in fresh processes: a tenth of those that were measured, three at least."""
    wanted = max(LEAST_AGAIN, -(-len(measured) // TENTH))
    names = sorted(measured, key=lambda subset: (len(subset), sorted(subset)))
    return random.Random(plan.seed + 1).sample(names, min(wanted, len(names)))
