"""A run of a ladder: generations of processes that live together, and a record of every outcome.

A round is one generation (`ladder.engine.rounds`): a process of every rung, visited in turn in random order. The lowest
and the highest rung have two: the difference between these twins is noise (`ladder.results.judging`). Before the first
generation, one inspector process a rung shows that the rung is on and computes what the baseline does
(`ladder.engine.inspection`). A rung that fails once is out; the others go on. After every generation the result file
is written, so nothing finished is ever lost.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.core import locks, text
from ladder.core.errors import EnvironmentFailure, UserError
from ladder.core.job import Job, RunPlan
from ladder.core.locks import device_lock
from ladder.core.records import Fields, read_record, write_record, write_whole
from ladder.core.stopping import stop_on_sigterm
from ladder.engine import inspection
from ladder.engine.gpu_time import PROFILED
from ladder.engine.outcomes import Program, Visited
from ladder.engine.pool import Pool, Worker, WorkerFailure, chooses_kernels, prepare_step
from ladder.engine.rounds import Interleaved, allocatable_bytes, is_unsure, run_each
from ladder.engine.visit import Visits
from ladder.machine import system
from ladder.machine.threads import share_threads
from ladder.plan import modes
from ladder.plan.variants import Variant
from ladder.results import judging, record, sources
from ladder.results import store as results
from ladder.results.combine import resuming
from ladder.results.derive import INTERRUPTED
from ladder.results.file import OUT
from ladder.results.run import FailedAt, Result, Run, Rung, RunGpu, Twin
from ladder.stats import rounds_budget

LANES = {"cuda": 8}  # inspectors side by side; on a CPU they would only take each other's cores
INSPECTOR_GB = 20.0  # of the GPU's memory for each, if the workload is a large one
SMALL_GB, SMALL_PIXELS = 9.0, 2**20  # for a workload with at most so many pixels a batch

OnEvent = Callable[[dict[str, Any]], None]


def run_ladder(job: Job, on_event: OnEvent | None = None, importing: Pool | None = None) -> Run:
    """Measure every planned rung and return the record, which is also in its file below `job.out`.

    Args:
        on_event: called with dicts: event ("start", "phase", "visited", "failed", "waiting", "round" or "end"), rung,
            round (0-based, None while inspecting), rounds (None where a budget decides), done and total (visits),
            elapsed_s, left_s (at most; None while unknown); and phase, status and reason, or path, as the event has
            it.
        importing: a pool of this checkout that has begun to import; it is ended here.

    SIGINT or SIGTERM ends the workers and returns the finished part, with a note that it was interrupted.

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
        state = _Run(job, run, job.resume or record.name_file(job.out, run), on_event)
        with stop_on_sigterm():
            ready = importing if importing and plan.code is None else None
            with ready or Pool(code=plan.code, torch=plan.torch, timeouts=plan.timeouts) as pool:
                if job.resume is not None:
                    refuse_other_threads(job.resume, run, pool)
                state.measure(pool)
        return state.run


