"""A FIR filter and the activation beside it in one pass over memory: `act_filter` and `filter_act`.

    act_filter   y = filter(leaky_relu(x + bias) * gain)                                   a discriminator going down
    filter_act   y = leaky_relu(filter(x) * scale + noise * strength + bias) * gain        a generator going up

Each is `bias_act` and `upfirdn2d` (Karras et al. 2020, arXiv:1912.04958), whose passes over memory meet: the tensor
between them is never written. Backward is one pass, too. With the activation first, dx is the filtered gradient times
the activation's slope, which the sign of x + bias tells. With the activation last, the sign of y tells the slope, and
the gradient is made as pixels are loaded for the filter. Both take the sum for bias's gradient on the way. The
gradients of strength and scale need filter(x), and y holds it: y's own affine map can be undone. So only y is read
(`filter_act_sums_kernel`).

Differentiated twice, `act_filter` is its own linearized self, one pass again. `filter_act` falls back on the two ops.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.arguments import check_numbers, check_once, check_tensors
from ..common.needed import needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.tiles import check_device, dense, dense_as, new_image, output_dtype
from ..pointwise.bias_act import Call, _BiasActGrad, bias_act_reference
from ..pointwise.noise import check_pair, noise_fits
from .filtered_act_launch import (
    Act,
    act_filter_backward,
    act_filter_forward,
    filter_act_backward,
    filter_act_forward,
    launch,
)
from .upfirdn2d import _Call, _plan, _sides, _Upfirdn2d, upfirdn2d_reference

GAIN = 2**0.5
SLOPE = 0.2


def act_filter(
    x: Tensor,
    bias: Tensor | None,
    taps: Sequence[float],
    *,
    padding: int | Sequence[int] = 0,
    filter_gain: float = 1.0,
    slope: float = SLOPE,
    gain: float = GAIN,
) -> Tensor:
    """Compute filter(leaky_relu(x + bias) * gain), zeros around the activation, fused. Differentiable twice.

    Args:
        x: [N, C, H, W], NCHW or channels_last (kept); float16, bfloat16, float32 or float64.
        bias: [C].
        taps, padding: as `upfirdn2d`. Padding is on each side from 0 to one less than the taps.
        filter_gain: factor on the filter.
        slope: in (0, 1].
        gain: above 0.

    Returns y in x.dtype (autocast's dtype under autocast). Sums are kept in float32 (float64 for float64).
    Raises ValueError for what does not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    call = _check(x, bias, taps, padding, filter_gain, slope, gain)
    check_device(x)
    x = dense(x)
    act, bias = call.of(x), None if bias is None else bias.contiguous()
    if torch.compiler.is_compiling():
        return OPERATORS.act_filter(x, bias, *act.plain(), output_dtype(x))
    return _ActFilter.apply(x, bias, act, output_dtype(x))


def act_filter_reference(
    x: Tensor,
    bias: Tensor | None,
    taps: Sequence[float],
    *,
    padding: int | Sequence[int] = 0,
    filter_gain: float = 1.0,
    slope: float = SLOPE,
    gain: float = GAIN,
) -> Tensor:
    """Compute `act_filter` in plain PyTorch. Arguments, result dtype and memory format as `act_filter`."""
    _check(x, bias, taps, padding, filter_gain, slope, gain)
    a = bias_act_reference(x, bias, slope=slope, gain=gain)
    return upfirdn2d_reference(a, taps, padding=padding, gain=filter_gain)


def filter_act(
    x: Tensor,
    taps: Sequence[float],
    bias: Tensor | None = None,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    scale: Tensor | None = None,
    padding: int | Sequence[int] = 0,
    filter_gain: float = 1.0,
    slope: float = SLOPE,
    gain: float = GAIN,
) -> Tensor:
    """Compute leaky_relu(filter(x) * scale + noise * strength + bias) * gain, fused. Differentiable twice.

    Args:
        noise: [N or 1, 1, height of y, width of y]. It has no gradient.
        scale: nowhere zero.

    The other arguments are as `act_filter` and `bias_act`.
    """
    call = _check(x, bias, taps, padding, filter_gain, slope, gain, noise, strength, scale)
    if noise is not None and noise.requires_grad and torch.is_grad_enabled():
        raise ValueError("noise has no gradient here; call upfirdn2d and bias_act")
    check_device(x)
    x = dense(x)
    act, others = call.of(x), [t if t is None else t.contiguous() for t in (bias, noise, strength, scale)]
    if torch.compiler.is_compiling():
        return OPERATORS.filter_act(x, *others, *act.plain(), output_dtype(x))
    return _FilterAct.apply(x, *others, act, output_dtype(x))


def filter_act_reference(
    x: Tensor,
    taps: Sequence[float],
    bias: Tensor | None = None,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    scale: Tensor | None = None,
    padding: int | Sequence[int] = 0,
    filter_gain: float = 1.0,
    slope: float = SLOPE,
    gain: float = GAIN,
) -> Tensor:
    """Compute `filter_act` in plain PyTorch. Arguments, result dtype and memory format as `filter_act`."""
    _check(x, bias, taps, padding, filter_gain, slope, gain, noise, strength, scale)
    f = upfirdn2d_reference(x, taps, padding=padding, gain=filter_gain)
    return bias_act_reference(f, bias, noise=noise, strength=strength, scale=scale, slope=slope, gain=gain)


def bytes_moved(
    x: Tensor,
    taps: Sequence[float],
    *,
    padding: int | Sequence[int] = 0,
    noise: Tensor | None = None,
    backward: bool = False,
) -> int:
    """Return the bytes that must cross memory: x in, y out, noise in; backward: g in, dx out, and x or y in.

    Backward counts the larger of x and y. It is two passes less than the sum of `bias_act` and `upfirdn2d`.
    """
    out = _plan(x, taps, 1, 1, padding, 1.0, False).out
    y = x.shape[0] * x.shape[1] * out[0] * out[1] * x.element_size()
    more = 0 if noise is None else noise.nbytes
    return x.nbytes + y + more + (max(x.nbytes, y) if backward else 0)


@check_once
def _check(
    x, bias, taps, padding, filter_gain, slope, gain, noise=None, strength=None, scale=None, **style
) -> Act:
    """Validate the arguments, and return the call's facts. A style, if one is passed, may not be None."""
    check_tensors({"x": x, **style}, bias=bias, noise=noise, strength=strength, scale=scale)
    check_numbers(slope=slope, gain=gain, filter_gain=filter_gain)
    plan = _plan(x, taps, 1, 1, padding, filter_gain, False)
    sides = _sides(padding)
    if not all(0 <= side < len(taps) for side in sides):
        raise ValueError(f"padding must be 0 to {len(taps) - 1} for {len(taps)} taps, got {padding!r}")
    if not 0 < slope <= 1 or not gain > 0:
        raise ValueError(f"slope must be in (0, 1] and gain above 0, got slope {slope!r}, gain {gain!r}")
    n, c = x.shape[:2]
    for name, t in {"bias": bias, "scale": scale, **style}.items():
        shape = (c,) if name == "bias" else (n, c)
        if t is not None and t.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {tuple(t.shape)}")
    check_pair(noise, strength)
    if noise is not None and not noise_fits(noise, n, plan.out):
        raise ValueError(
            f"noise must be [{n} or 1, 1, {plan.out[0]}, {plan.out[1]}], got {tuple(noise.shape)}"
        )
    return Act(plan, float(slope), float(gain))


# ---- autograd ----------------------------------------------------------------------------------------------------


class _ActFilter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, act, dtype):
        ctx.save_for_backward(x, bias)
        ctx.set_materialize_grads(False)
        ctx.act = act
        return act_filter_forward(x, bias, act, dtype)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 4
        x, bias = ctx.saved_tensors
        needs = needed(ctx, (True, bias is not None))
        grad = _ActFilterGrad.apply if torch.is_grad_enabled() else act_filter_backward
        return *grad(g, x, bias, ctx.act, needs[:2]), None, None


