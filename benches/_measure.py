"""The way from a series to its numbers: one fresh process whose single visit yields all of them.

asv runs every benchmark and parameter in its own process. The first process that measures a series leaves its record
in a folder for the duration of the asv run (see `_plugin`). Benchmarks of other quantities take their numbers from
there.

Importing torch takes most of a short rung's time. So the process of one rung also measures the rungs that asv asks
for next. A server imports once and forks a worker for each, which is built, prepared and timed before the next.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from benches._frozen import Series, fingerprint
from benches.series import SERIES

HANDOVER = "LADDER_ASV_HANDOVER"  # set by _environment: a folder per installed commit, at first with machine.json only
SERIES_NAME = (
    "LADDER_ASV_SERIES"  # set by _spawning: the name of this process's series in the notes of choices
)
CYCLES = 6  # samples of one process; asv's attribute `rounds` makes more processes
# Set by _spawning: the next parameters of the same benchmark in this run of asv.
NEXT = "LADDER_ASV_NEXT"
AHEAD_S = 600  # seconds after which a process begins no further series, because of asv's timeout
WARM = 3  # processes that prepare with warm caches, after one with cold caches

Measure = Callable[[], dict[str, Any]]


def available(workload: str, rung: str, among: Mapping[tuple[str, str], Series] = SERIES) -> Series:
    """Return the series of these parameters.

    Raises:
        NotImplementedError: this machine cannot measure it; in `setup` this means n/a.
    """
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
    """Check that this machine has these capabilities.

    Raises:
        NotImplementedError: a capability is missing; in `setup` this means n/a.
    """
    capabilities = machine_here()["capabilities"]
    for need in needs:
        if capabilities.get(need) is not None:
            raise NotImplementedError(capabilities[need])


def machine_here() -> dict[str, Any]:
    """Return {"device": "cuda" | "cpu", "capabilities": {name: None or why not}}, found once per asv run."""
    if (folder := _folder()) and (path := folder / "machine.json").is_file():
        return json.loads(path.read_text())
    from ladder.machine import system as machine  # this import takes almost a second, too long for n/a

    device = machine.choose_device()
    return {"device": device, "capabilities": machine.list_capabilities(device)}


# --- what is measured -----------------------------------------------------------------------------------------------


def measured(series: Series, quantity: str, after: Sequence[Series] = ()) -> dict[str, Any]:
    """Return the result of `ladder.engine.once.measure_once` for a series. See `shared` for errors.

    `after` are the series that asv asks for next. If this process has to measure, it measures them too.
    """

    def measure(one: Series, workers: Any = None) -> dict[str, Any]:
        from ladder.engine import once

        workload = one.workload | {"data": images(one.workload)}
        code = code_under_test()
        return once.measure_once(workload, one.recipe, one.device, CYCLES, code=code, workers=workers)

    due = [each for each in (series, *after) if kept(each.fingerprint, quantity) is None]
    if due[:1] == [series] and len(due) > 1 and _folder() and not _only_kept:
        _one_by_one(due, measure)
    return shared(series.fingerprint, quantity, lambda: measure(series), series.workload, series.recipe)


def gpu_time(series: Series, after: Sequence[Series] = ()) -> list[float]:
    """Return the GPU seconds of a step in each profiled cycle, from the visit of `measured`.

    Raises:
        SkipNotImplemented: a CPU has no GPU time, and no figure of the profiler counts without CUPTI (n/a).
    """
    if series.device != "cuda":
        raise SkipNotImplemented("GPU time is measured on a GPU")
    seen = measured(series, "gpu", after)
    if seen["gpu_s"] is None:
        raise SkipNotImplemented(seen["gpu_void"])
    return seen["gpu_s"]


def following(benchmark: Any) -> list[Series]:
    """Return the series that asv asks of a benchmark's class next, without those that are n/a here."""
    found = []
    for params in json.loads(os.environ.get(NEXT, "[]")):
        other = type(benchmark)()
        try:
            other.setup(*params)
        except NotImplementedError:
            continue
        found.append(other.series)
    return found


