"""A made-up result of `ladder scale`, on the machine of a committed result: simulated, and marked as such."""

from __future__ import annotations

from typing import Any

from ladder.base.records import build, plain
from ladder.plan import needs
from ladder.plan.catalog import load_workload
from ladder.studies.scale import measure, record, ways

HEAD = {"schema": 1, "commit": "a" * 40, "dirty": False, "complete": True, "seconds": 200.0}
HEAD |= {"started": "2026-01-01T00:00:00+00:00"}
REPEATS = (1.0, 1.002, 0.998)
NOTE = "simulated: no measurement"
ALONE_MS, COMMUNICATION_MS = 50.0, 1.2


def of_scaled(
    machine: dict[str, Any], gpus: tuple[int, ...] = (1, 2, 4, 8), name: str = "article-b32"
) -> dict[str, Any]:
    """Return a result whose communication is that of a ring: 2 (n - 1) / n of the gradients cross each link."""
    workload = load_workload(name)[1]
    able = needs.possible(dict.fromkeys(needs.NEEDS), workload)
    asked = ways.points(ways.load(("top", "ddp"), able), workload, list(gpus), ("weak", "strong"), 32)
    plan = measure.Plan(name, workload, asked, "cuda")
    made = {
        **HEAD, "kind": "scaled", "machine": machine, "measured_code": {"kernels": "0" * 16},
        "workload": {"name": name, **workload, "data": "sample-photographs"},
        "protocol": {"generations": 3, "visits": 2, "seed": 0, "backend": "nccl", "notes": [NOTE]},
        "proofs": [
            {"way": way, "gpus": 2, "batch": 8, "status": "ok", "reason": None, "parity": "ok", "lines": ["ranks: 2"]}
            for way in ("top", "ddp")
        ],
        "points": plain(measure.new_result(plan, machine, None).points),
    }  # fmt: skip
    for point in made["points"]:
        n, share = point["gpus"], point["batch"] / point["gpus"] / workload["batch"]
        exposed = COMMUNICATION_MS * 2 * (n - 1) / n * (2 if point["way"] == "ddp" else 1)
        ms = ALONE_MS * share + exposed
        point["runs"] = [_run(k, ms * factor, exposed) for k, factor in enumerate(REPEATS)]
        point |= {"status": "ok", "reason": None}
    return plain(record.derive(build(record.Result, made)))


def _run(generation: int, ms: float, exposed: float) -> dict[str, Any]:
    return {
        "generation": generation, "samples_ms": [ms, ms * 1.001], "gpu_ms": ms - 0.5, "comm_ms": exposed,
        "exposed_ms": exposed, "peak_reserved_bytes": 20 * 2**30, "peak_allocated_bytes": 18 * 2**30,
        "device_used_bytes": 22 * 2**30, "peak_rss_bytes": 4 * 2**30, "prepare_s": 30.0, "rejected": 0,
        "others_cpu": 0.0,
    }  # fmt: skip
