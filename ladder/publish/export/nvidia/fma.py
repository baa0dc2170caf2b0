"""Multiply and add, a * b + c, as a drop-in for NVIDIA's `fma`.

StyleGAN2's layer multiplies an image by one number for each channel and adds noise. That is a fused op, whose backward
pass reads the image once. Every other combination of shapes is `torch.addcmul`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels import bias_act as _fused
from ladder.publish.export.dispatch import can_run_fused
from ladder.publish.export.nvidia.calls import is_capturing

_ones: dict[torch.device, Tensor] = {}


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Compute a * b + c with broadcasting. Differentiable twice."""
    if not _is_layer(a, b, c):
        return torch.addcmul(c, a, b)
    scale = b.reshape(b.shape[:2])
    y: Tensor = _fused(a, noise=c.detach(), strength=_one(a.device), scale=scale, act="linear")
    return _PassTo.apply(y, c) if c.requires_grad and torch.is_grad_enabled() else y


def _is_layer(a: Tensor, b: Tensor, c: Tensor) -> bool:
    """Return whether b scales the channels of an image a, and c adds one number to each pixel."""
    if a.dim() != 4 or not (a.dtype is b.dtype is c.dtype) or not (a.device == b.device == c.device):
        return False
    samples, channels, *size = a.shape
    fits = b.shape == (samples, channels, 1, 1) and c.shape in ((samples, 1, *size), (1, 1, *size))
    plain = torch.compiler.is_compiling() or torch.is_autocast_enabled(a.device.type)
    return fits and a.numel() > 0 and not plain and can_run_fused(a)


def _one(device: torch.device) -> Tensor:
    """Return the number 1. A capture may not keep the tensor that it makes."""
    if device in _ones:
        return _ones[device]
    made = torch.ones((), device=device)
    if not is_capturing():
        _ones[device] = made
    return made


class _PassTo(torch.autograd.Function):
    """The identity of y, whose gradient also goes to c: c was added to y, to all channels of a pixel."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, c: Tensor) -> Tensor:
        ctx.over = (1,) if len(c) == len(y) else (0, 1)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        return g, g.sum(ctx.over, keepdim=True) if ctx.needs_input_grad[1] else None
