"""Write the fused instance norm in CUDA C++ instead of Triton.

Change. The language changes, and the control that it gives. Instance norm with its style, noise and leaky ReLU is the
same op as under `fused_norm`, forward and backward, and computes the same thing. It is built by nvcc at first use,
outside the timing. The build is kept under a name made from its sources and flags. Second derivatives (path length)
stay Triton's. Code: `kernels/cuda/instance_norm_act.py`.

Why it should help. In NCHW memory a block keeps one plane in shared memory between the statistics and their use, up
to 227 KB on an H100 or H200. So x is read once. Triton's kernel reads it twice, because Triton itself decides what
shared memory holds. In channels_last memory both read x twice. There the second pass goes backwards, to find the
first pass's data in the L2 cache.

When it does not. Both are bound by memory, and Triton writes the same vector accesses as a programmer would. In
channels_last memory, which the ladder has by now, little is left to win. Three launches forward and three backward
are as many as Triton's. A machine needs nvcc and a host compiler, which Triton does without. A stopped run on an H200
saw a slower step (docs/log.md).
"""

from ladder.receipts import Receipt, judge, launched

title = "instance norm in CUDA C++"
change = {"cuda_norm": True}
needs = ("cuda", "triton", "nvcc", "instance_norm")

TRITON = ("moments_kernel", "instance_norm_act_kernel")
# the exported functions for each memory format
PASSES = {"NCHW": ("planes_forward", "planes_backward"), "NHWC": ("pixels_forward", "pixels_backward")}


def receipt(seen: dict) -> Receipt:
    """Check that our functions are called in the recipe's memory format, and that Triton's forward is not.

    A build that failed falls back to Triton's kernels, which compute the same. Their gradient runs anyway if it is
    differentiated again.
    """
    names = PASSES["NHWC" if seen["recipe"]["channels_last"] else "NCHW"]
    left = {name: found["calls"] for name, found in seen["kernels"].items() if name in TRITON}
    where = ", ".join(f"{name} {calls}x" for name, calls in left.items())
    return judge(*launched(seen, *names), (not left, f"Triton's instance norm: {where or 'none left'}"))
