"""Programmatic dependent launch: a kernel's blocks take their places while the kernel before it still ends.

Between two kernels of a stream the GPU drains and fills up again: the last blocks of the one finish on a few
multiprocessors while the others wait, then the next is launched everywhere. Since compute capability 9.0 a kernel may
be launched before the one in front of it has ended (CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization"). It must then wait itself: whatever that one wrote, or still reads, is touched behind `after_previous`
alone. Every kernel here calls it first, so the order of memory accesses is that of the stream, as ever, and only
what needs no memory (places for blocks, registers, arguments, indices) comes early.

A CUDA graph that captures such launches keeps them as programmatic edges. A kernel that is launched the plain way, as
PyTorch's and cuDNN's are, waits for the whole of the one before it; so does one of ours behind a copy or an event.
"""

import torch

from kernels.common.language import gdc_launch_dependents, gdc_wait, tl, triton

LEAST = (9, 0)  # compute capability
ON = False  # process-wide, as backward runs in threads of its own: set by the training step while it computes


def unavailable() -> str | None:
    """Why this GPU cannot, in the words behind "dependent launch ...", or None."""
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) >= LEAST:
        return None
    return f"needs compute capability {LEAST[0]}.{LEAST[1]}, this GPU has {major}.{minor}"


def launching() -> dict[str, bool]:
    """Constant and launch option for a kernel that takes DEPENDENT. Off, the kernel is compiled without the wait."""
    return {"DEPENDENT": True, "launch_pdl": True} if ON else {"DEPENDENT": False}


@triton.jit  # whose interpreter refuses a function that has no `tl` among its globals
def after_previous(DEPENDENT: tl.constexpr):
    """Return when all kernels before this one on its stream have ended, and let the next one take its places."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
