"""The schema of a result of `ladder precision`; see `ladder.results.schema` and `ladder.base.rules`."""

from __future__ import annotations

from typing import Any

from ladder.base.rules import alike, fields, items, mapping, maybe, number, one_of, pattern
from ladder.machine import neighbours
from ladder.results import code_digest
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.results.schema import (
    AMOUNT,
    CODE,
    COMMIT_OR_NONE,
    CONDITIONS,
    COUNT,
    FLAG,
    INTERVAL,
    LINE,
    MACHINE,
    MS,
    NOTES,
    PART,
    PHASE,
    RECIPE,
    SECONDS,
    STARTED,
    WORKLOAD,
)
from ladder.studies.precision import record
from ladder.studies.precision.batch_search import largest

PRECISION = one_of("fp32", "tf32", "bf16", "fp16", "fp8")
BASE = one_of("baseline", "top")
STATUS = pattern(r"[a-z][a-z/: ]{0,40}", "a status")
GIB = maybe(number(0, 1e6))
MEMORY = dict.fromkeys(("allocated_gib", "reserved_gib", "device_gib", "rss_gib"), GIB)
OF_NETWORK = fields({"G": COUNT, "D": COUNT})

ROUND = fields(
    {"round": COUNT, "samples_ms": items(MS, 1000, least=1)} | MEMORY,
    {
        "beside": COUNT,
        neighbours.KEY: maybe(number(0, 1)),
    },  # rows prepared beside it; memory that others took
)
LARGEST = fields(
    {
        "batch": maybe(COUNT),
        "settled": FLAG,
        "tried": items(fields({"batch": COUNT, "reason": maybe(LINE)}), 200),
    }
)
PARITY = fields(
    {
        "verdict": STATUS,
        "reason": maybe(LINE),
        "share": maybe(AMOUNT),
        "gradient_errors": mapping(PHASE, AMOUNT, 4),
        "budget": PRECISION,
    }
)
ROW = fields(
    {
        "precision": PRECISION,
        "on": BASE,
        "status": STATUS,
        "reason": maybe(LINE),
        "recipe": maybe(RECIPE),
        "rounds": items(ROUND, 1000),
        "parity": maybe(PARITY),
        "largest": maybe(LARGEST),
        "step_ms": maybe(MS),
        "interval_ms": INTERVAL,
    }
    | MEMORY
)
HISTORY = fields(
    {
        "on": BASE,
        "steps": COUNT,
        "initial": AMOUNT,
        "interval": COUNT,
        "images": FLAG,
        "changes": items(
            items(AMOUNT, 5, least=5), 4000, least=1
        ),  # step, scales of G and D, skipped of G and D
        "updates": OF_NETWORK,
        "skipped": OF_NETWORK,
    }
)
CLAIM = fields(
    {
        "claim": one_of("throughput", "memory", "batch"),
        "article": AMOUNT,
        "precision": PRECISION,
        "against": PRECISION,
        "on": BASE,
        "ours": maybe(AMOUNT),
        "interval": INTERVAL,
    }
)
RESULT = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "kind": one_of("precision"),
        "workload": WORKLOAD,
        "commit": COMMIT_OR_NONE,
        "dirty": maybe(FLAG),
        "machine": MACHINE,
        "complete": FLAG,
        "started": STARTED,
        "seconds": SECONDS,
        "protocol": fields(
            {
                "rounds": COUNT,
                "cycles": COUNT,
                "seed": COUNT,
                "ladder": PART,
                "parity": FLAG,
                "batch_seconds": SECONDS,
                "steps": COUNT,
                "notes": NOTES,
            }
        ),
        "rows": items(ROW, 100, least=1),
        "fp8": mapping(pattern(r"[a-z]{1,20}", "what was tried"), LINE, 8),
        "history": maybe(HISTORY),
        "claims": items(CLAIM, 100),
    },
    CODE | CONDITIONS,
)


def contradiction(data: dict[str, Any]) -> str | None:
    """Return, in one line, which numbers do not follow from their samples, or None."""

    if problem := code_digest.contradiction(data):
        return problem
    for row in data["rows"]:
        derived = dict(row)
        record.derive([derived])
        for key in ("step_ms", *record.TIMED):
            if not alike(row[key], derived[key]):
                return f"{row['precision']} on the {row['on']}: {key} is not what its rounds say"
        if any(each.get("beside") and each["device_gib"] is not None for each in row["rounds"]):
            return f"{row['precision']} on the {row['on']}: device_gib of a round that had others beside it"
        if row["largest"] and row["largest"]["batch"] is not None:
            if row["largest"]["batch"] != largest(row["largest"]["tried"]):
                return (
                    f"{row['precision']} on the {row['on']}: the largest batch is none of those that fitted"
                )
    ours = [claim["ours"] for claim in record.claims(data["rows"])]
    if len(ours) != len(data["claims"]) or not all(
        alike(claim["ours"], wanted) for claim, wanted in zip(data["claims"], ours, strict=True)
    ):
        return "claims: not what the rows say"
    return None


KIND = Kind("precision", RESULT, contradiction, notes=True)
