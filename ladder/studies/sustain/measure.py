"""The measurement of `ladder sustain`: a rung's step time over a minute, with the GPU's clock and power.

A visit of `ladder run` lasts seconds. A card that reaches its power limit later lowers its clock, and a training of
days runs at that clock. Read a ladder's figures with this in mind. Rungs are not compared: one process each says
nothing of how processes differ.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ladder.base import text as texts
from ladder.base.locks import device_lock
from ladder.base.protocol import CYCLE_STEPS
from ladder.base.records import build
from ladder.base.stopping import stop_on_sigterm
from ladder.engine import inspection
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import neighbours, system
from ladder.results import identity, record
from ladder.results.types import Plain
from ladder.studies.sustain.record import DERIVED, WINDOW_S, Result, Rung, Window, derive

MOST_CYCLES = 1000  # in a row


@dataclass(frozen=True)
class Plan:
    """The user's request: rungs with their recipes, in order, and the seconds of each."""

    name: str
    workload: Plain  # with the path of its images
    recipes: dict[str, Plain]
    device: str
    seconds: float = 60.0
    seed: int = 0


def new_result(plan: Plan, facts: Plain, photographs: str | None) -> Result:
    """Return the result of a measurement that has not begun, with an earlier run's inspection of the same code."""
    seen = inspection.Cache(plan.workload, facts)
    images = identity.of_images(plan.workload["data"])
    trained = {"name": plan.name, **plan.workload, "data": photographs}
    empty = dict.fromkeys(DERIVED)
    made = {
        **record.header("sustained", facts, trained, images=images),
        "protocol": {"seconds": plan.seconds, "window_s": WINDOW_S, "seed": plan.seed, "notes": []},
        "rungs": [
            {"name": name, "recipe": recipe, "status": "n/a", "reason": "not measured", **empty,
             "inspected": seen.get(recipe) is not None, "windows": []}
            for name, recipe in plan.recipes.items()
        ],
    }  # fmt: skip
    return build(Result, made)


def measure(
    plan: Plan, result: Result, tell: Callable[[str], None], save: Callable[[Result], None]
) -> Result:
    """Follow the rungs, save the result after each, and return it. After an interrupt it is not complete."""
    uuid = system.probe().get("uuid") if plan.device == "cuda" else None
    visits, begin, rungs = Visits(plan.device, uuid), time.monotonic(), [*result.rungs]

    def keep(complete: bool) -> Result:
        seconds = round(time.monotonic() - begin, 1)
        found = derive(replace(result, seconds=seconds, complete=complete, rungs=[*rungs]))
        save(found)
        return found

    complete = False
    try:
        with stop_on_sigterm(), device_lock(system.device_key(plan.device)), Pool() as pool:
            for number, rung in enumerate(result.rungs):
                for state in _followed(plan, rung, pool, visits, tell):
                    rungs[number] = state
                keep(complete)
        complete = True
    except KeyboardInterrupt:
        pass
    finally:
        visits.close()
        found = keep(complete)
    return found


def _followed(
    plan: Plan, rung: Rung, pool: Pool, visits: Visits, tell: Callable[[str], None]
) -> Iterator[Rung]:
    """Yield the rung with each of its rows, so that an interrupt keeps the rows before it."""
    worker = pool.take()
    try:
        worker.call("build", workload=plan.workload, recipe=rung.recipe, device=plan.device, seed=plan.seed)
        worker.call("prepare")
        tell(f"{rung.name}: prepared")
        begin, cycles, before = time.monotonic(), 1, neighbours.sample()
        first_j = visits.energy_j()
        rung = replace(rung, status="ok", reason=None, windows=[*rung.windows])
        while (at := time.monotonic() - begin) < plan.seconds or not rung.windows:
            joules = visits.energy_j()
            with visits.watched({worker.pid}) as state:
                seen = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
            taken = None if joules is None or first_j is None else joules - first_j
            row = window(at, seen["samples_s"], state, taken, seen["lead_in_cycles"])
            rung.windows.append(row)
            cycles = min(MOST_CYCLES, max(1, round(WINDOW_S / (16 * row.step_ms / 1000))))
            yield rung
        yield replace(rung, others_cpu=neighbours.share(before, neighbours.sample()))
        first, last = rung.windows[0].step_ms, rung.windows[-1].step_ms
        tell(f"{rung.name}: {texts.ms(first)} ms at first, {texts.ms(last)} at last")
    except WorkerFailure as failure:
        yield replace(rung, status=failure.status, reason=texts.display(failure.reason))
    finally:
        worker.close()


def window(
    at: float, samples_s: list[float], state: Plain, taken_j: float | None = None, lead_in: int = 0
) -> Window:
    """Return a row of cycles that began ``at`` seconds after the first.

    Args:
        state: the GPU's, empty on a CPU.
        taken_j: joules that the GPU had taken by then since the first row began.
        lead_in: cycles of the row before the timed ones.
    """
    known = {key: state.get(key) for key in ("sm_mhz", "power_w", "temperature_c", "reasons")}
    joules = None if taken_j is None else round(taken_j, 3)
    steps, step_ms = CYCLE_STEPS * (lead_in + len(samples_s)), 1000 * statistics.median(samples_s)
    return Window(at_s=round(at, 3), step_ms=step_ms, energy_j=joules, steps=steps, **known)
