"""The op y = leaky_relu(filter(x) * scale + noise * strength + bias) * gain * style: `filter_act`, modulated.

A style of StyleGAN2 (Karras et al. 2020, arXiv:1912.04958) scales the input of a convolution. Between the two layers of
a synthesis block, nothing else reads that input. So it is written modulated: one more factor for a value in registers
replaces a pass over memory.

Backward is one pass, and reads the same tensors as the backward of `filter_act`. The activation is y / style. So its
sign is the sign of y, turned where the style is negative. The style times its gradient is the sum of g * y, which is
summed for the scale anyway. A style of zero would hide the activation: a style nearer to zero than `least` counts as
`least`.

Differentiated twice, the op falls back on three ops: the filter, `bias_act` and `modulate`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.needed import needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.tiles import check_device, dense, dense_as, output_dtype
from ..pointwise.bias_act import Call, _BiasActGrad
from ..pointwise.bias_act_modulate import _BiasActFork
from ..pointwise.modulate import _ModulateGrad, modulate_reference
from .filtered_act import ACT, GAIN, OTHERS, SLOPE, _act, _check, _filtered, bytes_moved, filter_act_reference
from .filtered_act_launch import Act, filter_act_modulate_backward, filter_act_modulate_forward
from .upfirdn2d import _Upfirdn2d

# It moves as many bytes as filter_act.
__all__ = [
    "bytes_moved",
    "filter_act_modulate",
    "filter_act_modulate_reference",
]


def filter_act_modulate(
    x: Tensor,
    taps: Sequence[float],
    style: Tensor,
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
    """Compute leaky_relu(filter(x) * scale + noise * strength + bias) * gain * style, fused. Differentiable twice.

    Args:
        style: [N, C].

    The other arguments, results and errors are as `filter_act`.
    """
    call = _check(x, bias, taps, padding, filter_gain, slope, gain, noise, strength, scale, style=style)
    if noise is not None and noise.requires_grad and torch.is_grad_enabled():
        raise ValueError("noise has no gradient here; call upfirdn2d, bias_act and modulate")
    check_device(x)
    x = dense(x)
    act = call.of(x)
    others = [t if t is None else t.contiguous() for t in (bias, noise, strength, scale, style)]
    if torch.compiler.is_compiling():
        plain = (*act.plain(), output_dtype(x))
        return OPERATORS.filter_act_modulate(x, *others, *plain)
    return _FilterActModulate.apply(x, *others, act, output_dtype(x))


def filter_act_modulate_reference(
    x: Tensor,
    taps: Sequence[float],
    style: Tensor,
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
    """Compute `filter_act_modulate` in plain PyTorch. Arguments and result as `filter_act_modulate`."""
    _check(x, bias, taps, padding, filter_gain, slope, gain, noise, strength, scale, style=style)
    how = {"padding": padding, "filter_gain": filter_gain, "slope": slope, "gain": gain}
    y = filter_act_reference(x, taps, bias, noise=noise, strength=strength, scale=scale, **how)
    return modulate_reference(y, style)


# ---- autograd ----------------------------------------------------------------------------------------------------


class _FilterActModulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, noise, strength, scale, style, act, dtype):
        y = filter_act_modulate_forward(x, bias, noise, strength, scale, style, act, dtype)
        ctx.save_for_backward(x, y, bias, noise, strength, scale, style)
        ctx.set_materialize_grads(False)
        ctx.act = act
        return y

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 8
        x, y, *others = ctx.saved_tensors
        needs = needed(ctx, (True, *(t is not None for t in others)))
        needs = (needs[0], needs[1], *needs[3:6])
        if torch.is_grad_enabled():
            grads = unfused_backward(g, x, *others, ctx.act, needs, y.dtype)
        else:
            grads = filter_act_modulate_backward(g, y, *others, ctx.act, needs)
        dx, dbias, dstrength, dscale, dstyle = grads
        return dx, dbias, None, dstrength, dscale, dstyle, None, None


def unfused_backward(
    g, x, bias, noise, strength, scale, style, act: Act, needs: tuple[bool, ...], dtype: torch.dtype
):
    """Compute `filter_act_modulate_backward` by the three ops, whose gradients can be differentiated.

    The style's gradient needs the activation as a function of x, the scale's gradient the filtered x. Both are made
    again.
    """
    call = Call(act.slope, act.gain, None, act.filter.nhwc, act.dtype)
    f = _Upfirdn2d.apply(x, act.filter)
    a, f = _BiasActFork.apply(f, bias, noise, strength, scale, call, dtype)
    da, dstyle = _ModulateGrad.apply(g, a, style, (True, needs[4]))
    ref = a if scale is None else f
    du, *grads = _BiasActGrad.apply(da, ref, bias, noise, strength, scale, call, needs[:4])
    if du is not None:
        du = _Upfirdn2d.apply(dense_as(du, act.filter.nhwc), act.filter.adjoint())
    return du, *grads, dstyle


# ---- the operator for torch.compile --------------------------------------------------------------------------------


@operator("filter_act_modulate", f"(Tensor x, {OTHERS}, Tensor style, {ACT}, ScalarType into) -> Tensor")
def filter_act_modulate_operator(x, bias, noise, strength, scale, style, *rest):
    *plain, into = rest
    return filter_act_modulate_forward(x, bias, noise, strength, scale, style, _act(*plain), into)


@filter_act_modulate_operator.register_fake
def _(x, bias, noise, strength, scale, style, *rest):
    return _filtered(x, _act(*rest[:-1]).filter, rest[-1])


@operator(
    "filter_act_modulate_grad",
    f"(Tensor g, Tensor y, {OTHERS}, Tensor style, {ACT}, bool[] needs) -> Tensor[]",
)
def filter_act_modulate_grad(g, y, *rest):
    others, plain, needs = rest[:5], rest[5:-1], rest[-1]
    return pick(filter_act_modulate_backward(g, y, *others, _act(*plain), needs), needs)


@filter_act_modulate_grad.register_fake
def _(g, y, bias, noise, strength, scale, style, *rest):
    *plain, needs = rest
    act = _act(*plain)
    return empty_like((_filtered(g, act.filter.adjoint(), act.dtype), bias, strength, scale, style), needs)


def _filter_act_modulate_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output, *inputs[1:6])
    ctx.act = _act(*inputs[6:-1])


def _filter_act_modulate_gradient(ctx, g):
    needs, act = [ctx.needs_input_grad[i] for i in (0, 1, 3, 4, 5)], ctx.act
    x, y, *others = ctx.saved_tensors
    if torch.is_grad_enabled():
        grads = unfused_backward(g, x, *others, act, needs, y.dtype)
    else:
        grads = place(filter_act_modulate_grad(g, y, *others, *act.plain(), needs), needs)
    dx, dbias, *more = grads
    return dx, dbias, None, *more, *(None,) * len(act.plain()), None


filter_act_modulate_operator.register_autograd(
    _filter_act_modulate_gradient, setup_context=_filter_act_modulate_context
)
