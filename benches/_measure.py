"""From a series to its numbers: one fresh process, whose one visit yields all of them.

asv runs every benchmark and parameter in a process of its own. The first one to measure something leaves what it
saw in a folder that lives as long as the asv run (see `_plugin`), and the benchmarks of its other quantities take it
there.

Importing torch takes most of what a short rung takes. So the process of one rung goes on with those that asv asks for
next: their workers import side by side, then one after another is built, prepared and timed while the others are idle.
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

HANDOVER = (
    "LADDER_ASV_HANDOVER"  # set by _plugin: a folder, empty but for machine.json, for each commit installed
)
SERIES_NAME = "LADDER_ASV_SERIES"  # set by _spawning: what this process measures, as its choices are noted
CYCLES = 6  # samples from one process; asv's `rounds` attribute asks for more processes
# Set by _spawning: the parameters that asv asks of the same benchmark after those of this process.
NEXT = "LADDER_ASV_NEXT"
AHEAD_S = 600  # a process begins nothing for those after it later than this, lest asv's timeout end it
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
    if (folder := _folder()) and (path := folder / "machine.json").is_file():
        return json.loads(path.read_text())
    from ladder.machine import system as machine  # costs most of a second: not where n/a must be quick

    device = machine.choose_device()
    return {"device": device, "capabilities": machine.capabilities(device)}


# --- what is measured -----------------------------------------------------------------------------------------------


def measured(series: Series, quantity: str, after: Sequence[Series] = ()) -> dict[str, Any]:
    """What `ladder.engine.once.measure_once` returns for a series; see `shared` for what it raises.

    `after` are those that asv asks for next, whose processes find their numbers made if this one has to measure.
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


def following(benchmark: Any) -> list[Series]:
    """The series that asv asks of a benchmark's class next, but for those that are n/a on this machine."""
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
    """Measure and keep them all, each in a worker of its own. Workers import a group at a time, while none is timed."""
    from ladder.engine import lanes, once
    from ladder.machine import caches

    begin, group = time.monotonic(), min(lanes.MOST_AHEAD, os.cpu_count() or 1)
    code, asv = code_under_test(), os.getppid()
    with caches.set_to(caches.builds(code)), once.pool(due[0].device, code) as workers:
        for place, one in enumerate(due):
            if place and time.monotonic() - begin > AHEAD_S:
                return
            if place % group == 0:
                workers.start_ahead(min(group, len(due) - place))
            record = _record(lambda one=one: measure(one, workers), one.workload, one.recipe)
            if os.getppid() != asv:
                raise SystemExit("asv has ended, and its next run may be of another commit")
            keep(one.fingerprint, record)


def phases(series: Series, phase: str) -> list[float]:
    """Seconds of one phase alone. A whole step as one graph has no phases: they are captured apart here."""
    recipe = dict(series.recipe)
    if "whole_step_graph" in recipe:  # commits from before it do not know the field
        recipe["whole_step_graph"] = False

    def measure() -> dict[str, Any]:
        from ladder.engine import parts

        code_under_test()
        return parts.phases(series.workload, recipe, series.device)

    name = f"{series.fingerprint}-phases"
    return shared(name, phase, measure, series.workload, recipe)["samples_s"][phase]


def loading(name: str, workload: dict[str, Any], recipe: dict[str, Any]) -> list[float]:
    """Seconds for one image by a loader alone."""

    def measure() -> dict[str, Any]:
        from ladder.engine import parts

        code_under_test()
        return parts.loading(workload | {"data": images(workload)}, recipe, machine_here()["device"])

    return shared(name, "seconds", measure, workload, recipe)["samples_s"]


def preparing(series: Series, cache: str, part: str) -> list[float]:
    """Seconds of getting ready, "compile" or "capture", with "cold" or "warm" caches, a process each.

    Both in one visit: what the cold process leaves in a folder of its own is what makes the next ones warm.
    """

    def measure() -> dict[str, Any]:
        from ladder.engine import once
        from ladder.machine import caches

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
    return [each["prepare_s"] - each["capture_s"] for each in seen]  # both by the worker's clock


# --- sharing it -----------------------------------------------------------------------------------------------------


def shared(
    name: str, quantity: str, measure: Measure, workload: dict[str, Any], recipe: dict[str, Any]
) -> dict[str, Any]:
    """What `measure` returns, measured now unless the benchmark of another quantity of `name` did it.

    Raises:
        SkipNotImplemented: the measured commit cannot do this series (n/a).
        RuntimeError: it could and failed: out of memory, NaN, an exception; one line.
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
    """Inside `only_kept`: a number that no process has left."""


_only_kept = False


@contextmanager
def only_kept() -> Iterator[None]:
    """Inside it `shared` measures nothing and reports no failure: it takes what is kept or raises `NotKept`."""
    global _only_kept
    _only_kept = True
    try:
        yield
    finally:
        _only_kept = False


def kept(name: str, quantity: str) -> dict[str, Any] | None:
    """What a process left, unless this quantity of it is taken: `rounds` ask for it again, of a fresh process."""
    path = _path(name)
    record = json.loads(path.read_text()) if path and path.is_file() else None
    return None if record is None or quantity in record["taken"] else record


def keep(name: str, record: dict[str, Any]) -> None:
    """Leave a record for other processes; outside of an asv run there are none."""
    if path := _path(name):
        path.write_text(json.dumps({"taken": [], **record}))


def _path(name: str) -> Path | None:
    folder = _folder()
    return folder and folder / f"{name}.json"


def _folder() -> Path | None:
    folder = os.environ.get(HANDOVER)
    return Path(folder) if folder else None


def leave_choices(used: list[dict[str, Any]] | None) -> None:
    """For the note beside asv's result: the rows of `kernels.choices` that decided what was measured here.

    None: the measured code does not say, and nothing is noted.
    """
    folder, series = _folder(), os.environ.get(SERIES_NAME)
    if used is not None and folder and series:
        from ladder.publish.history import choices as choicehistory

        choicehistory.leave(folder, series, used)


def code_under_test() -> Path:
    """The checkout that this process would import `stylegan_lite` from: asv puts the measured commit first."""
    try:
        spec = importlib.util.find_spec("stylegan_lite")
    except ModuleNotFoundError:  # `benches` looks in the commit alone
        spec = None
    if spec is None or spec.origin is None:
        raise SkipNotImplemented("this commit has no package stylegan_lite")
    return Path(spec.origin).resolve().parent.parent


def images(workload: dict[str, Any]) -> str:
    """The folder of sample photographs at a workload's resolution, made at the first use."""
    from ladder.images import prepare as ladder_images

    found = ladder_images.prepare_images(None, workload["resolution"], at_least=workload["batch"])
    return str(found.path)


def _record(measure: Measure, workload: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    from ladder.base import errors
    from ladder.engine import pool
    from ladder.machine import caches

    try:
        with caches.set_to(caches.builds(code_under_test())):
            result = measure()
    except errors.EnvironmentFailure as failure:
        raise SystemExit(f"{failure}: nothing is said of this series") from failure
    except pool.WorkerFailure as failure:
        # A commit from before a recipe field or value existed refuses it: it cannot do this series.
        refused = failure.reason.startswith("build: ConfigError")
        return {"status": "n/a" if refused else failure.status, "reason": failure.reason}
    answered = {key: result["recipe"].get(key) for key in recipe}
    if fingerprint(workload, answered) != fingerprint(workload, recipe):
        return {"status": "n/a", "reason": "this commit gives the recipe another meaning"}
    return {"status": "ok", "result": result}
