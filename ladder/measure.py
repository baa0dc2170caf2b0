"""Measures a ladder: rounds of fresh worker processes in random order, a record for whatever happens.

A round is one visit to every rung, each in a process of its own (process medians differ by more than the cycles of one
process), in an order drawn from (seed, round) so that drift does not favour a rung. Before the rounds, on CUDA, one
inspector process a rung profiles a cycle: timed processes never load a profiler. A rung that fails once is out; the
others go on. After every visit the result file is written, so nothing finished is ever lost.
"""

import contextlib
import datetime
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ladder import machine, results, stats
from ladder.pool import ROOT, Pool, Worker, WorkerFailure, device_lock
from ladder.worker import CYCLE_STEPS

SETTLE_S = 30.0
SETTLE_CYCLES = 8
_WALL_BEYOND_EVENT = 0.02
_CODE = ("kernels", "stylegan_lite", "ladder", "requirements.lock")

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

    `workload["data"]` may be a path; the result says `data_source` instead ("sample-photographs", "user-images").
    `quick` leaves out settling and repeats of the cycle without lazy phases: not to be quoted. `code` takes the measured
    packages from another checkout. SIGINT or SIGTERM ends the workers and returns what is finished, "complete": false.

    `on_event` gets dicts: "event" ("start", "inspect", "visit", "phase", "visited", "failed", "waiting", "round", "end"),
    "rung", "round" (0-based, None while inspecting), "rounds", "phase", "done" and "total" visits, "elapsed_s", "left_s"
    (estimate or None), "step_ms" of the visit, "status" and "reason", "path" of the file.

    Raises `UserError` if another run is writing into the folder, or it cannot be written.
    """
    facts = machine.facts(device)
    folder = Path(out) / results.slug(facts["name"])
    with results.folder_lock(folder):
        result = _new_result(workload, workload_name, ladder, planned, facts, data_source)
        result["protocol"] = _protocol(rounds, cycles, seed, quick, device)
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
        self, result: dict, workload: dict, planned: Sequence[Planned], device: str, out: Path, on_event
    ) -> None:
        self.result, self.workload, self.device, self.on_event = result, workload, device, on_event
        self.protocol = result["protocol"]
        self.recipes = {p.name: p.recipe for p in planned if p.skipped is None}
        self.records = {rung["name"]: rung for rung in result["rungs"]}
        self.path = _free_path(results.path_for(out, result))
        self.begin = time.monotonic()
        self.done, self.out_of_race, self.where = 0, set(), {"rung": None, "round": None}

    def measure(self, pool: Pool) -> None:
        """Inspect, then all rounds. Leaves `result` finished and written, also when interrupted."""
        try:
            self.save()
            self.emit("start", path=str(self.path))
            if self.device == "cuda":
                self.each(pool, list(self.recipes), None)
            for number in range(self.protocol["rounds"]):
                self.each(pool, self.order(number), number)
                self.emit("round", round=number)
            self.result["complete"] = True
        except KeyboardInterrupt:
            self.result["protocol"]["notes"].append("interrupted: the rounds that were finished are kept")
        finally:
            self.save()
        self.emit("end", path=str(self.path))

    def order(self, number: int) -> list[str]:
        """The rungs of one round in its own random order; a function of (seed, round), so that a run can be resumed."""
        names = list(self.recipes)
        random.Random(f"{self.protocol['seed']} {number}").shuffle(names)
        return names

    def each(self, pool: Pool, names: list[str], number: int | None) -> None:
        """One fresh worker for every rung that is still in the race: inspected if `number` is None, else timed."""
        for name in names:
            if name in self.out_of_race:
                continue
            self.where = {"rung": name, "round": number}
            self.emit("inspect" if number is None else "visit")
            try:
                self.one(pool, self.records[name], number)
            except WorkerFailure as failure:
                self.fail(self.records[name], number, failure)
            self.done += 1
            self.save()
            self.emit("visited", step_ms=self.last_step_ms(name, number))

    def one(self, pool: Pool, record: dict[str, Any], number: int | None) -> None:
        with device_lock(machine.device_key(self.device), lambda: self.emit("waiting")):
            worker = pool.take()
            try:
                prepared = self.get_ready(pool, worker, record)
                if number is None:
                    self.inspect(worker, record)
                else:
                    record["rounds"].append(self.visit(worker, number, prepared))
                    record["status"] = "ok"
            finally:
                worker.close()

    def get_ready(self, pool: Pool, worker: Worker, record: dict[str, Any]) -> dict[str, Any]:
        self.emit("phase", phase="build")
        seed = self.protocol["seed"]
        recipe = self.recipes[record["name"]]
        built = worker.call("build", workload=self.workload, recipe=recipe, device=self.device, seed=seed)
        record["recipe"], record["settings"] = built["recipe"], built["settings"]
        self.emit("phase", phase="prepare")
        if self.done + 1 < self.total():
            pool.start_ahead()
        prepared = worker.call("prepare")
        pool.wait_ahead()
        return prepared

    def visit(self, worker: Worker, number: int, prepared: dict[str, Any]) -> dict[str, Any]:
        """Time one rung in one round; returns the round's raw record."""
        self.emit("phase", phase="measure")
        quick = self.protocol["quick"]
        settle = {"settle_s": self.protocol["settle_s"], "settle_cycles": self.protocol["settle_cycles"]}
        seen = worker.call("visit", cycles=self.protocol["cycles"], main=not quick or number == 0, **settle)
        return round_record(number, prepared, seen)

    def inspect(self, worker: Worker, record: dict[str, Any]) -> None:
        """GPU-busy time of a step. Without it the rung is still timed: only the host-bound share is missing."""
        self.emit("phase", phase="profile")
        try:
            seen = worker.call("profile")
        except WorkerFailure as failure:
            record["notes"].append(f"host-bound share unknown: {failure.reason}")
            return
        if seen["kernels"]:
            record["gpu_busy_ms"], record["kernels_per_step"] = 1000 * seen["busy_s"], seen["kernels"]
        else:
            record["notes"].append("host-bound share unknown: the profiler saw no kernels")

    def fail(self, record: dict[str, Any], number: int | None, failure: WorkerFailure) -> None:
        """Take a rung out of the race. Rounds it finished before stay in the file, without a headline number."""
        record["status"] = "failed" if failure.status == "n/a" else failure.status
        record["reason"] = failure.reason if not record["rounds"] else f"round {number + 1}: {failure.reason}"
        record["failed_at"] = {"round": number} | {
            k: v for k, v in failure.reply.items() if k.startswith("peak_")
        }
        self.out_of_race.add(record["name"])
        self.emit("failed", status=record["status"], reason=record["reason"])

    def save(self) -> None:
        self.result["baseline"] = results.derive(self.result["rungs"], self.workload["batch"])
        for name in self.recipes:
            finish_record(self.records[name], self.result["complete"])
        self.result["seconds"] = round(time.monotonic() - self.begin, 1)
        results.write(self.path, self.result)

    def total(self) -> int:
        """Visits in all, as far as known now: rungs that are out are not visited again."""
        rounds = self.protocol["rounds"]
        each = rounds + (self.device == "cuda")
        lost = sum(
            rounds - 1 - (-1 if self.failed_round(name) is None else self.failed_round(name))
            for name in self.out_of_race
        )
        return each * len(self.recipes) - lost

    def failed_round(self, name: str) -> int | None:
        return self.records[name]["failed_at"]["round"]

    def last_step_ms(self, name: str, number: int | None) -> float | None:
        rounds = self.records[name]["rounds"]
        return stats.median(rounds[-1]["samples_ms"]) if rounds and rounds[-1]["round"] == number else None

    def emit(self, event: str, **more: Any) -> None:
        if self.on_event:
            elapsed, total = time.monotonic() - self.begin, self.total()
            left = elapsed / self.done * (total - self.done) if self.done else None
            common = {"rounds": self.protocol["rounds"], "done": self.done, "total": total}
            self.on_event(
                {"event": event, **self.where, **common, "elapsed_s": elapsed, "left_s": left, **more}
            )


