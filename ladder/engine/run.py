"""A run of a ladder: generations of processes that live together, and a record of every outcome.

A round is one generation (`ladder.engine.rounds`): a process of every rung, visited in turn in random order. The lowest
and the highest rung have two: the difference between these twins is noise (`ladder.results.judging`). Before the first
generation, one inspector process a rung shows that the rung is on and computes what the baseline does
(`ladder.engine.inspection`). A rung that fails once is out; the others go on. After every generation the result file
is written, so nothing finished is ever lost.
"""

import contextlib
import math
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
from ladder.engine.outcomes import Program, Visited
from ladder.engine.pool import TUNING, Pool, Worker, WorkerFailure
from ladder.engine.rounds import Interleaved
from ladder.engine.run_state import OnEvent, RunState
from ladder.machine import system
from ladder.plan import modes
from ladder.results import judging, record, types
from ladder.results.combine import resuming
from ladder.stats import rounds_budget

LANES = {"cuda": 8}  # inspectors side by side; on a CPU they would only take each other's cores
INSPECTOR_GB = 20.0  # of the GPU's memory for each, if the workload is a large one
SMALL_GB, SMALL_PIXELS = 9.0, 2**20  # for a workload with at most so many pixels a batch


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
    importing: Pool | None = None,
    gpu_memory_gb: float | None = None,
) -> dict[str, Any]:
    """Measure every planned rung and return the result, which is also in its file under the folder `out`.

    Args:
        workload: "data" may be a path; the result has `data_source` and `images` instead.
        rounds: generations; by default 3 to 12 as far as `budget_s` allows (`ladder.stats.rounds_budget`).
        quick: one timed cycle a process and no second twin. The result is not to be quoted.
        resume: a result file, to which the run adds what it lacks.
        on_event: called with dicts, see below.
        data_source: "sample-photographs" or "user-images".
        images: facts on a user's images (`ladder.results.identity.of_images`).
        code: another checkout with the measured packages. The inspection does not know it.
        inspect: by default true unless `code` is given.
        importing: a pool of this checkout that has begun to import; it is ended here.
        gpu_memory_gb: memory of a smaller card, which each process is held to (`ladder.engine.lanes.allocatable`).

    SIGINT or SIGTERM ends the workers and returns the finished part, "complete": false.

    Keys of an event:

    | key | value |
    |---|---|
    | event | "start", "inspect", "phase", "visited", "failed", "waiting", "round" or "end" |
    | rung, round, rounds, phase | `round` is 0-based, None while inspecting |
    | done, total | visits |
    | elapsed_s, left_s | `left_s` is an estimate, None before a generation is whole |
    | step_ms | of the visit |
    | status, reason | of a failure |
    | path | the file |

    Raises:
        UserError: another run is writing into the folder, it cannot be written, a worker is on another GPU, or the
            system fails (a full disk). The file then holds the finished part, and no rung is blamed.
    """
    facts = system.facts(device)
    folder = Path(out) / text.slug(facts["name"]) if resume is None else Path(resume).parent
    with locks.folder_lock(folder, movable=resume is None):
        result = record.new_result(facts, workload_name, workload, data_source, ladder, planned, code, images)
        result["protocol"] = record.protocol(rounds, cycles, seed, quick, mode, budget_s, gpu_memory_gb)
        judging.add_twins(result)
        if resume is not None:
            result = resuming.take_up(resume, result, rounds)
        path = resume or record.new_path(out, result)
        inspects = code is None if inspect is None else inspect
        run = _Run(result, workload, planned, device, path, on_event, inspects)
        torch = code is None or device == "cuda"
        with stop_on_sigterm():
            pool = (
                importing if importing and code is None else Pool(code=code, torch=torch, timeouts=timeouts)
            )
            with pool:
                if resume is not None:
                    refuse_other_threads(resume, result, pool)
                run.measure(code, pool, timeouts, torch)
        return result


