"""Verdicts from two commits' interleaved rounds, one a rung, and the exit status that follows. Pure functions.

Every round holds BASE twice and HEAD once, each in a fresh process. BASE is its own twin: the difference of its two
visits is the noise of this rung in this run. Nothing below the noise is called a difference. Ratios are taken inside a
round; intervals are Student's t over rounds with Holm's correction over the rungs (`ladder.stats.verdicts`). A verdict
takes five rounds: many samples of few processes support none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.results import judging, record
from ladder.results import store as results
from ladder.stats import estimates, verdicts

BASE, HEAD, TWIN = "base", "head", "twin"
SIDES = (BASE, HEAD, TWIN)
LEAST_ROUNDS, MOST_ROUNDS = verdicts.LEAST_ROUNDS, verdicts.MOST_ROUNDS
ENOUGH = 0.02  # the slowdown that is to be seen, if twelve rounds can; captured rungs are there after five
BROKEN = "broken"  # HEAD fails where BASE has a number: worse than slower
WORDS = (verdicts.FASTER, verdicts.SLOWER, verdicts.NO_GAIN, verdicts.AMBIGUOUS, BROKEN)
SAME_OR_FASTER, SLOWER, NOTHING = 0, 1, 2  # exit statuses
Result = dict[str, Any]


@dataclass(frozen=True)
class Times:
    """Milliseconds a step of one rung, by round: of BASE, of BASE again, and of HEAD."""

    base: dict[int, float]
    twin: dict[int, float]
    head: dict[int, float]

    def ratios(self) -> list[float]:
        """Return the log ratio of each complete round: positive where HEAD is faster than BASE's geometric mean."""
        rounds = self.rounds()
        base = [(np.log(self.base[r]) + np.log(self.twin[r])) / 2 for r in rounds]
        return [float(b - np.log(self.head[r])) for b, r in zip(base, rounds, strict=True)]

    def noise(self) -> list[float]:
        """Return the log ratio of the two visits of BASE in each complete round."""
        return [float(np.log(self.base[r]) - np.log(self.twin[r])) for r in self.rounds()]

    def rounds(self) -> list[int]:
        return sorted(self.base.keys() & self.twin.keys() & self.head.keys())

    def comparison(self) -> verdicts.Comparison | None:
        """Return the question that the rounds put; None where there is too little to judge noise by."""
        floor = verdicts.noise_floor([self.noise()])
        return None if floor is None else verdicts.Comparison(self.ratios(), floor)


def decide(asked: Sequence[Times]) -> list[verdicts.Verdict | None]:
    """Return the verdict of each rung of a run, with Holm's correction over all; None with fewer than five rounds."""
    comparisons = [t.comparison() if len(t.rounds()) >= LEAST_ROUNDS else None for t in asked]
    judged = iter(verdicts.judge([c for c in comparisons if c is not None]))
    return [None if c is None else next(judged) for c in comparisons]


def wants_rounds(asked: Sequence[Times]) -> bool:
    """Return whether one more round is worth it: below twelve, while a slowdown of 2% might be missed.

    The widths of the intervals and the floors decide, never the places of the intervals.
    """
    rounds = [len(times.rounds()) for times in asked]
    if max(rounds, default=MOST_ROUNDS) >= MOST_ROUNDS:
        return False
    if min(rounds) < LEAST_ROUNDS:
        return True
    found = [judging.resolution([c]) for c in (times.comparison() for times in asked) if c is not None]
    return any(resolution > ENOUGH for resolution in found if resolution is not None)


def judge(result: Result) -> None:
    """Fill in the verdict of each rung. Everything derived is computed anew from the programs' raw rounds."""
    asked = [times_of(result, rung["name"]) for rung in result["rungs"]]
    for rung, times, verdict in zip(result["rungs"], asked, decide(asked), strict=True):
        sides = sides_of(result, rung["name"])
        rung.update(
            base_ms=estimates.median([*times.base.values(), *times.twin.values()]),
            head_ms=estimates.median(list(times.head.values())),
            rounds=len(times.rounds()),
            **dict.fromkeys(("verdict", "ratio", "interval", "confidence", "floor", "least", "resolution")),
            reason=None,
        )
        if rung["skipped"]:
            rung["reason"] = rung["skipped"]
        elif reason := _out(sides):
            rung["reason"] = reason
            rung["verdict"] = BROKEN if _is_broken(sides) else None
        elif verdict is None:
            rung["reason"] = f"{rung['rounds']} of {LEAST_ROUNDS} rounds: too few for a verdict"
        else:
            rung.update(_numbers(times, verdict))


def _numbers(times: Times, verdict: verdicts.Verdict) -> dict[str, Any]:
    comparison = times.comparison()
    return {
        "verdict": verdict.verdict,
        "ratio": float(np.exp(verdict.effect)),
        "interval": verdict.interval and [float(np.exp(bound)) for bound in verdict.interval],
        "confidence": verdict.confidence,
        "floor": comparison.floor,
        "least": verdict.least,
        "resolution": judging.resolution([comparison]),
    }


def times_of(result: Result, rung: str) -> Times:
    sides = sides_of(result, rung)
    return Times(
        **{side: record.round_medians(sides[side]) if side in sides else {} for side in (BASE, TWIN, HEAD)}
    )


def sides_of(result: Result, rung: str) -> dict[str, dict[str, Any]]:
    return {each["side"]: each for each in result["programs"] if each["rung"] == rung}


def _out(sides: dict[str, dict[str, Any]]) -> str | None:
    """Return why a rung has no verdict for a program that is out of the run, or None."""
    names = {BASE: "BASE", HEAD: "HEAD", TWIN: "BASE's second visit"}
    out = {side: each for side, each in sides.items() if each["status"] in (*results.OUT, "n/a")}
    said = [
        f"{names[side]}: {each['status']}: {each['reason']}" for side, each in out.items() if each["reason"]
    ]
    return said[0] if said else None


def _is_broken(sides: dict[str, dict[str, Any]]) -> bool:
    base, head = sides.get(BASE), sides.get(HEAD)
    if not base or not head or base["status"] != "ok" or head["status"] not in results.OUT:
        return False
    return not (head["reason"] or "").startswith(
        "throttled:"
    )  # the GPU's fault, see `ladder.machine.gpu_state`


def alarming(result: Result) -> list[dict[str, Any]]:
    """Return the rungs that HEAD made slower or broke, and that nobody accepted."""
    return [r for r in result["rungs"] if r["verdict"] in (verdicts.SLOWER, BROKEN) and not r.get("known")]


def status(result: Result) -> int:
    """Return the exit status: 0 same, faster or too close to tell; 1 slower or broken; 2 no rung has a verdict."""
    if alarming(result):
        return SLOWER
    return SAME_OR_FASTER if any(rung["verdict"] for rung in result["rungs"]) else NOTHING
