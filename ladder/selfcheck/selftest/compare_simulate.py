"""Simulated comparisons of two commits, with known effects, judged by the functions that judge real ones.

A run is two rungs in rounds of fresh processes: BASE, BASE again and HEAD of a rung side by side in random order, more
rounds by the rule of a run. Noise has the sizes and the shapes of `ladder.selfcheck.selftest.simulate`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ladder.publish.regressions.judging import LEAST_ROUNDS, Times, decide, wants_rounds
from ladder.selfcheck.selftest.simulate import CYCLES, FAMILIES, KINDS, OUTLIER, Kind, Noise
from ladder.stats import verdicts

RUNGS, SIDES = 2, 3
# What must be found in normal noise of the measured size, and in which share of the runs.
PLANTED = {"captured": 0.01, "eager": 0.05}
PROMISED = {"captured": 0.99, "eager": 0.99}
PASSING = 0.995  # of the A/A runs, in any noise (seen: 1 of 20,000 eager ones failed, no captured one)


def simulate(rng: np.random.Generator, kind: Kind, family: Noise, slowdown: float) -> tuple[list[str], int]:
    """(verdicts of both rungs, rounds): HEAD's second rung takes longer by `slowdown`, a log ratio."""
    rounds, visits = verdicts.MOST_ROUNDS, RUNGS * SIDES
    process = family(rng, rounds * visits, kind.process).reshape(rounds, RUNGS, SIDES)  # in order of time
    cycles = process[..., None] + rng.normal(0, kind.cycle, (rounds, RUNGS, SIDES, CYCLES))
    cycles += OUTLIER * (rng.random(cycles.shape) < kind.outliers)
    visited = np.median(cycles, axis=-1)
    order = rng.permuted(np.broadcast_to(np.arange(SIDES), visited.shape), axis=-1)
    logs = np.take_along_axis(visited, order, -1)  # which of a block's three visits each side got
    if rng.random() < 0.5:  # which rung came first
        logs = logs[:, ::-1]
    logs[:, 1, 1] += slowdown
    made = LEAST_ROUNDS
    while True:
        base, head, twin = (np.exp(logs[:made, :, side]) for side in range(SIDES))
        asked = [
            Times(*(dict(enumerate(times[:, rung])) for times in (base, twin, head))) for rung in range(RUNGS)
        ]
        if not wants_rounds(asked):
            return [verdict.verdict for verdict in decide(asked)], made
        made += 1


def planted(kind: str, family: str, slowdown: float, runs: int, seed: int = 0) -> dict[str, Any]:
    """How often a planted slowdown was found, and what else was said that is not so. 0: an A/A."""
    rng = np.random.default_rng([seed, runs, round(1e4 * slowdown), list(FAMILIES).index(family)])
    done = [simulate(rng, KINDS[kind], FAMILIES[family], float(np.log1p(slowdown))) for _ in range(runs)]
    words = [words for words, _ in done]
    same = [word for said in words for word in (said[:1] if slowdown else said)]
    return {
        "kind": kind,
        "family": family,
        "slowdown": slowdown,
        "runs": runs,
        "found": sum(said[1] == verdicts.SLOWER for said in words) / runs if slowdown else None,
        "wrong_sign": sum(said[1] == verdicts.FASTER for said in words) if slowdown else 0,
        "passed": sum(verdicts.SLOWER not in said for said in words),  # exit status 0
        "called_different": sum(word in (verdicts.SLOWER, verdicts.FASTER) for word in same),
        "rounds": float(np.mean([made for _, made in done])),
    }


def measure(runs: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Everything, for each kind and family; "broken" lists, in a line each, what was not kept."""
    table = [
        planted(kind, family, slowdown, runs, seed)
        for kind in KINDS
        for family in FAMILIES
        for slowdown in (0.0, PLANTED[kind])
    ]
    return {"seed": seed, "table": table, "broken": [line for row in table for line in _broken(row)]}


def _broken(row: dict[str, Any]) -> list[str]:
    where, lines = f"{row['kind']}, {row['family']}", []
    if row["wrong_sign"]:
        lines.append(
            f"{where}: {100 * row['slowdown']:g}% slower was called faster {row['wrong_sign']} times"
        )
    if not row["slowdown"] and row["passed"] < PASSING * row["runs"]:
        lines.append(f"{where}: {row['runs'] - row['passed']} of {row['runs']} A/A runs were called slower")
    promised = PROMISED[row["kind"]] if row["family"] == "normal" else None
    if row["slowdown"] and promised and row["found"] < promised:
        lines.append(
            f"{where}: {100 * row['slowdown']:g}% was found in {row['found']:.0%} of {row['runs']} runs"
        )
    return lines
