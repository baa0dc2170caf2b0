"""Multiply and add, a * b + c, as a drop-in for NVIDIA's `fma`.

StyleGAN2's layer multiplies an image by one number for each channel and adds noise. That is a fused op, whose backward
pass reads the image once. Every other combination of shapes is `torch.addcmul`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from kernels.common.arguments import remember
from kernels.common.tiles import dense, is_nhwc
from kernels.dispatch import can_run_fused
from kernels.pointwise.bias_act import Call, run_call
from ladder.publish.export.nvidia.shared import MOST, is_capturing

_calls: dict[Hashable, Call] = {}  # by the three tensors' shapes
_ones: dict[torch.device, Tensor] = {}


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Compute a * b + c with broadcasting. Differentiable twice."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(a.device.type):
        return torch.addcmul(c, a, b)
    shapes = (a.shape, a.stride(), b.shape, b.stride(), c.shape, c.stride())
    key = (*shapes, a.dtype, b.dtype, c.dtype, a.device, b.device, c.device)
    known = _calls.get(key)
    if known is not None:
        return _run(known, a, b, c)
    if not _is_layer(a, b, c):
        return torch.addcmul(c, a, b)
    inputs = (dense(a), b.contiguous(), c.contiguous())
    call = Call(1.0, 1.0, None, is_nhwc(inputs[0]), a.dtype)
    if all(x is y for x, y in zip((a, b, c), inputs, strict=True)):
        remember(_calls, key, call, MOST)
    return _run(call, *inputs)


def _run(call: Call, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    one = _ones.get(a.device)
    if one is None:
        one = torch.ones((), device=a.device)
        if not is_capturing():  # a capture may not keep the tensor that it makes
            _ones[a.device] = one
    y = run_call(call, a, None, c.detach(), one, b, a.dtype)
    return _AddedNoise.apply(y, c) if c.requires_grad and torch.is_grad_enabled() else y


class _AddedNoise(torch.autograd.Function):
    """The gradient of noise that y has in it already: one number for each pixel."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, noise: Tensor) -> Tensor:
        ctx.over = (1,) if len(noise) == len(y) else (0, 1)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g.sum(ctx.over, keepdim=True)


def _is_layer(a: Tensor, b: Tensor, c: Tensor) -> bool:
    """Return whether b scales the channels of an image a, and c adds one number to each pixel."""
    if a.dim() != 4 or not (a.dtype is b.dtype is c.dtype) or not (a.device == b.device == c.device):
        return False
    samples, channels, *size = a.shape
    fits = b.shape == (samples, channels, 1, 1) and c.shape in ((samples, 1, *size), (1, 1, *size))
    return fits and a.numel() > 0 and can_run_fused(a)
