"""Convolutions whose second derivatives are convolutions again, as a drop-in for NVIDIA's `conv2d_gradfix`.

PyTorch differentiates a convolution twice by a convolution with the whole image as its kernel, which is slow. R1 and
path length regularization need that derivative. Set `enabled` to True to use the fast one, as training loops do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.linear import conv2d as _ops
from ladder.publish.export.nvidia.calls import say_once

enabled = False  # False: PyTorch's own convolutions
weight_gradients_disabled = False  # read while a backward pass runs

Size = int | Sequence[int]


@contextlib.contextmanager
def no_weight_gradients(disable: bool = True) -> Iterator[None]:
    """Leave out the weight gradients in backward passes that run inside. With `disable` False it changes nothing."""
    global weight_gradients_disabled
    before = weight_gradients_disabled
    weight_gradients_disabled = before or disable
    try:
        yield
    finally:
        weight_gradients_disabled = before


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Compute `torch.nn.functional.conv2d`, differentiable to any order."""
    if not _should_use_custom_op(input):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    weight = _gated(weight)
    if not _is_served("conv2d", input, dilation):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    y = _ops.conv2d(input, weight, stride=_pair(stride), padding=_pair(padding), groups=groups)
    return _biased(y, bias)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Compute `torch.nn.functional.conv_transpose2d`, differentiable to any order."""
    plain = (stride, padding, output_padding, groups, dilation)
    if not _should_use_custom_op(input):
        return F.conv_transpose2d(input, weight, bias, *plain)
    weight = _gated(weight)
    if not _is_served("conv_transpose2d", input, dilation):
        return F.conv_transpose2d(input, weight, bias, *plain)
    sizes = {"stride": _pair(stride), "padding": _pair(padding), "output_padding": _pair(output_padding)}
    return _biased(_ops.conv_transpose2d(input, weight, **sizes, groups=groups), bias)


def _should_use_custom_op(input: Tensor) -> bool:
    """Return whether this module differentiates the convolution of this tensor. The compiler has its own."""
    return enabled and not torch.compiler.is_compiling()


def _is_served(function: str, input: Tensor, dilation: Size) -> bool:
    if _pair(dilation) != (1, 1):
        say_once(f"conv2d_gradfix.{function}", f"dilation {dilation}")
        return False
    return input.dim() == 4 and input.is_floating_point()


def _pair(value: Size) -> tuple[int, int]:
    """Return (along y, along x) of a size that may be one number for both."""
    if isinstance(value, int):
        return value, value
    first, *rest = (int(each) for each in value)
    return first, rest[0] if rest else first


def _biased(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, 1, 1)


def _gated(weight: Tensor) -> Tensor:
    """Return the weight, whose gradient `no_weight_gradients` can stop."""
    return _Gate.apply(weight) if weight.requires_grad and torch.is_grad_enabled() else weight


class _Gate(torch.autograd.Function):
    """The identity. Its gradient is left out while `weight_gradients_disabled` is set."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Tensor | None:
        return None if weight_gradients_disabled else g
