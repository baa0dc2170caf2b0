"""2-D convolutions whose gradients are convolutions again, to any order.

PyTorch's convolution has a fast backward and a slow second one. It differentiates the weight gradient by convolving
with the whole image as a kernel, and cuDNN has no good algorithm for that. But y = conv(x, w) is linear in x and in w.
So all derivatives are among three kinds of operation, and training runs each of them anyway:

- dx = adjoint(g, w) is the transposed convolution (of a transposed one: the convolution).
- dw = correlate(g, x) is the weight gradient.
- <dw, u> = <g, conv(x, u)> = <adjoint(g, u), x>. So the derivatives of dw along u are conv(x, u) and adjoint(g, u).

Two Functions that call each other suffice. cuDNN (on a CPU: oneDNN) computes everything but one kind: 3x3 convolutions
in groups of 8, 16 or 32 channels, in 16 bits and channels_last memory, are kernels of ours (`grouped.py`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.arguments import ANY_WHOLE, check_tensors, is_number, listed
from ..common.needed import needed
from ..common.operators import OPERATORS, operator
from ..common.tiles import dense, dense_as, output_dtype, without_autocast
from . import grouped
from .weight_gradients import defer

Pair = tuple[int, int]


class Geometry(NamedTuple):
    """The way a convolution slides, and the memory format of all its tensors.

    Weights are [O, I / groups, k, l], or [I, O / groups, k, l] if transposed.
    """

    stride: Pair
    padding: Pair
    output_padding: Pair
    transposed: bool
    groups: int
    nhwc: bool = False

    def is_ours(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether a kernel of ours computes this convolution of x, as `grouped.py` does."""
        slides = (*self.stride, *self.padding, *self.output_padding) == (1, 1, 1, 1, 0, 0)
        return self.nhwc and slides and grouped.serves(x, weight, self.groups)

    def arguments(self) -> tuple:
        """Return the arguments for `aten.convolution`, with dilation 1."""
        return self.stride, self.padding, (1, 1), self.transposed, self.output_padding, self.groups

    def output(self, size: torch.Size, kernel: torch.Size) -> Pair:
        """Return height and width of the result for this image and this kernel."""
        if self.transposed:
            terms = zip(size[-2:], kernel[-2:], self.stride, self.padding, self.output_padding, strict=True)
            return tuple((n - 1) * s - 2 * p + k + more for n, k, s, p, more in terms)
        terms = zip(size[-2:], kernel[-2:], self.stride, self.padding, strict=True)
        return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in terms)

    def adjoint(self, size: torch.Size, kernel: torch.Size) -> "Geometry":
        """Return the geometry that takes the gradient of y to the gradient of x, for an x of this size.

        A strided convolution may ignore the last rows of x. Output padding brings them back, with gradient zero.
        """
        back = self._replace(output_padding=(0, 0), transposed=not self.transposed)
        if self.transposed:
            return back
        short = back.output(self.output(size, kernel), kernel)
        return back._replace(output_padding=tuple(n - m for n, m in zip(size[-2:], short, strict=True)))


def conv2d(
    x: Tensor, weight: Tensor, *, stride: int | Pair = 1, padding: int | Pair = 0, groups: int = 1
) -> Tensor:
    """Compute `F.conv2d` without bias and dilation. Differentiable to any order at the price of convolutions.

    Args:
        x: [N, I, H, W], float16, bfloat16, float32 or float64.
        weight: [O, I / groups, k, l] of the same dtype.

    Returns:
        [N, O, H', W'] in x.dtype (autocast's dtype under autocast), channels_last if x is, as are all gradients of x.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit; one line.
    """
    return _apply("conv2d", x, weight, _geometry(False, stride, padding, 0, groups))


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    *,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    output_padding: int | Pair = 0,
    groups: int = 1,
) -> Tensor:
    """Compute `F.conv_transpose2d` without bias and dilation; see `conv2d`.

    Args:
        x: [N, I, H, W].
        weight: [I, O / groups, k, l].
        output_padding: smaller than the stride.
    """
    return _apply("conv_transpose2d", x, weight, _geometry(True, stride, padding, output_padding, groups))


