"""The schema of a result of `ladder kernels`; see `ladder.results.schema`."""

from typing import Any

from ladder.base.rules import Rule, fields, items, mapping, maybe, number, one_of, pattern
from ladder.results import code_digest
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.results.schema import (
    AMOUNT,
    BYTES,
    CODE,
    COMMIT_OR_NONE,
    CONDITIONS,
    COUNT,
    FLAG,
    IDENTIFIER,
    INTERVAL,
    LAYOUT,
    LINE,
    MACHINE,
    MICROSECONDS,
    NOTES,
    PART,
    SECONDS,
    SHAPE,
    STARTED,
    SUMMARY,
    TEXT,
    VERDICT,
)

CONTENDER = one_of("ours", "twin", "plain", "compile", "copy")


def by_temperature(rule: Rule) -> Rule:
    return fields({"cold": rule, "hot": rule})


DISPATCH = fields(  # a call's key in `kernels.alternatives`
    {
        "op": IDENTIFIER,
        # An empty text is written as "-".
        "variant": pattern(r"-|[a-z0-9 ]{0,60}", "words that distinguish a call"),
        "architecture": COUNT,
        "dtype": one_of("bfloat16", "float16", "float32", "float64"),
        "layout": one_of("nhwc", "nchw", "rows", "other"),
        "size": number(0, 64, whole=True),
    }
)

KERNEL_ROW = fields(
    {
        "case": TEXT,
        "op": TEXT,
        "function": IDENTIFIER,
        "shape": SHAPE,
        "batch": COUNT,
        "dtype": one_of("bf16", "fp32"),
        "layout": LAYOUT,
        "setting": COUNT,
        "workloads": items(PART, 32),
        "direction": one_of("forward", "backward", "double backward"),
        "bytes": maybe(BYTES),
        "method": maybe(one_of("graph", "events")),
        "captured": mapping(pattern(r"(cold|hot) [a-z]+", "a contender"), COUNT, 16),
        "notes": NOTES,
        "samples_us": by_temperature(mapping(CONTENDER, items(MICROSECONDS, 1000), 8)),
        "reasons": mapping(CONTENDER, TEXT, 8),
        "launches": items(
            fields({"kernel": IDENTIFIER, "grid": items(COUNT, 3), "choices": maybe(LINE)}), 200
        ),
        "us": by_temperature(mapping(CONTENDER, SUMMARY, 8)),
        "share": mapping(CONTENDER, SUMMARY, 8),
        "floor": maybe(AMOUNT),
        "against": mapping(
            CONTENDER,
            fields(
                {
                    "verdict": VERDICT,
                    "times_faster": AMOUNT,
                    "interval": INTERVAL,
                    "confidence": maybe(number(0, 1)),
                }
            ),
            8,
        ),
        "verdict": VERDICT,
    },
    {"sitting": COUNT, "dispatch": maybe(DISPATCH), "taken": maybe(one_of("plain"))},
)

SITTING = fields({"started": STARTED, "seconds": SECONDS, "minutes": number(0, 1e6), "cases": COUNT})

KERNELS = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "kind": one_of("kernels"),
        "machine": MACHINE,
        "commit": COMMIT_OR_NONE,
        "dirty": maybe(FLAG),
        "complete": FLAG,
        "started": STARTED,
        "seconds": SECONDS,
        "protocol": fields(
            {
                "minutes": number(0, 1e6),
                "quick": FLAG,
                "smoke": FLAG,
                "seed": COUNT,
                "workloads": items(PART, 32),
                "ops": items(TEXT, 64),
                "l2_bytes": BYTES,
                "evict": COUNT,
                "graph_ms": number(0, 1e6),
                "compile": TEXT,
                "notes": NOTES,
            },
            {"first": one_of("memory-bound", "largest")},
        ),
        "rows": items(KERNEL_ROW, 10_000, least=1),
    },
    {"sittings": items(SITTING, 1000, least=1)} | CODE | CONDITIONS,
)


def contradiction(data: dict[str, Any]) -> str | None:
    """Return, in one line, what is impossible in a file that the schema accepts, or None."""
    if problem := code_digest.contradiction(data):
        return problem
    for row in data["rows"]:
        if row.get("sitting", 0) >= len(data.get("sittings", [None])):
            return f"{row['case']}: there was no sitting {row['sitting']}"
        for temperature, found in row["us"].items():
            for name, summary in found.items():
                samples = row["samples_us"].get(temperature, {}).get(name)
                if not samples or not min(samples) * 0.999999 <= summary["median"] <= max(samples) * 1.000001:
                    return f"{row['case']}: the median of {name} is not among its samples"
    return None


KIND = Kind("kernels", KERNELS, contradiction, notes=True)
