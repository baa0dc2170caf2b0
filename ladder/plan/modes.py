"""The ways to lay out a run: `cumulative` (the staircase), `solo`, `leave-one-out`, and three beside one step.

The staircase depends on its order: eager BF16 shows nothing until CUDA graphs remove the launches. Mode `solo`
measures each rung alone on the baseline. Mode `leave-one-out` measures the whole ladder without each rung in turn. It
shows the rung's worth to a user of all the others, and gives ADOPT and SKIP.

The others are no ladders: each entry stands beside the first. `mistakes` and `levers` have entries of their own
(`ladder.plan.beside`), and `recipe` is a recipe of the user's beside the baseline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ladder.core.errors import UserError
from ladder.core.plain import Fields
from ladder.core.protocol import AMBIGUOUS, FASTER, LESS_THAN, NO_GAIN, SLOWER, TOO_FEW

if TYPE_CHECKING:  # measuring must not import the catalog: an old commit's stylegan_lite may lack its fields
    from ladder.plan import catalog

CUMULATIVE, SOLO, LEAVE_ONE_OUT = "cumulative", "solo", "leave-one-out"
MISTAKES, LEVERS, RECIPE = "mistakes", "levers", "recipe"
MODES = (CUMULATIVE, SOLO, LEAVE_ONE_OUT, MISTAKES, LEVERS)  # that `--mode` takes
STUDIES = (MISTAKES, LEVERS)  # of entries that are no rungs
BESIDE = (SOLO, MISTAKES, LEVERS, RECIPE)  # every entry is compared with the first
LONGEST = 60  # characters of a title
NEED_IT = " that need it"  # ends the title of an entry without several rungs
GPU, STEP = "GPU", "step"  # the clocks
ALL = "all"  # the entry of leave-one-out that has every rung
NO_DIFFERENCE = "NO DIFFERENCE"
ADVICE = {  # by verdict
    FASTER: "ADOPT",
    SLOWER: "SKIP",
    LESS_THAN: NO_DIFFERENCE,
    NO_GAIN: NO_DIFFERENCE,
    AMBIGUOUS: AMBIGUOUS,
    TOO_FEW: TOO_FEW,
}


def choose_clock(gpu: str, wall: str) -> str:
    """Return the clock that decides the advice, "" where none is sure."""
    sure = (FASTER, SLOWER)
    return STEP if wall in sure else GPU if gpu in sure else ""


def choose_advice(gpu: str, wall: str) -> str:
    """Return what to do about a rung, by the verdicts on the GPU's work and on the step; "" without either.

    A step that is surely faster or slower decides: a user gets that time. Else GPU time decides, which no host hides.
    No difference must hold for both.
    """
    sure = [ADVICE[word] for word in (wall, gpu) if word in (FASTER, SLOWER)]
    left = [ADVICE[word] for word in (gpu, wall) if word in ADVICE]
    return [*sure, *(each for each in left if each != NO_DIFFERENCE), *left, ""][0]


def plan_run(
    mode: str,
    ladder: catalog.Ladder,
    capabilities: dict[str, str | None],
    only: Iterable[str] | None = None,
    workload: Mapping[str, Any] | None = None,
) -> list[catalog.Planned]:
    """Return the rungs to measure, in order, the base of the ladder first. `only` picks rungs by name.

    Levers change fields of the `workload`.

    In `leave-one-out` the first is `all`, and each entry named after a rung is the whole ladder without that rung. It
    also lacks the rungs that extend it (a filter fused with the activation goes with the activation). And it lacks
    those that rest on it (parallel streams on CUDA graphs); its title names them. The base is not measured: no
    verdict asks for it.

    Raises:
        UserError: `only` names a rung that is not there, or a cumulative recipe is impossible.
    """
    from ladder.plan import beside, catalog
    from stylegan_lite.config import Recipe

    if mode in STUDIES:
        return beside.plan(mode, capabilities, only, workload)
    if mode == CUMULATIVE:
        return catalog.plan_climb(ladder, capabilities, only)
    ladder = dataclasses.replace(ladder, rival=None)  # the rival is no part of the whole
    chosen = {rung.name for rung in catalog.plan_climb(ladder, capabilities, only, alone=mode == SOLO)}
    base, *others = catalog.plan_climb(ladder, capabilities, alone=mode == SOLO)
    if base.recipe is None:
        raise UserError(f"--mode {mode}: {base.name} is n/a here: {base.skipped}")
    able = [rung.name for rung in [base, *others] if rung.recipe is not None]
    changes = {name: catalog.load_rung(name).change for name in able}
    picked, whole = [rung for rung in others if rung.name in chosen], _lay_changes(changes)
    entries = [base if mode == SOLO else catalog.Planned(ALL, "all rungs", whole, None, None)]
    if mode == LEAVE_ONE_OUT and not picked:
        raise UserError(f"--mode {mode}: {base.name} alone leaves nothing out; name another rung")
    for rung in picked:
        title = rung.title if mode == SOLO else f"without {rung.title}"
        if rung.recipe is None:
            entries.append(catalog.Planned(rung.name, title, None, rung.skipped, None))
            continue
        rest = {name: changes[name] for name in (base.name, rung.name)}
        if mode == LEAVE_ONE_OUT:
            rest = drop_rung(rung.name, changes)
            also = [catalog.load_rung(name).title for name in changes if name not in (*rest, rung.name)]
            longer = " and without ".join([title, *also])
            title = longer if len(longer) <= LONGEST else f"{title} and {len(also)}{NEED_IT}"
        recipe = _lay_changes(rest)
        if skipped := _find_impossible(recipe):
            skipped = f"impossible {'alone' if mode == SOLO else 'to leave out'}: {skipped}"
        elif mode == LEAVE_ONE_OUT and Recipe.from_dict(recipe) == Recipe.from_dict(whole):
            skipped = "nothing changes without it: the other rungs contain its change"
        entries.append(catalog.Planned(rung.name, title, None if skipped else recipe, skipped, None))
    return entries


def ladder_of(mode: str, ladder: catalog.Ladder) -> catalog.Ladder:
    """Return the ladder that a result of this mode names: a study has a title of its own."""
    from ladder.plan import beside

    if mode not in STUDIES:
        return ladder
    title = beside.load_beside(mode).title
    return dataclasses.replace(ladder, name=mode, title=title, reference=None, rival=None, digest=None)


def beside_baseline(
    fields: Fields, ladder: catalog.Ladder, name: str
) -> tuple[catalog.Ladder, list[catalog.Planned]]:
    """Return the ladder and the entries of mode `recipe`: the base of a ladder, and a recipe called `name`.

    Raises:
        UserError: the base cannot run here.
    """
    from ladder.plan import catalog, content

    base = ladder.rungs[0].name
    rung = catalog.load_rung(base)
    planned = [
        catalog.Planned(base, rung.title, dict(rung.change), None, None),
        catalog.Planned(RECIPE, f"the recipe {name}"[:LONGEST], fields, None, None),
    ]
    digest = content.digest_content(fields)
    return catalog.Ladder(RECIPE, "One recipe beside the baseline", ladder.rungs[:1], digest=digest), planned


def depends_on(
    mode: str, recipes: Mapping[str, Mapping[str, Any]], name: str, out: Collection[str]
) -> str | None:
    """Return the failed rung that keeps `name` from being measured, or None.

    On the staircase a rung contains the changes of those before it, so it depends on each of them that changes
    something. A number on top of a failed rung would belong to neither. The base changes nothing, so nothing depends
    on it. In the other modes every verdict is against the first entry (base, or `all`), so all entries depend on it.

    Args:
        recipes: the planned recipe of every entry that can run, in ladder order.
        name: the entry in question; a twin depends on the same rungs as its rung.
        out: the entries that are out: failed, out of memory, invalid, not engaged, outside the parity budget, skipped.
    """
    names = list(recipes)
    if name not in names:
        return None
    if mode != CUMULATIVE:
        return names[0] if names[0] in out and name != names[0] else None
    before: Mapping[str, Any] = {}
    for other in names[: names.index(name)]:
        change = {k: v for k, v in recipes[other].items() if k not in before or before[k] != v}
        if other in out and change and all(recipes[name].get(k) == v for k, v in change.items()):
            return other
        before = recipes[other]
    return None


def drop_rung(out: str, changes: dict[str, Fields]) -> dict[str, Fields]:
    """Return the changes without those of one rung, of rungs that join or extend it, and of rungs that rest on it.

    A recipe with a rung that extends a missing one is refused.
    """
    from ladder.plan import catalog

    rest: dict[str, Fields] = {}
    for name, change in changes.items():
        if name != out and out not in catalog.load_rung(name).rests_on:
            if not _find_impossible(_lay_changes(rest | {name: change})):
                rest[name] = change
    return rest


def _find_impossible(recipe: Fields) -> str | None:
    from stylegan_lite.config import ConfigError, Recipe

    try:
        Recipe.from_dict(recipe, where="it")
    except ConfigError as error:
        return str(error)
    return None


def _lay_changes(changes: dict[str, Fields]) -> Fields:
    return {key: value for change in changes.values() for key, value in change.items()}
