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
        whole: the inputs of the total batch, if several ranks share it; this rank takes its samples of them.
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
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.whole: PhaseInputs | None = None
        if ranks > 1:
            self.whole = PhaseInputs(
                workload, batch, noise_shapes, num_ws, device=device, dtype=dtype, image_noise=image_noise,
                memory_format=memory_format,
            )  # fmt: skip
            batch //= ranks
            noise_shapes = [(batch, *shape[1:]) for shape in noise_shapes]
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
        self._carve = lambda flat: _carved(flat, starts, shapes, image_noise, memory_format)
        self.z, self.noise, self.image_noise = self._carve(self.normal)
        if self.whole is not None:
            self.index = self._places(rank, ranks)

    def _places(self, rank: int, ranks: int) -> Tensor:
        """Return where in the total batch's flat buffer each number of this rank's buffer is, int64."""
        assert self.whole is not None
        index = torch.zeros_like(self.normal, dtype=torch.int64)
        mine = self._carve(index)
        theirs = self.whole._carve(torch.arange(self.whole.normal.numel(), device=index.device))
        n = self.whole.batch
        for half in range(2):
            mine[0].view(2, self.batch, -1)[half].copy_(theirs[0][half * n + rank : (half + 1) * n : ranks])
        for own, all_of_them in zip(mine[1], theirs[1], strict=True):
            own.copy_(all_of_them[rank::ranks])
        if mine[2] is not None and theirs[2] is not None:
            mine[2].copy_(theirs[2][rank::ranks])
        return index

    def fill(self) -> None:
        """Draw everything anew from the device's default generator. Asynchronous, two kernels.

        A rank draws the numbers of the total batch and takes its own, so all ranks' generators stay equal.
        """
        if self.whole is not None:
            self.whole.fill()
            self.load_share(self.whole)
            return
        self.normal.normal_()
        self.uniform.uniform_()

    def load_share(self, whole: PhaseInputs) -> None:
        """Take this rank's samples of the total batch's inputs."""
        torch.index_select(whole.normal, 0, self.index, out=self.normal)
        self.uniform.copy_(whole.uniform)

    def load(self, normal: Tensor, uniform: Tensor) -> None:
        """Copy given numbers in: flat ``normal`` and ``uniform`` of another instance of the same shapes."""
        self.normal.copy_(normal)
        self.uniform.copy_(uniform)


Views = tuple[Tensor, list[Tensor], "Tensor | None"]


def _carved(
    flat: Tensor,
    starts: list[int],
    shapes: list[tuple[int, ...]],
    image_noise: bool,
    memory_format: torch.memory_format,
) -> Views:
    """Return latents, noise and image noise as views of a flat buffer."""
    views = [flat[a : a + math.prod(shape)].view(shape) for a, shape in zip(starts, shapes, strict=True)]
    if not image_noise:
        return views[0], views[1:], None
    image = views[-1]
    if memory_format is torch.channels_last:
        n, c, h, w = image.shape
        image = image.view(n, h, w, c).permute(0, 3, 1, 2)
    return views[0], views[1:-1], image
