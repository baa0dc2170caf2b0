"""The launches of `kernels.upconv2d` that `tests/support/compiling.py` compiles for GPUs that are not there."""

import sys


def run_upconv(x) -> None:
    """The transposed convolution by parities, in every row of its table for the GPU, of whole and partial blocks."""
    import torch

    from kernels.common import tiles

    upconv, layout = sys.modules["kernels.linear.upconv2d"], torch.channels_last
    here, _ = tiles.processor(x.device)
    for (gpu, _), row in upconv.CONFIGS.items():
        if gpu not in (None, divmod(here, 10)) or x.dtype.itemsize > 2:
            continue
        for outputs in (row.block_n, 72):
            weight = torch.zeros(x.shape[1], outputs, 3, 3, dtype=x.dtype).contiguous(memory_format=layout)
            upconv._forced[:] = [row]
            upconv.forward(x.contiguous(memory_format=layout), weight)
            upconv._forced.clear()
