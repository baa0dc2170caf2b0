"""The kernels of `instance_norm_act` by tiles, in the order in which they run.

Forward has three: the moments of each program's pixels, the joined moments, then y. Backward has two passes. The first
takes the sums that are dscale and dbias, which also remove mean and variance from the gradient. The second writes dx.
Double backward has the same two passes once more.
"""

from ..common.dependent_launch import after_previous
from ..common.sums import store_row, store_total
from ..common.tiles import COUNTS, load, my_tiles, store, tile_at, tl, triton

# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def normalized_act(u, mean, rstd, scale, bias, SLOPE: tl.constexpr, GAIN: tl.constexpr):
    """Compute y."""
    z = (u - mean) * rstd * scale + bias
    return tl.where(z > 0, z, z * SLOPE) * GAIN


@triton.jit
def normalized_act_grad(g, u, mean, rstd, scale, bias, SLOPE: tl.constexpr, GAIN: tl.constexpr):
    """Compute dz and the normalized u (h). The sum of dz over pixels is dbias, the sum of dz * h is dscale."""
    h = (u - mean) * rstd
    return tl.where(h * scale + bias > 0, g, g * SLOPE) * GAIN, h


@triton.jit
def instance_norm_grad(dz, h, rstd, scale, mean_dz, mean_dz_h):
    """Compute du from dz, through affine map and normalization. The latter removes dz's mean and its part along h."""
    return rstd * scale * (dz - mean_dz - h * mean_dz_h)


@triton.jit
def instance_norm_grad_grad(dz, v, h, rstd, scale, ddscale, ddbias, A, B, V, W, D):
    """Compute the gradients by dz and u of the first gradients, along v (of du), ddscale and ddbias.

    A, B, V, W, D are the means over the plane of dz, dz * h, v, v * h and v * dz. The function to differentiate is
    sum(rstd * scale * dz * (v - V - h * W)) + ddscale * sum(dz * h) + ddbias * sum(dz). In it h and rstd depend on u.
    """
    k = rstd * scale
    ddz = k * (v - V - h * W) + ddscale * h + ddbias
    dh = ddscale * dz - k * (W * dz + B * v)
    mean_dh, mean_dh_h = ddscale * A - k * (W * A + B * V), ddscale * B - 2 * k * W * B
    return ddz, rstd * (dh - mean_dh - h * mean_dh_h) - rstd * k * h * (D - A * V - B * W)


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def noisy(pointers, e, k, inside, WHOLE: tl.constexpr, ACC: tl.constexpr, EVICT: tl.constexpr = None):
    """Compute the values + noise * strength. e is None where there is no noise."""
    u = load(pointers, inside, WHOLE, ACC, EVICT)
    if e is not None:
        u += e * k
    return u


@triton.jit
def row(pointer, n, c, C, WHOLE: tl.constexpr, ACC: tl.constexpr):
    """Load [1, BLOCK_C] of a tensor [N, C], or zeros if it is None."""
    if pointer is not None:
        return load(pointer + n * C + c, c < C, WHOLE, ACC)
    else:
        return tl.zeros(c.shape, ACC)


@triton.jit(do_not_specialize=COUNTS)
def moments_kernel(
    x, noise, strength, means, m2s, C, P, stride_p, stride_c, tiles, programs, noise_stride, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write one row for each program: the mean of u = x + noise * strength over its pixels, and their squared distance
    to it.

    Each of the BLOCK_P x BLOCK_C positions keeps Welford's running moments. At the end those of a channel are joined.
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    count = tl.zeros([BLOCK_P, 1], ACC)
    mean = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    m2 = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + ij, e, k, inside, WHOLE, ACC)
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
    """Return the number of pixels that program t of a sample sees. All its tiles are full, except
    the sample's last tile.
    """
    missing = tl.where(t == (tiles - 1) % programs, tiles * BLOCK_P - P, 0)
    return tl.where(t < programs, tl.cdiv(tiles - t, programs) * BLOCK_P - missing, 0)


