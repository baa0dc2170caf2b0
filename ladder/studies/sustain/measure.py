"""How fast a rung still is after a minute: one process of it, its step time with the GPU's clock and power, over time.

A visit of `ladder run` lasts seconds. A card that reaches its power limit only then lowers its clock, and a training
that goes on for days runs at that clock. So this is what a ladder's figures are to be read with; it compares no rungs:
one process says nothing of how processes differ.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ladder.base import text as texts
from ladder.base.locks import device_lock
from ladder.base.rules import alike
from ladder.base.stopping import stop_on_sigterm
from ladder.base.text import escaped
from ladder.engine import inspection
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import environment, neighbours, system
from ladder.results import code_digest, identity, plausible, record
from ladder.results import store as results

ENGINE = ("studies/sustain/measure",)
WINDOW_S = 2.0  # of a row: what a visit of `ladder run` takes at the top
DERIVED = ("first_ms", "sustained_ms", "factor")
MOST_CYCLES = 1000  # of a row
HEADINGS = (
    "rung", "ms/step at first", "sustained", "factor", "MHz at first", "sustained", "W at most", "power limit",
)  # fmt: skip
Result = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is asked for; rungs with their recipes, in this order; seconds of each."""

    name: str
    workload: dict[str, Any]  # with the path of its images
    recipes: dict[str, dict[str, Any]]
    device: str
    seconds: float = 60.0
    seed: int = 0


def new_result(plan: Plan, facts: dict[str, Any], photographs: str | None) -> Result:
    """The result of a measurement that has not begun. What an earlier run inspected of the same code is said."""
    seen = inspection.Cache(plan.workload, facts)
    head = record.head("sustained", plan.name, plan.workload)
    head["workload"]["data"] = photographs
    head |= record.conditions(identity.of_images(plan.workload["data"]))
    empty = dict.fromkeys(DERIVED)
    return head | {
        code_digest.KEY: code_digest.digests(also=ENGINE),
        "machine": facts,
        "complete": False,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "protocol": {"seconds": plan.seconds, "window_s": WINDOW_S, "seed": plan.seed, "notes": []},
        "rungs": [
            {"name": name, "recipe": recipe, "status": "n/a", "reason": "not measured", **empty,
             "inspected": seen.get(recipe) is not None, "windows": []}
            for name, recipe in plan.recipes.items()
        ],
    }  # fmt: skip


def measure(
    plan: Plan, result: Result, tell: Callable[[str], None], save: Callable[[Result], None]
) -> Result:
    """Fill in the result, and return it: also when interrupted ("complete" is false then). Saved after each rung."""
    uuid = system.probe().get("uuid") if plan.device == "cuda" else None
    visits, begin = Visits(plan.device, uuid), time.monotonic()

    def keep() -> None:
        result["seconds"] = round(time.monotonic() - begin, 1)
        derive(result)
        save(result)

    try:
        with stop_on_sigterm(), device_lock(system.device_key(plan.device)), Pool() as pool:
            for rung in result["rungs"]:
                _one(plan, rung, pool, visits, tell)
                keep()
        result["complete"] = True
    except KeyboardInterrupt:
        pass
    finally:
        visits.close()
        keep()
    return result


def _one(plan: Plan, rung: dict[str, Any], pool: Pool, visits: Visits, tell: Callable[[str], None]) -> None:
    worker = pool.take()
    try:
        worker.call(
            "build", workload=plan.workload, recipe=rung["recipe"], device=plan.device, seed=plan.seed
        )
        worker.call("prepare")
        tell(f"{rung['name']}: prepared")
        begin, cycles, before = time.monotonic(), 1, neighbours.sample()
        while (at := time.monotonic() - begin) < plan.seconds or not rung["windows"]:
            with visits.watched({worker.pid}) as state:
                seen = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
            row = window(at, seen["samples_s"], state)
            rung["windows"].append(row)
            cycles = min(MOST_CYCLES, max(1, round(WINDOW_S / (16 * row["step_ms"] / 1000))))
            rung |= {"status": "ok", "reason": None}
        rung[neighbours.KEY] = neighbours.share(before, neighbours.sample())
        tell(f"{rung['name']}: {rung['windows'][0]['step_ms']:.4g} ms at first, {row['step_ms']:.4g} at last")
    except WorkerFailure as failure:
        rung |= {"status": failure.status, "reason": texts.display(failure.reason)}
    finally:
        worker.close()