def _one_by_one(due: list[Series], measure: Callable[[Series, Any], dict[str, Any]]) -> None:
    """Measure and keep all series, each in its own worker, forked by one server that has imported."""
    from ladder.engine import once
    from ladder.machine import caches

    begin = time.monotonic()
    code, asv = code_under_test(), os.getppid()
    with (
        caches.set_variables(caches.choose_build_folder(code)),
        once.open_pool(due[0].device, code) as workers,
    ):
        for place, one in enumerate(due):
            if place and time.monotonic() - begin > AHEAD_S:
                return
            record = _record(lambda one=one: measure(one, workers), one.workload, one.recipe)
            if os.getppid() != asv:
                raise SystemExit("asv has ended, and its next run may be of another commit")
            keep(one.fingerprint, record)


def phases(series: Series, phase: str) -> list[float]:
    """Return the seconds of one phase alone.

    A whole-step graph has no phases, so they are captured separately here.
    """
    recipe = dict(series.recipe)
    if "whole_step_graph" in recipe:  # earlier commits do not have the field
        recipe["whole_step_graph"] = False

    def measure() -> dict[str, Any]:
        from ladder.engine import parts

        code_under_test()
        return parts.time_phases(series.workload, recipe, series.device)

    name = f"{series.fingerprint}-phases"
    return shared(name, phase, measure, series.workload, recipe)["samples_s"][phase]


def loading(name: str, workload: dict[str, Any], recipe: dict[str, Any]) -> list[float]:
    """Return the seconds per image of a data loader alone."""

    def measure() -> dict[str, Any]:
        from ladder.engine import parts

        code_under_test()
        return parts.time_loading(workload | {"data": images(workload)}, recipe, machine_here()["device"])

    return shared(name, "seconds", measure, workload, recipe)["samples_s"]


def preparing(series: Series, cache: str, part: str) -> list[float]:
    """Return the seconds of "compile" or "capture" with "cold" or "warm" caches, one per process.

    One visit measures both: the cold process fills a folder, which makes the next processes warm.
    """

    def measure() -> dict[str, Any]:
        from ladder.engine import once
        from ladder.machine import caches

        with tempfile.TemporaryDirectory() as folder, caches.set_variables(caches.point_into(Path(folder))):
            seen = [
                once.prepare_once(series.workload, series.recipe, series.device, code=code_under_test())
                for _ in range(1 + WARM)
            ]
        return seen[0] | {"cold": seen[:1], "warm": seen[1:]}

    name = f"{series.fingerprint}-preparing"
    seen = shared(name, f"{part} {cache}", measure, series.workload, series.recipe)[cache]
    if part == "capture":
        return [each["capture_s"] for each in seen]
    return [each["prepare_s"] - each["capture_s"] for each in seen]  # both from the worker's clock


def trained(series: Series, count: int, steps: int) -> float:
    """Return the mean Fréchet distance to the sample of Fashion-MNIST after so many steps, of the first seeds."""

    def measure() -> dict[str, Any]:
        from ladder.engine.pool import WorkerFailure
        from ladder.images import idx, prepare
        from ladder.training import seeds

        path = prepare.prepare_images(str(idx.SAMPLE), series.workload["resolution"]).path
        setup = seeds.Setup(series.workload | {"data": path}, series.device, steps)
        real, distances = seeds.read_real(setup), []
        for seed in range(count):
            outcome = seeds.train_rung(setup, seeds.Task("", series.recipe, seed), real)
            if outcome.reason:
                raise WorkerFailure("failed", f"build: {outcome.reason}")
            distances.append(outcome.points[-1].frechet)
        return {"recipe": series.recipe, "distance": sum(distances) / count}

    return shared(f"{series.fingerprint}-trained", "distance", measure, series.workload, series.recipe)[
        "distance"
    ]


# --- sharing it -----------------------------------------------------------------------------------------------------


