"""Helpers that the drop-in files share: a warning for each call that no fused op serves, and the state of a call."""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import Tensor

_said: set[tuple[str, str]] = set()


def say_once(function: str, what: str) -> None:
    """Warn that plain PyTorch computes this, once a process for each reason. The compiler traces no warning."""
    if torch.compiler.is_compiling() or (function, what) in _said:
        return
    _said.add((function, what))
    warnings.warn(f"{function}: {what}: no fused op serves it, plain PyTorch computes it", stacklevel=4)


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured, where nothing may be copied to the host."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[torch.autocast | None]:
    """Switch autocast off where it is on: a result has x's dtype."""
    kind = x.device.type
    return (
        torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else contextlib.nullcontext()
    )
