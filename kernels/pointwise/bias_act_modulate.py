"""The op y = leaky_relu(x * scale + noise * strength + bias) * gain, z = y * style: `bias_act` with a second result.

Two layers read the last activation of a synthesis block: toRGB as it is, and the next block's first layer modulated by
a style. Both are written by the pass that has the activation in registers. Backward one pass reads both gradients. It
replaces the gradient of `modulate`, the addition that autograd makes of the two, and the gradient of `bias_act`.

Differentiated twice, the op falls back on `bias_act` and `modulate`.
"""

import math

import torch
from torch import Tensor

from kernels.common.dependent_launch import after_previous
from kernels.common.needed import needed
from kernels.common.sums import Sums, store_row, store_total
from kernels.common.tiles import (
    COUNTS,
    Tiling,
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
from kernels.pointwise.bias_act import (
    Call,
    _BiasActGrad,
    _check,
    activate,
    activate_grad,
    affine,
    bias_act,
    bias_act_reference,
)
from kernels.pointwise.modulate import _ModulateGrad, modulate, modulate_reference


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
    _check(x, bias, noise, strength, scale, "lrelu", slope, gain)
    if x.dim() != 4 or style.shape != x.shape[:2]:
        raise ValueError(f"need x [N, C, H, W] and style [N, C], got {tuple(x.shape)}, {tuple(style.shape)}")
    learns = noise is not None and noise.requires_grad and torch.is_grad_enabled()  # in projection only
    if torch.compiler.is_compiling() or learns:
        y = bias_act(x, bias, noise=noise, strength=strength, scale=scale, slope=slope, gain=gain)
        return y, modulate(y, style)
    check_device(x)
    x = dense(x)
    others = [t if t is None else t.contiguous() for t in (bias, noise, strength, scale, style)]
    call = Call(float(slope), float(gain), None, is_nhwc(x), x.dtype)
    return _BiasActModulate.apply(x, *others, call, output_dtype(x))


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
    b = load(bias + c, c < C, WHOLE, ACC)
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
    g, gz, x, bias, noise, strength, scale, style, dx, by_sample, dbias, dstrength,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, CLAMP: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx, and each program's sums over its pixels. g may be None.

    by_sample: rows of dstyle for all samples, then rows of dscale, if there is a scale.
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(scale + n * C + c, c < C, WHOLE, ACC) if scale is not None else None
    b = load(bias + c, c < C, WHOLE, ACC)
    k = tl.load(strength).to(ACC) if strength is not None else None
    m = load(style + n * C + c, c < C, WHOLE, ACC)
    sum_du = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_x = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_gz_a = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        v = load(x + at + ij, inside, WHOLE, ACC)
        dz = load(gz + at + ij, inside, WHOLE, ACC)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        da = dz * m
        if g is not None:
            da += load(g + at + ij, inside, WHOLE, ACC)
        u = affine(v, s, e, k, b)
        du = activate_grad(da, u, SLOPE, GAIN, CLAMP)
        if by_sample is not None:
            sum_gz_a += dz * activate(u, SLOPE, GAIN, CLAMP)
            if scale is not None:
                sum_du_x += du * v
        if dbias is not None:
            sum_du += du
        if dstrength is not None:
            sum_du_noise += du * e
        if dx is not None:
            store(dx + at + ij, affine(du, s, None, None, None), inside, WHOLE)
    if by_sample is not None:
        store_row(by_sample, sum_gz_a, C, BLOCK_C)
        if scale is not None:
            store_row(by_sample + tl.num_programs(0).to(tl.int64) * C, sum_du_x, C, BLOCK_C)
    if dbias is not None:
        store_row(dbias, sum_du, C, BLOCK_C)
    if dstrength is not None:
        store_total(dstrength, sum_du_noise)


# ---- autograd ----------------------------------------------------------------------------------------------------


def _tiles(x: Tensor, call: Call, direction: str) -> Tiling:
    return tiling(x.shape, call.nhwc, "scaled_bias_act", direction, call.dtype, x.device)


def backward(g, gz, x, bias, noise, strength, scale, style, call: Call, needs: tuple[bool, ...]):
    """Return dx, dbias, dstrength, dscale and dstyle (None where not needed) for the gradients of y (or None) and z."""
    g, gz, t = (
        None if g is None else dense_as(g, call.nhwc),
        dense_as(gz, call.nhwc),
        _tiles(x, call, "backward"),
    )
    dx = torch.empty_like(x) if needs[0] else None
    rows = style.new_empty((1 if scale is None else 2, *style.shape)) if needs[3] or needs[4] else None
    wanted = ((bias, needs[1]), (strength, needs[2]))
    sums = Sums(t, call.dtype, rows, *(torch.empty_like(like) if need else None for like, need in wanted))
    pointers = (g, gz, x, bias, noise, strength, scale, style, dx, *sums.into)
    call.launch(bias_act_modulate_grad_kernel, t, noise, pointers)
    rows, dbias, dstrength = sums.finish()
    dstyle, dscale = (None, None) if rows is None else (rows[0], None if scale is None else rows[1])
    return dx, dbias, dstrength, dscale, dstyle


class _BiasActModulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, noise, strength, scale, style, call, dtype):
        y, z = torch.empty_like(x, dtype=dtype), torch.empty_like(x, dtype=dtype)
        pointers = (x, bias, noise, strength, scale, style, y, z)
        call.launch(bias_act_modulate_kernel, _tiles(x, call, "forward"), noise, pointers)
        ctx.save_for_backward(x, bias, noise, strength, scale, style, y)
        ctx.set_materialize_grads(False)
        ctx.call = call
        return y, z

    @staticmethod
    def backward(ctx, g, gz):
        if g is None and gz is None:
            return (None,) * 8
        *saved, y = ctx.saved_tensors
        needs = needed(ctx, (True, *(t is not None for t in saved[1:])))
        needs = (needs[0], needs[1], *needs[3:6])
        if torch.is_grad_enabled() or gz is None:
            grads = two_ops_backward(g, gz, y, *saved, ctx.call, needs)
        else:
            grads = backward(g, gz, *saved, ctx.call, needs)
        dx, dbias, dstrength, dscale, dstyle = grads
        return dx, dbias, None, dstrength, dscale, dstyle, None, None


def two_ops_backward(g, gz, y, x, bias, noise, strength, scale, style, call: Call, needs: tuple[bool, ...]):
    """Compute `backward` by the gradients of `modulate` and `bias_act`, which can be differentiated."""
    dstyle = None
    if gz is not None:
        da, dstyle = _ModulateGrad.apply(gz, y, style, (True, needs[4]))
        g = da if g is None else g + da
    ref = {"": None, "x": x, "y": y}[call.saves(scale is not None)]
    grads = _BiasActGrad.apply(g, ref, bias, noise, strength, scale, call, needs[:4])
    return *grads, dstyle
