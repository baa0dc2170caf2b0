"""The Triton kernels that a claim needs and no network does: an empty kernel, and kernels with a size to sweep.

Import this file only where Triton is installed.
"""

import triton
import triton.language as tl


@triton.jit
def empty_kernel(x_ptr):
    """Do nothing: the cost of launching anything at all."""


@triton.jit
def claim_marker_kernel(x_ptr):
    """Mark the next contender in Nsight Compute's list. The grid is the contender's number."""


@triton.jit
def leaky_relu_kernel(x_ptr, y_ptr, size, slope, BLOCK: tl.constexpr):
    """Apply leaky ReLU, with a program for each block of BLOCK neighbouring elements; a thread has BLOCK / threads."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    tl.store(y_ptr + at, tl.where(x >= 0, x, x * slope), mask=inside)


@triton.jit
def leaky_relu_walk_kernel(x_ptr, y_ptr, size, slope, BLOCK: tl.constexpr):
    """Apply leaky ReLU with any number of programs P: each takes every P-th block in turn."""
    i = tl.arange(0, BLOCK)
    for block in tl.range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0), num_stages=1):
        at = tl.full([], BLOCK, tl.int64) * block + i
        inside = at < size
        x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
        tl.store(y_ptr + at, tl.where(x >= 0, x, x * slope), mask=inside)
