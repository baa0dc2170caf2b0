"""A run of a ladder: rounds of fresh worker processes in random order, and a record of every outcome.

A round is one visit to every rung, each in a process of its own. Process medians differ by more than the cycles of
one process. Its order is drawn from (seed, round) so that drift does not favour a rung. The lowest and the highest
rung are visited twice: the difference between these twins is noise (`ladder.results.judging`). Before the rounds, one
inspector process a rung shows that the rung is on and computes what the baseline does (`ladder.engine.inspection`).
How one visit is made, and when it is void, is in `ladder.engine.visit`. A rung that fails once is out; the others go
on. After every visit the result file is written, so nothing finished is ever lost.
"""

import contextlib
import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ladder.base import locks, text
from ladder.base.errors import EnvironmentFailure, UserError
from ladder.base.locks import device_lock
from ladder.base.stopping import stop_on_sigterm
from ladder.engine import inspection
from ladder.engine import lanes as sidebyside
from ladder.engine.once import measure_once as measure_once
from ladder.engine.pool import TUNING, Pool, Worker, WorkerFailure
from ladder.engine.run_state import OnEvent, RunState
from ladder.machine import system
from ladder.plan import modes
from ladder.results import judging, record, types
from ladder.results.combine import resuming
from ladder.stats import rounds_budget, verdicts

LANES = {"cuda": 6}  # inspectors side by side; on a CPU they would only take each other's cores
INSPECTOR_GB = 20.0  # of the GPU's memory for each
PREPARED = {"cuda": 8}  # rungs prepared side by side before each is timed alone, if memory and cores allow


