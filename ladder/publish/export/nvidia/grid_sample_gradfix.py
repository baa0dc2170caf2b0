"""Bilinear sampling whose gradient can be differentiated, as a drop-in for NVIDIA's `grid_sample_gradfix`.

PyTorch cannot differentiate the gradient of `grid_sample`, which gradient penalties of augmented images need. Sampling
is linear in the image: its gradient puts values back where they were taken from, and the gradient of that samples
again. So two Functions that call each other give derivatives by the image of any order. The grid has a first gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

enabled = False  # False: PyTorch's own function


def grid_sample(input: Tensor, grid: Tensor) -> Tensor:
    """Sample an image [N, C, H, W] at the positions of a grid [N, H', W', 2], bilinearly, with zeros around the image.

    Positions count from -1 to 1, from border to border (`align_corners=False`). Returns [N, C, H', W'].
    """
    if not _should_use_custom_op():
        return _sample(input, grid)
    if input.dim() != 4 or grid.dim() != 4:
        raise ValueError(f"need input [N, C, H, W] and grid, got {list(input.shape)} and {list(grid.shape)}")
    result: Tensor = _Sample.apply(input, grid)
    return result


def _should_use_custom_op() -> bool:
    """Return whether this module differentiates the sampling. The compiler has its own."""
    return enabled and not torch.compiler.is_compiling()


def _sample(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _differentiate(g: Tensor, x: Tensor, grid: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor]:
    """Return the gradients by x and by the grid that the mask names."""
    return torch.ops.aten.grid_sampler_2d_backward(g, x, grid, 0, 0, False, mask)  # type: ignore[no-any-return]


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Tensor) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, grid)
        ctx.size = x.shape
        return _sample(x, grid)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, grid = ctx.saved_tensors
        needs_x, needs_grid = ctx.needs_input_grad
        dx = _PutBack.apply(g, grid, ctx.size) if needs_x else None
        return dx, _differentiate(g, x, grid, [False, True])[1] if needs_grid else None


class _PutBack(torch.autograd.Function):
    """The gradient of `_Sample` by an image of this size."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, grid: Tensor, size: torch.Size) -> Tensor:
        ctx.save_for_backward(grid)
        return _differentiate(g, g.new_zeros(()).expand(size), grid, [True, False])[0]

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, None, None]:
        (grid,) = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            raise RuntimeError("grid_sample_gradfix: the second derivative by the grid is not implemented")
        return _Sample.apply(u, grid) if ctx.needs_input_grad[0] else None, None, None
