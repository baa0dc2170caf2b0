"""A look at one recipe: its GPU time and wall time from one process, without rounds and without a verdict.

Studies of many recipes (`ladder ablate`, `ladder map`) take looks instead of generations. A look in a fresh process
times cycles by the wall clock, then profiles some. An `Onlooker` takes many in one process and profiles only, because
wall time after a profiler is not to be trusted. On a CPU both give wall time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ladder.core.plain import Plain
from ladder.engine.gpu_time import PROFILED, profile_worker
from ladder.engine.pool import Pool, Worker, WorkerFailure, chooses_kernels, prepare_step
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours
from ladder.results.derive import void_memory
from ladder.results.file import Look

GIB = 2**30
# Looks of one process. CUPTI 13.0 was seen to lose the times of graphs' kernels after some millions of them in a
# process: github.com/parca-dev/parcagpu/issues/23. A look at a captured step is reckoned to record 40,000.
MOST = 32


@dataclass(frozen=True)
class Task:
    """A recipe on a workload of random images, so that no decoding is timed."""

    workload: Plain
    recipe: Plain
    device: str
    seed: int = 0

    def build(self, worker: Worker, visits: Visits) -> None:
        """Build the step in a worker."""
        workload = self.workload | {"data": None}
        visits.build(worker, workload=workload, recipe=self.recipe, device=self.device, seed=self.seed)


def in_fresh_process(worker: Worker, task: Task, visits: Visits, cycles: int) -> Look:
    """Return the look of a fresh worker: so many cycles by the wall clock, then on a GPU the profiled ones.

    Raises `WorkerFailure` if there is no number.
    """
    task.build(worker, visits)
    prepared = prepare_step(worker, task.recipe)
    profiled: Plain = {}
    void: str | None = None
    before = neighbours.take_sample()
    with visits.watched({worker.pid}) as state:
        timed = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
        if reason := void_memory(timed.get("alloc_retries")):
            raise WorkerFailure("oom", reason, timed)
        if task.device == "cuda":
            profiled, void = profile_worker(worker, task.recipe, timed["samples_s"])
    share = neighbours.derive_share(before, neighbours.take_sample())
    if reason := gpu_state.find_void_reason(state):
        raise WorkerFailure("invalid", reason)
    reply = prepared | timed | {"cycles": None if void else profiled.get("cycles"), "gpu_void": void}
    return make_look(reply, state, share)


class Onlooker:
    """A process that takes one look after another: GPU time of profiled steps, on a CPU the wall time of cycles.

    A failure ends the process, so nothing of a lost CUDA context reaches the next look. A recipe that chooses by
    measuring has a process of its own: its choices would stay for later recipes. Close an onlooker after use.
    """

    def __init__(self, pool: Pool, most: int = MOST) -> None:
        self.pool, self.most, self.taken = pool, most, 0
        self.worker: Worker | None = None

    def look(self, task: Task, visits: Visits, *, last: bool = False) -> Look:
        """Return a look; one that is void is repeated once in a fresh process. Raises `WorkerFailure` without one."""
        try:
            return self._look(task, visits)
        except WorkerFailure as failure:
            self.close()
            if failure.status != "invalid" or last:
                raise
        return self.look(task, visits, last=True)

    def close(self) -> None:
        """End the process. The next look begins in another one."""
        if self.worker is not None:
            self.worker.close()
        self.worker, self.taken = None, 0

    def _look(self, task: Task, visits: Visits) -> Look:
        alone = chooses_kernels(task.recipe)
        if alone or self.taken >= self.most:
            self.close()
        if fresh := self.worker is None:
            self.worker = self.pool.take()
        worker = self.worker
        assert worker is not None
        self.taken = self.most if alone else self.taken + 1
        task.build(worker, visits)
        if fresh and task.device == "cuda":
            worker.call("profile", part="load")  # before any capture, so that all graphs are profiled alike
        prepared = prepare_step(worker, task.recipe)
        before = neighbours.take_sample()
        with visits.watched({worker.pid}) as state:
            if task.device == "cuda":
                reply = worker.call("profile", part="kinds")
            else:
                reply = worker.call("visit", cycles=PROFILED, settle_s=0, settle_cycles=0, main=False)
        share = neighbours.derive_share(before, neighbours.take_sample())
        if reason := gpu_state.find_void_reason(state) or reply.get("gpu_void"):
            raise WorkerFailure("invalid", reason)
        worker.call("release", leave=True)
        used = prepared.get(
            "device_used_bytes"
        )  # of the whole process, whose first looks count in later peaks
        return make_look(prepared | reply | {"device_used_bytes": used}, state, share)


def make_look(reply: Plain, state: Plain, share: float | None) -> Look:
    """Return the look of what a worker replied to its commands, with the GPU's state and others' share of the CPU."""
    cycles, used = reply.get("cycles") or [], reply.get("device_used_bytes")
    return Look(
        wall_ms=[round(1000 * seconds, 5) for seconds in reply.get("samples_s", ())] or None,
        gpu_ms=[round(each["gpu_ms"], 5) for each in cycles] or None,
        kernels=cycles[0]["kernels"] if cycles else None,
        prepare_s=round(reply["prepare_s"], 3),
        device_gib=None if used is None else round(used / GIB, 4),
        others_cpu=share,
        tenancy=state.get("tenancy"),
        company=gpu_state.describe_company(state),
        gpu_void=reply.get("gpu_void"),
    )


def find_marks(looks: Iterable[Look]) -> list[str]:
    """Return why looks must not be published: others on the CPU or on the GPU."""
    known = [*looks]
    company = sorted({each.company for each in known if each.company})
    marks = neighbours.list_marks({neighbours.KEY: each.others_cpu} for each in known)
    return marks + [f"noisy: not publishable: {each}" for each in company]
