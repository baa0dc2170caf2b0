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

from kernels.common.tiles import dense, output_dtype, without_autocast
from kernels.double_backward import fast_double_backward as fast_double_backward
from kernels.linear import conv2d as _ops
from ladder.publish.export.nvidia.prepared import is_needed, remember, warn_once

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
    return _convolve(input, weight, bias, (False, stride, padding, 0, dilation, groups))


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
    return _convolve(input, weight, bias, (True, stride, padding, output_padding, dilation, groups))


def _should_use_custom_op(input: Tensor) -> bool:
    """Return whether this module differentiates the convolution of this tensor. The compiler has its own."""
    return enabled and not torch.compiler.is_compiling()


class Site:
    """A convolution of images and weights of one size and memory format."""

    def __init__(self, geometry: _ops.Geometry, size: torch.Size, kernel: torch.Size, kind: str) -> None:
        self.geometry, self.size, self.kernel, self.kind = geometry, size, kernel, kind
        self.arguments = geometry.arguments()
        self.format = torch.channels_last if geometry.nhwc else torch.contiguous_format
        self._adjoint: Site | None = None

    def adjoint(self) -> Site:
        """Return the convolution that takes the gradient of the result to that of the image."""
        if self._adjoint is None:
            size = torch.Size(self.geometry.output(self.size, self.kernel))
            geometry = self.geometry.adjoint(self.size, self.kernel)
            self._adjoint = Site(geometry, size, self.kernel, self.kind)
        return self._adjoint

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.convolution(x, weight, None, *self.arguments).contiguous(memory_format=self.format)


_sites: dict[Hashable, Site] = {}  # by shapes and arguments


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[Any, ...]) -> Tensor:
    """Compute the convolution with these sizes: transposed, stride, padding, output padding, dilation, groups."""
    if not _should_use_custom_op(x):
        return _call_pytorch(x, weight, bias, sizes)
    key = (x.shape, x.stride(), x.dtype, x.device, weight.shape, weight.stride(), weight.dtype, sizes)
    try:
        site = _sites.get(key)
    except TypeError:  # a list among the sizes
        return _convolve(x, weight, bias, tuple(tuple(e) if isinstance(e, Sequence) else e for e in sizes))
    if site is None or torch.is_autocast_enabled(site.kind):
        transposed, stride, padding, output_padding, dilation, groups = sizes
        name = "conv_transpose2d" if transposed else "conv2d"
        is_dilated = _ops._pair(dilation) not in ((1,), (1, 1))
        if x.dim() != 4 or not x.is_floating_point() or is_dilated:
            if is_dilated:
                warn_once(f"conv2d_gradfix.{name}", f"dilation {dilation}")
            gated = _Gate.apply(weight) if weight.requires_grad and torch.is_grad_enabled() else weight
            return _call_pytorch(x, gated, bias, sizes)
        # Both in autocast's dtype, and x dense in memory.
        given, dtypes = x, f"x and weight need one dtype, got {x.dtype} and {weight.dtype}"
        x, weight = x.to(output_dtype(x)), weight.to(output_dtype(weight))
        steps, border, more = ((size * 2)[:2] for size in map(_ops._pair, (stride, padding, output_padding)))
        geometry = _ops.Geometry(steps, border, more, transposed, groups)
        problem = _ops._problem(x, weight, geometry) or (dtypes if x.dtype is not weight.dtype else None)
        if problem:
            raise ValueError(f"{name}: {problem}")
        x = dense(x)
        geometry = geometry._replace(nhwc=_ops._is_nhwc(x, dense(weight)))
        site = Site(geometry, x.shape, weight.shape, x.device.type)
        if x is given:
            remember(_sites, key, site)
    # A copy to another layout stands here, where autograd sees it.
    weight = weight.contiguous(memory_format=site.format)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y: Tensor = _Convolution.apply(x, weight, site)
    else:
        y = site.convolve(x, weight)
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, 1, 1)


def _call_pytorch(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[Any, ...]) -> Tensor:
    """Compute the convolution as PyTorch differentiates it."""
    transposed, stride, padding, output_padding, dilation, groups = sizes
    if transposed:
        return F.conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


class _Gate(torch.autograd.Function):
    """The identity. Its gradient is left out while `weight_gradients_disabled` is set."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Tensor | None:
        return None if weight_gradients_disabled else g


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
        needs_weight = needs_weight and not weight_gradients_disabled and is_needed(ctx, 1)
        if g is None or not (needs_x or needs_weight):
            return None, None, None
        (x, weight), site = ctx.saved_tensors, ctx.site
        dx = dweight = None
        with without_autocast(g):  # It computes in the dtypes of its forward pass.
            g = g.contiguous(memory_format=site.format)
            if torch.is_grad_enabled():
                dx = _Convolution.apply(g, weight, site.adjoint()) if needs_x else None
                if needs_weight:
                    dweight = _ops._WeightGradient.apply(g, x, weight.detach(), site.geometry)
            elif not needs_weight:
                dx = site.adjoint().convolve(g, weight)
            else:
                gradients = torch.ops.aten.convolution_backward.default
                mask = [needs_x, True, False]
                dx, dweight, _ = gradients(g, x, weight, None, *site.arguments, mask)
                dx = dx.contiguous(memory_format=site.format) if needs_x else None
                dweight = dweight.contiguous(memory_format=site.format)
        return dx, dweight, None
