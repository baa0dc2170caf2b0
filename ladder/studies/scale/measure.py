"""The measurement of `ladder scale`: process groups of each way and number of GPUs, in generations.

The groups of all ways are alive together, as far as the cores allow it, and visited in random order, one cycle each.
So what the host does in a minute hits one GPU and several GPUs alike. If they do not fit into memory together, the
groups of each way are alone, and else each group.

A way is proved before it is timed: its receipts, and its parity with one process, from a group that is never timed.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from ladder import receipts
from ladder.core import text as texts
from ladder.core.errors import one_line
from ladder.core.locks import device_lock
from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS
from ladder.core.stopping import stop_on_sigterm
from ladder.engine import models
from ladder.engine.gpu_time import is_captured, rest_s
from ladder.engine.groups import Group
from ladder.engine.pool import Pool, WorkerFailure, strip_protocol
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours, system
from ladder.results import record
from ladder.results.derive import void_memory
from ladder.results.store import FAILED_PARITY, NOT_ENGAGED
from ladder.studies.base import Session
from ladder.studies.scale.record import STAYS, WAYS, Case, Late, Observed, Run, find_end

LEAD_IN = 2  # cycles of a group that are not timed
PEAKS = ("peak_reserved_bytes", "peak_allocated_bytes", "device_used_bytes", "peak_rss_bytes")


@dataclass
class _Alive:
    """A group that is being measured."""

    key: str  # of its point
    case: Case
    group: Group
    prepare_s: float
    before: Any  # a sample of the CPU's use
    samples_ms: list[float] = field(default_factory=list)
    states: list[list[Plain]] = field(default_factory=list)  # of accepted visits, by GPU
    rejected: list[str] = field(default_factory=list)
    others: float | None = None  # share of the CPU that others took
    finished: list[Plain] = field(default_factory=list)


class _TooMuch(Exception):
    """Groups that do not fit into memory together."""


def observe_points(session: Session) -> None:
    """Measure what the file lacks, saved after each part. An interrupt, or the end of the budget, leaves the rest."""
    state = State(session)
    with contextlib.ExitStack() as stack:
        for watch in state.watches:
            stack.callback(watch.close)
        stack.enter_context(stop_on_sigterm())
        for key in system.device_keys(session.job.device, state.most):
            waiting = partial(session.report, "waiting for another run on these GPUs")
            stack.enter_context(device_lock(key, waiting))
        state.run()
    for key, each in session.file.observed.items():
        if each.runs and len(each.runs) < state.generations and not each.stopped:
            # A rank died in a later generation, and the number stands on fewer.
            count = f"{len(each.runs)} of {state.generations} generations"
            session.report(f"{key}: {count}, a later one failed")


class State:
    """The points and proofs of a run so far, the groups that are alive, and the watches on the GPUs."""

    def __init__(self, session: Session) -> None:
        self.session, self.job, self.report = session, session.job, session.report
        self.generations: int = self.job.options.generations
        seen, cases = session.file.observed, session.file.cases
        self.cases: dict[str, Case] = {key: case for key, case in cases.items() if case.kind == "point"}
        self.observed: dict[str, Observed] = {
            key: Observed(status="n/a", reason=case.problem) if case.problem else seen.get(key, Observed())
            for key, case in self.cases.items()
        }
        self.most = max(case.gpus for case in self.cases.values())
        uuids = system.gpu_uuids() if self.job.device == "cuda" else []
        self.watches = [Visits(self.job.device, uuid) for uuid in uuids[: self.most]]
        self.out = {key for key, each in self.observed.items() if each.status in STAYS and not each.runs}
        self.cores: int = self.job.machine["cores"]  # for the processes that are alive together
        self.alive: list[_Alive] = []

    def run(self) -> None:
        """Prove every way, then measure generation after generation. What was seen is saved after each part."""
        began, took = time.monotonic(), 0.0
        self.save()
        due = self.list_due()
        for key, case in self.session.file.cases.items():
            mine = [each for each in due if self.cases[each].way == case.way]
            if case.kind == "proof" and mine and key not in self.session.file.observed:
                self.report(f"{case.way} on {case.gpus}: receipts and parity")
                with Pool() as pool:
                    proof = prove_way(pool, case, self.job.workload, self.job.device, self.job.options.seed)
                self.session.keep(key, proof)
                for each in mine:  # points of a way that fails are not timed
                    if proof.status != "ok" and self.cases[each].gpus > 1:
                        self._fail(each, WorkerFailure(proof.status, proof.reason or ""))
                self.save()
        generation = find_end(self.session.file)
        while due := self.list_due():
            begin, minutes = time.monotonic(), self.job.minutes
            if minutes is not None and took and begin - began + took > 60 * minutes:
                self.report(f"the budget allows {self.count_done(due)} of {self.generations} generations")
                return
            chance = random.Random(f"{self.job.options.seed} {generation}")
            parts = list_shifts(due, self.cases, self.cores, chance)
            with Pool() as pool:
                for part in parts:
                    for key, run in self._measure(pool, part, generation, chance).items():
                        self.observed[key] = Observed(runs=[*self.observed[key].runs, run])
                    self.save()
            generation, took = generation + 1, time.monotonic() - begin
            if {*due} - self.out:
                self.report(f"generation {self.count_done(due)} of {self.generations} is done")

    def save(self) -> None:
        """Keep what was seen of all points; those that lack generations and can have them are marked."""
        for key, each in self.observed.items():
            lacks = key not in self.out and 0 < len(each.runs) < self.generations
            self.observed[key] = replace(each, stopped=True if lacks else None)
        self.session.keep_all({key: each for key, each in self.observed.items() if each != Observed()})

    def list_due(self) -> list[str]:
        """Return the points to measure once more: all of a way and scaling of which one lacks a generation."""
        able = [key for key, case in self.cases.items() if case.problem is None and key not in self.out]
        lacking = {self.cases[key].series for key in able if self.count_done([key]) < self.generations}
        return [key for key in able if self.cases[key].series in lacking]

    def count_done(self, keys: Sequence[str]) -> int:
        """Return how many generations each of these points has that is not out."""
        return min((len(self.observed[key].runs) for key in keys if key not in self.out), default=0)

    def _measure(
        self, pool: Pool, shift: Sequence[str], generation: int, chance: random.Random
    ) -> dict[str, Run]:
        """Return a run of each point of a shift, all alive together, or of fewer at a time if memory is too small."""
        try:
            # The groups prepare side by side, and nothing is timed meanwhile.
            jobs = _run_at_once(pool, [partial(self._prepare, pool, key) for key in shift])
            self.alive = [job.result() for job in jobs if job.exception() is None]
            for key, error in zip(shift, [job.exception() for job in jobs], strict=True):
                if isinstance(error, WorkerFailure) and not pool.ended:
                    self._fail(key, error, len(shift) > 1)
                elif error is not None and not pool.ended:
                    raise error
            return self._visit(pool, generation, chance)
        except _TooMuch:
            self._end_all()
            self.cores = 1  # one way at a time from now on
            left = [key for key in shift if key not in self.out]
            parts = list_shifts(left, self.cases, self.cores, chance)
            self.report(f"not enough memory for {len(left)} groups: fewer at a time")
            runs: dict[str, Run] = {}
            for part in parts if len(parts) > 1 else [[key] for key in left]:
                runs |= self._measure(pool, part, generation, chance)
            return runs
        finally:
            self._end_all()

    def _prepare(self, pool: Pool, key: str) -> _Alive:
        """Return a prepared group after its lead-in. Raises `WorkerFailure`."""
        case, begin = self.cases[key], time.monotonic()
        with contextlib.ExitStack() as stack:
            group = Group(pool, case.processes, self.job.device)
            stack.callback(group.kill)
            workload = models.resize(self.job.workload, {"batch": case.batch})
            group.build(workload, case.recipe, self.job.options.seed)
            group.call("prepare")
            prepare_s = time.monotonic() - begin
            group.call("begin")
            alive = _Alive(key, case, group, prepare_s, neighbours.take_sample())
            for _ in range(LEAD_IN):
                group.cycle()
            stack.pop_all()
        self.report(f"{key}: prepared in {prepare_s:.0f} s")
        return alive

    def _visit(self, pool: Pool, generation: int, chance: random.Random) -> dict[str, Run]:
        """Time one cycle of each group in random order, again and again. Then finish and profile each."""
        runs: dict[str, Run] = {}

        def finish(each: _Alive) -> None:
            each.others = neighbours.derive_share(each.before, neighbours.take_sample())
            each.finished = each.group.call("finish", main=False, lazy=False)
            for reply in each.finished:
                if reason := void_memory(reply.get("alloc_retries")):
                    raise WorkerFailure("invalid", reason)

        def profile(loaded: Future[Any], each: _Alive) -> None:
            loaded.result()
            rest = rest_s([ms / 1000 for ms in each.samples_ms], is_captured(each.case.recipe))
            profiled = each.group.call("profile", part="record", rest_s=rest)
            peaks = {
                name: [one[name] for one in each.finished if one.get(name) is not None] for name in PEAKS
            }
            runs[each.key] = Run(
                generation=generation, samples_ms=each.samples_ms, prepare_s=round(each.prepare_s, 2),
                rejected=len(each.rejected), others_cpu=each.others,
                **{name: max(values, default=None) for name, values in peaks.items()}, **find_communication(profiled),
                **find_waiting(each.group, profiled),
            )  # fmt: skip

        for _ in range(self.job.options.visits):
            for each in chance.sample(self.alive, len(self.alive)):
                self._guard(each, self._time)
        for each in [*self.alive]:
            self._guard(each, finish)
        loading = [partial(each.group.call, "profile", part="load") for each in self.alive]
        for each, loaded in zip([*self.alive], _run_at_once(pool, loading), strict=True):
            self._guard(each, partial(profile, loaded))
        return runs

    def _guard(self, each: _Alive, do: Callable[[_Alive], None]) -> None:
        """Do something to a group. If it fails it is out, and the others go on."""
        try:
            do(each)
        except WorkerFailure as failure:
            each.group.kill()
            self.alive.remove(each)
            self._fail(each.key, failure, len(self.alive) > 0)

    def _fail(self, key: str, failure: WorkerFailure, has_others: bool = False) -> None:
        """Take a point out. Raises `_TooMuch` if memory ran out beside others: alone the point may fit."""
        if has_others and failure.status == "oom":
            raise _TooMuch from failure
        self.out.add(key)
        reason = texts.make_display(failure.reason)
        self.report(f"{key}: {failure.status}: {reason}")
        if not self.observed[key].runs:
            self.observed[key] = Observed(status=cast(Any, failure.status), reason=reason)

    def _time(self, each: _Alive) -> None:
        pids = {pid for other in self.alive for pid in other.group.pids}
        while True:
            with contextlib.ExitStack() as stack:
                watches = self.watches[: each.case.gpus]
                states = [stack.enter_context(watch.watched(pids)) for watch in watches]
                seconds = each.group.cycle()
            earlier = [[visit[gpu] for visit in each.states] for gpu in range(len(states))]
            reasons = map(gpu_state.find_void_reason, states, earlier)
            void = next((reason for reason in reasons if reason), None)
            if void is None:
                each.samples_ms.append(1000 * seconds)
                each.states.append(states)
                return
            each.rejected.append(void)
            if len(each.rejected) > gpu_state.MOST_RETRIES:
                raise WorkerFailure("invalid", gpu_state.describe_throttling(each.rejected))

    def _end_all(self) -> None:
        with ThreadPoolExecutor(max(1, len(self.alive))) as threads:
            list(threads.map(lambda each: each.group.close(), self.alive))
        self.alive = []


def list_shifts(
    keys: Sequence[str], cases: Mapping[str, Case], cores: int, chance: random.Random
) -> list[list[str]]:
    """Return the points that are alive together: ways of one scaling, in random order, with a core for each process.

    One way is always allowed.
    """
    shifts: list[list[str]] = []
    scalings = sorted({cases[key].scaling or "" for key in keys})
    for scaling in chance.sample(scalings, len(scalings)):
        names, room = sorted({cases[key].way for key in keys if cases[key].scaling == scaling}), 0
        for name in chance.sample(names, len(names)):
            mine = [key for key in keys if cases[key].series == (name, scaling)]
            needed = sum(cases[key].processes for key in mine)
            if needed > room:
                shifts.append([])
                room = cores
            shifts[-1] += mine
            room -= needed
    return shifts


def _run_at_once(pool: Pool, jobs: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
    """Run jobs side by side, and return them when all have ended."""
    with ThreadPoolExecutor(max(1, len(jobs))) as threads:
        begun = [threads.submit(job) for job in jobs]
        try:
            futures.wait(begun)
        except BaseException:  # the threads wait for workers, and end with them
            pool.kill()
            raise
    return begun


def find_communication(profiled: list[Plain]) -> dict[str, Any]:
    """Return GPU time and communication of a step, from the ranks' profiles; None without them."""
    gpu = [reply["cycles"][0]["gpu_ms"] for reply in profiled if reply["cycles"]]
    between = [reply["communication"] for reply in profiled if reply.get("communication")]
    return {
        "gpu_ms": max(gpu, default=None),
        "comm_ms": min((each["comm_ms"] for each in between), default=None),
        "exposed_ms": max((each["exposed_ms"] for each in between), default=None),
    }


