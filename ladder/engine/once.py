"""One recipe timed, or only prepared, in one fresh worker, for benches."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ladder.core.locks import device_lock
from ladder.core.plain import Plain
from ladder.engine.gpu_time import profile_worker
from ladder.engine.pool import Pool, Worker, WorkerFailure, strip_protocol
from ladder.machine import system


def measure_once(
    workload: Plain,
    recipe: Plain,
    device: str,
    cycles: int,
    code: Path | None = None,
    *,
    seed: int = 0,
    workers: Pool | None = None,
) -> Plain:
    """Time one recipe in one fresh worker, of `workers` if they are given. Return seconds for one step.

    Returns:
        samples_s (one for each cycle), event_s, prepare_s, peak_rss_bytes, recipe and settings.
        peak_reserved_bytes and peak_allocated_bytes, None on a CPU.
        choices: the rows of `kernels.choices` that decided, None if the measured code does not say.
        gpu_s: GPU seconds of a step in each profiled cycle, None on a CPU or if there is no GPU time that counts.
        gpu_void: one line why there is no GPU time, or None.

    Raises:
        WorkerFailure: its status is "n/a" if `code`, a checkout with the measured packages, lacks the contract.
    """
    reply: Plain = {
        "peak_reserved_bytes": None,
        "peak_allocated_bytes": None,
        "gpu_s": None,
        "gpu_void": None,
    }
    with _prepare_worker(workload, recipe, device, code, seed, workers) as (worker, prepared):
        reply |= prepared | worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
        reply |= {"choices": worker.call("choices")["choices"]}
        if device == "cuda":  # last, because nothing is timed in a process that was profiled
            try:
                profiled, void = profile_worker(worker, recipe, reply["samples_s"])
            except WorkerFailure as failure:  # the wall times stand
                profiled, void = {}, failure.reason
            cycled = [] if void else profiled["cycles"]
            reply |= {"gpu_s": [cycle["gpu_ms"] / 1000 for cycle in cycled or []] or None, "gpu_void": void}
    return strip_protocol(reply)


def prepare_once(
    workload: Plain, recipe: Plain, device: str, code: Path | None = None, *, seed: int = 0
) -> Plain:
    """Prepare one recipe in one fresh worker and time nothing else.

    Returns prepare_s with its parts (warmup_s, capture_s and, if there were any, compile_s, compile_kernels_s and
    cache_s), build_s, recipe, settings, choices and the peaks of memory. Raises `WorkerFailure` as `measure_once`.
    """
    with _prepare_worker(workload, recipe, device, code, seed) as (worker, prepared):
        return strip_protocol(prepared | {"choices": worker.call("choices")["choices"]})


def open_pool(device: str, code: Path | None) -> Pool:
    """Return a pool of workers for `measure_once`, with this code and for this device."""
    return Pool(code=code, torch=code is None or device == "cuda")


@contextlib.contextmanager
def _prepare_worker(
    workload: Plain, recipe: Plain, device: str, code: Path | None, seed: int, workers: Pool | None = None
) -> Iterator[tuple[Worker, Plain]]:
    """Yield a prepared worker and its words about building and preparing. The worker ends afterwards."""
    with contextlib.ExitStack() as stack:
        forks = workers or stack.enter_context(open_pool(device, code))
        stack.enter_context(device_lock(system.device_key(device)))
        worker = forks.take()
        stack.callback(worker.kill)  # its context ends before the lock does
        built = worker.call("build", workload=workload, recipe=recipe, device=device, seed=seed)
        yield worker, built | worker.call("prepare")
        worker.close()
