"""Generations: a process of each program, all alive together, timed in many short visits of one cycle.

A round is one generation. Its processes are forked by one server for each checkout, built and prepared. Then passes
over all of them follow in random order, one visit at a time. Trouble of the host in a minute hits every program alike.
After the last timed cycle each process is profiled, and the very step that was timed is compared with the reference.
If memory does not hold all processes, they come in shifts.

A generation counts as a whole: its outcomes are given when it is over.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from ladder.core.locks import device_lock
from ladder.core.plain import Plain
from ladder.core.records import write_whole
from ladder.core.stopping import end_surely
from ladder.engine.gpu_time import profile_worker
from ladder.engine.outcomes import Program, Visited
from ladder.engine.pool import Pool, Worker, WorkerFailure, chooses_kernels, prepare_step
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours, stillness, system
from ladder.machine.threads import share_threads
from ladder.results import record
from ladder.results.file import Round
from ladder.stats import estimates

MOST_ALIVE = 32  # processes of a generation, each with its data workers
SHARE = 0.85  # of the GPU's memory for all processes of a generation
CONTEXT_BYTES = 2**30  # beside the allocator's: CUDA's context, cuDNN's and cuBLAS's workspaces
PREPARED = {"cuda": 12}  # programs prepared side by side once their memory is known
PROFILED_BESIDE = {"cuda": 8}  # processes of which all but one read what they have recorded
PROVED_BESIDE = {"cuda": 6}  # each with a reference on the GPU

OnPhase = Callable[[Program, str], None]


@dataclass
class Process:
    """A program's process in the generation that is being made, and what it has shown so far."""

    program: Program
    worker: Worker
    built: Plain
    spent: Plain  # of building and preparing
    device_bytes: int | None = None
    visits: list[Plain] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    still_s: list[float | None] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    visit_s: float = 0.0
    finished: Plain = field(default_factory=dict)
    profiled: Plain = field(default_factory=dict)
    gpu_void: str | None = None  # why the profiled cycles do not count
    choices: list[Plain] | None = None
    after: str | None = None
    problem: str | None = None  # of the timed step, seen after timing

    def samples_s(self) -> list[float]:
        """Return the seconds of a step in each timed cycle."""
        return [sample for visit in self.visits for sample in visit["samples_s"]]

    def make_round(self, number: int) -> Round:
        """Return the record of this process in a generation."""
        events = [event for visit in self.visits for event in visit["event_s"] or []]
        others = [visit[neighbours.KEY] for visit in self.visits if visit.get(neighbours.KEY) is not None]
        seen = self.finished | {
            "lead_in_cycles": 0,  # each visit begins with what loaders may hold
            "settled": None,
            "samples_s": self.samples_s(),
            "event_s": events or None,
            neighbours.KEY: estimates.median(others),
            "visit_s": self.visit_s,
        }
        waits = [seconds for seconds in self.still_s if seconds is not None]
        fields = record.new_round(number, self.spent, seen) | {
            "device_used_bytes": self.device_bytes,
            "passes": self.passes,
            "still_s": max(waits) if len(waits) == len(self.still_s) and waits else None,
        }
        if self.profiled:
            fields |= {"profiled": self.profiled["cycles"], "gpu_void": self.gpu_void}
        if self.after:
            fields["after"] = self.after
        if states := [visit["gpu"] for visit in self.visits if visit.get("gpu")]:
            fields |= {"gpu": gpu_state.join_summaries(states), "canary_s": seen.get("canary_s")}
            fields["rejected"] = self.rejected
        return record.read_round(fields)


