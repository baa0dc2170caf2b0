"""The largest batch of a rung that fits, by the search of `ladder precision`, and the images a second there."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.studies.precision import batch_search
from ladder.studies.profile.measure import Plan, Tell
from ladder.studies.profile.record import Largest

LIMIT_S = 180.0  # no try begins later
ON_CPU = 16  # times the workload's batch are tried at most, as memory is the host's
CYCLES = 2  # timed at the largest batch


def find(
    asked: Plan, tell: Tell, used: float = 0, room: float | None = None, limit_s: float = LIMIT_S
) -> Largest:
    """Return the largest batch, in multiples of `group_of`. Each try is a fresh process with random images.

    Args:
        used, room: memory in use at the workload's batch, and all memory, in one unit, if known.
    """
    batch = asked.workload["batch"]
    most = batch_search.LARGEST if asked.device == "cuda" else ON_CPU * batch
    with Pool() as workers:

        def fits(size: int) -> str | None:
            tell(f"does a batch of {size} fit?")
            return _tried(workers, asked, size, lambda worker: None)

        group = batch_search.group_of(asked.workload, asked.recipe)
        found = batch_search.search(fits, batch_search.first(batch, used, room, most), group, limit_s, most)
        speeds: list[float] = []
        size = found.batch
        if size is not None:
            tell(f"images a second at a batch of {size}")

            def time(worker: Worker) -> None:
                seen = worker.call("visit", cycles=CYCLES, settle_s=0, settle_cycles=0, main=False)
                speeds.append(size / statistics.median(seen["samples_s"]))

            _tried(workers, asked, size, time)
    speed = round(speeds[0], 3) if speeds else None
    return Largest(batch=size, settled=found.settled, tried=found.tried, images_per_s=speed)


def _tried(workers: Pool, asked: Plan, size: int, then: Callable[[Worker], None]) -> str | None:
    """Prepare a step of this batch in a fresh process, and do something with it. Return why that failed, or None."""
    worker = workers.take()
    try:
        workload = asked.workload | {"batch": size, "data": None}
        worker.call("build", workload=workload, recipe=asked.recipe, device=asked.device, seed=asked.seed)
        worker.call("prepare")
        then(worker)
    except WorkerFailure as failure:
        worker.kill()
        return failure.reason
    worker.close()
    return None
