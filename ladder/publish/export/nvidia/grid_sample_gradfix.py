"""Samples of an image that can be differentiated again and again, as a drop-in for NVIDIA's `grid_sample_gradfix`.

R1 of augmented images needs that; PyTorch differentiates them once. NVIDIA's file imports `pkg_resources`, which
setuptools no longer has. Bilinear samples with zeros outside of the image are linear in it, so each derivative is the
map or its adjoint. Set `enabled` to True to use it, as training loops do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

enabled = False  # False: PyTorch's own samples


def grid_sample(input: Tensor, grid: Tensor) -> Tensor:
    """Return bilinear samples [N, C, h, w] of images [N, C, H, W] at places [N, h, w, 2] between -1 and 1.

    With `enabled`, the images alone are differentiated, to any order.
    """
    if enabled and not grid.requires_grad:
        sampled: Tensor = _Sample.apply(input, grid)
        return sampled
    return F.grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, grid: Tensor) -> Tensor:
        ctx.save_for_backward(grid)
        ctx.shape = input.shape
        return F.grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (grid,) = ctx.saved_tensors
        return _Adjoint.apply(g, grid, ctx.shape), None


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, grid: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(grid)
        image = g.new_empty(shape)  # whose values do not matter
        backward = torch.ops.aten.grid_sampler_2d_backward
        return backward(g, image, grid, 0, 0, False, [True, False])[0]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (grid,) = ctx.saved_tensors
        return _Sample.apply(g, grid), None, None
