"""The joining of several runs of `ladder scale`, or of parts of one that was stopped, into one result.

Points of one generation are compared with each other. So every generation gets a new number, the same for all points
of it. Samples stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.core.errors import UserError
from ladder.core.records import write_record
from ladder.results import sources, store
from ladder.results.combine import merging
from ladder.studies import frame
from ladder.studies.scale import STUDY
from ladder.studies.scale.record import STRONG, Case, File, Observed, find_end

REFUSED = ("not engaged", "failed: parity")


def join(runs: Sequence[tuple[Path, File]], anyway: bool = False) -> File:
    """Return the result of all runs in these files; one file is returned as it is.

    Raises:
        UserError: the files do not belong together, or hold the same run; one line.
    """
    runs = sorted(runs, key=lambda each: each[1].started[:19])
    if len(runs) == 1:
        return runs[0][1]
    merging.refuse_the_same(runs, list_visits)  # type: ignore[arg-type]
    for index, (path, file) in enumerate(runs):
        if not any(each.runs for each in file.observed.values()):
            raise UserError(f"{path}: nothing was measured in it")
        for earlier_path, earlier in runs[:index]:
            merging.refuse_others(earlier_path, path, partial(list_differences, earlier, file), anyway)
    joined = _join([file for _, file in runs])
    try:
        return frame.decode_file(STUDY, write_record(joined))
    except UserError as error:
        raise UserError(f"these cannot be one result: {error}") from None


def list_visits(file: File) -> set[tuple[Any, ...]]:
    """Return every run by its point and samples. Two clocks do not agree to the last digit by chance."""
    observed = file.observed.items()
    return {(key, file.cases[key].batch, *run.samples_ms) for key, each in observed for run in each.runs}


def list_differences(first: File, other: File, anyway: bool = False) -> list[str]:
    """Return why points of the two cannot stand side by side: each difference with both values."""
    pair = first, other
    lines = merging.list_origin_differences(*pair, anyway)  # type: ignore[arg-type]
    visits = [each.options.visits for each in pair]
    lines += [f"visits: {visits[0]} and {visits[1]}"] if visits[0] != visits[1] else []
    totals = [{case.batch for case in each.cases.values() if case.scaling == STRONG} for each in pair]
    if all(totals) and totals[0] != totals[1]:
        lines.append(f"total batch of strong scaling: {' and '.join(str(min(each)) for each in totals)}")
    for key in first.cases:
        recipes = [each.cases[key].recipe for each in pair if is_timed(each, key)]
        if len(recipes) == 2 and (
            names := [k for k in recipes[0] | recipes[1] if recipes[0].get(k) != recipes[1].get(k)]
        ):
            lines.append(f"recipe of {key}: {', '.join(names)}")
    for own, theirs in (pair, pair[::-1]):
        ways = {case.way for key, case in theirs.cases.items() if case.gpus > 1 and is_timed(theirs, key)}
        for key, each in own.observed.items():
            case = own.cases[key]
            if case.kind == "proof" and each.status in REFUSED and case.way in ways:
                lines.append(f"{case.way}: {each.status} and timed")
    return lines


def is_timed(file: File, key: str) -> bool:
    """Return whether a case has a run."""
    return key in file.observed and bool(file.observed[key].runs)


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
        if 0 < len(each.runs) < store.FEWEST_ROUNDS:
            observed[key] = replace(each, stopped=True)
    points = [case for case in cases.values() if case.kind == "point"]
    options = replace(
        newest.options,
        ways=list(dict.fromkeys(case.way for case in points)),
        gpus=",".join(map(str, sorted({case.gpus for case in points}))),
        generations=max(file.options.generations for file in files),
    )
    return replace(
        newest,
        cases=cases,
        observed=observed,
        merged=[run for file in files for run in file.merged or [sources.as_merged(file, find_end(file))]],
        options=options,
        dirty=True if any(file.dirty for file in files) else newest.dirty,
        seconds=round(sum(file.seconds for file in files), 1),
        **sources.join_commits(files),
    )
