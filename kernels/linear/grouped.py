"""The two maps of a grouped 3x3 convolution with few channels a group, for 16-bit channels_last images.

With 16 channels a group a convolution takes 72 FLOP for each byte of image and result. That is a third of what an H200
computes in the time of a byte, so memory should set the pace. Libraries are far from it: their tiles are made for
groups with more channels than a tensor core's tile has.

Two neighbouring pixels of y read four neighbouring pixels of x. So with x as rows of 4 * 16 numbers, two pixels apart,
and y as rows of 2 * 16, a row of three taps is one product by a matrix T [64, 32]. T holds the weight of tap p - q from
pixel p of x to pixel q of y, and zeros where there is no such tap: a quarter of it. So the depth of the product is 64
rather than 16, and x is read twice rather than three times, the second time from the cache.

A program covers BLOCK pairs of columns of one group, in one image or in several small ones, and walks down. A row of x
belongs to three rows of y, whose sums are in registers. It is read once.

The gradient of x is the same map with the taps turned round and the roles of the channels exchanged. The gradient of
the weight correlates: x^T @ g sums over all pairs what each entry of T gets, and each tap adds up its two entries. A
row of x meets three rows of g. A program's sums are one row of partial sums, added up in a fixed order.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import choices
from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.sums import add_up
from ..common.tiles import INTERPRETED, accumulator, power_of_2, processor, tl, tl_accumulator, triton

GROUPS = (8, 16, 32)  # channels of a group
DTYPES = (torch.bfloat16, torch.float16)
LEAST = (3, 4)  # Triton
# Arguments whose values do not make Triton compile a kernel anew; C does
COUNTS = ["N", "H", "W", "pairs", "strips", "rows", "tiles", "step", "w_o", "w_i", "w_y", "w_x"]


class Config(NamedTuple):
    """The way to cover an image."""

    pairs: int  # of columns, side by side: the product's height
    rows: int  # that a program walks down at most
    warps: int
    stages: int  # rows on their way through shared memory; 1: `ahead` counts
    ahead: bool = False  # the next row is on its way in registers
    step: int = 1  # rows of a turn of the loop; with three the sums need not move from register to register
    wide: int = 16  # channels side by side: several groups are as one, with zeros for weights between them
    per_sm: int = 1  # of programs that sum: each walks down several tiles


# By the map. Measured on one H200 at R3GAN's shapes, 4x4 to 256x256, batch 32. A pixel of a group is 32 bytes, and a
# copy by pieces of 32 bytes reaches 57% of a copy by whole rows, as the convolution does. Two groups side by side make
# pieces of 64 bytes and twice the products. That pays for the weight's gradient of large maps, which is not written.
CONFIGS = {
    "convolve": Config(pairs=64, rows=64, warps=4, stages=6),
    "correlate": Config(pairs=32, rows=256, warps=4, stages=3, wide=32, per_sm=2),
    "correlate small": Config(pairs=64, rows=256, warps=4, stages=2, step=3),
}
SMALL = 1 << 25  # elements of x, up to which a correlation is small


def serves(x: Tensor, weight: Tensor, groups: int, dtype: torch.dtype | None = None) -> bool:
    """Return whether the kernels can compute the 3x3 convolution of x in a dtype, with padding and stride 1.

    The interpreter also takes float32 and float64. dtype: by default x's.
    """
    channels = weight.shape[1]
    if groups == 1 or channels not in GROUPS or tuple(weight.shape[2:]) != (3, 3) or not x.numel():
        return False
    if weight.shape[0] != channels * groups or x.shape[1] != channels * groups:
        return False
    if INTERPRETED or not x.is_cuda or (dtype or x.dtype) not in DTYPES:
        return INTERPRETED
    # The compiler cannot trace this question. The operator that it calls asks again.
    return torch.compiler.is_compiling() or _is_recent(x.device)


@lru_cache(maxsize=64)
def _is_recent(device: torch.device) -> bool:
    """Return whether GPU and Triton are new enough: compute capability 8.0 for bfloat16 and asynchronous copies."""
    version = getattr(triton, "__version__", None)
    new = isinstance(version, str) and tuple(map(int, version.split(".")[:2])) >= LEAST
    return new and torch.version.cuda is not None and processor(device)[0] >= 80


# ---- in kernels --------------------------------------------------------------------------------------------------

# Two definitions, as in `tiles.widen`: the interpreter multiplies 16-bit matrices in 16 bits.
if INTERPRETED:

    @triton.jit
    def product(a, b, total):
        """Compute total + a @ b."""
        return total + tl.dot(a.to(total.dtype), b.to(total.dtype), input_precision="ieee")

else:

    @triton.jit
    def product(a, b, total):
        """Compute total + a @ b, the sums in float32."""
        return tl.dot(a, b, total)


@triton.jit
def columns_of(m, N, H, W, C, pairs, span, BEFORE: tl.constexpr, PIXELS: tl.constexpr, WIDE: tl.constexpr):
    """Return where PIXELS pixels of pairs m [BLOCK, 1] lie in the first row, int64, and which of them exist.

    Both are [BLOCK, PIXELS * WIDE], for WIDE channels. The first pixel is BEFORE to the left of the pair.
    """
    k = tl.arange(0, PIXELS * WIDE)[None, :]
    n = m // pairs
    column = (m - n * pairs) * 2 + k // WIDE - BEFORE
    at = n.to(tl.int64) * H * W * C + (column * C + span * WIDE + k % WIDE)
    return at, (n < N) & (column >= 0) & (column < W)


@triton.jit
def band(
    w, ky: tl.constexpr, w_o, w_i, w_y, w_x, FLIP: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr
):
    """Return T [4 * WIDE, 2 * WIDE] of the row of taps ky."""
    k = tl.arange(0, 4 * WIDE)[:, None]
    o = tl.arange(0, 2 * WIDE)[None, :]
    tap = k // WIDE - o // WIDE
    there = (tap >= 0) & (tap < 3) & (k % WIDE // GROUP == o % WIDE // GROUP)
    if FLIP:  # from the channels of y to those of x
        at = (k % WIDE) * w_o + (o % GROUP) * w_i + (2 - ky) * w_y + (2 - tap) * w_x
    else:
        at = (o % WIDE) * w_o + (k % GROUP) * w_i + ky * w_y + tap * w_x
    return tl.load(w + at, there, 0.0)


@triton.jit
def fetch(x, at, inside, r, H, width):
    """Load row r of the pixels, zeros outside of the image."""
    return tl.load(x + (at + width * r), inside & (r >= 0) & (r < H), 0.0)


@triton.jit
def store_sums(to, sums, ky: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr):
    """Store sums [4 * WIDE, 2 * WIDE] of the row of taps ky, inside of groups, into [.., 3, 4, GROUP, 2, GROUP]."""
    k = tl.arange(0, 4 * WIDE)[:, None]
    o = tl.arange(0, 2 * WIDE)[None, :]
    group = k % WIDE // GROUP
    row = (group * 12 + ky * 4 + k // WIDE) * GROUP + k % GROUP
    at = row * 2 * GROUP + o // WIDE * GROUP + o % GROUP
    tl.store(to + at, sums, group == o % WIDE // GROUP)


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
def grouped_conv_kernel(
    x, w, bias, y, N, H, W, C, pairs, strips, rows, w_o, w_i, w_y, w_x,
    FLIP: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr, STEP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y = conv(x, w) + bias, or with FLIP the adjoint of conv, for images [N, H, W, C]."""
    after_previous(DEPENDENT)
    WIDE: tl.constexpr = SPAN * GROUP
    span = tl.program_id(0) % (C // WIDE)
    part = tl.program_id(0) // (C // WIDE)
    first = (part % strips) * rows
    last = tl.minimum(first + rows, H)
    m = (part // strips) * BLOCK + tl.arange(0, BLOCK)[:, None]
    width = tl.full([], 1, tl.int64) * W * C
    at, inside = columns_of(m, N, H, W, C, pairs, span, 1, 4, WIDE)
    to, kept = columns_of(m, N, H, W, C, pairs, span, 0, 2, WIDE)
    w += span * WIDE * w_o
    top = band(w, 0, w_o, w_i, w_y, w_x, FLIP, GROUP, WIDE)
    middle = band(w, 1, w_o, w_i, w_y, w_x, FLIP, GROUP, WIDE)
    bottom = band(w, 2, w_o, w_i, w_y, w_x, FLIP, GROUP, WIDE)
    none = tl.zeros([BLOCK, 2 * WIDE], ACC)
    if bias is not None:
        b = tl.load(bias + span * WIDE + tl.arange(0, 2 * WIDE)[None, :] % WIDE).to(ACC)
    above = none  # the sums of row r - 1 of y
    here = none  # of row r
    if AHEAD:
        following = fetch(x, at, inside, first - 1, H, width)
    for start in tl.range(first - 1, last + 1, STEP, num_stages=STAGES):
        for k in tl.static_range(STEP):
            r = start + k
            if AHEAD:
                row = following
                following = fetch(x, at, inside, r + 1, H, width)
            else:
                row = fetch(x, at, inside, r, H, width)
            done = product(row, bottom, above)
            above = product(row, middle, here)
            here = product(row, top, none)
            if bias is not None:
                done += b
            there = kept & (r > first) & (r <= last)
            tl.store(y + (to + width * (r - 1)), done.to(y.dtype.element_ty), there)


@triton.jit(do_not_specialize=COUNTS)
def grouped_correlate_kernel(
    g, x, partials, N, H, W, C, pairs, strips, rows, tiles, step,
    GROUP: tl.constexpr, SPAN: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr, STEP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write this program's sums of g * x into partials [.., C / GROUP, 3, 4, GROUP, 2, GROUP], two for each weight."""
    after_previous(DEPENDENT)
    WIDE: tl.constexpr = SPAN * GROUP
    span = tl.program_id(0) % (C // WIDE)
    part = tl.program_id(0) // (C // WIDE)
    first = (part % strips) * rows
    last = tl.minimum(first + rows, H)
    width = tl.full([], 1, tl.int64) * W * C
    top = tl.zeros([4 * WIDE, 2 * WIDE], ACC)
    middle = tl.zeros([4 * WIDE, 2 * WIDE], ACC)
    bottom = tl.zeros([4 * WIDE, 2 * WIDE], ACC)
    for tile in tl.range(part // strips, tiles, step):
        m = tile * BLOCK + tl.arange(0, BLOCK)[:, None]
        at, inside = columns_of(m, N, H, W, C, pairs, span, 1, 4, WIDE)
        of, there = columns_of(m, N, H, W, C, pairs, span, 0, 2, WIDE)
        if AHEAD:
            above = fetch(g, of, there, first - 1, H, width)
            here = fetch(g, of, there, first, H, width)
            below = fetch(g, of, there, first + 1, H, width)
            following = fetch(x, at, inside, first, last, width)
        for start in tl.range(first, last, STEP, num_stages=STAGES):
            for k in tl.static_range(STEP):
                r = start + k
                if AHEAD:
                    row = tl.trans(following)
                    following = fetch(x, at, inside, r + 1, last, width)
                    coming = fetch(g, of, there, r + 2, H, width)
                else:
                    row = tl.trans(fetch(x, at, inside, r, last, width))
                    above = fetch(g, of, there, r - 1, H, width)
                    here = fetch(g, of, there, r, H, width)
                    below = fetch(g, of, there, r + 1, H, width)
                top = product(row, below, top)
                middle = product(row, here, middle)
                bottom = product(row, above, bottom)
                if AHEAD:
                    above = here
                    here = below
                    below = coming
    to = partials + (part.to(tl.int64) * C + span * WIDE) * 24 * GROUP
    store_sums(to, top, 0, GROUP, WIDE)
    store_sums(to, middle, 1, GROUP, WIDE)
    store_sums(to, bottom, 2, GROUP, WIDE)


# ---- launches ----------------------------------------------------------------------------------------------------


class Cover(NamedTuple):
    """The parts of a batch of images, one for each program of a span of groups."""

    parts: int
    spans: int
    sizes: tuple[int, ...]  # kernel arguments: N, H, W, C, pairs, strips, rows
    options: dict


def cover(x: Tensor, group: int, op: str) -> Cover:
    """Return the parts for channels_last images x, as the table has them."""
    config = CONFIGS["correlate small" if op == "correlate" and x.numel() <= SMALL else op]
    choices.note("grouped", op, config)
    samples, channels, height, width = x.shape
    span = math.gcd(channels // group, max(1, config.wide // group))
    pairs, spans = -(-width // 2), channels // (span * group)
    block = max(16, min(config.pairs, power_of_2(samples * pairs)))
    tiles = -(-samples * pairs // block)
    strips = -(-height // config.rows)
    rows = -(-height // strips)
    sizes: tuple[int, ...] = (samples, height, width, channels, pairs, strips, rows)
    if op == "correlate":
        wave = processor(x.device)[1] * config.per_sm
        walk = -(-tiles // max(1, wave // (spans * strips)))  # tiles of a program
        sizes += tiles, -(-tiles // walk)
        tiles = sizes[-1]
    options = {
        "GROUP": group,
        "SPAN": span,
        "ACC": tl_accumulator(x.dtype),
        "BLOCK": block,
        "STAGES": config.stages if group < 32 else max(1, config.stages // 3),  # their rows are twice as long
        "AHEAD": config.ahead,
        "STEP": config.step,
        "num_warps": config.warps,
    }
    return Cover(tiles * strips, spans, sizes, options)


def convolve(x: Tensor, weight: Tensor, adjoint: bool = False, bias: Tensor | None = None) -> Tensor:
    """Compute the convolution of x [N, C, H, W] channels_last by weight [C, C / groups, 3, 3], or its adjoint.

    bias: [C], added before the result is rounded.
    """
    y = torch.empty_like(x)
    c = cover(x, weight.shape[1], "convolve")
    arguments = (x, weight, bias, y, *c.sizes, *weight.stride())
    launch_grid(grouped_conv_kernel, (c.parts * c.spans,), arguments, FLIP=adjoint, **c.options)
    return y


def correlate(g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Compute the weight's gradient, channels_last, for g and x [N, C, H, W] channels_last."""
    (channels, group), dtype = weight.shape[:2], accumulator(x.dtype)
    c = cover(x, group, "correlate")
    # groups, rows of taps, pixels of x and their channels, pixels of g and their channels
    shape = (channels // group, 3, 4, group, 2, group)
    sums = x.new_empty(shape, dtype=dtype)
    partials = sums if c.parts == 1 else x.new_empty((c.parts, *shape), dtype=dtype)
    launch_grid(grouped_correlate_kernel, (c.parts * c.spans,), (g, x, partials, *c.sizes), **c.options)
    if c.parts > 1:
        add_up((None, partials, None), (None, sums, None), (0, c.parts, 0), sums.numel())
    dw = weight.new_empty((channels // group, group, 3, 3, group))  # the weight's channels_last memory
    torch.add(sums[:, :, :3, :, 0], sums[:, :, 1:, :, 1], out=dw.permute(0, 2, 3, 4, 1))
    return dw.view(channels, 3, 3, group).permute(0, 3, 1, 2)
