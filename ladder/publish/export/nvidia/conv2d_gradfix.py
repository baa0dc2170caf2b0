"""Convolutions whose second derivatives are convolutions again, as a drop-in for NVIDIA's `conv2d_gradfix`.

The import gives PyTorch's own convolutions that derivative (`fast_double_backward`), so networks that call those, as
R3GAN's do, have it too. What is left for these functions is to leave out weight gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.double_backward import fast_double_backward

enabled = False  # False: `no_weight_gradients` does nothing
weight_gradients_disabled = False  # read while a backward pass runs
use = fast_double_backward()  # `use.undo()` gives PyTorch its own formula back

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
    return F.conv2d(input, _pass_gate(weight), bias, stride, padding, dilation, groups)  # type: ignore[arg-type]


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
    weight = _pass_gate(weight)
    return F.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[arg-type]


def _should_use_custom_op(input: Tensor) -> bool:
    """Return whether weight gradients of this tensor's convolution can be left out. The compiler knows no gate."""
    return enabled and not torch.compiler.is_compiling()


def _pass_gate(weight: Tensor) -> Tensor:
    """Return the weight, behind a gate where it has a gradient."""
    is_gated = weight.requires_grad and torch.is_grad_enabled() and _should_use_custom_op(weight)
    return _Gate.apply(weight) if is_gated else weight  # type: ignore[no-any-return]


class _Gate(torch.autograd.Function):
    """The identity. Its gradient is left out while `weight_gradients_disabled` is set."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Tensor | None:
        return None if weight_gradients_disabled else g
