"""The rows of `ladder precision` as a job for `ladder.engine.lanes`: parity first, then timing.

Parity is not timed, so on a GPU rows are checked side by side, in as many workers as `ladder run` has inspectors. Rows
are prepared and timed one by one, so the memory in use on the whole GPU is a row's own. A row that runs out of memory
beside others is checked again alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ladder.engine import lanes as sidebyside
from ladder.engine import run as measure
from ladder.engine.inspection import Alone
from ladder.engine.pool import Pool, Worker, WorkerFailure, plain
from ladder.machine import neighbours
from ladder.report import checks
from ladder.results import types as checked
from ladder.results.store import FAILED_PARITY
from ladder.results.types import Plain, build
from ladder.studies.precision.record import Parity, Round, Row, Rows, title

if TYPE_CHECKING:
    from ladder.studies.precision.plan import Plan

GIB = 2**30
SHARES_KERNELS = ("tf32", "fp8")  # share most kernels with FP32 and BF16
SETTLE = {"settle_s": 2.5, "settle_cycles": 16}  # the most that a row runs before its first timed cycle


class TimeUp(KeyboardInterrupt):
    """The end of the minutes that the user allowed. Nothing more begins; rows begun side by side are finished."""


class Session:
    """A fresh worker with one prepared recipe. It is closed at the end whatever happens."""

    def __init__(self, plan: Plan, recipe: Plain, worker: Worker, **workload: Any) -> None:
        self.plan, self.recipe, self.worker = plan, recipe, worker
        self.workload = plan.workload | workload

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.worker.kill() if kind else self.worker.close()

    def build(self, **more: Any) -> Plain:
        built = self.worker.call(
            "build", workload=self.workload, recipe=self.recipe, device=self.plan.device, seed=self.plan.seed, **more
        )  # fmt: skip
        return built | self.worker.call("prepare")


class Run:
    """Rows by name, their remaining work, and the workers for it. ``save`` may raise `TimeUp`."""

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        workers: Pool,
        tell: Callable[[str], None],
        save: Callable[[], None],
    ) -> None:
        self.plan, self.rungs, self.workers, self.tell, self.save = plan, rows, workers, tell, save
        self.recipes = {name: row.recipe for name, row in rows.items() if row.status == "ok"}
        self.place = threading.local()  # this thread's current row and task
        self.lock = threading.RLock()  # guards the rows
        self.over: TimeUp | None = None

    # the remaining work

    def is_due(self, name: str, number: int | None) -> bool:
        """Return whether a row lacks its parity (`number` None) or this round."""
        row = self.rungs[name]
        if self.over or row.status != "ok":
            return False
        return row.parity is None if number is None else all(r.round != number for r in row.rounds)

    def inspect_all(self) -> None:
        """Check parity of every row that lacks it."""
        names = self._due(None)
        room = (self.plan.memory_gib or math.inf) / measure.INSPECTOR_GB
        lanes = int(min(measure.LANES.get(self.plan.device, 1), (os.cpu_count() or 1) // 2, room))
        if names and lanes > 1:
            self.alone(names[:1], None)  # makes the reference that all rows are compared with
            sidebyside.inspect(self, self.workers, sorted(names[1:], key=self._turn), lanes)
        self.alone(names, None)  # on a CPU all rows; on a GPU rows that failed beside others

    def round(self, number: int, order: Callable[[list[str]], None]) -> None:
        """Time every row that lacks this round, in the order that `order` gives their names."""
        names = self._due(number)
        order(names)
        self.alone(names, number)

    def alone(self, names: Sequence[str], number: int | None) -> None:
        """Check or time the rows one after the other."""
        for name in names:
            if not self.is_due(name, number):
                continue
            self.place.at = {"rung": name, "round": number}
            self.emit("inspect" if number is None else "visit")
            worker = self.workers.take()
            try:
                self.get_ready(worker, name, keep_gradients=number is None)
                if number is None:
                    self.inspect(worker, name)
                else:
                    self.time(worker, self.rungs[name], number)
            except WorkerFailure as failure:
                self.fail(name, number, failure)
            finally:
                worker.close()
            self.visited(name, number)
        if self.over:
            raise self.over

    def _due(self, number: int | None) -> list[str]:
        return [name for name in self.rungs if self.is_due(name, number)]

    def _turn(self, name: str) -> int:
        """Return a row's place. Rows with many kernels to compile come first, and rows that reuse them come last."""
        row = self.rungs[name]
        return 1 if row.on == "baseline" else 2 * (row.precision in SHARES_KERNELS)

    # called by `ladder.engine.lanes`, partly from several threads

    def device_lock(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # the command holds the lock

    def emit(self, event: str, **_: Any) -> None:
        name, number = self.place.at["rung"], self.place.at["round"]
        if event in ("inspect", "visit"):
            doing = "parity" if number is None else f"generation {number + 1} of {self.plan.rounds}"
            with self.lock:
                self.tell(f"{name}: {doing}")

    def get_ready(
        self, worker: Worker, name: str, threads: int | None = None, keep_gradients: bool = True
    ) -> Plain:
        row = self.rungs[name]
        more = {"keep_gradients": keep_gradients, "threads": threads}
        return Session(self.plan, row.recipe, worker, data=None).build(**{k: v for k, v in more.items() if v})

    def inspect(self, worker: Worker, name: str, _: Alone = contextlib.nullcontext) -> None:
        """Compare with FP64. A row that fails is not timed, except FP8: it is outside the budget by design."""
        row = self.rungs[name]
        found = build(checked.Parity, plain(worker.call("parity")))
        share = checks.parity_share(found)
        errors = {phase: each["gradient"].error for phase, each in (found.phases or {}).items()}
        parity = Parity(
            verdict=found.verdict,
            reason=found.reason,
            share=None if share is None else round(share, 4),
            gradient_errors={phase: float(f"{error:.4g}") for phase, error in errors.items()},
            budget=found.budget.precision if found.budget else "",
        )
        if found.verdict == "ok" or row.precision == "fp8":
            self.put(row, parity=parity)
        else:
            self.put(row, parity=parity, status=FAILED_PARITY, reason=found.reason)

    def put(self, row: Row, **changes: Any) -> None:
        """Change the row of this name. Another thread may be writing the file of results."""
        with self.lock:
            self.rungs[title(row)] = replace(self.rungs[title(row)], **changes)

    def time(self, worker: Worker, row: Row, number: int) -> None:
        """Store the samples and the memory of a prepared row."""
        settle = SETTLE if self.plan.device == "cuda" else {"settle_s": 0, "settle_cycles": 0}
        before = neighbours.take_sample()
        seen = worker.call("visit", cycles=self.plan.cycles, main=False, **settle)
        others = neighbours.derive_share(before, neighbours.take_sample())
        sizes = {
            "allocated_gib": seen.get("peak_allocated_bytes"),
            "reserved_gib": seen.get("peak_reserved_bytes"),
            "device_gib": seen.get("device_used_bytes"),
            "rss_gib": seen.get("peak_rss_bytes"),
        }
        samples = [round(1000 * s, 5) for s in seen["samples_s"]]
        gib = {k: None if v is None else round(v / GIB, 4) for k, v in sizes.items()}
        made = Round(round=number, samples_ms=samples, beside=0, others_cpu=others, **gib)
        self.put(row, rounds=[*self.rungs[title(row)].rounds, made])

    def fail(self, name: str, number: int | None, failure: WorkerFailure) -> None:
        self.put(self.rungs[name], status=failure.status, reason=failure.reason)

    def visited(self, name: str, number: int | None) -> None:
        """Save the finished rows. Beside others, the end of the minutes waits for rows that have begun."""
        with self.lock:
            try:
                self.save()
            except TimeUp as over:
                self.over = over
