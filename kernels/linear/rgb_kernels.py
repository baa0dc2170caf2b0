"""The three maps of `rgb.py` as kernels: to few channels, from few channels, and the correlation of the two.

"Wide" is the activation [N, C, H, W], "narrow" the image [N, K, H, W] with K up to 4. Every kernel covers the wide
tensor with tiles of pixels x channels. It keeps the weights of its channels in registers while it walks.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import choices
from ..common.dependent_launch import after_previous
from ..common.sums import Sums
from ..common.tiles import (
    COUNTS,
    LONGEST,
    Tiling,
    accumulator,
    launch,
    load,
    my_tiles,
    new_image,
    power_of_2,
    processor,
    store,
    tile_at,
    tl,
    triton,
)
from ..pointwise.bias_act import activate, activate_grad

# ---- in kernels --------------------------------------------------------------------------------------------------


@triton.jit
def fetch(pointers, inside, WHOLE: tl.constexpr):
    """Load values as they are stored. They are converted at their use, so fewer registers wait for memory."""
    if WHOLE:
        return tl.load(pointers)
    else:
        return tl.load(pointers, inside, 0.0)


@triton.jit
def fetch_narrow(image, i, p0, P, narrow_p, narrow_k, K: tl.constexpr, WHOLE: tl.constexpr):
    """Load a tile's pixels of the image: K times [BLOCK_P, 1]."""
    found = ()
    for k in tl.static_range(K):
        found += (fetch(image + p0 * narrow_p + (i * narrow_p + k * narrow_k), i < P - p0, WHOLE),)
    return found


@triton.jit
def rows_of(w, c, C, w_k, w_c, K: tl.constexpr, GAIN: tl.constexpr, WHOLE: tl.constexpr, ACC: tl.constexpr):
    """Load weights times gain: K times [1, BLOCK_C]."""
    found = ()
    for k in tl.static_range(K):
        found += (load(w + k * w_k + c * w_c, c < C, WHOLE, ACC) * GAIN,)
    return found


