"""The measurement of `ladder scale`: process groups of each way and number of GPUs, in generations.

The groups of all ways are alive together, as far as the cores allow it, and visited in random order, one cycle each.
So what the host does in a minute hits one GPU and several GPUs alike. If they do not fit into memory together, the
groups of each way are alone, and else each group.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ladder.base import text as texts
from ladder.base.locks import device_lock
from ladder.base.records import build, plain
from ladder.base.stopping import stop_on_sigterm
from ladder.engine.gpu_time import is_captured, rest_s
from ladder.engine.groups import Group
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours, system
from ladder.results import identity, record
from ladder.results.derive import void_memory
from ladder.results.types import Plain
from ladder.studies.scale import joining, proving
from ladder.studies.scale.record import DERIVED, NOT_MEASURED, Result, Run, derive
from ladder.studies.scale.resume import STAYS
from ladder.studies.scale.ways import Asked, shifts

LEAD_IN = 2  # cycles of a group that are not timed
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The user's request."""

    name: str
    workload: Plain  # with the path of its images; its batch is that of a GPU in weak scaling
    points: list[Asked]
    device: str
    generations: int = 3
    visits: int = 3
    seed: int = 0
    proves: bool = True
    budget_s: float | None = None  # no generation begins that would end later, by the time of the one before


@dataclass
class _Alive:
    """A group that is being measured."""

    index: int  # of its point
    asked: Asked
    group: Group
    prepare_s: float = 0.0
    samples_ms: list[float] = field(default_factory=list)
    states: list[list[Plain]] = field(default_factory=list)  # of accepted visits, by GPU
    rejected: list[str] = field(default_factory=list)
    before: Any = None
    others: float | None = None  # share of the CPU that others took
    finished: list[Plain] = field(default_factory=list)


def new_result(plan: Plan, facts: Plain, photographs: str | None) -> Result:
    """Return the result of a measurement that has not begun."""
    images = identity.of_images(plan.workload["data"])
    trained = {"name": plan.name, **plan.workload, "data": photographs}
    empty = dict.fromkeys(DERIVED)
    backend = "nccl" if plan.device == "cuda" else "gloo"
    made = {
        **record.header("scaled", facts, trained, images=images),
        "protocol": {"generations": plan.generations, "visits": plan.visits, "seed": plan.seed,
                     "backend": backend, "notes": []},
        "proofs": [],
        "points": [
            {"way": each.way.name, "scaling": each.scaling, "gpus": each.gpus, "batch": each.batch,
             "recipe": each.way.on(each.gpus), "status": "n/a", "reason": texts.display(each.problem or NOT_MEASURED),
             "runs": [], **empty}
            for each in plan.points
        ],
    }  # fmt: skip
    return build(Result, made)


def measure(plan: Plan, result: Result, tell: Tell, save: Callable[[Result], None]) -> Result:
    """Measure what the result lacks, save it after each part, and return it.

    After an interrupt, or the end of the budget, it is not complete.
    """
    begin, complete = time.monotonic() - result.seconds, False
    most = max(each.gpus for each in plan.points)
    state = _State(plan, result, tell)

    def keep() -> Result:
        seconds = round(time.monotonic() - begin, 1)
        found = replace(
            result, seconds=seconds, complete=complete, points=[*state.points], proofs=[*state.proofs]
        )
        save(derive(found))
        return derive(found)

    try:
        with contextlib.ExitStack() as held:
            held.enter_context(stop_on_sigterm())
            for key in system.device_keys(plan.device, most):
                held.enter_context(device_lock(key, lambda: tell("waiting for another run on these GPUs")))
            for _ in state.run():
                keep()
        complete = not state.due()
    except KeyboardInterrupt:
        pass
    finally:
        state.close()
        found = keep()
    return found


