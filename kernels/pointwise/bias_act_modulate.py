"""The op y = leaky_relu(x * scale + noise * strength + bias) * gain, z = y * style: `bias_act` with a second result.

Two layers read the last activation of a synthesis block: toRGB as it is, and the next block's first layer modulated by
a style. Both are written by the pass that has the activation in registers. Backward one pass reads both gradients. It
replaces the gradient of `modulate`, the addition that autograd makes of the two, and the gradient of `bias_act`.

Differentiated twice, the op falls back on `bias_act` and `modulate`.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.dependent_launch import after_previous
from ..common.needed import needed
from ..common.sums import Sums, store_row, store_total
from ..common.tiles import (
    COUNTS,
    Tiling,
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    load,
    my_tiles,
    output_dtype,
    store,
    tile_at,
    tiling,
    tl,
    triton,
)
from .bias_act import (
    Call,
    _BiasActGrad,
    _check,
    activate,
    activate_grad,
    affine,
    bias_act,
    bias_act_reference,
    forward,
)
from .modulate import _ModulateGrad, modulate, modulate_reference


def bias_act_modulate(
    x: Tensor,
    bias: Tensor,
    style: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    scale: Tensor | None = None,
    slope: float = 0.2,
    gain: float = math.sqrt(2),
) -> tuple[Tensor, Tensor]:
    """Return `bias_act` of x, and that times style [N, C], fused. Differentiable twice.

    Arguments, results and errors are as `bias_act`.
    """
    slope, gain = _check(x, bias, noise, strength, scale, "lrelu", slope, gain, style=style)
    if x.dim() != 4 or style.shape != x.shape[:2]:
        raise ValueError(f"need x [N, C, H, W] and style [N, C], got {tuple(x.shape)}, {tuple(style.shape)}")
    learns = noise is not None and noise.requires_grad and torch.is_grad_enabled()  # in projection only
    if torch.compiler.is_compiling() or learns:
        y = bias_act(x, bias, noise=noise, strength=strength, scale=scale, slope=slope, gain=gain)
        return y, modulate(y, style)
    check_device(x)
    x = dense(x)
    others = [t if t is None else t.contiguous() for t in (bias, noise, strength, scale, style)]
    call = Call(slope, gain, None, is_nhwc(x), x.dtype)
    return _BiasActModulate.apply(x, *others, call, output_dtype(x))[:2]


def bias_act_modulate_reference(
    x: Tensor,
    bias: Tensor,
    style: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    scale: Tensor | None = None,
    slope: float = 0.2,
    gain: float = math.sqrt(2),
) -> tuple[Tensor, Tensor]:
    """Compute `bias_act_modulate` in plain PyTorch. Arguments and results as `bias_act_modulate`."""
    _check(x, bias, noise, strength, scale, "lrelu", slope, gain, style=style)
    how = {"noise": noise, "strength": strength, "scale": scale, "slope": slope, "gain": gain}
    y = bias_act_reference(x, bias, **how)
    return y, modulate_reference(y, style)


def bytes_moved(x: Tensor, noise: Tensor | None = None, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: x and noise in, both results out; backward: x, noise and two gradients
    in, dx out.
    """
    return (4 if backward else 3) * x.nbytes + (0 if noise is None else noise.nbytes)


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
def bias_act_modulate_kernel(
    x, bias, noise, strength, scale, style, y, z,
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
    m = load(style + n * C + c, c < C, WHOLE, ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        u = load(x + at + ij, inside, WHOLE, ACC)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        a = activate(affine(u, s, e, k, b), SLOPE, GAIN, CLAMP)
        store(y + at + ij, a, inside, WHOLE)
        store(z + at + ij, a * m, inside, WHOLE)


@triton.jit(do_not_specialize=COUNTS)
def bias_act_modulate_grad_kernel(
    g, more, gz, gx, x, bias, noise, strength, scale, style, dx, by_sample, dbias, dstrength,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx, and each program's sums over its pixels. Gradients that are not given are zero.

    by_sample: rows of dscale for all samples, if there is a scale, then rows of dstyle, if there is gz.
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(scale + n * C + c, c < C, WHOLE, ACC) if scale is not None else None
    b = load(bias + c, c < C, WHOLE, ACC) if bias is not None else None
    k = tl.load(strength).to(ACC) if strength is not None else None
    m = load(style + n * C + c, c < C, WHOLE, ACC) if gz is not None else None
    sum_du = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_x = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_gz_a = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        v = load(x + at + ij, inside, WHOLE, ACC)
        da = tl.zeros([BLOCK_P, BLOCK_C], ACC)
        if g is not None:
            da += load(g + at + ij, inside, WHOLE, ACC)
        if more is not None:
            da += load(more + at + ij, inside, WHOLE, ACC)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = affine(v, s, e, k, b)
        if gz is not None:
            dz = load(gz + at + ij, inside, WHOLE, ACC)
            da += dz * m
            if by_sample is not None:
                sum_gz_a += dz * activate(u, SLOPE, GAIN, CLAMP)
        du = activate_grad(da, u, SLOPE, GAIN, CLAMP)
        if by_sample is not None and scale is not None:
            sum_du_x += du * v
        if dbias is not None:
            sum_du += du
        if dstrength is not None:
            sum_du_noise += du * e
        if dx is not None:
            du = affine(du, s, None, None, None)
            if gx is not None:
                du += load(gx + at + ij, inside, WHOLE, ACC)
            store(dx + at + ij, du, inside, WHOLE)
    if by_sample is not None:
        if scale is not None:
            store_row(by_sample, sum_du_x, C, BLOCK_C)
            by_sample += tl.num_programs(0).to(tl.int64) * C
        if gz is not None:
            store_row(by_sample, sum_gz_a, C, BLOCK_C)
    if dbias is not None:
        store_row(dbias, sum_du, C, BLOCK_C)
    if dstrength is not None:
        store_total(dstrength, sum_du_noise)


# ---- autograd ----------------------------------------------------------------------------------------------------


def _tiles(x: Tensor, call: Call, direction: str) -> Tiling:
    return tiling(x.shape, call.nhwc, "scaled_bias_act", direction, call.dtype, x.device)


def backward(
    gs: Sequence[Tensor | None], x, bias, noise, strength, scale, style, call: Call, needs: tuple[bool, ...]
):
    """Return dx, dbias, dstrength, dscale and dstyle, None where not needed, for dense tensors.

    gs: gradients of y, of y again, of z and of x; each may be None.
    """
    g, more, gz, gx = (t if t is None else dense_as(t, call.nhwc) for t in gs)
    t = _tiles(x, call, "backward")
    dx = torch.empty_like(x) if needs[0] else None
    count = (scale is not None) + (gz is not None)
    rows = x.new_empty((count, *x.shape[:2]), dtype=accumulator(call.dtype)) if count else None
    rows = rows if needs[3] or needs[4] else None
    wanted = ((bias, needs[1]), (strength, needs[2]))
    sums = Sums(t, call.dtype, rows, *(torch.empty_like(like) if need else None for like, need in wanted))
    pointers = (g, more, gz, gx, x, bias, noise, strength, scale, style, dx, *sums.into)
    call.launch(bias_act_modulate_grad_kernel, t, noise, pointers)
    rows, dbias, dstrength = sums.finish()
    dscale = rows[0] if needs[3] else None
    return dx, dbias, dstrength, dscale, rows[-1] if needs[4] and gz is not None else None


class _BiasActModulate(torch.autograd.Function):
    """The op as a Function. Its results are y, z, and x and y once more.

    The differentiable gradient reads the latter two. So their gradients arrive here, in the pass that runs anyway.
    Otherwise autograd would add them to the other gradients of x and y.
    """

    @staticmethod
    def forward(ctx, x, bias, noise, strength, scale, style, call, dtype):
        y, z = torch.empty_like(x, dtype=dtype), torch.empty_like(x, dtype=dtype)
        pointers = (x, bias, noise, strength, scale, style, y, z)
        call.launch(bias_act_modulate_kernel, _tiles(x, call, "forward"), noise, pointers)
        same = x.view_as(x), y.detach()
        ctx.save_for_backward(*same, bias, noise, strength, scale, style)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return y, z, *same

    @staticmethod
    def backward(ctx, g, gz, gx, more):
        if g is None and gz is None and gx is None and more is None:
            return (None,) * 8
        x, y, *others = ctx.saved_tensors
        needs = needed(ctx, (True, *(t is not None for t in others)))
        needs = (needs[0], needs[1], *needs[3:6])
        if torch.is_grad_enabled():
            grads = two_ops_backward((g, more, gz, gx), y, x, *others, ctx.call, needs)
        else:
            grads = backward((g, more, gz, gx), x, *others, ctx.call, needs)
        dx, dbias, dstrength, dscale, dstyle = grads
        return dx, dbias, None, dstrength, dscale, dstyle, None, None


class _BiasActFork(torch.autograd.Function):
    """The map of `bias_act`, and x once more: gradients of both are added up in one pass."""

    @staticmethod
    def forward(ctx, x, bias, noise, strength, scale, call, dtype):
        y, same = forward(x, bias, noise, strength, scale, call, dtype), x.view_as(x)
        ctx.save_for_backward(same, bias, noise, strength, scale, y)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return y, same

    @staticmethod
    def backward(ctx, g, gx):
        if g is None:
            return gx, *(None,) * 6
        *saved, y = ctx.saved_tensors
        needs = needed(ctx, (True, *(t is not None for t in saved[1:])))
        needs = (needs[0], needs[1], *needs[3:5], False)
        if torch.is_grad_enabled():
            grads = two_ops_backward((g, None, None, gx), y, *saved, None, ctx.call, needs)
        else:
            grads = backward((g, None, None, gx), *saved, None, ctx.call, needs)
        dx, dbias, dstrength, dscale, _ = grads
        return dx, dbias, None, dstrength, dscale, None, None


def two_ops_backward(gs, y, x, bias, noise, strength, scale, style, call: Call, needs: tuple[bool, ...]):
    """Compute `backward` by the gradients of `modulate` and `bias_act`, which can be differentiated."""
    g, more, gz, gx = gs
    da = dstyle = None
    if gz is not None:
        da, dstyle = _ModulateGrad.apply(gz, y, style, (True, needs[4]))
    given = [t for t in (g, more, da) if t is not None]
    ref = {"": None, "x": x, "y": y}[call.saves(scale is not None)]
    grads = (None,) * 4
    if given:
        grads = _BiasActGrad.apply(
            functools.reduce(torch.add, given), ref, bias, noise, strength, scale, call, needs[:4]
        )
    dx, *rest = grads
    return dx if gx is None else gx if dx is None else dx + gx, *rest, dstyle
