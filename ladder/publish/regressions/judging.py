"""Verdicts from two commits' interleaved rounds, one a rung, and the exit status that follows. Pure functions.

Every round holds BASE twice and HEAD once, each in a fresh process. BASE is its own twin: the difference of its two
visits is the noise of this rung in this run. Nothing below the noise is called a difference. Ratios are taken inside a
round; intervals are Student's t over rounds with Holm's correction over the rungs (`ladder.stats.verdicts`). A verdict
takes five rounds: many samples of few processes support none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ladder.base import text
from ladder.base.errors import UserError
from ladder.publish.regressions import schema
from ladder.publish.regressions.schema import BASE, HEAD, TWIN, Compared, Program, Rung
from ladder.publish.regressions.schema import SIDES as SIDES
from ladder.results import judging
from ladder.results import store as results
from ladder.stats import estimates, verdicts

MOST_BYTES = 2**21  # of a file
LEAST_ROUNDS, MOST_ROUNDS = verdicts.LEAST_ROUNDS, verdicts.MOST_ROUNDS
ENOUGH = 0.02  # the slowdown that is to be seen, if twelve rounds can; captured rungs are there after five
BROKEN = "broken"  # HEAD fails where BASE has a number: worse than slower
WORDS = (verdicts.FASTER, verdicts.SLOWER, verdicts.NO_GAIN, verdicts.AMBIGUOUS, BROKEN)
SAME_OR_FASTER, SLOWER, NOTHING = 0, 1, 2  # exit statuses


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


def load(path: Path) -> Compared:
    """Return the comparison in a file, judged anew. Raises `UserError` with the problem in one line."""
    name = text.display(Path(path).name)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{name}: not a regular file")
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise UserError(f"{name}: larger than {MOST_BYTES} bytes")
    try:
        data = results.parse(raw)
    except ValueError as error:
        raise UserError(f"{name}: not a result file: {error}") from None
    if problem := schema.problem_of(data):
        raise UserError(f"{name}: {problem}")
    return judge(schema.of_data(data))


def judge(result: Compared) -> Compared:
    """Return the comparison with the verdict of each rung, computed anew from the programs' raw rounds."""
    asked = [times_of(result, rung.name) for rung in result.rungs]
    rungs = [
        _judged(rung, sides_of(result, rung.name), times, verdict)
        for rung, times, verdict in zip(result.rungs, asked, decide(asked), strict=True)
    ]
    return replace(result, rungs=rungs)


def _judged(rung: Rung, sides: Mapping[str, Program], times: Times, verdict: verdicts.Verdict | None) -> Rung:
    fresh = replace(
        schema.new_rung(rung.name, rung.title, rung.skipped),
        known=rung.known,
        base_ms=estimates.median([*times.base.values(), *times.twin.values()]),
        head_ms=estimates.median(list(times.head.values())),
        rounds=len(times.rounds()),
    )
    if rung.skipped:
        return replace(fresh, reason=rung.skipped)
    if reason := _out(sides):
        return replace(fresh, reason=reason, verdict=BROKEN if _is_broken(sides) else None)
    comparison = times.comparison()
    if verdict is None or comparison is None:
        return replace(fresh, reason=f"{fresh.rounds} of {LEAST_ROUNDS} rounds: too few for a verdict")
    return replace(
        fresh,
        verdict=verdict.verdict,
        ratio=float(np.exp(verdict.effect)),
        interval=verdict.interval and [float(np.exp(bound)) for bound in verdict.interval],
        confidence=verdict.confidence,
        floor=comparison.floor,
        least=verdict.least,
        resolution=judging.resolution([comparison]),
    )


def times_of(result: Compared, rung: str) -> Times:
    sides = sides_of(result, rung)
    return Times(
        **{side: _round_medians(sides[side]) if side in sides else {} for side in (BASE, TWIN, HEAD)}
    )


def _round_medians(program: Program) -> dict[int, float]:
    counted = [each for each in program.rounds if not each.alloc_retries]
    return {each.round: estimates.median(each.samples_ms) for each in counted}


def sides_of(result: Compared, rung: str) -> dict[str, Program]:
    return {each.side: each for each in result.programs if each.rung == rung}


def _out(sides: Mapping[str, Program]) -> str | None:
    """Return why a rung has no verdict for a program that is out of the run, or None."""
    names = {BASE: "BASE", HEAD: "HEAD", TWIN: "BASE's second visit"}
    out = {side: each for side, each in sides.items() if each.status in (*results.OUT, "n/a")}
    said = [f"{names[side]}: {each.status}: {each.reason}" for side, each in out.items() if each.reason]
    return said[0] if said else None


def _is_broken(sides: Mapping[str, Program]) -> bool:
    base, head = sides.get(BASE), sides.get(HEAD)
    if not base or not head or base.status != "ok" or head.status not in results.OUT:
        return False
    return not (head.reason or "").startswith("throttled:")  # the GPU's fault, see `ladder.machine.gpu_state`


def alarming(result: Compared) -> list[Rung]:
    """Return the rungs that HEAD made slower or broke, and that nobody accepted."""
    return [each for each in result.rungs if each.verdict in (verdicts.SLOWER, BROKEN) and not each.known]


def status(result: Compared) -> int:
    """Return the exit status: 0 same, faster or too close to tell; 1 slower or broken; 2 no rung has a verdict."""
    if alarming(result):
        return SLOWER
    return SAME_OR_FASTER if any(rung.verdict for rung in result.rungs) else NOTHING
