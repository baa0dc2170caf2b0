"""What results of other kinds than a ladder's may hold: `ladder kernels`, `ladder doctor --roofline`, `ladder sustain`.

Other files have `ladder precision` (`ladder.studies.precision.schema`), kernels.tuning and its like
(`ladder.studies.kernelbench.tuning_schema`), and the project's own checks and trials
(`ladder.publish.validation.schema_checks`). As in `ladder.results.schema`: keys that are not named are refused, so
whoever writes a new one adds it there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ladder.base import text
from ladder.base.rules import Problem, Rule, fields, items, mapping, maybe, number, one_of, pattern
from ladder.machine import neighbours
from ladder.publish.regressions import schema as accepting
from ladder.publish.validation import schema_checks
from ladder.results import code_digest, identity, publishable
from ladder.results import store as results
from ladder.results.schema import (
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
from ladder.studies.claims.schema import CLAIMS, contradicted
from ladder.studies.kernelbench import tuning_schema
from ladder.studies.kernelbench.tuning_schema import AMOUNT, LAYOUT, LINE, SHAPE
from ladder.studies.precision import schema as schema_precision
from ladder.studies.roofline import in_step
from ladder.studies.roofline import view as roofline_view
from ladder.studies.sustain import measure as sustaining
from ladder.studies.upstream import schema as upstream
from stylegan_lite.config import Recipe

CONTENDER = one_of("ours", "twin", "plain", "compile", "copy")
COMMIT = maybe(pattern(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits"))
REAL = number(-1e30, 1e30)
RATE = number(1e-30, 1e30)
SHAPED = pattern(r"[A-Za-z0-9 ,.*_x-]{1,120}", "an op with its shape")
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
                "groups": mapping(one_of(in_step.CONVOLUTIONS, in_step.OTHERS, in_step.IDLE), GROUPED, 3),
                "settings": SETTINGS,
            }
        ),
    },
    CONDITIONS
    | {
        "ladder": PART,
        "floors_commit": COMMIT,
        "in_step": mapping(
            one_of(*in_step.PARTS),
            fields({"alone_ms": AMOUNT, "ms": AMOUNT, "source": LINE}),
            len(in_step.PARTS),
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
        code_digest.KEY: CODE[code_digest.KEY],
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

KINDS: dict[str, Rule] = (
    {
        "claims": CLAIMS,
        "kernels": KERNELS,
        "precision": schema_precision.RESULT,
        "roofline": ROOFLINE,
        "sustained": SUSTAINED,
        "upstream": upstream.RESULT,
    }
    | tuning_schema.KINDS
    | schema_checks.KINDS
)
UNNAMED = {"tools": "sanitizer", "benchmarks": "pytest-benchmark"}  # by a key that no other kind has


def kind_of(data: dict[str, Any]) -> Any:
    """Return what a file calls its kind ("what" in self-tests and tables of faults), or None for a ladder's."""
    for key in ("what", "kind"):
        if key in data:
            return data[key]
    return next((kind for key, kind in UNNAMED.items() if key in data and "schema" not in data), None)


def contradiction(data: dict[str, Any]) -> str | None:
    """What cannot be in a file that its schema takes, in one line, or None."""
    kind = kind_of(data)
    machine = data.get("machine") or data.get("machine_info")
    if machine is None or kind.endswith("tuning"):
        return None
    hardware = machine["gpu"] if machine.get("device", "cpu") == "cuda" else machine["cpu"]
    hardware = hardware["brand_raw"] if isinstance(hardware, dict) else hardware
    if hardware is None or machine["name"] not in (
        text.slug(hardware),
        text.slug(machine["gpu"] or hardware),
    ):
        return f"machine.name: {machine['name']!r} is not made from its hardware"
    if isinstance(data.get("workload"), dict) and (problem := identity.misnamed(data["workload"])):
        return problem
    if kind == "claims":
        return contradicted(data)
    if kind == "compare":
        return accepting.problem_of(data)
    if kind == "precision":
        return schema_precision.contradiction(data)
    if kind == "upstream":
        return upstream.contradiction(data)
    if kind == "sustained":
        return sustaining.contradiction(data)
    if kind == "kernels":
        if problem := code_digest.contradiction(data):
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
    kind = kind_of(data)
    noted = kind in ("kernels", "claims", "precision", "sustained", "upstream")
    found = list(data["protocol"]["notes"]) if noted else []
    if kind == "roofline":
        if data["dirty"]:
            found.append("dirty work tree: not to be published")
        found += [f"no floor: {name} took less" for name in in_step.below(data["measured"]["groups"])]
    if kind in schema_checks.KINDS:
        found += [publishable.DIRTY] * bool(data.get("dirty"))
        found += [publishable.PARTIAL] * (data.get("complete") is False)
    return found
