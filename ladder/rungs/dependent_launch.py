"""Let a kernel's blocks take their places while the kernel in front of it still ends.

Change. Every kernel of ours is launched with CUDA's attribute for programmatic dependent launch, and calls
`griddepcontrol.wait` before it touches memory. It is put on the GPU as soon as all blocks of the kernel in front have
begun. It goes on when that kernel has ended and written everything. The order of memory accesses stays that of the
stream. CUDA graphs keep such launches, as programmatic edges. Code: `kernels/common/dependent_launch.py`.

Why it should help. Between two kernels a GPU drains and fills up again, which takes a microsecond. The last blocks of
the first kernel finish, then the next is launched, gets its registers and computes its addresses. A step at the top
of `full` has some 700 kernels, at batch 8 most of them shorter than 10 microseconds.

When it does not. Kernels of PyTorch and cuDNN are launched the plain way. Behind one of ours they wait for all of it,
and in front of one of ours they hand over only when they end. Blocks that wait hold their places, which the second
stream's kernels (`parallel_streams`) may want. If kernels take a millisecond each, one microsecond is nothing. A
stopped run on an H200 saw no difference (docs/log.md).
"""

from ladder.receipts import Receipt, judge

title = "dependent launches"
change = {"dependent_launch": True}
needs = ("cuda", "triton", "dependent_launch")


def receipt(seen: dict) -> Receipt:
    """Check that each launch of a Triton kernel of ours carries the attribute, and that its code waits."""
    ours = [kernel for kernel in seen["kernels"].values() if not kernel.get("cpp")]
    launched, dependent = sum(k["calls"] for k in ours), sum(k.get("dependent", 0) for k in ours)
    return judge(
        (
            0 < launched == dependent,
            f"launched before the kernel in front has ended, and waiting for it: {dependent} of {launched}",
        )
    )
