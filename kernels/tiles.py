"""What every kernel here shares: how an activation is cut into tiles, in either memory format.

A tile is BLOCK_P pixels x BLOCK_C channels of one sample. In channels_last memory the channels are contiguous
(stride_c = 1), in NCHW memory the pixels are (stride_p = 1). One kernel serves both: Triton specializes it on the
stride of 1 and coalesces along it. Sample, pixel and channel follow from the tile's position, so no element pays an
integer division, and offsets are 64-bit from the start of the tile, so tensors may exceed 2^31 elements.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

try:
    import triton
    import triton.language as tl

    # As Triton itself does when it defines a kernel: set TRITON_INTERPRET=1 before anything imports triton.
    INTERPRETED = bool(triton.knobs.runtime.interpret)
except ImportError:  # macOS, Windows: the plain-PyTorch references still work
    INTERPRETED = False

    class _Missing:
        def __getattr__(self, _name):
            return lambda function=None, **_: function

    triton = tl = _Missing()

TILE = 2048  # elements: 16 for each of 128 threads, two 16-byte loads in bf16
PROGRAMS = 2048  # about one resident wave on 132 SMs; bounds the partial sums that a reduction leaves behind


class Tiling(NamedTuple):
    """How one activation is covered. `sizes` are the kernel arguments (C, P, stride_p, stride_c, tiles)."""

    grid: tuple[int, int]  # (samples * tiles of pixels, tiles of channels)
    rows: int  # samples * tiles of pixels: rows of partial sums
    samples: int
    tiles: int  # tiles (groups of `steps` tiles) of pixels in a sample
    sizes: tuple[int, int, int, int, int]
    steps: int
    block_p: int
    block_c: int


def power_of_2(n: int) -> int:
    """The smallest power of two >= n (1 for n <= 1)."""
    return 1 << max(n - 1, 0).bit_length()


@lru_cache(maxsize=4096)
def tiling(shape: torch.Size, nhwc: bool, merge: bool = False, reduce: bool = False) -> Tiling:
    """Cover [N, C] or [N, C, H, W] with tiles.

    merge: samples need not be told apart, so channels_last pixels of all samples form one long column.
    reduce: the kernel sums over pixels; each program then walks several tiles and leaves one row of partial sums.
    """
    samples, channels = shape[0], shape[1]
    pixels = shape[2] * shape[3] if len(shape) == 4 else 1
    if merge and nhwc and samples * pixels < 2**31:
        samples, pixels = 1, samples * pixels
    if nhwc:
        stride_p, stride_c = channels, 1
        block_c = min(power_of_2(channels), 128)
        block_p = min(power_of_2(pixels), max(TILE // block_c, 1))
    else:
        stride_p, stride_c = 1, pixels
        block_p = min(power_of_2(pixels), TILE)
        block_c = min(power_of_2(channels), max(TILE // block_p, 1))
    tiles, tiles_c = -(-pixels // block_p), -(-channels // block_c)
    steps = min(16, max(1, samples * tiles * tiles_c // PROGRAMS)) if reduce else 1
    tiles = -(-tiles // steps)
    grid = (samples * tiles, tiles_c)
    sizes = (channels, pixels, stride_p, stride_c, tiles)
    return Tiling(grid, samples * tiles, samples, tiles, sizes, steps, block_p, block_c)


def is_nhwc(x: torch.Tensor) -> bool:
    """Whether the channels of x are its contiguous dimension ([N, C], channels_last, or one pixel)."""
    return x.dim() == 2 or x.shape[2] * x.shape[3] == 1 or not x.is_contiguous()


def dense(x: torch.Tensor) -> torch.Tensor:
    """x itself if it is dense in NCHW or channels_last memory, else a copy in the format nearer to its strides.

    Call it before `Function.apply`: what a Function copies and saves itself is cut off from double backward.
    """
    if x.is_contiguous():
        return x
    if x.dim() != 4:
        return x.contiguous()
    if x.is_contiguous(memory_format=torch.channels_last):
        return x
    nhwc = x.shape[1] > 1 and x.stride(1) == 1
    return x.contiguous(memory_format=torch.channels_last if nhwc else torch.contiguous_format)


def dense_as(t: torch.Tensor, nhwc: bool) -> torch.Tensor:
    """t in channels_last (nhwc) or NCHW memory; no copy if it is there already, as gradients nearly always are."""
    if nhwc and t.dim() == 4:
        return t.contiguous(memory_format=torch.channels_last)
    return t.contiguous()


def output_dtype(x: torch.Tensor) -> torch.dtype:
    """x.dtype, or autocast's dtype where autocast is on (which leaves float64 alone)."""
    kind = x.device.type
    if x.dtype is not torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def check_device(x: torch.Tensor) -> None:
    """Refuse what no Triton kernel could read, before Triton says it less clearly."""
    if not (x.is_cuda or INTERPRETED):
        raise RuntimeError(
            f"Triton kernels need a CUDA tensor, got one on {x.device}; use the op's _reference there, "
            "or set TRITON_INTERPRET=1 before the first import of triton"
        )


@triton.jit
def tile_offsets(
    C, P, stride_p, stride_c, tiles, step, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Where this program's tile number `step` lies.

    Returns sample n, pixels p [BLOCK_P, 1], channels c [1, BLOCK_C], offsets [BLOCK_P, BLOCK_C] (int64) and their mask.
    """
    n = tl.program_id(0) // tiles
    p0 = ((tl.program_id(0) % tiles) * STEPS + step) * BLOCK_P
    c0 = tl.program_id(1) * BLOCK_C
    i = tl.arange(0, BLOCK_P)[:, None]
    j = tl.arange(0, BLOCK_C)[None, :]
    start = n.to(tl.int64) * C * P + p0.to(tl.int64) * stride_p + c0.to(tl.int64) * stride_c
    p, c = p0 + i, c0 + j
    return n, p, c, start + (i * stride_p + j * stride_c), (p < P) & (c < C)


@triton.jit
def store_row(partials, row, C, BLOCK_C: tl.constexpr):
    """Store this program's sums over pixels, row [BLOCK_C], into partials [programs along axis 0, C]."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(partials + tl.program_id(0).to(tl.int64) * C + c, row, c < C)
