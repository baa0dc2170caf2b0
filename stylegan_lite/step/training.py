"""The training step: the phases in their order, prepared, saved, and run eagerly or replayed as CUDA graphs.

A step is one batch of data, the pair's phases that are due, and the moving averages. A cycle is 16 steps. Every call is
asynchronous: the caller synchronizes before it reads a clock.

The phases are in `stylegan_lite.step.phases`, the warm-up and the capture of graphs in `stylegan_lite.step.preparing`,
and the contents of a checkpoint in `stylegan_lite.step.saving`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stylegan_lite.step import preparing, saving
from stylegan_lite.step.pair import CYCLE
from stylegan_lite.step.phases import Phases
from stylegan_lite.step.settings import settings


class TrainingStep(Phases):
    """A training step of one pair and recipe. Made by :func:`stylegan_lite.make_step`."""

    def prepare(self) -> dict[str, float]:
        """Warm up every phase and capture the graphs. Weights, optimizers and random state are left as they were.

        Returns seconds of warm-up and of capture, synchronized. If the recipe asks for it, also seconds of caching
        images and of compiling, which comes before the warm-up. If Triton kernels were missing in its cache, also the
        seconds of compiling them ahead, and the numbers of missing and of compiled kernels.
        """
        return preparing.prepare(self)

    def stop_keeping(self) -> None:
        """Stop holding gradients, as a timed step holds none. Graphs that copy them are captured
        anew, without the copies.
        """
        self.keep_gradients, self.gradients = False, {}
        preparing.capture_again(self)

    def cycle(self, lazy: bool = True) -> None:
        """Run 16 steps from the start of a cycle. ``lazy=False`` leaves out the phases that are not of every step."""
        for index in range(CYCLE):
            self._step(index, lazy)

    def step(self, lazy: bool = True) -> None:
        """Run the next step by our own count."""
        self._step(self.count, lazy)

    def _step(self, index: int, lazy: bool) -> None:
        self.feed.next()
        self.updating = True
        self.run(self.phases(index, lazy))
        self.count, self.updating = self.count + 1, False
        self.feed.prefetch()

    @torch.no_grad()
    def sample(self, inputs: Any) -> Tensor:
        """Return what the pair draws with its averaged networks (those without an average as they are)."""
        return self.pair.sample({**self.networks, **self.averages}, inputs)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training from here depends on, as tensors and plain data only."""
        return saving.state_dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, in place: captured graphs keep their addresses.

        Raises ValueError for what is no state of this workload, before anything is loaded.
        """
        saving.refuse_other(self, state)
        if not self.prepared:
            self.prepare()
        saving.load_state_dict(self, state)

    # The ladder loads states of other steps with this function, in older commits too.
    _load_optimizer = staticmethod(saving.load_optimizer)

    @property
    def data_capacity(self) -> int:
        """Return the batches that workers, pinning and prefetch may hold ready."""
        return self.feed.capacity

    def settings(self) -> dict[str, Any]:
        """Return PyTorch's defaults in force and the optimizers' settings, as plain data."""
        first = next(iter(self.optimizers.values()))
        return settings(self.recipe, first, self.hooks.settings)

    def close(self) -> None:
        """End data workers and free graphs."""
        self.feed.close()
        self.graphs.clear()
