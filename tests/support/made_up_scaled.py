"""A made-up file of `ladder scale`, on the machine of a committed result: simulated."""

from __future__ import annotations

import json
from typing import Any

from ladder.core.records import write_record
from ladder.plan import needs
from ladder.plan.catalog import load_workload
from ladder.studies.scale.record import list_points

HEAD = {"schema": 2, "commit": "a" * 40, "dirty": False, "seconds": 200.0, "environment": {}}
HEAD |= {"started": "2026-01-01T00:00:00+00:00"}
REPEATS = (1.0, 1.002, 0.998)
ALONE_MS, COMMUNICATION_MS = 50.0, 1.2
PARITY = {"phases": {"G_main": {"loss": {"nearest_error": 0.01, "nearest_budget": 0.02, "judged": 1}}}}


def of_scaled(
    machine: dict[str, Any], gpus: tuple[int, ...] = (1, 2, 4, 8), name: str = "article-b32"
) -> dict[str, Any]:
    """Return a file whose communication is that of a ring: 2 (n - 1) / n of the gradients cross each link."""
    workload = load_workload(name)[1]
    able = needs.join_capabilities(dict.fromkeys(needs.NEEDS), workload)
    cases = list_points(("top", "ddp"), able, workload, list(gpus), ("weak", "strong"), 32)
    observed: dict[str, Any] = {}
    for case in cases:
        share = case.batch / case.gpus / workload["batch"]
        exposed = COMMUNICATION_MS * 2 * (case.gpus - 1) / case.gpus * (2 if case.way == "ddp" else 1)
        ms = ALONE_MS * share + exposed
        runs = [_run(k, ms * factor, exposed) for k, factor in enumerate(REPEATS)]
        observed[case.key] = {"runs": runs}
    points = {case.key: write_record(case) for case in cases}
    for way, proved in (("top", {"parity": PARITY}), ("ddp", {"reported_then": "ok"})):
        key, recipe = f"proof of {way} on 2", {"ranks": 2}
        points[key] = {"kind": "proof", "way": way, "gpus": 2, "batch": 8, "recipe": recipe}
        observed[key] = {**proved, "lines": ["ranks: 2"]}
    data = HEAD | {"kind": "scaled", "machine": machine, "measured_code": {"kernels": "0" * 16}}
    data |= {"workload": {"name": name, **workload, "data": "sample-photographs"}}
    options = {"ways": ["top", "ddp"], "gpus": ",".join(map(str, gpus)), "total": 32, "visits": 2}
    return json.loads(json.dumps(data | {"options": options, "cases": points, "observed": observed}))


def _run(generation: int, ms: float, exposed: float) -> dict[str, Any]:
    return {
        "generation": generation, "samples_ms": [ms, ms * 1.001], "gpu_ms": ms - 0.5, "comm_ms": exposed,
        "exposed_ms": exposed, "peak_reserved_bytes": 20 * 2**30, "peak_allocated_bytes": 18 * 2**30,
        "device_used_bytes": 22 * 2**30, "peak_rss_bytes": 4 * 2**30, "prepare_s": 30.0, "rejected": 0,
        "others_cpu": 0.0,
    }  # fmt: skip
