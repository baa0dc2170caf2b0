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

from kernels.tiles import (
    Tiling,
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    output_dtype,
    power_of_2,
    store_row,
    tile_offsets,
    tiling,
    tl,
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
    return _InstanceNormAct.apply(
        dense(x), scale, bias, noise, strength, float(eps), float(slope), gain, output_dtype(x)
    )


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
def load_noisy(x, noise, strength, at, inside, n, p, P, noise_stride, ACC: tl.constexpr):
    """u = x + noise * strength on one tile; x or noise may be None (zero)."""
    u = tl.zeros(at.shape, ACC)
    if x is not None:
        u = tl.load(x + at, inside, 0.0).to(ACC)
    if noise is not None:
        u += tl.load(noise + n.to(tl.int64) * noise_stride + p, p < P, 0.0).to(ACC) * tl.load(strength).to(
            ACC
        )
    return u


@triton.jit
def load_style(pointer, n, c, C, ACC: tl.constexpr):
    """[1, BLOCK_C] of a tensor [N, C], or zeros if it is None."""
    value = tl.zeros(c.shape, ACC)
    if pointer is not None:
        value = tl.load(pointer + n * C + c, c < C, 0.0).to(ACC)
    return value


@triton.jit
def moments_kernel(
    x, noise, strength, means, m2s, C, P, stride_p, stride_c, tiles, noise_stride,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """For each channel, the mean of this program's pixels and the sum of squared differences from it [rows, C].

    Every lane runs Welford's update over its own pixels; lanes are joined once, at the end.
    """
    count = tl.zeros([BLOCK_P, 1], ACC)
    mean = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    m2 = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, p, _, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        u = load_noisy(x, noise, strength, at, inside, n, p, P, noise_stride, ACC)
        valid = p < P
        count += valid.to(ACC)
        delta = tl.where(valid, u - mean, 0.0)
        mean += delta * (1 / tl.maximum(count, 1.0))  # one division a pixel, not one an element
        m2 += delta * tl.where(valid, u - mean, 0.0)
    total = tl.maximum(tl.sum(count, 0), 1.0)
    row_mean = tl.sum(count * mean, 0) / total
    shift = mean - row_mean[None, :]
    store_row(means, row_mean, C, BLOCK_C)
    store_row(m2s, tl.sum(m2 + count * shift * shift, 0), C, BLOCK_C)


@triton.jit
def join_moments_kernel(
    means, m2s, mean, rstd, eps, C, P, tiles, PIXELS: tl.constexpr,
    ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Join the rows of one sample (PIXELS pixels each, the last one fewer) by Chan's rule: mean and rstd [N, C]."""
    n = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    total = tl.zeros([BLOCK_T, BLOCK_C], ACC)
    for start in range(0, tiles, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)[:, None]
        count = tl.maximum(tl.minimum(P - t * PIXELS, PIXELS), 0).to(ACC)
        at = (n.to(tl.int64) * tiles + t) * C + c
        total += count * tl.load(means + at, (t < tiles) & (c < C), 0.0)
    joined = tl.sum(total, 0) / P
    total = tl.zeros([BLOCK_T, BLOCK_C], ACC)
    for start in range(0, tiles, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)[:, None]
        count = tl.maximum(tl.minimum(P - t * PIXELS, PIXELS), 0).to(ACC)
        at = (n.to(tl.int64) * tiles + t) * C + c
        inside = (t < tiles) & (c < C)
        shift = tl.load(means + at, inside, 0.0) - joined[None, :]
        total += tl.load(m2s + at, inside, 0.0) + count * shift * shift
    at = n * C + tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C) < C
    tl.store(mean + at, joined, inside)
    tl.store(rstd + at, 1 / tl.sqrt(tl.sum(total, 0) / P + eps), inside)


@triton.jit
def instance_norm_act_kernel(
    x, noise, strength, scale, bias, mean, rstd, y, C, P, stride_p, stride_c, tiles, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, 0, STEPS, BLOCK_P, BLOCK_C)
    u = load_noisy(x, noise, strength, at, inside, n, p, P, noise_stride, ACC)
    mu, r = load_style(mean, n, c, C, ACC), load_style(rstd, n, c, C, ACC)
    s, b = load_style(scale, n, c, C, ACC), load_style(bias, n, c, C, ACC)
    tl.store(y + at, normalized_act(u, mu, r, s, b, SLOPE, GAIN), inside)


@triton.jit
def style_grad_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, dscale, dbias, C, P, stride_p, stride_c, tiles, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One row per program of partial sums of dscale and dbias [rows, C]."""
    sum_dz = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_dz_h = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        u = load_noisy(x, noise, strength, at, inside, n, p, P, noise_stride, ACC)
        mu, r = load_style(mean, n, c, C, ACC), load_style(rstd, n, c, C, ACC)
        s, b = load_style(scale, n, c, C, ACC), load_style(bias, n, c, C, ACC)
        dz, h = normalized_act_grad(tl.load(g + at, inside, 0.0).to(ACC), u, mu, r, s, b, SLOPE, GAIN)
        sum_dz += dz
        sum_dz_h += tl.where(inside, dz * h, 0.0)
    store_row(dscale, tl.sum(sum_dz_h, 0), C, BLOCK_C)
    store_row(dbias, tl.sum(sum_dz, 0), C, BLOCK_C)


@triton.jit
def instance_norm_act_grad_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, dscale, dbias, dx, dstrength,
    C, P, stride_p, stride_c, tiles, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx, given dscale and dbias [N, C], and partial sums of dstrength [rows, tiles of channels]."""
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        u = load_noisy(x, noise, strength, at, inside, n, p, P, noise_stride, ACC)
        mu, r = load_style(mean, n, c, C, ACC), load_style(rstd, n, c, C, ACC)
        s, b = load_style(scale, n, c, C, ACC), load_style(bias, n, c, C, ACC)
        dz, h = normalized_act_grad(tl.load(g + at, inside, 0.0).to(ACC), u, mu, r, s, b, SLOPE, GAIN)
        mean_dz, mean_dz_h = load_style(dbias, n, c, C, ACC) / P, load_style(dscale, n, c, C, ACC) / P
        du = instance_norm_grad(dz, h, r, s, mean_dz, mean_dz_h)
        if dx is not None:
            tl.store(dx + at, du, inside)
        if dstrength is not None:
            value = tl.load(noise + n.to(tl.int64) * noise_stride + p, p < P, 0.0).to(ACC)
            sum_du_noise += tl.where(inside, du * value, 0.0)
    if dstrength is not None:
        at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        tl.store(dstrength + at, tl.sum(tl.sum(sum_du_noise, 0), 0))


@triton.jit
def direction_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, ddx, ddstrength, v_sum, vh_sum, vdz_sum,
    C, P, stride_p, stride_c, tiles, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Partial sums [rows, C] of v, v * h and v * dz, where v = ddx + noise * ddstrength is the gradient of du."""
    sum_v = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_vh = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_vdz = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        u = load_noisy(x, noise, strength, at, inside, n, p, P, noise_stride, ACC)
        v = load_noisy(
            ddx, noise if ddstrength is not None else None, ddstrength, at, inside, n, p, P, noise_stride, ACC
        )
        mu, r = load_style(mean, n, c, C, ACC), load_style(rstd, n, c, C, ACC)
        s, b = load_style(scale, n, c, C, ACC), load_style(bias, n, c, C, ACC)
        dz, h = normalized_act_grad(tl.load(g + at, inside, 0.0).to(ACC), u, mu, r, s, b, SLOPE, GAIN)
        v = tl.where(inside, v, 0.0)
        sum_v += v
        sum_vh += v * h
        sum_vdz += v * dz
    store_row(v_sum, tl.sum(sum_v, 0), C, BLOCK_C)
    store_row(vh_sum, tl.sum(sum_vh, 0), C, BLOCK_C)
    store_row(vdz_sum, tl.sum(sum_vdz, 0), C, BLOCK_C)


@triton.jit
def instance_norm_act_grad_grad_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, ddx, ddstrength, ddscale, ddbias,
    dscale, dbias, v_sum, vh_sum, vdz_sum, dg, dx, dstrength,
    C, P, stride_p, stride_c, tiles, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dg, dx and partial sums of dstrength, given the sums over pixels [N, C] of both gradient passes."""
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, p, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        u = load_noisy(x, noise, strength, at, inside, n, p, P, noise_stride, ACC)
        v = load_noisy(
            ddx, noise if ddstrength is not None else None, ddstrength, at, inside, n, p, P, noise_stride, ACC
        )
        mu, r = load_style(mean, n, c, C, ACC), load_style(rstd, n, c, C, ACC)
        s, b = load_style(scale, n, c, C, ACC), load_style(bias, n, c, C, ACC)
        dz, h = normalized_act_grad(tl.load(g + at, inside, 0.0).to(ACC), u, mu, r, s, b, SLOPE, GAIN)
        dds, ddb = load_style(ddscale, n, c, C, ACC), load_style(ddbias, n, c, C, ACC)
        A, B = load_style(dbias, n, c, C, ACC) / P, load_style(dscale, n, c, C, ACC) / P
        V, W = load_style(v_sum, n, c, C, ACC) / P, load_style(vh_sum, n, c, C, ACC) / P
        D = load_style(vdz_sum, n, c, C, ACC) / P
        ddz, du = instance_norm_grad_grad(dz, v, h, r, s, dds, ddb, A, B, V, W, D)
        dg_value, _ = normalized_act_grad(
            ddz, u, mu, r, s, b, SLOPE, GAIN
        )  # linear in g: the same mask and gain
        tl.store(dg + at, dg_value, inside)
        if dx is not None:
            tl.store(dx + at, du, inside)
        if dstrength is not None:
            value = tl.load(noise + n.to(tl.int64) * noise_stride + p, p < P, 0.0).to(ACC)
            sum_du_noise += tl.where(inside, du * value, 0.0)
    if dstrength is not None:
        at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        tl.store(dstrength + at, tl.sum(tl.sum(sum_du_noise, 0), 0))


# ---- autograd ----------------------------------------------------------------------------------------------------


def _launch(kernel, t: Tiling, noise: Tensor | None, acc: torch.dtype, pointers: tuple, **constants) -> None:
    if t.grid[0] * t.grid[1] == 0:
        return
    noise_stride = 0 if noise is None or noise.shape[0] == 1 else noise.shape[2] * noise.shape[3]
    acc = tl.float64 if acc is torch.float64 else tl.float32
    sizes = (*t.sizes, noise_stride)
    kernel[t.grid](
        *pointers, *sizes, ACC=acc, STEPS=t.steps, BLOCK_P=t.block_p, BLOCK_C=t.block_c, **constants
    )


def _moments(x: Tensor, noise: Tensor | None, strength: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(var + eps) of x + noise * strength, both [N, C]."""
    t, acc = tiling(x.shape, is_nhwc(x), reduce=True), accumulator(x.dtype)
    channels, pixels = t.sizes[:2]
    means, m2s = x.new_empty((2, t.rows, channels), dtype=acc)
    mean, rstd = x.new_empty((2, t.samples, channels), dtype=acc)
    _launch(moments_kernel, t, noise, acc, (x, noise, strength, means, m2s))
    block_c = min(power_of_2(channels), 32)
    join_moments_kernel[(t.samples, -(-channels // block_c))](
        means, m2s, mean, rstd, eps, channels, pixels, t.tiles, PIXELS=t.steps * t.block_p,
        ACC=tl.float64 if acc is torch.float64 else tl.float32, BLOCK_T=min(power_of_2(t.tiles), 64), BLOCK_C=block_c,
    )  # fmt: skip
    return mean, rstd


class _InstanceNormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, bias, noise, strength, eps, slope, gain, dtype):
        y = torch.empty_like(x, dtype=dtype)
        if x.numel():
            mean, rstd = _moments(x, noise, strength, eps)
            pointers = (x, noise, strength, scale, bias, mean, rstd, y)
            t = tiling(x.shape, is_nhwc(x))
            _launch(instance_norm_act_kernel, t, noise, mean.dtype, pointers, SLOPE=slope, GAIN=gain)
        else:
            mean, rstd = x.new_empty((2, *x.shape[:2]), dtype=accumulator(x.dtype))
        ctx.save_for_backward(x, scale, bias, noise, strength, mean, rstd)
        ctx.constants = (slope, gain)
        return y

    @staticmethod
    def backward(ctx, g):
        needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[4])
        if torch.is_grad_enabled():
            grads = _InstanceNormActGrad.apply(g, *ctx.saved_tensors, *ctx.constants, needs)
        else:
            grads, _ = _grad(g, *ctx.saved_tensors, *ctx.constants, needs)
        dx, dscale, dbias, dstrength = grads
        return dx, dscale, dbias, None, dstrength, None, None, None, None


def _grad(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs):
    """(dx, dscale, dbias, dstrength) for the gradient g of y (dx, dstrength None where not needed); sums [2, N, C]."""
    nhwc, acc = is_nhwc(x), mean.dtype
    need_x, need_strength = needs
    g = dense_as(g, nhwc)
    t = tiling(x.shape, nhwc, reduce=True)
    common = (g, x, noise, strength, scale, bias, mean, rstd)
    partials = x.new_empty((2, t.samples, t.tiles, x.shape[1]), dtype=acc)
    _launch(style_grad_kernel, t, noise, acc, (*common, *partials), SLOPE=slope, GAIN=gain)
    sums = partials.sum(2)
    dx = dstrength = None
    if need_x or need_strength:
        t = tiling(x.shape, nhwc, reduce=need_strength)
        dx = torch.empty_like(x) if need_x else None
        dstrength = x.new_empty(t.grid, dtype=acc) if need_strength else None
        _launch(
            instance_norm_act_grad_kernel,
            t,
            noise,
            acc,
            (*common, *sums, dx, dstrength),
            SLOPE=slope,
            GAIN=gain,
        )
    return (dx, sums[0].to(scale.dtype), sums[1].to(bias.dtype), _total(dstrength, strength)), sums


def _total(partials: Tensor | None, strength: Tensor | None) -> Tensor | None:
    return None if partials is None else partials.sum().view(strength.shape).to(strength.dtype)


class _InstanceNormActGrad(torch.autograd.Function):
    """`_grad` as a function that can be differentiated itself (mean and rstd stand for what they came from)."""

    @staticmethod
    def forward(ctx, g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs):
        grads, sums = _grad(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs)
        ctx.save_for_backward(g, x, scale, bias, noise, strength, mean, rstd, sums)
        ctx.set_materialize_grads(False)
        ctx.constants = {"SLOPE": slope, "GAIN": gain}
        return grads

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddscale, ddbias, ddstrength):
        if ddx is None and ddscale is None and ddbias is None and ddstrength is None:
            return (None,) * 11
        g, x, scale, bias, noise, strength, mean, rstd, sums = ctx.saved_tensors
        nhwc, acc = is_nhwc(x), rstd.dtype
        g = dense_as(g, nhwc)
        common = (g, x, noise, strength, scale, bias, mean, rstd)
        ddx = None if ddx is None else dense_as(ddx, nhwc)
        ddscale, ddbias = (d if d is None else d.contiguous() for d in (ddscale, ddbias))
        need_x, need_strength = ctx.needs_input_grad[1], ctx.needs_input_grad[5]
        t = tiling(x.shape, nhwc, reduce=True)
        partials = x.new_empty((3, t.samples, t.tiles, x.shape[1]), dtype=acc)
        _launch(direction_kernel, t, noise, acc, (*common, ddx, ddstrength, *partials), **ctx.constants)
        direction = partials.sum(2)
        t = tiling(x.shape, nhwc, reduce=need_strength)
        dg = torch.empty_like(g)
        dx = torch.empty_like(x) if need_x else None
        dstrength = x.new_empty(t.grid, dtype=acc) if need_strength else None
        pointers = (*common, ddx, ddstrength, ddscale, ddbias, *sums, *direction, dg, dx, dstrength)
        _launch(instance_norm_act_grad_grad_kernel, t, noise, acc, pointers, **ctx.constants)
        (b, a), (v, w, d) = sums, direction
        pixels = max(t.sizes[1], 1)
        dscale = (rstd * (d - (a * v + b * w) / pixels)).to(scale.dtype)
        return dg, dx, dscale, None, None, _total(dstrength, strength), None, None, None, None, None