@triton.jit
def join(columns, K: tl.constexpr):
    """Put K times [BLOCK_P] side by side, [BLOCK_P, K] (4 for 3): one exchange between threads and
    one store for all.
    """
    if K == 1:
        return columns[0][:, None]
    elif K == 2:
        return tl.join(columns[0], columns[1])
    else:
        last = columns[3] if K == 4 else columns[2]
        pairs = tl.join(tl.join(columns[0], columns[2]), tl.join(columns[1], last))
        return tl.reshape(pairs, [columns[0].shape[0], 4])


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
def rgb_narrow_kernel(
    x, ref, w, bias, image, y, C, P, stride_p, stride_c, tiles, programs, narrow_p, narrow_k, w_n, w_k, w_c,
    K: tl.constexpr, GAIN: tl.constexpr, SLOPE: tl.constexpr, ACT_GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    MORE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y[k] = GAIN * sum over c of x[c] * w[k, c] + bias[k] + image[k].

    With ref, x is first masked by the activation's slope at ref. MORE: the program walks over more than one tile's
    channels.
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    w += n * w_n
    y += n * K * P
    weights = rows_of(w, c, C, w_k, w_c, K, GAIN, WHOLE, ACC)
    r = tl.arange(0, 1 if K == 1 else (2 if K == 2 else 4))[None, :]
    start = tl.load(bias + r, r < K, 0.0).to(ACC) if bias is not None else None
    for tile in tl.range(first, end, programs * AHEAD):
        found = ()
        masks, images = (), ()
        for a in tl.static_range(AHEAD):
            p0, at, inside = tile_at(tile + a * programs, base, i, c, C, P, stride_p, BLOCK_P)
            found += (fetch(x + at + ij, inside, WHOLE),)
            if ref is not None:
                masks += (fetch(ref + at + ij, inside, WHOLE),)
            if image is not None:
                where = image + (n * K * P + p0 * narrow_p) + (i * narrow_p + r * narrow_k)
                images += (tl.load(where, (i < P - p0) & (r < K), 0.0),)
        for a in tl.static_range(AHEAD):
            p0, at, inside = tile_at(tile + a * programs, base, i, c, C, P, stride_p, BLOCK_P)
            values = found[a].to(ACC)
            if ref is not None:
                values = activate_grad(values, masks[a].to(ACC), SLOPE, ACT_GAIN, None)
            totals = ()
            for k in tl.static_range(K):
                totals += (tl.sum(values * weights[k], 1),)
            if MORE:
                for c0 in tl.range(BLOCK_C, C, BLOCK_C):
                    there = at + tl.full([], 1, tl.int64) * c0 * stride_c + ij
                    inside = (i < P - p0) & (c + c0 < C)
                    values = load(x + there, inside, WHOLE, ACC)
                    if ref is not None:
                        mask = load(ref + there, inside, WHOLE, ACC)
                        values = activate_grad(values, mask, SLOPE, ACT_GAIN, None)
                    rows = rows_of(w, c + c0, C, w_k, w_c, K, GAIN, WHOLE, ACC)
                    sums = ()
                    for k in tl.static_range(K):
                        sums += (totals[k] + tl.sum(values * rows[k], 1),)
                    totals = sums
            joined = join(totals, K)
            if bias is not None:
                joined += start
            if image is not None:
                joined += images[a].to(ACC)
            where = y + p0 * narrow_p + (i * narrow_p + r * narrow_k)
            tl.store(where, joined, (i < P - p0) & (r < K))


@triton.jit(do_not_specialize=COUNTS)
def rgb_wide_kernel(
    g, w, bias, y, C, P, stride_p, stride_c, tiles, programs, narrow_p, narrow_k, w_n, w_k, w_c,
    K: tl.constexpr, GAIN: tl.constexpr, SLOPE: tl.constexpr, ACT_GAIN: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y[c] = activate(GAIN * sum over k of g[k] * w[k, c] + bias[c])."""
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    g += n * K * P
    weights = rows_of(w + n * w_n, c, C, w_k, w_c, K, GAIN, WHOLE, ACC)
    start = load(bias + c, c < C, WHOLE, ACC) if bias is not None else weights[0] * 0
    for tile in tl.range(first, end, programs * AHEAD):
        found = ()
        for a in tl.static_range(AHEAD):
            p0, _, _ = tile_at(tile + a * programs, base, i, c, C, P, stride_p, BLOCK_P)
            found += (fetch_narrow(g, i, p0, P, narrow_p, narrow_k, K, WHOLE),)
        for a in tl.static_range(AHEAD):
            _, at, inside = tile_at(tile + a * programs, base, i, c, C, P, stride_p, BLOCK_P)
            u = found[a][0].to(ACC) * weights[0] + start
            for k in tl.static_range(1, K):
                u += found[a][k].to(ACC) * weights[k]
            store(y + at + ij, activate(u, SLOPE, ACT_GAIN, None), inside, WHOLE)


@triton.jit(do_not_specialize=COUNTS)
def rgb_correlate_kernel(
    g, x, ref, w, dx, partials, C, P, stride_p, stride_c, tiles, programs, narrow_p, narrow_k, w_n, w_k, w_c, width,
    K: tl.constexpr, GAIN: tl.constexpr, SLOPE: tl.constexpr, ACT_GAIN: tl.constexpr,
    SUM_G: tl.constexpr, SUM_X: tl.constexpr, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write a row of this program's sums over pixels: GAIN * g[k] * x[c] (K * C of them), then, as asked for, g[k] or
    x[c].

    With ref, x is first masked by the activation's slope at ref. With dx, GAIN * sum over k of g[k] * w[k, c] goes
    there.
    """
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    g += n * K * P
    if dx is not None:
        weights = rows_of(w + n * w_n, c, C, w_k, w_c, K, GAIN, WHOLE, ACC)
    sums = ()
    sums_g = ()
    for _row in tl.static_range(K):
        sums += (tl.zeros([BLOCK_P, BLOCK_C], ACC),)
        sums_g += (tl.zeros([BLOCK_P, 1], ACC),)
    sum_x = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs * AHEAD):
        found = ()
        masks, images = (), ()
        for a in tl.static_range(AHEAD):
            p0, at, inside = tile_at(tile + a * programs, base, i, c, C, P, stride_p, BLOCK_P)
            found += (fetch(x + at + ij, inside, WHOLE),)
            if ref is not None:
                masks += (fetch(ref + at + ij, inside, WHOLE),)
            images += (fetch_narrow(g, i, p0, P, narrow_p, narrow_k, K, WHOLE),)
        for a in tl.static_range(AHEAD):
            values = found[a].to(ACC)
            if ref is not None:
                values = activate_grad(values, masks[a].to(ACC), SLOPE, ACT_GAIN, None)
            added = ()
            added_g = ()
            for k in tl.static_range(K):
                g_k = images[a][k].to(ACC)
                added += (sums[k] + values * g_k,)
                added_g += (sums_g[k] + g_k,)
            sums = added
            if SUM_G:
                sums_g = added_g
            if SUM_X:
                sum_x += values
            if dx is not None:
                _, at, inside = tile_at(tile + a * programs, base, i, c, C, P, stride_p, BLOCK_P)
                out = images[a][0].to(ACC) * weights[0]
                for k in tl.static_range(1, K):
                    out += images[a][k].to(ACC) * weights[k]
                store(dx + at + ij, out, inside, WHOLE)
    row = partials + tl.program_id(0).to(tl.int64) * width
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    for k in tl.static_range(K):
        tl.store(row + k * C + columns, tl.sum(sums[k], 0) * GAIN, columns < C)
        if SUM_G:
            tl.store(row + K * C + k, tl.sum(tl.sum(sums_g[k], 1), 0), tl.program_id(1) == 0)
    if SUM_X:
        tl.store(row + K * C + columns, tl.sum(sum_x, 0), columns < C)


# ---- tiles -------------------------------------------------------------------------------------------------------


class Config(NamedTuple):
    """The way to cover the wide tensor."""

    vectors: int  # vectors of 16 bytes that a thread holds of one tile
    ahead: int  # tiles on their way from memory at once
    per_sm: int  # programs for each multiprocessor; they walk, so weights are loaded once for many tiles
    warps: int = 4


# Chosen by counting registers and instructions of sm_90 code, the two correlations of toRGB by timing on an H200. About
# 64 KiB are on their way to or from each multiprocessor. A correlation keeps K sums for each element of a small tile.
CONFIGS = {
    "narrow": Config(vectors=4, ahead=2, per_sm=4),
    "masked narrow": Config(vectors=4, ahead=1, per_sm=4),
    "wide": Config(vectors=4, ahead=2, per_sm=4),
    "correlate": Config(vectors=2, ahead=2, per_sm=4),
    "masked correlate": Config(vectors=1, ahead=2, per_sm=8),
    "correlate and wide": Config(vectors=1, ahead=4, per_sm=4),
}
LANES = 32  # threads of a warp, side by side along the contiguous dimension
SIDE = 8  # with pixels of the image loaded as well: wider tiles loaded each of them up to ten times
FEW = 256  # pixels; up to here one program sums all of a sample, and no second launch adds up


@lru_cache(maxsize=4096)
def cover(shape: torch.Size, nhwc: bool, op: str, itemsize: int, device: torch.device) -> Tiling:
    """Return the tiles of the wide tensor. A thread's neighbouring elements fill 16 bytes."""
    config = CONFIGS[op]
    choices.note("rgb", op, config)
    samples, channels, pixels = shape[0], shape[1], shape[2] * shape[3]
    small = "correlate" in op and pixels <= FEW
    vector = max(16 // itemsize, 1)
    tile = LANES * config.warps * vector * config.vectors
    if nhwc:
        stride_p, stride_c = channels, 1
        lanes = LANES if small or "narrow" in op else SIDE
        block_c = min(power_of_2(channels), lanes if small else lanes * vector)
        block_p = min(power_of_2(pixels), max(tile // block_c, 1))
    else:
        stride_p, stride_c = 1, pixels
        block_p = min(power_of_2(pixels), LANES * vector if small else LANES * config.warps * vector)
        block_c = min(power_of_2(channels), max(tile // block_p, 1))
    while block_c * stride_c > LONGEST and block_c > 1:
        block_c //= 2
    tiles, tiles_c = -(-pixels // block_p), 1 if "narrow" in op else -(-channels // block_c)
    wave = 1 if small else max(1, processor(device)[1] * config.per_sm // max(samples * tiles_c, 1))
    ahead = min(config.ahead, -(-tiles // min(wave, max(tiles, 1))))
    # Tiles of each program. Some more where all programs then have equally many, and nothing is masked.
    steps = -(-tiles // (wave * ahead))
    steps = next((s for s in range(steps, steps * 4 // 3 + 1) if s and tiles % (s * ahead) == 0), steps)
    programs = -(-tiles // max(steps * ahead, 1))
    even = tiles == programs * ahead * steps
    options = {
        "WALK": programs < tiles,
        "WHOLE": channels % block_c == 0 and pixels % block_p == 0 and even,
        "AHEAD": ahead,
        "BLOCK_P": block_p,
        "BLOCK_C": block_c,
        "num_warps": config.warps,
    }
    sizes = (channels, pixels, stride_p, stride_c, tiles, programs)
    return Tiling((samples * programs, tiles_c), samples, programs, sizes, options, {})


def sums_alike(wide: Tensor, nhwc: bool, t: Tiling, more: bool) -> bool:
    """Return whether lanes that share a sum over channels compute the same number although the compiler makes FMAs.

    Each lane adds its neighbours' sums to its own, and all lanes write the result to shared memory. If a lane's own sum
    is a single product, the compiler makes fma(x, w, neighbour's), another number in each lane. Chance decides the lane
    that is read. Several products in a lane are added up before. Triton gives a thread 16 bytes of the contiguous
    dimension, or less if alignment is unknown or the tile is small. The same holds for weights beside it (more).
    """
    if nhwc:
        elements = t.options["BLOCK_C"] * (1 if more else t.options["BLOCK_P"])
        several = elements >= 2 * LANES * t.options["num_warps"]
        return several and t.sizes[0] % 16 == 0 and wide.data_ptr() % 16 == 0
    vector = max(16 // wide.itemsize, 1)
    return t.options["BLOCK_P"] >= LANES * vector  # no lane shares its pixels with another


# ---- launches ----------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """The facts that the three maps of one layer, and their gradients, share."""

    gain: float
    shared: bool  # one weight [1, K, C] for all samples, or [N, K, C]
    wide_nhwc: bool
    narrow_nhwc: bool
    wide: torch.dtype
    narrow: torch.dtype

    @property
    def sums(self) -> torch.dtype:
        """Return the dtype of sums and weights."""
        return accumulator(torch.promote_types(self.wide, self.narrow))

    def cover(self, wide: Tensor, op: str) -> Tiling:
        return cover(wide.shape, self.wide_nhwc, op, self.wide.itemsize, wide.device)

    def run(self, kernel, t: Tiling, pointers: tuple, w: Tensor | None, act: tuple[float, float] = (1.0, 1.0),
            *more: int, k: int, **constants) -> None:  # fmt: skip
        """Launch for K = k. act is slope and gain of an activation."""
        strides = (0, 0, 1) if w is None else (0 if self.shared else w.stride(0), w.stride(1), w.stride(2))
        narrow = (k, 1) if self.narrow_nhwc else (1, t.sizes[1])
        constants |= {"K": k, "GAIN": self.gain, "SLOPE": act[0], "ACT_GAIN": act[1]}
        launch(kernel, t, pointers, self.sums, *narrow, *strides, *more, **constants)


def narrow(x: Tensor, w: Tensor, call: Call, bias: Tensor | None = None, ref: Tensor | None = None,
           act: tuple[float, float] = (1.0, 1.0), image: Tensor | None = None) -> Tensor:  # fmt: skip
    """Compute gain * sum over c of x[n, c] * w[n, k, c] + bias[k], plus image [N, K, H, W], which lies like the result.

    With ref, x is first masked by the slope of act at ref.
    """
    k = w.shape[1]
    y = new_image(x, k, x.shape[2:], call.narrow_nhwc, call.narrow)
    t = call.cover(x, "narrow" if ref is None else "masked narrow")
    more = t.sizes[0] > t.options["BLOCK_C"]
    fma = sums_alike(x, call.wide_nhwc, t, more)
    call.run(rgb_narrow_kernel, t, (x, ref, w, bias, image, y), w, act, k=k, MORE=more, enable_fp_fusion=fma)
    return y


def wide(g: Tensor, w: Tensor, call: Call, bias: Tensor | None = None,
         act: tuple[float, float] = (1.0, 1.0)) -> Tensor:  # fmt: skip
    """Compute act(gain * sum over k of g[n, k] * w[n, k, c] + bias[c])."""
    y = new_image(g, w.shape[2], g.shape[2:], call.wide_nhwc, call.wide)
    call.run(rgb_wide_kernel, call.cover(y, "wide"), (g, w, bias, y), w, act, k=w.shape[1])
    return y


def correlate(g: Tensor, x: Tensor, call: Call, *, ref: Tensor | None = None, act: tuple[float, float] = (1.0, 1.0),
              w: Tensor | None = None, sum_g: bool = False, sum_x: bool = False):  # fmt: skip
    """Compute dw = gain * sum over pixels of g[n, k] * x[n, c], [N or 1, K, C], in a fixed order, and other sums on the
    way.

    w: with it, also dx = `wide(g, w)`. sum_g, sum_x: also the sums of g [N or 1, K] or of x [N or 1, C].
    Returns (dw, dx or None, sums or None).
    """
    (samples, k), c = g.shape[:2], x.shape[1]
    op = "masked correlate" if ref is not None else "correlate" if w is None else "correlate and wide"
    t = call.cover(x, op)
    width = k * c + k * sum_g + c * sum_x
    dx = None if w is None else torch.empty_like(x)
    out = x.new_empty(((1 if call.shared else samples), width), dtype=call.sums)
    sums = Sums(t, call.sums, None if call.shared else out, out if call.shared else None, channels=width)
    into = sums.into[1 if call.shared else 0]
    pointers = (g, x, ref, w, dx, into)
    call.run(rgb_correlate_kernel, t, pointers, w, act, width, k=k, SUM_G=sum_g, SUM_X=sum_x)
    if not x.numel():
        into.zero_()
    sums.finish()
    rest = out[:, k * c :]
    return out[:, : k * c].view(-1, k, c), dx, rest if sum_g or sum_x else None
