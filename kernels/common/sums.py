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
from .launches import Known, launch_known
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
        channels: int | None = None,
    ):
        """channels: the numbers in a row of partial sums, by default those of the tiles."""
        self.launches, self.out, dtype = t.launches, (sample, channel, program), accumulator(dtype)
        self.channels = t.sizes[0] if channels is None else channels
        self.rows = rows = t.programs, t.rows, t.grid[0] * t.grid[1]
        parts: list[Tensor | None] = [None, None, None]
        if sample is not None and rows[0] != 1:
            parts[0] = sample = sample.new_empty((sample.numel() * rows[0],), dtype=dtype)
        if channel is not None and rows[1] != 1:
            parts[1] = channel = channel.new_empty((rows[1] * self.channels,), dtype=dtype)
        if program is not None and rows[2] != 1:
            parts[2] = program = program.new_empty((rows[2],), dtype=dtype)
        self.parts, self.into = parts, [sample, channel, program]

    @property
    def pending(self) -> bool:
        """Return whether `finish` has rows to add up."""
        a, b, c = self.parts
        return a is not None or b is not None or c is not None

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Finish the sums in a fixed order of addition, and return them.

        They are equal in every run on one GPU model.
        """
        if self.pending:
            add_up(self.parts, self.out, self.rows, self.channels, launches=self.launches)
        return self.out


def add_up(
    parts: Sequence[Tensor | None],
    outs: tuple[Tensor | None, ...],
    rows: tuple[int, ...],
    channels: int,
    how: Blocks | None = None,
    launches: Known | None = None,
) -> None:
    """Sum parts[k] over its rows[k] into outs[k], for all k in one launch.

    Args:
        parts: partial sums by sample, by channel and by program, each a tensor or None.
        outs: results, in the same order.
        rows: rows to add up, in the same order.
        channels: C.
        how: an entry of the table; by default the one for the most rows.
        launches: where compiled kernels are kept.
    """
    by_sample, by_channel, by_program = parts
    segments = 0 if by_sample is None else outs[0].numel() // max(channels, 1)

    def describe() -> tuple[tuple[int], tuple[int, ...], dict]:
        size = how or blocks(max(n for n, part in zip(rows, parts, strict=True) if part is not None))
        across = -(-channels // size.columns)
        jobs = segments * across, 0 if by_channel is None else across
        constants = {"BLOCK_R": size.rows, "BLOCK_C": size.columns, "num_warps": size.warps}
        return (sum(jobs) + (by_program is not None),), (channels, *rows, *jobs), constants

    if segments or (by_channel is not None and channels) or by_program is not None:
        arguments = (by_sample, outs[0], by_channel, outs[1], by_program, outs[2])
        known = {} if launches is None else launches
        launch_known(known, (channels, segments, rows, how), sum_partials_kernel, arguments, describe)
