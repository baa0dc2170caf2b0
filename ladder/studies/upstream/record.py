"""Pure functions that derive the figures of `ladder upstream` from the stored numbers."""

from __future__ import annotations

from typing import Any

from ladder.machine import environment, neighbours
from ladder.results import record
from ladder.results import store as results
from ladder.stats import estimates

Result = dict[str, Any]


UPSTREAM, OURS = "upstream", "ours"


def derive(result: Result) -> None:
    """Fill in medians, intervals and our speedup from the rounds, in place."""
    times = {}
    for program in result["programs"]:
        times[program["side"]] = medians = record.round_medians(program)
        interval = estimates.log_interval(list(medians.values()))
        program["step_ms"] = estimates.median(list(medians.values()))
        program["interval_ms"] = interval and list(interval)
    interval = estimates.log_interval(estimates.paired_ratios(times[UPSTREAM], times[OURS]))
    factor = estimates.speedup(times[UPSTREAM], times[OURS])
    result["ratio"] = factor and {"median": factor, "interval": interval and list(interval)}
    result["protocol"]["notes"] = notes(result)


def notes(result: Result) -> list[str]:
    """Return the reasons why the figure must not be quoted, if any."""
    counted = min(len(program["rounds"]) for program in result["programs"])
    unseen = ["neither parity nor receipts of ours were asked for: not to be quoted"]
    rounds = [each for program in result["programs"] for each in program["rounds"]]
    also = neighbours.marks(rounds) + unseen * (not result["protocol"]["inspected"])
    also += environment.said(result.get(environment.KEY))
    return results.cautions(result["machine"]["device"], counted, result["dirty"], result["complete"], also)
