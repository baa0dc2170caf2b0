"""One recipe timed, or only prepared, in one fresh worker, for benches."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder.core.locks import device_lock
from ladder.engine.gpu_time import is_captured, record_counted
from ladder.engine.pool import Pool, Worker, WorkerFailure, strip_protocol
from ladder.machine import system


def measure_once(
    workload: dict[str, Any],
    recipe: dict[str, Any],
    device: str,
    cycles: int,
    code: Path | None = None,
    *,
    seed: int = 0,
    workers: Pool | None = None,
) -> dict[str, Any]:
    """Time one recipe in one fresh worker (for benches). Return seconds for one step.

    Returns:
        samples_s (one for each cycle), event_s, prepare_s, peak_rss_bytes, recipe and settings.
        peak_reserved_bytes and peak_allocated_bytes, None on a CPU.
        choices: the rows of `kernels.choices` that decided, None if the measured code does not say.
        gpu_s: GPU seconds of a step in each profiled cycle, None on a CPU or if there is no GPU time that counts.
        gpu_void: one line why there is no GPU time, or None.

    Raises:
        WorkerFailure: its status is "n/a" if `code`, a checkout with the measured packages, lacks the contract.

    The worker is one of `workers`, as `pool` makes them. There is no cycle without lazy phases: asv has no number of
    it.
    """
    empty = {"peak_reserved_bytes": None, "peak_allocated_bytes": None}
    with _prepare_worker(workload, recipe, device, code, seed, workers) as (worker, prepared):
        seen = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
        used = worker.call("choices")["choices"]
        # Last, because nothing is timed in a process that was profiled.
        gpu = _profile_cycles(worker, recipe, device, seen["samples_s"])
        return strip_protocol(empty | prepared | seen | {"choices": used} | gpu)


def prepare_once(
    workload: dict[str, Any],
    recipe: dict[str, Any],
    device: str,
    code: Path | None = None,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Prepare one recipe in one fresh worker and time nothing else.

    Returns prepare_s with its parts, build_s, recipe, settings, choices and the peaks of memory. The parts are
    warmup_s, capture_s and, if there were any, compile_s, compile_kernels_s and cache_s. Raises `WorkerFailure` as
    `measure_once`.
    """
    with _prepare_worker(workload, recipe, device, code, seed) as (worker, prepared):
        return strip_protocol(prepared | {"choices": worker.call("choices")["choices"]})


def open_pool(device: str, code: Path | None) -> Pool:
    """Return a pool of workers for `measure_once`, with this code and for this device."""
    return Pool(code=code, torch=code is None or device == "cuda")


def _profile_cycles(
    worker: Worker, recipe: dict[str, Any], device: str, samples_s: list[float]
) -> dict[str, list[float] | str | None]:
    """Profile whole cycles of a process that is never timed again. Return gpu_s and gpu_void of `measure_once`."""
    if device != "cuda":
        return {"gpu_s": None, "gpu_void": None}
    try:
        worker.call("profile", part="load")
        seen, void = record_counted(
            lambda rest: worker.call("profile", part="record", rest_s=rest), samples_s, is_captured(recipe)
        )
    except WorkerFailure as failure:  # the wall times stand
        return {"gpu_s": None, "gpu_void": failure.reason}
    cycles = seen["cycles"]
    counts = cycles and not void
    return {"gpu_s": [cycle["gpu_ms"] / 1000 for cycle in cycles] if counts else None, "gpu_void": void}


@contextmanager
def _prepare_worker(
    workload: dict[str, Any],
    recipe: dict[str, Any],
    device: str,
    code: Path | None,
    seed: int,
    workers: Pool | None = None,
) -> Iterator[tuple[Worker, dict[str, Any]]]:
    """Yield a prepared worker and its words about building and preparing. The worker ends afterwards."""
    with contextlib.ExitStack() as stack:
        forks = workers or stack.enter_context(open_pool(device, code))
        stack.enter_context(device_lock(system.device_key(device)))
        worker = forks.take()
        stack.callback(worker.kill)  # its context ends before the lock does
        built = worker.call("build", workload=workload, recipe=recipe, device=device, seed=seed)
        yield worker, built | worker.call("prepare")
        worker.close()
