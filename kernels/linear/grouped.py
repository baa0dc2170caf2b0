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
program keeps three rows of g while it walks. Its sums are one row of partial sums, added up in a fixed order.
"""

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
# Arguments whose values do not make Triton compile a kernel anew; C does
COUNTS = ["N", "H", "W", "pairs", "strips", "rows", "w_o", "w_i", "w_y", "w_x"]


class Config(NamedTuple):
    """The way to cover an image."""

    pairs: int  # of columns, side by side: the product's height
    rows: int  # that a program walks at most; two more are read
    warps: int
    stages: int  # rows on their way through shared memory; 1: `ahead` counts
    ahead: bool = False  # the next row is on its way in registers


# By the map
CONFIGS = {
    "convolve": Config(pairs=64, rows=64, warps=4, stages=3),
    "correlate": Config(pairs=64, rows=64, warps=4, stages=1, ahead=True),
}


def serves(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Return whether the kernels can compute the 3x3 convolution of this x, with padding and stride 1.

    The interpreter also takes float32 and float64.
    """
    channels = weight.shape[1]
    square = weight.shape[0] == x.shape[1] == channels * groups
    fits = INTERPRETED or (x.is_cuda and x.dtype in DTYPES and _is_recent(x.device))
    return square and channels in GROUPS and tuple(weight.shape[2:]) == (3, 3) and fits and x.numel() > 0


def _is_recent(device: torch.device) -> bool:
    return processor(device)[0] >= 80  # bfloat16, and asynchronous copies


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
def columns_of(m, N, H, W, C, pairs, group, BEFORE: tl.constexpr, PIXELS: tl.constexpr, GROUP: tl.constexpr):
    """Return where PIXELS pixels of pairs m [BLOCK, 1] lie in the first row, int64, and which of them exist.

    Both are [BLOCK, PIXELS * GROUP]. The first pixel is BEFORE to the left of the pair.
    """
    k = tl.arange(0, PIXELS * GROUP)[None, :]
    n = m // pairs
    column = (m - n * pairs) * 2 + k // GROUP - BEFORE
    at = n.to(tl.int64) * H * W * C + (column * C + group * GROUP + k % GROUP)
    return at, (n < N) & (column >= 0) & (column < W)


@triton.jit
def band(w, ky: tl.constexpr, w_o, w_i, w_y, w_x, FLIP: tl.constexpr, GROUP: tl.constexpr):
    """Return T [4 * GROUP, 2 * GROUP] of the row of taps ky."""
    k = tl.arange(0, 4 * GROUP)[:, None]
    o = tl.arange(0, 2 * GROUP)[None, :]
    tap = k // GROUP - o // GROUP
    there = (tap >= 0) & (tap < 3)
    if FLIP:  # from the channels of y to those of x
        at = (k % GROUP) * w_o + (o % GROUP) * w_i + (2 - ky) * w_y + (2 - tap) * w_x
    else:
        at = (o % GROUP) * w_o + (k % GROUP) * w_i + ky * w_y + tap * w_x
    return tl.load(w + at, there, 0.0)


@triton.jit
def fetch(x, at, inside, r, H, width):
    """Load row r of the pixels, zeros outside of the image."""
    return tl.load(x + (at + width * r), inside & (r >= 0) & (r < H), 0.0)


