"""The rules of a comparison's file, read as if from a stranger: known keys, numbers in range, plain text.

Derived values (verdicts, ratios, accepted slowdowns) are never taken from the file. They are judged anew from the
rounds.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.rules import Rule, fields, items, maybe, number, one_of, pattern
from ladder.publish.regressions import judging
from ladder.publish.regressions.comparing import KIND, PARTS, SCHEMA
from ladder.results import code_digest, identity, plausible, record, schema
from ladder.results import store as results
from stylegan_lite.config import Workload

MOST_BYTES = 2**21
MOST_RUNGS, MOST_ROUNDS = 32, 100
DERIVED = ("verdict", "ratio", "interval", "confidence", "floor", "least", "resolution", "base_ms", "head_ms")


def _digests(*parts: str) -> Rule:
    return fields(dict.fromkeys(parts, pattern(schema.DIGEST, "a digest")))


_SIDE = fields({"commit": schema.COMMIT, "name": schema.TEXT, code_digest.KEY: _digests(*PARTS)})
_CHOICE = fields(
    dict.fromkeys(("op", "direction"), schema.IDENTIFIER)
    | dict.fromkeys(("tile", "columns", "warps", "per_sm", "stages"), schema.COUNT),
    {
        "itemsize": schema.COUNT,
        "layout": one_of("nhwc", "nchw"),
        "architecture": schema.COUNT,
        "size": one_of("small", "medium", "large"),
    },
)
_NUMBER = maybe(number(-1e30, 1e30))
_DERIVED = dict.fromkeys(DERIVED, _NUMBER) | {
    "verdict": maybe(schema.TEXT),
    "interval": maybe(items(number(-1e30, 1e30), 2, least=2)),
}
RULE = fields(
    {
        "schema": number(SCHEMA, SCHEMA, whole=True),
        "kind": one_of(KIND),
        "machine": schema.MACHINE,
        "workload": fields(
            {"name": schema.PART, "data": one_of(None, "sample-photographs")},
            {f.name: schema.SCALAR for f in dataclasses.fields(Workload) if f.name != "data"},
        ),
        "base": _SIDE,
        "head": _SIDE,
        "harness": fields(
            {
                "commit": maybe(schema.COMMIT),
                "dirty": maybe(schema.FLAG),
                code_digest.KEY: _digests("rungs", "engine"),
            }
        ),
        "protocol": fields(
            {
                "fixed": schema.FLAG,
                "budget_s": maybe(schema.SECONDS),
                "rounds": schema.COUNT,
                "cycles": number(1, 100_000, whole=True),
                "cycle_steps": number(record.CYCLE_STEPS, record.CYCLE_STEPS, whole=True),
                "seed": number(0, 2**32, whole=True),
                "settle_s": schema.SECONDS,
                "settle_cycles": schema.COUNT,
            }
        ),
        "complete": schema.FLAG,
        "started": schema.STARTED,
        "seconds": schema.SECONDS,
        "rungs": items(
            fields(
                {"name": schema.PART, "title": schema.TEXT, "skipped": maybe(schema.TEXT)},
                {"known": maybe(schema.TEXT), "reason": maybe(schema.TEXT), "rounds": schema.COUNT}
                | _DERIVED,
            ),
            MOST_RUNGS,
            least=1,
        ),
        "programs": items(
            fields(
                {
                    "rung": schema.PART,
                    "side": one_of(*judging.SIDES),
                    "status": one_of(*results.STATUSES),
                    "reason": maybe(schema.TEXT),
                    "recipe": maybe(schema.RECIPE),
                    "settings": maybe(schema.SETTINGS),
                    "choices": maybe(items(_CHOICE, 100)),
                    "rounds": items(schema.ROUND, MOST_ROUNDS),
                }
            ),
            3 * MOST_RUNGS,
        ),
        "gpu": maybe(schema.RUN_GPU),
        "notes": schema.NOTES,
    },
    schema.CONDITIONS,
)


def load(path: Path) -> dict[str, Any]:
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
    if problem := problem_of(data):
        raise UserError(f"{name}: {problem}")
    for rung in data["rungs"]:
        rung["known"] = None
    judging.judge(data)
    return data


def problem_of(data: Any) -> str | None:
    """Return the problem of a comparison in one line, or None."""
    if problem := RULE(data):
        return f"{problem[0].lstrip('.') or 'the file'}: {problem[1]}"
    if problem := identity.misnamed(data["workload"]):
        return problem
    names = [rung["name"] for rung in data["rungs"]]
    if len(set(names)) < len(names):
        return "rungs: one is there twice"
    expected = {(r["name"], side) for r in data["rungs"] if not r["skipped"] for side in judging.SIDES}
    seen = [(each["rung"], each["side"]) for each in data["programs"]]
    if len(seen) != len(expected) or set(seen) != expected:
        return "programs: not BASE, HEAD and BASE again of each rung"
    least = plausible.floor_ms(data["machine"], data["workload"])
    for each in data["programs"]:
        if problem := _contradiction(each, least):
            return f"{each['rung']}, {each['side']}: {problem}"
    return None


def _contradiction(program: dict[str, Any], least: tuple[float, float] | None) -> str | None:
    numbers = [each["round"] for each in program["rounds"]]
    if len(set(numbers)) < len(numbers):
        return "a round is there twice"
    if any(not each["samples_ms"] for each in program["rounds"]):
        return "a round without samples"
    if program["status"] == "ok" and not numbers:
        return "status ok without a round"
    if (program["status"] == "ok") != (program["reason"] is None) and program["status"] != "n/a":
        return "a status that its reason contradicts"
    return plausible.program_too_fast(program, least)
