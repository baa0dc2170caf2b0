"""The ops that are linear maps, resampling and convolution, as operators of PyTorch for torch.compile.

`kernels/compile/operators.py` says why eager calls do not come here. The gradient of each of these operators is again
one of them. So the operators need nothing beside themselves, and in eager mode can be differentiated to any order.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from kernels.common.tiles import dense_as
from kernels.linear.conv2d import Geometry, _as_is, _convolve, _correlate
from kernels.upfirdn.upfirdn2d import _Call
from kernels.upfirdn.upfirdn2d import forward as upfirdn2d_forward


def _format(nhwc: bool) -> torch.memory_format:
    return torch.channels_last if nhwc else torch.contiguous_format


# ---- upfirdn2d ---------------------------------------------------------------------------------------------------


@custom_op("stylegan_ladder::upfirdn2d", mutates_args=())
def upfirdn2d(
    x: Tensor, taps_y: list[float], taps_x: list[float], up: int, down: int,
    before: list[int], size: list[int], out: list[int], nhwc: bool,
) -> Tensor:  # fmt: skip
    """Apply the map that `_Call` writes down. Taps are part of the kernel, so each set of them is compiled once."""
    # Tuples, because a call is the key of a cache.
    call = _Call(tuple(taps_y), tuple(taps_x), up, down, tuple(before), tuple(size), tuple(out), nhwc)
    return upfirdn2d_forward(x, call)


@upfirdn2d.register_fake
def _(x, taps_y, taps_x, up, down, before, size, out, nhwc):
    return torch.empty((*x.shape[:2], *out), dtype=x.dtype, device=x.device, memory_format=_format(nhwc))


def _upfirdn2d_context(ctx, inputs, output):
    ctx.call = _Call(*inputs[1:])


def _upfirdn2d_gradient(ctx, g):
    g = dense_as(g, ctx.call.nhwc)
    return torch.ops.stylegan_ladder.upfirdn2d(g, *ctx.call.adjoint()), *(None,) * len(ctx.call)


upfirdn2d.register_autograd(_upfirdn2d_gradient, setup_context=_upfirdn2d_context)


# ---- convolution -------------------------------------------------------------------------------------------------


@custom_op("stylegan_ladder::convolution", mutates_args=())
def convolution(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], output_padding: list[int],
    transposed: bool, groups: int, nhwc: bool,
) -> Tensor:  # fmt: skip
    """Compute `conv2d` or, transposed, `conv_transpose2d`."""
    with _as_is(x):
        return _convolve(x, weight, Geometry(stride, padding, output_padding, transposed, groups, nhwc))


@convolution.register_fake
def _(x, weight, *arguments):
    geometry = Geometry(*arguments)
    channels = weight.shape[1] * geometry.groups if geometry.transposed else weight.shape[0]
    shape = x.shape[0], channels, *geometry.output(x.shape, weight.shape)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_format(geometry.nhwc))


@custom_op("stylegan_ladder::correlation", mutates_args=())
def correlation(
    g: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], output_padding: list[int],
    transposed: bool, groups: int, nhwc: bool,
) -> Tensor:  # fmt: skip
    """Compute the weight's gradient. Only shape and dtype of the weight count."""
    with _as_is(x):
        geometry = Geometry(stride, padding, output_padding, transposed, groups, nhwc)
        return _correlate(g, x, weight, geometry)


@correlation.register_fake
def _(g, x, weight, *arguments):
    return torch.empty_like(weight, memory_format=_format(Geometry(*arguments).nhwc))


def _convolution_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.geometry = Geometry(*inputs[2:])


def _convolution_gradient(ctx, g):
    x, weight = ctx.saved_tensors
    g, geometry, dx, dweight = dense_as(g, ctx.geometry.nhwc), ctx.geometry, None, None
    if ctx.needs_input_grad[0]:
        back = geometry.adjoint(x.shape, weight.shape)
        dx = torch.ops.stylegan_ladder.convolution(g, weight, *back)
    if ctx.needs_input_grad[1]:
        dweight = torch.ops.stylegan_ladder.correlation(g, x, weight.detach(), *geometry)
    return dx, dweight, *(None,) * len(geometry)


def _correlation_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.geometry = Geometry(*inputs[3:])


def _correlation_gradient(ctx, u):
    g, x = ctx.saved_tensors
    u, geometry, dg, dx = dense_as(u, ctx.geometry.nhwc), ctx.geometry, None, None
    if ctx.needs_input_grad[0]:
        dg = torch.ops.stylegan_ladder.convolution(x, u, *geometry)
    if ctx.needs_input_grad[1]:
        back = geometry.adjoint(x.shape, u.shape)
        dx = torch.ops.stylegan_ladder.convolution(g, u, *back)
    return dg, dx, None, *(None,) * len(geometry)


convolution.register_autograd(_convolution_gradient, setup_context=_convolution_context)
correlation.register_autograd(_correlation_gradient, setup_context=_correlation_context)
