"""A made-up result of `ladder sustain`, on the machine of a committed result: no measurement."""

from __future__ import annotations

import json
from typing import Any

from ladder.base.records import build, plain
from ladder.plan.catalog import load_workload
from ladder.studies.sustain import measure as sustaining
from ladder.studies.sustain import record as records
from stylegan_lite.config import Recipe

HEAD = {"schema": 1, "commit": "a" * 40, "dirty": False, "complete": True, "seconds": 200.0}
HEAD |= {"started": "2026-01-01T00:00:00+00:00"}
REPEATS = (1.0, 1.01, 0.99)


def of_sustained(machine: dict[str, Any]) -> bytes:
    """Return a file of two rungs, one of which grows slower."""
    name, fields = load_workload("article")
    state = {"sm_mhz": 1980.0, "power_w": 690.5, "temperature_c": 55, "reasons": ["power_cap"]}
    empty = {"status": "ok", "reason": None, "inspected": True} | dict.fromkeys(records.DERIVED)
    rungs = [
        empty
        | {
            "name": rung,
            "recipe": Recipe().to_dict(),
            "windows": [
                plain(sustaining.window(2.0 * k, [ms * drift / 1000], state))
                for k, drift in enumerate(REPEATS)
            ],
        }
        for rung, ms in (("baseline", 110.0), ("bf16", 60.0))
    ]
    made = HEAD | {"kind": "sustained", "workload": {"name": name, **fields, "data": "sample-photographs"}}
    made |= {"measured_code": {"kernels": "0" * 16}, "machine": machine, "rungs": rungs}
    made |= {"protocol": {"seconds": 6.0, "window_s": 2.0, "seed": 0, "notes": []}}
    return json.dumps(plain(records.derive(build(records.Result, made)))).encode()
