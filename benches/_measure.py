"""From a series to its numbers: one fresh process, whose one visit yields all of them.

asv runs every benchmark and parameter in a process of its own. The first one to measure something leaves what it
saw in a folder that lives as long as the asv run (see `_plugin`), and the benchmarks of its other quantities take it
there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from benches._frozen import Series, fingerprint
from benches.series import SERIES

HANDOVER = (
    "LADDER_ASV_HANDOVER"  # set by _plugin: a folder, empty but for machine.json, for each commit installed
)
SERIES_NAME = "LADDER_ASV_SERIES"  # set by _spawning: what this process measures, as its choices are noted
CYCLES = 6  # samples from one process; asv's `rounds` attribute asks for more processes
WARM = 3  # processes that prepare with warm caches, after the one with cold ones

Measure = Callable[[], dict[str, Any]]


def available(workload: str, rung: str, among: Mapping[tuple[str, str], Series] = SERIES) -> Series:
    """The series of these parameters; NotImplementedError (in `setup`: n/a) where this machine cannot do it."""
    series = among.get((workload, rung))
    if series is None:
        raise NotImplementedError(f"{rung} is not measured for {workload}")
    machine = machine_here()
    if series.device != machine["device"]:
        raise NotImplementedError(
            f"{workload} is measured on {series.device}, this machine has {machine['device']}"
        )
    able(series.needs)
    return series


def able(needs: tuple[str, ...]) -> None:
    """NotImplementedError (in `setup`: n/a) where this machine lacks one of these capabilities."""
    capabilities = machine_here()["capabilities"]
    for need in needs:
        if capabilities.get(need) is not None:
            raise NotImplementedError(capabilities[need])


def machine_here() -> dict[str, Any]:
    """{"device": "cuda" | "cpu", "capabilities": {name: None or why not}}, found out once for an asv run."""
    folder = os.environ.get(HANDOVER)
    if folder and (path := Path(folder) / "machine.json").is_file():
        return json.loads(path.read_text())
    from ladder import machine  # costs most of a second: not where n/a must be quick

    device = machine.choose_device()
    return {"device": device, "capabilities": machine.capabilities(device)}


# --- what is measured -----------------------------------------------------------------------------------------------


def measured(series: Series, quantity: str) -> dict[str, Any]:
    """What `ladder.once.measure_once` returns for a series; see `shared` for what it raises."""

    def measure() -> dict[str, Any]:
        from ladder import once

        workload = series.workload | {"data": images(series.workload)}
        return once.measure_once(workload, series.recipe, series.device, CYCLES, code=code_under_test())

    return shared(series.fingerprint, quantity, measure, series.workload, series.recipe)


def phases(series: Series, phase: str) -> list[float]:
    """Seconds of one phase alone. A whole step as one graph has no phases: they are captured apart here."""
    recipe = dict(series.recipe)
    if "whole_step_graph" in recipe:  # commits from before it do not know the field
        recipe["whole_step_graph"] = False

    def measure() -> dict[str, Any]:
        from ladder import parts

        code_under_test()
        return parts.phases(series.workload, recipe, series.device)

    name = f"{series.fingerprint}-phases"
    return shared(name, phase, measure, series.workload, recipe)["samples_s"][phase]


def loading(name: str, workload: dict[str, Any], recipe: dict[str, Any]) -> list[float]:
    """Seconds for one image by a loader alone."""

    def measure() -> dict[str, Any]:
        from ladder import parts

        code_under_test()
        return parts.loading(workload | {"data": images(workload)}, recipe, machine_here()["device"])

    return shared(name, "seconds", measure, workload, recipe)["samples_s"]


def preparing(series: Series, cache: str, part: str) -> list[float]:
    """Seconds of getting ready, "compile" or "capture", with "cold" or "warm" caches, a process each.

    Both in one visit: what the cold process leaves in a folder of its own is what makes the next ones warm.
    """

    def measure() -> dict[str, Any]:
        from ladder import caches, once

        with tempfile.TemporaryDirectory() as folder, caches.set_to(caches.inside(Path(folder))):
            seen = [
                once.prepare_once(series.workload, series.recipe, series.device, code=code_under_test())
                for _ in range(1 + WARM)
            ]
        return seen[0] | {"cold": seen[:1], "warm": seen[1:]}

    name = f"{series.fingerprint}-preparing"
    seen = shared(name, f"{part} {cache}", measure, series.workload, series.recipe)[cache]
    if part == "capture":
        return [each["capture_s"] for each in seen]
    return [each["prepare_s"] - each["capture_s"] - each.get("cache_s", 0.0) for each in seen]


# --- sharing it -----------------------------------------------------------------------------------------------------


def shared(
    name: str, quantity: str, measure: Measure, workload: dict[str, Any], recipe: dict[str, Any]
) -> dict[str, Any]:
    """What `measure` returns, measured now unless the benchmark of another quantity of `name` did it.

    Raises:
        SkipNotImplemented: the measured commit cannot do this series (n/a).
        RuntimeError: it could and failed: out of memory, NaN, an exception; one line.
    """
    folder = os.environ.get(HANDOVER)
    path = Path(folder) / f"{name}.json" if folder else None
    record = json.loads(path.read_text()) if path and path.is_file() else None
    if (
        record is None or quantity in record["taken"]
    ):  # `rounds`: the same quantity again wants a fresh process
        record = {"taken": [], **_record(measure, workload, recipe)}
    record["taken"].append(quantity)
    if path:
        path.write_text(json.dumps(record))
    if record["status"] == "n/a":
        raise SkipNotImplemented(record["reason"])
    if record["status"] != "ok":
        raise RuntimeError(f"{record['status']}: {record['reason']}")
    leave_choices(record["result"].get("choices"))
    return record["result"]


def leave_choices(used: list[dict[str, Any]] | None) -> None:
    """For the note beside asv's result: the rows of `kernels.choices` that decided what was measured here.

    None: the measured code does not say, and nothing is noted.
    """
    folder, series = os.environ.get(HANDOVER), os.environ.get(SERIES_NAME)
    if used is not None and folder and series:
        from ladder import choicehistory

        choicehistory.leave(Path(folder), series, used)


def code_under_test() -> Path:
    """The checkout that this process would import `stylegan_lite` from: asv puts the measured commit first."""
    spec = importlib.util.find_spec("stylegan_lite")
    if spec is None or spec.origin is None:
        raise SkipNotImplemented("this commit has no package stylegan_lite")
    return Path(spec.origin).resolve().parent.parent


def images(workload: dict[str, Any]) -> str:
    """The folder of sample photographs at a workload's resolution, made at the first use."""
    from ladder import images as ladder_images

    found = ladder_images.prepare_images(None, workload["resolution"], at_least=workload["batch"])
    return str(found.path)


def _record(measure: Measure, workload: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    from ladder import caches, pool

    try:
        with caches.set_to(caches.builds(code_under_test())):
            result = measure()
    except pool.WorkerFailure as failure:
        # A commit from before a recipe field or value existed refuses it: it cannot do this series.
        refused = failure.reason.startswith("build: ConfigError")
        return {"status": "n/a" if refused else failure.status, "reason": failure.reason}
    answered = {key: result["recipe"].get(key) for key in recipe}
    if fingerprint(workload, answered) != fingerprint(workload, recipe):
        return {"status": "n/a", "reason": "this commit gives the recipe another meaning"}
    return {"status": "ok", "result": result}
