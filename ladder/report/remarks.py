"""Lines under a table that are made of the whole result: rungs that were not measured, and what lazy phases add."""

from __future__ import annotations

from ladder.base.protocol import CYCLE_STEPS
from ladder.base.text import plain
from ladder.plan import catalog, modes
from ladder.results import derive, sources
from ladder.results.types import ABSENT, Result, Round, RungResult

LAZY = {"G_pl": "path length", "D_r1": "R1"}


def part(result: Result) -> list[str]:
    """Name the ladder of the run, where only some of its rungs are shown."""
    return [f"these are rungs of a run of {plain(result.part_of)}"] if result.part_of else []


def unmeasured(result: Result, mode: str) -> list[str]:
    """Name the unmeasured rungs (`--rungs`) that a shown rung contains beside the one before it."""
    ladder, names = result.ladder.name, {rung.name for rung in result.rungs}
    if mode != modes.CUMULATIVE or ladder not in catalog.ladders():
        return []
    others = [rung.name for rung in catalog.load_ladder(ladder).rungs if rung.name not in names]
    # How many loaders there are depends on the machine, and this may be another machine.
    changes = {
        name: {k: v for k, v in catalog.load_rung(name).change.items() if k != "workers"} for name in others
    }
    lines, below = [], set[str]()
    for rung in result.rungs:
        recipe = rung.recipe
        if rung.status == "ok" and recipe is not None:
            there = [name for name in others if changes[name] and changes[name].items() <= recipe.items()]
            if more := [name for name in there if name not in below]:
                lines.append(f"part of {plain(rung.name)} and not measured here: {', '.join(more)}")
            below |= {*there}
    return lines


def lazy(rungs: list[RungResult]) -> list[str]:
    """Say how much lazy phases add to a step that has them, for the first and the last rung that know it."""
    lines = []
    found = {rung.name: costs for rung in rungs if (costs := derive.lazy_costs(rung))}
    for name in dict.fromkeys([*list(found)[:1], *list(found)[-1:]]):
        each = []
        for phase, (ms, interval) in sorted(found[name].items()):
            if ms <= 0 or (interval and interval[0] <= 0):
                each.append(f"what {LAZY.get(phase, phase)} adds is within the noise")
                continue
            around = f" ({interval[0]:.4g} to {interval[1]:.4g})" if interval else ""
            each.append(f"{LAZY.get(phase, phase)} adds {ms:.4g} ms{around} to a step that has it")
        lines.append(f"{plain(name)}: {', '.join(each)}")
    return lines


def duration(result: Result) -> list[str]:
    """Say how long a run of generations took, when its first table came, and in which share a cycle ran."""
    rounds = [made for each in sources.records(result) for made in each.rounds]
    if not result.seconds or not rounds:
        return []
    whole = result.protocol.mode != modes.MISTAKES  # which profiles a few steps in place of a cycle
    share = sum(_cycles_s(made, whole) for made in rounds) / result.seconds
    took = f"the run took {result.seconds / 60:.1f} minutes"
    if result.first_table_s is not ABSENT:
        took += f", its first table {result.first_table_s / 60:.1f}"
    return [f"{took}; cycles of a rung (drained, timed or profiled) ran in {100 * share:.0f}% of them"]


def _cycles_s(made: Round, whole: bool) -> float:
    """Return the seconds in which cycles of a process ran, one at a time; profiled ones if they were `whole`."""
    profiled = sum(cycle.wall_ms for cycle in made.profiled or ()) if whole else 0.0
    return (made.visit_s or 0) + (profiled + (made.main_ms or 0)) * CYCLE_STEPS / 1000