class _Run(RunState):
    """One run in progress: the inspections and the generations that fill its result."""

    def measure(self, code: Path | None, pool: Pool, timeouts: dict[str, float] | None, torch: bool) -> None:
        """Inspect, then make all generations, the first from `pool`.

        `result` is finished and written, also when interrupted.
        """
        self.limit = sidebyside.allocatable(self.protocol.get("gpu_memory_limit_gb"))
        self.maker = Interleaved(
            self.device,
            memory_limit=self.limit,
            cycles=self.protocol["cycles"],
            seed=self.protocol["seed"],
            torch=torch,
            timeouts=timeouts,
            on_wait=lambda: self.emit("waiting"),
            on_phase=self.on_phase,
            visits=self.visits,
        )
        try:
            self.save()
            self.emit("start", path=str(self.path))
            if self.inspects:
                self.inspect_all(pool)
            self.maker.adopt(code, pool)
            self.recall()
            number, round_s = 0, 0.0
            while self.goes_on(number, round_s):
                self.generation_began, before = time.monotonic(), self.done
                self.generation(number, code)
                took = time.monotonic() - self.generation_began
                round_s = max(round_s, took)
                if self.done > before:  # nothing is measured in one that an earlier sitting made whole
                    self.generation_s = took
                number += 1
                self.fit_cycles(number, round_s)
            self.visits.look_around()
            self.result["complete"] = True
        except KeyboardInterrupt:
            self.protocol["notes"].append("interrupted: whole generations are kept")
        except EnvironmentFailure as failure:
            self.protocol["notes"].append(f"interrupted: {failure}")
            raise UserError(
                f"{failure}; what was finished is kept: go on with --resume {self.path}"
            ) from failure
        finally:
            try:
                self.save()
            finally:
                self.maker.close()
        self.emit("end", path=str(self.path))

    def recall(self) -> None:
        """Tell the maker of generations what the inspection, or a resumed run, has shown before."""
        for name, rung in self.rungs.items():
            inspected = self.rungs[rung.get("of", name)]["inspection"] or {}
            self.maker.recall(name, rung["rounds"], inspected.get("peak_reserved_bytes"))

    def goes_on(self, done: int, round_s: float) -> bool:
        """Return whether to make one more generation, and keep the number of planned ones up to date."""
        asked = self.protocol["rounds"] if self.protocol["fixed"] else None
        begun = any(r["round"] >= done for rung in self.rungs.values() for r in rung["rounds"])
        go = begun or rounds_budget.another_round(
            done,
            fixed=asked,
            budget_s=self.protocol["budget_s"],
            spent_s=time.monotonic() - self.begin,
            round_s=round_s,
            wanted=done >= rounds_budget.LEAST_ROUNDS and self.wants_rounds(),
        )
        self.protocol["rounds"] = max(self.protocol["rounds"], done + 1) if go else done
        return go

    def wants_rounds(self) -> bool:
        return judging.wants_generations(types.build(types.Result, self.result))

    def fit_cycles(self, done: int, round_s: float) -> None:
        """Time one cycle a process from now on if three generations of more do not fit the budget. A note says so."""
        protocol, spent = self.protocol, time.monotonic() - self.begin
        limit = None if protocol["fixed"] else protocol["budget_s"]
        cycles = rounds_budget.fitting_cycles(
            protocol["cycles"], done, budget_s=limit, spent_s=spent, round_s=round_s
        )
        if cycles < protocol["cycles"]:
            protocol["cycles"] = self.maker.cycles = cycles
            protocol["notes"].append(
                f"from generation {done + 1} on {cycles} cycle a visit, to fit the budget"
            )

    def generation(self, number: int, code: Path | None) -> None:
        """Make one generation of every rung that has not failed yet, and write the file."""
        names = [name for name in self.recipes if name not in self.twins]
        alone = self.protocol["fixed"] and self.protocol["rounds"] == 1
        costs = number == (0 if alone else 1) and not self.protocol["quick"]  # the first table need not wait
        costs = costs and self.protocol["mode"] not in modes.STUDIES
        programs = [
            Program(
                name,
                name,
                name,
                self.workload_of(name),
                recipe,
                code,
                main=costs and name not in self.twins,
                lazy=costs and name in (names[0], names[-1]),
                prove=self.inspects and not self.is_patched(name),
                profiled=self.profiled(),
                kinds=self.protocol["mode"] == modes.MISTAKES,
                variant=self.named(name),
            )
            for name, recipe in self.recipes.items()
        ]
        self.number = number
        self.place.at = {"rung": None, "round": number}
        last = self.protocol["fixed"] and number + 1 >= self.protocol["rounds"]
        with contextlib.closing(
            self.maker.round(number, programs, lambda program: self.is_due(program.name, number), last)
        ) as outcomes:
            for visited in outcomes:
                self.take(visited, number)
        if number == 0:
            self.result.setdefault("first_table_s", round(time.monotonic() - self.begin, 1))
        self.save()
        self.emit("round")

    def take(self, visited: Visited, number: int) -> None:
        """Keep the outcome of a rung in a generation."""
        rung = self.rungs[visited.program.name]
        self.place.at = {"rung": rung["name"], "round": number}
        if visited.round is None:
            self.fail(rung, number, visited.failure or WorkerFailure(visited.status, visited.reason or ""))
        else:
            rung["rounds"].append(visited.round)
            rung.update(status="ok", reason=None, recipe=visited.recipe, settings=visited.settings)
            if visited.profile and "of" not in rung and not rung.get("profile"):
                rung["profile"] = visited.profile
            record.add_choices(self.result, rung.get("of", rung["name"]), visited.choices)
        self.visited(rung, number)

    def on_phase(self, program: Program, phase: str) -> None:
        """Tell the caller what is done with a rung now."""
        self.place.at = {"rung": program.name, "round": self.number}
        self.emit("phase", phase=phase)

    def each(self, pool: Pool, names: list[str]) -> None:
        """Inspect every rung that is due in a worker of its own."""
        for name in names:
            if not self.is_due(name, None):
                continue
            rung = self.rungs[name]
            self.place.at = {"rung": name, "round": None}
            self.emit("inspect")
            try:
                with self.device_lock():
                    worker = pool.take()
                    try:
                        self.get_ready(worker, rung, keep_gradients=True)
                        self.inspect(worker, rung)
                    finally:
                        worker.close()
            except WorkerFailure as failure:
                self.fail(rung, None, failure)
            self.visited(rung, None)

    def device_lock(self) -> contextlib.AbstractContextManager[None]:
        return device_lock(system.device_key(self.device), lambda: self.emit("waiting"))

    def get_ready(
        self, worker: Worker, rung: dict[str, Any], keep_gradients: bool, threads: int | None = None
    ) -> None:
        """Build and prepare on so many CPU threads."""
        self.emit("phase", phase="build")
        name = rung["name"]
        more: dict[str, Any] = {
            "keep_gradients": keep_gradients,
            "threads": threads,
            "variant": self.named(name),
            "memory_limit": self.limit,
        }
        built = worker.call(
            "build",
            workload=self.workload_of(name),
            recipe=self.recipes[name],
            device=self.device,
            seed=self.protocol["seed"],
            **{key: value for key, value in more.items() if value},
        )
        if problem := self.visits.check_gpu(built.get("gpu_uuid")):
            raise UserError(problem)
        with self.lock:
            rung["recipe"], rung["settings"] = built["recipe"], built["settings"]
        self.emit("phase", phase="prepare")
        tunes: dict[str, Any] = {"patience": TUNING} if sidebyside.chooses(self.recipes[name]) else {}
        self.prepared[name] = worker.call("prepare", **tunes).get("peak_reserved_bytes")

    def inspect_all(self, pool: Pool) -> None:
        """Inspect every rung without findings. Findings of earlier runs come from the cache."""
        self.seen = inspection.Cache(self.workload, self.result["machine"], memory_limit=self.limit)
        names = [name for name in self.recipes if name not in self.twins]
        for name in names:
            found = self.seen.get(self.recipes[name], self.key_of(name))
            if self.rungs[name]["inspection"] is None and found:
                self.rungs[name].update(found)
        memory = self.result["machine"].get("gpu_memory_gb") or math.inf
        small = self.workload["batch"] * self.workload.get("resolution", 0) ** 2 <= SMALL_PIXELS
        lanes = max(1, int(min(LANES.get(self.device, 1), memory / (SMALL_GB if small else INSPECTOR_GB))))
        if lanes > 1:
            if not small:
                # The first is alone, as it makes the reference. Beside others its batch might have to shrink.
                self.each(pool, names[:1])
            # Rungs that choose by measuring are left to the end, alone: timed processes find their choices in a cache.
            rest = [name for name in names if not sidebyside.chooses(self.recipes[name])]
            # The budget of whole steps takes longest to make; others make theirs meanwhile.
            whole = [name for name in rest if self.recipes[name].get("whole_step_graph")][:1]
            sidebyside.inspect(self, pool, list(dict.fromkeys([*whole, *rest])), lanes)
        self.each(pool, names)  # all, or those that ran out of memory beside others

    def inspect(
        self, worker: Worker, rung: dict[str, Any], alone: inspection.Alone = contextlib.nullcontext
    ) -> None:
        """Check parity and receipts.

        Raises `WorkerFailure` for a rung that must not be timed; its findings are kept.
        """
        try:
            variant = self.variants.get(rung["name"])
            found = inspection.inspect(
                worker,
                lambda phase: self.emit("phase", phase=phase),
                alone,
                None if variant is None else inspection.Examined(rung["name"], variant),
            )
        except inspection.Objection as objection:
            with self.lock:  # another thread may be writing the file
                rung.update(objection.found)
            raise
        if peak := self.prepared[rung["name"]]:
            found["inspection"]["peak_reserved_bytes"] = peak
        with self.lock:
            rung.update(found)
        self.seen.put(self.recipes[rung["name"]], found, self.key_of(rung["name"]))


def refuse_other_threads(path: Path, before: dict[str, Any], pool: Pool) -> None:
    """Raise `UserError`, one line, if the timed rungs computed with another number of CPU threads than a worker has."""
    worker = None
    try:
        worker = pool.take()
        threads = worker.call("threads")["cpu_threads"]
    except WorkerFailure:
        return  # the generations will say what is wrong
    finally:
        if worker is not None:
            worker.close()
    timed = [rung for rung in [*before["rungs"], *before["twins"]] if rung["rounds"]]
    seen = [(rung.get("settings") or {}).get("cpu_threads") for rung in timed]
    if other := [count for count in seen if count is not None and threads is not None and count != threads]:
        raise UserError(
            f"{path}: --resume: PyTorch computed with {other[0]} CPU threads and has {threads} here; start a new run"
        )
