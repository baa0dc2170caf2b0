"""The transposed 3x3 convolution of stride 2 as implicit products, one for each parity of the output.

Let an output pixel be (2r + p, 2c + q). It meets only the taps (a, b) with a = p and b = q modulo 2. That is four, two,
two or one of the nine, by its parity (p, q). So each parity is a product of its own, [pixels, taps * I] by
[taps * I, O], and no product meets an inserted zero. Pixels of all samples are numbered through. So tiles cross rows
and samples, and maps of 129 or 33 pixels waste nothing. A tile of x is loaded by masked pointers, because a TMA box
would have to be a rectangle of one image.

Tiles of one region run one after another, for all parities. So x comes from memory once and from the L2 cache after.

The op is also the input gradient of a 3x3 convolution of stride 2. No step of `stylegan_lite` uses it yet.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import choices
from kernels.common.dependent_launch import after_previous, launching
from kernels.common.tiles import INTERPRETED, new_image, tl, tl_accumulator, triton, within
from kernels.linear import conv2d

NARROW = (
    64  # output channels; up to here a tile of one parity has too little work for the bytes that it loads
)
SMALL = 1 << 21  # elements of a parity's result; up to here large tiles leave multiprocessors idle
GROUP = 128  # tiles of pixels in a region
LARGEST = 1 << 31  # elements; pixels are counted in 32 bits


def upconv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `conv_transpose2d` of 3x3 taps with stride 2, by a kernel of ours where it serves the call.

    It serves 16-bit tensors in channels_last memory on a GPU. All other calls are PyTorch's convolutions, on any
    device. The gradient of x is a convolution of stride 2, and the gradient of that is this op again.

    Args:
        x: [N, I, H, W], float16, bfloat16, float32 or float64.
        weight: [I, O, 3, 3] of the same dtype.

    Returns:
        [N, O, 2H + 1, 2W + 1] in x.dtype (autocast's dtype under autocast), channels_last if x is.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit; one line.
    """
    if weight.shape[2:] != (3, 3):
        raise ValueError(f"upconv2d: need a weight [I, O, 3, 3], got {list(weight.shape)}")
    return conv2d.apply("upconv2d", x, weight, GEOMETRY)


