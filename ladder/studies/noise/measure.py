"""The measurement of `ladder noise`: generations of one rung and its twin, as `ladder run` makes them.

Three generations come first. Their duration tells how many more fit into the minutes. Parity and receipts are left
out: two copies of one program are compared, whatever it computes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.base import text as texts
from ladder.base.locks import device_lock
from ladder.base.records import build, plain
from ladder.base.stopping import stop_on_sigterm
from ladder.engine import run as engine
from ladder.engine.run_state import OnEvent
from ladder.machine import clocks, system
from ladder.plan import modes
from ladder.results import identity, record
from ladder.results.types import Plain
from ladder.stats import rounds_budget
from ladder.studies.noise.record import Clocks, Result, derive_from

FIRST = rounds_budget.LEAST_ROUNDS
MOST = 100  # generations, which the engine allows
CYCLES = 3  # timed in each process


@dataclass(frozen=True)
class Plan:
    """The request: a rung, on this workload, for so many minutes."""

    name: str
    workload: Plain  # with the path of its images
    ladder: modes.Ladder
    planned: Sequence[modes.Planned]
    device: str
    minutes: float
    lock: bool
    seed: int = 0

    @property
    def rung(self) -> str:
        """Return the name of the rung."""
        return self.planned[-1].name


def fitting(minutes: float, spent_s: float) -> int:
    """Return the generations that fit into the minutes, if the first three took so many seconds."""
    more = int((60 * minutes - spent_s) // (spent_s / FIRST)) if spent_s > 0 else 0
    return min(MOST, FIRST + max(0, more))


def measure(plan: Plan, source: str | None, on_event: OnEvent, nvml: Any = None) -> Result:
    """Measure both copies and return the result. After an interrupt it is not complete.

    Args:
        source: of the images, as a result says it.
        nvml: replaces pynvml in tests.
    """
    begin = time.monotonic()
    uuid = system.probe().get("uuid") if plan.device == "cuda" else None
    if plan.lock:  # another run that measures now keeps its clock
        with device_lock(system.device_key(plan.device), lambda: on_event({"event": "waiting"})):
            pass
    with (
        stop_on_sigterm(),
        clocks.locked(uuid, plan.lock, nvml) as state,
        tempfile.TemporaryDirectory() as folder,
    ):
        run = _generations(plan, source, Path(folder), on_event)
    held = Clocks(asked=plan.lock, locked_mhz=state.mhz, reason=state.reason and texts.display(state.reason))
    return new_result(plan, texts.fit(run), held, time.monotonic() - begin)


def new_result(plan: Plan, run: Plain, clocks_: Clocks, seconds: float) -> Result:
    """Return the result that is derived from a run."""
    trained = {"name": plan.name, **plan.workload, "data": run["workload"]["data"]}
    header = record.header("noise", run["machine"], trained, images=run.get(identity.IMAGES))
    header |= {key: run[key] for key in ("started", "measured_code", "commit", "dirty", "complete")}
    empty = {"resolution": None, "floor": None, "between": None, "inside": None, "generations": 0}
    made = header | {
        "seconds": round(seconds, 1),
        "rung": plan.rung,
        "protocol": {"minutes": plan.minutes, "seed": plan.seed, "notes": []},
        "clocks": plain(clocks_),
        "run": run,
        "wall": empty,
        "gpu_time": None,
        "limits": [],
    }
    return derive_from(build(Result, made))


def _generations(plan: Plan, source: str | None, folder: Path, on_event: OnEvent) -> dict[str, Any]:
    """Return the run: three generations, and as many more as fit."""
    path: list[Path] = []

    def follow(event: dict[str, Any]) -> None:
        path[:] = [Path(event["path"])] if "path" in event else path
        on_event(event)

    common: dict[str, Any] = {
        "cycles": CYCLES,
        "seed": plan.seed,
        "on_event": follow,
        "out": folder,
        "data_source": source,
        "images": identity.of_images(plan.workload["data"]),
        "inspect": False,
    }
    which = plan.workload, plan.name, plan.ladder, plan.planned, plan.device
    begin = time.monotonic()
    run = engine.run_ladder(*which, rounds=FIRST, **common)
    wanted = fitting(plan.minutes, time.monotonic() - begin)
    if run["complete"] and wanted > FIRST and run["rungs"][0]["status"] == "ok":
        run = engine.run_ladder(*which, rounds=wanted, resume=path[0], **common)
    return run
