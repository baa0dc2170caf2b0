"""The resuming of `ladder upstream`: the rounds that a file lacks, on the same machine with the same code."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.results import sources
from ladder.results.combine import resuming

RULES = ("cycles", "seed", "inspected")  # keys of the protocol that must agree
STAYS = ("oom", "invalid", "failed: parity", "not engaged")  # a second try would end the same way

Result = dict[str, Any]


def take_up(path: Path, before: Result, fresh: Result) -> Result:
    """Return `before`, the file's result, ready to continue. `fresh` is the result that would begin now.

    Both steps of a pair come from one sitting, so a round that lacks one of the two is measured anew. Failed visits are
    tried again, except for want of parity, receipts or memory.

    Raises UserError where the two results are not the same measurement.
    """
    fresh = text.fit(fresh)
    resuming.refuse_another_machine(path, before, fresh)
    resuming.refuse_other_workload(path, before, fresh)
    if before["source"] != fresh["source"]:
        raise UserError(f"{path}: --resume: the clone's sources differ from those of this file")
    for key in RULES:
        if before["protocol"][key] != fresh["protocol"][key]:
            raise UserError(
                f"{path}: --resume: {key} was {before['protocol'][key]} and is {fresh['protocol'][key]} here"
            )
    for theirs, ours in zip(before["programs"], fresh["programs"], strict=True):
        if (theirs["rung"], theirs["recipe"]) != (ours["rung"], ours["recipe"]):
            raise UserError(
                f"{path}: --resume: it timed {theirs['rung']}, and the top is {ours['rung']} here"
            )
    resuming.refuse_other_code(path, before, fresh)
    resuming.refuse_other_environment(path, before, fresh)
    timed = [{each["round"] for each in program["rounds"]} for program in before["programs"]]
    whole = next(number for number in itertools.count() if not all(number in rounds for rounds in timed))
    before["protocol"]["rounds"] = whole
    for program in before["programs"]:
        program["rounds"] = [each for each in program["rounds"] if each["round"] < whole]
        if program["status"] not in STAYS:
            program |= (
                {"status": "ok", "reason": None} if whole else {"status": "n/a", "reason": "not measured"}
            )
    return before | sources.gone_on_with(before, fresh) | {"complete": False}
