"""Tiles of an activation in either memory format, and the small helpers that all kernels share.

A tile is BLOCK_P pixels x BLOCK_C channels of one sample. In channels_last memory the channels are contiguous (stride_c
= 1). In NCHW memory the pixels are contiguous (stride_p = 1). One kernel serves both: Triton specializes it on the
stride of 1 and coalesces along it. Sample, pixel and channel follow from the tile's position, so no element costs an
integer division. The start of a tile is a 64-bit number, the offset in the tile a 32-bit number. So tensors may have
more than 2^31 elements, and an element still costs one addition.
"""

import contextlib
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..choices import choose, size_of
from .dependent_launch import launching
from .language import INTERPRETED, tl, triton

COUNTS = ["tiles", "programs"]  # arguments whose values do not make Triton compile a kernel anew
ARCHITECTURE, PROCESSORS = 90, 132  # those of an H200; tilings are made for it where there is no GPU
LONGEST = 1 << 30  # elements; offsets within a tile, and pixels counted over all samples, stay below


class Tiling(NamedTuple):
    """The way that programs cover one activation."""

    grid: tuple[int, int]  # (samples * programs, tiles of channels)
    samples: int
    programs: int  # programs of a sample; each leaves one row of partial sums
    sizes: tuple[int, int, int, int, int, int]  # kernel arguments: C, P, stride_p, stride_c, tiles, programs
    options: dict  # kernel constants and launch options: WALK, WHOLE, STAGES, BLOCK_P, BLOCK_C, num_warps

    @property
    def rows(self) -> int:
        """Return the number of rows of partial sums."""
        return self.samples * self.programs


def power_of_2(n: int) -> int:
    """Return the smallest power of two >= n (1 for n <= 1)."""
    return 1 << max(n - 1, 0).bit_length()


@lru_cache(maxsize=64)
def processor(device: torch.device) -> tuple[int, int]:
    """Return a GPU's architecture (90 for compute capability 9.0) and its number of streaming multiprocessors."""
    if device.type != "cuda":
        return ARCHITECTURE, PROCESSORS
    found = torch.cuda.get_device_properties(device)
    return found.major * 10 + found.minor, found.multi_processor_count


