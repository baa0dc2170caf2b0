"""Why a result must not be quoted. A clean and complete run has no reason, and nothing is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ladder.machine import neighbours
from ladder.results import plausible, ranking, sources
from ladder.results import store as results

QUICK = "quick: not to be quoted"
FEW = f"fewer than {results.FEWEST_ROUNDS} rounds: not to be quoted"
PARTIAL = "incomplete: the run was interrupted"
DIRTY = "dirty: not publishable: the code differs from its commit"
NO_COMMIT = "no commit: not publishable: what was measured cannot be looked up"
NOISY = "noisy: not publishable"
HOSTS = "merged: not publishable: rounds of several hosts, and what waits for the CPU belongs to one"


def publishable(result: Mapping[str, Any]) -> list[str]:
    """The reasons why a result is not publishable, a line each; none if it is."""
    found = []
    if result["protocol"].get("quick"):
        found.append(QUICK)
    if any(rung["status"] == "ok" for rung in result["rungs"]):
        found += [FEW] * (ranking.fewest_rounds(result) < results.FEWEST_ROUNDS)
    if not result["complete"]:
        found.append(PARTIAL)
    if result.get("commit") is None:
        found.append(NO_COMMIT)
    elif result.get("dirty"):
        found.append(DIRTY)
    if not sources.one_host(result):
        found.append(HOSTS)
    gpu = result.get("gpu")
    notes = gpu.get("notes") if isinstance(gpu, dict) else None
    said = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    found += [note for note in said if note.startswith(NOISY)]
    rounds = [
        each for record in sources.records(result) for each in record["rounds"] if isinstance(each, dict)
    ]
    found += neighbours.marks(rounds)
    least = plausible.floor_ms(result["machine"], result["workload"])
    for rung in result["rungs"]:
        if rung["status"] == "ok" and (reason := plausible.too_fast(rung, least)):
            found.append(f"impossible: not publishable: {rung['name']}: {reason}")
    return found
