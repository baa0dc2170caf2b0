"""One recipe timed in one fresh worker, for benches."""

from pathlib import Path
from typing import Any

from ladder import machine
from ladder.pool import Worker, device_lock, plain


def measure_once(
    workload: dict[str, Any],
    recipe: dict[str, Any],
    device: str,
    cycles: int,
    code: Path | None = None,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Time one recipe in one fresh worker (for benches): seconds for one step.

    Returns samples_s (one for each cycle), event_s, main_s, prepare_s, peak_reserved_bytes and
    peak_allocated_bytes (None on a CPU), peak_rss_bytes, recipe, settings. Raises `WorkerFailure`; its status
    is "n/a" where `code`, a checkout to take the measured packages from, does not offer the contract.
    """
    empty = {"peak_reserved_bytes": None, "peak_allocated_bytes": None}
    worker = Worker(code=code, torch=code is None or device == "cuda")
    try:
        with device_lock(machine.device_key(device)):
            built = worker.call("build", workload=workload, recipe=recipe, device=device, seed=seed)
            prepared = worker.call("prepare")
            seen = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=True)
            worker.close()
    finally:
        worker.kill()
    return plain(empty | built | prepared | seen)