@lru_cache(maxsize=4096)
def tiling(
    shape: torch.Size,
    nhwc: bool,
    op: str,
    direction: str,
    dtype: torch.dtype,
    device: torch.device,
    merge: bool = False,
) -> Tiling:
    """Return the tiles of [N, C] or [N, C, H, W], as the table of choices says for this op and direction.

    merge: samples need not be told apart. Channels_last pixels of all samples then form one long column.
    """
    samples, channels = shape[0], shape[1]
    pixels = shape[2] * shape[3] if len(shape) == 4 else 1
    size = size_of(samples * channels * pixels)
    architecture, processors = processor(device)
    choice = choose(op, direction, dtype.itemsize, "nhwc" if nhwc else "nchw", architecture, size)
    if merge and nhwc and samples * pixels < LONGEST:
        samples, pixels = 1, samples * pixels
    if nhwc:
        stride_p, stride_c = channels, 1
        block_c = min(power_of_2(channels), choice.columns)
        block_p = min(power_of_2(pixels), max(choice.tile // block_c, 1))
    else:
        stride_p, stride_c = 1, pixels
        block_p = min(power_of_2(pixels), choice.tile)
        block_c = min(power_of_2(channels), max(choice.tile // block_p, 1))
    while max(block_p * stride_p, block_c * stride_c) > LONGEST and max(block_p, block_c) > 1:
        block_p, block_c = max(block_p // 2, 1), max(block_c // 2, 1)
    tiles, tiles_c = -(-pixels // block_p), -(-channels // block_c)
    programs = tiles
    if choice.per_sm:  # One wave of programs. Each walks about as far as the others.
        wave = max(1, processors * choice.per_sm // max(samples * tiles_c, 1))
        programs = -(-tiles // -(-tiles // wave)) if tiles else 0
    options = {
        "WALK": programs < tiles,
        "WHOLE": channels % block_c == 0 and pixels % block_p == 0,
        "STAGES": choice.stages,
        "BLOCK_P": block_p,
        "BLOCK_C": block_c,
        "num_warps": choice.warps,
    }
    sizes = (channels, pixels, stride_p, stride_c, tiles, programs)
    return Tiling((samples * programs, tiles_c), samples, programs, sizes, options)


def launch(kernel, t: Tiling, pointers: tuple, dtype: torch.dtype, *scalars, **constants) -> None:
    """Launch `kernel` over the tiles t of an activation of this dtype."""
    if t.grid[0] * t.grid[1]:
        kernel[t.grid](
            *pointers, *t.sizes, *scalars, ACC=tl_accumulator(dtype), **t.options, **constants, **launching()
        )


def is_nhwc(x: Tensor) -> bool:
    """Return whether the channels of x are its contiguous dimension ([N, C], channels_last, or one pixel)."""
    return x.dim() == 2 or x.shape[2] * x.shape[3] == 1 or not x.is_contiguous()


def dense(x: Tensor) -> Tensor:
    """Return x if it is dense in NCHW or channels_last memory, else a copy in the format nearer to its strides.

    Call it before `Function.apply`: double backward does not see copies that a Function makes and saves itself.
    """
    if x.is_contiguous():
        return x
    if x.dim() != 4:
        return x.contiguous()
    if x.is_contiguous(memory_format=torch.channels_last):
        return x
    nhwc = x.shape[1] > 1 and x.stride(1) == 1
    return x.contiguous(memory_format=torch.channels_last if nhwc else torch.contiguous_format)


def dense_as(t: Tensor, nhwc: bool) -> Tensor:
    """Return t in channels_last (nhwc) or NCHW memory. Gradients nearly always have the format already and are not
    copied.
    """
    if nhwc and t.dim() == 4:
        return t.contiguous(memory_format=torch.channels_last)
    return t.contiguous()


def alike(a: Tensor, b: Tensor) -> bool:
    """Return whether equal indices mean equal offsets in memory. Strides of dimensions of size 1 do not count."""
    pairs = zip(a.shape, a.stride(), b.stride(), strict=True)
    return a.shape == b.shape and all(size == 1 or x == y for size, x, y in pairs)


def new_image(like: Tensor, channels: int, size: tuple[int, int], nhwc: bool, dtype: torch.dtype) -> Tensor:
    """Return an empty [N, channels, *size] in channels_last (nhwc) or NCHW memory, with N and device of `like`."""
    if nhwc:
        return like.new_empty((like.shape[0], *size, channels), dtype=dtype).permute(0, 3, 1, 2)
    return like.new_empty((like.shape[0], channels, *size), dtype=dtype)


def output_dtype(x: Tensor) -> torch.dtype:
    """Return autocast's dtype where autocast is on (it leaves float64 alone), else x.dtype."""
    kind = x.device.type
    if x.dtype is not torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager:
    """Switch autocast off where it is on: what is computed inside has x's dtype."""
    kind = x.device.type
    is_on = torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else contextlib.nullcontext()


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def tl_accumulator(dtype: torch.dtype):
    """Return `accumulator` as Triton's dtype."""
    return tl.float64 if dtype is torch.float64 else tl.float32


def check_device(x: Tensor) -> None:
    """Raise RuntimeError for a tensor that no Triton kernel can read, with a clearer message than Triton's.

    Triton launches on the current device, whatever device the tensors are on.
    """
    if x.is_cuda and (here := torch.cuda.current_device()) != x.get_device():
        raise RuntimeError(
            f"the tensor is on {x.device} and kernels are launched on the current device, cuda:{here}: "
            f"call torch.cuda.set_device({x.get_device()}) first, or use torch.cuda.device({x.get_device()})"
        )
    if not (x.is_cuda or INTERPRETED):
        raise RuntimeError(
            f"Triton kernels need a CUDA tensor, got one on {x.device}; use the op's _reference there, "
            "or set TRITON_INTERPRET=1 before the first import of triton"
        )


# ---- in kernels --------------------------------------------------------------------------------------------------


@triton.jit
def my_tiles(
    C,
    P,
    stride_p,
    stride_c,
    tiles,
    programs,
    WALK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Return this program's tiles: those of sample n from number `first` to `end`, `programs` apart.

    Returns n (int64), first, end, channels c [1, BLOCK_C] and the offset of the sample's channels (int64). Then follow
    the pixels of a tile i [BLOCK_P, 1], and the offsets within a tile [BLOCK_P, BLOCK_C].
    """
    n = (tl.program_id(0) // programs).to(tl.int64)
    first = tl.program_id(0) % programs
    end = first + 1
    if WALK:
        end = tiles
    i = tl.arange(0, BLOCK_P)[:, None]
    j = tl.arange(0, BLOCK_C)[None, :]
    c0 = tl.program_id(1) * BLOCK_C
    base = n * C * P + c0.to(tl.int64) * stride_c
    return n, first, end, c0 + j, base, i, i * stride_p + j * stride_c


@triton.jit
def tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P: tl.constexpr):
    """Return a tile's first pixel and its offset (both int64), and the mask of its elements that exist."""
    # The count itself stays 32-bit: a 64-bit count costs registers.
    p0 = tl.full([], BLOCK_P, tl.int64) * tile
    return p0, base + p0 * stride_p, (i < P - p0) & (c < C)


# There are two definitions instead of a tl.constexpr of this module. Triton's key of a kernel covers a constant that a
# called function reads only if that function had a key before. So kernels compiled ahead would not be found after
# launches in another order.
if INTERPRETED:  # the interpreter has no assembler

    @triton.jit
    def widen(v, ACC: tl.constexpr):
        """Return v in ACC."""
        return v.to(ACC)

else:

    @triton.jit
    def widen(v, ACC: tl.constexpr):
        """Return v in ACC.

        Two bfloat16 share a register. A shift and a mask make them float32, where Triton's own code takes 3
        instructions.
        """
        if v.dtype == tl.bfloat16 and ACC == tl.float32:
            return tl.inline_asm_elementwise(
                "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
                "=r,=r,r",
                [v],
                dtype=tl.float32,
                is_pure=True,
                pack=2,
            )
        return v.to(ACC)


@triton.jit
def within(i, n):
    """Return whether 0 <= i < n, by one comparison: read without its sign, a negative number is a large number."""
    return i.to(tl.uint32, bitcast=True) < n.to(tl.uint32, bitcast=True)


@triton.jit
def load(pointers, inside, WHOLE: tl.constexpr, ACC: tl.constexpr, EVICT: tl.constexpr = None):
    """Load values as ACC, zero where not inside.

    WHOLE: all of them are inside. EVICT: how soon the cache may drop them.
    """
    if WHOLE:
        return tl.load(pointers, eviction_policy=EVICT).to(ACC)
    else:
        return tl.load(pointers, inside, 0.0, eviction_policy=EVICT).to(ACC)


@triton.jit
def store(pointers, values, inside, WHOLE: tl.constexpr, EVICT: tl.constexpr = None):
    if WHOLE:
        tl.store(pointers, values, eviction_policy=EVICT)
    else:
        tl.store(pointers, values, inside, eviction_policy=EVICT)
