"""Lines around a table that are made of the whole result: its heading, unmeasured rungs, what lazy phases add."""

from __future__ import annotations

from ladder.base import text
from ladder.base.protocol import CYCLE_STEPS
from ladder.base.text import at_commits, counted, plain
from ladder.plan import catalog, modes
from ladder.results import derive, sources
from ladder.results.file import Machine, Round
from ladder.results.run import Result, RungResult
from ladder.results.types import Plain, head

LAZY = {"G_pl": "path length", "D_r1": "R1"}


def machine(machine: Machine) -> str:
    """Return the hardware and the software in a line."""
    parts = [machine.gpu or machine.cpu]
    if machine.gpu:
        parts.append(f"{machine.gpu_memory_gb:.0f} GiB" if machine.gpu_memory_gb else "")
    else:
        parts.append(counted(machine.cores, "core"))
    parts.append(f"PyTorch {machine.torch}" if machine.torch else "")
    parts.append(f"CUDA {machine.cuda}" if machine.cuda else "")
    return plain(", ".join(part for part in parts if part))


def workload(workload: Plain) -> str:
    """Return the name and the size of a workload in a line."""
    resolution, batch = workload.get("resolution"), workload.get("batch")
    norms = f"{workload.get('norm')}{', spectral norm' if workload.get('spectral_norm') else ''}"
    return plain(f"{workload['name']}: {resolution}x{resolution}, batch {batch}, {norms}")


def protocol(result: Result) -> str:
    """Return how a result was measured, when, and of which code."""
    at = at_commits(sources.commits(head(result)), result.dirty)
    at += ", " if at else ""
    cycles = _cycles(result)
    return plain(
        f"{_rounds(result)} of {cycles} timed cycle{'s' if cycles != '1' else ''}"
        f" (16 steps each), lazy regularization included; {at}{result.started[:10]}"
    )


def _cycles(result: Result) -> str:
    """Return the timed cycles of a process: as planned, or `5 to 40` where as many were timed as fitted."""
    counts = [
        len(each.samples_ms) for rung in result.rungs if rung.status == "ok" for each in derive.counted(rung)
    ]
    if not (sources.in_generations(result) and counts):
        return str(result.protocol.cycles)
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(max(counts))


def _rounds(result: Result) -> str:
    """Return how many rounds the numbers are made of: `median of 2 to 3 rounds`. A stopped run planned more."""
    timed = [rung for rung in result.rungs if rung.status == "ok"]
    counts = [len(derive.counted(rung)) for rung in timed]
    most = max(counts, default=0) or result.protocol.rounds
    said = f"{min(counts)} to {most}" if counts and 0 < min(counts) < most else f"{most}"
    said += f" {sources.unit(result)}{'s' if most != 1 else ''}"
    said += f" (of {len(result.merged)} runs)" if result.merged else ""
    return f"median of {said}" if timed else f"{said} planned, none with a number,"


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
            around = f" ({text.ms(interval[0])} to {text.ms(interval[1])})" if interval else ""
            each.append(f"{LAZY.get(phase, phase)} adds {text.ms(ms)} ms{around} to a step that has it")
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
    if result.first_table_s is not None:
        took += f", its first table {result.first_table_s / 60:.1f}"
    return [f"{took}; cycles of a rung (drained, timed or profiled) ran in {100 * share:.0f}% of them"]


def _cycles_s(made: Round, whole: bool) -> float:
    """Return the seconds in which cycles of a process ran, one at a time; profiled ones if they were `whole`."""
    profiled = sum(cycle.wall_ms for cycle in made.profiled or ()) if whole else 0.0
    return (made.visit_s or 0) + (profiled + (made.main_ms or 0)) * CYCLE_STEPS / 1000
