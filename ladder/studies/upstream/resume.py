"""The resuming of `ladder upstream`: the rounds that a file lacks, on the same machine with the same code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ladder.results.combine import resuming
from ladder.results.types import head
from ladder.studies.upstream.record import Program, Result

RULES = ("cycles", "seed", "inspected")  # keys of the protocol that must agree
STAYS = ("oom", "invalid", "failed: parity", "not engaged")  # a second try would end the same way


def take_up(path: Path, before: Result, fresh: Result) -> Result:
    """Return `before`, the file's result, ready to continue. `fresh` is the result that would begin now.

    Both steps of a pair come from one sitting, so a round that lacks one of the two is measured anew. Failed visits are
    tried again, except for want of parity, receipts or memory.

    Raises UserError where the two results are not the same measurement.
    """
    header = resuming.continued(path, head(before), head(fresh), _differences(before, fresh))
    timed = [{each.round for each in program.rounds} for program in before.programs]
    whole = next(number for number in itertools.count() if not all(number in rounds for rounds in timed))
    return replace(
        before,
        **header,
        protocol=replace(before.protocol, rounds=whole),
        programs=[_begun(program, whole) for program in before.programs],
    )


def _differences(before: Result, fresh: Result) -> Iterator[str]:
    """Yield, in one line each, the differences of the clones, the protocols and the programs."""
    if before.source != fresh.source:
        yield "the clone's sources differ from those of this file"
    digests = [each.patched.digest if each.patched else None for each in (before, fresh)]
    if digests[0] != digests[1]:
        if None in digests:
            yield f"it was measured with{'out' if digests[0] is None else ''} --patched"
            return
        yield "the drop-in files differ from those of this file"
    yield from resuming.other_rules(before.protocol, fresh.protocol, RULES)
    for theirs, ours in zip(before.programs, fresh.programs, strict=True):
        if (theirs.rung, theirs.recipe) != (ours.rung, ours.recipe):
            yield f"it timed {theirs.rung}, and the top is {ours.rung} here"


def _begun(program: Program, whole: int) -> Program:
    """Return the program with its whole rounds, to be tried again unless it would end the same way."""
    program = replace(program, rounds=[each for each in program.rounds if each.round < whole])
    if program.status in STAYS:
        return program
    if whole:
        return replace(program, status="ok", reason=None)
    return replace(program, status="n/a", reason="not measured")
