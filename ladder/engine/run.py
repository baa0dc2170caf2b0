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
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.core import locks, text
from ladder.core.errors import EnvironmentFailure, UserError
from ladder.core.job import Job, RunPlan
from ladder.core.locks import device_lock
from ladder.core.records import write_whole
from ladder.core.stopping import stop_on_sigterm
from ladder.engine import inspection
from ladder.engine import lanes as sidebyside
from ladder.engine.once import measure_once as measure_once
from ladder.engine.outcomes import Program, Visited
from ladder.engine.pool import TUNING, Pool, Worker, WorkerFailure
from ladder.engine.rounds import Interleaved
from ladder.engine.run_state import OnEvent, RunState
from ladder.machine import system
from ladder.plan import modes
from ladder.results import judging, record, sources
from ladder.results.combine import resuming
from ladder.results.derive import INTERRUPTED
from ladder.results.run import Run, Rung
from ladder.stats import rounds_budget

LANES = {"cuda": 8}  # inspectors side by side; on a CPU they would only take each other's cores
INSPECTOR_GB = 20.0  # of the GPU's memory for each, if the workload is a large one
SMALL_GB, SMALL_PIXELS = 9.0, 2**20  # for a workload with at most so many pixels a batch


def run_ladder(job: Job, on_event: OnEvent | None = None, importing: Pool | None = None) -> Run:
    """Measure every planned rung and return the record, which is also in its file below `job.out`.

    Args:
        on_event: called with dicts, see below.
        importing: a pool of this checkout that has begun to import; it is ended here.

    SIGINT or SIGTERM ends the workers and returns the finished part, with a note that it was interrupted.

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
    plan: RunPlan = job.options
    folder = Path(job.out) / text.make_slug(job.machine["name"]) if job.resume is None else job.resume.parent
    with locks.folder_lock(folder, movable=job.resume is None):
        run = record.new_run(job)
        if job.resume is not None:
            run = resuming.take_up(job.resume, run, job)
        path = job.resume or record.name_file(job.out, run)
        state = _Run(job, run, path, on_event)
        with stop_on_sigterm():
            ready = importing if importing and plan.code is None else None
            pool = ready or Pool(code=plan.code, torch=plan.torch, timeouts=plan.timeouts)
            with pool:
                if job.resume is not None:
                    refuse_other_threads(job.resume, run, pool)
                state.measure(pool)
        return state.run


class _Run(RunState):
    """One run in progress: the inspections and the generations that fill its record."""

    def measure(self, pool: Pool) -> None:
        """Inspect, then make all generations, the first from `pool`. The file is written, also when interrupted."""
        self.limit = sidebyside.allocatable_bytes(self.protocol.gpu_memory_limit_gb)
        self.maker = Interleaved(
            self.job.device,
            memory_limit=self.limit,
            cycles=self.protocol.cycles,
            seed=self.protocol.seed,
            torch=self.plan.torch,
            timeouts=self.plan.timeouts,
            on_wait=lambda: self.emit("waiting"),
            on_phase=self.on_phase,
            visits=self.visits,
        )
        try:
            self.save()
            self.emit("start", path=str(self.path))
            if self.plan.inspect:
                self.inspect_all(pool)
            self.maker.adopt(self.plan.code, pool)
            self.recall()
            number, round_s = 0, 0.0
            while self.goes_on(number, round_s):
                self.generation_began, before = time.monotonic(), self.done
                self.generation(number)
                took = time.monotonic() - self.generation_began
                round_s = max(round_s, took)
                if self.done > before:  # nothing is measured in one that an earlier sitting made whole
                    self.generation_s = took
                number += 1
                self.fit_cycles(number, round_s)
            self.visits.look_around()
        except KeyboardInterrupt:
            self.note(f"{INTERRUPTED}: whole generations are kept")
        except EnvironmentFailure as failure:
            self.note(f"{INTERRUPTED}: {failure}")
            raise UserError(
                f"{failure}; what was finished is kept: go on with --resume {self.path}"
            ) from failure
        finally:
            try:
                self.save()
            finally:
                self.maker.close()
        self.emit("end", path=str(self.path))

    def note(self, line: str) -> None:
        """Add a note on an event of the run to its protocol."""
        notes = [*self.protocol.notes, text.make_display(line)]
        self.protocol = replace(self.protocol, notes=notes)

    def recall(self) -> None:
        """Hand the maker of generations what the inspection, or a resumed run, has shown before."""
        for name, part in self.parts.items():
            rung = self.parts[self.twins.get(name, name)]
            inspected = rung.inspection if isinstance(rung, Rung) else None
            self.maker.recall(name, part.rounds, inspected.peak_reserved_bytes if inspected else None)

    def goes_on(self, done: int, round_s: float) -> bool:
        """Return whether to make one more generation, and keep the number of planned ones up to date."""
        asked = self.protocol.rounds if self.protocol.fixed else None
        begun = any(each.round >= done for part in self.parts.values() for each in part.rounds)
        go = begun or rounds_budget.another_round(
            done,
            fixed=asked,
            budget_s=self.protocol.budget_s,
            spent_s=time.monotonic() - self.begin,
            round_s=round_s,
            wanted=done >= rounds_budget.LEAST_ROUNDS and judging.wants_generations(self.result),
        )
        rounds = max(self.protocol.rounds, done + 1) if go else done
        self.protocol = replace(self.protocol, rounds=rounds)
        return go

    def fit_cycles(self, done: int, round_s: float) -> None:
        """Time one cycle a process from now on if three generations of more do not fit the budget. A note says so."""
        protocol, spent = self.protocol, time.monotonic() - self.begin
        limit = None if protocol.fixed else protocol.budget_s
        cycles = rounds_budget.fitting_cycles(
            protocol.cycles, done, budget_s=limit, spent_s=spent, round_s=round_s
        )
        if cycles < protocol.cycles:
            self.protocol, self.maker.cycles = replace(protocol, cycles=cycles), cycles
            self.note(f"from generation {done + 1} on {cycles} cycle a visit, to fit the budget")

    def generation(self, number: int) -> None:
        """Make one generation of every rung that has not failed yet, and write the file."""
        protocol = self.protocol
        names = [name for name in self.recipes if name not in self.twins]
        alone = protocol.fixed and protocol.rounds == 1
        costs = number == (0 if alone else 1) and not protocol.quick  # the first table need not wait
        costs = costs and protocol.mode not in modes.STUDIES
        programs = [
            Program(
                name,
                name,
                name,
                self.workload_of(name),
                recipe,
                self.plan.code,
                main=costs and name not in self.twins,
                lazy=costs and name in (names[0], names[-1]),
                prove=self.plan.inspect and not self.is_patched(name),
                profiled=self.profiled(),
                kinds=protocol.mode == modes.MISTAKES,
                variant=self.named(name),
            )
            for name, recipe in self.recipes.items()
        ]
        self.number = number
        self.place.at = {"rung": None, "round": number}
        last = protocol.fixed and number + 1 >= protocol.rounds
        with contextlib.closing(
            self.maker.round(number, programs, lambda program: self.is_due(program.name, number), last)
        ) as outcomes:
            for visited in outcomes:
                self.take(visited, number)
        if number == 0 and self.first_table_s is None:
            self.first_table_s = round(time.monotonic() - self.begin, 1)
        self.save()
        self.emit("round")

    def take(self, visited: Visited, number: int) -> None:
        """Keep the outcome of a rung in a generation."""
        name = visited.program.name
        part = self.parts[name]
        self.place.at = {"rung": name, "round": number}
        if visited.round is None:
            self.fail(name, number, visited.failure or WorkerFailure(visited.status, visited.reason or ""))
        else:
            self.change(
                name,
                rounds=[*part.rounds, visited.round],
                status="ok",
                reason=None,
                recipe=text.fit_texts(visited.recipe),
                settings=text.fit_texts(visited.settings),
            )
            if visited.profile and isinstance(part, Rung) and not part.profile:
                self.change(name, profile=visited.profile)
            self.choices = record.add_choices(self.choices, self.twins.get(name, name), visited.choices)
        self.visited(name, number)

    def on_phase(self, program: Program, phase: str) -> None:
        """Tell the caller what is done with a rung now."""
        self.place.at = {"rung": program.name, "round": self.number}
        self.emit("phase", phase=phase)

    def each(self, pool: Pool, names: list[str]) -> None:
        """Inspect every rung that is due in a worker of its own."""
        for name in names:
            if not self.is_due(name, None):
                continue
            self.place.at = {"rung": name, "round": None}
            self.emit("inspect")
            try:
                with self.device_lock():
                    worker = pool.take()
                    try:
                        self.get_ready(worker, name)
                        self.inspect(worker, name)
                    finally:
                        worker.close()
            except WorkerFailure as failure:
                self.fail(name, None, failure)
            self.visited(name, None)

    def device_lock(self) -> contextlib.AbstractContextManager[None]:
        return device_lock(system.device_key(self.job.device), lambda: self.emit("waiting"))

    def get_ready(self, worker: Worker, name: str, threads: int | None = None) -> None:
        """Build and prepare a rung that keeps its gradients, on so many CPU threads."""
        self.emit("phase", phase="build")
        more: dict[str, Any] = {
            "keep_gradients": True,
            "threads": threads,
            "variant": self.named(name),
            "memory_limit": self.limit,
        }
        built = worker.call(
            "build",
            workload=self.workload_of(name),
            recipe=self.recipes[name],
            device=self.job.device,
            seed=self.protocol.seed,
            **{key: value for key, value in more.items() if value},
        )
        if problem := self.visits.check_gpu(built.get("gpu_uuid")):
            raise UserError(problem)
        self.change(name, recipe=text.fit_texts(built["recipe"]), settings=text.fit_texts(built["settings"]))
        self.emit("phase", phase="prepare")
        tunes: dict[str, Any] = {"patience": TUNING} if sidebyside.chooses_kernels(self.recipes[name]) else {}
        self.prepared[name] = worker.call("prepare", **tunes).get("peak_reserved_bytes")

    def inspect_all(self, pool: Pool) -> None:
        """Inspect every rung without findings. Findings of earlier runs come from the cache."""
        workload, machine = self.job.workload, write_whole(self.first.machine)
        self.seen = inspection.Cache(workload, machine, memory_limit=self.limit)
        names = [name for name in self.recipes if name not in self.twins]
        for name in names:
            found = self.seen.get(self.recipes[name], self.key_of(name))
            if found and self.is_due(name, None):
                self.change(name, **record.read_findings(found))
        memory = machine["gpu_memory_gb"] or math.inf
        small = int(workload["batch"]) * int(workload.get("resolution", 0)) ** 2 <= SMALL_PIXELS
        lanes = max(
            1, int(min(LANES.get(self.job.device, 1), memory / (SMALL_GB if small else INSPECTOR_GB)))
        )
        if lanes > 1:
            if not small:
                # The first is alone, as it makes the reference. Beside others its batch might have to shrink.
                self.each(pool, names[:1])
            # Rungs that choose by measuring are left to the end, alone: timed processes find their choices in a cache.
            rest = [name for name in names if not sidebyside.chooses_kernels(self.recipes[name])]
            # The budget of whole steps takes longest to make; others make theirs meanwhile.
            whole = [name for name in rest if self.recipes[name].get("whole_step_graph")][:1]
            sidebyside.inspect_rungs(self, pool, list(dict.fromkeys([*whole, *rest])), lanes)
        self.each(pool, names)  # all, or those that ran out of memory beside others

    def inspect(self, worker: Worker, name: str, alone: inspection.Alone = contextlib.nullcontext) -> None:
        """Check parity and receipts.

        Raises `WorkerFailure` for a rung that must not be timed; its findings are kept.
        """
        try:
            variant = self.variants.get(name)
            found = inspection.inspect_worker(
                worker,
                lambda phase: self.emit("phase", phase=phase),
                alone,
                None if variant is None else inspection.Examined(name, variant),
            )
        except inspection.Objection as objection:
            self.change(name, **record.read_findings(objection.found))
            raise
        if peak := self.prepared[name]:
            found["inspection"]["peak_reserved_bytes"] = peak
        self.change(name, **record.read_findings(found))
        self.seen.put(self.recipes[name], found, self.key_of(name))


def refuse_other_threads(path: Path, before: Run, pool: Pool) -> None:
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
    timed = [part for part in sources.records(before) if part.rounds]
    seen = [(part.settings or {}).get("cpu_threads") for part in timed]
    if other := [count for count in seen if count is not None and threads is not None and count != threads]:
        raise UserError(
            f"{path}: --resume: PyTorch computed with {other[0]} CPU threads and has {threads} here; start a new run"
        )