class _State:
    """The points and proofs of a run so far, and the watches on its GPUs."""

    def __init__(self, plan: Plan, result: Result, tell: Tell) -> None:
        self.plan, self.machine, self.tell = plan, plain(result.machine), tell
        self.points, self.proofs = [*result.points], [*result.proofs]
        uuids = system.gpu_uuids() if plan.device == "cuda" else []
        self.watches = [Visits(plan.device, uuid) for uuid in uuids[: max(p.gpus for p in plan.points)]]
        self.began = time.monotonic()
        self.out = {k for k, point in enumerate(self.points) if point.status in STAYS and not point.runs}
        self.cores: int = self.machine["cores"]  # for the processes that are alive together
        self.ahead: Pool | None = Pool()  # of the next generation

    def run(self) -> Iterator[None]:
        """Prove every way, then measure generation after generation. Yields whenever there is more to save."""
        due = self.due()
        for way in dict.fromkeys(self.plan.points[k].way.name for k in due if self.plan.proves):
            self._prove([k for k in due if self.plan.points[k].way.name == way])
            yield
        generation, took = joining.end(self.points), 0.0
        while due := self.due():
            begin, budget = time.monotonic(), self.plan.budget_s
            if budget is not None and took and begin - self.began + took > budget:
                self.tell(f"the budget allows {self._done(due)} of {self.plan.generations} generations")
                return
            chance = random.Random(f"{self.plan.seed} {generation}")
            parts = shifts(due, self.plan.points, self.cores, chance)
            more = self._done(due) + 1 < self.plan.generations
            pool, self.ahead = self.ahead or Pool(), None
            with pool:
                for part in parts:
                    self._keep(self._measure(pool, part, generation, chance, more and part is parts[-1]))
                    yield
            generation, took = generation + 1, time.monotonic() - begin
            if {*due} - self.out:
                self.tell(f"generation {self._done(due)} of {self.plan.generations} is done")

    def due(self) -> list[int]:
        """Return the points to measure once more: all of a way and scaling of which one lacks a generation."""
        able = [k for k, each in enumerate(self.plan.points) if each.problem is None and k not in self.out]
        lacking = {self.plan.points[k].series for k in able if self._done([k]) < self.plan.generations}
        return [k for k in able if self.plan.points[k].series in lacking]

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.kill()
        for watch in self.watches:
            watch.close()

    def _done(self, indices: list[int]) -> int:
        """Return how many generations each of these points has that is not out."""
        return min((len(self.points[k].runs) for k in indices if k not in self.out), default=0)

    def _keep(self, made: dict[int, Run]) -> None:
        for index, run in made.items():
            point = self.points[index]
            self.points[index] = replace(point, status="ok", reason=None, runs=[*point.runs, run])

    def _prove(self, indices: list[int]) -> None:
        """Collect receipts and parity of a way on the most GPUs. Points of a way that fails are not timed."""
        index = max(indices, key=lambda k: self.plan.points[k].gpus)
        asked = self.plan.points[index]
        known = any((each.way, each.gpus) == (asked.way.name, asked.gpus) for each in self.proofs)
        if asked.gpus == 1 or known:
            return
        self.tell(f"{asked.way.name} on {asked.gpus}: receipts and parity")
        pool = self.ahead = self.ahead or Pool()
        proof = proving.prove(pool, asked, self.plan.workload, self.machine, self.plan.seed)
        self.proofs.append(proof)
        if proof.status != "ok":
            for each in indices:
                if self.plan.points[each].gpus > 1:
                    self._failed(each, WorkerFailure(proof.status, proof.reason or ""))

    def _failed(self, index: int, failure: WorkerFailure) -> None:
        self.out.add(index)
        point = self.points[index]
        reason = texts.display(failure.reason)
        self.tell(f"{point.way}, {point.scaling}, {point.gpus}: {failure.status}: {reason}")
        if not point.runs:
            self.points[index] = replace(point, status=failure.status, reason=reason)

    def _measure(
        self, pool: Pool, shift: list[int], generation: int, chance: random.Random, more: bool
    ) -> dict[int, Run]:
        """Return a run of each point of a shift, all alive together, or of fewer at a time if memory is too small.

        `more`: another generation follows, and its server may import once nothing of this one is timed any more.
        """
        alive: list[_Alive] = []
        try:
            alive = self._all_prepared(pool, shift)
            return self._visit(pool, alive, generation, chance, more)
        except _TooMuch:
            _end(alive)
            alive, self.cores = [], 1  # one way at a time from now on
            left = [index for index in shift if index not in self.out]
            parts = shifts(left, self.plan.points, self.cores, chance)
            self.tell(
                f"not enough memory for all of them: {'way by way' if len(parts) > 1 else 'one by one'}"
            )
            parts = parts if len(parts) > 1 else [[index] for index in left]
            made: dict[int, Run] = {}
            for part in parts:
                made |= self._measure(pool, part, generation, chance, more and part is parts[-1])
            return made
        finally:
            _end(alive)

    def _all_prepared(self, pool: Pool, shift: list[int]) -> list[_Alive]:
        """Prepare the points of a shift side by side, and return those that did not fail. Nothing is timed meanwhile.

        Raises:
            _TooMuch: they do not fit into memory together. All of them have ended.
        """
        asked = _at_once(pool, [partial(self._prepared, pool, k, len(shift) > 1) for k in shift])
        alive = [made for each in asked if each.exception() is None and (made := each.result()) is not None]
        if error := next((error for each in asked if (error := each.exception()) is not None), None):
            _end(alive)
            raise error
        return alive

    def _prepared(self, pool: Pool, index: int, others: bool) -> _Alive | None:
        """Return a prepared group after its lead-in, or None if its point failed or the run was ended."""
        asked = self.plan.points[index]
        begin = time.monotonic()
        try:
            made = _Alive(index, asked, Group(pool, asked.processes, self.plan.device))
        except WorkerFailure as failure:
            if not pool.ended:
                self._failed(index, failure)
            return None
        try:
            workload = self.plan.workload | {"batch": asked.batch}
            made.group.build(workload, asked.way.on(asked.gpus), self.plan.seed)
            made.group.call("prepare")
            made.prepare_s = time.monotonic() - begin
            made.group.call("begin")
            made.before = neighbours.sample()
            for _ in range(LEAD_IN):
                made.group.cycle()
        except WorkerFailure as failure:
            made.group.kill()
            if pool.ended:
                return None
            if others and failure.status == "oom":
                raise _TooMuch from failure
            self._failed(index, failure)
            return None
        except BaseException:
            made.group.kill()
            raise
        self.tell(f"{asked.way.name}, {asked.scaling}, {asked.gpus}: prepared in {made.prepare_s:.0f} s")
        return made

    def _visit(
        self, pool: Pool, alive: list[_Alive], generation: int, chance: random.Random, more: bool
    ) -> dict[int, Run]:
        """Time one cycle of each group in random order, again and again. Then finish and profile each."""
        for _ in range(self.plan.visits):
            for each in chance.sample(alive, len(alive)):
                self._guarded(alive, each, partial(self._timed, alive))
        for each in [*alive]:
            self._guarded(alive, each, self._finish)
        if more:
            self.ahead = Pool()  # it imports while nothing is timed
        loading = _at_once(pool, [partial(each.group.call, "profile", part="load") for each in alive])
        made: dict[int, Run] = {}
        for each, loaded in zip([*alive], loading, strict=True):
            self._guarded(alive, each, partial(self._profile, loaded, made, generation))
        return made

    def _guarded(self, alive: list[_Alive], each: _Alive, do: Callable[[_Alive], None]) -> None:
        """Do something to a group. If it fails it is out, and the others go on."""
        try:
            do(each)
        except WorkerFailure as failure:
            each.group.kill()
            alive.remove(each)
            if len(alive) and failure.status == "oom":
                raise _TooMuch from failure
            self._failed(each.index, failure)

    def _timed(self, alive: list[_Alive], each: _Alive) -> None:
        pids = {pid for other in alive for pid in other.group.pids}
        while True:
            with contextlib.ExitStack() as watched:
                watches = self.watches[: each.asked.gpus]
                seen = [watched.enter_context(watch.watched(pids)) for watch in watches]
                seconds = each.group.cycle()
            earlier = [[visit[gpu] for visit in each.states] for gpu in range(len(seen))]
            reasons = [gpu_state.void_reason(now, before) for now, before in zip(seen, earlier, strict=True)]
            void = next((reason for reason in reasons if reason), None)
            if void is None:
                each.samples_ms.append(1000 * seconds)
                each.states.append(seen)
                return
            each.rejected.append(void)
            if len(each.rejected) > gpu_state.MOST_RETRIES:
                raise WorkerFailure("invalid", gpu_state.throttled(each.rejected))

    def _finish(self, each: _Alive) -> None:
        """Take a group's peaks after its last timed cycle."""
        each.others = neighbours.share(each.before, neighbours.sample())
        each.finished = each.group.call("finish", main=False, lazy=False)
        for reply in each.finished:
            if reason := void_memory(reply.get("alloc_retries")):
                raise WorkerFailure("invalid", reason)

    def _profile(self, loaded: Future[Any], made: dict[int, Run], generation: int, each: _Alive) -> None:
        """Profile a group whose profilers have been loaded, and add its run to those that are made."""
        loaded.result()
        captured = is_captured(each.asked.way.on(each.asked.gpus))
        rest = rest_s([ms / 1000 for ms in each.samples_ms], captured)
        profiled = each.group.call("profile", part="record", rest_s=rest)
        made[each.index] = Run(
            generation=generation,
            samples_ms=each.samples_ms,
            prepare_s=round(each.prepare_s, 2),
            rejected=len(each.rejected),
            others_cpu=each.others,
            **peaks(each.finished),
            **of_profiles(profiled),
        )


class _TooMuch(Exception):
    """Groups that do not fit into memory together."""


def _at_once(pool: Pool, jobs: list[Callable[[], Any]]) -> list[Future[Any]]:
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


def peaks(finished: list[Plain]) -> dict[str, Any]:
    """Return the largest peaks of all ranks."""
    names = ("peak_reserved_bytes", "peak_allocated_bytes", "device_used_bytes", "peak_rss_bytes")
    return {name: _most(reply.get(name) for reply in finished) for name in names}


def of_profiles(profiled: list[Plain]) -> dict[str, Any]:
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
