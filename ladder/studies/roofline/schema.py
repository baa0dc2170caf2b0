"""The schema of a result of `ladder doctor --roofline`; see `ladder.results.schema`."""

from __future__ import annotations

import dataclasses
from typing import Any

from ladder.base.rules import Problem, fields, items, mapping, maybe, number, one_of, pattern
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.results.schema import (
    AMOUNT,
    COMMIT_OR_NONE,
    CONDITIONS,
    FLAG,
    IDENTIFIER,
    LAYOUT,
    LINE,
    MACHINE,
    PART,
    PHASE,
    RATE,
    REAL,
    SCALAR,
    SECONDS,
    SETTINGS,
    SHAPED,
    WORKLOAD,
)
from ladder.studies.roofline import in_step
from ladder.studies.roofline import view as roofline_view
from stylegan_lite.config import Recipe

AMOUNTS = mapping(pattern(r"[A-Za-z0-9_]{1,64}", "an amount"), AMOUNT, 32)

NEEDED = ("flops", "bytes", "convolutions_ms", "bytes_ms", "matmul_ms", "light_ms", "peak_ms")


def FLOOR(value: Any) -> Problem | None:
    """Check the amounts of a phase or step, and the bytes by purpose. No floor may be zero."""
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
        "commit": COMMIT_OR_NONE,
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
        "floors_commit": COMMIT_OR_NONE,
        "in_step": mapping(
            one_of(*in_step.PARTS),
            fields({"alone_ms": AMOUNT, "ms": AMOUNT, "source": LINE}),
            len(in_step.PARTS),
        ),
    },
)


KIND = Kind("roofline", ROOFLINE)