class _Run:
    """One run in progress: its job, the record that grows, and its file. `parts` has the rungs and twins by name."""

    def __init__(self, job: Job, run: Run, path: Path, on_event: OnEvent | None) -> None:
        self.job, self.path, self.on_event = job, path, on_event
        self.plan: RunPlan = job.options
        self.first, self.protocol, self.choices = run, run.protocol, run.choices
        self.parts: dict[str, Rung | Twin] = {each.name: each for each in sources.records(run)}
        self.twins = {twin.name: twin.of for twin in run.twins}
        planned = {each.name: each for each in self.plan.planned}
        of = {name: planned[self.twins.get(name, name)] for name in self.parts}
        self.recipes = {name: each.recipe for name, each in of.items() if each.recipe is not None}
        self.variants: dict[str, Variant] = {name: each.variant for name, each in of.items() if each.variant}
        self.seconds = run.seconds
        self.begin = time.monotonic() - run.seconds  # the beginning of a resumed run, too
        self.done = sum(len(each.rounds) for each in self.parts.values())
        self.visits = Visits(job.device, system.probe_gpu().get("uuid") if job.device == "cuda" else None)
        self.number = 0  # of the generation that is being made
        self.first_table_s = run.first_table_s
        self.generation_s: float | None = None  # the seconds of the last generation of this sitting
        self.generation_began = self.begin
        self.lock = threading.RLock()  # guards the record
        self.limit = allocatable_bytes(self.protocol.gpu_memory_limit_gb)
        self.result: Result = judging.derive_result(run)

    # The record

    @property
    def run(self) -> Run:
        """Return the record as it is now."""
        parts = self.parts.values()
        gpu = self.visits.summary(each for part in parts for each in part.rounds)
        return replace(
            self.first,
            protocol=self.protocol,
            rungs=[each for each in parts if isinstance(each, Rung)],
            twins=[each for each in parts if isinstance(each, Twin)],
            choices=self.choices,
            gpu=read_record(RunGpu, text.fit_texts(gpu)) if gpu else self.first.gpu,
            first_table_s=self.first_table_s,
            seconds=self.seconds,
        )

    def change(self, name: str, **fields: Any) -> None:
        """Replace fields of a rung or twin."""
        with self.lock:
            self.parts[name] = replace(self.parts[name], **fields)

    def note(self, line: str) -> None:
        """Add a note on an event of the run to its protocol."""
        notes = [*self.protocol.notes, text.make_display(line)]
        self.protocol = replace(self.protocol, notes=notes)

    def save(self) -> None:
        """Derive what follows from the record so far, and write the file."""
        with self.lock:
            self.seconds = round(time.monotonic() - self.begin, 1)
            self.result = judging.derive_result(self.run)
            for each in sources.records(self.result):
                if each.status == "invalid" and self.parts[each.name].status == "ok":
                    self.change(each.name, status="invalid", reason=each.reason, failed_at=each.failed_at)
            results.write(self.path, write_record(self.run))

    def fail(self, name: str, number: int | None, failure: WorkerFailure) -> None:
        """Take a rung out of the run. Its finished rounds stay in the file, without a headline number."""
        late = number is not None and self.parts[name].rounds
        reason = f"generation {number + 1}: {failure.reason}" if late else failure.reason
        peaks = {key: value for key, value in failure.reply.items() if key.startswith("peak_")}
        status = "failed" if failure.status == "n/a" else failure.status
        failed_at = read_record(FailedAt, {"round": number, **peaks})
        self.change(name, status=status, reason=text.make_display(reason), failed_at=failed_at)
        self.emit("failed", name, number, status=status, reason=reason)

    def visited(self, name: str, number: int | None) -> None:
        """Save the outcome of a visit, or of an inspection (`number` None)."""
        with self.lock:
            self.done += 1
            self.save()
            self.emit("visited", name, number)

    def emit(self, event: str, rung: str | None = None, number: int | None = None, **more: Any) -> None:
        """Tell the caller about an event, with the figures that a progress bar needs."""
        if self.on_event is None:
            return
        with self.lock:
            alive = [name for name in self.recipes if self.is_due(name, -1)]
            left = sum(max(0, self.protocol.rounds - len(self.parts[name].rounds)) for name in alive)
            left += sum(self.is_due(name, None) for name in alive) * self.plan.inspect
            elapsed_s, fixed = time.monotonic() - self.begin, self.protocol.fixed
            rounds = self.protocol.rounds if fixed else None
            place = {"event": event, "rung": rung, "round": number, "rounds": rounds}
            visits = {"done": self.done, "total": self.done + left}
            seconds = {"elapsed_s": elapsed_s, "left_s": self.find_left_s(elapsed_s)}
            self.on_event(place | visits | seconds | more)

    def find_left_s(self, elapsed_s: float) -> float | None:
        """Return the seconds that the run may still take. Inspections tell nothing: the first ones compile kernels."""
        if (round_s := self.generation_s) is None:
            return None
        now_s = max(0.0, round_s - (time.monotonic() - self.generation_began))
        planned_s, most_s = (
            now_s + max(0, rounds - self.number - 1) * round_s
            for rounds in (self.protocol.rounds, rounds_budget.MOST_ROUNDS)
        )
        budget_s = None if self.protocol.fixed else self.protocol.budget_s
        return planned_s if budget_s is None else max(planned_s, min(budget_s - elapsed_s, most_s))

    # The plan

    def is_due(self, name: str, number: int | None) -> bool:
        """Return whether a rung lacks this visit. A rung that is out of the run lacks none, nor does its twin."""
        derived = {each.name: each.status for each in sources.records(self.result)}  # skipped ones included
        for each in (name, self.twins.get(name, name)):
            if self.parts[each].status in OUT or derived[each] in OUT:
                return False
        part = self.parts[name]
        if number is None:
            return isinstance(part, Rung) and part.inspection is None
        return all(each.round != number for each in part.rounds)

    def workload_of(self, name: str) -> Fields:
        """Return the workload of an entry. A lever changes some of its fields."""
        variant = self.variants.get(name)
        return {**self.job.workload, **(variant.workload if variant else {})}

    def named(self, name: str) -> tuple[str, str] | None:
        """Return the study and the name of an entry's variant, for a worker."""
        variant = self.variants.get(name)
        return (variant.study, self.twins.get(name, name)) if variant else None

    def key_of(self, name: str) -> Any:
        """Return what a finding depends on beside the recipe."""
        variant = self.variants.get(name)
        return [*(self.named(name) or ()), variant.stored()] if variant else None

    # Generations

    def measure(self, pool: Pool) -> None:
        """Inspect, then make all generations, the first from `pool`. The file is written, also when interrupted."""
        self.maker = Interleaved(
            self.job.device,
            memory_limit=self.limit,
            cycles=self.protocol.cycles,
            seed=self.protocol.seed,
            torch=self.plan.torch,
            timeouts=self.plan.timeouts,
            on_wait=lambda: self.emit("waiting"),
            on_phase=lambda program, phase: self.emit("phase", program.name, self.number, phase=phase),
            visits=self.visits,
        )
        try:
            self.save()
            self.emit("start", path=str(self.path))
            if self.plan.inspect:
                self.inspect_all(pool)
            self.maker.adopt(self.plan.code, pool)
            for name, part in self.parts.items():
                rung = self.parts[self.twins.get(name, name)]
                inspected = rung.inspection if isinstance(rung, Rung) else None
                self.maker.recall(name, part.rounds, inspected.peak_reserved_bytes if inspected else None)
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
            message = f"{failure}; what was finished is kept: go on with --resume {self.path}"
            raise UserError(message) from failure
        finally:
            try:
                self.save()
            finally:
                self.maker.close()
        self.emit("end", path=str(self.path))

    def goes_on(self, done: int, round_s: float) -> bool:
        """Return whether to make one more generation, and keep the number of planned ones up to date."""
        begun = any(each.round >= done for part in self.parts.values() for each in part.rounds)
        go = begun or rounds_budget.another_round(
            done,
            fixed=self.protocol.rounds if self.protocol.fixed else None,
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
        protocol = self.protocol
        cycles = rounds_budget.fitting_cycles(
            protocol.cycles,
            done,
            budget_s=None if protocol.fixed else protocol.budget_s,
            spent_s=time.monotonic() - self.begin,
            round_s=round_s,
        )
        if cycles < protocol.cycles:
            self.protocol, self.maker.cycles = replace(protocol, cycles=cycles), cycles
            self.note(f"from generation {done + 1} on {cycles} cycle a visit, to fit the budget")

    def generation(self, number: int) -> None:
        """Make one generation of every rung that has not failed yet, and write the file."""
        protocol, self.number = self.protocol, number
        names = [name for name in self.recipes if name not in self.twins]
        alone = protocol.fixed and protocol.rounds == 1
        costs = number == (0 if alone else 1) and not protocol.quick  # the first table need not wait
        costs = costs and protocol.mode not in modes.STUDIES
        # GPU time repeats within 0.3%: one cycle of each of many mistakes is enough, and made of a few steps.
        brief = protocol.mode == modes.MISTAKES
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
                prove=self.plan.inspect and not (name in self.variants and self.variants[name].patched),
                profiled=1 if brief else PROFILED,
                kinds=brief,
                variant=self.named(name),
            )
            for name, recipe in self.recipes.items()
        ]
        last = protocol.fixed and number + 1 >= protocol.rounds
        with contextlib.closing(
            self.maker.round(number, programs, lambda program: self.is_due(program.name, number), last)
        ) as outcomes:
            for visited in outcomes:
                self.take(visited, number)
        if number == 0 and self.first_table_s is None:
            self.first_table_s = round(time.monotonic() - self.begin, 1)
        self.save()
        self.emit("round", number=number)

    def take(self, visited: Visited, number: int) -> None:
        """Keep the outcome of a rung in a generation."""
        name = visited.program.name
        if visited.round is None:
            self.fail(name, number, visited.failure or WorkerFailure(visited.status, visited.reason or ""))
        else:
            self.change(
                name,
                rounds=[*self.parts[name].rounds, visited.round],
                status="ok",
                reason=None,
                recipe=text.fit_texts(visited.recipe),
                settings=text.fit_texts(visited.settings),
            )
            if visited.profile and name not in self.twins and not self.parts[name].profile:  # type: ignore[union-attr]
                self.change(name, profile=visited.profile)
            self.choices = record.add_choices(self.choices, self.twins.get(name, name), visited.choices)
        self.visited(name, number)

    # Inspections

    def inspect_all(self, pool: Pool) -> None:
        """Inspect every rung without findings in the cache, several at once: most of it is one CPU core's work."""
        workload, machine = self.job.workload, write_whole(self.first.machine)
        self.cache = inspection.Cache(workload, machine, memory_limit=self.limit)
        names = [name for name in self.recipes if name not in self.twins]
        for name in names:
            findings = self.cache.get(self.recipes[name], self.key_of(name))
            if findings and self.is_due(name, None):
                self.change(name, **record.read_findings(findings))
        if not any(self.is_due(name, None) for name in names):
            return
        # Rungs that choose by measuring are left to the end, alone: timed processes find their choices in a cache.
        rest = [name for name in names if not chooses_kernels(self.recipes[name])]
        # The budget of whole steps takes longest to make; others make theirs meanwhile.
        whole = [name for name in rest if self.recipes[name].get("whole_step_graph")][:1]
        with device_lock(system.device_key(self.job.device), lambda: self.emit("waiting")):
            inspect = functools.partial(self._inspect_rung, pool, Gate())
            beside = list(dict.fromkeys([*whole, *rest]))
            inspect_beside(self.job, names, beside, inspect, lambda name: self.is_due(name, None), pool.kill)

    def _inspect_rung(self, pool: Pool, gate: "Gate", name: str, threads: int | None) -> None:
        with self.lock:
            if not self.is_due(name, None):  # a rung it depends on has failed since
                return
        try:
            worker = pool.take()
            try:
                with gate.together():
                    self.inspect(worker, name, gate.alone, threads)
            finally:
                worker.close()
        except WorkerFailure as failure:
            if pool.ended or (is_unsure(failure) and threads):
                return  # interrupted; or the rung may pass when it is alone
            with self.lock:
                self.fail(name, None, failure)
        self.visited(name, None)

    def inspect(self, worker: Worker, name: str, alone: inspection.Alone, threads: int | None) -> None:
        """Build and prepare a rung on so many CPU threads; keep its findings. Raises `WorkerFailure` if it is out."""
        recipe = self.recipes[name]
        self.emit("phase", name, phase="build")
        built = self.visits.build(
            worker,
            workload=self.workload_of(name),
            recipe=recipe,
            device=self.job.device,
            seed=self.protocol.seed,
            keep_gradients=True,
            threads=threads,
            variant=self.named(name),
            memory_limit=self.limit,
        )
        self.change(name, recipe=text.fit_texts(built["recipe"]), settings=text.fit_texts(built["settings"]))
        self.emit("phase", name, phase="prepare")
        peak = prepare_step(worker, recipe).get("peak_reserved_bytes")
        try:
            findings = inspection.inspect_worker(
                worker,
                lambda phase: self.emit("phase", name, phase=phase),
                alone,
                self.variants.get(name),
                name,
            )
        except inspection.Objection as objection:
            self.change(name, **record.read_findings(objection.found))
            raise
        if peak:
            findings["inspection"]["peak_reserved_bytes"] = peak
        self.change(name, **record.read_findings(findings))
        self.cache.put(recipe, findings, self.key_of(name))


