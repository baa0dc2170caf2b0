"""1x1 convolutions to and from the few channels of an image, as passes over memory.

These are toRGB and fromRGB of StyleGAN2 (Karras et al. 2020, arXiv:1912.04958). A convolution with 3 channels on one
side has little arithmetic. Its cost is reading or writing the other side. A library's kernel is made for many channels
on both sides, and pads the 3 channels to its tiles' size. Here three maps do the work:

- narrow(x, w): y[n, k] = sum over c of x[n, c] * w[n, k, c]. It reads the activation once.
- wide(g, w): x[n, c] = sum over k of g[n, k] * w[n, k, c]. It writes the activation once.
- correlate(g, x): w[n, k, c] = sum over pixels of g[n, k] * x[n, c]. It reads the activation once.

Each is linear in both arguments, and its derivatives are the other two maps. So they can be differentiated to any
order. Weights are float32 and may differ from sample to sample: modulation without a pass of its own.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.arguments import check_dtype, check_flags, check_numbers, check_tensors, fits
from ..common.needed import needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.tiles import (
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    new_image,
    output_dtype,
    without_autocast,
)
from ..pointwise.bias_act import Call as ActCall
from ..pointwise.bias_act import backward as bias_act_backward
from ..pointwise.bias_act import bias_act
from .rgb_kernels import Call, correlate, narrow, wide
from .rgb_weights import styled
from .weight_gradients import defer

MOST = 4  # channels of the image; a kernel keeps a weight for each pair of channels in registers


def to_rgb(
    x: Tensor,
    weight: Tensor,
    style: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    gain: float = 1.0,
    dtype: torch.dtype | None = None,
    image: Tensor | None = None,
) -> Tensor:
    """Compute a 1x1 convolution of x with weight * style * gain, plus bias, in one pass. Differentiable to any order.

    Args:
        x: [N, C, H, W], NCHW or channels_last; float16, bfloat16, float32 or float64.
        weight: [K, C] or [K, C, 1, 1] with K <= 4, or [N, K, C] with the style in it.
        style: [N, C], a factor for each sample and channel.
        bias: [K].
        dtype: dtype of the result; x.dtype (autocast's dtype under autocast) unless given.
        image: [N, K, H, W], added to the result.

    Returns [N, K, H, W] in x's memory format. Sums and modulated weights are float32 (float64 for float64).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    weight = _check_to(x, weight, style, bias, image, gain, dtype)
    check_device(x)
    x, dtype = dense(x), dtype or output_dtype(x)
    shared = style is None and weight.dim() == 2
    call = Call(float(gain), shared, is_nhwc(x), is_nhwc(x), x.dtype, dtype)
    w = weight.to(call.sums)
    w = w[None] if shared else w if style is None else styled(w, style.to(call.sums))
    bias = bias if bias is None else bias.contiguous()
    if torch.compiler.is_compiling():
        y = OPERATORS.rgb_narrow(x, w, bias, *call)
        return y if image is None else y + image.to(dtype)
    image = image if image is None else dense_as(image.to(dtype), call.narrow_nhwc)
    return _Narrow.apply(x, w, bias, call, image)


def to_rgb_reference(
    x: Tensor,
    weight: Tensor,
    style: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    gain: float = 1.0,
    dtype: torch.dtype | None = None,
    image: Tensor | None = None,
) -> Tensor:
    """Compute `to_rgb` in plain PyTorch. Arguments, result dtype and memory format as `to_rgb`."""
    weight = _check_to(x, weight, style, bias, image, gain, dtype)
    dtype = dtype or output_dtype(x)
    sums = accumulator(torch.promote_types(x.dtype, dtype))
    w = weight.to(sums) if weight.dim() == 3 else weight.to(sums)[None]
    w = w * (1 if style is None else style.to(sums)[:, None])
    with without_autocast(x):
        y = torch.einsum("nchw,nkc->nkhw", x.to(sums), w.expand(len(x), -1, -1)) * gain
    y = y if bias is None else y + bias[:, None, None]
    y = y if image is None else y + image
    return dense_as(y.to(dtype), is_nhwc(dense(x)))


def from_rgb(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gain: float = 1.0,
    slope: float = 0.2,
    act_gain: float = math.sqrt(2),
    channels_last: bool | None = None,
) -> Tensor:
    """Compute leaky_relu(1x1 convolution of image with weight * gain + bias) * act_gain in one pass.

    Differentiable to any order.

    Args:
        image: [N, K, H, W] with K <= 4, NCHW or channels_last; float16, bfloat16, float32 or float64.
        weight: [C, K] or [C, K, 1, 1].
        bias: [C].
        slope: slope of the leaky ReLU. With slope 1 and act_gain 1 there is no activation.
        channels_last: memory format of the result; the image's unless given.

    Returns [N, C, H, W] in image.dtype (autocast's dtype under autocast).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    weight = _check_from(image, weight, bias, gain, slope, act_gain, channels_last)
    check_device(image)
    image = dense(image)
    nhwc = is_nhwc(image) if channels_last is None else channels_last
    call = Call(float(gain), True, nhwc, is_nhwc(image), output_dtype(image), image.dtype)
    w, act = weight.to(call.sums).t()[None], (float(slope), float(act_gain))
    if min(act) <= 0:  # The sign of the result would not tell the sign of the activation's input.
        u = _from_rgb(image, w, None, call, (1.0, 1.0))
        return bias_act(u, bias, slope=slope, gain=act_gain)
    return _from_rgb(image, w, bias if bias is None else bias.contiguous(), call, act)


def _from_rgb(image, w, bias, call: Call, act: tuple[float, float]) -> Tensor:
    if torch.compiler.is_compiling():
        return OPERATORS.rgb_wide(image, w, bias, *act, *call)
    if act == (1.0, 1.0) and bias is None:
        return _Wide.apply(image, w, call)
    return _FromRGB.apply(image, w, bias, call, act)


def from_rgb_reference(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gain: float = 1.0,
    slope: float = 0.2,
    act_gain: float = math.sqrt(2),
    channels_last: bool | None = None,
) -> Tensor:
    """Compute `from_rgb` in plain PyTorch. Arguments, result dtype and memory format as `from_rgb`."""
    weight = _check_from(image, weight, bias, gain, slope, act_gain, channels_last)
    dtype = output_dtype(image)
    sums = accumulator(torch.promote_types(image.dtype, dtype))
    with without_autocast(image):
        y = torch.einsum("nkhw,ck->nchw", image.to(sums), weight.to(sums)) * gain
    y = y if bias is None else y + bias.to(sums)[:, None, None]
    y = (F.leaky_relu(y, slope) * act_gain).to(dtype)
    return dense_as(y, is_nhwc(dense(image)) if channels_last is None else channels_last)


def bytes_moved(wide: Tensor, narrow: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: one tensor in, the other out; backward of `to_rgb`:
    dy and x in, dx out.
    """
    return narrow.nbytes + (2 if backward else 1) * wide.nbytes


def _check_to(x, weight, style, bias, image, gain, dtype) -> Tensor:
    """Validate the arguments, and return the weight as [K, C], or as it is with a style in it."""
    check_tensors({"x": x, "weight": weight}, style=style, bias=bias, image=image)
    check_numbers(gain=gain)
    check_dtype(dtype)
    if x.dim() != 4 or 0 in x.shape[2:]:
        raise ValueError(f"x must be a float tensor [N, C, H, W] with pixels, got {x.dtype} {tuple(x.shape)}")
    n, c = x.shape[:2]
    has_style = style is None and weight.dim() == 3
    k = weight.shape[1 if has_style else 0] if weight.dim() else 0
    right = ((n, k, c),) if has_style else ((k, c), (k, c, 1, 1))
    if not fits(weight.shape, *right) or not 1 <= k <= MOST:
        wanted = f"[1 to {MOST}, C] = [K, {c}], or [{n}, K, {c}] with a style in it"
        raise ValueError(f"weight must be {wanted}, got {tuple(weight.shape)}")
    if style is not None and style.shape != (n, c):
        raise ValueError(f"style must be [N, C] = [{n}, {c}], got {tuple(style.shape)}")
    if bias is not None and bias.shape != (k,):
        raise ValueError(f"bias must be [K] = [{k}], got {tuple(bias.shape)}")
    if image is not None and image.shape != (n, k, *x.shape[2:]):
        raise ValueError(f"image must be {(n, k, *x.shape[2:])}, got {tuple(image.shape)}")
    return weight if has_style else weight.flatten(1)


def _check_from(image, weight, bias, gain, slope, act_gain, channels_last) -> Tensor:
    """Validate the arguments, and return the weight as [C, K]."""
    check_tensors({"image": image, "weight": weight}, bias=bias)
    check_numbers(gain=gain, slope=slope, act_gain=act_gain)
    check_flags(channels_last=channels_last or False)
    if image.dim() != 4 or not 1 <= image.shape[1] <= MOST or 0 in image.shape[2:]:
        raise ValueError(
            f"image must be a float tensor [N, 1 to {MOST}, H, W] with pixels, got {image.dtype} {tuple(image.shape)}"
        )
    k = image.shape[1]
    if not fits(weight.shape[1:], (k,), (k, 1, 1)):
        raise ValueError(f"weight must be [C, K] = [C, {k}], got {tuple(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [C] = [{weight.shape[0]}], got {tuple(bias.shape)}")
    return weight.flatten(1)


# ---- autograd ----------------------------------------------------------------------------------------------------
# Each gradient reads the other input. An input that no gradient reads is not kept alive.


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, bias, call, image=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, w if needs[0] else None, bias)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return narrow(x, w, call, bias, image=image)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 5
        x, w, bias = ctx.saved_tensors
        needs = needed(ctx, (True, True, bias is not None))[:3]
        dimage = g if ctx.needs_input_grad[4:] == (True,) else None
        return *narrow_backward(g, x, w, bias, ctx.call, needs), None, dimage


