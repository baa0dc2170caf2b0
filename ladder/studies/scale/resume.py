"""The resuming of `ladder scale`: the generations that a file lacks, on the same machine with the same code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ladder.results.combine import resuming
from ladder.results.types import head
from ladder.studies.scale.joining import key_of
from ladder.studies.scale.record import NOT_MEASURED, Point, Result

RULES = ("visits", "seed", "backend")  # keys of the protocol that must agree
STAYS = ("oom", "invalid", "failed: parity", "not engaged")  # a second try would end the same way


def take_up(path: Path, before: Result, fresh: Result) -> Result:
    """Return `before`, the file's result, ready to go on. `fresh` is the result that would begin now.

    Whole generations stay. Points that failed are tried again, except for want of parity, receipts or memory.

    Raises UserError where the two results are not the same measurement.
    """
    header = resuming.continued(path, head(before), head(fresh), _differences(before, fresh))
    points = whole(before.points)
    held = min(
        (len(point.runs) for point in points if point.runs), default=0
    )  # maybe more than are asked for now
    return replace(
        before,
        **header,
        protocol=replace(before.protocol, generations=max(fresh.protocol.generations, held)),
        proofs=[proof for proof in before.proofs if proof.status in ("ok", *STAYS)],
        points=[_begun(point) for point in points],
    )


def _differences(before: Result, fresh: Result) -> Iterator[str]:
    """Yield, in one line each, the differences of the protocols and of the points."""
    yield from resuming.other_rules(before.protocol, fresh.protocol, RULES)
    asked = {key_of(point): point for point in fresh.points}
    if asked.keys() != {key_of(point) for point in before.points}:
        yield "that run has other points"
    for point in before.points:
        if point.runs and point.recipe != asked[key_of(point)].recipe:
            yield f"another recipe of {point.way} on {point.gpus} GPUs"


def whole(points: list[Point]) -> list[Point]:
    """Return the points with the generations that all points of their way and scaling have.

    A run that was stopped may have kept one number of GPUs and not yet the others. A point that failed before has none.
    """
    made = []
    for point in points:
        beside = [p for p in points if (p.way, p.scaling) == (point.way, point.scaling)]
        held = [{run.generation for run in p.runs} for p in beside if p.runs or p.reason == NOT_MEASURED]
        kept = set.intersection(*held) if held else set()
        made.append(replace(point, runs=[run for run in point.runs if run.generation in kept]))
    return made


def _begun(point: Point) -> Point:
    """Return the point, to be tried again unless it would end the same way."""
    if point.runs or point.status in (*STAYS, "n/a"):
        return point
    return replace(point, status="n/a", reason=NOT_MEASURED)
