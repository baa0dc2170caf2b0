"""Programmatic dependent launch: a kernel starts while the kernel before it is still ending.

Between two kernels of a stream the GPU drains and fills again. The last blocks of the first kernel finish on a few
multiprocessors while the others idle. Then the second kernel is launched everywhere. Since compute capability 9.0 a
kernel may be launched before its predecessor has ended (CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization"). It must then wait itself before it touches memory that its predecessor wrote or still reads.

Every kernel of this package calls `after_previous` first. So memory is accessed in the stream's order, as without this
feature. Only work without memory comes early: places for blocks, registers, arguments, indices.

A CUDA graph that captures such launches keeps them as programmatic edges. Kernels launched the plain way (PyTorch's,
cuDNN's) wait for their whole predecessor. One of our kernels behind a copy or an event waits, too.
"""

import torch

from .language import gdc_launch_dependents, gdc_wait, tl, triton

LEAST = (9, 0)  # compute capability
ON = False  # process-wide, because backward runs in threads of its own; the training step sets it while it computes


def unavailable() -> str | None:
    """Return why this GPU cannot launch dependently, in the words after "dependent launch ...", or None."""
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) >= LEAST:
        return None
    return f"needs compute capability {LEAST[0]}.{LEAST[1]}, this GPU has {major}.{minor}"


def launching() -> dict[str, bool]:
    """Return the constant and the launch option for a kernel that takes DEPENDENT.

    Switched off, the kernel is compiled without the wait.
    """
    return {"DEPENDENT": True, "launch_pdl": True} if ON else {"DEPENDENT": False}


@triton.jit  # Triton's interpreter refuses a function without `tl` among its globals.
def after_previous(DEPENDENT: tl.constexpr):
    """Wait until all earlier kernels of this stream have ended, then let the next kernel start."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