def narrow_backward(g, x, w, bias, call: Call, needs: tuple[bool, ...]):
    """Return dx, dw and dbias (None where not needed) of `_Narrow`. Differentiable where gradients are enabled."""
    needs_x, needs_w, needs_bias = needs
    g, dx, dw, dbias = dense_as(g, call.narrow_nhwc), None, None, None
    if needs_w and not torch.is_grad_enabled():
        dw, dx, by_sample = correlate(g, x, call, w=w if needs_x else None, sum_g=needs_bias)
        if needs_bias and not defer((bias,), lambda: [by_sample.sum(0).to(bias.dtype)]):
            dbias = by_sample.sum(0)
    else:
        dx = _Wide.apply(g, w, call) if needs_x else None
        dw = _Correlate.apply(g, x, call) if needs_w else None
        dbias = g.sum((0, 2, 3), dtype=call.sums) if needs_bias else None
    return dx, dw, dbias if dbias is None else dbias.to(bias.dtype)


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, w, call):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(g if needs[1] else None, w if needs[0] else None)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return wide(g, w, call)

    @staticmethod
    def backward(ctx, dx):
        if dx is None:
            return None, None, None
        call, (g, w), (needs_g, needs_w, _) = ctx.call, ctx.saved_tensors, needed(ctx)
        dx = dense_as(dx, call.wide_nhwc)
        dg = _Narrow.apply(dx, w, None, call) if needs_g else None
        return dg, _Correlate.apply(g, dx, call) if needs_w else None, None


