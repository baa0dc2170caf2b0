"""Made-up files of `ladder ablate` and `ladder map`, on the machine of a committed result: no measurement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from ladder.plan.catalog import load_ladder, load_workload
from ladder.studies.ablate import AGAIN, PARITY, Case, name_subset
from ladder.studies.map import BATCHES, PAIR, RESOLUTIONS, list_outs, title_recipe

HEAD = {"schema": 2, "commit": "a" * 40, "dirty": False, "seconds": 900.0}
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


def of_rows(
    machine: dict[str, Any],
    ladder: str,
    rungs: list[str],
    rows: list[tuple[frozenset[str], list[str], float, float | None]],
) -> dict[str, Any]:
    """Return the data of a file with these subsets: rungs, those to be left out, ms once, ms again if it was."""
    name, fields = load_workload("article")
    cases: dict[str, Any] = {PARITY: {"kind": "parity", "rungs": rungs}}
    observed: dict[str, Any] = {PARITY: {"parity": {"problems": []}, "earlier": True}}
    for subset, out, once, again in rows:
        kept = [rung for rung in rungs if rung in subset]
        key = name_subset(Case(kind="once", rungs=kept, out=out), rungs)
        cases[key], observed[key] = {"kind": "once", "rungs": kept, "out": out}, {"look": look(once)}
        if again is not None:
            cases[key + AGAIN] = cases[key] | {"kind": "again"}
            observed[key + AGAIN] = {"look": look(again)}
    data = HEAD | {"kind": "ablation", "machine": machine, "workload": {"name": name, **fields}}
    return data | {"ladder": ladder, "options": {"ladder": ladder}, "cases": cases, "observed": observed}


def of_ablation(
    machine: dict[str, Any],
    rungs: list[str] = ARTICLE,
    time: Callable[[frozenset[str]], float] = planted,
    fresh: Callable[[int], float] = lambda number: 1 + 0.002 * (-1) ** number,
    kept: Callable[[frozenset[str]], bool] = lambda subset: True,
) -> dict[str, Any]:
    """Return the data of a file with every subset of some rungs that is `kept`; every tenth was measured again."""
    sets = [frozenset(each) for size in range(len(rungs) + 1) for each in itertools.combinations(rungs, size)]
    rows = [
        (subset, [], time(subset), time(subset) * fresh(number // 10) if number % 10 == 0 else None)
        for number, subset in enumerate(filter(kept, sets))
    ]
    return of_rows(machine, "article", rungs, rows)


def of_longer(machine: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a ladder of nine rungs, without each and without the first two. One leaves with the last."""
    names = [*LONGER]
    left_out: list[tuple[str, ...]] = [(), *((name,) for name in names), (names[0], names[1])]
    subsets = {out: frozenset(names) - {*out} for out in left_out}
    subsets["fused_rgb",] -= {"fused_adam"}
    rows = [
        (kept, [*out], ms := planted(kept, LONGER), ms * (1 + 0.002 * (number % 2)))
        for number, (out, kept) in enumerate([*subsets.items(), ((), frozenset[str]())])
    ]
    return of_rows(machine, "full", names, rows)


def step_ms(resolution: int, batch: int, out: tuple[str, ...]) -> tuple[float, float] | None:
    """Return planted wall and GPU ms: graphs hide the CPU's 60 ms, channels_last helps from 128x128; None is oom."""
    gpu = 4.0 + 57.0 * batch / 8 * (resolution / 256) ** 1.6
    if PAIR[1] in out:
        gpu *= 1.25 if resolution >= 128 else 0.97
    if resolution == 256 and batch == 64 and out:
        return None
    return (max(gpu, 60.0 + resolution / 16) if PAIR[0] in out else gpu + 0.2), gpu


def of_map(machine: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a file of the article's 20 cells."""
    name, fields = load_workload("article")
    cases, observed = {}, {}
    for resolution, batch, out in itertools.product(RESOLUTIONS["cuda"], BATCHES["cuda"], list_outs(PAIR)):
        key = f"{resolution}x{resolution}, batch {batch}, {title_recipe(out)}"
        cases[key] = {"resolution": resolution, "batch": batch, "out": [*out]}
        seen = step_ms(resolution, batch, out)
        oom = {"status": "oom", "reason": "out of memory in prepare"}
        observed[key] = {"look": look(seen[1], seen[0])} if seen else oom
    data = HEAD | {"kind": "map", "machine": machine, "workload": {"name": name, **fields}}
    return data | {"ladder": "article", "options": {}, "cases": cases, "observed": observed}