def window(at: float, samples_s: list[float], state: dict[str, Any]) -> dict[str, Any]:
    """One row: seconds since the first began, the median cycle's milliseconds a step, what NVML said meanwhile."""
    known = {key: state.get(key) for key in ("sm_mhz", "power_w", "temperature_c", "reasons")}
    return {"at_s": round(at, 3), "step_ms": 1000 * statistics.median(samples_s), **known}


def derive(result: Result) -> None:
    """What follows from the rows, in place: the first one against the median of the later half of the time."""
    for rung in result["rungs"]:
        rung |= dict.fromkeys(DERIVED)
        if rows := rung["windows"]:
            late = later(rows)
            rung["first_ms"] = rows[0]["step_ms"]
            rung["sustained_ms"] = statistics.median(row["step_ms"] for row in late)
            rung["factor"] = rung["sustained_ms"] / rung["first_ms"]
    unseen = [rung["name"] for rung in result["rungs"] if not rung["inspected"]]
    also = [f"parity and receipts of {', '.join(unseen)} were not seen here"] * bool(unseen)
    also += neighbours.marks(result["rungs"])
    also += environment.said(result.get(environment.KEY))
    rounds = results.FEWEST_ROUNDS  # of which this kind has none
    result["protocol"]["notes"] = results.cautions(
        result["machine"]["device"], rounds, result["dirty"], result["complete"], also
    )


def contradiction(data: Result) -> str | None:
    """Numbers that do not follow from the rows, or cannot be, in one line, or None."""
    derived, least = copy.deepcopy(data), plausible.floor_ms(data["machine"], data["workload"])
    derive(derived)
    for found, wanted in zip(data["rungs"], derived["rungs"], strict=True):
        if found["status"] == "ok" and not found["windows"]:
            return f"{found['name']}: ok without a row"
        for key in DERIVED:
            if not alike(found[key], wanted[key]):
                return f"{found['name']}: {key} is not what its rows say"
        if least and any(row["step_ms"] < least[0] for row in found["windows"]):
            return f"{found['name']}: faster than this GPU can compute"
    if missing := [note for note in derived["protocol"]["notes"] if note not in data["protocol"]["notes"]]:
        return f"protocol.notes: lack {missing[0]!r}"
    return None


def later(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the later half of the time; at least one."""
    return [row for row in rows if row["at_s"] >= rows[-1]["at_s"] / 2]


def cells(result: Result) -> list[tuple[str, ...]]:
    found = []
    for rung in result["rungs"]:
        rows = rung["windows"]
        if rung["status"] != "ok" or not rows:
            found.append((rung["name"], f"{rung['status']}: {rung['reason']}", *[""] * 6))
            continue
        clocks = [row["sm_mhz"] for row in later(rows) if row["sm_mhz"]]
        watts = [row["power_w"] for row in rows if row["power_w"]]
        capped = sum("power_cap" in (row["reasons"] or ()) for row in rows)
        found.append(
            (
                rung["name"],
                f"{rung['first_ms']:.4g}",
                f"{rung['sustained_ms']:.4g}",
                f"{rung['factor']:.3f}",
                f"{rows[0]['sm_mhz']:.0f}" if rows[0]["sm_mhz"] else "",
                f"{statistics.median(clocks):.0f}" if clocks else "",
                f"{max(watts):.0f}" if watts else "",
                f"in {capped} of {len(rows)}" if clocks else "",
            )
        )
    return found


def text(result: Result) -> str:
    """For a terminal."""
    table = [HEADINGS, *cells(result)]
    widths = [max(len(line[k]) for line in table) for k in range(len(HEADINGS))]
    rows = ["  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([*rows, "", *result["protocol"]["notes"]])


def markdown(result: Result) -> str:
    """The page beside the JSON file."""
    facts, work, rules = result["machine"], result["workload"], result["protocol"]
    page = [
        f"# How fast a rung still is after a while: {escaped(facts['gpu'] or facts['cpu'] or '')}",
        "",
        f"Workload {escaped(work['name'])}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, R1 and"
        f" path length included. One process of each rung for {rules['seconds']:g} seconds, in rows of"
        f" {rules['window_s']:g} s; sustained is the median of the later half. PyTorch {facts['torch']}, commit"
        f" {results.commit_words(result)}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|" + "---:|" * (len(HEADINGS) - 1),
        *("| " + " | ".join(escaped(cell) for cell in row) + " |" for row in cells(result)),
        "",
        *(f"- {escaped(line)}" for line in rules["notes"]),
    ]
    return "\n".join(page).rstrip() + "\n"
