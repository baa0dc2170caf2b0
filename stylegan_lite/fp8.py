"""A matrix product in FP8, the only operation that PyTorch computes in FP8: forward of the fully connected layers.

E4M3 has 4 bits of mantissa with the hidden bit and reaches 448. Each operand is divided by a scale of its own, so that
its largest element becomes 448 (Micikevicius et al. 2022, arXiv:2209.05433). The product is accumulated in FP32 and
multiplied by both scales. Gradients are products in full precision of the original operands, so they can be
differentiated again.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
MULTIPLE = 16  # a divisor of inputs and outputs, as torch._scaled_mm demands


def fits(inputs: int, outputs: int) -> bool:
    """Return whether a layer of this size can be computed in FP8."""
    return inputs % MULTIPLE == 0 and outputs % MULTIPLE == 0


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Compute x [N, I] @ weight [O, I] transposed, both rounded to FP8. Returns float32 [N, O].
    float64 is left alone.
    """
    if x.dtype == torch.float64:
        return x @ weight.t()
    return _Linear.apply(x, weight)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        if not len(x):
            return x.new_empty(0, len(weight))
        (a, scale_a), (b, scale_b) = quantized(x), quantized(weight)
        return torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x / scale in FP8, row-major; scale []) without waiting for the device. Zeros stay zeros."""
    scale = x.abs().amax().float().clamp(min=1e-12) / LARGEST
    return (x / scale).clamp(-LARGEST, LARGEST).to(FP8).contiguous(), scale
