"""y = leaky_relu(instance_norm(x + noise * strength) * scale + bias) * gain: the tail of an AdaIN layer.

Instance normalization (Ulyanov et al. 2016, arXiv:1607.08022) with the style's scale and bias for each sample and
channel (Karras et al. 2019, arXiv:1812.04948), fused with the noise before it and the leaky ReLU after it. x is read
twice, once for the statistics and once to apply them, and y written once; eager PyTorch moves about four times that.

Statistics are Welford's in each program, then joined by Chan's rule: a mean far from zero costs no digits. All sums
over pixels are partial sums added in a fixed order, so results are the same on every run.
"""

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.needed import needed
from kernels.tiles import (
    COUNTS,
    Sums,
    Tiling,
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    launch,
    load,
    my_tiles,
    output_dtype,
    power_of_2,
    store,
    store_row,
    store_total,
    tile_at,
    tiling,
    tl,
    tl_accumulator,
    triton,
)


def instance_norm_act(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    eps: float = 1e-5,
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """leaky_relu((u - mean) / sqrt(var + eps) * scale + bias) * gain, u = x + noise * strength; differentiable twice.

    Args:
        x: [N, C, H, W] (NCHW or channels_last, kept); float16, bfloat16, float32 or float64.
        scale, bias: [N, C].  noise: [N, 1, H, W] or [1, 1, H, W].  strength: scalar tensor.
        eps: added to the (biased) variance.  slope: of the leaky ReLU.  gain: sqrt(2) unless given.

    Returns y like x, in x.dtype (autocast's dtype under autocast). Statistics and sums are kept in float32 (float64 for
    float64). Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside the interpreter.
    """
    _check(x, scale, bias, noise, strength)
    check_device(x)
    gain = math.sqrt(2) if gain is None else float(gain)
    if noise is not None:
        if noise.requires_grad and torch.is_grad_enabled():  # projection: rare, so plain ops
            x, noise, strength = x + (noise * strength).to(x.dtype), None, None
        else:
            noise, strength = noise.contiguous(), strength.contiguous()
    scale, bias = scale.contiguous(), bias.contiguous()
    x = dense(x)
    arguments = (x, scale, bias, noise, strength, float(eps), float(slope), gain, output_dtype(x))
    if torch.compiler.is_compiling():
        return torch.ops.stylegan_ladder.instance_norm_act(*arguments)[0]
    return _InstanceNormAct.apply(*arguments)


def instance_norm_act_reference(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    eps: float = 1e-5,
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """`instance_norm_act` in plain PyTorch: the same arguments, result dtype and memory format."""
    _check(x, scale, bias, noise, strength)
    u = x if noise is None else x + noise * strength
    var, mean = torch.var_mean(u.to(accumulator(x.dtype)), dim=(2, 3), correction=0, keepdim=True)
    h = (u - mean) * (var + eps).rsqrt()
    y = torch.nn.functional.leaky_relu(h * scale[:, :, None, None] + bias[:, :, None, None], slope)
    return (y * (math.sqrt(2) if gain is None else gain)).to(output_dtype(x))


def bytes_moved(
    x: Tensor, noise: Tensor | None = None, *, backward: bool = False, out: torch.dtype | None = None
) -> int:
    """Bytes that must cross memory if a plane fits on the chip: x in, y out; backward: dy and x in, dx out."""
    out_bytes = x.numel() * (out or x.dtype).itemsize
    activation = 2 * x.nbytes + out_bytes if backward else x.nbytes + out_bytes
    return activation + (noise.nbytes if noise is not None else 0)


def _check(x, scale, bias, noise, strength) -> None:
    if x.dim() != 4 or not x.is_floating_point():
        raise ValueError(f"x must be a float tensor [N, C, H, W], got {x.dtype} {tuple(x.shape)}")
    n, c, h, w = x.shape
    if scale.shape != (n, c) or bias.shape != (n, c):
        raise ValueError(
            f"scale and bias must be [N, C] = {[n, c]}, got {tuple(scale.shape)} and {tuple(bias.shape)}"
        )
    if (noise is None) != (strength is None) or (strength is not None and strength.numel() != 1):
        raise ValueError("noise and strength come together, and strength is a scalar tensor")
    if noise is not None and noise.shape not in ((n, 1, h, w), (1, 1, h, w)):
        raise ValueError(f"noise must be [N or 1, 1, H, W] for x {tuple(x.shape)}, got {tuple(noise.shape)}")


# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def normalized_act(u, mean, rstd, scale, bias, SLOPE: tl.constexpr, GAIN: tl.constexpr):
    """y."""
    z = (u - mean) * rstd * scale + bias
    return tl.where(z > 0, z, z * SLOPE) * GAIN


@triton.jit
def normalized_act_grad(g, u, mean, rstd, scale, bias, SLOPE: tl.constexpr, GAIN: tl.constexpr):
    """dz, whose sum over pixels is dbias, and the normalized u; the sum of their product is dscale."""
    h = (u - mean) * rstd
    return tl.where(h * scale + bias > 0, g, g * SLOPE) * GAIN, h


@triton.jit
def instance_norm_grad(dz, h, rstd, scale, mean_dz, mean_dz_h):
    """du: dz through the affine map and the normalization, which removes its mean and its part along h."""
    return rstd * scale * (dz - mean_dz - h * mean_dz_h)


@triton.jit
def instance_norm_grad_grad(dz, v, h, rstd, scale, ddscale, ddbias, A, B, V, W, D):
    """Gradient, with respect to dz and u, of the first gradients, given theirs: v of du, ddscale, ddbias.

    A, B, V, W, D are the means over the plane of dz, dz * h, v, v * h and v * dz. Differentiated is
    sum(rstd * scale * dz * (v - V - h * W)) + ddscale * sum(dz * h) + ddbias * sum(dz), where h and rstd depend on u.
    """
    k = rstd * scale
    ddz = k * (v - V - h * W) + ddscale * h + ddbias
    dh = ddscale * dz - k * (W * dz + B * v)
    mean_dh, mean_dh_h = ddscale * A - k * (W * A + B * V), ddscale * B - 2 * k * W * B
    return ddz, rstd * (dh - mean_dh - h * mean_dh_h) - rstd * k * h * (D - A * V - B * W)


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def noisy(pointers, e, k, inside, WHOLE: tl.constexpr, ACC: tl.constexpr):
    """Values + noise * strength; e is None where there is no noise."""
    u = load(pointers, inside, WHOLE, ACC)
    if e is not None:
        u += e * k
    return u


@triton.jit
def row(pointer, n, c, C, WHOLE: tl.constexpr, ACC: tl.constexpr):
    """[1, BLOCK_C] of a tensor [N, C], or zeros if it is None."""
    if pointer is not None:
        return load(pointer + n * C + c, c < C, WHOLE, ACC)
    else:
        return tl.zeros(c.shape, ACC)


@triton.jit(do_not_specialize=COUNTS)
def moments_kernel(
    x, noise, strength, means, m2s, C, P, stride_p, stride_c, tiles, programs, noise_stride, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One row per program of the mean of u = x + noise * strength over its pixels, and of their squared distance to it.

    Each of the BLOCK_P x BLOCK_C positions keeps Welford's running moments; at the end those of a channel are joined.
    """
    n, first, end, c, corner, i, within = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    count = tl.zeros([BLOCK_P, 1], ACC)
    mean = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    m2 = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, corner, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + within, e, k, inside, WHOLE, ACC)
        valid = i < P - p0
        count += valid.to(ACC)
        delta = u - mean
        mean += tl.where(valid, delta * (1 / tl.maximum(count, 1.0)), 0.0)
        m2 += tl.where(valid, delta * (u - mean), 0.0)
    row_mean = tl.sum(count * mean, 0) / tl.maximum(tl.sum(tl.sum(count, 0), 0), 1.0)
    shift = mean - row_mean[None, :]
    at = tl.program_id(0).to(tl.int64) * C + tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(means + at, row_mean, tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C) < C)
    store_row(m2s, m2 + count * shift * shift, C, BLOCK_C)


@triton.jit
def pixels_of(t, P, tiles, programs, BLOCK_P: tl.constexpr):
    """How many pixels program t of a sample sees: all its tiles are full, but for the sample's last one."""
    missing = tl.where(t == (tiles - 1) % programs, tiles * BLOCK_P - P, 0)
    return tl.where(t < programs, tl.cdiv(tiles - t, programs) * BLOCK_P - missing, 0)


@triton.jit
def join_moments_kernel(
    means, m2s, mean, rstd, eps, C, P, tiles, programs, PIXELS: tl.constexpr,
    ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Join the rows of one sample by Chan's rule: mean and rstd [N, C]. PIXELS: BLOCK_P of the rows' kernel."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_T, BLOCK_C], ACC)
    for start in range(0, programs, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)[:, None]
        at = (n * programs + t) * C + c[None, :]
        count = pixels_of(t, P, tiles, programs, PIXELS).to(ACC)
        total += count * tl.load(means + at, (t < programs) & (c[None, :] < C), 0.0)
    joined = tl.sum(total, 0) / P
    total = tl.zeros([BLOCK_T, BLOCK_C], ACC)
    for start in range(0, programs, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)[:, None]
        at, inside = (n * programs + t) * C + c[None, :], (t < programs) & (c[None, :] < C)
        shift = tl.load(means + at, inside, 0.0) - joined[None, :]
        count = pixels_of(t, P, tiles, programs, PIXELS).to(ACC)
        total += tl.load(m2s + at, inside, 0.0) + count * shift * shift
    tl.store(mean + n * C + c, joined, c < C)
    tl.store(rstd + n * C + c, 1 / tl.sqrt(tl.sum(total, 0) / P + eps), c < C)


@triton.jit(do_not_specialize=COUNTS)
def instance_norm_act_kernel(
    x, noise, strength, scale, bias, mean, rstd, y, C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, first, end, c, corner, i, within = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    mu, r = row(mean, n, c, C, WHOLE, ACC), row(rstd, n, c, C, WHOLE, ACC)
    s, b = row(scale, n, c, C, WHOLE, ACC), row(bias, n, c, C, WHOLE, ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, corner, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + within, e, k, inside, WHOLE, ACC)
        store(y + at + within, normalized_act(u, mu, r, s, b, SLOPE, GAIN), inside, WHOLE)


@triton.jit(do_not_specialize=COUNTS)
def instance_norm_act_sums_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, ddx, ddstrength, dz_h_sum, dz_sum, v_sum, vh_sum, vdz_sum,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Each program's sums over its pixels: of dz * h (dscale) and dz (dbias) if dz_sum is given; of v, v * h and
    v * dz if v_sum is, where v = ddx + noise * ddstrength is the gradient of du.
    """
    n, first, end, c, corner, i, within = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    mu, r = row(mean, n, c, C, WHOLE, ACC), row(rstd, n, c, C, WHOLE, ACC)
    s, b = row(scale, n, c, C, WHOLE, ACC), row(bias, n, c, C, WHOLE, ACC)
    zero = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_dz, sum_dz_h, sum_v, sum_vh, sum_vdz = zero, zero, zero, zero, zero
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, corner, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + within, e, k, inside, WHOLE, ACC)
        dz = load(g + at + within, inside, WHOLE, ACC)
        dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
        if dz_sum is not None:
            sum_dz += dz
            sum_dz_h += tl.where(inside, dz * h, 0.0)
        if v_sum is not None:
            v = load(ddx + at + within, inside, WHOLE, ACC) if ddx is not None else zero
            if ddstrength is not None:
                v += tl.where(inside, e * tl.load(ddstrength).to(ACC), 0.0)
            sum_v += v
            sum_vh += tl.where(inside, v * h, 0.0)
            sum_vdz += v * dz
    if dz_sum is not None:
        store_row(dz_h_sum, sum_dz_h, C, BLOCK_C)
        store_row(dz_sum, sum_dz, C, BLOCK_C)
    if v_sum is not None:
        store_row(v_sum, sum_v, C, BLOCK_C)
        store_row(vh_sum, sum_vh, C, BLOCK_C)
        store_row(vdz_sum, sum_vdz, C, BLOCK_C)


@triton.jit(do_not_specialize=COUNTS)
def instance_norm_act_grad_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, dz_h_sum, dz_sum, dx, dstrength,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx, given the sums [N, C] of the pass before, and each program's sum of dstrength."""
    n, first, end, c, corner, i, within = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    mu, r = row(mean, n, c, C, WHOLE, ACC), row(rstd, n, c, C, WHOLE, ACC)
    s, b = row(scale, n, c, C, WHOLE, ACC), row(bias, n, c, C, WHOLE, ACC)
    mean_dz, mean_dz_h = row(dz_sum, n, c, C, WHOLE, ACC) / P, row(dz_h_sum, n, c, C, WHOLE, ACC) / P
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, corner, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + within, e, k, inside, WHOLE, ACC)
        dz = load(g + at + within, inside, WHOLE, ACC)
        dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
        du = instance_norm_grad(dz, h, r, s, mean_dz, mean_dz_h)
        if dx is not None:
            store(dx + at + within, du, inside, WHOLE)
        if dstrength is not None:
            sum_du_noise += tl.where(inside, du * e, 0.0)
    if dstrength is not None:
        store_total(dstrength, sum_du_noise)


@triton.jit(do_not_specialize=COUNTS)
def instance_norm_act_grad_grad_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, ddx, ddstrength, ddscale, ddbias,
    dz_h_sum, dz_sum, v_sum, vh_sum, vdz_sum, dg, dx, dstrength,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dg, dx and each program's sum of dstrength, given the sums over pixels [N, C] of both gradient passes."""
    n, first, end, c, corner, i, within = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    mu, r = row(mean, n, c, C, WHOLE, ACC), row(rstd, n, c, C, WHOLE, ACC)
    s, b = row(scale, n, c, C, WHOLE, ACC), row(bias, n, c, C, WHOLE, ACC)
    dds, ddb = row(ddscale, n, c, C, WHOLE, ACC), row(ddbias, n, c, C, WHOLE, ACC)
    A, B = row(dz_sum, n, c, C, WHOLE, ACC) / P, row(dz_h_sum, n, c, C, WHOLE, ACC) / P
    V, W = row(v_sum, n, c, C, WHOLE, ACC) / P, row(vh_sum, n, c, C, WHOLE, ACC) / P
    D = row(vdz_sum, n, c, C, WHOLE, ACC) / P
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, corner, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + within, e, k, inside, WHOLE, ACC)
        dz = load(g + at + within, inside, WHOLE, ACC)
        dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
        v = (
            load(ddx + at + within, inside, WHOLE, ACC)
            if ddx is not None
            else tl.zeros([BLOCK_P, BLOCK_C], ACC)
        )
        if ddstrength is not None:
            v += e * tl.load(ddstrength).to(ACC)
        ddz, du = instance_norm_grad_grad(dz, v, h, r, s, dds, ddb, A, B, V, W, D)
        dg_value, _ = normalized_act_grad(
            ddz, u, mu, r, s, b, SLOPE, GAIN
        )  # linear in g: the same mask and gain
        store(dg + at + within, dg_value, inside, WHOLE)
        if dx is not None:
            store(dx + at + within, du, inside, WHOLE)
        if dstrength is not None:
            sum_du_noise += tl.where(inside, du * e, 0.0)
    if dstrength is not None:
        store_total(dstrength, sum_du_noise)


# ---- autograd ----------------------------------------------------------------------------------------------------


def _tiling(x: Tensor, direction: str) -> Tiling:
    return tiling(x.shape, is_nhwc(x), "instance_norm_act", direction, x.dtype, x.device)


def _launch(kernel, t: Tiling, x: Tensor, noise: Tensor | None, *pointers, **constants) -> None:
    stride = 0 if noise is None or noise.shape[0] == 1 else noise.shape[2] * noise.shape[3]
    launch(kernel, t, pointers, x.dtype, stride, **constants)


def _moments(x: Tensor, noise: Tensor | None, strength: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(var + eps) of x + noise * strength, both [N, C]."""
    t, acc = _tiling(x, "forward"), accumulator(x.dtype)
    mean, rstd = x.new_empty((2, *x.shape[:2]), dtype=acc)
    if x.numel():
        channels, pixels, *_, tiles, programs = t.sizes
        means, m2s = x.new_empty((2, t.rows, channels), dtype=acc)
        _launch(moments_kernel, t, x, noise, x, noise, strength, means, m2s)
        block_c = min(power_of_2(channels), 32)
        join_moments_kernel[(t.samples, -(-channels // block_c))](
            means, m2s, mean, rstd, eps, channels, pixels, tiles, programs, PIXELS=t.options["BLOCK_P"],
            ACC=tl_accumulator(x.dtype), BLOCK_T=min(power_of_2(programs), 64), BLOCK_C=block_c,
        )  # fmt: skip
    return mean, rstd


def forward(x, scale, bias, noise, strength, eps: float, slope: float, gain: float, dtype: torch.dtype):
    """y, and the mean and rstd [N, C] of each map, for tensors that are dense."""
    y = torch.empty_like(x, dtype=dtype)
    mean, rstd = _moments(x, noise, strength, eps)
    pointers = (x, noise, strength, scale, bias, mean, rstd, y)
    _launch(instance_norm_act_kernel, _tiling(x, "forward"), x, noise, *pointers, SLOPE=slope, GAIN=gain)
    return y, mean, rstd


def _sums(
    t: Tiling, x: Tensor, noise: Tensor | None, slope: float, gain: float, pointers: tuple, places: slice
):
    """Those of the five sums of `instance_norm_act_sums_kernel` that `places` names, [sums, N, C]."""
    five: list[Tensor | None] = [None] * 5
    out = x.new_empty((len(five[places]), *x.shape[:2]), dtype=accumulator(x.dtype))
    sums = Sums(t, x.dtype, out)
    five[places] = sums.into[0].view(out.shape[0], -1)
    _launch(instance_norm_act_sums_kernel, t, x, noise, *pointers, *five, SLOPE=slope, GAIN=gain)
    return sums.finish()[0]


def backward(
    g, x, scale, bias, noise, strength, mean, rstd, slope: float, gain: float, needs: tuple[bool, ...]
):
    """(dx, dscale, dbias, dstrength) for the gradient g of y (None where not needed), and the sums [2, N, C] used."""
    g, t = dense_as(g, is_nhwc(x)), _tiling(x, "backward")
    common = (g, x, noise, strength, scale, bias, mean, rstd)
    sums = _sums(t, x, noise, slope, gain, (*common, None, None), slice(0, 2))
    dx = torch.empty_like(x) if needs[0] else None
    total = Sums(t, x.dtype, program=torch.empty_like(strength) if needs[3] else None)
    if needs[0] or needs[3]:
        pointers = (*common, *sums, dx, total.into[2])
        _launch(instance_norm_act_grad_kernel, t, x, noise, *pointers, SLOPE=slope, GAIN=gain)
    return (dx, sums[0].to(scale.dtype), sums[1].to(bias.dtype), total.finish()[2]), sums


class _InstanceNormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, bias, noise, strength, eps, slope, gain, dtype):
        y, mean, rstd = forward(x, scale, bias, noise, strength, eps, slope, gain, dtype)
        ctx.save_for_backward(x, scale, bias, noise, strength, mean, rstd)
        ctx.constants = (slope, gain)
        return y

    @staticmethod
    def backward(ctx, g):
        saved = ctx.saved_tensors
        needs = needed(ctx, tuple(t is not None for t in saved[:5]))
        needs = (*needs[:3], needs[4])
        if torch.is_grad_enabled():
            grads = _InstanceNormActGrad.apply(g, *saved, *ctx.constants, needs)
        else:
            grads, _ = backward(g, *saved, *ctx.constants, needs)
        dx, dscale, dbias, dstrength = grads
        return dx, dscale, dbias, None, dstrength, None, None, None, None


class _InstanceNormActGrad(torch.autograd.Function):
    """`backward` as a function that can be differentiated itself (mean and rstd stand for what they came from)."""

    @staticmethod
    def forward(ctx, g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs):
        grads, sums = backward(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs)
        ctx.save_for_backward(g, x, scale, bias, noise, strength, mean, rstd, sums)
        ctx.set_materialize_grads(False)
        ctx.constants = (slope, gain)
        return grads

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddscale, ddbias, ddstrength):
        if ddx is None and ddscale is None and ddbias is None and ddstrength is None:
            return (None,) * 11
        *saved, sums = ctx.saved_tensors
        needs = needed(ctx, tuple(t is not None for t in saved))
        g, x, scale, bias, noise, strength, mean, rstd = saved
        g, t = dense_as(g, is_nhwc(x)), _tiling(x, "double_backward")
        ddx = None if ddx is None else dense_as(ddx, is_nhwc(x))
        ddscale, ddbias = (d if d is None else d.contiguous() for d in (ddscale, ddbias))
        common = (g, x, noise, strength, scale, bias, mean, rstd, ddx, ddstrength)
        direction = _sums(t, x, noise, *ctx.constants, common, slice(2, 5))
        dg = torch.empty_like(g)
        dx = torch.empty_like(x) if needs[1] else None
        total = Sums(t, x.dtype, program=torch.empty_like(strength) if needs[5] else None)
        pointers = (*common, ddscale, ddbias, *sums, *direction, dg, dx, total.into[2])
        slope, gain = ctx.constants
        _launch(instance_norm_act_grad_grad_kernel, t, x, noise, *pointers, SLOPE=slope, GAIN=gain)
        (b, a), (v, w, d) = sums, direction
        dscale = (rstd * (d - (a * v + b * w) / max(t.sizes[1], 1))).to(scale.dtype) if needs[2] else None
        return dg, dx, dscale, None, None, total.finish()[2], None, None, None, None, None
