"""The kernels of `group_norm_act` and `batch_norm_act`, in the order in which they run.

A group of numbers has one mean and one variance. In group norm it is `width` channels of a sample, in batch norm a
channel of all samples. Nothing else differs, so both share these kernels. Forward: `moments_kernel` of instance norm
leaves the moments of each program's pixels by channel, a small kernel joins those of a group, and a pass writes y.
Backward: a pass takes sums by channel, a small kernel joins them, and a second pass writes dx.
"""

from ..common.dependent_launch import after_previous
from ..common.sums import store_row
from ..common.tiles import COUNTS, load, my_tiles, store, tile_at, tl, triton
from .instance_norm_act_kernels import pixels_of

# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def affine_act(h, w, b, SILU: tl.constexpr, SLOPE: tl.constexpr):
    """Compute y = act(h * w + b)."""
    h = h * w + b
    return h * tl.sigmoid(h) if SILU else tl.where(h > 0, h, h * SLOPE)


@triton.jit
def affine_act_grad(g, h, w, b, SILU: tl.constexpr, SLOPE: tl.constexpr):
    """Compute dz from the gradient g of y = act(z), z = h * w + b."""
    z = h * w + b
    if SILU:
        s = tl.sigmoid(z)
        return g * s * (1 + z * (1 - s))
    else:
        return tl.where(z > 0, g, g * SLOPE)


# ---- passes over the activation ----------------------------------------------------------------------------------


@triton.jit
def of_channel(pointer, c, C, WHOLE: tl.constexpr, ACC: tl.constexpr, NONE: tl.constexpr):
    """Load [1, BLOCK_C] of a tensor [C]. In place of None there are numbers `NONE`."""
    if pointer is not None:
        return load(pointer + c, c < C, WHOLE, ACC)
    else:
        return tl.full(c.shape, NONE, ACC)