def shared(
    name: str, quantity: str, measure: Measure, workload: dict[str, Any], recipe: dict[str, Any]
) -> dict[str, Any]:
    """Return the result of `measure`, or the kept result if another quantity of `name` was measured before.

    Raises:
        SkipNotImplemented: the measured commit cannot do this series (n/a).
        RuntimeError: the series failed: out of memory, NaN, an exception; one line.
    """
    record = kept(name, quantity)
    if _only_kept and (record is None or record["status"] not in ("ok", "n/a")):
        raise NotKept(name)
    if record is None:
        record = {"taken": [], **_record(measure, workload, recipe)}
    keep(name, record | {"taken": [*record["taken"], quantity]})
    if record["status"] == "n/a":
        raise SkipNotImplemented(record["reason"])
    if record["status"] != "ok":
        raise RuntimeError(f"{record['status']}: {record['reason']}")
    leave_choices(record["result"].get("choices"))
    return record["result"]


class NotKept(Exception):
    """An error inside `only_kept`: no process has left this number."""


_only_kept = False


@contextmanager
def only_kept() -> Iterator[None]:
    """Make `shared` return kept numbers only: it measures nothing and raises `NotKept` for missing or failed ones."""
    global _only_kept
    _only_kept = True
    try:
        yield
    finally:
        _only_kept = False


def kept(name: str, quantity: str) -> dict[str, Any] | None:
    """Return the record that a process left, or None.

    Returns None also if this quantity was taken before, because `rounds` want a fresh process.
    """
    path = _path(name)
    record = json.loads(path.read_text()) if path and path.is_file() else None
    return None if record is None or quantity in record["taken"] else record


def keep(name: str, record: dict[str, Any]) -> None:
    """Leave a record for other processes. Outside an asv run this does nothing."""
    if path := _path(name):
        path.write_text(json.dumps({"taken": [], **record}))


def _path(name: str) -> Path | None:
    folder = _folder()
    return folder and folder / f"{name}.json"


def _folder() -> Path | None:
    folder = os.environ.get(HANDOVER)
    return Path(folder) if folder else None


def leave_choices(used: list[dict[str, Any]] | None) -> None:
    """Leave the rows of `kernels.choices` that decided this measurement, for the note beside asv's result.

    With None the measured code does not report its choices, and nothing is noted.
    """
    folder, series = _folder(), os.environ.get(SERIES_NAME)
    if used is not None and folder and series:
        from ladder.publish.history import notes

        notes.leave_choices(folder, series, used)


def code_under_test() -> Path:
    """Return the checkout from which this process imports `stylegan_lite`.

    asv puts the measured commit first on the path.
    """
    try:
        spec = importlib.util.find_spec("stylegan_lite")
    except ModuleNotFoundError:  # the finder of `benches` searches only the commit
        spec = None
    if spec is None or spec.origin is None:
        raise SkipNotImplemented("this commit has no package stylegan_lite")
    return Path(spec.origin).resolve().parent.parent


def images(workload: dict[str, Any]) -> str:
    """Return the folder of sample photographs at a workload's resolution. The first call makes it."""
    from ladder.images import prepare as ladder_images

    found = ladder_images.prepare_images(None, workload["resolution"], at_least=workload["batch"])
    return str(found.path)


def _record(measure: Measure, workload: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    from ladder.core import errors
    from ladder.engine import pool
    from ladder.machine import caches

    try:
        with caches.set_variables(caches.choose_build_folder(code_under_test())):
            result = measure()
    except errors.EnvironmentFailure as failure:
        raise SystemExit(f"{failure}: nothing is said of this series") from failure
    except pool.WorkerFailure as failure:
        # An earlier commit refuses an unknown field or value of the recipe, so it cannot do this series.
        refused = failure.reason.startswith("build: ConfigError")
        return {"status": "n/a" if refused else failure.status, "reason": failure.reason}
    answered = {key: result["recipe"].get(key) for key in recipe}
    if fingerprint(workload, answered) != fingerprint(workload, recipe):
        return {"status": "n/a", "reason": "this commit gives the recipe another meaning"}
    return {"status": "ok", "result": result}
