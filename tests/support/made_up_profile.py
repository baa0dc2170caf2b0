"""A made-up file of `ladder profile` with kernels as an H100 names them: no measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ladder.core.protocol import CYCLE_STEPS
from ladder.core.records import write_record
from ladder.plan.catalog import load_workload
from ladder.receipts import kernel_families
from ladder.studies.profile import measuring, tracing
from ladder.studies.profile.record import Memory, Step
from ladder.studies.profile.tracing import Ran
from stylegan_lite.config import Recipe

HEAD = {"schema": 2, "kind": "profile", "commit": "a" * 40, "dirty": False, "seconds": 60.0}
HEAD |= {"started": "2026-01-01T00:00:00+00:00", "measured_code": {"kernels": "0" * 16}}
AT = "void at::native::"
FUSED = {
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc__5x_cudnn": 30.0,
    AT + "elementwise_kernel<128, 4, MulFunctor<float> >": 8.0,
    "bias_act_kernel": 2.0,
    "memset32": 0.5,
}


def of_profile(machine: dict[str, Any], rung: str, kernels: Mapping[str, float]) -> dict[str, Any]:
    """Return the data of a file: every kernel runs once in G_main and once in D_main of each step."""
    name, fields = load_workload("article")
    ran = tuple(
        Ran(kernel, kernel_families.name_family(kernel), 0, round(ms * 1e6 / 2))
        for kernel, ms in kernels.items()
    )
    total = sum(kernels.values())
    segments = tuple(((phase,), ran) for phase in ("G_main", "D_main") for _ in range(CYCLE_STEPS))
    labelled = tracing.label_segments({}, segments)
    step = Step(
        walls_ms=[total + 1.0],
        gpu_ms=total,
        profile=measuring.list_kernels(labelled),
        phases=measuring.list_phases(labelled, segments, ("G_main", "D_main")),
        no_layers="none were recorded",
        heaviest=[],
        gaps=measuring.list_gaps(segments),
        memory=Memory(
            peak_allocated=2**32, peak_reserved=2**33, device_used=2**34, parameters=2**20, optimizer=2**21,
            buffers=2**19, timeline={},
        ),
    )  # fmt: skip
    made = HEAD | {"machine": machine, "workload": {"name": name, **fields}, "options": {"rung": rung}}
    made |= {"cases": {"step": {"ladder": "article", "recipe": Recipe().to_dict()}}}
    return json.loads(json.dumps(made | {"observed": {"step": {"step": write_record(step)}}}))
