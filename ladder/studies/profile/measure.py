"""The measurement of `ladder profile`: one process times the step, traces a cycle, and runs each phase eagerly once.

The eager runs come last, because they need the memory of the graphs. They tell layers and memory; a failure there
leaves the rest of the profile as it is.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ladder.base import text as texts
from ladder.base.errors import UserError, describe
from ladder.base.protocol import CYCLE_STEPS, IN_ORDER
from ladder.base.records import plain
from ladder.machine import environment, system
from ladder.plan import catalog, needs
from ladder.receipts import categories as names
from ladder.results import identity, record, store
from ladder.results.types import Plain, build
from ladder.studies.profile import composing, layers, memory, rates, replaced, tracefile, tracing
from ladder.studies.profile.record import Category, Layers, Moment, Result
from stylegan_lite.config import Recipe, suggestion

CYCLES = {"cuda": 3, "cpu": 1}  # timed cycles; the median counts
RESULTS = "ladder"  # the folder of ladders' results, beside that of profiles
COMPILED = "torch.compile joins the work of several layers in one kernel"
ON_CPU = "operators' own time on the CPU stands for kernels"


@dataclass(frozen=True)
class Plan:
    """The request: a rung of a ladder with its recipe, the rung below it, and the workload."""

    name: str
    workload: Plain  # with the path of its images
    ladder: str
    rung: str
    below: str | None
    recipe: Plain
    device: str
    seed: int = 0


@dataclass
class Eager:
    """The findings of the eager runs: labels and memory by phase, or why there are none."""

    labels: dict[str, list[layers.Label]] = field(default_factory=dict)
    timelines: dict[str, list[Moment]] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Seen:
    """All that one process saw of a rung's step."""

    walls_ms: list[float]
    traced: tracing.Traced
    eager: Eager
    lasting: memory.Static
    pools: int | None
    peaks: tuple[int | None, int | None, int | None]
    copied: list[tuple[int, int]] = field(default_factory=list)  # of `rates.copies`


Tell = Callable[[str], None]


def plan(
    rung: str, ladder: str | None, name: str, fields: Plain, device: str, data: str | None, seed: int
) -> Plan:
    """Return the plan of a rung. Without ``ladder`` it is the article's, or `full` if that lacks the rung.

    Raises:
        UserError: no such rung, or the rung cannot run here.
    """
    chosen = catalog.load_ladder(ladder or "article")
    if ladder is None and rung not in {each.name for each in chosen.rungs}:
        chosen = catalog.load_ladder("full")
    if rung not in (has := [each.name for each in chosen.rungs]):
        raise UserError(f"ladder {chosen.name} has no rung {rung!r}{suggestion(rung, has, 'its rungs')}")
    able = needs.possible(system.capabilities(device), fields)
    planned = catalog.climb(chosen, able, [rung])
    found = planned[-1]
    if found.recipe is None:
        raise UserError(f"rung {rung} cannot run here: {found.skipped}")
    recipe = Recipe.from_dict(found.recipe).to_dict()
    before = [each.name for each in catalog.climb(chosen, able) if each.recipe is not None]
    at = before.index(rung)
    below = before[at - 1] if at else None
    return Plan(name, fields | {"data": data}, chosen.name, rung, below, recipe, device, seed)


def measure(asked: Plan, tell: Tell, trace: Path | None = None) -> Seen:
    """Return what a fresh step shows. ``trace``: the file of a trace that is written meanwhile."""
    from ladder.receipts import as_timed
    from stylegan_lite import make_step

    step = make_step(asked.workload, asked.recipe, device=asked.device, seed=asked.seed)
    try:
        tell("preparing")
        step.prepare()
        step.cycle()  # fills what loaders hold
        walls = []
        for _ in range(CYCLES[asked.device]):
            as_timed.synchronize(step)
            begin = time.perf_counter()
            step.cycle()
            as_timed.synchronize(step)
            walls.append(1000 * (time.perf_counter() - begin) / CYCLE_STEPS)
        peaks, pools = memory.peaks(asked.device), memory.graph_pools(step)
        tell("tracing a cycle")
        tracing.profiled(lambda: None, asked.device)  # the first start of a profiler takes seconds
        traced = tracing.trace(step)
        if not traced.segments:
            raise UserError("the profiler saw no kernels: CUPTI is missing or used by another program")
        if trace is not None:
            tell(f"{trace}: {tracefile.write(step, trace)}")
        lasting = memory.static(step)
        tell("one eager run of each phase")
        seen = Seen(walls, traced, eager(step, lasting), lasting, pools, peaks)
        release(asked.device)
        return replace(seen, copied=copies(asked.device))
    finally:
        step.close()


def eager(step: Any, lasting: memory.Static) -> Eager:
    """Run each phase once without graphs. The graphs of the step are gone afterwards."""
    found = Eager()
    if step.recipe.compile != "off":
        return Eager(reason=COMPILED)
    try:
        step.graphs.clear()
        step.held.clear()
        release(step.device)
        for phase in IN_ORDER:
            step.run_phase(phase)  # kernels that only eager runs launch are compiled, and algorithms chosen
            _record(step, phase, lasting, found)
    except Exception as error:  # layers and memory alone are lost
        return Eager(reason=texts.display(f"the eager run failed: {describe(error)}"))
    return found


