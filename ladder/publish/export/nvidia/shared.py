"""What the drop-in files share: their warnings, and whether fused ops can run."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from kernels.dispatch import can_run_fused

MOST = 1024  # calls of an op that are remembered

_warned: set[tuple[str, str]] = set()


def warn_once(function: str, what: str) -> None:
    """Warn that plain PyTorch computes this, once a process for each reason. The compiler traces no warning."""
    if torch.compiler.is_compiling() or (function, what) in _warned:
        return
    _warned.add((function, what))
    warnings.warn(f"{function}: {what}: no fused op serves it, plain PyTorch computes it", stacklevel=4)


def can_run(function: str, x: Tensor) -> bool:
    """Return whether fused ops can run on x. Warn once where it is on a GPU and they cannot."""
    runs = can_run_fused(x)
    if not runs and x.is_cuda:
        warn_once(function, "this GPU with this Triton")
    return runs


def _init() -> bool:
    """Return whether fused ops can run on this machine's GPU. Nothing is built: Triton compiles at first use."""
    return torch.cuda.is_available() and can_run_fused(torch.empty(0, device="cuda"))


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured, where nothing may be copied to the host."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
