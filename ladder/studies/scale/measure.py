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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from ladder.base import text as texts
from ladder.base.errors import one_line
from ladder.base.locks import device_lock
from ladder.base.stopping import stop_on_sigterm
from ladder.engine import inspection
from ladder.engine.gpu_time import is_captured, rest_s
from ladder.engine.groups import Group
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours, system
from ladder.receipts import receipt as receipts
from ladder.results.derive import void_memory
from ladder.results.types import Plain
from ladder.studies.frame import Session
from ladder.studies.scale.record import STAYS, WAYS, Case, Observed, Run, find_end

LEAD_IN = 2  # cycles of a group that are not timed
NOT_ENGAGED, FAILED_PARITY = "not engaged", "failed: parity"


@dataclass
class _Alive:
    """A group that is being measured."""

    key: str  # of its point
    case: Case
    group: Group
    prepare_s: float = 0.0
    samples_ms: list[float] = field(default_factory=list)
    states: list[list[Plain]] = field(default_factory=list)  # of accepted visits, by GPU
    rejected: list[str] = field(default_factory=list)
    before: Any = None
    others: float | None = None  # share of the CPU that others took
    finished: list[Plain] = field(default_factory=list)


def observe_points(session: Session) -> None:
    """Measure what the file lacks, saved after each part. An interrupt, or the end of the budget, leaves the rest."""
    state = State(session)
    most = max(case.gpus for case in state.cases.values())
    try:
        with contextlib.ExitStack() as held:
            held.enter_context(stop_on_sigterm())
            for key in system.device_keys(session.job.device, most):
                waiting = partial(session.report, "waiting for another run on these GPUs")
                held.enter_context(device_lock(key, waiting))
            state.run()
    finally:
        state.close()
    for key, each in session.file.observed.items():
        if each.runs and len(each.runs) < state.generations and not each.stopped:
            # A rank died in a later generation, and the number stands on fewer.
            count = f"{len(each.runs)} of {state.generations} generations"
            session.report(f"{key}: {count}, a later one failed")


