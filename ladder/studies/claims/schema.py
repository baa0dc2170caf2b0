"""The schema of a result of `ladder kernels --claims`. Unknown keys are refused, as in `ladder.results.schema`."""

from __future__ import annotations

from typing import Any

from ladder.base.rules import fields, items, mapping, maybe, number, one_of, pattern
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.results.schema import (
    AMOUNT,
    BYTES,
    CONDITIONS,
    COUNT,
    FLAG,
    INTERVAL,
    MACHINE,
    MICROSECONDS,
    NOTES,
    SECONDS,
    STARTED,
    SUMMARY,
    TEXT,
)

SHARE = maybe(number(0, 1.2))  # achieved occupancy is an average and may slightly exceed 1
NAME = pattern(r"[A-Za-z0-9 .,:+_-]{1,96}", "the name of an experiment or of a contender")
KERNEL = pattern(r"[A-Za-z_0-9 <>,.:()&*~-]{1,96}", "the name of a kernel")
EXPERIMENT = fields(
    {
        "name": NAME,
        "shape": items(COUNT, 8, least=1),
        "itemsize": COUNT,
        "method": maybe(one_of("graph", "events")),
        "bytes": mapping(NAME, BYTES, 32),
        "samples_us": mapping(NAME, items(MICROSECONDS, 1000), 32),
        "reasons": mapping(NAME, TEXT, 32),
        "notes": NOTES,
        "us": mapping(NAME, SUMMARY, 32),
    }
)
KERNEL_ROW = fields(
    {
        "source": NAME,
        "kernel": KERNEL,
        "language": one_of("Triton", "CUDA C++"),
        "grid": items(COUNT, 3),
        "threads": COUNT,
        **dict.fromkeys(("registers", "shared_bytes", "local_bytes", "blocks", "spilling"), maybe(COUNT)),
        "occupancy": SHARE,
        "limited_by": maybe(TEXT),
        "achieved": SHARE,
        "forms": COUNT,
    }
)
SUMS = ("dram_read", "dram_written", "load_requests", "load_sectors", "store_requests", "store_sectors", "ns")
COUNTED = fields(
    {**dict.fromkeys((*SUMS, "sectors_a_load", "sectors_a_store"), maybe(AMOUNT)), "occupancy": SHARE}
)
CLAIM = fields(
    {
        "name": NAME,
        "figure": maybe(items(AMOUNT, 2, least=2)),
        "unit": one_of("x", "percent", "us", "ms", "MB"),
        "ours": maybe(SUMMARY),
        "verdict": one_of("holds", "more", "less", "does not hold", "ambiguous", "not separated", "n/a"),
        "reason": maybe(TEXT),
    }
)
PRECISION = fields({"claim": NAME, "precision": NAME, "on": NAME, "ours": AMOUNT, "interval": INTERVAL})
CLAIMS = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "kind": one_of("claims"),
        "machine": MACHINE,
        "commit": maybe(pattern(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits")),
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
                "l2_bytes": BYTES,
                "evict": COUNT,
                "graph_ms": number(0, 1e6),
                "notes": NOTES,
                "counters": maybe(TEXT),
            }
        ),
        "experiments": items(EXPERIMENT, 100, least=1),
        "kernels": items(KERNEL_ROW, 2000),
        "counters": mapping(NAME, COUNTED, 1000),
        "errors": mapping(NAME, AMOUNT, 32),
        "kernels_per_step": maybe(AMOUNT),
        "precision": items(PRECISION, 200),
        "claims": items(CLAIM, 100, least=1),
    },
    CONDITIONS,
)


def contradicted(data: dict[str, Any]) -> str | None:
    """Return what is impossible, or None: a median outside its samples, or a claim that its numbers contradict."""
    from ladder.studies.claims import registry

    for experiment in data["experiments"]:
        for name, summary in experiment["us"].items():
            samples = experiment["samples_us"].get(name)
            if not samples or not min(samples) * 0.999999 <= summary["median"] <= max(samples) * 1.000001:
                return f"{experiment['name']}: the median of {name} is not among its samples"
    stored = {row["name"]: row for row in data["claims"]}
    if len(stored) < len(data["claims"]) or not stored.keys() <= registry.BY_NAME.keys():
        return "claims: a name is unknown or appears twice"
    for row in registry.judged(data):
        other = stored.get(row["name"])
        if other is not None and other["verdict"] != row["verdict"]:
            return f"claim {row['name']}: {other['verdict']}, but the samples say {row['verdict']}"
        if other is not None and row["ours"] is not None:
            theirs = other["ours"] and other["ours"]["median"]
            if theirs is None or abs(theirs - row["ours"]["median"]) > 1e-6 * abs(row["ours"]["median"]):
                return f"claim {row['name']}: not what the samples say"
    return None


KIND = Kind("claims", CLAIMS, contradicted, notes=True)
