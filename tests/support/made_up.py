"""Results of machines that never ran, for tests of table and chart only."""

from __future__ import annotations

import random
from typing import Any

from ladder.plan import catalog
from ladder.results import judging
from tests.support import typed

ARTICLE = {rung.name: rung.article_ms for rung in catalog.load_ladder("article").rungs}
H200 = {
    "baseline": (96.4, 0.62),
    "channels_last": (93.1, 0.55),
    "bf16": (97.8, 0.58),
    "fused_norm": (88.0, 0.51),
    "set_to_none": (87.4, 0.50),
    "cuda_graphs": (31.2, 0.01),
    "data_loading": (29.6, 0.01),
    "fused_act": (25.3, 0.01),
}


def rung(name: str, step_ms: float | None = None, host: float | None = None, **more: Any) -> dict[str, Any]:
    """A rung's record; without a time it is n/a."""
    known = {"title": catalog.load_rung(name).title} if name in catalog.list_rungs() else {"title": name}
    record = {
        "name": name,
        **known,
        "status": "ok" if step_ms else "n/a",
        "reason": None if step_ms else "needs a CUDA GPU",
        "recipe": {} if step_ms or more.get("status") else None,
        "step_ms": step_ms,
        "q25_ms": step_ms and step_ms * 0.995,
        "q75_ms": step_ms and step_ms * 1.006,
        "interval_ms": step_ms and [step_ms * 0.985, step_ms * 1.016],
        "speedup_previous": None,
        "speedup_total": None,
        "main_ms": step_ms and step_ms * 0.7,
        "main_speedup_total": None,
        "host_bound": host,
        "gpu_busy_ms": step_ms * (1 - host) if step_ms and host is not None else None,
        "images_per_s": step_ms and 8000 / step_ms,
        "peak_reserved_bytes": int(14.2 * 2**30) if step_ms else None,
        "peak_allocated_bytes": int(11.0 * 2**30) if step_ms else None,
        "prepare_s": 9.0 if step_ms else None,
        "samples_ms": [step_ms] * 10 if step_ms else [],
        "rounds": [],
        "notes": [],
        "article_ms": ARTICLE.get(name),
        "settings": None,
    }
    return {**record, **more}


