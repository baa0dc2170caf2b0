"""y = clamp(act(x * scale + noise * strength + bias) * gain) in one pass over memory.

The tail of every StyleGAN2 layer (Karras et al. 2020, arXiv:1912.04958): demodulation scale, noise, bias, leaky ReLU
and its gain. Eager PyTorch reads and writes the activation five times; this reads it once and writes it once. The
gradient is one pass too: bias, strength and scale are reduced while dx is written, as partial sums per program that are
added in a fixed order afterwards, so results are the same on every run.

The activation is piecewise linear, hence the double backward (R1, path length) needs only the same mask again.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.tiles import (
    Tiling,
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    output_dtype,
    store_row,
    tile_offsets,
    tiling,
    tl,
    triton,
)


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
    """clamp(act(x * scale + noise * strength + bias) * gain), fused; differentiable twice.

    Args:
        x: [N, C, H, W] (NCHW or channels_last, kept) or [N, C]; float16, bfloat16, float32 or float64.
        bias: [C].  noise: [N, 1, H, W] or [1, 1, H, W].  strength: scalar tensor.  scale: [N, C].
        act: "lrelu" (leaky ReLU with `slope`) or "linear".
        gain: sqrt(2) for lrelu, 1 for linear, unless given.  clamp: bound on |y|, or None.

    Returns y like x, in x.dtype (autocast's dtype under autocast). Sums are kept in float32 (float64 for float64).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    slope, gain = _check(x, bias, noise, strength, scale, act, slope, gain)
    check_device(x)
    if (
        noise is not None and noise.requires_grad and torch.is_grad_enabled()
    ):  # projection: rare, so plain ops
        u = x if scale is None else x * scale.view(*scale.shape, 1, 1).to(x.dtype)
        x, scale = torch.addcmul(u, noise.to(x.dtype), strength.to(x.dtype)), None
        noise = strength = None
    bias, noise, strength, scale = (
        t if t is None else t.contiguous() for t in (bias, noise, strength, scale)
    )
    return _BiasAct.apply(dense(x), bias, noise, strength, scale, slope, gain, clamp, output_dtype(x))


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
    """`bias_act` in plain PyTorch: the same arguments, result dtype and memory format."""
    slope, gain = _check(x, bias, noise, strength, scale, act, slope, gain)
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
    """Bytes that must cross memory: x in, y out, noise in; backward: dy and the saved activation in, dx out."""
    out_bytes = x.numel() * (out or x.dtype).itemsize
    activation = 2 * out_bytes + x.nbytes if backward else x.nbytes + out_bytes
    return activation + (noise.nbytes if noise is not None else 0)


def _check(x, bias, noise, strength, scale, act, slope, gain) -> tuple[float, float]:
    """Validate, and fill in the activation's slope and gain."""
    if x.dim() not in (2, 4) or not x.is_floating_point():
        raise ValueError(f"x must be a float tensor [N, C] or [N, C, H, W], got {x.dtype} {tuple(x.shape)}")
    n, c = x.shape[:2]
    if bias is not None and bias.shape != (c,):
        raise ValueError(f"bias must be [C] = [{c}], got {tuple(bias.shape)}")
    if scale is not None and scale.shape != (n, c):
        raise ValueError(f"scale must be [N, C] = [{n}, {c}], got {tuple(scale.shape)}")
    if (noise is None) != (strength is None) or (strength is not None and strength.numel() != 1):
        raise ValueError("noise and strength come together, and strength is a scalar tensor")
    if noise is not None and (
        x.dim() != 4 or noise.shape not in ((n, 1, *x.shape[2:]), (1, 1, *x.shape[2:]))
    ):
        raise ValueError(f"noise must be [N or 1, 1, H, W] for x {tuple(x.shape)}, got {tuple(noise.shape)}")
    if act not in ("lrelu", "linear"):
        raise ValueError(f'act must be "lrelu" or "linear", got {act!r}')
    if act == "linear":
        return 1.0, 1.0 if gain is None else float(gain)
    return float(slope), math.sqrt(2) if gain is None else float(gain)


# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def activate(u, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr):
    """clamp(leaky_relu(u) * gain). Comparisons are false for NaN, so NaN passes through as in PyTorch."""
    y = tl.where(u > 0, u, u * SLOPE) * GAIN
    if CLAMP is not None:
        bound = tl.full(y.shape, CLAMP, y.dtype)
        y = tl.where(y > bound, bound, tl.where(y < -bound, -bound, y))
    return y


@triton.jit
def activate_grad(g, u, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr):
    """Gradient of `activate` at u along g. Linear in g and constant in u: it serves the double backward as well."""
    if CLAMP is not None:
        y = tl.where(u > 0, u, u * SLOPE) * GAIN
        bound = tl.full(y.shape, CLAMP, y.dtype)
        g = tl.where((y >= -bound) & (y <= bound), g, 0.0)
    return tl.where(u > 0, g, g * SLOPE) * GAIN


@triton.jit
def affine(u, n, p, c, C, P, bias, noise, strength, scale, noise_stride):
    """u * scale + noise * strength + bias on one tile; whichever pointers are None drop out at compile time."""
    if scale is not None:
        u = u * tl.load(scale + n * C + c, c < C, 0.0).to(u.dtype)
    if noise is not None:
        pixel = n.to(tl.int64) * noise_stride + p
        u += tl.load(noise + pixel, p < P, 0.0).to(u.dtype) * tl.load(strength).to(u.dtype)
    if bias is not None:
        u += tl.load(bias + c, c < C, 0.0).to(u.dtype)
    return u


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def bias_act_kernel(
    x, bias, noise, strength, scale, y,
    C, P, stride_p, stride_c, tiles, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr,
    ACC: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, 0, 1, BLOCK_P, BLOCK_C)
    u = tl.load(x + at, inside, 0.0).to(ACC)
    u = affine(u, n, p, c, C, P, bias, noise, strength, scale, noise_stride)
    tl.store(y + at, activate(u, SLOPE, GAIN, CLAMP), inside)


@triton.jit
def bias_act_grad_kernel(
    g, ref, bias, noise, strength, scale, dx, dbias, dstrength, dscale,
    C, P, stride_p, stride_c, tiles, noise_stride,
    SAVED_X: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx, and one row of partial sums per program: dbias, dscale [rows, C], dstrength [rows, tiles of channels].

    ref is x (SAVED_X), or y, whose sign is the mask, or None where the gradient does not depend on it.
    """
    sum_du = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_x = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        du = tl.load(g + at, inside, 0.0).to(ACC)
        x = du  # any value will do where the gradient does not depend on it
        if ref is not None:
            x = tl.load(ref + at, inside, 0.0).to(ACC)
        u = x
        if SAVED_X:
            u = affine(x, n, p, c, C, P, bias, noise, strength, scale, noise_stride)
        du = activate_grad(du, u, SLOPE, GAIN, CLAMP)
        if dbias is not None:
            sum_du += du
        if dscale is not None:
            sum_du_x += du * x
        if dstrength is not None:
            sum_du_noise += du * tl.load(noise + n.to(tl.int64) * noise_stride + p, p < P, 0.0).to(ACC)
        if dx is not None:
            if scale is not None:
                du = du * tl.load(scale + n * C + c, c < C, 0.0).to(ACC)
            tl.store(dx + at, du, inside)

    if dbias is not None:
        store_row(dbias, tl.sum(sum_du, 0), C, BLOCK_C)
    if dscale is not None:
        store_row(dscale, tl.sum(sum_du_x, 0), C, BLOCK_C)
    if dstrength is not None:
        at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        tl.store(dstrength + at, tl.sum(tl.sum(sum_du_noise, 0), 0))


@triton.jit
def bias_act_grad_grad_kernel(
    g, ref, bias, noise, strength, scale, ddx, ddbias, ddstrength, ddscale, dg, dx, dscale,
    C, P, stride_p, stride_c, tiles, noise_stride,
    SAVED_X: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of `bias_act_grad_kernel`, given that of its outputs (dd*): dg, dx and partial sums of dscale.

    dg is the forward pass linearized at u: mask * (ddx * scale + ddbias + noise * ddstrength + x * ddscale).
    """
    sum_du_ddx = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        v = tl.zeros([BLOCK_P, BLOCK_C], ACC)
        x = v
        if ref is not None:
            x = tl.load(ref + at, inside, 0.0).to(ACC)
        u = x
        if SAVED_X:
            u = affine(x, n, p, c, C, P, bias, noise, strength, scale, noise_stride)
        if (dx is not None) or (dscale is not None):
            du = activate_grad(tl.load(g + at, inside, 0.0).to(ACC), u, SLOPE, GAIN, CLAMP)
        if ddx is not None:
            v = tl.load(ddx + at, inside, 0.0).to(ACC)
            if dscale is not None:
                sum_du_ddx += du * v
        v = affine(
            v,
            n,
            p,
            c,
            C,
            P,
            ddbias,
            noise if ddstrength is not None else None,
            ddstrength,
            scale,
            noise_stride,
        )
        if ddscale is not None:
            t = tl.load(ddscale + n * C + c, c < C, 0.0).to(ACC)
            v += x * t
            if dx is not None:
                tl.store(dx + at, du * t, inside)
        tl.store(dg + at, activate_grad(v, u, SLOPE, GAIN, CLAMP), inside)
    if dscale is not None:
        store_row(dscale, tl.sum(sum_du_ddx, 0), C, BLOCK_C)


# ---- autograd ----------------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """The plain facts of one call that its gradients need again."""

    slope: float
    gain: float
    clamp: float | None
    saved_x: bool
    nhwc: bool
    merge: bool  # nothing is per sample, so samples need not be told apart
    dtype: torch.dtype  # of x
    needs: tuple[bool, ...] = ()  # which of dx, dbias, dstrength, dscale to compute


def _launch(kernel, t: Tiling, call: _Call, noise: Tensor | None, pointers: tuple, **constants) -> None:
    """Run `kernel` over the tiles t."""
    if t.grid[0] * t.grid[1] == 0:
        return
    noise_stride = 0 if noise is None or noise.shape[0] == 1 else noise.shape[2] * noise.shape[3]
    kernel[t.grid](
        *pointers,
        *t.sizes,
        noise_stride,
        SLOPE=call.slope,
        GAIN=call.gain,
        CLAMP=call.clamp,
        ACC=tl.float64 if call.dtype is torch.float64 else tl.float32,
        BLOCK_P=t.block_p,
        BLOCK_C=t.block_c,
        **constants,
    )


class _BiasAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, noise, strength, scale, slope, gain, clamp, dtype):
        y = torch.empty_like(x, dtype=dtype)
        merge = scale is None and (noise is None or noise.shape[0] == x.shape[0])
        # The cheapest thing to keep: nothing where the gradient is constant; y, whose sign is the mask (and which the
        # next layer keeps anyway); x where its values are needed.
        constant = slope == 1 and clamp is None and scale is None
        saved_x = not constant and (scale is not None or clamp is not None or slope <= 0 or gain <= 0)
        call = _Call(slope, gain, clamp, saved_x, is_nhwc(x), merge, x.dtype)
        t = tiling(x.shape, call.nhwc, merge)
        _launch(bias_act_kernel, t, call, noise, (x, bias, noise, strength, scale, y))
        ctx.save_for_backward(None if constant else x if saved_x else y, bias, noise, strength, scale)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return y

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 9
        needs = ctx.needs_input_grad
        call = ctx.call._replace(needs=(needs[0], needs[1], needs[3], needs[4]))
        grad = _BiasActGrad.apply if torch.is_grad_enabled() else _grad
        dx, dbias, dstrength, dscale = grad(g, *ctx.saved_tensors, call)
        return dx, dbias, None, dstrength, dscale, None, None, None, None


def _grad(g, ref, bias, noise, strength, scale, call: _Call):
    """dx, dbias, dstrength, dscale (None where not needed) of `bias_act` for the gradient g of y."""
    need_x, need_bias, need_strength, need_scale = call.needs
    g = dense_as(g, call.nhwc)
    t = tiling(g.shape, call.nhwc, call.merge, any(call.needs[1:]))
    acc = accumulator(call.dtype)
    dx = torch.empty_like(g, dtype=call.dtype) if need_x else None
    dbias = g.new_empty((t.rows, g.shape[1]), dtype=acc) if need_bias else None
    dstrength = g.new_empty(t.grid, dtype=acc) if need_strength else None
    dscale = g.new_empty((t.samples, t.tiles, g.shape[1]), dtype=acc) if need_scale else None
    pointers = (g, ref, bias, noise, strength, scale, dx, dbias, dstrength, dscale)
    _launch(bias_act_grad_kernel, t, call, noise, pointers, SAVED_X=call.saved_x, STEPS=t.steps)
    return (
        dx,
        dbias.sum(0).to(bias.dtype) if need_bias else None,
        dstrength.sum().view(strength.shape).to(strength.dtype) if need_strength else None,
        dscale.sum(1).to(scale.dtype) if need_scale else None,
    )


class _BiasActGrad(torch.autograd.Function):
    """`_grad` as a function that can be differentiated itself."""

    @staticmethod
    def forward(ctx, g, ref, bias, noise, strength, scale, call):
        ctx.save_for_backward(g, ref, bias, noise, strength, scale)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return _grad(g, ref, bias, noise, strength, scale, call)

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddbias, ddstrength, ddscale):
        if ddx is None and ddbias is None and ddstrength is None and ddscale is None:
            return (None,) * 7
        g, ref, bias, noise, strength, scale = ctx.saved_tensors
        call = ctx.call
        need_x = call.saved_x and ctx.needs_input_grad[1] and ddscale is not None
        need_scale = scale is not None and ctx.needs_input_grad[5] and ddx is not None
        g = dense_as(g, call.nhwc)
        ddx = None if ddx is None else dense_as(ddx, call.nhwc)
        ddscale = None if ddscale is None else ddscale.contiguous()
        t = tiling(g.shape, call.nhwc, call.merge, need_scale)
        dg = torch.empty_like(g)
        dx = torch.empty_like(g, dtype=call.dtype) if need_x else None
        rows = (t.samples, t.tiles, g.shape[1])
        dscale = g.new_empty(rows, dtype=accumulator(call.dtype)) if need_scale else None
        pointers = (g, ref, bias, noise, strength, scale, ddx, ddbias, ddstrength, ddscale, dg, dx, dscale)
        _launch(bias_act_grad_grad_kernel, t, call, noise, pointers, SAVED_X=call.saved_x, STEPS=t.steps)
        return dg, dx, None, None, None, dscale.sum(1).to(scale.dtype) if need_scale else None, None