def inspect_beside(
    job: Job, names: Sequence[str], beside: Sequence[str], inspect: Callable[[str, int | None], None],
    is_due: Callable[[str], bool], stop: Callable[[], None],
) -> None:  # fmt: skip
    """Inspect what is due of these names: `beside` side by side as far as memory allows, then the others alone.

    Args:
        inspect: called with a name and its CPU threads, None alone. What others beside it may have caused it leaves
            due, so that it is inspected again alone.
        stop: called at the first exception.
    """
    workload, gib = job.workload, job.machine.get("gpu_memory_gb") or math.inf
    size = workload.get("resolution") or 0  # a user's pair may read no images
    is_small = 0 < int(workload["batch"]) * int(size) ** 2 <= SMALL_PIXELS
    lanes = int(min(LANES.get(job.device, 1), gib / (SMALL_GB if is_small else INSPECTOR_GB)))
    if lanes > 1:
        if not is_small and is_due(
            names[0]
        ):  # it makes the reference, whose batch might shrink beside others
            inspect(names[0], None)
        due = [name for name in beside if is_due(name)]
        threads = share_threads(max(1, min(lanes, len(due))))
        run_each([functools.partial(inspect, name, threads) for name in due], lanes, stop)
    for name in names:  # in this thread: after an error nothing more begins
        if is_due(name):
            inspect(name, None)


