"""Results of `--mode mistakes` and `--mode levers`. No machine ran them."""

from __future__ import annotations

import random
from typing import Any

from ladder.plan import beside
from ladder.results import judging
from tests.support import made_up, typed

TIMES = {"clean": 70.0, "item_each_step": 84.0, "fp16_unmonitored": 70.4, "n_critic_5": 350.0}
WORK = {"item_each_step": 42.0, "fp16_unmonitored": 34.4, "n_critic_5": 90.0}  # GPU ms; else 0.6 of the step
MODELS = {"unchanged": 26.0, "separable": 13.0, "half_width": 11.0}


def study(mode: str, times: dict[str, float], seed: int = 0, profiled: int = 3) -> dict[str, Any]:
    """A judged result of a study with GPU times in so many generations. The older files of mistakes have one."""
    rng = random.Random(seed)
    known, title = beside.load_beside("mistakes").entries, beside.load_beside(mode).title
    made = made_up.result([made_up.rung(name, ms, 0.3) for name, ms in times.items()])
    made["protocol"] |= {"mode": mode, "rounds": 3}
    made["ladder"] |= {"name": mode, "title": title}
    made["workload"] |= {"channel_base": 16384}
    for record in made["rungs"]:
        name, first = record["name"], record is made["rungs"][0]
        record["inspection"] = {"error": None} | (
            {"flops": 2.9e12, "parameters": 48_000_000} if mode == "levers" else {}
        )
        record["receipts"] = {name: {"engaged": True, "lines": ["calls: 2 a step"]}}
        exempt = (
            known[name].exempt if name in known else None if first else beside.load_beside("levers").exempt
        )
        work = {"convolution": "separable"} if name == "separable" else {}
        updates = known[name].updates if name in known else 1
        if not (first and mode == "mistakes"):
            record["variant"] = {"exempt": exempt, "updates": updates, "workload": work}
        record["rounds"] = rounds(record["step_ms"], rng, WORK.get(name), profiled)
        record["host_bound"] = None
    first = made["rungs"][0]
    twin = {"name": first["name"] + judging.TWIN, "of": first["name"], "recipe": first["recipe"]}
    made["twins"] = [twin]
    twin.update(status="ok", rounds=rounds(made["rungs"][0]["step_ms"], rng, None, profiled))
    return typed.fill(made)


def rounds(ms: float, rng: random.Random, gpu_ms: float | None, profiled: int) -> list[dict[str, Any]]:
    found = made_up.rounds(ms, 0.3, rng)[:3]
    work = gpu_ms or ms * 0.6
    for number, each in enumerate(found):
        each["passes"] = list(range(len(each["samples_ms"])))
        if number < profiled:
            took = work * (1 + rng.uniform(-0.001, 0.001))
            each["profiled"] = [{"gpu_ms": took, "wall_ms": ms, "kernels": 900.0, "sm_mhz": None}]
            each["gpu_void"] = None
    return found
