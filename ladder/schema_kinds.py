"""What results of other kinds than a ladder's may hold: `ladder kernels`, `ladder doctor --roofline`, kernels.tuning.

`ladder precision` has a file of its own (`ladder.schema_precision`). As in `ladder.schema`: keys that are not named are
refused, so whoever writes a new one adds it here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ladder import (
    identity,
    instep,
    measured,
    neighbours,
    results,
    roofline_view,
    schema_precision,
    sustaining,
)
from ladder.claims.schema import CLAIMS, contradicted
from ladder.rules import Problem, Rule, fields, items, mapping, maybe, number, one_of, pattern
from ladder.schema import (
    BYTES,
    CODE,
    CONDITIONS,
    COUNT,
    FLAG,
    IDENTIFIER,
    INTERVAL,
    MACHINE,
    MICROSECONDS,
    MS,
    NOTES,
    PART,
    PHASE,
    RECIPE,
    SCALAR,
    SECONDS,
    SETTINGS,
    STARTED,
    TEXT,
    WORKLOAD,
)
from ladder.upstream import schema as upstream
from stylegan_lite.config import Recipe

LAYOUT = one_of("channels_last", "NCHW", "nchw", "nhwc")
CONTENDER = one_of("ours", "twin", "plain", "compile", "copy")
COMMIT = maybe(pattern(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits"))
SHAPE = items(number(0, 2**31, whole=True), 8, least=1)
AMOUNT = number(0, 1e30)
REAL = number(-1e30, 1e30)
RATE = number(1e-30, 1e30)
SHAPED = pattern(r"[A-Za-z0-9 ,.*_x-]{1,120}", "an op with its shape")
LINE = pattern(r"[ -~]{1,1000}", "a line of printable ASCII")
VERDICT = pattern(r"[a-z][a-z ]{0,40}", "a verdict")

# ---- ladder kernels ----------------------------------------------------------------------------------------------

SUMMARY = fields({"median": AMOUNT, "interval": INTERVAL})


def by_temperature(rule: Rule) -> Rule:
    return fields({"cold": rule, "hot": rule})


DISPATCH = fields(  # a call's place in `kernels.alternatives`
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
        "commit": COMMIT,
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

# ---- kernels.tuning ----------------------------------------------------------------------------------------------

TUNED_RUNS = items(
    fields(
        {"shape": SHAPE},
        {"error": LINE, "share": AMOUNT, "bytes": BYTES}
        | dict.fromkeys(("microseconds", "copy_microseconds", "driver_copy_microseconds"), AMOUNT),
    ),
    32,
)
TUNED = fields(
    {
        "key": fields(
            {"op": IDENTIFIER, "direction": IDENTIFIER, "itemsize": COUNT, "layout": LAYOUT}
            | {"architecture": COUNT, "size": one_of("small", "medium", "large")}
        ),
        "choice": fields(dict.fromkeys(("tile", "columns", "warps", "per_sm", "stages"), COUNT)),
        "current": FLAG,
        "all_shapes": FLAG,
        "share": AMOUNT,
        "runs": TUNED_RUNS,
    }
)
FILTERED = fields(
    {
        "kernel": LINE,
        "nhwc": FLAG,
        "config": mapping(IDENTIFIER, maybe(AMOUNT), 16),
        "current": FLAG,
        "runs": TUNED_RUNS,
    }
)
PLANES = fields(
    {
        "direction": one_of("forward", "backward"),
        "dtype": one_of("bfloat16", "float32"),
        "noise": FLAG,
        "cache_share": AMOUNT,
        "config": maybe(
            fields(
                {"per_sm": AMOUNT, "hints": FLAG, "back": FLAG}
                | dict.fromkeys(("block", "warps", "stages", "again"), COUNT)
            )
        ),
        "current": FLAG,
        "candidates": COUNT,
        "runs": TUNED_RUNS,
    }
)


def tuning(kind: str, row: Rule) -> Rule:
    return fields(
        {
            "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
            "kind": one_of(kind),
            "gpu": TEXT,
            "torch": TEXT,
            "timed": items(row, 10_000, least=1),
        },
        {"notes": items(LINE, 16)},
    )


TUNING, FILTER_TUNING = tuning("tuning", TUNED), tuning("filter tuning", FILTERED)
PLANES_TUNING = tuning("planes tuning", PLANES)
SUMMED = fields(
    {
        "most": maybe(AMOUNT),
        "config": fields(dict.fromkeys(("rows", "columns", "warps"), COUNT)),
        "current": FLAG,
        "runs": TUNED_RUNS,
    }
)
SUMS_TUNING = tuning("sums tuning", SUMMED)

# ---- ladder doctor --roofline ------------------------------------------------------------------------------------

AMOUNTS = mapping(pattern(r"[A-Za-z0-9_]{1,64}", "an amount"), AMOUNT, 32)
NEEDED = ("flops", "bytes", "convolutions_ms", "bytes_ms", "matmul_ms", "light_ms", "peak_ms")


def FLOOR(value: Any) -> Problem | None:
    """Of a phase or of the step: these amounts, and bytes by what they are for. No floor is zero."""
    if problem := AMOUNTS(value):
        return problem
    for key in NEEDED:
        if key not in value:
            return "", f"the key {key!r} is missing"
    return (".light_ms", "0 is no floor") if value["light_ms"] < 1e-12 else None


RATES = mapping(SHAPED, RATE, 10_000)
GROUPED = fields({"ms": AMOUNT, "floor_ms": AMOUNT, "of_distance": maybe(REAL)})
FAMILY = fields(
    {
        "family": LINE,
        "us": AMOUNT,
        "kernels": AMOUNT,
        "heaviest": LINE,
        "group": LINE,
        "of_step": AMOUNT,
        "of_distance": maybe(REAL),
    }
)
RECIPE_FIELDS = {each.name: SCALAR for each in dataclasses.fields(Recipe) if each.name != "precision"}
ROOFLINE = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "kind": one_of("roofline"),
        "workload": WORKLOAD,
        "rung": PART,
        "recipe": fields({"precision": IDENTIFIER}, RECIPE_FIELDS),
        "layout": LAYOUT,
        "commit": COMMIT,
        "dirty": maybe(FLAG),
        "machine": MACHINE,
        "gpu": PART,
        "ceilings": mapping(one_of(*roofline_view.NAMES), fields({"value": RATE, "source": LINE}), 16),
        "phases": mapping(PHASE, FLOOR, 4),
        "step": FLOOR,
        "convolutions": items(fields({"name": SHAPED, "flops": RATE, "rate": RATE, "source": LINE}), 10_000),
        "today": fields({"rates": RATES, "skipped": mapping(SHAPED, LINE, 10_000), "seconds": SECONDS}),
        "recorded": RATES,
        "measured": fields(
            {
                "phases_ms": mapping(PHASE, AMOUNT, 4),
                **dict.fromkeys(("step_ms", "wall_ms", "busy_ms", "times_light"), AMOUNT),
                "distance_ms": REAL,
                "families": items(FAMILY, 1000),
                "groups": mapping(one_of(instep.CONVOLUTIONS, instep.OTHERS, instep.IDLE), GROUPED, 3),
                "settings": SETTINGS,
            }
        ),
    },
    CONDITIONS
    | {
        "ladder": PART,
        "floors_commit": COMMIT,
        "in_step": mapping(
            one_of(*instep.PARTS),
            fields({"alone_ms": AMOUNT, "ms": AMOUNT, "source": LINE}),
            len(instep.PARTS),
        ),
    },
)

# ---- ladder sustain ----------------------------------------------------------------------------------------------
SUSTAINED = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "kind": one_of("sustained"),
        "workload": WORKLOAD,
        "commit": COMMIT,
        "dirty": maybe(FLAG),
        measured.KEY: CODE[measured.KEY],
        "machine": MACHINE,
        "complete": FLAG,
        "started": STARTED,
        "seconds": SECONDS,
        "protocol": fields({"seconds": SECONDS, "window_s": SECONDS, "seed": COUNT, "notes": NOTES}),
        "rungs": items(
            fields(
                {
                    "name": PART,
                    "recipe": RECIPE,
                    "status": one_of(*results.STATUSES),
                    "reason": maybe(TEXT),
                    "inspected": FLAG,
                    **dict.fromkeys(("first_ms", "sustained_ms"), maybe(MS)),
                    "factor": maybe(RATE),
                    "windows": items(
                        fields(
                            {
                                "at_s": SECONDS,
                                "step_ms": MS,
                                **dict.fromkeys(("sm_mhz", "power_w", "temperature_c"), maybe(AMOUNT)),
                                "reasons": maybe(items(TEXT, 20)),
                            }
                        ),
                        50000,
                    ),
                },
                {neighbours.KEY: maybe(number(0, 1))},
            ),
            100,
        ),
    },
    CONDITIONS,
)

KINDS: dict[str, Rule] = {
    "claims": CLAIMS,
    "filter tuning": FILTER_TUNING,
    "kernels": KERNELS,
    "planes tuning": PLANES_TUNING,
    "sums tuning": SUMS_TUNING,
    "precision": schema_precision.RESULT,
    "roofline": ROOFLINE,
    "sustained": SUSTAINED,
    "tuning": TUNING,
    "upstream": upstream.RESULT,
}


def contradiction(data: dict[str, Any]) -> str | None:
    """What cannot be in a file that its schema takes, in one line, or None."""
    if data["kind"].endswith("tuning"):
        return None
    machine = data["machine"]
    hardware = machine["gpu"] if machine["device"] == "cuda" else machine["cpu"]
    if hardware is None or machine["name"] != results.slug(hardware):
        return f"machine.name: {machine['name']!r} is not made from its hardware"
    if "workload" in data and (problem := identity.misnamed(data["workload"])):
        return problem
    if data["kind"] == "claims":
        return contradicted(data)
    if data["kind"] == "precision":
        return schema_precision.contradiction(data)
    if data["kind"] == "upstream":
        return upstream.contradiction(data)
    if data["kind"] == "sustained":
        return sustaining.contradiction(data)
    if data["kind"] == "kernels":
        if problem := measured.contradiction(data):
            return problem
        for row in data["rows"]:
            if row.get("sitting", 0) >= len(data.get("sittings", [None])):
                return f"{row['case']}: there was no sitting {row['sitting']}"
            for temperature, found in row["us"].items():
                for name, summary in found.items():
                    samples = row["samples_us"].get(temperature, {}).get(name)
                    if (
                        not samples
                        or not min(samples) * 0.999999 <= summary["median"] <= max(samples) * 1.000001
                    ):
                        return f"{row['case']}: the median of {name} is not among its samples"
    return None


def marks(data: dict[str, Any]) -> list[str]:
    """Why a file that is accepted must not be quoted."""
    noted = data["kind"] in ("kernels", "claims", "precision", "sustained", "upstream")
    found = list(data["protocol"]["notes"]) if noted else []
    if data["kind"] == "roofline":
        if data["dirty"]:
            found.append("dirty work tree: not to be published")
        found += [f"no floor: {name} took less" for name in instep.below(data["measured"]["groups"])]
    return found