def find_waiting(group: Group, profiled: list[Plain]) -> dict[str, Any]:
    """Return the transfer of a step, and what each rank did while others waited for it. Empty without collectives."""
    split = split_collectives([reply.get("collectives") or [] for reply in profiled])
    if split is None:
        return {}
    transfer_ns, late_ns = split
    unit, late = 1e6 * CYCLE_STEPS, []
    doing = group.call("profile", part="late", each=[{"late_ns": each} for each in late_ns])
    for rank, (each, did) in enumerate(zip(late_ns, doing, strict=True)):
        busiest = did["busiest"] and texts.make_display(did["busiest"])
        late.append(
            Late(rank=rank, waited_ms=sum(each) / unit, idle_ms=did["idle_ns"] / unit, busiest=busiest)
        )
    return {"transfer_ms": transfer_ns / unit, "late": late}


def split_collectives(ranks: Sequence[Sequence[Sequence[int]]]) -> tuple[int, list[list[int]]] | None:
    """Return the ns of transfer, and by rank for how long the first to come waited for it at each collective.

    An all-reduce ends on all ranks at once. So the last rank to come has the shortest kernel, which is the transfer,
    and what is longer elsewhere is waiting. Ranks' clocks are never compared.

    Args:
        ranks: begin and end (ns) of each collective on each rank. None is returned if their numbers differ.
    """
    if len(ranks) < 2 or not ranks[0] or len({len(each) for each in ranks}) > 1:
        return None
    transfer_ns, late_ns = 0, [[0] * len(each) for each in ranks]
    for number, spans in enumerate(zip(*ranks, strict=True)):
        took = [end - begin for begin, end in spans]
        transfer_ns += min(took)
        late_ns[took.index(min(took))][number] = max(took) - min(took)
    return transfer_ns, late_ns


