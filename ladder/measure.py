"""Measures a ladder: rounds of fresh worker processes in random order, a record for whatever happens.

A round is one visit to every rung, each in a process of its own (process medians differ by more than the
cycles of one process), in an order drawn from (seed, round) so that drift does not favour a rung. Before the
rounds, on CUDA, one inspector process a rung profiles a cycle: timed processes never load a profiler. A rung
that fails once is out; the others go on. After every visit the result file is written, so nothing finished is
ever lost.
"""

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ladder import machine, record, results, stats
from ladder.errors import UserError
from ladder.pool import Pool, Worker, WorkerFailure, device_lock

MOST_AHEAD = 8  # idle workers that have imported torch, about half a GB each

OnEvent = Callable[[dict[str, Any]], None]


class Planned(Protocol):
    """One rung to measure, as `ladder.catalog.climb` gives it: a recipe, or one line why it is skipped."""

    name: str
    title: str
    recipe: dict[str, Any] | None
    skipped: str | None
    article_ms: float | None


class Ladder(Protocol):
    name: str
    title: str


def run_ladder(
    workload: dict[str, Any],
    workload_name: str,
    ladder: Ladder,
    planned: Sequence[Planned],
    device: str,
    *,
    rounds: int = 5,
    cycles: int = 2,
    seed: int = 0,
    quick: bool = False,
    on_event: OnEvent | None = None,
    out: Path,
    data_source: str | None = None,
    code: Path | None = None,
    timeouts: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Measure every planned rung and return the result, which is also in its file under the folder `out`.

    `workload["data"]` may be a path; the result says `data_source` instead ("sample-photographs",
    "user-images"). `quick` leaves out settling and repeats of the cycle without lazy phases: not to be
    quoted. `code` takes the measured packages from another checkout. SIGINT or SIGTERM ends the workers and
    returns what is finished, "complete": false.

    `on_event` gets dicts: "event" ("start", "inspect", "visit", "phase", "visited", "failed", "waiting",
    "round", "end"), "rung", "round" (0-based, None while inspecting), "rounds", "phase", "done" and "total"
    visits, "elapsed_s", "left_s" (estimate or None), "step_ms" of the visit, "status" and "reason", "path" of
    the file.

    Raises `UserError` if another run is writing into the folder, or it cannot be written.
    """
    facts = machine.facts(device)
    folder = Path(out) / results.slug(facts["name"])
    with results.folder_lock(folder):
        result = record.new_result(facts, workload_name, workload, data_source, ladder, planned)
        result["protocol"] = record.protocol(rounds, cycles, seed, quick)
        run = _Run(result, workload, planned, device, Path(out), on_event)
        with (
            _stop_on_sigterm(),
            Pool(code=code, torch=code is None or device == "cuda", timeouts=timeouts) as pool,
        ):
            run.measure(pool)
        return result


class _Run:
    """One run in progress: the growing result, and what is still to be visited."""

    def __init__(
        self,
        result: dict[str, Any],
        workload: dict[str, Any],
        planned: Sequence[Planned],
        device: str,
        out: Path,
        on_event: OnEvent | None,
    ) -> None:
        self.result, self.workload, self.device, self.on_event = result, workload, device, on_event
        self.protocol = result["protocol"]
        self.recipes = {p.name: p.recipe for p in planned if p.skipped is None}
        self.rungs = {rung["name"]: rung for rung in result["rungs"]}
        self.path = _free_path(results.path_for(out, result))
        self.begin = time.monotonic()
        self.done, self.total = 0, len(self.recipes) * (self.protocol["rounds"] + (device == "cuda"))
        self.where: dict[str, Any] = {"rung": None, "round": None}

    def measure(self, pool: Pool) -> None:
        """Inspect, then all rounds. Leaves `result` finished and written, also when interrupted."""
        try:
            self.save()
            self.emit("start", path=str(self.path))
            if self.device == "cuda":
                self.each(pool, list(self.recipes), None)
            for number in range(self.protocol["rounds"]):
                self.each(pool, self.order(number), number)
                self.emit("round")
            self.result["complete"] = True
        except KeyboardInterrupt:
            self.protocol["notes"].append("interrupted: what was finished is kept")
        finally:
            self.save()
        self.emit("end", path=str(self.path))

    def order(self, number: int) -> list[str]:
        """The rungs of one round in random order; a function of (seed, round), so that a run can be resumed."""
        names = list(self.recipes)
        random.Random(f"{self.protocol['seed']} {number}").shuffle(names)
        return names

    def each(self, pool: Pool, names: list[str], number: int | None) -> None:
        """A fresh worker for every rung that has not failed yet: inspected if `number` is None, else timed."""
        names = [name for name in names if "failed_at" not in self.rungs[name]]
        pool.start_ahead(min(len(names), MOST_AHEAD))
        for name in names:
            rung = self.rungs[name]
            self.where = {"rung": name, "round": number}
            self.emit("inspect" if number is None else "visit")
            try:
                self.one(pool, rung, number)
            except WorkerFailure as failure:
                self.fail(rung, number, failure)
            self.done += 1
            self.save()
            timed = rung["rounds"] and number is not None and "failed_at" not in rung
            self.emit("visited", step_ms=stats.median(rung["rounds"][-1]["samples_ms"]) if timed else None)

    def one(self, pool: Pool, rung: dict[str, Any], number: int | None) -> None:
        """One worker's life: build, prepare, then inspect or time."""
        with device_lock(machine.device_key(self.device), lambda: self.emit("waiting")):
            worker = pool.take()
            try:
                prepared = self.get_ready(worker, rung)
                if number is None:
                    self.inspect(worker, rung)
                else:
                    rung["rounds"].append(self.visit(worker, number, prepared))
                    rung["status"] = "ok"
            finally:
                worker.close()

    def get_ready(self, worker: Worker, rung: dict[str, Any]) -> dict[str, Any]:
        """Build and prepare; returns what preparing took."""
        self.emit("phase", phase="build")
        built = worker.call(
            "build",
            workload=self.workload,
            recipe=self.recipes[rung["name"]],
            device=self.device,
            seed=self.protocol["seed"],
        )
        rung["recipe"], rung["settings"] = built["recipe"], built["settings"]
        self.emit("phase", phase="prepare")
        return worker.call("prepare")

    def visit(self, worker: Worker, number: int, prepared: dict[str, Any]) -> dict[str, Any]:
        """Time one rung in one round; returns the round's raw record."""
        self.emit("phase", phase="measure")
        seen = worker.call(
            "visit",
            cycles=self.protocol["cycles"],
            settle_s=self.protocol["settle_s"],
            settle_cycles=self.protocol["settle_cycles"],
            main=number == 0 or not self.protocol["quick"],
        )
        return record.new_round(number, prepared, seen)

    def inspect(self, worker: Worker, rung: dict[str, Any]) -> None:
        """GPU-busy time of a step. Without it the rung is still timed: only the host-bound share is missing."""
        self.emit("phase", phase="profile")
        try:
            seen = worker.call("profile")
        except WorkerFailure as failure:
            rung["inspection"] = {"error": failure.reason}
            return
        rung["inspection"] = {
            "gpu_busy_ms": 1000 * seen["busy_s"],
            "kernels_per_step": seen["kernels"],
            "error": None,
        }
        if not seen["kernels"]:
            rung["inspection"] = {"error": "the profiler saw no kernels"}

    def fail(self, rung: dict[str, Any], number: int | None, failure: WorkerFailure) -> None:
        """Take a rung out of the run. Rounds it finished stay in the file, without a headline number."""
        rung["status"] = "failed" if failure.status == "n/a" else failure.status
        rung["reason"] = f"round {number + 1}: {failure.reason}" if rung["rounds"] else failure.reason
        peaks = {key: value for key, value in failure.reply.items() if key.startswith("peak_")}
        rung["failed_at"] = {"round": number, **peaks}
        self.total -= self.protocol["rounds"] - (0 if number is None else number + 1)
        self.emit("failed", status=rung["status"], reason=rung["reason"])

    def save(self) -> None:
        """Bring every derived number up to date and write the file."""
        self.result["baseline"] = record.derive(self.result["rungs"], self.workload["batch"])
        for name in self.recipes:
            if self.rungs[name]["status"] == "n/a":
                self.rungs[name]["reason"] = "not measured: the run ended before"
        self.result["seconds"] = round(time.monotonic() - self.begin, 1)
        try:
            results.write(self.path, self.result)
        except OSError as error:
            raise UserError(f"{self.path}: cannot write the result: {error.strerror or error}") from None

    def emit(self, event: str, **more: Any) -> None:
        """Tell the caller, with what a progress bar needs."""
        if self.on_event:
            elapsed = time.monotonic() - self.begin
            left = elapsed / self.done * (self.total - self.done) if self.done else None
            common = {"rounds": self.protocol["rounds"], "done": self.done, "total": self.total}
            self.on_event(
                {"event": event, **self.where, **common, "elapsed_s": elapsed, "left_s": left, **more}
            )


def measure_once(
    workload: dict[str, Any],
    recipe: dict[str, Any],
    device: str,
    cycles: int,
    code: Path | None = None,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Time one recipe in one fresh worker (for benches): seconds for one step.

    Returns samples_s (one for each cycle), event_s, main_s, prepare_s, peak_reserved_bytes and
    peak_allocated_bytes (None on a CPU), peak_rss_bytes, recipe, settings. Raises `WorkerFailure`; its status
    is "n/a" where `code`, a checkout to take the measured packages from, does not offer the contract.
    """
    empty = {"peak_reserved_bytes": None, "peak_allocated_bytes": None}
    worker = Worker(code=code, torch=code is None or device == "cuda")
    try:
        with device_lock(machine.device_key(device)):
            built = worker.call("build", workload=workload, recipe=recipe, device=device, seed=seed)
            prepared = worker.call("prepare")
            seen = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=True)
            worker.close()
    finally:
        worker.kill()
    merged = empty | built | prepared | seen
    return {key: value for key, value in merged.items() if key not in ("ok", "did")}


def _free_path(path: Path) -> Path:
    """`path`, or with a number where a finished result has that name already (two runs in one second)."""
    number, free = 2, path
    while free.exists():
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does. Signal handlers exist in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