@triton.jit
def of_group(pointer, n, c, C, groups, width, WHOLE: tl.constexpr, ACC: tl.constexpr):
    """Load for each channel [1, BLOCK_C] what its group has in a tensor [N, groups], or [C] where groups is 0."""
    return load(pointer + n * groups + c // width, c < C, WHOLE, ACC)


@triton.jit
def load_norm(mean, rstd, weight, bias, n, c, C, groups, width, WHOLE: tl.constexpr, ACC: tl.constexpr):
    """Load for each channel [1, BLOCK_C] the mean and rstd of its group, its weight and its bias."""
    return (
        of_group(mean, n, c, C, groups, width, WHOLE, ACC),
        of_group(rstd, n, c, C, groups, width, WHOLE, ACC),
        of_channel(weight, c, C, WHOLE, ACC, 1.0),
        of_channel(bias, c, C, WHOLE, ACC, 0.0),
    )


@triton.jit(do_not_specialize=COUNTS)
def norm_act_kernel(
    x, weight, bias, mean, rstd, y, C, P, stride_p, stride_c, tiles, programs, groups, width,
    SILU: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr, WALK: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    mu, r, w, b = load_norm(mean, rstd, weight, bias, n, c, C, groups, width, WHOLE, ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        _, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        h = (load(x + at + ij, inside, WHOLE, ACC) - mu) * r
        store(y + at + ij, affine_act(h, w, b, SILU, SLOPE), inside, WHOLE)


@triton.jit(do_not_specialize=COUNTS)
def norm_act_sums_kernel(
    g, x, weight, bias, mean, rstd, dz_sums, dz_h_sums,
    C, P, stride_p, stride_c, tiles, programs, groups, width,
    SILU: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr, WALK: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Leave a row for each program: the sums over its pixels of dz, and of dz times the normalized x, by channel."""
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    mu, r, w, b = load_norm(mean, rstd, weight, bias, n, c, C, groups, width, WHOLE, ACC)
    sum_dz = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_dz_h = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        _, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        h = (load(x + at + ij, inside, WHOLE, ACC) - mu) * r
        dz = affine_act_grad(load(g + at + ij, inside, WHOLE, ACC), h, w, b, SILU, SLOPE)
        sum_dz += tl.where(inside, dz, 0.0)
        sum_dz_h += tl.where(inside, dz * h, 0.0)
    store_row(dz_sums, sum_dz, C, BLOCK_C)
    store_row(dz_h_sums, sum_dz_h, C, BLOCK_C)


@triton.jit(do_not_specialize=COUNTS)
def norm_act_grad_kernel(
    g, x, weight, bias, mean, rstd, mean_dh, mean_dh_h, dx,
    C, P, stride_p, stride_c, tiles, programs, groups, width,
    SILU: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr, WALK: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx. The normalization removes the mean of dh = dz * w over a group, and its part along h."""
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    mu, r, w, b = load_norm(mean, rstd, weight, bias, n, c, C, groups, width, WHOLE, ACC)
    m, m_h = (
        of_group(mean_dh, n, c, C, groups, width, WHOLE, ACC),
        of_group(mean_dh_h, n, c, C, groups, width, WHOLE, ACC),
    )
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        _, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        h = (load(x + at + ij, inside, WHOLE, ACC) - mu) * r
        dh = affine_act_grad(load(g + at + ij, inside, WHOLE, ACC), h, w, b, SILU, SLOPE) * w
        store(dx + at + ij, r * (dh - m - h * m_h), inside, WHOLE)


# ---- joining what programs left ----------------------------------------------------------------------------------


@triton.jit
def my_group(C, groups, width, GROUPED: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return this program's sample (int64), channels [1, BLOCK_C] with their mask, and where its results go.

    GROUPED: it is one group of one sample. Else it is BLOCK_C channels, each a group of its own.
    """
    n, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = tl.arange(0, BLOCK_C)[None, :]
    if GROUPED:
        c = block * width + j
        return n, c, j < width, n * groups + block + tl.arange(0, 1)[None, :]
    else:
        c = block * BLOCK_C + j
        return n, c, c < C, c.to(tl.int64)


@triton.jit
def total_of(values, GROUPED: tl.constexpr):
    """Sum [BLOCK_R, BLOCK_C] over rows, and over the channels of a group: [1, BLOCK_C] or [1, 1]."""
    total = tl.sum(values, 0)[None, :]
    return tl.sum(total, 1)[:, None] if GROUPED else total


@triton.jit
def join_groups_kernel(
    means, m2s, mean, rstd, running_mean, running_var, momentum,
    C, P, tiles, programs, rows, groups, width, size,
    PIXELS: tl.constexpr, EPS: tl.constexpr, GROUPED: tl.constexpr, ACC: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Join the rows of moments of a group of `size` numbers by Chan's rule into its mean and rstd.

    Running statistics, if given, move towards the mean and the unbiased variance by `momentum`, as in PyTorch.
    """
    after_previous(DEPENDENT)
    n, c, valid, out = my_group(C, groups, width, GROUPED, BLOCK_C)
    total = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for start in range(0, rows, BLOCK_R):
        k = start + tl.arange(0, BLOCK_R)[:, None]
        count = pixels_of(k % programs, P, tiles, programs, PIXELS).to(ACC)
        total += count * tl.load(means + (n * rows + k) * C + c, (k < rows) & valid, 0.0)
    joined = total_of(total, GROUPED) / size
    total = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for start in range(0, rows, BLOCK_R):
        k = start + tl.arange(0, BLOCK_R)[:, None]
        at, inside = (n * rows + k) * C + c, (k < rows) & valid
        count = pixels_of(k % programs, P, tiles, programs, PIXELS).to(ACC)
        shift = tl.load(means + at, inside, 0.0) - joined
        total += tl.where(inside, tl.load(m2s + at, inside, 0.0) + count * shift * shift, 0.0)
    m2 = total_of(total, GROUPED)
    there = valid if not GROUPED else out >= 0
    tl.store(mean + out, joined, there)
    tl.store(rstd + out, 1 / tl.sqrt(m2 / size + EPS), there)
    if running_mean is not None:
        before = tl.load(running_mean + out, there, 0.0)
        tl.store(running_mean + out, before + (joined - before) * momentum, there)
        before = tl.load(running_var + out, there, 0.0)
        tl.store(running_var + out, before + (m2 / (size - 1) - before) * momentum, there)


@triton.jit
def join_sums_kernel(
    dz_rows, dz_h_rows, weight, dz_sums, dz_h_sums, mean_dh, mean_dh_h, C, rows, groups, width, size,
    GROUPED: tl.constexpr, ACC: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Add the rows of sums up by channel, [N, C] or [C]. Weighted, they make a group's means of dh and dh * h."""
    after_previous(DEPENDENT)
    n, c, valid, out = my_group(C, groups, width, GROUPED, BLOCK_C)
    dz = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    dz_h = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for start in range(0, rows, BLOCK_R):
        k = start + tl.arange(0, BLOCK_R)[:, None]
        at, inside = (n * rows + k) * C + c, (k < rows) & valid
        dz += tl.load(dz_rows + at, inside, 0.0)
        dz_h += tl.load(dz_h_rows + at, inside, 0.0)
    dz, dz_h = tl.sum(dz, 0)[None, :], tl.sum(dz_h, 0)[None, :]
    tl.store(dz_sums + n * C + c, dz, valid)
    tl.store(dz_h_sums + n * C + c, dz_h, valid)
    if weight is not None:
        w = tl.load(weight + c, valid, 0.0).to(ACC)
        dz, dz_h = dz * w, dz_h * w
    there = valid if not GROUPED else out >= 0
    tl.store(mean_dh + out, total_of(dz, GROUPED) / size, there)
    tl.store(mean_dh_h + out, total_of(dz_h, GROUPED) / size, there)
