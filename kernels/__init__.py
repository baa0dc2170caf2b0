"""Fused ops for StyleGAN-style networks: Triton kernels, their gradients, and a plain-PyTorch reference of each.

Each op is one file, readable on its own: math, kernels, autograd, reference, bytes it must move. Nothing here knows a
model. The ops take CUDA tensors; with TRITON_INTERPRET=1 (set before triton is imported) they run on CPU tensors too,
slowly, for tests. The `<op>_reference` functions run anywhere.
"""

from kernels.bias_act import bias_act, bias_act_reference
from kernels.conv2d import conv2d, conv2d_reference, conv_transpose2d, conv_transpose2d_reference
from kernels.demodulate import demodulate, demodulate_reference
from kernels.instance_norm_act import instance_norm_act, instance_norm_act_reference
from kernels.modulate import modulate, modulate_reference
from kernels.upfirdn2d import upfirdn2d, upfirdn2d_reference

from kernels import adam  # noqa: F401  isort: skip
from kernels import operators  # noqa: F401  isort: skip  (registers the ops above for torch.compile)

__all__ = [
    "available",
    "bias_act",
    "bias_act_reference",
    "conv2d",
    "conv2d_reference",
    "conv_transpose2d",
    "conv_transpose2d_reference",
    "demodulate",
    "demodulate_reference",
    "instance_norm_act",
    "instance_norm_act_reference",
    "modulate",
    "modulate_reference",
    "scale_channels",
    "upfirdn2d",
    "upfirdn2d_reference",
]

scale_channels = modulate  # the demodulation scale applied is the same product


def available() -> str | None:
    """None if the fused ops can run on this machine's GPU (or in the interpreter), else one line why not."""
    import torch

    from kernels import tiles

    if tiles.INTERPRETED:
        return None
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed (pip install triton)"
    if not torch.cuda.is_available():
        return "no CUDA GPU that PyTorch can use"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < (7, 0):
        return f"Triton needs compute capability 7.0, this GPU has {major}.{minor}"
    return None