class Gate:
    """A shared/exclusive lock. A waiting exclusive holder goes before new shared ones."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = self._wanting = 0
        self._alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._change:
            self._change.wait_for(lambda: not self._wanting)
            self._inside += 1
        try:
            yield
        finally:
            with self._change:
                self._inside -= 1
                self._change.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Turn a shared hold into an exclusive one until the block ends, after other exclusive holders."""
        with self._change:
            self._inside -= 1
            self._wanting += 1
            self._change.notify_all()
            self._change.wait_for(lambda: not self._inside and not self._alone)
            self._alone = True
        try:
            yield
        finally:
            with self._change:
                self._alone = False
                self._wanting -= 1
                self._change.notify_all()
                self._change.wait_for(lambda: not self._wanting)  # work in common waits until all were alone
                self._inside += 1


def refuse_other_threads(path: Path, before: Run, pool: Pool) -> None:
    """Raise `UserError`, one line, if the timed rungs computed with another number of CPU threads than a worker has."""
    try:
        with contextlib.closing(pool.take()) as worker:
            threads = worker.call("threads")["cpu_threads"]
    except WorkerFailure:
        return  # the generations will say what is wrong
    timed = [part for part in sources.records(before) if part.rounds]
    counts = {(part.settings or {}).get("cpu_threads") for part in timed} - {None}
    if threads is not None and (other := counts - {threads}):
        message = f"PyTorch computed with {max(other)} CPU threads and has {threads} here; start a new run"
        raise UserError(f"{path}: --resume: {message}")
