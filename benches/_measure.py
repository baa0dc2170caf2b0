"""From a series to its numbers: one fresh `ladder` worker, whose one visit yields both time and memory.

asv runs every benchmark and parameter in a process of its own. The first one to measure a series leaves what it
saw in a folder that lives as long as the asv run (see `_plugin`), and the benchmark of the other quantity takes it
there.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from benches.series import SERIES, Series, fingerprint

HANDOVER = (
    "LADDER_ASV_HANDOVER"  # set by _plugin: a folder, empty but for machine.json, for each commit installed
)
CYCLES = 6  # samples from one process; asv's `rounds` attribute asks for more processes


def available(workload: str, rung: str) -> Series:
    """The series of these parameters; NotImplementedError (in `setup`: n/a) where this machine cannot do it."""
    series = SERIES.get((workload, rung))
    if series is None:
        raise NotImplementedError(f"{rung} is not a rung of {workload}")
    machine = machine_here()
    if series.device != machine["device"]:
        raise NotImplementedError(
            f"{workload} is measured on {series.device}, this machine has {machine['device']}"
        )
    for need in series.needs:
        if machine["capabilities"].get(need) is not None:
            raise NotImplementedError(machine["capabilities"][need])
    return series


def machine_here() -> dict[str, Any]:
    """{"device": "cuda" | "cpu", "capabilities": {name: None or why not}}, found out once for an asv run."""
    folder = os.environ.get(HANDOVER)
    if folder and (path := Path(folder) / "machine.json").is_file():
        return json.loads(path.read_text())
    from ladder import machine  # costs most of a second: not where n/a must be quick

    device = machine.choose_device()
    return {"device": device, "capabilities": machine.capabilities(device)}


def measured(series: Series, quantity: str) -> dict[str, Any]:
    """What `ladder.measure.measure_once` returns for a series, measured now unless the other benchmark did it.

    Raises:
        SkipNotImplemented: the measured commit cannot do this series (n/a).
        RuntimeError: it could and failed: out of memory, NaN, an exception; one line.
    """
    folder = os.environ.get(HANDOVER)
    path = Path(folder) / f"{series.fingerprint}.json" if folder else None
    record = json.loads(path.read_text()) if path and path.is_file() else None
    if (
        record is None or quantity in record["taken"]
    ):  # `rounds`: the same quantity again wants a fresh process
        record = {"taken": [], **_measure(series)}
    record["taken"].append(quantity)
    if path:
        path.write_text(json.dumps(record))
    if record["status"] == "n/a":
        raise SkipNotImplemented(record["reason"])
    if record["status"] != "ok":
        raise RuntimeError(f"{record['status']}: {record['reason']}")
    return record["result"]


def code_under_test() -> Path:
    """The checkout that this process would import `stylegan_lite` from: asv puts the measured commit first."""
    spec = importlib.util.find_spec("stylegan_lite")
    if spec is None or spec.origin is None:
        raise SkipNotImplemented("this commit has no package stylegan_lite")
    return Path(spec.origin).resolve().parent.parent


def _measure(series: Series) -> dict[str, Any]:
    from ladder import images, measure, pool

    data = images.prepare_images(None, series.workload["resolution"], at_least=series.workload["batch"])
    workload = series.workload | {"data": str(data.path)}
    try:
        result = measure.measure_once(workload, series.recipe, series.device, CYCLES, code=code_under_test())
    except pool.WorkerFailure as failure:
        # A commit from before a recipe field or value existed refuses it: it cannot do this series.
        refused = failure.reason.startswith("build: ConfigError")
        return {"status": "n/a" if refused else failure.status, "reason": failure.reason}
    answered = {key: result["recipe"].get(key) for key in series.recipe}
    if fingerprint(series.workload, answered) != series.fingerprint:
        return {"status": "n/a", "reason": "this commit gives the recipe another meaning"}
    return {"status": "ok", "result": result}
