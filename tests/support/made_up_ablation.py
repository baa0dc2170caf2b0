"""Made-up results of `ladder ablate` and `ladder map`, on the machine of a committed result: no measurement."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

from ladder.base.records import build, plain
from ladder.plan.catalog import load_ladder, load_workload
from ladder.studies.ablate import record as ablation
from ladder.studies.map import plan as planning
from ladder.studies.map import record as maps

HEAD = {"schema": 1, "commit": "a" * 40, "dirty": False, "complete": True, "seconds": 900.0}
HEAD |= {"started": "2026-01-01T00:00:00+00:00", "measured_code": {"kernels": "0" * 16}}
ARTICLE = [step.name for step in load_ladder("article").rungs[1:]]
GAINS = {
    "channels_last": 0.12, "bf16": 0.23, "fused_norm": 0.06, "set_to_none": 0.01, "cuda_graphs": -0.013,
    "data_loading": 0.016, "fused_act": 0.11,
}  # fmt: skip
LONGER = GAINS | {"fused_adam": 0.05, "fused_rgb": 0.02}
BASE_MS = 106.0
TOGETHER = {frozenset({"channels_last", "bf16"}): 0.08, frozenset({"fused_norm", "fused_act"}): -0.02}


def look(gpu_ms: float | None, wall_ms: float | None = None) -> dict[str, Any]:
    return {
        "wall_ms": wall_ms and [wall_ms, wall_ms],
        "gpu_ms": gpu_ms and [gpu_ms, gpu_ms],
        "kernels": 3500.0,
        "prepare_s": 3.0,
        "device_gib": 4.0,
        "others_cpu": 0.01,
        "tenancy": "alone",
        "company": None,
        "gpu_void": None,
    }


def planted(
    subset: frozenset[str],
    gains: dict[str, float] = GAINS,
    together: dict[frozenset[str], float] = TOGETHER,
) -> float:
    """Return the milliseconds of a subset whose gains add up as logarithms, but for what pairs gain together."""
    saved = sum(gains[name] for name in subset)
    saved += sum(gain for names, gain in together.items() if names <= subset)
    return BASE_MS * math.exp(-saved)


def of_ablation(
    machine: dict[str, Any],
    rungs: list[str] = ARTICLE,
    time: Callable[[frozenset[str]], float] = planted,
    fresh: Callable[[int], float] = lambda number: 1 + 0.002 * (-1) ** number,
    kept: Callable[[frozenset[str]], bool] = lambda subset: True,
) -> dict[str, Any]:
    """Return the data of a file with every subset of some rungs that is `kept`; every tenth was measured again."""
    name, fields = load_workload("article")
    found = [
        frozenset(each) for size in range(len(rungs) + 1) for each in itertools.combinations(rungs, size)
    ]
    rows = [
        {
            "rungs": [name for name in rungs if name in subset],
            "out": [],
            "status": "ok",
            "reason": None,
            "once": look(time(subset)),
            "again": look(time(subset) * fresh(number // 10)) if number % 10 == 0 else None,
        }
        for number, subset in enumerate(filter(kept, found))
    ]
    rules = {"ladder": "article", "rungs": rungs, "skipped": {}, "whole": True, "clock": "gpu", "seed": 0}
    made = HEAD | {"kind": "ablation", "machine": machine, "workload": {"name": name, **fields}}
    made |= {"protocol": rules | {"notes": []}, "parity": {"verdict": "ok", "reason": None, "earlier": True}}
    made |= {"subsets": rows, "total": None, "worth": [], "pairs": [], "noise": None, "beside": []}
    return json.loads(json.dumps(plain(ablation.derive(build(ablation.Result, made)))))


def of_longer(machine: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a ladder of nine rungs, without each and without the first two. One leaves with the last."""
    names = [*LONGER]
    left_out: list[tuple[str, ...]] = [(), *((name,) for name in names), (names[0], names[1])]
    subsets = {out: frozenset(names) - {*out} for out in left_out}
    subsets["fused_rgb",] -= {"fused_adam"}
    made = of_ablation(machine, ARTICLE[:2])
    made["protocol"] |= {"ladder": "full", "rungs": names, "whole": False}
    made["subsets"] = [
        {"rungs": sorted(kept), "out": [*out], "status": "ok", "reason": None}
        | {"once": look(ms := planted(kept, LONGER)), "again": look(ms * (1 + 0.002 * (number % 2)))}
        for number, (out, kept) in enumerate([*subsets.items(), ((), frozenset[str]())])
    ]
    return json.loads(json.dumps(plain(ablation.derive(build(ablation.Result, made)))))


def step_ms(resolution: int, batch: int, out: tuple[str, ...]) -> tuple[float, float] | None:
    """Return planted wall and GPU ms: graphs hide the CPU's 60 ms, channels_last helps from 128x128; None is oom."""
    gpu = 4.0 + 57.0 * batch / 8 * (resolution / 256) ** 1.6
    if planning.PAIR[1] in out:
        gpu *= 1.25 if resolution >= 128 else 0.97
    if resolution == 256 and batch == 64 and out:
        return None
    return (max(gpu, 60.0 + resolution / 16) if planning.PAIR[0] in out else gpu + 0.2), gpu


def of_map(machine: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a file of the article's 20 cells."""
    name, fields = load_workload("article")
    cells = planning.grid(planning.RESOLUTIONS["cuda"], planning.BATCHES["cuda"])
    rows = []
    for resolution, batch in cells:
        for out in ((), planning.PAIR[:1], planning.PAIR[1:], planning.PAIR):
            seen = step_ms(resolution, batch, out)
            status, reason = ("ok", None) if seen else ("oom", "out of memory in prepare")
            row = {"resolution": resolution, "batch": batch, "out": [*out], "status": status}
            rows.append(row | {"reason": reason, "look": look(seen[1], seen[0]) if seen else None})
    rules = {
        "ladder": "article",
        "rungs": [*planning.PAIR],
        "cells": [[*cell] for cell in cells],
        "cycles": 2,
        "seed": 0,
        "notes": [],
    }
    made = HEAD | {"kind": "map", "machine": machine, "workload": {"name": name, **fields}}
    made |= {"protocol": rules, "rows": rows, "gains": []}
    return json.loads(json.dumps(plain(maps.derive(build(maps.Result, made)))))