# --- proofs -----------------------------------------------------------------------------------------------------------


def prove_way(pool: Pool, case: Case, workload: Plain, device: str, seed: int) -> Observed:
    """Return what the ranks show of a way. Status is "ok" only if all of them agree."""
    group = None
    try:
        group = Group(pool, case.processes, device)
        group.build(models.resize(workload, {"batch": case.batch}), case.recipe, seed, keep_gradients=True)
        group.call("prepare")
        parity = group.call("parity")
        group.call("profile", part="load")
        group.call("trace")
        # A dispatch mode does not see the threads of nn.DataParallel, so only the way's own receipt can be issued.
        own = [WAYS[case.way][1]] if case.processes == 1 else None
        issued = [reply["receipts"] for reply in group.call("receipts", rungs=own)]
    except WorkerFailure as failure:
        return Observed(status=cast(Any, failure.status), reason=texts.make_display(failure.reason))
    finally:
        if group is not None:
            group.close()
    return judge_ranks(parity, issued, case.way)


def judge_ranks(parity: list[Plain], issued: list[Plain], way: str) -> Observed:
    """Return what parity and receipts of all ranks come to: the first rank that is out, or the first of all."""
    outside = next((each for each in parity if each["verdict"] != "ok"), None)
    off = next((reason for each in issued if (reason := receipts.reason(each))), None)
    rung = WAYS[way][1]
    # The highest rung of a ladder has no receipt of its own: its all-reduce is the flat or the captured one.
    own = next(([each[rung]] for each in issued if rung in each), None)
    shown = own or [issued[0][name] for name in ("captured_reduce", "flat_reduce") if name in issued[0]]
    reason = outside["reason"] if outside else off
    return Observed(
        status=FAILED_PARITY if outside else NOT_ENGAGED if off else "ok",  # type: ignore[arg-type]
        reason=None if reason is None else texts.make_display(one_line(reason)),
        parity=record.read_findings({"parity": strip_protocol(outside or parity[0])})["parity"],
        lines=list(dict.fromkeys(texts.make_display(line) for receipt in shown for line in receipt["lines"])),
    )