class State:
    """The points and proofs of a run so far, and the watches on its GPUs."""

    def __init__(self, session: Session) -> None:
        self.session, self.job, self.tell = session, session.job, session.report
        self.generations: int = self.job.options.generations
        points = {key: case for key, case in session.file.cases.items() if case.kind == "point"}
        self.cases: dict[str, Case] = points
        self.observed: dict[str, Observed] = {
            key: each for key, each in session.file.observed.items() if key in points
        }
        for key, case in points.items():
            if case.problem is not None:
                self.observed[key] = Observed(status="n/a", reason=case.problem)
        uuids = system.gpu_uuids() if self.job.device == "cuda" else []
        self.watches = [
            Visits(self.job.device, uuid) for uuid in uuids[: max(case.gpus for case in points.values())]
        ]
        self.began = time.monotonic()
        self.out = {key for key, each in self.observed.items() if each.status in STAYS and not each.runs}
        self.cores: int = self.job.machine["cores"]  # for the processes that are alive together
        self.ahead: Pool | None = Pool()  # of the next generation

    def run(self) -> None:
        """Prove every way, then measure generation after generation. What was seen is saved after each part."""
        self.save()
        due = self.list_due()
        for key, case in self.session.file.cases.items():
            mine = [each for each in due if self.cases[each].way == case.way]
            if case.kind == "proof" and mine and key not in self.session.file.observed:
                self._prove(key, case, mine)
                self.save()
        generation, took = find_end(self.session.file), 0.0
        while due := self.list_due():
            begin, minutes = time.monotonic(), self.job.minutes
            if minutes is not None and took and begin - self.began + took > 60 * minutes:
                self.tell(f"the budget allows {self.count_done(due)} of {self.generations} generations")
                return
            chance = random.Random(f"{self.job.options.seed} {generation}")
            parts = list_shifts(due, self.cases, self.cores, chance)
            more = self.count_done(due) + 1 < self.generations
            pool, self.ahead = self.ahead or Pool(), None
            with pool:
                for part in parts:
                    runs = self._measure(pool, part, generation, chance, more and part is parts[-1])
                    for key, run in runs.items():
                        before = self.observed.get(key, Observed()).runs
                        self.observed[key] = Observed(runs=[*before, run])
                    self.save()
            generation, took = generation + 1, time.monotonic() - begin
            if {*due} - self.out:
                self.tell(f"generation {self.count_done(due)} of {self.generations} is done")

    def save(self) -> None:
        """Keep what was seen of all points; those that lack generations and can have them are marked."""
        for key, each in self.observed.items():
            lacks = key not in self.out and 0 < len(each.runs) < self.generations
            self.observed[key] = replace(each, stopped=True if lacks else None)
        self.session.keep_all(self.observed)

    def list_due(self) -> list[str]:
        """Return the points to measure once more: all of a way and scaling of which one lacks a generation."""
        able = [key for key, case in self.cases.items() if case.problem is None and key not in self.out]
        lacking = {self.cases[key].series for key in able if self.count_done([key]) < self.generations}
        return [key for key in able if self.cases[key].series in lacking]

    def close(self) -> None:
        """End the next generation's server, and the watches."""
        if self.ahead is not None:
            self.ahead.kill()
        for watch in self.watches:
            watch.close()

    def count_done(self, keys: Sequence[str]) -> int:
        """Return how many generations each of these points has that is not out."""
        counts = (len(self.observed.get(key, Observed()).runs) for key in keys if key not in self.out)
        return min(counts, default=0)

    def _prove(self, key: str, case: Case, due: Sequence[str]) -> None:
        """Collect receipts and parity of a way on the most GPUs. Points of a way that fails are not timed."""
        self.tell(f"{case.way} on {case.gpus}: receipts and parity")
        pool = self.ahead = self.ahead or Pool()
        proof = prove_way(pool, case, self.job.workload, self.job.machine, self.job.options.seed)
        self.session.keep(key, proof)
        if proof.status != "ok":
            for each in due:
                if self.cases[each].gpus > 1:
                    self._fail(each, WorkerFailure(proof.status, proof.reason or ""))

    def _fail(self, key: str, failure: WorkerFailure) -> None:
        self.out.add(key)
        reason = texts.display(failure.reason)
        self.tell(f"{key}: {failure.status}: {reason}")
        if not self.observed.get(key, Observed()).runs:
            self.observed[key] = Observed(status=cast(Any, failure.status), reason=reason)

    def _measure(
        self, pool: Pool, shift: Sequence[str], generation: int, chance: random.Random, more: bool
    ) -> dict[str, Run]:
        """Return a run of each point of a shift, all alive together, or of fewer at a time if memory is too small.

        `more`: another generation follows, and its server may import once nothing of this one is timed any more.
        """
        alive: list[_Alive] = []
        try:
            alive = self._prepare_all(pool, shift)
            return self._visit(pool, alive, generation, chance, more)
        except _TooMuch:
            _end(alive)
            alive, self.cores = [], 1  # one way at a time from now on
            left = [key for key in shift if key not in self.out]
            parts = list_shifts(left, self.cases, self.cores, chance)
            how = "way by way" if len(parts) > 1 else "one by one"
            self.tell(f"not enough memory for all of them: {how}")
            parts = parts if len(parts) > 1 else [[key] for key in left]
            runs: dict[str, Run] = {}
            for part in parts:
                runs |= self._measure(pool, part, generation, chance, more and part is parts[-1])
            return runs
        finally:
            _end(alive)

    def _prepare_all(self, pool: Pool, shift: Sequence[str]) -> list[_Alive]:
        """Prepare the points of a shift side by side, and return those that did not fail. Nothing is timed meanwhile.

        Raises:
            _TooMuch: they do not fit into memory together. All of them have ended.
        """
        jobs = _run_at_once(pool, [partial(self._prepare, pool, key, len(shift) > 1) for key in shift])
        alive = [group for each in jobs if each.exception() is None and (group := each.result()) is not None]
        if error := next((error for each in jobs if (error := each.exception()) is not None), None):
            _end(alive)
            raise error
        return alive

    def _prepare(self, pool: Pool, key: str, others: bool) -> _Alive | None:
        """Return a prepared group after its lead-in, or None if its point failed or the run was ended."""
        case, begin = self.cases[key], time.monotonic()
        try:
            alive = _Alive(key, case, Group(pool, case.processes, self.job.device))
        except WorkerFailure as failure:
            if not pool.ended:
                self._fail(key, failure)
            return None
        try:
            workload = self.job.workload | {"batch": case.batch}
            alive.group.build(workload, case.recipe, self.job.options.seed)
            alive.group.call("prepare")
            alive.prepare_s = time.monotonic() - begin
            alive.group.call("begin")
            alive.before = neighbours.take_sample()
            for _ in range(LEAD_IN):
                alive.group.cycle()
        except WorkerFailure as failure:
            alive.group.kill()
            if pool.ended:
                return None
            if others and failure.status == "oom":
                raise _TooMuch from failure
            self._fail(key, failure)
            return None
        except BaseException:
            alive.group.kill()
            raise
        self.tell(f"{key}: prepared in {alive.prepare_s:.0f} s")
        return alive

    def _visit(
        self, pool: Pool, alive: list[_Alive], generation: int, chance: random.Random, more: bool
    ) -> dict[str, Run]:
        """Time one cycle of each group in random order, again and again. Then finish and profile each."""
        for _ in range(self.job.options.visits):
            for each in chance.sample(alive, len(alive)):
                self._guard(alive, each, partial(self._time, alive))
        for each in [*alive]:
            self._guard(alive, each, self._finish)
        if more:
            self.ahead = Pool()  # it imports while nothing is timed
        loading = _run_at_once(pool, [partial(each.group.call, "profile", part="load") for each in alive])
        runs: dict[str, Run] = {}
        for each, loaded in zip([*alive], loading, strict=True):
            self._guard(alive, each, partial(self._profile, loaded, runs, generation))
        return runs

    def _guard(self, alive: list[_Alive], each: _Alive, do: Callable[[_Alive], None]) -> None:
        """Do something to a group. If it fails it is out, and the others go on."""
        try:
            do(each)
        except WorkerFailure as failure:
            each.group.kill()
            alive.remove(each)
            if len(alive) and failure.status == "oom":
                raise _TooMuch from failure
            self._fail(each.key, failure)

    def _time(self, alive: list[_Alive], each: _Alive) -> None:
        pids = {pid for other in alive for pid in other.group.pids}
        while True:
            with contextlib.ExitStack() as watched:
                watches = self.watches[: each.case.gpus]
                seen = [watched.enter_context(watch.watched(pids)) for watch in watches]
                seconds = each.group.cycle()
            earlier = [[visit[gpu] for visit in each.states] for gpu in range(len(seen))]
            reasons = [
                gpu_state.find_void_reason(now, before) for now, before in zip(seen, earlier, strict=True)
            ]
            void = next((reason for reason in reasons if reason), None)
            if void is None:
                each.samples_ms.append(1000 * seconds)
                each.states.append(seen)
                return
            each.rejected.append(void)
            if len(each.rejected) > gpu_state.MOST_RETRIES:
                raise WorkerFailure("invalid", gpu_state.describe_throttling(each.rejected))

    def _finish(self, each: _Alive) -> None:
        """Take a group's peaks after its last timed cycle."""
        each.others = neighbours.derive_share(each.before, neighbours.take_sample())
        each.finished = each.group.call("finish", main=False, lazy=False)
        for reply in each.finished:
            if reason := void_memory(reply.get("alloc_retries")):
                raise WorkerFailure("invalid", reason)

    def _profile(self, loaded: Future[Any], runs: dict[str, Run], generation: int, each: _Alive) -> None:
        """Profile a group whose profilers have been loaded, and add its run."""
        loaded.result()
        rest = rest_s([ms / 1000 for ms in each.samples_ms], is_captured(each.case.recipe))
        profiled = each.group.call("profile", part="record", rest_s=rest)
        runs[each.key] = Run(
            generation=generation,
            samples_ms=each.samples_ms,
            prepare_s=round(each.prepare_s, 2),
            rejected=len(each.rejected),
            others_cpu=each.others,
            **find_peaks(each.finished),
            **find_communication(profiled),
        )


