"""The ops that join a linear map with an activation or a bias, as operators of PyTorch for torch.compile.

They are toRGB and fromRGB (`kernels/linear/rgb.py`), and the filter with the activation beside it
(`kernels/upfirdn/filtered_act.py`). `kernels/compile/operators.py` says why eager calls do not come here. Each op is
one operator and its gradient another. In eager mode both are made of the functions that eager calls run, and can be
differentiated twice.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from kernels.common.tiles import new_image
from kernels.compile.operators import _like, _pick, _place
from kernels.linear.rgb import from_rgb_backward, narrow_backward
from kernels.linear.rgb_kernels import Call, narrow, wide
from kernels.upfirdn.filter_act_modulate import unfused_backward as three_ops_backward
from kernels.upfirdn.filtered_act import _ActFilterGrad, unfused_backward
from kernels.upfirdn.filtered_act_launch import (
    Act,
    act_filter_backward,
    act_filter_forward,
    filter_act_backward,
    filter_act_forward,
    filter_act_modulate_backward,
    filter_act_modulate_forward,
)
from kernels.upfirdn.upfirdn2d import _Call

CONTIGUOUS = torch.contiguous_format


def _operator(name: str, schema: str):
    return custom_op(f"stylegan_ladder::{name}", mutates_args=(), schema=schema)


# ---- to_rgb ------------------------------------------------------------------------------------------------------

# the facts of `Call`
CALL = "float gain, bool shared, bool wide_nhwc, bool narrow_nhwc, ScalarType wide, ScalarType narrow"


@_operator("rgb_narrow", f"(Tensor x, Tensor w, Tensor? bias, {CALL}) -> Tensor")
def rgb_narrow(x, w, bias, *call):
    return narrow(x, w, Call(*call), bias)


@rgb_narrow.register_fake
def _(x, w, bias, *call):
    call = Call(*call)
    return new_image(x, w.shape[1], x.shape[2:], call.narrow_nhwc, call.narrow)


@_operator(
    "rgb_narrow_grad", f"(Tensor g, Tensor x, Tensor w, Tensor? bias, {CALL}, bool[] needs) -> Tensor[]"
)
def rgb_narrow_grad(g, x, w, bias, *rest):
    *call, needs = rest
    with torch.no_grad():
        return _own(narrow_backward(g, x, w, bias, Call(*call), needs), needs)


@rgb_narrow_grad.register_fake
def _(g, x, w, bias, *rest):
    return _like((x, torch.empty_like(w, memory_format=CONTIGUOUS), bias), rest[-1])


def _own(grads: tuple, needs: list[bool]) -> list[Tensor]:
    """Return the needed gradients. dw and dbias may be parts of one buffer, which an operator may not return."""
    dx, *parts = grads
    return _pick((dx, *(t if t is None else t.clone(memory_format=CONTIGUOUS) for t in parts)), needs)


def _rgb_narrow_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.call = Call(*inputs[3:])


def _rgb_narrow_gradient(ctx, g):
    needs, inputs = list(ctx.needs_input_grad[:3]), (g, *ctx.saved_tensors)
    if torch.is_grad_enabled():
        grads = narrow_backward(*inputs, ctx.call, needs)
    else:
        grads = _place(rgb_narrow_grad(*inputs, *ctx.call, needs), needs)
    return *grads, *(None,) * len(ctx.call)


rgb_narrow.register_autograd(_rgb_narrow_gradient, setup_context=_rgb_narrow_context)


# ---- from_rgb ----------------------------------------------------------------------------------------------------


@_operator(
    "rgb_wide", f"(Tensor image, Tensor w, Tensor? bias, float slope, float act_gain, {CALL}) -> Tensor"
)
def rgb_wide(image, w, bias, slope, act_gain, *call):
    return wide(image, w, Call(*call), bias, (slope, act_gain))


@rgb_wide.register_fake
def _(image, w, bias, slope, act_gain, *call):
    call = Call(*call)
    return new_image(image, w.shape[2], image.shape[2:], call.wide_nhwc, call.wide)


@_operator(
    "rgb_wide_grad",
    "(Tensor g, Tensor image, Tensor w, Tensor? bias, Tensor y, float slope, float act_gain, "
    f"{CALL}, bool[] needs) -> Tensor[]",
)
def rgb_wide_grad(g, image, w, bias, y, slope, act_gain, *rest):
    *call, needs = rest
    with torch.no_grad():
        grads = from_rgb_backward(g, image, w, bias, y, (slope, act_gain), Call(*call), needs)
        return _own(grads, needs)


@rgb_wide_grad.register_fake
def _(g, image, w, bias, *rest):
    return _like((image, torch.empty_like(w, memory_format=CONTIGUOUS), bias), rest[-1])


def _rgb_wide_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], output)
    ctx.act, ctx.call = inputs[3:5], Call(*inputs[5:])


def _rgb_wide_gradient(ctx, g):
    needs, inputs = list(ctx.needs_input_grad[:3]), (g, *ctx.saved_tensors)
    if torch.is_grad_enabled():
        grads = from_rgb_backward(*inputs, ctx.act, ctx.call, needs)
    else:
        grads = _place(rgb_wide_grad(*inputs, *ctx.act, *ctx.call, needs), needs)
    return *grads, *(None,) * (2 + len(ctx.call))


rgb_wide.register_autograd(_rgb_wide_gradient, setup_context=_rgb_wide_context)


# ---- act_filter, filter_act and filter_act_modulate --------------------------------------------------------------

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


@_operator("act_filter", f"(Tensor x, Tensor? bias, {ACT}, ScalarType into) -> Tensor")
def act_filter(x, bias, *rest):
    return act_filter_forward(x, bias, _act(*rest[:-1]), rest[-1])


@act_filter.register_fake
def _(x, bias, *rest):
    return _filtered(x, _act(*rest[:-1]).filter, rest[-1])


def _filtered(x: Tensor, call: _Call, dtype: torch.dtype) -> Tensor:
    return new_image(x, x.shape[1], call.out, call.nhwc, dtype)


@_operator("act_filter_grad", f"(Tensor g, Tensor x, Tensor? bias, {ACT}, bool[] needs) -> Tensor[]")
def act_filter_grad(g, x, bias, *rest):
    *plain, needs = rest
    return _pick(act_filter_backward(g, x, bias, _act(*plain), needs), needs)


@act_filter_grad.register_fake
def _(g, x, bias, *rest):
    return _like((x, bias), rest[-1])


def _act_filter_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.act = _act(*inputs[2:-1])


def _act_filter_gradient(ctx, g):
    needs, act = list(ctx.needs_input_grad[:2]), ctx.act
    if torch.is_grad_enabled():
        grads = _ActFilterGrad.apply(g, *ctx.saved_tensors, act, needs)
    else:
        grads = _place(act_filter_grad(g, *ctx.saved_tensors, *act.plain(), needs), needs)
    return *grads, *(None,) * len(act.plain()), None


act_filter.register_autograd(_act_filter_gradient, setup_context=_act_filter_context)


@_operator("filter_act", f"(Tensor x, {OTHERS}, {ACT}, ScalarType into) -> Tensor")
def filter_act(x, bias, noise, strength, scale, *rest):
    return filter_act_forward(x, bias, noise, strength, scale, _act(*rest[:-1]), rest[-1])


@filter_act.register_fake
def _(x, bias, noise, strength, scale, *rest):
    return _filtered(x, _act(*rest[:-1]).filter, rest[-1])


@_operator("filter_act_grad", f"(Tensor g, Tensor y, {OTHERS}, {ACT}, bool[] needs) -> Tensor[]")
def filter_act_grad(g, y, bias, noise, strength, scale, *rest):
    *plain, needs = rest
    return _pick(filter_act_backward(g, y, bias, noise, strength, scale, _act(*plain), needs), needs)


@filter_act_grad.register_fake
def _(g, y, bias, noise, strength, scale, *rest):
    *plain, needs = rest
    act = _act(*plain)
    return _like((_filtered(g, act.filter.adjoint(), act.dtype), bias, strength, scale), needs)


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
        grads = _place(filter_act_grad(g, *saved, *act.plain(), needs), needs)
    dx, dbias, dstrength, dscale = grads
    return dx, dbias, None, dstrength, dscale, *(None,) * len(act.plain()), None


filter_act.register_autograd(_filter_act_gradient, setup_context=_filter_act_context)


@_operator("filter_act_modulate", f"(Tensor x, {OTHERS}, Tensor style, {ACT}, ScalarType into) -> Tensor")
def filter_act_modulate(x, bias, noise, strength, scale, style, *rest):
    *plain, into = rest
    return filter_act_modulate_forward(x, bias, noise, strength, scale, style, _act(*plain), into)


@filter_act_modulate.register_fake
def _(x, bias, noise, strength, scale, style, *rest):
    return _filtered(x, _act(*rest[:-1]).filter, rest[-1])


@_operator(
    "filter_act_modulate_grad",
    f"(Tensor g, Tensor y, {OTHERS}, Tensor style, {ACT}, bool[] needs) -> Tensor[]",
)
def filter_act_modulate_grad(g, y, *rest):
    others, plain, needs = rest[:5], rest[5:-1], rest[-1]
    return _pick(filter_act_modulate_backward(g, y, *others, _act(*plain), needs), needs)


@filter_act_modulate_grad.register_fake
def _(g, y, bias, noise, strength, scale, style, *rest):
    *plain, needs = rest
    act = _act(*plain)
    return _like((_filtered(g, act.filter.adjoint(), act.dtype), bias, strength, scale, style), needs)


def _filter_act_modulate_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output, *inputs[1:6])
    ctx.act = _act(*inputs[6:-1])


def _filter_act_modulate_gradient(ctx, g):
    needs, act = [ctx.needs_input_grad[i] for i in (0, 1, 3, 4, 5)], ctx.act
    x, y, *others = ctx.saved_tensors
    if torch.is_grad_enabled():
        grads = three_ops_backward(g, x, *others, act, needs, y.dtype)
    else:
        grads = _place(filter_act_modulate_grad(g, y, *others, *act.plain(), needs), needs)
    dx, dbias, *more = grads
    return dx, dbias, None, *more, *(None,) * len(act.plain()), None


filter_act_modulate.register_autograd(
    _filter_act_modulate_gradient, setup_context=_filter_act_modulate_context
)
