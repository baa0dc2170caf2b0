"""The fused ops as operators of PyTorch (`torch.ops.stylegan_ladder.*`), for torch.compile.

torch.compile sees each op as one opaque operator and its gradient as another. Fake implementations tell it shapes,
dtypes and memory formats. Eager calls do not come here. An operator with a registered gradient costs several times an
autograd.Function's CPU time a call. A step that waits for the CPU would pay that in full. Both run the same functions.

No operator has a double backward under torch.compile. In eager mode these operators have one.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from kernels.common.tiles import accumulator, dense_as, is_nhwc
from kernels.norm.instance_norm_act import _InstanceNormActGrad
from kernels.norm.instance_norm_act import backward as instance_norm_act_backward
from kernels.norm.instance_norm_act import forward as instance_norm_act_forward
from kernels.pointwise.bias_act import Call, _BiasActGrad
from kernels.pointwise.bias_act import backward as bias_act_backward
from kernels.pointwise.bias_act import forward as bias_act_forward
from kernels.pointwise.modulate import _ModulateGrad
from kernels.pointwise.modulate import backward as modulate_backward
from kernels.pointwise.modulate import forward as modulate_forward
from kernels.pointwise.residual import ResidualCall
from kernels.pointwise.residual import forward as bias_act_residual_forward
from kernels.weights.demodulate import _accumulator, _DemodulateGrad
from kernels.weights.demodulate import backward as demodulate_backward
from kernels.weights.demodulate import forward as demodulate_forward


def _place(grads: list[Tensor], needs: list[bool]) -> list[Tensor | None]:
    """Put gradients back to their places: an operator returns only the needed gradients."""
    there = iter(grads)
    return [next(there) if need else None for need in needs]


def _pick(grads, needs: list[bool]) -> list[Tensor]:
    return [grad for grad, need in zip(grads, needs, strict=True) if need]


def _like(inputs, needs: list[bool]) -> list[Tensor]:
    return [torch.empty_like(t) for t in _pick(inputs, needs)]


# ---- bias_act ----------------------------------------------------------------------------------------------------


@custom_op("stylegan_ladder::bias_act", mutates_args=())
def bias_act(
    x: Tensor, bias: Tensor | None, noise: Tensor | None, strength: Tensor | None, scale: Tensor | None,
    slope: float, gain: float, clamp: float | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    call = Call(slope, gain, clamp, is_nhwc(x), x.dtype)
    return bias_act_forward(x, bias, noise, strength, scale, call, dtype)


@bias_act.register_fake
def _(x, bias, noise, strength, scale, slope, gain, clamp, dtype):
    return torch.empty_like(x, dtype=dtype)


@custom_op("stylegan_ladder::bias_act_grad", mutates_args=())
def bias_act_grad(
    g: Tensor, ref: Tensor | None,
    bias: Tensor | None, noise: Tensor | None, strength: Tensor | None, scale: Tensor | None,
    slope: float, gain: float, clamp: float | None, nhwc: bool, dtype: torch.dtype, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    call = Call(slope, gain, clamp, nhwc, dtype)
    return _pick(bias_act_backward(g, ref, bias, noise, strength, scale, call, needs), needs)


@bias_act_grad.register_fake
def _(g, ref, bias, noise, strength, scale, slope, gain, clamp, nhwc, dtype, needs):
    return _like((dense_as(g, nhwc).to(dtype), bias, strength, scale), needs)


def _bias_act_context(ctx, inputs, output):
    x, bias, noise, strength, scale, slope, gain, clamp, _ = inputs
    ctx.call = Call(slope, gain, clamp, is_nhwc(x), x.dtype)
    ref = {"": None, "x": x, "y": output}[ctx.call.saves(scale is not None)]
    ctx.save_for_backward(ref, bias, noise, strength, scale)


def _bias_act_gradient(ctx, g):
    needs = [ctx.needs_input_grad[i] for i in (0, 1, 3, 4)]
    if torch.is_grad_enabled():
        grads = _BiasActGrad.apply(g, *ctx.saved_tensors, ctx.call, needs)
    else:
        grads = _place(bias_act_grad(g, *ctx.saved_tensors, *ctx.call, needs), needs)
    dx, dbias, dstrength, dscale = grads
    return dx, dbias, None, dstrength, dscale, None, None, None, None


bias_act.register_autograd(_bias_act_gradient, setup_context=_bias_act_context)


# ---- bias_act_residual -------------------------------------------------------------------------------------------


@custom_op("stylegan_ladder::bias_act_residual", mutates_args=())
def bias_act_residual(
    x: Tensor, bias: Tensor | None, residual: Tensor, slope: float, gain: float, dtype: torch.dtype
) -> Tensor:
    call = ResidualCall(slope, gain, None, is_nhwc(x), x.dtype)
    return bias_act_residual_forward(x, bias, residual, call, dtype)


@bias_act_residual.register_fake
def _(x, bias, residual, slope, gain, dtype):
    return torch.empty_like(x, dtype=dtype)


@custom_op("stylegan_ladder::bias_act_residual_grad", mutates_args=())
def bias_act_residual_grad(
    g: Tensor, x: Tensor | None, bias: Tensor | None,
    slope: float, gain: float, nhwc: bool, dtype: torch.dtype, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    call, wanted = ResidualCall(slope, gain, None, nhwc, dtype), (*needs, False, False)
    return _pick(bias_act_backward(g, x, bias, None, None, None, call, wanted), wanted)


@bias_act_residual_grad.register_fake
def _(g, x, bias, slope, gain, nhwc, dtype, needs):
    return _like((dense_as(g, nhwc).to(dtype), bias), needs)


def _bias_act_residual_context(ctx, inputs, output):
    x, bias, _, slope, gain, _ = inputs
    ctx.call = ResidualCall(slope, gain, None, is_nhwc(x), x.dtype)
    ctx.save_for_backward(x if ctx.call.saves(False) else None, bias)


def _bias_act_residual_gradient(ctx, g):
    needs, call = list(ctx.needs_input_grad[:2]), ctx.call
    x, bias = ctx.saved_tensors
    if torch.is_grad_enabled():
        wanted = (*needs, False, False)
        dx, dbias, *_ = _BiasActGrad.apply(g, x, bias, None, None, None, call, wanted)
    else:
        constants = call.slope, call.gain, call.nhwc, call.dtype
        dx, dbias = _place(bias_act_residual_grad(g, x, bias, *constants, needs), needs)
    return dx, dbias, g, None, None, None


bias_act_residual.register_autograd(_bias_act_residual_gradient, setup_context=_bias_act_residual_context)


# ---- modulate ----------------------------------------------------------------------------------------------------


@custom_op("stylegan_ladder::modulate", mutates_args=())
def modulate(x: Tensor, style: Tensor, dtype: torch.dtype) -> Tensor:
    return modulate_forward(x, style, dtype)


@modulate.register_fake
def _(x, style, dtype):
    return torch.empty_like(x, dtype=dtype)


@custom_op("stylegan_ladder::modulate_grad", mutates_args=())
def modulate_grad(g: Tensor, x: Tensor, style: Tensor, needs: list[bool]) -> list[Tensor]:
    return _pick(modulate_backward(g, x, style, needs), needs)


@modulate_grad.register_fake
def _(g, x, style, needs):
    return _like((x, style), needs)


def _modulate_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def _modulate_gradient(ctx, g):
    needs = list(ctx.needs_input_grad[:2])
    if torch.is_grad_enabled():
        return *_ModulateGrad.apply(g, *ctx.saved_tensors, needs), None
    return *_place(modulate_grad(g, *ctx.saved_tensors, needs), needs), None


modulate.register_autograd(_modulate_gradient, setup_context=_modulate_context)


# ---- demodulate --------------------------------------------------------------------------------------------------


@custom_op("stylegan_ladder::demodulate", mutates_args=())
def demodulate(weight: Tensor, style: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute d, and W2 for the gradient. A gradient of W2 itself is ignored."""
    return demodulate_forward(weight, style, eps)


