"""Convolutions whose second derivatives are convolutions again, as a drop-in for NVIDIA's `conv2d_gradfix`.

PyTorch differentiates a convolution twice by a convolution with the whole image as its kernel, which is slow. R1 and
path length regularization need that derivative. Set `enabled` to True to use the fast one, as training loops do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.common.tiles import dense, output_dtype
from kernels.linear import conv2d as _ops
from ladder.publish.export.nvidia.calls import say_once
from ladder.publish.export.nvidia.launches import is_wanted, remember

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
    if not _is_served("conv2d", input, dilation):
        return F.conv2d(input, _gated(weight), bias, stride, padding, dilation, groups)
    return _biased(_convolve(input, weight, False, stride, padding, 0, groups), bias)


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
    if not _should_use_custom_op(input):
        return F.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)
    if not _is_served("conv_transpose2d", input, dilation):
        return F.conv_transpose2d(
            input, _gated(weight), bias, stride, padding, output_padding, groups, dilation
        )
    return _biased(_convolve(input, weight, True, stride, padding, output_padding, groups), bias)


def _should_use_custom_op(input: Tensor) -> bool:
    """Return whether this module differentiates the convolution of this tensor. The compiler has its own."""
    return enabled and not torch.compiler.is_compiling()


def _is_served(function: str, input: Tensor, dilation: Size) -> bool:
    if dilation != 1 and _pair(dilation) != (1, 1):
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


# ---- convolutions, by what their shapes decide -------------------------------------------------------------------


class Site:
    """A convolution of an image and a weight of one shape and memory format."""

    def __init__(self, geometry: _ops.Geometry, size: torch.Size, kernel: torch.Size) -> None:
        self.geometry, self.size, self.kernel = geometry, size, kernel
        self.arguments = geometry.arguments()
        self.format = torch.channels_last if geometry.nhwc else torch.contiguous_format
        self._adjoint: Site | None = None

    def adjoint(self) -> Site:
        """Return the convolution that takes the gradient of the result to that of the image."""
        if self._adjoint is None:
            shape = torch.Size((*self.size[:2], *self.geometry.output(self.size, self.kernel)))
            self._adjoint = Site(self.geometry.adjoint(self.size, self.kernel), shape, self.kernel)
        return self._adjoint

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.convolution(x, weight, None, *self.arguments).contiguous(memory_format=self.format)


_sites: dict[Hashable, Site] = {}  # by shapes and arguments


def _convolve(
    x: Tensor,
    weight: Tensor,
    transposed: bool,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):
        x, weight = x.to(output_dtype(x)), weight.to(output_dtype(weight))
    sizes = (transposed, _pair(stride), _pair(padding), _pair(output_padding), groups)
    key = (x.shape, x.stride(), weight.shape, weight.stride(), *sizes)
    site = _sites.get(key)
    if site is None or x.dtype is not weight.dtype:
        x, site = _checked(x, weight, sizes, key)
    # A copy to another layout stands here, where autograd sees it.
    weight = weight.contiguous(memory_format=site.format)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y: Tensor = _Convolution.apply(x, weight, site)
        return y
    return site.convolve(x, weight)


def _checked(x: Tensor, weight: Tensor, sizes: tuple[Any, ...], key: Hashable) -> tuple[Tensor, Site]:
    """Return x dense in memory, and what its shape decides. Raises ValueError for what does not fit."""
    transposed, stride, padding, output_padding, groups = sizes
    geometry = _ops.Geometry(stride, padding, output_padding, transposed, groups)
    problem = _ops._problem(x, weight, geometry)
    if problem is None and x.dtype is not weight.dtype:
        problem = f"x and weight need one dtype, got {x.dtype} and {weight.dtype}"
    if problem:
        raise ValueError(f"{'conv_transpose2d' if transposed else 'conv2d'}: {problem}")
    packed = dense(x)
    nhwc = _ops._is_nhwc(packed, dense(weight))
    site = Site(geometry._replace(nhwc=nhwc), x.shape, weight.shape)
    if packed is x:
        remember(_sites, key, site)
    return packed, site


class _Convolution(torch.autograd.Function):
    """A convolution whose derivatives are convolutions. A backward pass that nothing differentiates is one call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, site: Site) -> Tensor:
        # Only the gradient of the weight reads x, which is not kept alive for nothing.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.site = site
        ctx.set_materialize_grads(False)
        return site.convolve(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        needs_weight = needs_weight and not weight_gradients_disabled and is_wanted(ctx, 1)
        if g is None or not (needs_x or needs_weight):
            return None, None, None
        x, weight = ctx.saved_tensors
        with _ops._as_is(g):
            g = g.contiguous(memory_format=ctx.site.format)
            if torch.is_grad_enabled():
                return *_differentiable(g, x, weight, ctx.site, needs_x, needs_weight), None
            if not needs_weight:
                return ctx.site.adjoint().convolve(g, weight), None, None
            mask = [needs_x, True, False]
            found = torch.ops.aten.convolution_backward.default(g, x, weight, None, *ctx.site.arguments, mask)
            return found[0], found[1], None


def _differentiable(
    g: Tensor, x: Tensor | None, weight: Tensor, site: Site, needs_x: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    dx = _Convolution.apply(g, weight, site.adjoint()) if needs_x else None
    if not needs_weight:
        return dx, None
    return dx, _ops._WeightGradient.apply(g, x, weight.detach(), site.geometry)
