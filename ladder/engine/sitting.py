"""The locks and processes that a study of many looks holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ladder.core.locks import device_lock
from ladder.core.stopping import stop_on_sigterm
from ladder.engine.pool import Pool
from ladder.engine.visit import Visits
from ladder.machine import system


@contextlib.contextmanager
def open_sitting(device: str) -> Iterator[tuple[Pool, Visits]]:
    """Hold the device, and yield fresh workers and a watch over the GPU. SIGTERM ends it as Ctrl-C does."""
    uuid = system.probe_gpu().get("uuid") if device == "cuda" else None
    with device_lock(system.device_key(device)):
        visits = Visits(device, uuid)
        try:
            with stop_on_sigterm(), Pool() as pool:
                yield pool, visits
        finally:
            visits.close()