def upconv2d_reference(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `upconv2d` as PyTorch differentiates it."""
    return F.conv_transpose2d(x, weight, stride=2)


def bytes_moved(x: Tensor, weight: Tensor, y: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: x and w in, y out; backward: dy, x and w in, dx and dw out."""
    return conv2d.bytes_moved(x, weight, y, backward=backward)


# ---- launch ------------------------------------------------------------------------------------------------------


class Config(NamedTuple):
    """A tile: block_m pixels by block_n channels, block_k input channels at a time."""

    block_m: int
    block_n: int
    block_k: int
    pair: bool  # both parities of a row in one program, which share their pixels
    warps: int
    stages: int  # blocks on their way from memory; shared memory and registers bound it


# By (compute capability, size). The rows for (9, 0) were chosen by sm_90 code (no spills) and by the bytes that a tile
# loads for its FLOPs, not by time: `python -m kernels.tuning.upconv` times them. Other GPUs take what fits all of them.
CONFIGS: dict[tuple[tuple[int, int] | None, str], Config] = {
    ((9, 0), "narrow"): Config(256, 64, 64, True, 8, 2),
    ((9, 0), "wide"): Config(128, 128, 64, False, 8, 3),
    ((9, 0), "small"): Config(64, 128, 64, False, 4, 4),
    (None, "narrow"): Config(128, 64, 32, False, 4, 3),
    (None, "wide"): Config(128, 64, 32, False, 4, 3),
    (None, "small"): Config(64, 64, 32, False, 4, 3),
}
_forced: list[Config] = []  # set by tuning and by tests: the last one counts


def config(capability: tuple[int, int], pixels: int, channels: int) -> Config:
    """Return the entry of the table for this many output pixels of a parity, and output channels."""
    if _forced:
        return _forced[-1]
    size = "small" if pixels * channels <= SMALL else "narrow" if channels <= NARROW else "wide"
    entry = CONFIGS.get((capability, size)) or CONFIGS[None, size]
    choices.note("upconv2d", size, entry)
    return entry


class ByParities(conv2d.Geometry):
    """A geometry whose transposed convolutions of stride 2 are the kernel's, where it serves the call."""

    def by_kernel(self, x: Tensor, weight: Tensor) -> Tensor | None:
        if self != GEOMETRY._replace(nhwc=True) or weight.shape[2:] != (3, 3):
            return None
        if not (INTERPRETED or (x.is_cuda and x.dtype.itemsize == 2)):
            return None
        outputs = x.shape[0] * weight.shape[1] * (2 * x.shape[2] + 1) * (2 * x.shape[3] + 1)
        most = max(x.numel(), outputs)
        return forward(x, weight) if most < LARGEST and min(x.numel(), outputs) else None


GEOMETRY = ByParities((2, 2), (0, 0), (0, 0), True, 1)


def forward(x: Tensor, weight: Tensor) -> Tensor:
    """Launch the kernel: x [N, I, H, W] and weight [I, O, 3, 3] -> [N, O, 2H + 1, 2W + 1], all channels_last."""
    (n, inputs, h, w), outputs = x.shape, weight.shape[1]
    capability = torch.cuda.get_device_capability(x.device) if x.is_cuda else (0, 0)
    pixels = n * (h + 1) * (w + 1)
    how = config(capability, pixels, outputs)
    tiles = -(-pixels // how.block_m)
    grid = (tiles * -(-outputs // how.block_n) * (2 if how.pair else 4),)
    y = new_image(x, outputs, (2 * h + 1, 2 * w + 1), True, x.dtype)
    upconv2d_kernel[grid](
        x, weight, y, n, h, w, inputs, outputs, tiles, STEPS=-(-inputs // how.block_k), GROUP=GROUP,
        WHOLE=inputs % how.block_k == 0 and outputs % how.block_n == 0, PAIR=how.pair,
        ACC=tl_accumulator(x.dtype), BLOCK_M=how.block_m, BLOCK_N=how.block_n, BLOCK_K=how.block_k,
        num_warps=how.warps, num_stages=how.stages, **launching(),
    )  # fmt: skip
    return y


# ---- kernel ------------------------------------------------------------------------------------------------------


@triton.jit
def _block(pointers, rows, columns, WHOLE: tl.constexpr):
    """Load a block of the weight. WHOLE: no row and no column of it is outside."""
    if WHOLE:
        return tl.load(pointers)
    else:
        return tl.load(pointers, rows[:, None] & columns[None, :], 0.0)


@triton.jit
def _pixels(pointers, inside, channels, WHOLE: tl.constexpr):
    """Load channels of pixels, zero for pixels that are not inside. WHOLE: all channels exist."""
    if WHOLE:
        return tl.load(pointers, inside[:, None], 0.0)
    else:
        return tl.load(pointers, inside[:, None] & channels[None, :], 0.0)


if INTERPRETED:  # it would multiply the bits of bfloat16 as integers

    @triton.jit
    def _product(a, b, total, ACC: tl.constexpr):
        return tl.dot(a.to(ACC), b.to(ACC), total, input_precision="ieee", out_dtype=ACC)

else:

    @triton.jit
    def _product(a, b, total, ACC: tl.constexpr):
        return tl.dot(a, b, total, input_precision="ieee", out_dtype=ACC)


@triton.jit(do_not_specialize=["N", "H", "W", "tiles"])
def upconv2d_kernel(
    x, weight, y, N, H, W, I, O, tiles,
    STEPS: tl.constexpr, GROUP: tl.constexpr, WHOLE: tl.constexpr, PAIR: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M pixels of one parity, or (PAIR) of both parities of a row, for BLOCK_N channels."""
    after_previous(DEPENDENT)
    PARITIES: tl.constexpr = 2 if PAIR else 4
    across_o = tl.cdiv(O, BLOCK_N)
    pid = tl.program_id(0)
    first = pid // (GROUP * PARITIES * across_o) * GROUP
    here = min(tiles - first, GROUP)
    pid -= first * PARITIES * across_o
    parity = pid // across_o // here  # The parity with the most taps begins.
    odd_y = parity if PAIR else parity // 2
    odd_x = 0 if PAIR else parity % 2
    o = pid % across_o * BLOCK_N + tl.arange(0, BLOCK_N)
    i = tl.arange(0, BLOCK_K)

    rows, columns = H + 1 - odd_y, W + 1 - odd_x
    pixel = (first + pid // across_o % here) * BLOCK_M + tl.arange(0, BLOCK_M)
    col, row = pixel % columns, pixel // columns % rows
    sample = (pixel // columns // rows).to(tl.int64)
    exists = sample < N
    row = tl.where(exists, row, -1)  # no row of x, whatever the tap
    xs = x + ((sample * H + row) * W + col)[:, None] * I + i[None, :]
    ws = weight + i.to(tl.int64)[:, None] * (9 * O) + o[None, :]

    even = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    if PAIR:
        odd = tl.zeros([BLOCK_M, BLOCK_N], ACC)
        for step in range((2 - odd_y) * STEPS):
            dy, k = step // STEPS, step % STEPS * BLOCK_K
            inside = within(row - dy, H)
            at = k - dy * W * I
            taps = ws + (k * 9 + (odd_y + 2 * dy) * 3) * O
            here_x = _pixels(xs + at, inside & (col < W), i < I - k, WHOLE)
            left_x = _pixels(xs + (at - I), inside & (col > 0), i < I - k, WHOLE)
            even = _product(here_x, _block(taps, i < I - k, o < O, WHOLE), even, ACC)
            odd = _product(here_x, _block(taps + O, i < I - k, o < O, WHOLE), odd, ACC)
            even = _product(left_x, _block(taps + 2 * O, i < I - k, o < O, WHOLE), even, ACC)
    else:
        for step in range((2 - odd_y) * (2 - odd_x) * STEPS):
            tap, k = step // STEPS, step % STEPS * BLOCK_K
            dy, dx = tap >> (1 - odd_x), tap & (1 - odd_x)
            inside = within(row - dy, H) & within(col - dx, W)
            values = _pixels(xs + (k - (dy * W + dx) * I), inside, i < I - k, WHOLE)
            taps = ws + (k * 9 + (odd_y + 2 * dy) * 3 + odd_x + 2 * dx) * O
            even = _product(values, _block(taps, i < I - k, o < O, WHOLE), even, ACC)

    out = (
        y
        + (((sample * (2 * H + 1) + 2 * row + odd_y) * (2 * W + 1) + 2 * col + odd_x) * O)[:, None]
        + o[None, :]
    )
    kept = exists[:, None] & (o < O)[None, :]
    tl.store(out, even, kept)
    if PAIR:
        tl.store(out + O, odd, kept & (col < W)[:, None])
