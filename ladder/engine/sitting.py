"""A sitting of a study of many looks: the locks and processes that it holds, and how long it still takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ladder.base import starting
from ladder.base.errors import EnvironmentFailure
from ladder.base.locks import device_lock
from ladder.base.stopping import stop_on_sigterm
from ladder.engine.pool import Pool
from ladder.engine.visit import Visits
from ladder.machine import system


class TimeUp(KeyboardInterrupt):
    """The end of the minutes that the user allowed."""


@contextlib.contextmanager
def opened(device: str) -> Iterator[tuple[Pool, Visits]]:
    """Hold the device, and yield fresh workers and a watch over the GPU. SIGTERM ends it as Ctrl-C does."""
    uuid = system.probe().get("uuid") if device == "cuda" else None
    with device_lock(system.device_key(device)):
        visits = Visits(device, uuid)
        try:
            with stop_on_sigterm(), Pool() as pool:
                yield pool, visits
        finally:
            visits.close()


@contextlib.contextmanager
def kept(paths: Sequence[Path]) -> Iterator[None]:
    """Say where the finished part is if the system fails. The files are those that are written when it fails."""
    try:
        yield
    except EnvironmentFailure as failure:
        file = next((path for path in paths if path.suffix == ".json"), None)
        if file is None:
            raise
        said = f"{failure}; what was finished is kept: go on with --resume {starting.near(file)}"
        raise EnvironmentFailure(said) from failure


@dataclass
class Pace:
    """The measurements that are done, of how many, and since when."""

    total: int
    minutes: float | None = None
    done: int = 0
    begin: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def step(self) -> str:
        """Count a measurement. Return how many are done, and how many minutes the others take at this pace."""
        self.done += 1
        left = max(0.0, (self.total - self.done) * self.seconds / self.done / 60)
        return f"{self.done} of {max(self.total, self.done)}, about {left:.0f} min left"

    def check(self) -> None:
        """Raise `TimeUp` if the user's minutes are over and something is left to do."""
        if self.minutes is not None and self.seconds > 60 * self.minutes and self.done < self.total:
            raise TimeUp
