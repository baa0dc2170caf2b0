"""Files for `ladder.selfcheck.fuzz` to damage, of kinds of which no result is in the repository: made up here, no
measurement.

They are assembled by the code that assembles measured ones, on the machine of a committed result.
"""

from __future__ import annotations

import json
from typing import Any

from ladder.plan.catalog import load_workload
from ladder.studies.kernelbench import verdicts as kernelverdicts
from ladder.studies.kernelbench.cases import registry as kernelcases
from ladder.studies.precision import record
from ladder.studies.sustain import measure as sustaining
from ladder.studies.sustain import record as records
from ladder.studies.upstream import record as base_record
from stylegan_lite.config import Recipe, Workload

HEAD = {"schema": 1, "commit": "a" * 40, "dirty": False, "complete": True, "seconds": 200.0}
HEAD |= {"started": "2026-01-01T00:00:00+00:00"}
REPEATS = (1.0, 1.01, 0.99)


def kernels(machine: dict[str, Any]) -> bytes:
    """As `ladder kernels` would have written it of two ops."""
    from ladder.studies.kernelbench.bench import skipped

    workload = Workload.from_dict(load_workload("tiny")[1])
    found = kernelcases.cases({"tiny": workload}, quick=True)
    rows = []
    for case in [each for each in found if each.op in ("bias_act", "upfirdn2d")][:2]:
        for row in (each.record() for each in skipped(case, "")):
            times = {"ours": 11.0, "twin": 11.0, "plain": 32.0, "compile": 13.0, "copy": 10.0}
            cold = {name: [us * drift for drift in REPEATS] for name, us in times.items()}
            hot = {name: [0.6 * us for us in cold[name]] for name in ("ours", "plain", "compile")}
            rows.append(row | {"reasons": {}, "method": "graph", "samples_us": {"cold": cold, "hot": hot}})
    kernelverdicts.derive(rows)
    protocol = {"minutes": 4.0, "quick": False, "smoke": False, "seed": 0, "workloads": ["tiny"], "ops": []}
    protocol |= {"l2_bytes": 2**20, "evict": 3, "graph_ms": 5.0, "compile": "inductor", "notes": []}
    made = HEAD | {"kind": "kernels", "machine": machine, "protocol": protocol, "rows": rows}
    return json.dumps(made).encode()


def of_precision(machine: dict[str, Any]) -> bytes:
    """As `ladder precision` would have written it of FP32 and BF16 on the baseline."""
    rows = []
    for name, ms, gib in (("fp32", 100.0, 8.0), ("bf16", 50.0, 4.0)):
        memory = {"allocated_gib": gib, "reserved_gib": gib + 1, "device_gib": gib + 2, "rss_gib": 3.0}
        rounds = [
            {"round": number, "samples_ms": [ms * drift] * 2} | memory for number, drift in enumerate(REPEATS)
        ]
        tried = [{"batch": 96, "reason": None}, {"batch": 192, "reason": "out of memory"}]
        parity = {"verdict": "ok", "reason": None, "share": 0.4, "budget": "fp32"}
        row = {"precision": name, "on": "baseline", "status": "ok", "reason": None, "rounds": rounds}
        row |= {"recipe": Recipe(precision=name).to_dict(), "step_ms": None, "interval_ms": None}
        row |= {"parity": parity | {"gradient_errors": {"G_main": 0.01}}, **dict.fromkeys(memory)}
        rows.append(row | {"largest": {"batch": 96, "settled": True, "tried": tried}})
    record.derive(rows)
    history = {"on": "top", "steps": 40, "initial": 65536.0, "interval": 2000, "images": True}
    history |= {"changes": [[1, 32768.0, 65536.0, 1, 0], [2, 512.0, 65536.0, 7, 0]]}
    history |= {"updates": {"G": 50, "D": 42}, "skipped": {"G": 7, "D": 0}}
    protocol = {"rounds": 3, "cycles": 2, "seed": 0, "ladder": "full", "parity": True, "notes": []}
    name, fields = load_workload("tiny")
    made = HEAD | {"kind": "precision", "workload": {"name": name, **fields, "data": None}}
    made |= {"machine": machine, "protocol": protocol | {"batch_seconds": 75.0, "steps": 40}, "rows": rows}
    made |= {"fp8": {"convolution": "not offered: RuntimeError"}, "history": history}
    return json.dumps(made | {"claims": record.claims(rows)}).encode()


def of_upstream(machine: dict[str, Any]) -> bytes:
    """As `ladder upstream` would have written it of three rounds."""
    programs = []
    for side, rung, recipe, ms in (
        ("upstream", None, None, 130.0),
        ("ours", "bf16", Recipe().to_dict(), 12.0),
    ):
        rounds = [{"round": number, "samples_ms": [ms * drift] * 2} for number, drift in enumerate(REPEATS)]
        settings = (
            {"cuda_ops": True, "fast_double_backward": False, "cudnn_benchmark": True} if not rung else {}
        )
        settings |= {"fp16_resolutions": 4, "loader_workers": 3} if not rung else {}
        settings |= {"parameters_G": 263_987, "parameters_D": 288_993} if not rung else {}
        program = {"side": side, "rung": rung, "recipe": recipe, "status": "ok", "reason": None}
        programs.append(program | {"settings": settings, "rounds": rounds})
    name, fields = load_workload("tiny")
    made = HEAD | {"kind": "upstream", "workload": {"name": name, **fields, "data": "sample-photographs"}}
    made |= {"measured_code": {"kernels": "0" * 16}, "machine": machine}
    made |= {"source": {"networks": "networks_stylegan2", "digest": "0" * 16}, "programs": programs}
    made |= {"protocol": {"rounds": 3, "cycles": 2, "seed": 0, "inspected": True, "notes": []}}
    made |= dict.fromkeys(("parity", "receipts", "inspection", "ratio", "gpu"))
    base_record.derive(made)
    return json.dumps(made).encode()


def of_sustained(machine: dict[str, Any]) -> bytes:
    """As `ladder sustain` would have written it of two rungs, one of which grows slower."""
    name, fields = load_workload("article")
    state = {"sm_mhz": 1980.0, "power_w": 690.5, "temperature_c": 55, "reasons": ["power_cap"]}
    empty = {"status": "ok", "reason": None, "inspected": True} | dict.fromkeys(records.DERIVED)
    rungs = [
        empty
        | {
            "name": rung,
            "recipe": Recipe().to_dict(),
            "windows": [
                sustaining.window(2.0 * k, [ms * drift / 1000], state) for k, drift in enumerate(REPEATS)
            ],
        }
        for rung, ms in (("baseline", 110.0), ("bf16", 60.0))
    ]
    made = HEAD | {"kind": "sustained", "workload": {"name": name, **fields, "data": "sample-photographs"}}
    made |= {"measured_code": {"kernels": "0" * 16}, "machine": machine, "rungs": rungs}
    made |= {"protocol": {"seconds": 6.0, "window_s": 2.0, "seed": 0, "notes": []}}
    records.derive(made)
    return json.dumps(made).encode()
