"""The smallest Triton kernel: only `ladder.machine.probe` imports it, to see whether Triton works here."""

import triton
import triton.language as tl


@triton.jit
def add_one(x_ptr, n: tl.constexpr):
    offsets = tl.arange(0, n)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)
