"""The settings in force while a step runs: PyTorch's defaults, read back rather than assumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kernels.common import dependent_launch
from kernels.linear.conv2d import conv2d_if_grouped
from stylegan_lite.config import Recipe


@contextlib.contextmanager
def global_flags(recipe: Recipe) -> Iterator[None]:
    """Set PyTorch's global flags as the recipe wants them, then put them back. They must not outlive the step.

    Flags that the recipe does not name stay as they are. All are process-wide, so backward's threads see them too.
    """
    wanted: list[tuple[Any, str, Any]] = []
    if recipe.cudnn_benchmark:
        wanted.append((torch.backends.cudnn, "benchmark", True))
    if recipe.fp32_precision != "default":
        wanted.append((torch.backends.cudnn.conv, "fp32_precision", recipe.fp32_precision))
        wanted.append((torch.backends.cuda.matmul, "fp32_precision", recipe.fp32_precision))
    if recipe.fused_grouped_conv:  # modules call it by this name
        wanted.append((torch.nn.functional, "conv2d", conv2d_if_grouped))
    if recipe.dependent_launch:
        wanted.append((dependent_launch, "ON", True))
    with set_flags(wanted):
        yield


@contextlib.contextmanager
def set_flags(wanted: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set flags, each (where it is, name, value), while the block runs."""
    before = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    try:
        for module, name, value in wanted:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def settings(recipe: Recipe, optimizer: torch.optim.Optimizer, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return precision flags, cuDNN's flags, an optimizer's settings, the pair's ``own``, and threads as plain data.

    Precision flags are read through the new API only: mixing it with the old API raises.
    """
    with global_flags(recipe):
        return _settings(recipe, optimizer, own)


def _settings(recipe: Recipe, optimizer: torch.optim.Optimizer, own: Mapping[str, Any]) -> dict[str, Any]:
    cudnn = torch.backends.cudnn
    group = optimizer.param_groups[0]
    found = {
        "conv_fp32_precision": getattr(cudnn.conv, "fp32_precision", None)
        if hasattr(cudnn, "conv")
        else None,
        "matmul_fp32_precision": getattr(torch.backends.cuda.matmul, "fp32_precision", None),
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "adam_foreach": group.get("foreach"),
        "adam_fused": group.get("fused"),
        "adam_capturable": group.get("capturable"),
        "ema": recipe.ema,
        **own,
        "cpu_threads": torch.get_num_threads(),
    }
    return {
        key: value if isinstance(value, (bool, int, float, str)) else None for key, value in found.items()
    }