def result(rungs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A whole result around records; speedups are filled in."""
    base = before = None
    for record in rungs:
        if record["status"] == "ok":
            base, before = base or record, before or record
            record["speedup_total"] = base["step_ms"] / record["step_ms"]
            record["main_speedup_total"] = record["speedup_total"]
            record["speedup_previous"] = None if record is base else before["step_ms"] / record["step_ms"]
            before = record
    made = {
        "schema": 2,
        "kind": "ladder",
        "machine": {
            "name": "nvidia-h200",
            "gpu": "NVIDIA H200",
            "gpu_memory_gb": 139.8,
            "driver": "580.95.05",
            "cuda": "13.0",
            "cudnn": "9.19.0",
            "torch": "2.11.0",
            "triton": "3.6.0",
            "python": "3.11.9",
            "cpu": "Intel(R) Xeon(R) Platinum 8480C",
            "cores": 16,
            "ram_gb": 128,
            "os": "Linux x86_64",
            "device": "cuda",
        },
        "workload": {"name": "article", "resolution": 256, "batch": 8, "norm": "demod", "data": None},
        "ladder": {
            "name": "article",
            "title": "The article's eight rungs",
            "rungs": [r["name"] for r in rungs],
        },
        "protocol": {
            "mode": "cumulative",
            "fixed": False,
            "rounds": 5,
            "cycles": 2,
            "cycle_steps": 16,
            "seed": 0,
            "quick": False,
            "notes": [],
        },
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "complete": True,
        "started": "2026-11-21T10:15:00+00:00",
        "seconds": 512.0,
        "baseline": base and base["name"],
        "rungs": rungs,
    }
    return {**made, **more}


def gpu_run() -> dict[str, Any]:
    """Eight rungs with numbers, host-bound until the graphs."""
    return result([rung(name, *numbers) for name, numbers in H200.items()])


def cpu_run() -> dict[str, Any]:
    """A bare CPU: four rungs are n/a, one is slower."""
    times = {"baseline": 412.0, "channels_last": 388.0, "bf16": 655.0, "set_to_none": 651.0}
    rungs = [rung(name, times.get(name)) for name in H200]
    for record in rungs:
        record.update(peak_reserved_bytes=None, peak_allocated_bytes=None)
        if record["status"] == "ok":
            record["images_per_s"] = 4000 / record["step_ms"]
            peaks = {"peak_rss_bytes": 900 * 2**20}
            record["rounds"] = [{"round": 0, "samples_ms": [record["step_ms"]], **peaks}]
    made = result(rungs)
    none = dict.fromkeys(("gpu", "gpu_memory_gb", "driver", "cuda", "cudnn", "triton"))
    cpu = {"name": "intel-xeon-processor-2.60ghz", "cpu": "Intel(R) Xeon(R) Processor @ 2.60GHz", "cores": 2}
    made["machine"] |= {**none, **cpu, "torch": "2.13.0+cpu", "device": "cpu"}
    made["protocol"]["rounds"] = 1
    made["workload"] = {"name": "tiny", **catalog.load_workload("tiny")[1], "data": None}
    return made


def faulty_run() -> dict[str, Any]:
    """The baseline ran out of memory, another rung raised; quick and interrupted."""
    rungs = [rung(name, *numbers) for name, numbers in H200.items()]
    oom = "CUDA out of memory: tried to allocate 4.00 GiB, 1.21 GiB free"
    rungs[0] = rung("baseline", status="oom", reason=oom)
    failure = "round 2: RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"
    rungs[3] = rung("fused_norm", status="failed", reason=failure)
    made = result(rungs, complete=False)
    made["protocol"].update(quick=True, rounds=3, cycles=1)
    return made


def judged_run(mode: str = "cumulative", seed: int = 0, **times: float) -> dict[str, Any]:
    """Five rounds of raw numbers, twins included, judged as a real run is. In `leave-one-out` the top is "all".

    `times` replace the ms a step that a rung (`H200`, and "all") has.
    """
    rng = random.Random(seed)
    known = H200
    if mode == "leave-one-out":  # without a rung everything is still captured, but without the graphs
        known = {"all": (25.3, 0.01)} | {
            name: (ms, 0.01) for name, (ms, _) in H200.items() if name != "baseline"
        }
        known["cuda_graphs"] = (31.2, 0.6)
    rungs = [rung(name, times.get(name, ms), host) for name, (ms, host) in known.items()]
    for record_ in rungs:
        record_["inspection"] = {"gpu_busy_ms": record_["gpu_busy_ms"], "error": None}
        if record_["host_bound"] < 0.1:
            own = catalog.load_rung(record_["name"]).change if record_["name"] in catalog.list_rungs() else {}
            record_["recipe"] = {"cuda_graphs": True, **own}
        record_["rounds"] = rounds(record_["step_ms"], record_["host_bound"], rng)
    made = result(rungs)
    made["protocol"]["mode"] = mode
    made["twins"] = []
    for name in judging.twins_of(list(known), quick=False):
        record_ = next(r for r in rungs if r["name"] == name)
        twin = {"name": name + judging.TWIN, "of": name, "recipe": record_["recipe"]}
        made["twins"].append(twin)
        twin.update(status="ok", rounds=rounds(record_["step_ms"], record_["host_bound"], rng))
    return typed.fill(made)


def parity(share: float = 0.41, verdict: str = "ok") -> dict[str, Any]:
    """Return what `ladder.parity.check` gives, cut down to two phases, with an error of `share` of its budget."""
    entry = {
        "error": 0.0005,
        "budget": 0.002,
        "nearest": "G.blocks.3.conv1.weight",
        "judged": 60,
        "unresolved": 1,
    }
    problems = [] if verdict == "ok" else ["G_main gradient of all: error 0.0041, budget 0.002"]
    quiet = {**entry, "nearest_error": 1e-4, "nearest_budget": 1e-3}
    return {
        "verdict": verdict,
        "reason": problems[0] if problems else None,
        "problems": problems,
        "phases": {
            "G_main": {"gradient": {**entry, "nearest_error": share * 0.01, "nearest_budget": 0.01}},
            "D_r1": {"gradient": quiet, "loss": {**quiet, "judged": 0, "nearest_error": 0.9}},
        },
        "replays": {"G_main": {"rung": 1.1, "reference": 1.1}},
        "budget": {"factor": 4, "precision": "bf16", "spellings": ["dense"], "left_out": []},
        "reference": {"made_on": "cuda", "batch": 8, "chunk": 4, "steps": 32, "notes": []},
        "seconds": 3.0,
    }


def receipts(*lines: str, engaged: bool = True) -> dict[str, Any]:
    """The receipts of a recipe that contains `bf16` alone."""
    return {"bf16": {"engaged": engaged, "lines": list(lines or ("convolution FLOPs in BF16 100 percent",))}}


def choices(*rungs: str) -> list[dict[str, Any]]:
    """Rows of the table of tiles, as a result has them after these rungs."""
    row = {"op": "modulate", "direction": "backward", "tile": 2048, "columns": 512, "warps": 4}
    measured = {"itemsize": 2, "layout": "nhwc", "architecture": 90, "size": "large", "tile": 4096}
    both = ({"per_sm": 10, "stages": 1}, {"per_sm": 4, "stages": 1, **measured})
    return [{**row, **each, "rungs": list(rungs)} for each in both]


def checked_run() -> dict[str, Any]:
    """A judged run as the whole protocol leaves it: receipts, parity, GPU, memory, where time went, tiles."""
    made = judged_run()
    for record_ in made["rungs"]:
        record_.update(receipts=receipts(), parity=parity())
        for visit in record_["rounds"]:
            visit |= {
                "device_used_bytes": 16 * 2**30,
                "rejected": [],
                "start_s": 0.1,
                "build_s": 2.0,
                "visit_s": 3.0,
            }
    made["rungs"][2]["rounds"][0]["rejected"] = ["SM clock 1500 MHz, usually 1980"]
    made["gpu"] = {"state": "known", "tenancy": "alone", "rejected_visits": 3, "notes": []}
    made["choices"] = choices("fused_norm", "set_to_none")
    return made


def rounds(ms: float, host: float, rng: random.Random) -> list[dict[str, Any]]:
    """Raw rounds: 0.5% between processes that wait for the CPU, 0.03% between those that do not."""
    spread = 0.005 if host > 0.1 else 0.0003
    empty = dict.fromkeys(("event_ms", "main_ms", "settled", "alloc_retries"))
    made = []
    for number in range(5):
        process = ms * (1 + rng.gauss(0, spread))
        made.append({"round": number, "samples_ms": [process, process * 1.0001], "prepare_s": 9.0, **empty})
        made[-1]["peak_reserved_bytes"] = int(14.2 * 2**30)
    return made
