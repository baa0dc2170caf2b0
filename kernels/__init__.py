"""Fused ops for StyleGAN-style networks: Triton kernels, their gradients, and a plain-PyTorch reference of each.

Each op is one file: math, kernels, autograd, reference, bytes it must move. Where that would be too long, kernels and
launches are in files of their own beside it (`dense.py`, `dense_launches.py`, `dense_kernels.py`). Nothing here knows a
model. The ops take CUDA tensors; with TRITON_INTERPRET=1 (set before triton is imported) they run on CPU tensors too,
slowly, for tests. The `<op>_reference` functions run anywhere.
"""

from kernels import started  # noqa: F401  isort: skip
from kernels import alternatives
from kernels.linear.conv2d import conv2d, conv2d_reference, conv_transpose2d, conv_transpose2d_reference
from kernels.linear.dense import dense, dense_group, dense_group_reference, dense_reference
from kernels.linear.rgb import from_rgb, from_rgb_reference, to_rgb, to_rgb_reference
from kernels.norm.instance_norm_act import instance_norm_act, instance_norm_act_reference
from kernels.norm.minibatch_std import minibatch_std, minibatch_std_reference
from kernels.pointwise.bias_act import bias_act, bias_act_reference
from kernels.pointwise.modulate import modulate, modulate_reference
from kernels.pointwise.residual import (
    bias_act_residual,
    bias_act_residual_reference,
    fork_upfirdn2d,
    fork_upfirdn2d_reference,
)
from kernels.pointwise.scale_act import scale_act, scale_act_reference
from kernels.upfirdn.filter_act_modulate import filter_act_modulate, filter_act_modulate_reference
from kernels.upfirdn.filtered_act import act_filter, act_filter_reference, filter_act, filter_act_reference
from kernels.upfirdn.upfirdn2d import upfirdn2d, upfirdn2d_reference
from kernels.weights.demodulate import demodulate, demodulate_reference
from kernels.weights.demodulate_group import (
    demodulate_group,
    demodulate_group_reference,
    weight_energies,
    weight_energies_reference,
)
from kernels.weights.spectral_norm import (
    power_iteration,
    power_iteration_reference,
    spectral_norm,
    spectral_norm_reference,
)

from kernels.weights import adam  # noqa: F401  isort: skip

# These register operators for torch.compile; the ops that have none here are plain PyTorch to it.
from kernels.compile import joined_operators, linear_operators, operators  # noqa: F401  isort: skip

__all__ = [
    "act_filter",
    "act_filter_reference",
    "available",
    "bias_act",
    "bias_act_reference",
    "bias_act_residual",
    "bias_act_residual_reference",
    "conv2d",
    "conv2d_reference",
    "conv_transpose2d",
    "conv_transpose2d_reference",
    "demodulate",
    "demodulate_group",
    "demodulate_group_reference",
    "demodulate_reference",
    "dense",
    "dense_group",
    "dense_group_reference",
    "dense_reference",
    "filter_act",
    "filter_act_modulate",
    "filter_act_modulate_reference",
    "filter_act_reference",
    "fork_upfirdn2d",
    "fork_upfirdn2d_reference",
    "from_rgb",
    "from_rgb_reference",
    "instance_norm_act",
    "instance_norm_act_reference",
    "minibatch_std",
    "minibatch_std_reference",
    "modulate",
    "modulate_reference",
    "power_iteration",
    "power_iteration_reference",
    "scale_act",
    "scale_act_reference",
    "scale_channels",
    "spectral_norm",
    "spectral_norm_reference",
    "to_rgb",
    "to_rgb_reference",
    "upfirdn2d",
    "upfirdn2d_reference",
    "weight_energies",
    "weight_energies_reference",
]

# Callers of the package get plain PyTorch where the table says that it is faster; inside the package ops stay ours.
for _name in __all__:
    if f"{_name}_reference" in globals() and _name not in alternatives.NOT_OFFERED:
        globals()[_name] = alternatives.offered(globals()[_name], globals()[f"{_name}_reference"])

scale_channels = modulate  # the demodulation scale applied is the same product


def available() -> str | None:
    """None if the fused ops can run on this machine's GPU (or in the interpreter), else one line why not."""
    import torch

    from kernels.common import tiles

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