class _ActFilterGrad(torch.autograd.Function):
    """`act_filter_backward` as a function that can be differentiated itself."""

    @staticmethod
    def forward(ctx, g, x, bias, act, needs):
        ctx.save_for_backward(x, bias)
        ctx.set_materialize_grads(False)
        ctx.act, ctx.dtype = act, g.dtype
        return act_filter_backward(g, x, bias, act, needs, once=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddbias):
        if ddx is None and ddbias is None:
            return (None,) * 5
        (x, bias), act = ctx.saved_tensors, ctx.act
        ddx = torch.zeros_like(x) if ddx is None else dense_as(ddx, act.filter.nhwc)
        ddbias = None if ddbias is None else ddbias.contiguous()
        dg = new_image(x, x.shape[1], act.filter.out, act.filter.nhwc, ctx.dtype)
        if dg.numel():
            launch("act_filter_grad_grad", act, act.filter, ddx, (ddx, x, dg, bias, ddbias))
        return dg, None, None, None, None


class _FilterAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, noise, strength, scale, act, dtype):
        y = filter_act_forward(x, bias, noise, strength, scale, act, dtype)
        ctx.save_for_backward(x if scale is not None else None, y, bias, noise, strength, scale)
        ctx.set_materialize_grads(False)
        ctx.act = act
        return y

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 7
        x, y, *others = ctx.saved_tensors
        needs = needed(ctx, (True, *(t is not None for t in others)))
        needs = (needs[0], needs[1], needs[3], needs[4])
        if torch.is_grad_enabled():
            grads = unfused_backward(g, x, y, *others, ctx.act, needs)
        else:
            grads = filter_act_backward(g, y, *others, ctx.act, needs)
        dx, dbias, dstrength, dscale = grads
        return dx, dbias, None, dstrength, dscale, None, None


