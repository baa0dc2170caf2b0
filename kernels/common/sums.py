"""Sums over pixels in two steps with a fixed order of addition. They are equal in every run on one GPU model.

Each program of a kernel keeps sums of its own pixels in registers, and leaves them as one row of partial sums. One
small launch then adds up the rows of all sums of a gradient. On small maps one program sees all pixels to be added. Its
row is then the result, and there is no second launch.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .dependent_launch import after_previous
from .launches import launch_kernel
from .tiles import Tiling, accumulator, tl, triton

# ---- rows --------------------------------------------------------------------------------------------------------


@triton.jit
def store_row(partials, sums, C, BLOCK_C: tl.constexpr):
    """Store this program's sums over pixels of [BLOCK_P, BLOCK_C] into partials [programs along axis 0, C]."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(partials + tl.program_id(0).to(tl.int64) * C + c, tl.sum(sums, 0), c < C)


@triton.jit
def store_total(partials, sums):
    """Store this program's sum over all of [BLOCK_P, BLOCK_C] into partials [all programs]."""
    at = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(partials + at, tl.sum(tl.sum(sums, 0), 0))


# ---- their sums --------------------------------------------------------------------------------------------------


@triton.jit
def sum_rows(job, partials, out, rows, C, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sum one block of columns of partials [segments, rows, C] over rows into out [segments, C], in a fixed order."""
    segment = (job // tl.cdiv(C, BLOCK_C)).to(tl.int64)
    c = (job % tl.cdiv(C, BLOCK_C)) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_R, BLOCK_C], partials.dtype.element_ty)
    for start in range(0, rows, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)[:, None]
        at = (segment * rows + r) * C + c[None, :]
        total += tl.load(partials + at, (r < rows) & (c[None, :] < C), 0.0)
    tl.store(out + segment * C + c, tl.sum(total, 0), c < C)


@triton.jit(do_not_specialize=["sample_rows", "channel_rows", "program_rows", "sample_jobs", "channel_jobs"])
def sum_partials_kernel(
    by_sample, sample_sums, by_channel, channel_sums, by_program, program_sum,
    C, sample_rows, channel_rows, program_rows, sample_jobs, channel_jobs,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute all sums of a gradient in one launch. The sums that are given follow one another along the grid."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    if by_sample is not None:
        if job < sample_jobs:
            sum_rows(job, by_sample, sample_sums, sample_rows, C, BLOCK_R, BLOCK_C)
    if by_channel is not None:
        if (job >= sample_jobs) & (job < sample_jobs + channel_jobs):
            sum_rows(job - sample_jobs, by_channel, channel_sums, channel_rows, C, BLOCK_R, BLOCK_C)
    if by_program is not None:
        if job >= sample_jobs + channel_jobs:
            sum_rows(0 * job, by_program, program_sum, program_rows, 1, BLOCK_R * BLOCK_C, 1)


class Blocks(NamedTuple):
    """The amount that a program adds up at a time: rows of partial sums and columns of each. Both are powers of 2."""

    rows: int
    columns: int
    warps: int


# By the largest number of rows that an entry covers. The additions take far less time than the way to memory and back.
# So the number of steps that follow one another counts: all rows at once, where there are not too many, and few
# columns. Measured on one H200 (`python -m kernels.tuning.sums`): results/kernels/nvidia-h200-sums-tuning.json.
BLOCKS: tuple[tuple[float, Blocks], ...] = (
    (64, Blocks(64, 8, 1)),
    (128, Blocks(128, 16, 4)),
    (math.inf, Blocks(256, 8, 8)),
)


def blocks(rows: int) -> Blocks:
    """Return the entry of the table for this many rows."""
    return next(found for most, found in BLOCKS if rows <= most)


def add_up(
    parts: Sequence[Tensor | None],
    outs: Sequence[Tensor | None],
    rows: Sequence[int],
    channels: int,
    how: Blocks,
) -> None:
    """Sum parts[k] over its rows[k] into outs[k], for all k in one launch.

    Args:
        parts: partial sums by sample, by channel and by program, each a tensor or None.
        outs: results, in the same order.
        rows: rows to add up, in the same order.
        channels: C.
        how: the entry of the table.
    """
    across = -(-channels // how.columns)
    segments = 0 if parts[0] is None else outs[0].numel() // max(channels, 1)
    jobs = segments * across, 0 if parts[1] is None else across
    grid = (sum(jobs) + (parts[2] is not None),)
    if grid[0]:
        pairs = [
            t for part, out in zip(parts, outs, strict=True) for t in (part, None if part is None else out)
        ]
        launch_kernel(
            sum_partials_kernel,
            grid,
            (*pairs, channels, *rows, *jobs),
            BLOCK_R=how.rows,
            BLOCK_C=how.columns,
            num_warps=how.warps,
        )


class Sums:
    """Sums over pixels in the making: by sample [N, C], by channel [C] and by program []. Each may be None.

    The arguments are the tensors for the final sums. A kernel writes to the tensors of `into`. They are rows of partial
    sums that `finish` adds up. If one program sees all pixels, they are the final tensors.
    """

    def __init__(
        self,
        t: Tiling,
        dtype: torch.dtype,
        sample: Tensor | None = None,
        channel: Tensor | None = None,
        program: Tensor | None = None,
    ):
        self.out = (sample, channel, program)
        self.rows = (t.programs, t.rows, t.grid[0] * t.grid[1])
        self.channels = t.sizes[0]
        widths = (t.sizes[0], t.sizes[0], 1)
        segments = (0 if sample is None else sample.numel() // max(self.channels, 1), 1, 1)
        self.into = [
            out if out is None or rows == 1 else out.new_empty((n * rows * width,), dtype=accumulator(dtype))
            for out, rows, n, width in zip(self.out, self.rows, segments, widths, strict=True)
        ]

    @property
    def pending(self) -> bool:
        """Return whether `finish` has rows to add up."""
        return any(p is not out for p, out in zip(self.into, self.out, strict=True))

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Finish the sums in a fixed order of addition, and return them.

        They are equal in every run on one GPU model.
        """
        parts = [p if p is not out else None for p, out in zip(self.into, self.out, strict=True)]
        rows = [n for n, p in zip(self.rows, parts, strict=True) if p is not None]
        if rows:
            add_up(parts, self.out, self.rows, self.channels, blocks(max(rows)))
        return self.out