@triton.jit
def my_part(pairs, C, strips, rows, H, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Return this program's group, pairs [BLOCK, 1], and its rows from `first` to `last`. Groups follow one another."""
    groups = C // GROUP
    group = tl.program_id(0) % groups
    part = tl.program_id(0) // groups
    first = (part % strips) * rows
    m = (part // strips) * BLOCK + tl.arange(0, BLOCK)[:, None]
    return group, m, first, tl.minimum(first + rows, H)


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
def grouped_conv_kernel(
    x, w, y, N, H, W, C, pairs, strips, rows, w_o, w_i, w_y, w_x,
    FLIP: tl.constexpr, GROUP: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    AHEAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y = conv(x, w), or with FLIP its adjoint, for images [N, H, W, C]."""
    after_previous(DEPENDENT)
    group, m, first, last = my_part(pairs, C, strips, rows, H, BLOCK, GROUP)
    width = tl.full([], 1, tl.int64) * W * C
    at, inside = columns_of(m, N, H, W, C, pairs, group, 1, 4, GROUP)
    to, kept = columns_of(m, N, H, W, C, pairs, group, 0, 2, GROUP)
    w += group * GROUP * w_o
    top = band(w, 0, w_o, w_i, w_y, w_x, FLIP, GROUP)
    middle = band(w, 1, w_o, w_i, w_y, w_x, FLIP, GROUP)
    bottom = band(w, 2, w_o, w_i, w_y, w_x, FLIP, GROUP)
    none = tl.zeros([BLOCK, 2 * GROUP], ACC)
    above = none  # the sums of row r - 1 of y
    here = none  # of row r
    if AHEAD:
        following = fetch(x, at, inside, first - 1, H, width)
    for r in tl.range(first - 1, last + 1, num_stages=STAGES):
        if AHEAD:
            row = following
            following = fetch(x, at, inside, r + 1, H, width)
        else:
            row = fetch(x, at, inside, r, H, width)
        done = product(row, bottom, above)
        above = product(row, middle, here)
        here = product(row, top, none)
        tl.store(y + (to + width * (r - 1)), done.to(y.dtype.element_ty), kept & (r > first))


@triton.jit(do_not_specialize=COUNTS)
def grouped_correlate_kernel(
    g, x, partials, N, H, W, C, pairs, strips, rows,
    GROUP: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write this program's sums of g * x for each weight of its group into a row of partials [.., C, 3, 3, GROUP]."""
    after_previous(DEPENDENT)
    group, m, first, last = my_part(pairs, C, strips, rows, H, BLOCK, GROUP)
    width = tl.full([], 1, tl.int64) * W * C
    at, inside = columns_of(m, N, H, W, C, pairs, group, 1, 4, GROUP)
    of, there = columns_of(m, N, H, W, C, pairs, group, 0, 2, GROUP)
    top = tl.zeros([4 * GROUP, 2 * GROUP], ACC)
    middle = tl.zeros([4 * GROUP, 2 * GROUP], ACC)
    bottom = tl.zeros([4 * GROUP, 2 * GROUP], ACC)
    if AHEAD:
        above = fetch(g, of, there, first - 1, H, width)
        here = fetch(g, of, there, first, H, width)
        below = fetch(g, of, there, first + 1, H, width)
        following = fetch(x, at, inside, first, H, width)
    for r in tl.range(first, last, num_stages=STAGES):
        if AHEAD:
            row = tl.trans(following)
            following = fetch(x, at, inside, r + 1, H, width)
            coming = fetch(g, of, there, r + 2, H, width)
        else:
            row = tl.trans(fetch(x, at, inside, r, H, width))
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
    to = (
        partials + (tl.program_id(0) // (C // GROUP)).to(tl.int64) * C * 9 * GROUP + group * GROUP * 9 * GROUP
    )
    store_taps(to, top, 0, GROUP)
    store_taps(to, middle, 1, GROUP)
    store_taps(to, bottom, 2, GROUP)


@triton.jit
def store_taps(to, sums, ky: tl.constexpr, GROUP: tl.constexpr):
    """Store the sums of three taps, each of them two blocks of sums [4 * GROUP, 2 * GROUP]."""
    tap = tl.arange(0, 4 * GROUP)[:, None] // GROUP - tl.arange(0, 2 * GROUP)[None, :] // GROUP
    i = tl.arange(0, GROUP)[:, None]
    o = tl.arange(0, GROUP)[None, :]
    for kx in tl.static_range(3):
        both = tl.reshape(tl.where(tap == kx, sums, 0.0), [4, GROUP, 2, GROUP])
        tl.store(to + (o * 9 + ky * 3 + kx) * GROUP + i, tl.sum(tl.sum(both, 2), 0))


# ---- launches ----------------------------------------------------------------------------------------------------


class Cover(NamedTuple):
    """The parts of a batch of images: one for each program of a group."""

    parts: int
    sizes: tuple[int, ...]  # kernel arguments: N, H, W, C, pairs, strips, rows
    options: dict


def cover(x: Tensor, group: int, op: str) -> Cover:
    """Return the parts for channels_last images x, as the table has them."""
    config = CONFIGS[op]
    choices.note("grouped", op, config)
    samples, channels, height, width = x.shape
    pairs = -(-width // 2)
    block = max(16, min(config.pairs, power_of_2(samples * pairs)))
    strips = -(-height // config.rows)
    rows = -(-height // strips)
    options = {
        "GROUP": group,
        "ACC": tl_accumulator(x.dtype),
        "BLOCK": block,
        "STAGES": config.stages,
        "AHEAD": config.ahead,
        "num_warps": config.warps,
    }
    sizes = (samples, height, width, channels, pairs, strips, rows)
    return Cover(-(-samples * pairs // block) * strips, sizes, options)


def convolve(x: Tensor, weight: Tensor, adjoint: bool = False) -> Tensor:
    """Compute the convolution of x [N, C, H, W] channels_last by weight [C, C / groups, 3, 3], or its adjoint."""
    y = torch.empty_like(x)
    group = weight.shape[1]
    c = cover(x, group, "convolve")
    arguments = (x, weight, y, *c.sizes, *weight.stride())
    launch_grid(grouped_conv_kernel, (c.parts * (x.shape[1] // group),), arguments, FLIP=adjoint, **c.options)
    return y


def correlate(g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Compute the weight's gradient, channels_last, for g and x [N, C, H, W] channels_last."""
    (channels, group), dtype = weight.shape[:2], accumulator(x.dtype)
    c = cover(x, group, "correlate")
    shape = channels, 3, 3, group
    out = x.new_empty(shape, dtype=dtype)
    partials = out if c.parts == 1 else x.new_empty((c.parts, *shape), dtype=dtype)
    arguments = (g, x, partials, *c.sizes)
    launch_grid(grouped_correlate_kernel, (c.parts * (channels // group),), arguments, **c.options)
    if c.parts > 1:
        add_up((None, partials, None), (None, out, None), (0, c.parts, 0), out.numel())
    return out.permute(0, 3, 1, 2).to(weight.dtype)
