"""Fused ops for StyleGAN-style networks: Triton kernels, their gradients, and a plain-PyTorch reference of each.

The ops stand in folders by what they have in common. The docstring of each folder explains the idea; read it first.

- pointwise/: one pass over an activation (bias, noise, activation, modulation).
- norm/: passes that need a statistic of the plane or of a group of samples first.
- upfirdn/: resampling by a short filter, alone and together with the activation beside it.
- linear/: products with few rows or few channels, and convolutions that can be differentiated twice.
- weights/: ops on parameters (demodulation, spectral norm, Adam).
- double_backward.py: one line that gives PyTorch's own convolutions the derivatives of linear/conv2d.py.
- common/: how tensors are cut into tiles, how sums are taken, how launches overlap, operators for torch.compile.
- compile/: processes that compile kernels ahead of their launch.
- tuning/: programs that search for the rows of the tables.
- cuda/: the article's kernels in CUDA C++.

An op's file holds its mathematics, its kernels, its autograd functions, its reference and the bytes that it must move.
A long op has its kernels and its launches in files of their own (`dense.py`, `dense_kernels.py`, `dense_launches.py`).
No file here knows a model. The ops take CUDA tensors. With TRITON_INTERPRET=1 (set before triton is imported) they also
take CPU tensors, slowly, for tests. The `<op>_reference` functions run anywhere.
"""

from . import started  # noqa: F401  isort: skip
from . import alternatives, dispatch
from .double_backward import fast_double_backward
from .linear.conv2d import conv2d, conv2d_reference, conv_transpose2d, conv_transpose2d_reference
from .linear.dense import dense, dense_group, dense_group_reference, dense_reference
from .linear.rgb import from_rgb, from_rgb_reference, to_rgb, to_rgb_reference
from .linear.skip import bias_act_skip, bias_act_skip_reference
from .norm.batch_norm_act import batch_norm_act, batch_norm_act_reference
from .norm.group_norm_act import group_norm_act, group_norm_act_reference
from .norm.instance_norm_act import instance_norm_act, instance_norm_act_reference
from .norm.minibatch_std import minibatch_std, minibatch_std_reference
from .pointwise.bias_act import bias_act, bias_act_reference
from .pointwise.bias_act_modulate import bias_act_modulate, bias_act_modulate_reference
from .pointwise.modulate import modulate, modulate_reference
from .pointwise.residual import (
    bias_act_residual,
    bias_act_residual_reference,
    fork_upfirdn2d,
    fork_upfirdn2d_reference,
)
from .pointwise.scale_act import scale_act, scale_act_reference
from .upfirdn.filter_act_modulate import filter_act_modulate, filter_act_modulate_reference
from .upfirdn.filtered_act import act_filter, act_filter_reference, filter_act, filter_act_reference
from .upfirdn.upfirdn2d import upfirdn2d, upfirdn2d_reference
from .weights.demodulate import demodulate, demodulate_reference
from .weights.demodulate_group import (
    demodulate_group,
    demodulate_group_fork,
    demodulate_group_fork_reference,
    demodulate_group_reference,
    weight_energies,
    weight_energies_reference,
)
from .weights.spectral_norm import (
    power_iteration,
    power_iteration_reference,
    spectral_norm,
    spectral_norm_reference,
)
from .weights.weight_norm import weight_norm, weight_norm_reference

from .weights import adam  # noqa: F401  isort: skip

__all__ = [
    "act_filter",
    "act_filter_reference",
    "available",
    "batch_norm_act",
    "batch_norm_act_reference",
    "bias_act",
    "bias_act_modulate",
    "bias_act_modulate_reference",
    "bias_act_reference",
    "bias_act_residual",
    "bias_act_residual_reference",
    "bias_act_skip",
    "bias_act_skip_reference",
    "conv2d",
    "conv2d_reference",
    "conv_transpose2d",
    "conv_transpose2d_reference",
    "demodulate",
    "demodulate_group",
    "demodulate_group_fork",
    "demodulate_group_fork_reference",
    "demodulate_group_reference",
    "demodulate_reference",
    "dense",
    "dense_group",
    "dense_group_reference",
    "dense_reference",
    "fast_double_backward",
    "filter_act",
    "filter_act_modulate",
    "filter_act_modulate_reference",
    "filter_act_reference",
    "fork_upfirdn2d",
    "fork_upfirdn2d_reference",
    "from_rgb",
    "from_rgb_reference",
    "group_norm_act",
    "group_norm_act_reference",
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
    "weight_norm",
    "weight_norm_reference",
]

# Callers of the package get plain PyTorch where the table says that it is faster. Inside the package ops stay ours.
for _name in __all__:
    if f"{_name}_reference" in globals() and _name not in alternatives.NOT_OFFERED:
        globals()[_name] = alternatives.offered(globals()[_name], globals()[f"{_name}_reference"])

scale_channels = modulate  # Applying the demodulation scale is the same product.
scale_channels_reference = modulate_reference

# Each op as an export offers it, beside its reference.
OPS = dispatch.table(globals(), [name for name in __all__ if f"{name}_reference" in globals()])


def available() -> str | None:
    """Return None if the fused ops can run on this machine, else one line that says why not.

    They run on a GPU, or on the CPU in Triton's interpreter.
    """
    import torch

    from .common import tiles

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
