"""A result with GPU time beside wall time, for tests of what is shown of it. No machine ran it."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

from ladder.plan import catalog, needs
from ladder.publish.pages.committed import Committed
from ladder.results import derive
from tests.support import made_up
from tests.support.typed import write_run

FULL = catalog.load_ladder("full")
RUNGS, TOP = len(FULL.rungs), FULL.rungs[-1].name

GPU_MS = {
    "baseline": 105.0, "channels_last": 93.0, "bf16": 73.8, "fused_norm": 69.0, "set_to_none": 68.5,
    "cuda_graphs": 68.9, "data_loading": 68.2, "fused_act": 61.2,
}  # fmt: skip
WALL_MS = {
    "baseline": 160.0, "channels_last": 158.0, "bf16": 150.0, "fused_norm": 140.0, "set_to_none": 138.0,
    "cuda_graphs": 75.0, "data_loading": 68.4, "fused_act": 61.3,
}  # fmt: skip
CAPTURED = ("cuda_graphs", "data_loading", "fused_act")
FLOORS = {"captured": (0.003, 0.004), "eager": (0.004, 0.08)}  # of GPU time and of the step


def run(generations: int = 3, mode: str = "cumulative") -> dict[str, Any]:
    """Return the article's rungs by both clocks, judged by hand; with fewer than 3 generations without verdicts."""
    rungs = []
    walls, gpus = WALL_MS, GPU_MS
    if mode == "leave-one-out":  # the whole ladder is the fastest
        walls, gpus = (dict(zip(each, reversed(each.values()), strict=True)) for each in (walls, gpus))
    for name, ms in walls.items():
        kind = "captured" if name in CAPTURED else "eager"
        record = made_up.rung(name, ms, (ms - gpus[name]) / ms)
        record |= {
            "kind": kind,
            "inspection": {"gpu_busy_ms": gpus[name], "error": None},
            "gpu_ms": gpus[name],
            "gpu_interval_ms": [gpus[name] * 0.998, gpus[name] * 1.002],
            "waiting_ms": ms - gpus[name],
            "gpu_speedup_total": gpus["baseline"] / gpus[name],
            "rounds": [a_round(number, ms, gpus[name]) for number in range(generations)],
        }
        if rungs:
            compare(record, rungs[-1], generations)
        rungs.append(record)
    if mode == "leave-one-out":
        rungs[0]["name"] = "all"
    made = made_up.result(rungs)
    made["protocol"] |= {"mode": mode, "rounds": generations}
    if generations >= 3:
        for key, index in (("gpu_noise", 0), ("noise", 1)):
            made[key] = {kind: noise(floors[index], generations) for kind, floors in FLOORS.items()}
    return made


def again(made: dict[str, Any]) -> dict[str, Any]:
    """Return a run as if measured once more: no clock gives the same digits twice."""
    made = copy.deepcopy(made)
    for rung in made["rungs"]:
        for each in rung["rounds"]:
            each["samples_ms"] = [ms * 1.0001 for ms in each["samples_ms"]]
    return made


def selected(*names: str) -> dict[str, Any]:
    """Return a run of these rungs of the ladder `full` alone, each proved. A rung above the article's takes 40 ms."""
    planned = {each.name: each for each in catalog.plan_climb(FULL, dict.fromkeys(needs.NEEDS))}
    made = run()
    known, rungs = {rung["name"]: rung for rung in made["rungs"]}, []
    for name in names:
        record = copy.deepcopy(known.get(name, made["rungs"][-1]))
        record |= {"name": name, "title": planned[name].title, "recipe": planned[name].recipe}
        if name not in known:
            record |= {"step_ms": 40.0, "gpu_ms": 39.9, "interval_ms": [39.8, 40.2], "article_ms": None}
            record |= {"speedup_total": 4.0, "gpu_speedup_total": 105 / 39.9}
            record["rounds"] = [a_round(each["round"], 40.0, 39.9) for each in record["rounds"]]
        rungs.append(record | {"receipts": made_up.receipts(), "parity": made_up.parity()})
    ladder = {"name": "full", "title": "On from there", "rungs": list(names)}
    return made | {"rungs": rungs, "ladder": made["ladder"] | ladder, "baseline": names[0]}


def interrupt(made: dict[str, Any]) -> dict[str, Any]:
    """Return a run as if it had been stopped."""
    return made | {"protocol": made["protocol"] | {"notes": [derive.INTERRUPTED]}}


def noise(floor: float, generations: int) -> dict[str, Any]:
    return {"floor": floor, "rounds": generations, "stored_rounds": 0, "resolution": 1.4 * floor}


def a_round(number: int, ms: float, gpu_ms: float) -> dict[str, Any]:
    """Return a process of a generation: four passes, and two profiled cycles after them."""
    cycle = {"gpu_ms": gpu_ms, "wall_ms": ms * 1.05, "kernels": 2100.0, "sm_mhz": 1980.0}
    empty = dict.fromkeys(("event_ms", "main_ms", "settled", "alloc_retries"))
    return {
        "round": number,
        "samples_ms": [ms] * 4,
        "passes": [0, 1, 2, 3],
        "profiled": [cycle, cycle],
        **empty,
    }


def compare(record: dict[str, Any], before: dict[str, Any], generations: int) -> None:
    """Give a rung both verdicts against the one before it, by the floors of its kind."""
    parts = (("gpu_gain", "gpu_verdict", "gpu_ms", 0, 0.006), ("gain", "verdict", "step_ms", 1, None))
    for gain, verdict, time, index, half in parts:
        kind = "eager" if "eager" in (record["kind"], before["kind"]) else "captured"
        floor, effect = FLOORS[kind][index], math.log(before[time] / record[time])
        half = half or 0.9 * floor
        word, below = "ambiguous", None
        if abs(effect) - half > floor:
            word = "faster" if effect > 0 else "slower"
        elif abs(effect) + half <= (0.015 if gain == "gpu_gain" else 2.5 * floor):
            word, below = "less than", abs(effect) + half
        interval = [math.exp(effect - half), math.exp(effect + half)]
        if generations < 3:
            word, below, interval = "too few generations", None, None
        record[verdict] = word
        record[gain] = {
            "against": before["name"], "ratio": math.exp(effect), "interval": interval, "rounds": generations,
            "floor": floor, "below": below,
        }  # fmt: skip
    record["gpu_speedup_previous"] = before["gpu_ms"] / record["gpu_ms"]


def stored_runs(folder: Path, **runs: dict[str, Any]) -> Committed:
    """Return the committed results of a folder that has these runs of `ladder run`."""
    for name, made in runs.items():
        kept(folder, f"ladder/nvidia-h200/{name}.json", made)
    return Committed(folder)


def kept(folder: Path, name: str, data: dict[str, Any]) -> Committed:
    """Return the committed results of a folder that gets one more file, by its path below `results/`."""
    write_run(folder / "results" / name, data)
    return Committed(folder)
