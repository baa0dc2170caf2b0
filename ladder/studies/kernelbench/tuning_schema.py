"""The schemas of the files of kernels.tuning and its modules filters, planes and sums.

See `ladder.results.schema`.
"""

from __future__ import annotations

from ladder.base.rules import Rule, fields, items, mapping, maybe, number, one_of
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.results.schema import LAYOUT, LINE, SHAPE
from ladder.results.values import AMOUNT, BYTES, COUNT, FLAG, IDENTIFIER, TEXT

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

KINDS = (
    Kind("filter tuning", FILTER_TUNING, hardware=False),
    Kind("planes tuning", PLANES_TUNING, hardware=False),
    Kind("sums tuning", SUMS_TUNING, hardware=False),
    Kind("tuning", TUNING, hardware=False),
)
