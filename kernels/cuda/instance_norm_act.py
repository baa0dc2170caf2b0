"""y = leaky_relu(instance_norm(x + noise * strength) * scale + bias) * gain in CUDA C++: the op of
`kernels.instance_norm_act` again, written as the article writes its kernels, to be compared with Triton's.

In NCHW memory (`planes.cu`) a block has one plane, and keeps as much of it as fits into shared memory between the
statistics and their use: for [8, 512, 256, 256] in BF16 all of it, so x is read once. In channels_last memory
(`pixels.cu`) an access brings many planes at once, which no multiprocessor could keep, so x is read twice.

Gradients by these kernels as well; second derivatives, which path length asks for, by Triton's.
"""

import math
import warnings

import torch
from torch import Tensor

import kernels
from kernels.cuda.build import Flags, Unavailable, available, library
from kernels.instance_norm_act import instance_norm_act_reference
from kernels.tiles import accumulator, dense, output_dtype

DEFAULT = Flags()


def instance_norm_act(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    eps: float = 1e-5,
    slope: float = 0.2,
    gain: float | None = None,
    threads: int | None = None,
    flags: Flags = DEFAULT,
) -> Tensor:
    """`kernels.instance_norm_act` in CUDA C++: the same arguments, result, dtypes and memory formats.

    Args:
        threads: the block's size, a multiple of 32; None: by the size of a map.
        flags: the build: `Flags(fast_math=True)` and so on.
    """
    raise NotImplementedError
