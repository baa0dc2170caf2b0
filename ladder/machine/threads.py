"""How many CPU threads PyTorch computes with, where several processes work side by side.

Each process would start one thread a core, and threads that wait for each other spin: six such processes are many times
slower side by side than one after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def share(processes: int) -> int | None:
    """Threads for each of several processes at work; None where one has all cores."""
    from ladder.machine import system  # which a worker does without

    return max(1, system.usable_cores() // processes) if processes > 1 else None


class Threads:
    """Those of this process. What never imported torch has none to hold."""

    def __init__(self) -> None:
        self._own: int | None = None  # as many as PyTorch chose, while it is held to fewer

    def hold(self, number: int | None) -> None:
        """Compute with no more than this until `release`. None: as it is."""
        torch = sys.modules.get("torch")
        if torch and number and number < torch.get_num_threads():
            self._own = self._own or torch.get_num_threads()
            torch.set_num_threads(number)

    def release(self) -> None:
        """As many as PyTorch chose, for what is measured."""
        if self._own:
            sys.modules["torch"].set_num_threads(self._own)
            self._own = None

    def released(self, ask: Callable[[], Any]) -> Any:
        """What `ask` says with as many as PyTorch chose, in which the step will be measured."""
        held = sys.modules["torch"].get_num_threads() if self._own else None
        self.release()
        try:
            return ask()
        finally:
            self.hold(held)