@triton.jit
def join_moments_kernel(
    means, m2s, mean, rstd, eps, C, P, tiles, programs, PIXELS: tl.constexpr,
    ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Join the rows of one sample by Chan's rule into mean and rstd [N, C]. PIXELS: BLOCK_P of the rows' kernel."""
    after_previous(DEPENDENT)
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
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    mu, r = row(mean, n, c, C, WHOLE, ACC), row(rstd, n, c, C, WHOLE, ACC)
    s, b = row(scale, n, c, C, WHOLE, ACC), row(bias, n, c, C, WHOLE, ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + ij, e, k, inside, WHOLE, ACC)
        store(y + at + ij, normalized_act(u, mu, r, s, b, SLOPE, GAIN), inside, WHOLE)


@triton.jit(do_not_specialize=COUNTS)
def instance_norm_act_sums_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, ddx, ddstrength, dz_h_sum, dz_sum, v_sum, vh_sum, vdz_sum,
    C, P, stride_p, stride_c, tiles, programs, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Take each program's sums over its pixels.

    They are dz * h (dscale) and dz (dbias) if dz_sum is given. If v_sum is given, they are v, v * h and v * dz, where v
    = ddx + noise * ddstrength is the gradient of du.
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    mu, r = row(mean, n, c, C, WHOLE, ACC), row(rstd, n, c, C, WHOLE, ACC)
    s, b = row(scale, n, c, C, WHOLE, ACC), row(bias, n, c, C, WHOLE, ACC)
    zero = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_dz, sum_dz_h, sum_v, sum_vh, sum_vdz = zero, zero, zero, zero, zero
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + ij, e, k, inside, WHOLE, ACC)
        dz = load(g + at + ij, inside, WHOLE, ACC)
        dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
        if dz_sum is not None:
            sum_dz += dz
            sum_dz_h += tl.where(inside, dz * h, 0.0)
        if v_sum is not None:
            v = load(ddx + at + ij, inside, WHOLE, ACC) if ddx is not None else zero
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
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx, given the sums [N, C] of the pass before, and each program's sum of dstrength."""
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    k = tl.load(strength).to(ACC) if strength is not None else None
    mu, r = row(mean, n, c, C, WHOLE, ACC), row(rstd, n, c, C, WHOLE, ACC)
    s, b = row(scale, n, c, C, WHOLE, ACC), row(bias, n, c, C, WHOLE, ACC)
    mean_dz, mean_dz_h = row(dz_sum, n, c, C, WHOLE, ACC) / P, row(dz_h_sum, n, c, C, WHOLE, ACC) / P
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + ij, e, k, inside, WHOLE, ACC)
        dz = load(g + at + ij, inside, WHOLE, ACC)
        dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
        du = instance_norm_grad(dz, h, r, s, mean_dz, mean_dz_h)
        if dx is not None:
            store(dx + at + ij, du, inside, WHOLE)
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
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dg, dx and each program's sum of dstrength, given the sums over pixels [N, C] of both gradient passes."""
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
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
        p0, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        e = load(noise + (n * noise_stride + p0) + i, i < P - p0, WHOLE, ACC) if noise is not None else None
        u = noisy(x + at + ij, e, k, inside, WHOLE, ACC)
        dz = load(g + at + ij, inside, WHOLE, ACC)
        dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
        v = load(ddx + at + ij, inside, WHOLE, ACC) if ddx is not None else tl.zeros([BLOCK_P, BLOCK_C], ACC)
        if ddstrength is not None:
            v += e * tl.load(ddstrength).to(ACC)
        ddz, du = instance_norm_grad_grad(dz, v, h, r, s, dds, ddb, A, B, V, W, D)
        # dz is linear in g: the same mask and gain bring ddz back to g.
        dg_value, _ = normalized_act_grad(ddz, u, mu, r, s, b, SLOPE, GAIN)
        store(dg + at + ij, dg_value, inside, WHOLE)
        if dx is not None:
            store(dx + at + ij, du, inside, WHOLE)
        if dstrength is not None:
            sum_du_noise += tl.where(inside, du * e, 0.0)
    if dstrength is not None:
        store_total(dstrength, sum_du_noise)
