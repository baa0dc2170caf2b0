"""A look at one recipe: its GPU time and wall time from one process, without rounds and without a verdict.

Studies of many recipes (`ladder ablate`, `ladder map`) take looks instead of generations. A look in a fresh process
times cycles by the wall clock first, and profiles cycles after that. A look in this process profiles only, because
wall time after a profiler is not to be trusted. On a CPU both give wall time.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ladder.base.errors import EnvironmentFailure
from ladder.base.records import needed, record
from ladder.base.rules import items, number
from ladder.engine.channel import ENVIRONMENT, Nobody
from ladder.engine.gpu_time import PROFILED, beyond, is_captured
from ladder.engine.pool import Worker, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, neighbours
from ladder.results import record as records
from ladder.results import values as v
from ladder.results.types import Plain

if TYPE_CHECKING:
    from ladder.engine.timed_rung import Rung

GIB = 2**30
TRIES = 2  # of a look that was void


@record
class Look:
    """The times of one process, in ms a step, and what disturbed it. Missing is what was not asked, or is unknown."""

    wall_ms: list[float] | None = needed(items(v.MS, 1000, least=1))
    gpu_ms: list[float] | None = needed(items(v.MS, 1000, least=1))
    kernels: float | None = needed(v.AMOUNT)
    prepare_s: float = needed(v.SECONDS)
    device_gib: float | None = needed(number(0, 1e6))
    others_cpu: float | None = needed(v.SHARE)
    tenancy: str | None = needed(v.TENANCY)
    company: str | None = needed(v.TEXT)
    gpu_void: str | None = needed(v.TEXT)  # why there is no GPU time beside the wall time


@dataclass(frozen=True)
class Task:
    """A recipe on a workload of random images, so that no decoding is timed."""

    workload: Plain
    recipe: Plain
    device: str
    seed: int = 0


def in_fresh_process(
    worker: Worker, task: Task, visits: Visits, cycles: int, ours: Iterable[int] = ()
) -> Look:
    """Return the look of a fresh worker: so many cycles by the wall clock, then on a GPU the profiled ones.

    ``ours`` are other processes of this program that hold a context. On a CPU at least one cycle is timed.

    Raises:
        WorkerFailure: there is no number; its status and reason say why.
    """
    built = worker.call(
        "build",
        workload=task.workload | {"data": None},
        recipe=task.recipe,
        device=task.device,
        seed=task.seed,
    )
    if reason := visits.check_gpu(built.get("gpu_uuid")):
        raise WorkerFailure("invalid", reason)
    prepared = worker.call("prepare")
    on_gpu, seen, found = task.device == "cuda", {}, {}
    before = neighbours.sample()
    with visits.watched({worker.pid, *ours}) as state:
        if cycles or not on_gpu:
            seen = worker.call("visit", cycles=max(1, cycles), settle_s=0, settle_cycles=0, main=False)
            if reason := records.void_memory(seen):
                raise WorkerFailure("oom", reason, seen)
        if on_gpu:
            worker.call("profile", part="load")
            found = worker.call("profile", part="record")
            if found.get("gpu_void"):  # a first cycle may allocate, so that the second launches fewer kernels
                found = worker.call("profile", part="record")
    share = neighbours.share(before, neighbours.sample())
    cycled = found.get("cycles") or []
    samples = seen.get("samples_s") or []
    captured = bool(samples) and is_captured(task.recipe)
    void = found.get("gpu_void") or beyond(cycled, samples, captured)
    if reason := gpu_state.void_reason(state) or (None if seen else void):
        raise WorkerFailure("invalid", reason)
    used = prepared | seen
    return _look(
        [1000 * s for s in samples],
        [] if void else cycled,
        prepared["prepare_s"],
        used.get("device_used_bytes"),
        share,
        state,
        void,
    )


def in_this_process(task: Task, visits: Visits) -> Look:
    """Return a look without a process of its own: GPU time of profiled cycles, on a CPU the wall time of as many.

    A void look is repeated once.

    Raises:
        WorkerFailure: there is no number; its status and reason say why.
        EnvironmentFailure: the system or a lost CUDA context is to blame; another process may go on.
    """
    for left in reversed(range(TRIES)):
        try:
            return _here(task, visits)
        except WorkerFailure as failure:
            if failure.status != "invalid" or not left:
                raise
    raise AssertionError("unreachable")


def _here(task: Task, visits: Visits) -> Look:
    from ladder.engine import worker
    from ladder.engine.timed_rung import Invalid, Rung

    rung, did = Rung(None, Nobody()), "import"
    try:
        rung.do_import(True)
        did = "build"
        built = rung.do_build(task.workload | {"data": None}, task.recipe, task.device, task.seed)
        if reason := visits.check_gpu(built["gpu_uuid"]):
            raise Invalid(reason)
        did = "prepare"
        prepared = rung.do_prepare()
        did = "profile" if task.device == "cuda" else "cycle"
        before = neighbours.sample()
        with visits.watched({os.getpid()}) as state:
            rung.step.step()  # what a first step allocates is no work of a cycle
            wall, cycled = _cycles(rung)
        share = neighbours.share(before, neighbours.sample())
        if reason := rung.step.check_finite() or gpu_state.void_reason(state):
            raise Invalid(reason)
        used = rung.memory().get("device_used_bytes")
        return _look(wall, cycled, prepared["prepare_s"], used, share, state, None)
    except Exception as error:
        reply = worker.failure(error, did, rung)
        if reply["status"] == ENVIRONMENT:
            raise EnvironmentFailure(reply["reason"]) from error
        traceback.clear_frames(error.__traceback__)  # which hold the tensors that did not fit
        raise WorkerFailure(reply["status"], reply["reason"], reply) from None
    finally:
        _release(rung, task.device)


def load(device: str) -> None:
    """Start and stop this process's profiler once: the first start takes seconds."""
    if device == "cuda":
        from ladder.engine import profiling

        profiling.load()


