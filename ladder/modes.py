"""Three ways to lay out a ladder: `cumulative` (the staircase), `solo`, `leave-one-out`.

The staircase depends on its order: eager BF16 shows nothing until CUDA graphs remove the launches. `solo` measures each
rung alone on the baseline; `leave-one-out` measures the whole ladder without each rung in turn, which says what the
rung is worth to whoever takes all the others, and is where ADOPT and SKIP come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ladder import verdicts
from ladder.errors import UserError

if (
    TYPE_CHECKING
):  # measuring must not import the catalog: an old commit's stylegan_lite may not have its fields
    from ladder import catalog

CUMULATIVE, SOLO, LEAVE_ONE_OUT = "cumulative", "solo", "leave-one-out"
MODES = (CUMULATIVE, SOLO, LEAVE_ONE_OUT)
ALL = "all"  # the entry of leave-one-out that nothing is left out of
ADVICE = {
    verdicts.FASTER: "ADOPT",
    verdicts.SLOWER: "SKIP",
    verdicts.NO_GAIN: "NO DIFFERENCE",
    verdicts.AMBIGUOUS: "ambiguous",
}


def plan(
    mode: str, ladder: catalog.Ladder, capabilities: dict[str, str | None], only: Iterable[str] | None = None
) -> list[catalog.Planned]:
    """What is measured, in order; `only` picks rungs by name. The first is the base of the ladder.

    In `leave-one-out` the second is `all`, and an entry named after a rung is the whole ladder without it.

    Raises:
        UserError: `only` names a rung that is not there, or a cumulative recipe is impossible.
    """
    from ladder import catalog

    climbed = catalog.climb(ladder, capabilities, only)
    if mode == CUMULATIVE:
        return climbed
    whole = catalog.climb(ladder, capabilities)
    base, chosen = whole[0], {rung.name for rung in climbed}
    if base.recipe is None:
        raise UserError(f"--mode {mode}: {base.name} is n/a here: {base.skipped}")
    changes = {rung.name: catalog.load_rung(rung.name).change for rung in whole if rung.recipe is not None}
    planned = [base]
    if mode == LEAVE_ONE_OUT:
        planned.append(catalog.Planned(ALL, "all rungs", _laid(changes), None, None))
    for rung in whole[1:]:
        if rung.name in chosen:
            planned.append(_one(mode, rung, base.name, changes))
    return planned


def _one(mode: str, rung: catalog.Planned, base: str, changes: dict[str, dict]) -> catalog.Planned:
    """One rung alone, or all but it."""
    from ladder import catalog
    from stylegan_lite.config import ConfigError, Recipe

    title = rung.title if mode == SOLO else f"without {rung.title}"
    if rung.recipe is None:
        return catalog.Planned(rung.name, title, None, rung.skipped, None)
    if mode == SOLO:
        recipe = _laid({name: changes[name] for name in (base, rung.name)})
    else:
        recipe = _laid({name: change for name, change in changes.items() if name != rung.name})
    try:
        Recipe.from_dict(recipe, where="it")
    except ConfigError as error:
        reason = f"impossible {'alone' if mode == SOLO else 'to leave out'}: {error}"
        return catalog.Planned(rung.name, title, None, reason, None)
    return catalog.Planned(rung.name, title, recipe, None, None)


def _laid(changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    recipe: dict[str, Any] = {}
    for change in changes.values():
        recipe |= change
    return recipe
