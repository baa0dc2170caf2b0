"""A look at one recipe: its GPU time and wall time from one process, without rounds and without a verdict.

Studies of many recipes (`ladder ablate`, `ladder map`) take looks instead of generations. A look in a fresh process
times cycles by the wall clock first, and profiles cycles after that. An `Onlooker` takes many looks in one process. It
profiles only, because wall time after a profiler is not to be trusted. On a CPU both give wall time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ladder.core.plain import Plain
from ladder.engine import lanes
from ladder.engine.gpu_time import PROFILED, is_captured, record_counted
from ladder.engine.pool import TUNING, Pool, Worker, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours
from ladder.results.derive import void_memory
from ladder.results.file import Look

GIB = 2**30
TRIES = 2  # of a look that was void
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


def in_fresh_process(worker: Worker, task: Task, visits: Visits, cycles: int) -> Look:
    """Return the look of a fresh worker: so many cycles by the wall clock, then on a GPU the profiled ones.

    Raises:
        WorkerFailure: there is no number; its status and reason say why.
    """
    _build_step(worker, task, visits)
    prepared = _prepare_step(worker, task)
    found: Plain = {}
    void: str | None = None
    before = neighbours.take_sample()
    with visits.watched({worker.pid}) as state:
        seen = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
        if reason := void_memory(seen.get("alloc_retries")):
            raise WorkerFailure("oom", reason, seen)
        if task.device == "cuda":
            worker.call("profile", part="load")
            found, void = record_counted(
                lambda rest: worker.call("profile", part="record", rest_s=rest),
                seen["samples_s"],
                is_captured(task.recipe),
            )
    share = neighbours.derive_share(before, neighbours.take_sample())
    cycled = found.get("cycles") or []
    if reason := gpu_state.find_void_reason(state):
        raise WorkerFailure("invalid", reason)
    used = prepared | seen
    return _make_look(
        [1000 * s for s in seen["samples_s"]],
        [] if void else cycled,
        prepared["prepare_s"],
        used.get("device_used_bytes"),
        share,
        state,
        void,
    )


class Onlooker:
    """A process that takes one look after another: GPU time of profiled steps, on a CPU the wall time of cycles.

    A failure ends the process, so nothing of a lost CUDA context, or of memory that ran out, reaches the next look.
    A recipe that chooses by measuring has a process of its own: its choices would stay for later recipes. Close an
    onlooker after use.
    """

    def __init__(self, pool: Pool, most: int = MOST) -> None:
        self.pool, self.most, self.taken = pool, most, 0
        self.worker: Worker | None = None

    def look(self, task: Task, visits: Visits) -> Look:
        """Return a look. A void look is repeated once, in a fresh process.

        Raises:
            WorkerFailure: there is no number; its status and reason say why.
        """
        for left in reversed(range(TRIES)):
            try:
                return self._look(task, visits)
            except WorkerFailure as failure:
                self.close()
                if failure.status != "invalid" or not left:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End the process. The next look begins in another one."""
        if self.worker is not None:
            self.worker.close()
        self.worker, self.taken = None, 0

    def _look(self, task: Task, visits: Visits) -> Look:
        alone = lanes.chooses_kernels(task.recipe)
        if alone or self.taken >= self.most:
            self.close()
        if fresh := self.worker is None:
            self.worker = self.pool.take()
        worker = self.worker
        assert worker is not None
        self.taken = self.most if alone else self.taken + 1
        _build_step(worker, task, visits)
        if fresh and task.device == "cuda":
            worker.call("profile", part="load")  # before any capture, so that all graphs are profiled alike
        prepared, found, wall, cycled = _prepare_step(worker, task), {}, [], []
        before = neighbours.take_sample()
        with visits.watched({worker.pid}) as state:
            if task.device == "cuda":
                found = worker.call("profile", part="kinds")
                cycled = found["cycles"] or []
            else:
                seen = worker.call("visit", cycles=PROFILED, settle_s=0, settle_cycles=0, main=False)
                wall = [1000 * s for s in seen["samples_s"]]
        share = neighbours.derive_share(before, neighbours.take_sample())
        if reason := gpu_state.find_void_reason(state) or found.get("gpu_void"):
            raise WorkerFailure("invalid", reason)
        worker.call("release", leave=True)
        used = prepared.get("device_used_bytes")
        return _make_look(wall, cycled, prepared["prepare_s"], used, share, state, None)


def _build_step(worker: Worker, task: Task, visits: Visits) -> None:
    """Build a step in a worker. Raises `WorkerFailure` if the worker is on another GPU than the watched one."""
    built = worker.call(
        "build",
        workload=task.workload | {"data": None},
        recipe=task.recipe,
        device=task.device,
        seed=task.seed,
    )
    if reason := visits.check_gpu(built.get("gpu_uuid")):
        raise WorkerFailure("invalid", reason)


def _prepare_step(worker: Worker, task: Task) -> Plain:
    """Prepare the built step. Return the worker's reply."""
    tunes: Plain = {"patience": TUNING} if lanes.chooses_kernels(task.recipe) else {}
    return worker.call("prepare", **tunes)


def _make_look(
    wall: list[float], cycled: list[Plain], prepare_s: float, used: int | None, share: float | None, state: Plain,
    void: str | None,
) -> Look:  # fmt: skip
    return Look(
        wall_ms=[round(ms, 5) for ms in wall] or None,
        gpu_ms=[round(each["gpu_ms"], 5) for each in cycled] or None,
        kernels=cycled[0]["kernels"] if cycled else None,
        prepare_s=round(prepare_s, 3),
        device_gib=None if used is None else round(used / GIB, 4),
        others_cpu=share,
        tenancy=state.get("tenancy"),
        company=gpu_state.describe_company(state),
        gpu_void=void,
    )


def find_marks(looks: Iterable[Look]) -> list[str]:
    """Return why looks must not be published: others on the CPU or on the GPU."""
    known = [*looks]
    why = sorted({each.company for each in known if each.company})
    said = neighbours.list_marks({neighbours.KEY: each.others_cpu} for each in known)
    return said + [f"noisy: not publishable: {each}" for each in why]