class _Correlate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, x, call):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(g if needs[1] else None, x if needs[0] else None)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return correlate(g, x, call)[0]

    @staticmethod
    def backward(ctx, dw):
        if dw is None:
            return None, None, None
        call, (g, x), (needs_g, needs_x, _) = ctx.call, ctx.saved_tensors, needed(ctx)
        dg = _Narrow.apply(x, dw, None, call) if needs_g else None
        return dg, _Wide.apply(g, dw, call) if needs_x else None, None


class _Mask(torch.autograd.Function):
    """The map g -> g times the activation's slope at y. It is linear in g, constant in y, and its own gradient."""

    @staticmethod
    def forward(ctx, g, y, call):
        ctx.save_for_backward(y)
        ctx.call = call
        ref = y if call.saves(False) else None
        return bias_act_backward(g, ref, None, None, None, None, call, (True, False, False, False))[0]

    @staticmethod
    def backward(ctx, ddu):
        return _Mask.apply(dense_as(ddu, ctx.call.nhwc), ctx.saved_tensors[0], ctx.call), None, None


class _FromRGB(torch.autograd.Function):
    """`wide` with bias and activation. To be differentiated, its gradient is two maps: the mask, and `wide`."""

    @staticmethod
    def forward(ctx, image, w, bias, call, act):
        needs = ctx.needs_input_grad
        y = wide(image, w, call, bias, act)
        ctx.save_for_backward(image if needs[1] else None, w if needs[0] else None, bias, y)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.act = call, act
        return y

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 5
        image, w, bias, y = ctx.saved_tensors
        needs = needed(ctx, (True, True, bias is not None))[:3]
        return *from_rgb_backward(g, image, w, bias, y, ctx.act, ctx.call, needs), None, None


def from_rgb_backward(g, image, w, bias, y, act: tuple[float, float], call: Call, needs: tuple[bool, ...]):
    """Return dimage, dw and dbias (None where not needed). Differentiable where gradients are enabled."""
    needs_image, needs_w, needs_bias = needs
    g, dimage, dw, dbias = dense_as(g, call.wide_nhwc), None, None, None
    if torch.is_grad_enabled() or (needs_bias and not needs_w):
        du = _Mask.apply(g, y, ActCall(*act, None, call.wide_nhwc, call.wide))
        dimage = _Narrow.apply(du, w, None, call) if needs_image else None
        dw = _Correlate.apply(image, du, call) if needs_w else None
        dbias = du.sum((0, 2, 3), dtype=call.sums) if needs_bias else None
    else:
        dimage = narrow(g, w, call, ref=y, act=act) if needs_image else None
        if needs_w:
            dw, _, by_sample = correlate(image, g, call, ref=y, act=act, sum_x=needs_bias)
            dbias = by_sample.sum(0) if needs_bias else None
    return dimage, dw, dbias if dbias is None else dbias.to(bias.dtype)