def _cycles(rung: Rung) -> tuple[list[float], list[Plain]]:
    """Return wall ms of a step of each cycle on a CPU, or figures of the profiled cycles on a GPU."""
    from ladder.engine import profiling
    from ladder.engine.timed_rung import Invalid

    if rung.device != "cuda":
        return [1000 * rung.timed_cycle()[0] for _ in range(PROFILED)], []
    found = figures(profiling.record(rung).cycles())
    if reason := profiling.differing([each["kernels"] for each in found]):
        raise Invalid(reason)
    return [], found


def figures(cycles: Iterable[list[tuple[str, bool, int, int, int]]]) -> list[Plain]:
    """Return GPU ms and kernels of a step, of the events of each cycle. Raises `Invalid` if one has no kernel.

    `ladder.engine.profiling.digest` also says what a cycle consists of, which takes seconds that no look needs.
    """
    from ladder.base.protocol import CYCLE_STEPS
    from ladder.engine.timed_rung import Invalid
    from ladder.receipts import traces

    found = []
    for events in cycles:
        ran = sum(event[1] and not event[0].startswith(traces.NOT_KERNELS) for event in events)
        if not ran:
            raise Invalid("the profiler saw no kernels")
        found.append({"gpu_ms": traces.busy_ms(events), "kernels": ran / CYCLE_STEPS})
    return found


def _release(rung: Rung, device: str) -> None:
    """Close the step and give its memory back. Raises EnvironmentFailure if the CUDA context is lost."""
    try:
        if rung.step is not None:
            rung.step.close()
        rung.step = None
        gc.collect()
        torch = sys.modules.get("torch")
        if device != "cuda" or torch is None or not torch.cuda.is_initialized():
            return
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    except RuntimeError as error:
        raise EnvironmentFailure("the CUDA context is lost: go on with --resume, in a new process") from error


def _look(
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
        company=gpu_state.company(state),
        gpu_void=void,
    )


def marks(looks: Iterable[Look]) -> list[str]:
    """Return why looks must not be published: others on the CPU or on the GPU."""
    known = [*looks]
    why = sorted({each.company for each in known if each.company})
    said = neighbours.marks({neighbours.KEY: each.others_cpu} for each in known)
    return said + [f"noisy: not publishable: {each}" for each in why]