def unfused_backward(g, x, y, bias, noise, strength, scale, act: Act, needs: tuple[bool, ...]):
    """Compute `filter_act_backward` by the two ops, whose gradients can be differentiated.

    A scale's gradient needs the filtered x as a function of x. Making it again is cheaper than keeping it.
    """
    ref = y if x is None else _Upfirdn2d.apply(x, act.filter)
    call = Call(act.slope, act.gain, None, act.filter.nhwc, act.dtype)
    du, *grads = _BiasActGrad.apply(g, ref, bias, noise, strength, scale, call, needs)
    if du is not None:
        du = _Upfirdn2d.apply(dense_as(du, act.filter.nhwc), act.filter.adjoint())
    return du, *grads


# ---- the operator for torch.compile --------------------------------------------------------------------------------


ACT = (  # the result of `Act.plain`
    "float[] taps_y, float[] taps_x, int up, int down, int[] before, int[] size, int[] out, bool nhwc, "
    "float slope, float gain, ScalarType dtype"
)
OTHERS = "Tensor? bias, Tensor? noise, Tensor? strength, Tensor? scale"


def _act(*plain) -> Act:
    """Return the facts that `Act.plain` was made of. They are tuples, because a call is the key of a cache."""
    *call, slope, gain, dtype = plain
    call = _Call(*(tuple(part) if isinstance(part, list | tuple) else part for part in call))
    return Act(call, slope, gain, dtype)


@operator("act_filter", f"(Tensor x, Tensor? bias, {ACT}, ScalarType into) -> Tensor")
def act_filter_operator(x, bias, *rest):
    return act_filter_forward(x, bias, _act(*rest[:-1]), rest[-1])


@act_filter_operator.register_fake
def _(x, bias, *rest):
    return _filtered(x, _act(*rest[:-1]).filter, rest[-1])


def _filtered(x: Tensor, call: _Call, dtype: torch.dtype) -> Tensor:
    return new_image(x, x.shape[1], call.out, call.nhwc, dtype)


@operator("act_filter_grad", f"(Tensor g, Tensor x, Tensor? bias, {ACT}, bool[] needs) -> Tensor[]")
def act_filter_grad(g, x, bias, *rest):
    *plain, needs = rest
    return pick(act_filter_backward(g, x, bias, _act(*plain), needs), needs)


@act_filter_grad.register_fake
def _(g, x, bias, *rest):
    return empty_like((x, bias), rest[-1])


def _act_filter_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.act = _act(*inputs[2:-1])


def _act_filter_gradient(ctx, g):
    needs, act = list(ctx.needs_input_grad[:2]), ctx.act
    if torch.is_grad_enabled():
        grads = _ActFilterGrad.apply(g, *ctx.saved_tensors, act, needs)
    else:
        grads = place(act_filter_grad(g, *ctx.saved_tensors, *act.plain(), needs), needs)
    return *grads, *(None,) * len(act.plain()), None


act_filter_operator.register_autograd(_act_filter_gradient, setup_context=_act_filter_context)


@operator("filter_act", f"(Tensor x, {OTHERS}, {ACT}, ScalarType into) -> Tensor")
def filter_act_operator(x, bias, noise, strength, scale, *rest):
    return filter_act_forward(x, bias, noise, strength, scale, _act(*rest[:-1]), rest[-1])


@filter_act_operator.register_fake
def _(x, bias, noise, strength, scale, *rest):
    return _filtered(x, _act(*rest[:-1]).filter, rest[-1])


@operator("filter_act_grad", f"(Tensor g, Tensor y, {OTHERS}, {ACT}, bool[] needs) -> Tensor[]")
def filter_act_grad(g, y, bias, noise, strength, scale, *rest):
    *plain, needs = rest
    return pick(filter_act_backward(g, y, bias, noise, strength, scale, _act(*plain), needs), needs)


@filter_act_grad.register_fake
def _(g, y, bias, noise, strength, scale, *rest):
    *plain, needs = rest
    act = _act(*plain)
    return empty_like((_filtered(g, act.filter.adjoint(), act.dtype), bias, strength, scale), needs)


def _filter_act_context(ctx, inputs, output):
    x, *others = inputs[:5]
    ctx.save_for_backward(x if others[-1] is not None else None, output, *others)
    ctx.act = _act(*inputs[5:-1])


def _filter_act_gradient(ctx, g):
    needs, act = [ctx.needs_input_grad[i] for i in (0, 1, 3, 4)], ctx.act
    x, *saved = ctx.saved_tensors
    if torch.is_grad_enabled():
        grads = unfused_backward(g, x, *saved, act, needs)
    else:
        grads = place(filter_act_grad(g, *saved, *act.plain(), needs), needs)
    dx, dbias, dstrength, dscale = grads
    return dx, dbias, None, dstrength, dscale, *(None,) * len(act.plain()), None


filter_act_operator.register_autograd(_filter_act_gradient, setup_context=_filter_act_context)