def round_record(number: int, prepared: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """The raw record of one visit, from the worker's replies: times in ms for one step, in time order."""
    return {
        "round": number,
        "samples_ms": [1000 * s for s in seen["samples_s"]],
        "event_ms": None if seen["event_s"] is None else [1000 * s for s in seen["event_s"]],
        "main_ms": None if seen["main_s"] is None else 1000 * seen["main_s"],
        "prepare_s": prepared["prepare_s"],
        "capture_s": prepared.get("capture_s"),
        "lead_in_cycles": seen["lead_in_cycles"],
        "settled": seen["settled"],
        **{
            k: v
            for k, v in seen.items()
            if k.startswith("peak_") or k in ("device_used_bytes", "alloc_retries")
        },
    }


def finish_record(record: dict[str, Any], complete: bool) -> None:
    """What a reader must be told about a rung's raw rounds, and about one that has none."""
    if record["status"] == "n/a":
        record["reason"] = "not measured yet" if not complete else "not measured"
        return
    if record["status"] == "ok":
        record["reason"] = None
    rounds = record["rounds"]
    notes = [
        note for note in record["notes"] if not note.startswith(("unsettled", "wall clock", "allocator"))
    ]
    if unsettled := [str(r["round"] + 1) for r in rounds if r["settled"] is False]:
        notes.append(f"unsettled in round {', '.join(unsettled)}")
    pairs = [
        pair for r in rounds if r["event_ms"] for pair in zip(r["samples_ms"], r["event_ms"], strict=True)
    ]
    if beyond := sum(wall > event * (1 + _WALL_BEYOND_EVENT) + 0.1 for wall, event in pairs):
        notes.append(
            f"wall clock beyond CUDA events in {beyond} of {len(pairs)} samples: work that the events do not see"
        )
    if any(r.get("alloc_retries") for r in rounds):
        notes.append("allocator ran out and retried while timing: memory is too tight for this time to count")
    record["notes"] = notes


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

    Returns samples_s (one for each cycle), event_s, main_s, prepare_s, peak_reserved_bytes and peak_allocated_bytes (None
    on a CPU), peak_rss_bytes, recipe, settings. Raises `WorkerFailure`; its status is "n/a" where `code`, a checkout to
    take the measured packages from, does not offer the contract.
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


def _new_result(workload, workload_name, ladder, planned, facts, data_source) -> dict[str, Any]:
    rungs = []
    for p in planned:
        rungs.append(results.new_rung(p.name, p.title, p.recipe, p.article_ms))
        rungs[-1]["reason"] = p.skipped
    data = None if workload.get("data") is None else data_source or "user-images"
    commit, dirty = commit_of(ROOT)
    return {
        "schema": results.SCHEMA,
        "machine": facts,
        "workload": {"name": workload_name, **workload, "data": data},
        "ladder": {"name": ladder.name, "title": ladder.title, "rungs": [p.name for p in planned]},
        "protocol": {},
        "commit": commit,
        "dirty": dirty,
        "complete": False,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "baseline": None,
        "rungs": rungs,
    }


def _protocol(rounds: int, cycles: int, seed: int, quick: bool, device: str) -> dict[str, Any]:
    notes = ["quick: not to be quoted"] if quick else []
    return {
        "rounds": rounds,
        "cycles": cycles,
        "cycle_steps": CYCLE_STEPS,
        "seed": seed,
        "quick": quick,
        "settle_s": 0.0 if quick else SETTLE_S,
        "settle_cycles": 0 if quick else SETTLE_CYCLES,
        "notes": notes,
    }


def _free_path(path: Path) -> Path:
    """`path`, or with a number where a finished result has that name already (two runs in one second)."""
    number, free = 2, path
    while free.exists():
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free


def commit_of(root: Path) -> tuple[str | None, bool | None]:
    """(commit, whether the code differs from it) of the checkout at `root`; (None, None) without git or a repository."""

    def git(*command: str) -> str:
        run = subprocess.run(
            ["git", "-C", str(root), *command], capture_output=True, text=True, timeout=30, check=True
        )
        return run.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != Path(root).resolve():
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *_CODE))
    except (OSError, subprocess.SubprocessError):
        return None, None


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