class _TooMuch(Exception):
    """Groups that do not fit into memory together."""


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


def _run_at_once(pool: Pool, jobs: list[Callable[[], Any]]) -> list[Future[Any]]:
    """Run jobs side by side, and return them when all have ended."""
    with ThreadPoolExecutor(max(1, len(jobs))) as threads:
        begun = [threads.submit(job) for job in jobs]
        try:
            futures.wait(begun)
        except BaseException:  # the threads wait for workers, and end with them
            pool.kill()
            raise
    return begun


def _end(alive: list[_Alive]) -> None:
    with ThreadPoolExecutor(max(1, len(alive))) as threads:
        list(threads.map(lambda each: each.group.close(), alive))


def find_peaks(finished: list[Plain]) -> dict[str, Any]:
    """Return the largest peaks of all ranks."""
    names = ("peak_reserved_bytes", "peak_allocated_bytes", "device_used_bytes", "peak_rss_bytes")
    return {name: _most(reply.get(name) for reply in finished) for name in names}


def find_communication(profiled: list[Plain]) -> dict[str, Any]:
    """Return GPU time and communication of a step, from the ranks' profiles; None without them."""
    gpu = [reply["cycles"][0]["gpu_ms"] for reply in profiled if reply["cycles"]]
    between = [reply["communication"] for reply in profiled if reply.get("communication")]
    return {
        "gpu_ms": max(gpu, default=None),
        "comm_ms": min((each["comm_ms"] for each in between), default=None),
        "exposed_ms": max((each["exposed_ms"] for each in between), default=None),
    }