class Interleaved:
    """The maker of generations. `torch` False and `timeouts` are for code of tests.

    Args:
        cycles: timed cycles of each process, one in each pass over all of them.
        profile: profile each process after its last visit.
        memory_limit: bytes that each process may allocate on the GPU.
    """

    def __init__(
        self,
        device: str,
        *,
        cycles: int,
        seed: int,
        profile: bool = True,
        torch: bool = True,
        timeouts: dict[str, float] | None = None,
        on_wait: Callable[[], None] | None = None,
        on_phase: OnPhase = lambda program, phase: None,
        visits: Visits | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self.memory_limit = memory_limit
        self.device, self.cycles, self.seed, self.profile = device, cycles, seed, profile
        self.torch, self.timeouts, self.on_wait, self.on_phase = torch, timeouts, on_wait, on_phase
        gpu = system.probe_gpu() if device == "cuda" else {}
        self.visits = visits or Visits(device, gpu.get("uuid"))
        self.memory = float(gpu.get("memory") or 0)
        self.peaks: dict[str, int] = {}  # bytes reserved on the GPU, by program
        self._pools: dict[Path | None, Pool] = {}
        self._ahead: dict[Path | None, Pool] = {}  # servers of the next generation
        self._lock, self.gpu = threading.Lock(), threading.Lock()
        self.accepted: dict[str, list[Round]] = {}  # by program, in order
        self._alive: list[Process] = []  # of a shift
        self._failed: dict[str, Visited] = {}

    def order(self, number: int, programs: Sequence[Program], turn: int = 0) -> list[Program]:
        """Return the rungs in random order, and inside each rung its programs: a function of (seed, round, pass)."""
        draw = random.Random(f"{self.seed} {number} {turn}" if turn else f"{self.seed} {number}")
        blocks = [list(block) for _, block in itertools.groupby(programs, key=lambda program: program.rung)]
        draw.shuffle(blocks)
        for block in blocks:
            draw.shuffle(block)
        return [program for block in blocks for program in block]

    def round(
        self,
        number: int,
        programs: Sequence[Program],
        is_due: Callable[[Program], bool] = lambda program: True,
        last: bool = False,
    ) -> Generator[Visited, None, None]:
        """Make one generation of the programs (given rung by rung) that are due. Yield each outcome at its end.

        `last`: no generation follows, so no server is started for one.
        """
        left = [program for program in self.order(number, programs) if is_due(program)]
        codes = dict.fromkeys(program.code for program in left)
        again: list[Program] = []
        try:
            with device_lock(system.device_key(self.device), self.on_wait):
                for code in codes:
                    self._pools[code] = self._ahead.pop(code, None) or self._open_pool(code)
                for pool in self._pools.values():
                    pool.wait()
                self.visits.look_around()
                while left:
                    yield from self._shift(number, left, again, [] if last else list(codes))
                for program in again:  # alone: others beside it may have been at fault
                    if is_due(program):
                        yield from self._shift(number, [program], [], [])
        finally:
            self._kill()
            self._pools.clear()

    def adopt(self, code: Path | None, pool: Pool) -> None:
        """Take over a pool, whose server has imported this code, for the next generation."""
        self._ahead[code] = pool

    def recall(self, name: str, rounds: Sequence[Round], inspected: int | None = None) -> None:
        """Take note of a program's rounds from an earlier run, and of the bytes that its inspector reserved."""
        self.accepted[name] = list(rounds)
        peaks = [each.peak_reserved_bytes for each in rounds if each.peak_reserved_bytes]
        if peaks or inspected:
            self.peaks[name] = max(peaks, default=inspected or 0)

    def close(self) -> None:
        self._kill()
        for pool in self._ahead.values():
            pool.kill()
        self.visits.close()

    def _kill(self) -> None:
        for pool in list(self._pools.values()):
            pool.kill()

    def _open_pool(self, code: Path | None) -> Pool:
        return Pool(code=code, torch=self.torch, timeouts=self.timeouts)

    def _shift(
        self, number: int, left: list[Program], again: list[Program], codes: list[Path | None]
    ) -> Iterator[Visited]:
        """Take as many programs from `left` as fit together, and yield their outcomes."""
        self._alive, self._failed = [], {}
        self._prepare_fitting(left)
        programs = [process.program for process in self._alive]
        programs += [visited.program for visited in self._failed.values()]
        try:
            living = list(self._alive)
            for turn in range(self.cycles):
                by_name = {process.program.name: process for process in self._alive}
                order = self.order(number, [process.program for process in self._alive], turn + 1)
                visits = [by_name[program.name] for program in order]
                self._each(functools.partial(self._visit, turn=turn, beside=living), visits)
            self._each(self._finish)
            if not left:
                for code in codes:  # it imports while nothing is timed
                    self._ahead.setdefault(code, self._open_pool(code))
            if self.profile:
                random.Random(f"{self.seed} {number} profile").shuffle(self._alive)
                self._each(self._profile, most=PROFILED_BESIDE)
            self._each(self._prove, most=PROVED_BESIDE)
            self._each(self._end)
        finally:
            processes = [process.worker for process in self._alive]
            run_each([worker.close for worker in processes], max(1, len(processes)), self._kill)
        by_name = {process.program.name: process for process in self._alive}
        failed, several = self._failed, len(programs) > 1
        for program in programs:
            if program.name in by_name:
                yield self._outcome(number, by_name[program.name])
            elif several and is_unsure(failed[program.name].failure):
                again.append(program)
            else:
                yield failed[program.name]

    # Preparing

    def _prepare_fitting(self, left: list[Program]) -> None:
        """Build and prepare programs from the front of `left`, as many as fit together.

        One at a time until their memory is known, from an inspection or an earlier generation; then side by side.
        """
        while left and self._fits(self._alive, left[0]):
            lane, beside = self._lane(left), len(self._alive)
            del left[: len(lane)]
            if len(lane) == 1:
                self._prepare(lane[0], None, beside)
                continue
            held = share_threads(len(lane))
            jobs = [functools.partial(self._prepare, each, held, len(lane)) for each in lane]
            run_each(jobs, len(lane), self._kill)
            self._alive[beside:] = sorted(self._alive[beside:], key=lambda each: lane.index(each.program))

    def _lane(self, left: Sequence[Program]) -> list[Program]:
        """Return the programs at the front that are prepared side by side: those whose memory is known."""
        most = min(PREPARED.get(self.device, 1), max(1, (os.cpu_count() or 1) - 2))
        lane: list[Program] = []
        for program in left[:most]:
            known = self.peaks.get(program.name) is not None or self.device != "cuda"
            if not known or chooses_kernels(program.recipe) or not self._fits(self._alive, *lane, program):
                break
            lane.append(program)
        return lane or [left[0]]

    def _fits(self, alive: Sequence[Process], *more: Program) -> bool:
        """Return whether programs fit beside the living processes: one always does."""
        if not alive and len(more) == 1:
            return True
        programs = [*(process.program for process in alive), *more]
        if len(programs) > MOST_ALIVE or self.device != "cuda":
            return len(programs) <= MOST_ALIVE
        peaks = [self.peaks.get(each.name) for each in programs]
        known = [peak for peak in peaks if peak is not None]
        unknown = len(peaks) - len(known)
        needed = sum(known) + unknown * max(known, default=0) + len(peaks) * CONTEXT_BYTES
        return needed <= SHARE * self.memory

    def _prepare(self, program: Program, threads: int | None, beside: int) -> None:
        """Build and prepare a program on so many CPU threads."""
        worker = None
        try:
            worker = self._pools[program.code].take()
            self.on_phase(program, "build")
            built = self.visits.build(
                worker,
                device=self.device,
                workload=program.workload,
                recipe=program.recipe,
                seed=self.seed,
                threads=threads,
                variant=program.variant,
                memory_limit=self.memory_limit,
            )
            if any(built["recipe"].get(key) != value for key, value in program.recipe.items()):
                raise WorkerFailure("n/a", "this commit gives the recipe another meaning")
            self.on_phase(program, "prepare")
            spent = prepare_step(worker, program.recipe)
            spent |= {"start_s": worker.start_s, "build_s": built.get("build_s"), "beside": beside}
            worker.call("begin")
        except WorkerFailure as failure:
            self._fail(program, failure)
            if worker is not None:
                worker.close()
            return
        except BaseException:
            if worker is not None:
                worker.kill()
            raise
        with self._lock:
            if peak := spent.get("peak_reserved_bytes"):
                self.peaks[program.name] = max(peak, self.peaks.get(program.name, 0))
            self._alive.append(Process(program, worker, built, spent))

    def _fail(self, program: Program, failure: WorkerFailure) -> None:
        # A commit from before a field or value of a recipe existed refuses it: it cannot do this rung.
        status = "n/a" if failure.reason.startswith("build: ConfigError") else failure.status
        with self._lock:
            self._failed[program.name] = Visited(program, status, failure.reason, failure=failure)

    # Timing

    def _visit(self, process: Process, turn: int, beside: Sequence[Process]) -> None:
        self.on_phase(process.program, "measure")
        accepted = self.accepted.get(process.program.name, [])
        earlier = [write_whole(each.gpu) for each in accepted if each.gpu]
        earlier += [each["gpu"] for each in process.visits if each.get("gpu")]
        pids = {each.worker.pid for each in beside if not each.worker.ended}
        begin = time.monotonic()
        seen = self.visits.cycle(process.worker, pids, earlier, process.rejected)
        process.visit_s += time.monotonic() - begin
        process.visits.append(seen)
        process.passes.append(turn)
        process.still_s.append(stillness.wait_until_still(process.worker.pid))

    def _finish(self, process: Process) -> None:
        program = process.program
        self.on_phase(program, "finish")
        seen = [each.canary_s for rounds in self.accepted.values() for each in rounds if each.canary_s]
        process.finished = self.visits.finish(
            process.worker, seen, process.rejected, main=program.main, lazy=program.lazy
        )
        process.choices = process.worker.call("choices")["choices"]

    def _profile(self, process: Process) -> None:
        """Profile cycles. If the profiler fails in a process that lives on, its wall times stand."""
        if not process.program.profiled:
            return
        try:
            process.profiled, process.gpu_void = profile_worker(
                process.worker,
                process.program.recipe,
                process.samples_s(),
                functools.partial(self._record, process),
            )
        except WorkerFailure as failure:
            if failure.status != "failed" or "did" not in failure.reply:
                raise
            process.profiled, process.gpu_void = {"cycles": None, "profile": None}, failure.reason

    def _record(self, process: Process, rest_s: float) -> Plain:
        """Record cycles while nobody else uses the GPU. Reading them needs no GPU."""
        with contextlib.ExitStack() as alone:
            alone.enter_context(self.gpu)
            self.on_phase(process.program, "profile")
            state = alone.enter_context(self.visits.watched({process.worker.pid}))
            profiled = process.worker.call(
                "profile",
                part="kinds" if process.program.kinds else "record",
                cycles=process.program.profiled,
                rest_s=rest_s,
                on_progress=lambda _: alone.close(),
            )
        for cycle in profiled["cycles"] or []:
            cycle["sm_mhz"] = state.get("sm_mhz")
        return profiled

    def _prove(self, process: Process) -> None:
        if process.program.prove:
            self.on_phase(process.program, "prove")
            proof = process.worker.call("prove")
            process.problem = proof["problem"]
            process.after = f"not compared: {proof['left_out']}" if proof.get("left_out") else "ok"

    def _end(self, process: Process) -> None:
        """End a process alone on a GPU, whose use then falls by all that it held: context, libraries and graphs, too.

        One generation tells. In the others, and where nobody tells the use, processes end side by side.
        """
        known = any(each.device_used_bytes for each in self.accepted.get(process.program.name, []))
        if known or self.visits.used_bytes() is None:
            return
        reserved = process.worker.call("release")["reserved_bytes"]
        before = self.visits.used_bytes()
        process.worker.close()
        after, peak = self.visits.used_bytes(), process.finished.get("peak_reserved_bytes")
        if None not in (reserved, before, after, peak):
            process.device_bytes = max(peak, peak + before - after - reserved)

    # Every stage, and what comes of a process

    def _each(
        self,
        stage: Callable[[Process], None],
        order: Sequence[Process] | None = None,
        most: dict[str, int] | None = None,
    ) -> None:
        """Run a stage of each process, one at a time, or at most so many by device. Processes that fail are closed."""

        def run(process: Process) -> None:
            try:
                stage(process)
            except WorkerFailure as failure:
                self._fail(process.program, failure)
                process.worker.close()

        jobs = [functools.partial(run, process) for process in (self._alive if order is None else order)]
        if most is None:
            for job in jobs:
                job()
        else:
            run_each(jobs, most.get(self.device, 1), self._kill)
        self._alive = [process for process in self._alive if process.program.name not in self._failed]

    def _outcome(self, number: int, process: Process) -> Visited:
        """Return a finished process' outcome, and keep its record for later generations."""
        program = process.program
        if process.problem:
            failure = WorkerFailure("failed: parity", f"after timing: {process.problem}")
            return Visited(program, failure.status, failure.reason, failure=failure)
        made = process.make_round(number)
        self.accepted.setdefault(program.name, []).append(made)
        if peak := made.peak_reserved_bytes:
            self.peaks[program.name] = peak
        built, profile = process.built, process.profiled.get("profile")
        profile = record.read_profile(profile) if profile else None
        return Visited(
            program, "ok", None, made, built["recipe"], built["settings"], process.choices, profile
        )


def allocatable_bytes(card_gb: float | None) -> int | None:
    """Return the bytes that a process may allocate on a card of so many GiB; None without a card to simulate."""
    return None if card_gb is None else max(1, int(card_gb * 2**30) - CONTEXT_BYTES)


def run_each(jobs: Iterable[Callable[[], None]], lanes: int, stop: Callable[[], None]) -> None:
    """Run the jobs, `lanes` at a time. At the first exception, Ctrl-C included, call `stop` and start no more."""
    with ThreadPoolExecutor(lanes) as threads:
        begun: list[Future[None]] = []
        try:
            begun.extend(threads.submit(job) for job in jobs)
            for done in as_completed(begun):
                done.result()
        except BaseException:

            def end() -> None:
                for job in begun:
                    job.cancel()
                stop()

            end_surely(end)
            raise


def is_unsure(failure: WorkerFailure) -> bool:
    """Return whether rungs beside it may be at fault: the GPU's memory was short, or the system's ran out."""
    return failure.status in ("oom", "invalid") or failure.reply.get("signal") == "SIGKILL"
