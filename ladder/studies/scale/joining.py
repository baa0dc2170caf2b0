"""The joining of several runs of `ladder scale`, or of parts of one that was stopped, into one result.

Points of one generation are compared with each other. So every generation gets a new number, the same for all points
of it. Samples stay.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.base.errors import UserError
from ladder.core.records import write_record
from ladder.results import sources
from ladder.results.combine import belonging
from ladder.results.types import head
from ladder.studies import frame
from ladder.studies.scale import STUDY
from ladder.studies.scale.record import FEWEST, STRONG, Case, File, Observed, find_end

Key = tuple[str, str, int, int]
REFUSED = ("not engaged", "failed: parity")


def join(found: Sequence[tuple[Path, File]], anyway: bool = False) -> File:
    """Return the result of all runs in these files; one file is returned as it is.

    Raises:
        UserError: the files do not belong together, or hold the same run; one line.
    """
    found = sorted(found, key=lambda each: each[1].started[:19])
    if len(found) == 1:
        return found[0][1]
    belonging.refuse_the_same(found, list_visits)  # type: ignore[arg-type]
    for index, (path, file) in enumerate(found):
        if not any(each.runs for each in file.observed.values()):
            raise UserError(f"{path}: nothing was measured in it")
        for earlier_path, earlier in found[:index]:
            differ = functools.partial(list_differences, earlier, file)
            belonging.refuse_others(earlier_path, path, differ, anyway)
    joined = _join([file for _, file in found])
    try:
        return frame.decode_file(STUDY, write_record(joined))
    except UserError as error:
        raise UserError(f"these cannot be one result: {error}") from None


def list_points(file: File) -> dict[Key, tuple[Case, Observed]]:
    """Return every point and what was observed of it."""
    return {
        (case.way, case.scaling or "", case.gpus, case.batch): (case, file.observed.get(key, Observed(status="n/a")))
        for key, case in file.cases.items()
        if case.kind == "point"
    }  # fmt: skip


def list_differences(first: File, other: File, anyway: bool = False) -> list[str]:
    """Return why points of the two cannot stand side by side: each difference with both values."""
    lines = belonging.other_origin(first, other, anyway)  # type: ignore[arg-type]
    one, two = first.options.visits, other.options.visits
    lines += [f"visits: {one} and {two}"] if one != two else []
    pair = list_points(first), list_points(other)
    totals = [{case.batch for case, _ in each.values() if case.scaling == STRONG} for each in pair]
    if all(totals) and totals[0] != totals[1]:
        lines.append(f"total batch of strong scaling: {' and '.join(str(min(each)) for each in totals)}")
    for key, (case, each) in pair[0].items():
        theirs, beside = pair[1].get(key, (case, Observed()))
        if each.runs and beside.runs and case.recipe != theirs.recipe:
            names = [
                k for k in {**case.recipe, **theirs.recipe} if case.recipe.get(k) != theirs.recipe.get(k)
            ]
            lines.append(f"recipe of {case.way} on {case.gpus} GPUs: {', '.join(names)}")
    return lines + _list_unproved(first, other) + _list_unproved(other, first)


def _list_unproved(first: File, other: File) -> list[str]:
    """Return the ways that one run did not let pass and the other timed."""
    timed = {case.way for case, each in list_points(other).values() if case.gpus > 1 and each.runs}
    return [
        f"{first.cases[key].way}: {each.status} and timed"
        for key, each in first.observed.items()
        if first.cases[key].kind == "proof" and each.status in REFUSED and first.cases[key].way in timed
    ]


def list_visits(file: File) -> set[tuple[Any, ...]]:
    """Return every run by its point and samples. Two clocks do not agree to the last digit by chance."""
    points = list_points(file).items()
    return {(key, *run.samples_ms) for key, (_, each) in points for run in each.runs}


def _join(files: Sequence[File]) -> File:
    """Return one result around the points of all, oldest first."""
    newest, first = files[-1], 0
    cases: dict[str, Case] = {}
    observed: dict[str, Observed] = {}
    for file in files:
        for key, case in file.cases.items():
            cases.setdefault(key, case)
            if (each := file.observed.get(key)) is None:
                continue
            runs = [replace(run, generation=first + run.generation) for run in each.runs]
            before = observed.get(key, Observed(status="n/a"))
            # Where runs differ: a number, else why there is none. Of proofs one that is ok, else the newest.
            chosen = each if each.status == "ok" or before.status != "ok" else before
            observed[key] = replace(chosen, runs=[*before.runs, *runs], stopped=None)
        first += find_end(file)
    for key, each in observed.items():  # a whole run has so many
        if 0 < len(each.runs) < FEWEST:
            observed[key] = replace(each, stopped=True)
    merged = [run for file in files for run in file.merged or [sources.as_merged(file, find_end(file))]]
    ways = list(dict.fromkeys(case.way for case in cases.values()))
    gpus = ",".join(map(str, sorted({case.gpus for case in cases.values() if case.kind == "point"})))
    generations = max(file.options.generations for file in files)
    code = {"commits": None} | sources.all_commits([head(file) for file in files])
    return replace(
        newest,
        cases=cases,
        observed=observed,
        merged=merged,
        options=replace(newest.options, ways=ways, gpus=gpus, generations=generations),
        dirty=True if any(file.dirty for file in files) else newest.dirty,
        seconds=round(sum(file.seconds for file in files), 1),
        **code,
    )
