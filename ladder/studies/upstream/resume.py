"""`ladder upstream --resume`: the rounds that a file lacks. On the same machine, with the same code on both sides."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.results import sources
from ladder.results.combine import resuming

RULES = ("cycles", "seed", "inspected")  # of the protocol: how a round is made
STAYS = ("oom", "invalid", "failed: parity", "not engaged")  # tried again, it would be the same

Result = dict[str, Any]


def take_up(path: Path, before: Result, fresh: Result) -> Result:
    """`before`, the file's, to be gone on with, if `fresh`, what would begin now, is the same measurement.

    A pair of steps comes from one sitting, so a round in which one of the two was not timed is made anew. What failed
    is tried again; what shows no parity, no receipt or needs more memory is not.
    """
    fresh = text.fit(fresh)
    resuming.refuse_another_machine(path, before, fresh)
    resuming.refuse_other_workload(path, before, fresh)
    if before["source"] != fresh["source"]:
        raise UserError(f"{path}: --resume: another clone, by its sources, than this file's was asked for")
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