@demodulate.register_fake
def _(weight, style, eps):
    dtype, (o, i) = _accumulator(weight, style), weight.shape[:2]
    return weight.new_empty((style.shape[0], o), dtype=dtype), weight.new_empty((o, i), dtype=dtype)


@custom_op("stylegan_ladder::demodulate_grad", mutates_args=())
def demodulate_grad(
    g: Tensor, weight: Tensor, style: Tensor, d: Tensor, w2: Tensor, needs: list[bool]
) -> list[Tensor]:
    return _pick(demodulate_backward(g, weight, style, d, w2, needs), needs)


@demodulate_grad.register_fake
def _(g, weight, style, d, w2, needs):
    return _like((weight, style), needs)


def _demodulate_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], *output)


def _demodulate_gradient(ctx, g, _):
    needs = list(ctx.needs_input_grad[:2])
    if torch.is_grad_enabled():
        return *_DemodulateGrad.apply(g, *ctx.saved_tensors, needs), None
    return *_place(demodulate_grad(g, *ctx.saved_tensors, needs), needs), None


demodulate.register_autograd(_demodulate_gradient, setup_context=_demodulate_context)


# ---- instance_norm_act -------------------------------------------------------------------------------------------


@custom_op("stylegan_ladder::instance_norm_act", mutates_args=())
def instance_norm_act(
    x: Tensor, scale: Tensor, bias: Tensor, noise: Tensor | None, strength: Tensor | None,
    eps: float, slope: float, gain: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute y, and mean and rstd for the gradient. Gradients of these two are ignored."""
    y, mean, rstd = instance_norm_act_forward(x, scale, bias, noise, strength, eps, slope, gain, dtype)
    return y, mean.clone(), rstd.clone()  # They are halves of one tensor, and operators may not return views.


@instance_norm_act.register_fake
def _(x, scale, bias, noise, strength, eps, slope, gain, dtype):
    mean = x.new_empty(x.shape[:2], dtype=accumulator(x.dtype))
    return torch.empty_like(x, dtype=dtype), mean, torch.empty_like(mean)


@custom_op("stylegan_ladder::instance_norm_act_grad", mutates_args=())
def instance_norm_act_grad(
    g: Tensor, x: Tensor, scale: Tensor, bias: Tensor, noise: Tensor | None, strength: Tensor | None,
    mean: Tensor, rstd: Tensor, slope: float, gain: float, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    inputs = (g, x, scale, bias, noise, strength, mean, rstd)
    (dx, dscale, dbias, dstrength), _ = instance_norm_act_backward(*inputs, slope, gain, needs)
    return _pick((dx, dscale.clone(), dbias.clone(), dstrength), needs)


@instance_norm_act_grad.register_fake
def _(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs):
    return _like((x, scale, bias, strength), needs)


def _instance_norm_act_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.constants = inputs[6:8]


def _instance_norm_act_gradient(ctx, g, *_):
    needs = [ctx.needs_input_grad[i] for i in (0, 1, 2, 4)]
    if torch.is_grad_enabled():
        grads = _InstanceNormActGrad.apply(g, *ctx.saved_tensors, *ctx.constants, needs)
    else:
        grads = _place(instance_norm_act_grad(g, *ctx.saved_tensors, *ctx.constants, needs), needs)
    dx, dscale, dbias, dstrength = grads
    return dx, dscale, dbias, None, dstrength, None, None, None, None


instance_norm_act.register_autograd(_instance_norm_act_gradient, setup_context=_instance_norm_act_context)
