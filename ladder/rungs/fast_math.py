"""nvcc's --use_fast_math for the CUDA C++ kernels.

What changes. Division, square root and the functions of mathematics become the hardware's approximations, a few
units in the last place off instead of half of one, and numbers below 1.2e-38 count as zero. Sums and products
are what they were: a multiplication and an addition were one instruction before.

Why it should help. An exact division is a call of some ten instructions, an approximate one is two. Where a
kernel divides for each element, and has more arithmetic than memory to wait for, that shows.

When it does not. A normalization waits for memory, and divides a few times for each map and each thread, not
once for each element: here the flag has next to nothing to make faster. What it costs is
checked like everything else (parity), and the bits of a result change with it. It is a rung to show
that a flag from a list of tips is to be measured before it is believed.
"""

from ladder.receipts import Receipt, judge, launched
from ladder.rungs.cuda_norm import PASSES

title = "--use_fast_math"
change = {"fast_math": True}
needs = ("cuda", "triton", "nvcc", "instance_norm")


def receipt(seen: dict) -> Receipt:
    """The functions that are called, forward and backward, are those of the build with the flag."""
    names = PASSES["NHWC" if seen["recipe"]["channels_last"] else "NCHW"]
    return judge(*launched(seen, *(f"{name} --use_fast_math" for name in names)))
