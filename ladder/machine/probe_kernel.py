"""The smallest Triton kernel, with which `ladder.machine.probe` sees whether Triton works."""

import triton
import triton.language as tl


@triton.jit
def add_one(x_ptr, n: tl.constexpr):
    offsets = tl.arange(0, n)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)
