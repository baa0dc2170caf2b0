"""The two ends of a residual block, each in a pass that exists anyway: the sum behind it, the fork before it.

`bias_act_residual` is y = act(x + bias) * gain + residual. The sum costs one more read instead of a pass of its own.
The gradient of the residual is the gradient of y. The sign of y no longer tells the activation's mask, so x is kept.

`fork_upfirdn2d` reads the block's input once. It returns it for one branch, and filtered for the other. Its gradient is
the sum of both branches' gradients, taken where the filter's gradient is written (`_Join`). Fork and join are adjoints:
the gradient of one is the other, to any order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.dependent_launch import after_previous
from ..common.needed import needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.tiles import (
    COUNTS,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    launch,
    load,
    my_tiles,
    output_dtype,
    store,
    tile_at,
    tl,
    triton,
)
from ..upfirdn.upfirdn2d import _Call, _plan, upfirdn2d_reference
from ..upfirdn.upfirdn2d import bytes_moved as upfirdn2d_bytes_moved
from ..upfirdn.upfirdn2d import forward as launch_upfirdn2d
from .bias_act import (
    Call,
    _BiasActGrad,
    _check,
    activate,
    affine,
    backward,
    bias_act_reference,
)


def bias_act_residual(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    *,
    act: str = "lrelu",
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """Compute act(x + bias) * gain + residual, fused. Differentiable twice.

    Args:
        x: [N, C, H, W] (NCHW or channels_last, kept) or [N, C]; float16, bfloat16, float32 or float64.
        bias: [C].
        residual: as x. Another dtype or memory format is converted.
        act, slope, gain: as `bias_act`.

    Returns y like x, in x.dtype (autocast's dtype under autocast), rounded once, after the sum.
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    slope, gain = _check_residual(x, bias, residual, act, slope, gain)
    check_device(x)
    x, bias = dense(x), None if bias is None else bias.contiguous()
    call = ResidualCall(slope, gain, None, is_nhwc(x), x.dtype)
    residual = dense_as(residual.to(output_dtype(x)), call.nhwc)
    if torch.compiler.is_compiling():
        return OPERATORS.bias_act_residual(x, bias, residual, slope, gain, output_dtype(x))
    return _BiasActResidual.apply(x, bias, residual, call, output_dtype(x))


def bias_act_residual_reference(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    *,
    act: str = "lrelu",
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """Compute `bias_act_residual` in plain PyTorch. Arguments and result as `bias_act_residual`."""
    _check_residual(x, bias, residual, act, slope, gain)
    y = bias_act_reference(x, bias, act=act, slope=slope, gain=gain)
    return y + residual.to(y.dtype)


def fork_upfirdn2d(x: Tensor, taps: Sequence[float], **options) -> tuple[Tensor, Tensor]:
    """Return (x, upfirdn2d(x, taps, ...)). Their gradients are summed in the filter's pass.

    Differentiable to any order. Arguments, memory formats, dtypes and errors as `upfirdn2d`.
    """
    call = _plan(x, taps, **{"up": 1, "down": 1, "padding": 0, "gain": 1.0, "flip": False} | options)
    check_device(x)
    x = dense(x)
    call = call._replace(nhwc=not x.is_contiguous())
    # An operator may not return its input. The sum is left to the compiler.
    if torch.compiler.is_compiling():
        return x, OPERATORS.upfirdn2d(x, *call)
    return _Fork.apply(x, call)


def fork_upfirdn2d_reference(x: Tensor, taps: Sequence[float], **options) -> tuple[Tensor, Tensor]:
    """Compute `fork_upfirdn2d` in plain PyTorch. Arguments as `fork_upfirdn2d`."""
    return x, upfirdn2d_reference(x, taps, **options)


def bytes_moved(x: Tensor, *, backward: bool = False, out: torch.dtype | None = None) -> int:
    """Return the bytes of `bias_act_residual`: x and residual in, y out; backward: dy and x in, dx out.

    The residual's gradient is dy itself and moves no bytes.
    """
    out_bytes = x.numel() * (out or x.dtype).itemsize
    return 2 * x.nbytes + out_bytes if backward else x.nbytes + 2 * out_bytes


def fork_bytes_moved(x: Tensor, taps: Sequence[float], *, backward: bool = False, **options) -> int:
    """Return the bytes of `fork_upfirdn2d`: x in, the filtered image out; backward: both gradients in, dx out."""
    return upfirdn2d_bytes_moved(x, taps, **options) + (x.nbytes if backward else 0)


def _check_residual(x, bias, residual, act, slope, gain) -> tuple[float, float]:
    found = _check(x, bias, None, None, None, act, slope, gain, residual=residual)
    if residual.shape != x.shape:
        raise ValueError(
            f"residual must be a float tensor of x's shape {tuple(x.shape)}, "
            f"got {residual.dtype} {tuple(residual.shape)}"
        )
    return found


# ---- the sum behind a block --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
def bias_act_residual_kernel(
    x, bias, residual, y, C, P, stride_p, stride_c, tiles, programs,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_previous(DEPENDENT)
    _, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    b = load(bias + c, c < C, WHOLE, ACC) if bias is not None else None
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        _, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        u = affine(load(x + at + ij, inside, WHOLE, ACC), None, None, None, b)
        r = load(residual + at + ij, inside, WHOLE, ACC)
        store(y + at + ij, activate(u, SLOPE, GAIN, None) + r, inside, WHOLE)


class ResidualCall(Call):
    """A call of `bias_act` with a residual added: x tells the mask, y does not."""

    def saves(self, scaled: bool) -> str:
        return "x" if super().saves(scaled) else ""


def forward(x, bias, residual, call: ResidualCall, dtype: torch.dtype) -> Tensor:
    """Compute y, for dense tensors in one memory format, with residual in y's dtype."""
    y = torch.empty_like(x, dtype=dtype)
    t = call.tiling(x, "forward", None, None)
    constants = {"SLOPE": call.slope, "GAIN": call.gain}
    launch(bias_act_residual_kernel, t, (x, bias, residual, y), call.dtype, **constants)
    return y


class _BiasActResidual(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, residual, call, dtype):
        ctx.save_for_backward(x if call.saves(False) else None, bias)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return forward(x, bias, residual, call, dtype)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 5
        x, bias = ctx.saved_tensors
        needs = needed(ctx, (True, bias is not None, True))
        dx = dbias = None
        if needs[0] or needs[1]:
            grad = _BiasActGrad.apply if torch.is_grad_enabled() else backward
            wanted = (needs[0], needs[1], False, False)
            dx, dbias, _, _ = grad(g, x, bias, None, None, None, ctx.call, wanted)
        return dx, dbias, g if needs[2] else None, None, None


# ---- the fork before it ------------------------------------------------------------------------------------------


class _Fork(torch.autograd.Function):
    """The map x -> (x, F x). Its adjoint is `_Join`."""

    @staticmethod
    def forward(ctx, x, call: _Call):
        ctx.call = call
        ctx.set_materialize_grads(False)
        return x.view_as(x), launch_upfirdn2d(x, call)

    @staticmethod
    def backward(ctx, g, filtered):
        if filtered is None:
            return g, None
        call = ctx.call.adjoint()
        filtered = dense_as(filtered, call.nhwc)
        return _Join.apply(None if g is None else dense_as(g, call.nhwc), filtered, call), None


class _Join(torch.autograd.Function):
    """The map (a, b) -> a + F b, rounded once. a may be None. Its adjoint is `_Fork` with F's adjoint."""

    @staticmethod
    def forward(ctx, a, b, call: _Call):
        ctx.call = call
        ctx.set_materialize_grads(False)
        return launch_upfirdn2d(b, call, a)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None, None
        call = ctx.call.adjoint()
        same, filtered = _Fork.apply(dense_as(g, call.nhwc), call)
        return same if ctx.needs_input_grad[0] else None, filtered, None


# ---- the operator for torch.compile --------------------------------------------------------------------------------


@operator(
    "bias_act_residual",
    "(Tensor x, Tensor? bias, Tensor residual, float slope, float gain, ScalarType dtype) -> Tensor",
)
def bias_act_residual_operator(x, bias, residual, slope, gain, dtype):
    call = ResidualCall(slope, gain, None, is_nhwc(x), x.dtype)
    return forward(x, bias, residual, call, dtype)


@bias_act_residual_operator.register_fake
def _(x, bias, residual, slope, gain, dtype):
    return torch.empty_like(x, dtype=dtype)


@operator(
    "bias_act_residual_grad",
    "(Tensor g, Tensor? x, Tensor? bias, float slope, float gain, bool nhwc, ScalarType dtype, bool[] "
    "needs) -> Tensor[]",
)
def bias_act_residual_grad(g, x, bias, slope, gain, nhwc, dtype, needs):
    call, wanted = ResidualCall(slope, gain, None, nhwc, dtype), (*needs, False, False)
    return pick(backward(g, x, bias, None, None, None, call, wanted), wanted)


@bias_act_residual_grad.register_fake
def _(g, x, bias, slope, gain, nhwc, dtype, needs):
    return empty_like((dense_as(g, nhwc).to(dtype), bias), needs)


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
        dx, dbias = place(bias_act_residual_grad(g, x, bias, *constants, needs), needs)
    return dx, dbias, g, None, None, None


bias_act_residual_operator.register_autograd(
    _bias_act_residual_gradient, setup_context=_bias_act_residual_context
)
