"""Build the CUDA C++ kernels with nvcc's --use_fast_math.

Change. Division, square root and mathematical functions become the hardware's approximations. They are a few units in
the last place off instead of half of one, and numbers below 1.2e-38 count as zero. Sums and products stay the same: a
multiplication and an addition were one instruction before.

Why it should help. An exact division is a call of some ten instructions, an approximate one is two. That shows in a
kernel that divides for each element and waits for arithmetic more than for memory.

When it does not. A normalization waits for memory. It divides a few times for each map and each thread, not for each
element. So the flag has next to nothing to make faster. Its cost in accuracy is checked like everything else
(parity), and the bits of a result change with it. The rung shows that a flag from a list of tips must be measured
before it is believed.
"""

from ladder.receipts import Receipt, judge, launched
from ladder.rungs.cuda_norm import PASSES

title = "--use_fast_math"
change = {"fast_math": True}
needs = ("cuda", "triton", "nvcc", "instance_norm")


def receipt(seen: dict) -> Receipt:
    """Check that the called functions, forward and backward, are those of the build with the flag."""
    names = PASSES["NHWC" if seen["recipe"]["channels_last"] else "NCHW"]
    return judge(*launched(seen, *(f"{name} --use_fast_math" for name in names)))