def run_ladder(
    workload: dict[str, Any],
    workload_name: str,
    ladder: modes.Ladder,
    planned: Sequence[modes.Planned],
    device: str,
    *,
    rounds: int | None = None,
    cycles: int | None = None,
    seed: int = 0,
    quick: bool = False,
    mode: str = modes.CUMULATIVE,
    budget_s: float | None = None,
    resume: Path | None = None,
    on_event: OnEvent | None = None,
    out: Path,
    data_source: str | None = None,
    images: dict[str, Any] | None = None,
    code: Path | None = None,
    inspect: bool | None = None,
    timeouts: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Measure every planned rung and return the result, which is also in its file under the folder `out`.

    Args:
        workload: "data" may be a path; the result has `data_source` and `images` instead.
        rounds: by default 5 to 12 as far as `budget_s` allows (`ladder.stats.rounds_budget`), or 3 if `quick`.
        quick: leave out settling and repeats of the cycle without lazy phases. The result is not to be quoted.
        resume: a result file, to which the run adds what it lacks.
        on_event: called with dicts, see below.
        data_source: "sample-photographs" or "user-images".
        images: facts on a user's images (`ladder.results.identity.of_images`).
        code: another checkout with the measured packages. The inspection does not know it.
        inspect: by default true unless `code` is given.

    SIGINT or SIGTERM ends the workers and returns the finished part, "complete": false.

    Keys of an event:

    | key | value |
    |---|---|
    | event | "start", "inspect", "visit", "phase", "visited", "failed", "waiting", "round" or "end" |
    | rung, round, rounds, phase | `round` is 0-based, None while inspecting |
    | done, total | visits |
    | elapsed_s, left_s | `left_s` is an estimate or None |
    | step_ms | of the visit |
    | status, reason | of a failure |
    | path | the file |

    Raises:
        UserError: another run is writing into the folder, it cannot be written, a worker is on another GPU, or the
            system fails (a full disk). The file then holds the finished part, and no rung is blamed.
    """
    facts = system.facts(device)
    folder = Path(out) / text.slug(facts["name"]) if resume is None else Path(resume).parent
    with locks.folder_lock(folder):
        result = record.new_result(facts, workload_name, workload, data_source, ladder, planned, code, images)
        result["protocol"] = record.protocol(rounds, cycles, seed, quick, mode, budget_s)
        judging.add_twins(result)
        if resume is not None:
            result = resuming.take_up(resume, result, rounds)
        path = resume or record.new_path(out, result)
        inspects = code is None if inspect is None else inspect
        run = _Run(result, workload, planned, device, path, on_event, inspects)
        with (
            stop_on_sigterm(),
            Pool(code=code, torch=code is None or device == "cuda", timeouts=timeouts) as pool,
        ):
            if resume is not None:
                refuse_other_threads(resume, result, pool)
            run.measure(pool)
        return result


class _Run(RunState):
    """One run in progress: the rounds, the inspections and the visits that fill its result."""

    def measure(self, pool: Pool) -> None:
        """Inspect, then run all rounds. `result` is finished and written, also when interrupted."""
        try:
            self.save()
            self.emit("start", path=str(self.path))
            if self.inspects:
                self.inspect_all(pool)
            number, round_s = 0, 0.0
            while self.goes_on(number, round_s):
                begin = time.monotonic()
                self.round(pool, number)
                round_s = max(round_s, time.monotonic() - begin)
                self.emit("round")
                number += 1
                self.fit_cycles(number, round_s)
            self.visits.look_around()
            self.result["complete"] = True
        except KeyboardInterrupt:
            self.protocol["notes"].append("interrupted: what was finished is kept")
        except EnvironmentFailure as failure:
            self.protocol["notes"].append(f"interrupted: {failure}")
            raise UserError(
                f"{failure}; what was finished is kept: go on with --resume {self.path}"
            ) from failure
        finally:
            try:
                self.save()
            finally:
                self.visits.close()
        self.emit("end", path=str(self.path))

    def goes_on(self, done: int, round_s: float) -> bool:
        """Return whether to make one more round, and keep the number of planned rounds up to date."""
        asked = self.protocol["rounds"] if self.protocol["fixed"] else None
        begun = any(r["round"] >= done for rung in self.rungs.values() for r in rung["rounds"])
        go = begun or rounds_budget.another_round(
            done,
            fixed=asked,
            budget_s=self.protocol["budget_s"],
            spent_s=time.monotonic() - self.begin,
            round_s=round_s,
            wanted=done >= verdicts.LEAST_ROUNDS and self.wants_rounds(),
        )
        self.protocol["rounds"] = max(self.protocol["rounds"], done + 1) if go else done
        return go

    def wants_rounds(self) -> bool:
        return judging.wants_generations(types.build(types.Result, self.result))

    def fit_cycles(self, done: int, round_s: float) -> None:
        """Time one cycle a visit from now on if five rounds of more do not fit the budget. A note says so."""
        protocol, spent = self.protocol, time.monotonic() - self.begin
        limit = None if protocol["fixed"] else protocol["budget_s"]
        cycles = rounds_budget.fitting_cycles(
            protocol["cycles"], done, budget_s=limit, spent_s=spent, round_s=round_s
        )
        if cycles < protocol["cycles"]:
            protocol["cycles"] = cycles
            protocol["notes"].append(f"from round {done + 1} on {cycles} cycle a visit, to fit the budget")

    def order(self, number: int) -> list[str]:
        """Return the rungs of one round in random order: a function of (seed, round), so that a run can be resumed."""
        names = list(self.recipes)
        random.Random(f"{self.protocol['seed']} {number}").shuffle(names)
        return names

    def round(self, pool: Pool, number: int) -> None:
        """Visit every rung that has not failed yet. Some are prepared side by side; the others, alone, come last."""
        names = self.order(number)
        self.visits.look_around()
        if PREPARED.get(self.device, 1) > 1:
            sidebyside.time_all(self, pool, names, number)
        self.each(pool, names, number)

    def lanes(self) -> int:
        """Return how many rungs are prepared side by side now."""
        memory = (self.result["machine"].get("gpu_memory_gb") or 0.0) * 2**30
        rounds = [each for rung in self.rungs.values() for each in rung["rounds"]]
        peaks = [each["peak_reserved_bytes"] for each in rounds if each.get("peak_reserved_bytes")]
        return sidebyside.fitting(PREPARED[self.device], memory, os.cpu_count() or 1, peaks)

    def each(self, pool: Pool, names: list[str], number: int | None) -> None:
        """Give every rung that has not failed a fresh worker. It is inspected if `number` is None, else timed."""
        names = [name for name in names if self.is_due(name, number)]
        if not names:
            return
        pool.start_ahead(min(len(names), sidebyside.MOST_AHEAD))
        for place, name in enumerate(names):
            rung = self.rungs[name]
            if not self.is_due(name, number):  # a rung it depends on has failed since
                continue
            if not pool.ahead:  # twelve side by side import in the time of one
                pool.start_ahead(min(len(names) - place, sidebyside.MOST_AHEAD))
            self.place.at = {"rung": name, "round": number}
            self.emit("inspect" if number is None else "visit")
            try:
                with self.device_lock():
                    self.one(pool, rung, number)
            except WorkerFailure as failure:
                self.fail(rung, number, failure)
            self.visited(rung, number)

    def one(self, pool: Pool, rung: dict[str, Any], number: int | None) -> None:
        """Run one worker's life: build, prepare, then inspect or time."""
        worker = pool.take()
        try:
            prepared = self.get_ready(worker, rung, keep_gradients=number is None)
            if number is None:
                self.inspect(worker, rung)
            else:
                self.time(worker, rung, number, prepared)
        finally:
            worker.close()

    def time(
        self,
        worker: Worker,
        rung: dict[str, Any],
        number: int,
        prepared: dict[str, Any],
        alive: set[int] | None = None,
    ) -> None:
        """Time a prepared rung and keep its record. `alive` are the workers that hold a context, if others do."""
        self.emit("phase", phase="measure")
        made = self.visits.visit(
            worker,
            number,
            prepared,
            rung["rounds"],
            (r for each in self.rungs.values() for r in each["rounds"]),
            alive=alive,
            cycles=self.protocol["cycles"],
            settle_s=self.protocol["settle_s"],
            settle_cycles=self.protocol["settle_cycles"],
            main=(number == 0 or not self.protocol["quick"]) and "of" not in rung,
        )
        rung["rounds"].append(made)
        rung.update(status="ok", reason=None)
        used = worker.call("choices")["choices"]  # after timing
        record.add_choices(self.result, rung.get("of", rung["name"]), used)

    def device_lock(self) -> contextlib.AbstractContextManager[None]:
        return device_lock(system.device_key(self.device), lambda: self.emit("waiting"))

    def get_ready(
        self, worker: Worker, rung: dict[str, Any], keep_gradients: bool, threads: int | None = None
    ) -> dict[str, Any]:
        """Build and prepare on so many CPU threads. Return the seconds that it took."""
        self.emit("phase", phase="build")
        more: dict[str, Any] = {"keep_gradients": keep_gradients, "threads": threads}
        built = worker.call(
            "build",
            workload=self.workload,
            recipe=self.recipes[rung["name"]],
            device=self.device,
            seed=self.protocol["seed"],
            **{key: value for key, value in more.items() if value},
        )
        if problem := self.visits.check_gpu(built.get("gpu_uuid")):
            raise UserError(problem)
        with self.lock:
            rung["recipe"], rung["settings"] = built["recipe"], built["settings"]
        self.emit("phase", phase="prepare")
        tunes: dict[str, Any] = {"patience": TUNING} if sidebyside.chooses(self.recipes[rung["name"]]) else {}
        return worker.call("prepare", **tunes) | {"start_s": worker.start_s, "build_s": built.get("build_s")}

    def inspect_all(self, pool: Pool) -> None:
        """Inspect every rung without findings. Findings of earlier runs come from the cache."""
        self.seen = inspection.Cache(self.workload, self.result["machine"])
        names = [name for name in self.recipes if name not in self.twins]
        for name in names:
            if self.rungs[name]["inspection"] is None and (found := self.seen.get(self.recipes[name])):
                self.rungs[name].update(found)
        memory = self.result["machine"].get("gpu_memory_gb") or math.inf
        lanes = max(1, int(min(LANES.get(self.device, 1), memory / INSPECTOR_GB)))
        if lanes > 1:
            # The first is alone, as it makes the reference. Beside others its batch might have to shrink.
            self.each(pool, names[:1], None)
            # Rungs that choose by measuring are left to the end, alone: timed processes find their choices in a cache.
            rest = [name for name in names[1:] if not sidebyside.chooses(self.recipes[name])]
            # The budget of whole steps takes longest to make; others make theirs meanwhile.
            whole = [name for name in rest if self.recipes[name].get("whole_step_graph")][:1]
            sidebyside.inspect(self, pool, list(dict.fromkeys([*whole, *rest])), lanes)
        self.each(pool, names, None)  # all, or those that ran out of memory beside others

    def inspect(
        self, worker: Worker, rung: dict[str, Any], alone: inspection.Alone = contextlib.nullcontext
    ) -> None:
        """Check parity and receipts.

        Raises `WorkerFailure` for a rung that must not be timed; its findings are kept.
        """
        try:
            found = inspection.inspect(worker, lambda phase: self.emit("phase", phase=phase), alone)
        except inspection.Objection as objection:
            with self.lock:  # another thread may be writing the file
                rung.update(objection.found)
            raise
        with self.lock:
            rung.update(found)
        self.seen.put(self.recipes[rung["name"]], found)


def refuse_other_threads(path: Path, before: dict[str, Any], pool: Pool) -> None:
    """Raise `UserError`, one line, if the timed rungs computed with another number of CPU threads than a worker has."""
    try:
        threads = pool.first().call("threads")["cpu_threads"]
    except WorkerFailure:
        return  # the visits will say what is wrong
    timed = [rung for rung in [*before["rungs"], *before["twins"]] if rung["rounds"]]
    seen = [(rung.get("settings") or {}).get("cpu_threads") for rung in timed]
    if other := [count for count in seen if count is not None and threads is not None and count != threads]:
        raise UserError(
            f"{path}: --resume: PyTorch computed with {other[0]} CPU threads and has {threads} here; start a new run"
        )
