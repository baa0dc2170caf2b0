"""Triton kernels that a claim needs and no network does: one that does nothing, and ones with a size to sweep.

Only what has Triton imports this file.
"""

import triton
import triton.language as tl


@triton.jit
def empty_kernel(x_ptr):
    """What it costs to launch anything at all."""


@triton.jit
def claim_marker_kernel(x_ptr):
    """Its grid is the number of what comes next, for Nsight Compute's list of kernels to be told apart by."""


@triton.jit
def leaky_relu_kernel(x_ptr, y_ptr, size, slope, BLOCK: tl.constexpr):
    """One program a block of BLOCK neighbouring elements; a thread has BLOCK / threads of them."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    tl.store(y_ptr + at, tl.where(x >= 0, x, x * slope), mask=inside)


@triton.jit
def leaky_relu_walk_kernel(x_ptr, y_ptr, size, slope, BLOCK: tl.constexpr):
    """The same by however many programs there are: each takes every so-manyeth block, one after another."""
    i = tl.arange(0, BLOCK)
    for block in tl.range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0), num_stages=1):
        at = tl.full([], BLOCK, tl.int64) * block + i
        inside = at < size
        x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
        tl.store(y_ptr + at, tl.where(x >= 0, x, x * slope), mask=inside)
