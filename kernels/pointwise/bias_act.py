"""The op y = clamp(act(x * scale + noise * strength + bias) * gain), in one pass over memory.

It ends every StyleGAN2 layer (Karras et al. 2020, arXiv:1912.04958): demodulation scale, noise, bias, leaky ReLU and
gain. Eager PyTorch reads and writes the activation five times. This op reads it once and writes it once. The gradient
is one pass, too: the sums for bias, strength and scale are taken while dx is written. Each program leaves partial sums,
and they are added in a fixed order afterwards, so results are equal in every run.

The activation is piecewise linear. So the double backward (R1, path length) needs only the same mask again.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.arguments import check_act, check_once, check_tensors
from ..common.dependent_launch import after_previous
from ..common.needed import is_recorded, needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.sums import Sums, store_row, store_total
from ..common.tiles import (
    COUNTS,
    Tiling,
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
    tiling,
    tl,
    triton,
)
from ..linear.weight_gradients import defer
from .noise import check_noise, noise_stride


def bias_act(
    x: Tensor,
    bias: Tensor | None = None,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    scale: Tensor | None = None,
    act: str = "lrelu",
    slope: float = 0.2,
    gain: float | None = None,
    clamp: float | None = None,
) -> Tensor:
    """Compute clamp(act(x * scale + noise * strength + bias) * gain), fused. Differentiable twice.

    Args:
        x: [N, C, H, W] (NCHW or channels_last, kept) or [N, C]; float16, bfloat16, float32 or float64.
        bias: [C].
        noise: [N, 1, H, W] or [1, 1, H, W].
        strength: scalar tensor.
        scale: [N, C].
        act: "lrelu" (leaky ReLU with `slope`) or "linear".
        gain: sqrt(2) for lrelu and 1 for linear, unless given.
        clamp: bound on |y|, or None.

    Returns y like x, in x.dtype (autocast's dtype under autocast). Sums are kept in float32 (float64 for float64).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    slope, gain = _check(x, bias, noise, strength, scale, act, slope, gain, clamp)
    check_device(x)
    # Noise has gradients in projection only, which is rare: plain ops suffice.
    if noise is not None and noise.requires_grad and torch.is_grad_enabled():
        u = x if scale is None else x * scale.view(*scale.shape, 1, 1).to(x.dtype)
        x, scale = torch.addcmul(u, noise.to(x.dtype), strength.to(x.dtype)), None
        noise = strength = None
    bias, noise, strength, scale = [
        t if t is None or t.is_contiguous() else t.contiguous() for t in (bias, noise, strength, scale)
    ]
    x = dense(x)
    if torch.compiler.is_compiling():
        constants = (slope, gain, clamp, output_dtype(x))
        return OPERATORS.bias_act(x, bias, noise, strength, scale, *constants)
    call = Call(slope, gain, clamp, is_nhwc(x), x.dtype)
    return run_call(call, x, bias, noise, strength, scale, output_dtype(x))


def bias_act_reference(
    x: Tensor,
    bias: Tensor | None = None,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    scale: Tensor | None = None,
    act: str = "lrelu",
    slope: float = 0.2,
    gain: float | None = None,
    clamp: float | None = None,
) -> Tensor:
    """Compute `bias_act` in plain PyTorch. Arguments, result dtype and memory format as `bias_act`."""
    slope, gain = _check(x, bias, noise, strength, scale, act, slope, gain, clamp)
    u = x
    if scale is not None:
        u = u * (scale if x.dim() == 2 else scale[:, :, None, None])
    if noise is not None:
        u = u + noise * strength
    if bias is not None:
        u = u + (bias if x.dim() == 2 else bias[:, None, None])
    y = torch.nn.functional.leaky_relu(u, slope) if slope != 1 else u
    y = y * gain
    if clamp is not None:
        y = y.clamp(-clamp, clamp)
    return y.to(output_dtype(x))


def bytes_moved(
    x: Tensor, noise: Tensor | None = None, *, backward: bool = False, out: torch.dtype | None = None
) -> int:
    """Return the bytes that must cross memory: x and noise in, y out; backward: dy, kept activation in, dx out."""
    out_bytes = x.numel() * (out or x.dtype).itemsize
    activation = 2 * out_bytes + x.nbytes if backward else x.nbytes + out_bytes
    return activation + (noise.nbytes if noise is not None else 0)


@check_once
def _check(x, bias, noise, strength, scale, act, slope, gain, clamp=None, **needed) -> tuple[float, float]:
    """Validate the arguments, and return the activation's slope and gain. Only `needed` tensors must be given."""
    check_tensors({"x": x, **needed}, bias=bias, noise=noise, strength=strength, scale=scale)
    if x.dim() not in (2, 4):
        raise ValueError(f"x must be a float tensor [N, C] or [N, C, H, W], got {x.dtype} {tuple(x.shape)}")
    n, c = x.shape[:2]
    if bias is not None and bias.shape != (c,):
        raise ValueError(f"bias must be [C] = [{c}], got {tuple(bias.shape)}")
    if scale is not None and scale.shape != (n, c):
        raise ValueError(f"scale must be [N, C] = [{n}, {c}], got {tuple(scale.shape)}")
    check_noise(noise, strength, x)
    return check_act(act, slope, gain, clamp)


# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def activate(u, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr):
    """Compute clamp(leaky_relu(u) * gain). Comparisons are false for NaN, so NaN passes through as in PyTorch."""
    y = tl.where(u > 0, u, u * SLOPE) * GAIN
    if CLAMP is not None:
        bound = tl.full(y.shape, CLAMP, y.dtype)
        y = tl.where(y > bound, bound, tl.where(y < -bound, -bound, y))
    return y


@triton.jit
def activate_grad(g, u, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr):
    """Compute the gradient of `activate` at u along g: linear in g, constant in u. Double backward uses it again."""
    if CLAMP is not None:
        y = tl.where(u > 0, u, u * SLOPE) * GAIN
        bound = tl.full(y.shape, CLAMP, y.dtype)
        g = tl.where((y >= -bound) & (y <= bound), g, 0.0)
    return tl.where(u > 0, g, g * SLOPE) * GAIN


@triton.jit
def affine(u, s, e, k, b):
    """Compute u * scale + noise * strength + bias. Operands that are None drop out at compile time."""
    if s is not None:
        u = u * s
    if e is not None:
        u += e * k
    if b is not None:
        u += b
    return u


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
def bias_act_kernel(
    x, bias, noise, strength, scale, y,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(scale + n * C + c, c < C, WHOLE, ACC) if scale is not None else None
    b = load(bias + c, c < C, WHOLE, ACC) if bias is not None else None
    k = tl.load(strength).to(ACC) if strength is not None else None
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        u = load(x + at + ij, inside, WHOLE, ACC)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        store(y + at + ij, activate(affine(u, s, e, k, b), SLOPE, GAIN, CLAMP), inside, WHOLE)


@triton.jit(do_not_specialize=COUNTS)
def bias_act_grad_kernel(
    g, ref, bias, noise, strength, scale, dx, dscale, dbias, dstrength,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SAVED_X: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx, and each program's sums over its pixels of dscale, dbias and dstrength.

    ref is x (SAVED_X), or y, whose sign is the mask, or None where the gradient does not depend on it.
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(scale + n * C + c, c < C, WHOLE, ACC) if scale is not None else None
    b = load(bias + c, c < C, WHOLE, ACC) if bias is not None else None
    k = tl.load(strength).to(ACC) if strength is not None else None
    sum_du = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_x = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        du = load(g + at + ij, inside, WHOLE, ACC)
        x = load(ref + at + ij, inside, WHOLE, ACC) if ref is not None else du
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        du = activate_grad(du, affine(x, s, e, k, b) if SAVED_X else x, SLOPE, GAIN, CLAMP)
        if dbias is not None:
            sum_du += du
        if dscale is not None:
            sum_du_x += du * x
        if dstrength is not None:
            sum_du_noise += du * e
        if dx is not None:
            store(dx + at + ij, affine(du, s, None, None, None), inside, WHOLE)
    if dscale is not None:
        store_row(dscale, sum_du_x, C, BLOCK_C)
    if dbias is not None:
        store_row(dbias, sum_du, C, BLOCK_C)
    if dstrength is not None:
        store_total(dstrength, sum_du_noise)


@triton.jit(do_not_specialize=COUNTS)
def bias_act_grad_grad_kernel(
    g, ref, bias, noise, strength, scale, ddx, ddbias, ddstrength, ddscale, dg, dx, dscale,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SAVED_X: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of `bias_act_grad_kernel` along those of its outputs (dd*): dg, dx and sums of dscale.

    dg is the forward pass linearized at u: mask * (ddx * scale + ddbias + noise * ddstrength + x * ddscale).
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(scale + n * C + c, c < C, WHOLE, ACC) if scale is not None else None
    b = load(bias + c, c < C, WHOLE, ACC) if bias is not None else None
    k = tl.load(strength).to(ACC) if strength is not None else None
    dds = load(ddscale + n * C + c, c < C, WHOLE, ACC) if ddscale is not None else None
    ddb = load(ddbias + c, c < C, WHOLE, ACC) if ddbias is not None else None
    ddk = tl.load(ddstrength).to(ACC) if ddstrength is not None else None
    sum_du_ddx = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        v = tl.zeros([BLOCK_P, BLOCK_C], ACC)
        x = load(ref + at + ij, inside, WHOLE, ACC) if ref is not None else v
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = affine(x, s, e, k, b) if SAVED_X else x
        if (dx is not None) or (dscale is not None):
            du = activate_grad(load(g + at + ij, inside, WHOLE, ACC), u, SLOPE, GAIN, CLAMP)
        if ddx is not None:
            v = load(ddx + at + ij, inside, WHOLE, ACC)
            if dscale is not None:
                sum_du_ddx += du * v
        v = affine(v, s, e if ddstrength is not None else None, ddk, ddb)
        if ddscale is not None:
            v += x * dds
            if dx is not None:
                store(dx + at + ij, du * dds, inside, WHOLE)
        store(dg + at + ij, activate_grad(v, u, SLOPE, GAIN, CLAMP), inside, WHOLE)
    if dscale is not None:
        store_row(dscale, sum_du_ddx, C, BLOCK_C)


# ---- autograd ----------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """The plain facts of one call that its gradients need again."""

    slope: float
    gain: float
    clamp: float | None
    nhwc: bool
    dtype: torch.dtype  # of x

    def saves(self, scaled: bool) -> str:
        """Return the name of the cheapest tensor to keep for the gradient.

        The gradient may be constant: nothing is kept. "y": its sign is the mask, and the next layer keeps it anyway.
        "x": its values are needed.
        """
        if self.slope == 1 and self.clamp is None and not scaled:
            return ""
        return "x" if scaled or self.clamp is not None or self.slope <= 0 or self.gain <= 0 else "y"

    def launch(self, kernel, t: Tiling, noise: Tensor | None, pointers: tuple, **constants) -> None:
        act = {"SLOPE": self.slope, "GAIN": self.gain, "CLAMP": self.clamp}
        launch(kernel, t, pointers, self.dtype, noise_stride(noise), **constants, **act)

    def tiling(self, like: Tensor, direction: str, noise: Tensor | None, scale: Tensor | None) -> Tiling:
        merge = scale is None and (noise is None or noise.shape[0] == like.shape[0])
        op = "bias_act" if scale is None else "scaled_bias_act"
        return tiling(like.shape, self.nhwc, op, direction, self.dtype, like.device, merge)


def forward(x, bias, noise, strength, scale, call: Call, dtype: torch.dtype) -> Tensor:
    """Compute y for dense tensors."""
    y = torch.empty_like(x, dtype=dtype)
    t = call.tiling(x, "forward", noise, scale)
    call.launch(bias_act_kernel, t, noise, (x, bias, noise, strength, scale, y))
    return y


def backward(g, ref, bias, noise, strength, scale, call: Call, needs: tuple[bool, ...], once: bool = True):
    """Compute dx, dbias, dstrength, dscale (None where not needed) of `bias_act` for the gradient g of y.

    once: nobody differentiates them. Then dbias is offered to `defer` if it is the only sum: no other kernel reads it.
    """
    g = dense_as(g, call.nhwc)
    t = call.tiling(g, "backward", noise, scale)
    dx = torch.empty_like(g, dtype=call.dtype) if needs[0] else None
    wanted = ((scale, needs[3]), (bias, needs[1]), (strength, needs[2]))
    sums = Sums(t, call.dtype, *[torch.empty_like(like) if need else None for like, need in wanted])
    pointers = (g, ref, bias, noise, strength, scale, dx, *sums.into)
    saved_x = call.saves(scale is not None) == "x"
    call.launch(bias_act_grad_kernel, t, noise, pointers, SAVED_X=saved_x)
    alone = once and needs[1:] == (True, False, False)
    if alone and sums.pending and defer((bias,), lambda: sums.finish()[1:2]):
        return dx, None, None, None
    dscale, dbias, dstrength = sums.finish()
    return dx, dbias, dstrength, dscale


def run_call(call: Call, x, bias, noise, strength, scale, dtype: torch.dtype) -> Tensor:
    """Compute y for checked, dense tensors."""
    run = _BiasAct.apply if is_recorded(x, bias, strength, scale) else forward
    return run(x, bias, noise, strength, scale, call, dtype)


class _BiasAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, noise, strength, scale, call, dtype):
        y = forward(x, bias, noise, strength, scale, call, dtype)
        ref = {"": None, "x": x, "y": y}[call.saves(scale is not None)]
        ctx.save_for_backward(ref, bias, noise, strength, scale)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return y

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 7
        saved = ctx.saved_tensors
        needs = needed(ctx, (True, *[t is not None for t in saved[1:]]))
        grad = _BiasActGrad.apply if torch.is_grad_enabled() else backward
        dx, dbias, dstrength, dscale = grad(g, *saved, ctx.call, (needs[0], needs[1], needs[3], needs[4]))
        return dx, dbias, None, dstrength, dscale, None, None


class _BiasActGrad(torch.autograd.Function):
    """`backward` as a function that can be differentiated itself."""

    @staticmethod
    def forward(ctx, g, ref, bias, noise, strength, scale, call, needs):
        ctx.save_for_backward(g, ref, bias, noise, strength, scale)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return backward(g, ref, bias, noise, strength, scale, call, needs, once=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddbias, ddstrength, ddscale):
        if ddx is None and ddbias is None and ddstrength is None and ddscale is None:
            return (None,) * 8
        call, saved = ctx.call, ctx.saved_tensors
        g, _, _, noise, _, scale = saved
        needs = needed(ctx, tuple(t is not None for t in saved))
        g = dense_as(g, call.nhwc)
        ddx = None if ddx is None else dense_as(ddx, call.nhwc)
        ddbias, ddscale = (None if d is None else d.contiguous() for d in (ddbias, ddscale))
        t = call.tiling(g, "double_backward", noise, scale)
        dg = torch.empty_like(g)
        saved_x = call.saves(scale is not None) == "x"
        need_x, need_scale = saved_x and needs[1] and ddscale is not None, needs[5] and ddx is not None
        dx = torch.empty_like(g, dtype=call.dtype) if need_x else None
        sums = Sums(t, call.dtype, torch.empty_like(scale) if need_scale else None, None, None)
        pointers = (g, *saved[1:], ddx, ddbias, ddstrength, ddscale, dg, dx, sums.into[0])
        call.launch(bias_act_grad_grad_kernel, t, noise, pointers, SAVED_X=saved_x)
        return dg, dx, None, None, None, sums.finish()[0], None, None


# ---- the operator for torch.compile --------------------------------------------------------------------------------


@operator(
    "bias_act",
    "(Tensor x, Tensor? bias, Tensor? noise, Tensor? strength, Tensor? scale, float slope, float gain, "
    "float? clamp, ScalarType dtype) -> Tensor",
)
def bias_act_operator(x, bias, noise, strength, scale, slope, gain, clamp, dtype):
    call = Call(slope, gain, clamp, is_nhwc(x), x.dtype)
    return forward(x, bias, noise, strength, scale, call, dtype)


@bias_act_operator.register_fake
def _(x, bias, noise, strength, scale, slope, gain, clamp, dtype):
    return torch.empty_like(x, dtype=dtype)


@operator(
    "bias_act_grad",
    "(Tensor g, Tensor? ref, Tensor? bias, Tensor? noise, Tensor? strength, Tensor? scale, float slope, "
    "float gain, float? clamp, bool nhwc, ScalarType dtype, bool[] needs) -> Tensor[]",
)
def bias_act_grad(g, ref, bias, noise, strength, scale, slope, gain, clamp, nhwc, dtype, needs):
    call = Call(slope, gain, clamp, nhwc, dtype)
    return pick(backward(g, ref, bias, noise, strength, scale, call, needs), needs)


@bias_act_grad.register_fake
def _(g, ref, bias, noise, strength, scale, slope, gain, clamp, nhwc, dtype, needs):
    return empty_like((dense_as(g, nhwc).to(dtype), bias, strength, scale), needs)


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
        grads = place(bias_act_grad(g, *ctx.saved_tensors, *ctx.call, needs), needs)
    dx, dbias, dstrength, dscale = grads
    return dx, dbias, None, dstrength, dscale, None, None, None, None


bias_act_operator.register_autograd(_bias_act_gradient, setup_context=_bias_act_context)