def _most(values: Iterator[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


# --- proofs -----------------------------------------------------------------------------------------------------------


def prove_way(pool: Pool, case: Case, workload: Plain, machine: Plain, seed: int) -> Observed:
    """Return what the ranks show of a way. Status is "ok" only if all of them agree.

    An earlier proof of the same code, recipe, workload and machine counts.
    """
    known = inspection.Cache(workload | {"batch": case.batch}, machine)
    if (earlier := known.get(case.recipe)) is not None:
        return _as_observed(earlier["parity"])
    proof = _prove(pool, case, workload | {"batch": case.batch}, machine["device"], seed)
    if proof["status"] == "ok":
        known.put(case.recipe, {"parity": proof, "receipts": {}, "inspection": {"error": None}})
    return _as_observed(proof)


def _as_observed(proof: Plain) -> Observed:
    return Observed(
        status=proof["status"], reason=proof["reason"], reported_then=proof["parity"], lines=proof["lines"]
    )


def _prove(pool: Pool, case: Case, workload: Plain, device: str, seed: int) -> Plain:
    group = None
    try:
        group = Group(pool, case.processes, device)
        group.build(workload, case.recipe, seed, keep_gradients=True)
        group.call("prepare")
        parity = group.call("parity")
        group.call("profile", part="load")
        group.call("trace")
        # A dispatch mode does not see the threads of nn.DataParallel, so only the way's own receipt can be issued.
        own = [WAYS[case.way][1]] if case.processes == 1 else None
        seen = group.call("receipts", rungs=own)
        return judge_ranks(parity, [reply["receipts"] for reply in seen], case.way)
    except WorkerFailure as failure:
        return {
            "status": failure.status, "reason": texts.display(failure.reason), "parity": None, "lines": []
        }  # fmt: skip
    finally:
        if group is not None:
            group.close()


def judge_ranks(parity: list[Plain], issued: list[Plain], way: str) -> Plain:
    """Return the status, reason, parity and lines that the ranks' findings make together."""
    outside = next((each for each in parity if each["verdict"] != "ok"), None)
    off = next((reason for each in issued if (reason := receipts.reason(each))), None)
    rung = WAYS[way][1]
    lines = next((each[rung]["lines"] for each in issued if rung in each), [])
    if (
        not lines
    ):  # the highest rung of a ladder: its all-reduce has the receipt of the flat or the captured one
        names = ("captured_reduce", "flat_reduce")
        lines = [line for name in names for line in issued[0].get(name, {}).get("lines", [])]
    reason = outside["reason"] if outside else off
    return {
        "status": FAILED_PARITY if outside else NOT_ENGAGED if off else "ok",
        "reason": None if reason is None else texts.display(one_line(reason)),
        "parity": parity[0]["verdict"] if outside is None else outside["verdict"],
        "lines": [texts.display(line) for line in dict.fromkeys(lines)],
    }
