"""Runs of a whole ladder of fake steps, and their processes."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ladder.core.job import Job, RunPlan
from ladder.core.records import read_record, write_whole
from ladder.engine import run as measure
from ladder.engine.pool import Worker
from ladder.machine import stillness, system
from ladder.results import judging, loading
from ladder.results import store as results
from ladder.results.run import Run

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "support" / "fake_code"
WORKLOAD = {"batch": 8, "resolution": 8, "data": "/home/someone/pictures"}


class Planned(NamedTuple):
    """One rung of a plan, like `ladder.plan.catalog.Planned`."""

    name: str
    recipe: dict[str, Any] | None = None
    skipped: str | None = None
    title: str = "a title"
    article_ms: float | None = None
    variant: None = None


class Ladder(NamedTuple):
    name: str = "article"
    title: str = "The article's ladder"
    digest: None = None


def job(out: Path, plan: Sequence[Any], **options: Any) -> Job:
    """Return the job of a fake plan on this CPU."""
    workload = options.pop("workload", WORKLOAD)
    more = {key: options.pop(key) for key in ("resume", "minutes", "source") if key in options}
    if "budget_s" in options:
        more["minutes"] = options.pop("budget_s") / 60
    asked = {"ladder": Ladder(), "planned": plan, "code": FAKE, "torch": False, "inspect": False}
    facts = system.describe_machine("cpu")
    plan_ = RunPlan(**asked | options)
    return Job("cpu", "fake", workload, more.pop("source", None), facts, plan_, out, **more)


def run(out: Path, rungs: dict[str, dict | None], **options: Any) -> dict[str, Any]:
    """Measure `rungs`: the recipe of each by name, None where it is n/a.

    Settling is left out unless asked for, and so is the quiet between visits: a fake step disturbs nobody.
    """
    plan = [
        Planned(name, skipped="needs a CUDA GPU")
        if recipe is None
        else Planned(name, {"name": name, **recipe})
        for name, recipe in rungs.items()
    ]
    options = {"rounds": 1, "cycles": 1, "quick": True} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stillness, "wait_until_still", lambda group: 0.0)
        patch.setattr(
            loading, "find_problem", lambda run: None
        )  # a fake step may be too fast, its recipe odd
        on_event = options.pop("on_event", None)
        return write_whole(judging.derive_result(measure.run_ladder(job(out, plan, **options), on_event)))


def be_impatient(patch: pytest.MonkeyPatch, name: str, **timeouts: float) -> None:
    """Give up this rung's workers after so many seconds of silence, and those of no other: it may just be slow."""
    real = Worker.call

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build" and fields["recipe"]["name"] == name:
            worker._timeouts |= timeouts
        return real(worker, do, **fields)

    patch.setattr(Worker, "call", call)


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rung["name"]: rung for rung in result["rungs"]}


def stored(out: Path) -> dict[str, Any]:
    """Return what follows from the one file of a run."""
    (path,) = out.glob("*/*.json")
    return read(path)


def read(path: Path) -> dict[str, Any]:
    """Return what follows from the file of a run. Nothing but its record is checked: a fake step may be too fast."""
    return write_whole(judging.derive_result(read_record(Run, results.read(path))))


def alive(pid: int) -> bool:
    """Whether a process runs: neither gone nor a zombie that only waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition: Any, process: subprocess.Popen | None = None) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline and (process is None or process.poll() is None)
        time.sleep(0.02)


def known(value: Any) -> Any:
    """Return data without what is unknown."""
    if isinstance(value, dict):
        return {key: known(each) for key, each in value.items() if each is not None}
    return list(map(known, value)) if isinstance(value, list) else value