_plain = F.conv2d


def conv2d_if_grouped(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: str | int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Compute `F.conv2d`: where a kernel of ours computes it as `conv2d` does, else as PyTorch does.

    It can stand in the place of `torch.nn.functional.conv2d`, which all modules call.
    """
    numbers = (_pair(each) for each in (stride, 1 if padding == "same" else padding, dilation))
    if groups > 1 and input.dim() == 4 and all(each == (1, 1) for each in numbers):
        nhwc = input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous()
        if nhwc and grouped.serves(input, weight, groups, output_dtype(input)):
            if bias is None or torch.compiler.is_compiling():
                y = conv2d(input, weight, padding=1, groups=groups)
                return y if bias is None else y + bias.to(y.dtype)[:, None, None]
            geometry = _geometry(False, 1, 1, 0, groups)._replace(nhwc=True)
            dtype = _check("conv2d", input, weight, geometry)
            return _Biased.apply(input.to(dtype), dense_as(weight.to(dtype), True), bias, geometry)
    return _plain(input, weight, bias, stride, padding, dilation, groups)


def conv2d_reference(x: Tensor, weight: Tensor, **geometry) -> Tensor:
    """Compute `conv2d` as PyTorch differentiates it."""
    _check("conv2d", x, weight, _geometry(False, **geometry))
    return F.conv2d(x, weight, **geometry)


def conv_transpose2d_reference(x: Tensor, weight: Tensor, **geometry) -> Tensor:
    """Compute `conv_transpose2d` as PyTorch differentiates it."""
    _check("conv_transpose2d", x, weight, _geometry(True, **geometry))
    return F.conv_transpose2d(x, weight, **geometry)


def bytes_moved(x: Tensor, weight: Tensor, y: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: x and w in, y out; backward: dy, x and w in, dx and dw out."""
    return (2 if backward else 1) * (x.nbytes + weight.nbytes) + y.nbytes


# ---- checks ------------------------------------------------------------------------------------------------------


def _pair(value: int | Pair) -> Pair:
    found = listed(value)
    return (value, value) if found is None else tuple(found)


def _apply(op: str, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Check the arguments, bring them to one dtype and layout, and compute the differentiable convolution."""
    dtype = _check(op, x, weight, geometry)
    # Casts and copies to another layout belong out here, where autograd sees them. The second derivative does not see
    # tensors that a Function makes and saves. A weight in x's layout spares cuDNN the conversion in every call.
    x, weight = dense(x.to(dtype)), dense(weight.to(dtype))
    nhwc = _is_nhwc(x, weight)
    weight, geometry = dense_as(weight, nhwc), geometry._replace(nhwc=nhwc)
    if torch.compiler.is_compiling():
        if geometry.is_ours(x, weight):
            return OPERATORS.convolution(x, weight, *geometry)
        # Compiled code is differentiated once: PyTorch's own convolution, which the compiler knows, will do.
        return torch.ops.aten.convolution(x, weight, None, *geometry.arguments())
    return _Convolution.apply(x, weight, geometry)


def _is_nhwc(x: Tensor, weight: Tensor) -> bool:
    """Return whether x is channels_last. An x that fits both formats (one channel, one pixel) takes
    the weight's format.
    """
    either = x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return not (weight if either else x).is_contiguous()


def _geometry(transposed, stride=1, padding=0, output_padding=0, groups=1) -> Geometry:
    return Geometry(_pair(stride), _pair(padding), _pair(output_padding), transposed, groups)


def _check(op: str, x: Tensor, weight: Tensor, geometry: Geometry) -> torch.dtype:
    """Raise ValueError for what does not fit, else return the result's dtype."""
    check_tensors({"x": x, "weight": weight})
    if problem := _problem(x, weight, geometry):
        raise ValueError(f"{op}: {problem}")
    dtype, wide = output_dtype(x), output_dtype(weight)
    if dtype is not wide:
        raise ValueError(f"{op}: x and weight need one dtype, got {x.dtype} and {weight.dtype}")
    return dtype


def _problem(x: Tensor, weight: Tensor, geometry: Geometry) -> str | None:
    shapes = f"x {list(x.shape)} and weight {list(weight.shape)}"
    if x.dim() != 4 or weight.dim() != 4:
        return f"need x [N, I, H, W] and a weight of 4 dimensions, got {shapes}"
    stride, padding, more, transposed, groups, _ = geometry
    numbers = (*stride, *padding, *more, groups)
    are_pairs = len(stride) == len(padding) == len(more) == 2
    if not (are_pairs and all(is_number(n, ANY_WHOLE) for n in numbers)):
        said = f"got {stride}, {padding}, {more} and groups={groups!r}"
        return f"stride, padding and output_padding are a number or a pair, all and groups integers, {said}"
    if min(stride) < 1 or min(padding) < 0 or groups < 1:
        return f"need stride >= 1, padding >= 0, groups >= 1, got {stride}, {padding}, {groups}"
    if min(more) < 0 or any(a >= s for a, s in zip(more, stride, strict=True)):
        return f"output_padding must be smaller than the stride {stride}, got {more}"
    if min(weight.shape[0], *weight.shape[2:]) < 1:
        return f"the weight is empty: {shapes}"
    inputs = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] != inputs or weight.shape[0] % groups:
        return f"channels do not fit for groups={groups}: {shapes}"
    if min(geometry.output(x.shape, weight.shape)) < 1:
        return f"nothing is left of the image: {shapes}, stride {stride}, padding {padding}"
    return None


# ---- autograd ----------------------------------------------------------------------------------------------------


def _convolve(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    if geometry.is_ours(x, weight):
        return grouped.convolve(x, weight, adjoint=geometry.transposed)
    y = torch.ops.aten.convolution(x, weight, None, *geometry.arguments())
    return dense_as(y, geometry.nhwc)


def _correlate(g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Compute the gradient of ``weight``. Only shape, dtype and layout of ``weight`` are read."""
    if geometry.is_ours(x, weight):
        return grouped.correlate(*((x, g) if geometry.transposed else (g, x)), weight)
    mask = [False, True, False]
    found = torch.ops.aten.convolution_backward(g, x, weight, None, *geometry.arguments(), mask)[1]
    return dense_as(found, geometry.nhwc)


def _save(ctx, x: Tensor, weight: Tensor, geometry: Geometry) -> None:
    """Keep what `gradients` reads: for each gradient the other input. What no gradient reads is not kept alive."""
    needs_x, needs_weight, *_ = ctx.needs_input_grad
    ctx.save_for_backward(x if needs_weight else None, weight if needs_x or needs_weight else None)
    ctx.geometry, ctx.size = geometry, x.shape
    ctx.set_materialize_grads(False)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, geometry):
        _save(ctx, x, weight, geometry)
        return _convolve(x, weight, geometry)

    @staticmethod
    def backward(ctx, g):
        needs_x, needs_weight, _ = needed(ctx)
        if g is None or not (needs_x or needs_weight):
            return None, None, None
        return *gradients(g, *ctx.saved_tensors, ctx.geometry, ctx.size, needs_x, needs_weight), None


class _Biased(torch.autograd.Function):
    """A grouped convolution whose kernel adds the bias [O]."""

    @staticmethod
    def forward(ctx, x, weight, bias, geometry):
        _save(ctx, x, weight, geometry)
        ctx.bias = bias.dtype
        return grouped.convolve(x, weight, bias=bias)

    @staticmethod
    def backward(ctx, g):
        needs_x, needs_weight, needs_bias, _ = needed(ctx)
        if g is None:
            return None, None, None, None
        dbias = g.sum((0, 2, 3)).to(ctx.bias) if needs_bias else None
        return *gradients(g, *ctx.saved_tensors, ctx.geometry, ctx.size, needs_x, needs_weight), dbias, None


def gradients(
    g: Tensor,
    x: Tensor | None,
    weight: Tensor | None,
    geometry: Geometry,
    size: torch.Size,
    needs_x: bool,
    needs_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return dx and dweight for the gradient g of y, in a backward pass. x has this size.

    A gradient that is not needed, or deferred, is None.
    """
    again = torch.is_grad_enabled()
    with without_autocast(g):  # in the dtypes of the forward pass
        g = dense_as(g, geometry.nhwc)
        dx = dweight = None
        if needs_weight and defer((weight,), lambda: [_correlate(g, x, weight.detach(), geometry)]):
            needs_weight = False
        if needs_x:
            convolve = _Convolution.apply if again else _convolve
            dx = convolve(g, weight, geometry.adjoint(size, weight.shape))
        if needs_weight:
            correlate = _WeightGradient.apply if again else _correlate
            dweight = correlate(g, x, weight.detach(), geometry)
    return dx, dweight


class _WeightGradient(torch.autograd.Function):
    """`_correlate` as a function of g and x that can be differentiated itself."""

    @staticmethod
    def forward(ctx, g, x, weight, geometry):
        needs_g, needs_x, *_ = ctx.needs_input_grad
        ctx.save_for_backward(g if needs_x else None, x if needs_g else None)
        ctx.geometry, ctx.size = geometry, x.shape
        ctx.set_materialize_grads(False)
        return _correlate(g, x, weight, geometry)

    @staticmethod
    def backward(ctx, u):
        needs_g, needs_x, *_ = needed(ctx)
        if u is None or not (needs_g or needs_x):
            return None, None, None, None
        g, x = ctx.saved_tensors
        convolve = _Convolution.apply if torch.is_grad_enabled() else _convolve
        with without_autocast(u):
            u = dense_as(u, ctx.geometry.nhwc)
            dg = convolve(x, u, ctx.geometry) if needs_g else None
            dx = convolve(g, u, ctx.geometry.adjoint(ctx.size, u.shape)) if needs_x else None
        return dg, dx, None, None


# ---- the operator for torch.compile --------------------------------------------------------------------------------


def _format(nhwc: bool) -> torch.memory_format:
    return torch.channels_last if nhwc else torch.contiguous_format


@operator(
    "convolution",
    "(Tensor x, Tensor weight, SymInt[] stride, SymInt[] padding, SymInt[] output_padding, bool "
    "transposed, SymInt groups, bool nhwc) -> Tensor",
)
def convolution(x, weight, stride, padding, output_padding, transposed, groups, nhwc):
    """Compute `conv2d` or, transposed, `conv_transpose2d`."""
    with without_autocast(x):
        return _convolve(x, weight, Geometry(stride, padding, output_padding, transposed, groups, nhwc))


@convolution.register_fake
def _(x, weight, *arguments):
    geometry = Geometry(*arguments)
    channels = weight.shape[1] * geometry.groups if geometry.transposed else weight.shape[0]
    shape = x.shape[0], channels, *geometry.output(x.shape, weight.shape)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_format(geometry.nhwc))


@operator(
    "correlation",
    "(Tensor g, Tensor x, Tensor weight, SymInt[] stride, SymInt[] padding, SymInt[] output_padding, bool"
    " transposed, SymInt groups, bool nhwc) -> Tensor",
)
def correlation(g, x, weight, stride, padding, output_padding, transposed, groups, nhwc):
    """Compute the weight's gradient. Only shape and dtype of the weight count."""
    with without_autocast(x):
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
        dx = OPERATORS.convolution(g, weight, *back)
    if ctx.needs_input_grad[1]:
        dweight = OPERATORS.correlation(g, x, weight.detach(), *geometry)
    return dx, dweight, *(None,) * len(geometry)


def _correlation_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.geometry = Geometry(*inputs[3:])


def _correlation_gradient(ctx, u):
    g, x = ctx.saved_tensors
    u, geometry, dg, dx = dense_as(u, ctx.geometry.nhwc), ctx.geometry, None, None
    if ctx.needs_input_grad[0]:
        dg = OPERATORS.convolution(x, u, *geometry)
    if ctx.needs_input_grad[1]:
        back = geometry.adjoint(x.shape, u.shape)
        dx = OPERATORS.convolution(g, u, *back)
    return dg, dx, None, *(None,) * len(geometry)


convolution.register_autograd(_convolution_gradient, setup_context=_convolution_context)
correlation.register_autograd(_correlation_gradient, setup_context=_correlation_context)
