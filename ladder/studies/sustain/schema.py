"""The schema of a result of `ladder sustain`; see `ladder.results.schema`."""

from ladder.base.rules import fields, items, maybe, number, one_of
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
    MACHINE,
    MS,
    NOTES,
    PART,
    RATE,
    RECIPE,
    SECONDS,
    STARTED,
    TEXT,
    WORKLOAD,
)
from ladder.studies.sustain.record import contradiction

# ---- ladder sustain ----------------------------------------------------------------------------------------------
SUSTAINED = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "kind": one_of("sustained"),
        "workload": WORKLOAD,
        "commit": COMMIT_OR_NONE,
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


KIND = Kind("sustained", SUSTAINED, contradiction, notes=True)
