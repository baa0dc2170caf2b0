"""A made-up result of `ladder profile` with kernels as an H100 names them: no measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ladder.base.protocol import CYCLE_STEPS
from ladder.base.records import build, plain
from ladder.plan.catalog import load_workload
from ladder.receipts import kernel_families
from ladder.studies.profile import composing, layers, memory, record
from ladder.studies.profile.tracing import Ran, Segment, Traced
from stylegan_lite.config import Recipe

HEAD = {"schema": 1, "commit": "a" * 40, "dirty": False, "complete": True, "seconds": 60.0}
HEAD |= {"started": "2026-01-01T00:00:00+00:00", "measured_code": {"kernels": "0" * 16}}
AT = "void at::native::"
BASELINE = {  # kernel -> ms a step
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw__5x_cudnn": 50.0,
    AT + "elementwise_kernel<128, 4, MulFunctor<float> >": 20.0,
    AT + "reduce_kernel<512, 1, at::native::ReduceOp<float> >": 5.0,
    "Memset (Device)": 0.5,
}
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
        Ran(kernel, kernel_families.family(kernel), 0, round(ms * 1e6 / 2)) for kernel, ms in kernels.items()
    )
    traced = Traced(
        tuple(Segment((phase,), ran) for phase in ("G_main", "D_main") for _ in range(CYCLE_STEPS)),
        round(sum(kernels.values()) * 1e6 * CYCLE_STEPS),
    )
    labelled = list(layers.of_segments({}, traced.segments))
    rows = composing.categories(composing.category_sums(labelled), {}, {})
    held = memory.assemble("cuda", memory.Static(2**20, 2**21, 2**19), None, (2**32, 2**33, 2**34), {})
    made = HEAD | {"kind": "profile", "machine": machine, "workload": {"name": name, **fields}}
    made |= {"ladder": "article", "rung": rung, "recipe": Recipe().to_dict()}
    made |= {"protocol": {"of": "kernels", "cycles": 3, "notes": []}, "step_ms": sum(kernels.values()) + 1.0}
    made |= {
        "gpu_ms": sum(kernels.values()),
        "profile": plain(composing.profile(traced)),
        "categories": plain(rows),
        "phases": plain(composing.phases(labelled)),
        "gaps": plain(composing.gaps(traced)),
        "layers": {"rows": [], "unknown": None, "reason": "none were recorded"},
        "expected": plain(composing.expected(rows)),
        "memory": plain(held),
    }
    return json.loads(json.dumps(plain(build(record.Result, made))))
