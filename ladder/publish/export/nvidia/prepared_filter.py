"""The fused filter of `upfirdn2d` for images of one shape, for a loop that waits for the CPU.

It is `kernels/upfirdn/upfirdn2d.py` with its numbers found once for each shape. The kernel is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.common.tiles import dense_as
from kernels.upfirdn.upfirdn2d import _Call, _cover, upfirdn2d_kernel
from ladder.publish.export.nvidia.launches import Launch


class Filtering:
    """One map of images [N, C, H, W] of one shape and dtype, which are dense in the call's memory format."""

    def __init__(self, call: _Call, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.call, self.dtype, self.device = call, dtype, device
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        cover = _cover(shape, call, dtype, capability)
        constants = {**cover.constants, "DEPENDENT": False}
        self.launch = Launch(upfirdn2d_kernel, cover.grid, cover.arguments, constants)
        (samples, channels), (height, width) = shape[:2], call.out
        self.shape = torch.Size((samples, channels, height, width))
        pixels = height * width
        strides = (1, width * channels, channels) if call.nhwc else (pixels, width, 1)
        self.strides = (channels * pixels, *strides)
        self._adjoint: Filtering | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = x.new_empty_strided(self.shape, self.strides)
        self.launch(x, y, None)
        return y

    def adjoint(self) -> Filtering:
        """Return the map of the gradient, whose own gradient is this map again."""
        if self._adjoint is None:
            self._adjoint = Filtering(self.call.adjoint(), self.shape, self.dtype, self.device)
        return self._adjoint


def run(prepared: Filtering, x: Tensor) -> Tensor:
    """Compute y, differentiable to any order. A call that nothing differentiates leaves autograd out."""
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Filter.apply(x, prepared)
        return y
    return prepared.forward(x)


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, prepared: Filtering) -> Tensor:
        ctx.prepared = prepared
        ctx.set_materialize_grads(False)
        return prepared.forward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, None]:
        if g is None:
            return None, None
        prepared = ctx.prepared
        return run(prepared.adjoint(), dense_as(g, prepared.call.nhwc)), None
