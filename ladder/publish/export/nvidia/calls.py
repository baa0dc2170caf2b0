"""Helpers that the drop-in files share: a warning for each call that no fused op serves, and the state of a call."""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import Tensor

from kernels.dispatch import can_run_fused

_said: set[tuple[str, str]] = set()


def say_once(function: str, what: str) -> None:
    """Warn that plain PyTorch computes this, once a process for each reason. The compiler traces no warning."""
    if torch.compiler.is_compiling() or (function, what) in _said:
        return
    _said.add((function, what))
    warnings.warn(f"{function}: {what}: no fused op serves it, plain PyTorch computes it", stacklevel=4)


def can_run(function: str, x: Tensor) -> bool:
    """Return whether fused ops can run on x. Warn once where it is on a GPU and they cannot."""
    runs = can_run_fused(x)
    if not runs and x.is_cuda:
        say_once(function, "this GPU with this Triton")
    return runs


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured, where nothing may be copied to the host."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[torch.autocast | None]:
    """Switch autocast off where it is on: a result has x's dtype."""
    kind = x.device.type
    return (
        torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else contextlib.nullcontext()
    )
