"""Static input buffers: every random number that a phase consumes, allocated once and refilled in place.

One flat buffer of normals is filled by one kernel and sliced into latents and noise. The buffers are filled on the
device for timing, and loaded for parity checks. A captured graph sees both through the same addresses.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from stylegan_lite.config import Workload

_ALIGN = 64  # elements; keeps every slice on a 256-byte boundary


class Numbers(Protocol):
    """The random numbers of one phase, as the losses read them; `PhaseInputs` has the shapes."""

    @property
    def batch(self) -> int: ...

    @property
    def z(self) -> Tensor: ...

    @property
    def noise(self) -> list[Tensor]: ...

    @property
    def image_noise(self) -> Tensor | None: ...

    @property
    def uniform(self) -> Tensor: ...

    @property
    def layer_index(self) -> Tensor: ...


class PhaseInputs:
    """The inputs of one phase.

    Attributes:
        z: [2 N, z_dim], first and second latents.
        noise: one [N, 1, H, W] for each synthesis layer.
        image_noise: [N, 3, R, R], path length only.
        uniform: [2], style mixing's draws in [0, 1).
        normal: the flat buffer behind z, noise and image_noise.
        layer_index: [num_ws].
    """

    def __init__(
        self,
        workload: Workload,
        batch: int,
        noise_shapes: list[tuple[int, ...]],
        num_ws: int,
        *,
        device: str,
        dtype: torch.dtype,
        image_noise: bool = False,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        r = workload.resolution
        shapes = [(2 * batch, workload.z_dim), *noise_shapes] + ([(batch, 3, r, r)] if image_noise else [])
        sizes = [math.prod(shape) for shape in shapes]
        starts, total = [], 0
        for size in sizes:
            starts.append(total)
            total += -(-size // _ALIGN) * _ALIGN
        self.batch = batch
        self.normal = torch.zeros(total, device=device, dtype=dtype)
        self.uniform = torch.zeros(2, device=device, dtype=dtype)
        self.layer_index = torch.arange(num_ws, device=device)
        views = [
            self.normal[a : a + n].view(shape) for a, n, shape in zip(starts, sizes, shapes, strict=True)
        ]
        self.z, self.noise = views[0], views[1 : 1 + len(noise_shapes)]
        self.image_noise = None
        if image_noise:
            self.image_noise = views[-1]
            if memory_format is torch.channels_last:
                self.image_noise = views[-1].view(batch, r, r, 3).permute(0, 3, 1, 2)

    def fill(self) -> None:
        """Draw everything anew from the device's default generator. Asynchronous, two kernels."""
        self.normal.normal_()
        self.uniform.uniform_()

    def load(self, normal: Tensor, uniform: Tensor) -> None:
        """Copy given numbers in: flat ``normal`` and ``uniform`` of another instance of the same shapes."""
        self.normal.copy_(normal)
        self.uniform.copy_(uniform)