# ---- the operator for torch.compile --------------------------------------------------------------------------------


# The facts of `Call`.
_CALL = "float gain, bool shared, bool wide_nhwc, bool narrow_nhwc, ScalarType wide, ScalarType narrow"


@operator("rgb_narrow", f"(Tensor x, Tensor w, Tensor? bias, {_CALL}) -> Tensor")
def rgb_narrow(x, w, bias, *call):
    return narrow(x, w, Call(*call), bias)


@rgb_narrow.register_fake
def _(x, w, bias, *call):
    call = Call(*call)
    return new_image(x, w.shape[1], x.shape[2:], call.narrow_nhwc, call.narrow)


@operator(
    "rgb_narrow_grad", f"(Tensor g, Tensor x, Tensor w, Tensor? bias, {_CALL}, bool[] needs) -> Tensor[]"
)
def rgb_narrow_grad(g, x, w, bias, *rest):
    *call, needs = rest
    with torch.no_grad():
        return _own(narrow_backward(g, x, w, bias, Call(*call), needs), needs)


@rgb_narrow_grad.register_fake
def _(g, x, w, bias, *rest):
    return empty_like((x, torch.empty_like(w, memory_format=torch.contiguous_format), bias), rest[-1])


def _own(grads: tuple, needs: list[bool]) -> list[Tensor]:
    """Return the needed gradients. dw and dbias may be parts of one buffer, which an operator may not return."""
    dx, *parts = grads
    return pick(
        (dx, *(t if t is None else t.clone(memory_format=torch.contiguous_format) for t in parts)), needs
    )


def _rgb_narrow_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.call = Call(*inputs[3:])


def _rgb_narrow_gradient(ctx, g):
    needs, inputs = list(ctx.needs_input_grad[:3]), (g, *ctx.saved_tensors)
    if torch.is_grad_enabled():
        grads = narrow_backward(*inputs, ctx.call, needs)
    else:
        grads = place(rgb_narrow_grad(*inputs, *ctx.call, needs), needs)
    return *grads, *(None,) * len(ctx.call)


rgb_narrow.register_autograd(_rgb_narrow_gradient, setup_context=_rgb_narrow_context)


@operator(
    "rgb_wide", f"(Tensor image, Tensor w, Tensor? bias, float slope, float act_gain, {_CALL}) -> Tensor"
)
def rgb_wide(image, w, bias, slope, act_gain, *call):
    return wide(image, w, Call(*call), bias, (slope, act_gain))


@rgb_wide.register_fake
def _(image, w, bias, slope, act_gain, *call):
    call = Call(*call)
    return new_image(image, w.shape[2], image.shape[2:], call.wide_nhwc, call.wide)


@operator(
    "rgb_wide_grad",
    "(Tensor g, Tensor image, Tensor w, Tensor? bias, Tensor y, float slope, float act_gain, "
    f"{_CALL}, bool[] needs) -> Tensor[]",
)
def rgb_wide_grad(g, image, w, bias, y, slope, act_gain, *rest):
    *call, needs = rest
    with torch.no_grad():
        grads = from_rgb_backward(g, image, w, bias, y, (slope, act_gain), Call(*call), needs)
        return _own(grads, needs)


@rgb_wide_grad.register_fake
def _(g, image, w, bias, *rest):
    return empty_like((image, torch.empty_like(w, memory_format=torch.contiguous_format), bias), rest[-1])


def _rgb_wide_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], output)
    ctx.act, ctx.call = inputs[3:5], Call(*inputs[5:])


def _rgb_wide_gradient(ctx, g):
    needs, inputs = list(ctx.needs_input_grad[:3]), (g, *ctx.saved_tensors)
    if torch.is_grad_enabled():
        grads = from_rgb_backward(*inputs, ctx.act, ctx.call, needs)
    else:
        grads = place(rgb_wide_grad(*inputs, *ctx.act, *ctx.call, needs), needs)
    return *grads, *(None,) * (2 + len(ctx.call))


rgb_wide.register_autograd(_rgb_wide_gradient, setup_context=_rgb_wide_context)