def copies(device: str) -> list[tuple[int, int]]:
    """Return what copies take, as `rates.copies` does. The list is empty where the step has left no memory for them."""
    try:
        return rates.copies(device)
    except Exception:  # a yardstick alone is lost
        return []


def release(device: str) -> None:
    """Give the memory of what is gone back to the device."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _record(step: Any, phase: str, lasting: memory.Static, found: Eager) -> None:
    with layers.ranges(step), memory.gradients(step) as gradients, rates.given() as launches:
        before = _allocated(step.device, lasting.total + gradients.at[0][1])
        how = {"host": True, "record_shapes": True, "profile_memory": True}
        profile = tracing.profiled(lambda: step.run_phase(phase), step.device, **how)
    found.labels[phase] = layers.labels(layers.spans(profile, step.device), phase, step.device, launches)
    changed = memory.changes(profile, step.device)
    found.timelines[phase] = memory.timeline(changed, gradients.at, before, lasting.total)


def _allocated(device: str, estimate: int) -> int:
    """Return the allocated bytes; on a CPU, which does not tell them, the estimate."""
    if device != "cuda":
        return estimate
    import torch

    return int(torch.cuda.memory_allocated())


# --- the result -------------------------------------------------------------------------------------------------------


def new_result(
    asked: Plan,
    facts: Plain,
    photographs: str | None,
    seen: Seen,
    known: Sequence[replaced.Known],
    seconds: float,
) -> Result:
    """Return the result of a measurement. ``known`` are profiles that tell what fused kernels replaced."""
    images = identity.of_images(asked.workload["data"])
    trained = {"name": asked.name, **asked.workload, "data": photographs}
    header = record.header("profile", facts, trained, images=images)
    on_gpu = asked.device == "cuda"
    labelled = list(layers.of_segments(seen.eager.labels, seen.traced.segments))
    sums = composing.category_sums(labelled)
    took_ns = {name: each.ns for name, each in sums.items()}
    found = rates.by_shapes(composing.known_bytes(sums), took_ns)
    found |= rates.by_floors(
        asked.workload, asked.recipe["precision"], {name: each.ms for name, each in sums.items()}
    )
    rows = composing.categories(sums, found, replaced.replaced(known))
    reason = seen.eager.reason
    also = environment.said(header.get(environment.KEY)) + notes(rows) + tracing.uneven(seen.traced) * on_gpu
    made = header | {
        "complete": True,
        "seconds": round(seconds, 1),
        "ladder": asked.ladder,
        "rung": asked.rung,
        "recipe": asked.recipe,
        "protocol": {
            "of": tracing.GPU if on_gpu else tracing.CPU,
            "cycles": len(seen.walls_ms),
            "notes": store.cautions(asked.device, store.FEWEST_ROUNDS, header["dirty"], True, also),
        },
        "step_ms": round(statistics.median(seen.walls_ms), 5),
        "gpu_ms": round(seen.traced.busy_ns / 1e6 / CYCLE_STEPS, 5),
        "profile": plain(composing.profile(seen.traced)),
        "categories": plain(rows),
        "phases": plain(composing.phases(labelled)),
        "layers": plain(
            composing.layers(labelled) if reason is None else Layers(rows=[], unknown=None, reason=reason)
        ),
        "heaviest": plain(composing.heaviest(labelled)),
        **(
            {
                "gaps": plain(composing.gaps(seen.traced)),
                "passes": plain(composing.passes(labelled, seen.copied)),
            }
            if on_gpu
            else {}
        ),
        "expected": plain(composing.expected(rows)),
        "memory": plain(
            memory.assemble(asked.device, seen.lasting, seen.pools, seen.peaks, seen.eager.timelines)
        ),
    }
    return build(Result, made)


def notes(rows: Sequence[Category]) -> list[str]:
    """Return a line if too much of the step has names that the classifier does not know."""
    other = next((row.share for row in rows if row.name == names.OTHER), 0.0)
    return [f"other is {100 * other:.1f} percent: names without a pattern"] * (other > composing.MOST_OTHER)


def profile(
    asked: Plan, photographs: str | None, folder: Path, tell: Tell, trace: Path | None = None
) -> Result:
    """Measure a rung and return its profile. The caller holds the lock on the device.

    ``folder`` holds the profiles; ladders' results lie beside it. Both may tell what fused kernels replaced.
    UserError if the step does not fit into memory.
    """
    import torch

    begin, facts = time.monotonic(), system.facts(asked.device)
    try:
        seen = measure(asked, tell, trace)
    except (MemoryError, torch.OutOfMemoryError):
        short = f"{asked.rung} on {asked.name} does not fit into the memory of this machine"
        raise UserError(f"{short}; take a workload with a smaller batch") from None
    release(asked.device)
    sums = composing.category_sums(list(layers.of_segments({}, seen.traced.segments)))
    now = asked.rung, {name: each.ms for name, each in sums.items()}
    where = facts["name"], asked.workload
    known = replaced.of_ladders(folder.parent / RESULTS, *where, asked.ladder, asked.rung)
    known += replaced.of_profiles(folder, *where, asked.below, now)
    return new_result(asked, facts, photographs, seen, known, time.monotonic() - begin)
