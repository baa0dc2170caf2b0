"""The measurement of `ladder scale`: process groups of each way and number of GPUs, in generations.

The groups of one way and scaling are alive together, and visited in random order, one cycle each. So what the host
does in a minute hits one GPU and several GPUs alike. If they do not fit into memory together, each runs alone.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ladder.base import text as texts
from ladder.base.locks import device_lock
from ladder.base.records import build, plain
from ladder.base.stopping import stop_on_sigterm
from ladder.engine.groups import Group
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours, system
from ladder.results import identity, record
from ladder.results.types import Plain
from ladder.studies.scale import proving
from ladder.studies.scale.record import DERIVED, Result, Run, derive
from ladder.studies.scale.ways import Asked

ENGINE = (*("studies/scale/measure", "studies/scale/ways", "engine/groups", "receipts/communication"),)
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
    budget_s: float | None = (
        None  # no generation begins that would end after it, by the time of the one before
    )


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


def new_result(plan: Plan, facts: Plain, photographs: str | None) -> Result:
    """Return the result of a measurement that has not begun."""
    images = identity.of_images(plan.workload["data"])
    trained = {"name": plan.name, **plan.workload, "data": photographs}
    empty = dict.fromkeys(DERIVED)
    backend = "nccl" if plan.device == "cuda" else "gloo"
    made = {
        **record.header("scaled", facts, trained, images=images, also=ENGINE),
        "protocol": {"generations": plan.generations, "visits": plan.visits, "seed": plan.seed,
                     "backend": backend, "notes": []},
        "proofs": [],
        "points": [
            {"way": each.way.name, "scaling": each.scaling, "gpus": each.gpus, "batch": each.batch,
             "recipe": each.way.on(each.gpus), "status": "n/a", "reason": texts.display(each.problem or "not measured"),
             "runs": [], **empty}
            for each in plan.points
        ],
    }  # fmt: skip
    return build(Result, made)


def measure(plan: Plan, result: Result, tell: Tell, save: Callable[[Result], None]) -> Result:
    """Measure all points, save the result after each group of them, and return it."""
    begin, complete = time.monotonic(), False
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
        complete = True
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
        self.out: set[int] = set()  # points that will not be tried again

    def run(self) -> Iterator[None]:
        """Prove every way, then measure generation after generation. Yields whenever there is more to save."""
        possible = [k for k, each in enumerate(self.plan.points) if each.problem is None]
        if self.plan.proves:
            with Pool() as pool:
                for way in dict.fromkeys(self.plan.points[k].way.name for k in possible):
                    self._prove(pool, [k for k in possible if self.plan.points[k].way.name == way])
                    yield
        chance = random.Random(self.plan.seed)
        took = 0.0
        for generation in range(self.plan.generations):
            begin = time.monotonic()
            if (
                self.plan.budget_s is not None
                and generation
                and begin - self.began + took > self.plan.budget_s
            ):
                self.tell(f"the budget allows {generation} of {self.plan.generations} generations")
                return
            shifts = _shifts([k for k in possible if k not in self.out], self.plan.points)
            chance.shuffle(shifts)
            with Pool() as pool:
                for shift in shifts:
                    self._measure(pool, shift, generation, chance)
                    yield
            took = time.monotonic() - begin
            self.tell(f"generation {generation + 1} of {self.plan.generations} is done")

    def close(self) -> None:
        for watch in self.watches:
            watch.close()

    def _prove(self, pool: Pool, indices: list[int]) -> None:
        """Collect receipts and parity of a way on the most GPUs. Points of a way that fails are not timed."""
        index = max(indices, key=lambda k: self.plan.points[k].gpus)
        asked = self.plan.points[index]
        if asked.gpus == 1:
            return
        self.tell(f"{asked.way.name} on {asked.gpus}: receipts and parity")
        proof = proving.prove(pool, asked, self.plan.workload, self.machine, self.plan.seed)
        self.proofs.append(proof)
        if proof.status != "ok":
            self.tell(f"{asked.way.name}: {proof.status}: {proof.reason}")
            for each in indices:
                if self.plan.points[each].gpus > 1:
                    self._failed(each, WorkerFailure(proof.status, proof.reason or ""))

    def _failed(self, index: int, failure: WorkerFailure) -> None:
        self.out.add(index)
        point = self.points[index]
        if not point.runs:
            reason = texts.display(failure.reason)
            self.points[index] = replace(point, status=failure.status, reason=reason)

    def _measure(self, pool: Pool, shift: list[int], generation: int, chance: random.Random) -> None:
        """Measure the points of a shift, all alive together, or one by one if memory does not allow that."""
        alive: list[_Alive] = []
        try:
            alive = self._all_prepared(pool, shift)
            self._visit(alive, generation, chance)
        except _TooMuch:
            self.tell("not enough memory for all of them: one by one")
            _end(alive)
            alive = []
            for index in shift:
                if all(run.generation != generation for run in self.points[index].runs):
                    self._measure(pool, [index], generation, chance)
        finally:
            _end(alive)

    def _all_prepared(self, pool: Pool, shift: list[int]) -> list[_Alive]:
        """Prepare the points of a shift side by side, and return those that did not fail. Nothing is timed meanwhile.

        Raises:
            _TooMuch: they do not fit into memory together. All of them have ended.
        """
        with ThreadPoolExecutor(len(shift)) as threads:
            asked = [threads.submit(self._prepared, pool, index, len(shift) > 1) for index in shift]
            try:
                futures.wait(asked)
            except BaseException:  # the threads wait for workers, and end with them
                pool.kill()
                raise
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

    def _visit(self, alive: list[_Alive], generation: int, chance: random.Random) -> None:
        """Time one cycle of each group in random order, again and again, then finish and profile each."""
        for _ in range(self.plan.visits):
            for each in chance.sample(alive, len(alive)):
                self._guarded(alive, each, lambda one: self._timed(alive, one))
        for each in [*alive]:
            self._guarded(alive, each, lambda one: self._finished(one, generation))

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

    def _finished(self, each: _Alive, generation: int) -> None:
        """Profile a group, take its peaks, and keep the run."""
        share = neighbours.share(each.before, neighbours.sample())
        finished = each.group.call("finish", main=False, lazy=False)
        for reply in finished:
            if reason := record.void_memory(reply):
                raise WorkerFailure("invalid", reason)
        each.group.call("profile", part="load")
        profiled = each.group.call("profile", part="record")
        run = Run(
            generation=generation,
            samples_ms=each.samples_ms,
            prepare_s=round(each.prepare_s, 2),
            rejected=len(each.rejected),
            others_cpu=share,
            **peaks(finished),
            **of_profiles(profiled),
        )
        point = self.points[each.index]
        self.points[each.index] = replace(point, status="ok", reason=None, runs=[*point.runs, run])


class _TooMuch(Exception):
    """Groups that do not fit into memory together."""


def _end(alive: list[_Alive]) -> None:
    for each in alive:
        each.group.close()


def _shifts(indices: list[int], points: list[Asked]) -> list[list[int]]:
    """Return the points that are alive together: those of one way and scaling."""
    found: dict[tuple[str, str], list[int]] = {}
    for index in indices:
        found.setdefault((points[index].way.name, points[index].scaling), []).append(index)
    return list(found.values())


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
