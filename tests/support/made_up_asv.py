"""A folder of asv's results as asv writes it: by asv's own classes, for a machine that nobody has."""

import json
import math
from pathlib import Path
from typing import Any

from asv.machine import Machine
from asv.results import Results
from asv.runner import BenchmarkResult
from asv.util import write_json

from ladder.core import text
from ladder.publish.history import series as asvseries

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LIBRARIES = {"torch": "2.13.0", "triton": "3.7.1", "cuda": "13.0"}
ENVIRONMENT = "checkout-py3.12-cuda13.0-torch2.13.0-triton3.7.1"
DATE = 1795225903000
RUNGS = {"baseline": 0.11, "cuda_graphs": 0.07}
NOTE = {"driver": "580.65.06", "kernel_release": "6.8.0-45-generic", "started": "2026-11-21T12:00:00+00:00"}


def facts(gpu: str = "NVIDIA Some GPU", cpu: str = "Some CPU @ 2.20GHz") -> dict[str, str]:
    hardware = cpu if gpu == "none" else gpu
    memory = "none" if gpu == "none" else "80 GB"
    named = {
        "machine": text.make_slug(hardware),
        "os": "Linux",
        "arch": "x86_64",
        "cpu": cpu,
        "num_cpu": "16",
    }
    return named | {"ram": "126 GB", "gpu": gpu, "gpu_memory": memory}


def write(
    folder: Path,
    machine: dict[str, str] | None = None,
    seconds: dict[str, float | None] | None = None,
    workload: str = "article",
    samples: int = 6,
    record: bool = False,
    commit: str = COMMIT,
    name: str = asvseries.STEP,
    params: list[list[str]] | None = None,
    note: bool = True,
) -> Path:
    """Write machine.json, the results of one commit and their note; returns the path of the results."""
    machine = machine or facts()
    seconds = RUNGS if seconds is None else seconds
    # Asv's `Machine.save` may be replaced in this process by that of `benches._plugin`, which names the real machine.
    write_json(str(folder / machine["machine"] / "machine.json"), machine, Machine.api_version)
    found = Results(
        {**machine, "python": "3.12", **LIBRARIES}, LIBRARIES, commit, DATE, "3.12", ENVIRONMENT, {}
    )
    params = params or [[f"'{workload}'", "'other'"], [f"'{rung}'" for rung in seconds]]
    times = [*seconds.values(), *[math.nan] * (math.prod(map(len, params)) - len(seconds))]
    taken = [None if not t or t != t else [t * (1 + 0.001 * k) for k in range(samples)] for t in times]
    _add(found, name, params, times, taken, record)
    memory = list(map(_whole, times))
    _add(found, "rungs.Rung.track_peak_memory", params, memory, [None] * len(times), record)
    found.save(str(folder))
    path = folder / machine["machine"] / f"{commit[:8]}-{ENVIRONMENT}.json"
    if note:
        (path.parent / "notes").mkdir(exist_ok=True)
        held = {"schema": 1, "commit": commit, "environment": ENVIRONMENT, **NOTE}
        held |= {"benchmarks": {name: NOTE}, "choices": {"article bf16": ["modulate 256 = tile 16"]}}
        (path.parent / "notes" / path.name).write_text(json.dumps(held))
    return path


def _whole(seconds: float | None) -> float | int | None:
    return seconds if seconds is None or seconds != seconds else round(1e9 * (2 + seconds))


def _add(found: Results, name: str, params: list, values: list, samples: list, record: bool) -> None:
    benchmark = {"name": name, "version": "1", "params": params}
    number = [None if each is None else 1 for each in samples]
    result = BenchmarkResult(values, samples, number, 0, "", None)
    found.add_result(benchmark, result, duration=1.5, record_samples=record)


def read(path: Path) -> Any:
    return json.loads(path.read_text())
