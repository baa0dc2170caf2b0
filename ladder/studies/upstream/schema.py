"""The schema of a result of `ladder upstream`; see `ladder.results.schema` and `ladder.base.rules`."""

from __future__ import annotations

from typing import Any

from ladder.base.rules import alike, fields, items, maybe, number, one_of, pattern
from ladder.results import code_digest, plausible, schema
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.studies.upstream import record, source

SETTINGS = fields(
    {},
    {
        **dict.fromkeys(("cuda_ops", "fast_double_backward", "cudnn_benchmark"), schema.FLAG),
        **dict.fromkeys(("fp16_resolutions", "loader_workers", "parameters_G", "parameters_D"), schema.COUNT),
    },
)


def program(**differs: Any) -> Any:
    return fields(
        {
            "status": one_of(*results.STATUSES),
            "reason": maybe(schema.TEXT),
            "rounds": items(schema.ROUND, 1000),
            "step_ms": maybe(schema.MS),
            "interval_ms": schema.INTERVAL,
            **differs,
        }
    )


_BY_SIDE = {
    record.UPSTREAM: program(
        side=one_of(record.UPSTREAM), rung=one_of(None), recipe=one_of(None), settings=maybe(SETTINGS)
    ),
    record.OURS: program(
        side=one_of(record.OURS), rung=schema.PART, recipe=schema.RECIPE, settings=maybe(schema.SETTINGS)
    ),
}


def PROGRAM(value: Any) -> Any:
    """Check one of the two programs, each with its own settings."""
    side = value.get("side") if isinstance(value, dict) else None
    return _BY_SIDE[side if side == record.OURS else record.UPSTREAM](value)


RESULT = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "kind": one_of("upstream"),
        "workload": schema.WORKLOAD,
        "commit": maybe(schema.COMMIT),
        "dirty": maybe(schema.FLAG),
        code_digest.KEY: schema.CODE[code_digest.KEY],
        "machine": schema.MACHINE,
        "source": fields(
            {"networks": one_of(*source.NETWORKS), "digest": pattern(schema.DIGEST, "a digest of 16 digits")}
        ),
        "complete": schema.FLAG,
        "started": schema.STARTED,
        "seconds": schema.SECONDS,
        "protocol": fields(
            {
                "rounds": schema.COUNT,
                "cycles": schema.COUNT,
                "seed": schema.COUNT,
                "inspected": schema.FLAG,
                "notes": schema.NOTES,
            }
        ),
        "programs": items(PROGRAM, 2, least=2),
        "parity": maybe(schema.PARITY),
        "receipts": maybe(schema.RECEIPTS),
        "inspection": maybe(schema.INSPECTION),
        "ratio": maybe(fields({"median": number(1e-9, 1e9), "interval": schema.INTERVAL})),
        "gpu": maybe(schema.RUN_GPU),
    },
    {"commits": schema.CODE["commits"]} | schema.CONDITIONS,
)


def contradiction(data: dict[str, Any]) -> str | None:
    """Return, in one line, which numbers do not follow from the stored rounds, or None."""
    if problem := code_digest.contradiction(data):
        return problem
    if [each["side"] for each in data["programs"]] != [record.UPSTREAM, record.OURS]:
        return "programs: not NVIDIA's and ours, in that order"
    derived = data | {
        "programs": [dict(each) for each in data["programs"]],
        "protocol": dict(data["protocol"]),
    }
    record.derive(derived)
    for found, wanted in zip(data["programs"], derived["programs"], strict=True):
        if not alike(found["step_ms"], wanted["step_ms"]):
            return f"{found['side']}: step_ms is not what its rounds say"
        if found["status"] == "ok" and not found["rounds"]:
            return f"{found['side']}: ok without a round"
    if not alike(data["ratio"] and data["ratio"]["median"], derived["ratio"] and derived["ratio"]["median"]):
        return "ratio: not what the rounds say"
    if missing := [note for note in derived["protocol"]["notes"] if note not in data["protocol"]["notes"]]:
        return f"protocol.notes: lack {missing[0]!r}"
    ours = data["programs"][1]
    if ours["status"] == "ok" and (
        problem := plausible.program_too_fast(ours, plausible.floor_ms(data["machine"], data["workload"]))
    ):
        return f"ours: {problem}"
    return None


KIND = Kind("upstream", RESULT, contradiction, notes=True)
