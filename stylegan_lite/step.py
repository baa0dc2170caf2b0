"""The training step: the phases in their order, prepared, saved, and run eagerly or replayed as CUDA graphs.

A step is G_main, (G_pl every 4th), D_main, (D_r1 every 16th), the moving average of G, and one batch of images. A cycle
is 16 steps. Every call is asynchronous: the caller synchronizes before it reads a clock.

The phases are in `stylegan_lite.phases`, the warm-up and the capture of graphs in `stylegan_lite.preparing`, and the
contents of a checkpoint in `stylegan_lite.saving`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.common.arguments import check_numbers, check_tensors
from stylegan_lite import preparing, saving
from stylegan_lite.phases import CYCLE, PHASES, Phases
from stylegan_lite.settings import settings

__all__ = ["CYCLE", "PHASES", "TrainingStep"]


class TrainingStep(Phases):
    """A training step of one recipe. Made by :func:`stylegan_lite.make_step`."""

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
        """Run 16 steps from the start of a cycle. ``lazy=False`` leaves out path length and R1."""
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
    def sample(self, z: Tensor, truncation: float = 1.0) -> Tensor:
        """Return images of the averaged generator, [N, 3, R, R] float32, clamped to [-1, 1].

        Args:
            z: [N, z_dim], of a float dtype.
            truncation: 1 is none; towards 0, w moves to its running average (Karras et al. 2019, appendix B).

        Raises ValueError for other latents, and for a truncation that is no finite number.
        """
        check_tensors({"z": z})
        check_numbers(truncation=truncation)
        if z.dim() != 2 or z.shape[1] != self.workload.z_dim:
            raise ValueError(f"z must be [N, z_dim] = [N, {self.workload.z_dim}], got {tuple(z.shape)}")
        G = self.G_ema
        w = G.mapping.w_avg.lerp(G.mapping(z.to(device=self.device, dtype=self.dtype)), truncation)
        noise = [torch.zeros(s, device=self.device, dtype=self.dtype) for s in G.noise_shapes(len(z))]
        with self.amp():
            image = G(w[:, None].expand(-1, G.num_ws, -1), noise)
        return image.float().clamp(-1, 1)

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
        return settings(self.recipe, self.opt_G, self.workload.gamma)

    def close(self) -> None:
        """End data workers and free graphs."""
        self.feed.close()
        self.graphs.clear()
