"""What the drop-in files share: warnings, whether fused ops can run, and calls that are known by their shapes."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from kernels.dispatch import can_run_fused

MOST = 1024  # shapes that are kept for an op

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


def remember(known: dict[Hashable, Any], key: Hashable, call: Any) -> None:
    """Keep the facts of a call. A program with ever new shapes begins anew when it has too many."""
    if len(known) >= MOST:
        known.clear()
    known[key] = call
