"""The joining of several runs of `ladder scale`, or of parts of one that was stopped, into one result.

Points of one generation are compared with each other. So every generation gets a new number, the same for all points
of it. Samples stay, and all figures are computed anew.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.records import plain
from ladder.results import check, sources
from ladder.results.combine import belonging
from ladder.results.types import ABSENT, Plain, head
from ladder.studies.scale.proving import FAILED_PARITY, NOT_ENGAGED
from ladder.studies.scale.record import FEWEST, NOT_MEASURED, STRONG, Point, Proof, Result, derive
from ladder.studies.scale.schema import KIND

Key = tuple[str, str, int, int]
Found = Sequence[tuple[Path, Result]]


def join(found: Found, anyway: bool = False) -> Result:
    """Return the result of all runs in these files; one file is judged anew.

    Raises:
        UserError: the files do not belong together, or hold the same run; one line.
    """
    found = sorted(found, key=lambda each: each[1].started[:19])
    if len(found) == 1:
        return derive(found[0][1])
    belonging.refuse_the_same(found, _visits)
    for index, (path, result) in enumerate(found):
        if not any(point.runs for point in result.points):
            raise UserError(f"{path}: nothing was measured in it")
        for earlier_path, earlier in found[:index]:
            differ = functools.partial(differences, earlier, result)
            belonging.refuse_others(earlier_path, path, differ, anyway)
    made = _joined([result for _, result in found])
    if problem := check.problem_of_kind(text.fit(plain(made)), KIND):
        raise UserError(f"these cannot be one result: {problem}")
    return made


def key_of(point: Point) -> Key:
    return point.way, point.scaling, point.gpus, point.batch


def differences(first: Result, other: Result, anyway: bool = False) -> list[str]:
    """Return why points of the two cannot stand side by side: each difference with both values."""
    found = belonging.other_origin(first, other, anyway)
    for name in ("backend", "visits"):
        one, two = (getattr(each.protocol, name) for each in (first, other))
        found += [f"protocol.{name}: {one} and {two}"] * (one != two)
    totals = [{p.batch for p in each.points if p.scaling == STRONG} for each in (first, other)]
    if all(totals) and totals[0] != totals[1]:
        found.append(f"total batch of strong scaling: {' and '.join(str(min(each)) for each in totals)}")
    theirs = {key_of(point): point for point in other.points}
    for one in first.points:
        two = theirs.get(key_of(one))
        if two and one.runs and two.runs and one.recipe != two.recipe:
            names = [k for k in {**one.recipe, **two.recipe} if one.recipe.get(k) != two.recipe.get(k)]
            found.append(f"recipe of {one.way} on {one.gpus} GPUs: {', '.join(names)}")
    return found + _unproved(first, other) + _unproved(other, first)


def _unproved(first: Result, other: Result) -> list[str]:
    """Return the ways that one run did not let pass and the other timed."""
    timed = {point.way for point in other.points if point.gpus > 1 and point.runs}
    return [
        f"{proof.way}: {proof.status} and timed"
        for proof in first.proofs
        if proof.status in (NOT_ENGAGED, FAILED_PARITY) and proof.way in timed
    ]


def _visits(result: Result) -> set[tuple[Any, ...]]:
    """Return every run by its point and samples. Two clocks do not agree to the last digit by chance."""
    return {(key_of(point), *run.samples_ms) for point in result.points for run in point.runs}


def _joined(found: list[Result]) -> Result:
    """Return one result around the points of all, oldest first."""
    newest, heads = found[-1], [head(each) for each in found]
    points = _points(found)
    code: Plain = {"commits": ABSENT} | sources.all_commits(heads)
    made = replace(
        newest,
        points=points,
        proofs=_proofs(proof for each in found for proof in each.proofs),
        merged=[run for each in found for run in each.merged or [sources.as_merged(each, end(each.points))]],
        protocol=replace(newest.protocol, generations=max(each.protocol.generations for each in found)),
        dirty=True if any(each.dirty for each in found) else newest.dirty,
        seconds=round(sum(each.seconds for each in found), 1),
        complete=all(_is_whole(point) for point in points),
        **code,
    )
    return derive(made)


def end(points: Iterable[Point]) -> int:
    """Return the number after that of the last generation."""
    return max((run.generation + 1 for point in points for run in point.runs), default=0)


def _points(found: list[Result]) -> list[Point]:
    """Return every point once, with the runs of all. Generations follow each other, the oldest result's first."""
    made: dict[Key, Point] = {}
    first = 0
    for result in found:
        for point in result.points:
            runs = [replace(run, generation=first + run.generation) for run in point.runs]
            before = made.get(key_of(point))
            chosen = max([before, point] if before else [point], key=_weight)
            made[key_of(point)] = replace(chosen, runs=[*(before.runs if before else []), *runs])
        first += end(result.points)
    order = list(dict.fromkeys((point.way, point.scaling) for point in made.values()))
    return sorted(made.values(), key=lambda point: (order.index((point.way, point.scaling)), point.gpus))


def _weight(point: Point) -> int:
    """Return the weight of a point's status where runs differ: a number, else why there is none, else not known."""
    return {"ok": 2, "n/a": 0}.get(point.status, 1)


def _proofs(proofs: Iterable[Proof]) -> list[Proof]:
    """Return each proof once: one that is ok, else the newest."""
    made: dict[tuple[str, int, int], Proof] = {}
    for proof in proofs:
        key = proof.way, proof.gpus, proof.batch
        if key not in made or made[key].status != "ok":
            made[key] = proof
    return list(made.values())


def _is_whole(point: Point) -> bool:
    """Return whether a point has the generations of a whole run, or cannot be measured here."""
    if point.status == "n/a":
        return point.reason != NOT_MEASURED
    return len({run.generation for run in point.runs}) >= FEWEST
