"""The number of CPU threads that PyTorch uses while several processes work side by side.

Each process would start one thread a core, and threads that wait for each other spin. Six such processes are many
times slower side by side than one after the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def share_threads(processes: int) -> int | None:
    """Return the number of threads for each of several processes; None if one process has all cores."""
    from ladder.machine import system  # which a worker does without

    return max(1, system.usable_cores() // processes) if processes > 1 else None


# Idle OpenMP threads sleep at once: spinning after small CPU operations, they kept four to six cores busy. Every
# process that is timed has these, whatever the user set.
QUIET = {"GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def read_spinning() -> dict[str, str | None]:
    """Return how long idle threads of this process spin, for a rung's settings."""
    return {name.lower(): os.environ.get(name) for name in QUIET}


class Threads:
    """The CPU threads of this process. A process without torch has none to hold."""

    _own: int | None = None  # PyTorch's own number, while fewer are used

    def hold(self, number: int | None) -> None:
        """Use at most this number of threads (None: no change) until `release`."""
        torch = sys.modules.get("torch")
        if torch and number and number < torch.get_num_threads():
            self._own = self._own or torch.get_num_threads()
            torch.set_num_threads(number)

    def release(self) -> None:
        """Use as many threads as PyTorch chose, for a measurement."""
        if self._own:
            sys.modules["torch"].set_num_threads(self._own)
            self._own = None

    def released(self, ask: Callable[[], Any]) -> Any:
        """Return what `ask` returns with PyTorch's own number of threads, which the measured step will have."""
        held = sys.modules["torch"].get_num_threads() if self._own else None
        self.release()
        try:
            return ask()
        finally:
            self.hold(held)
