"""The table of calls for which plain PyTorch was measured to be faster. The public functions consult it.

The rows are written by hand from a result of `ladder kernels`. Nothing is timed or chosen at run
time, so the same call always runs the same code. A call with a row here gets the op's `_reference`. Its parameters are
first cast to a 16-bit activation's precision, exactly as `ladder kernels` times the contender "plain". The gradient is
then PyTorch's own, to any order, and a CUDA graph captures it like any other operator.

Under torch.compile our op stays: the measured times are of eager calls.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import choices


class Where(NamedTuple):
    """The calls of an op that one row covers."""

    variant: str  # the options of DISTINGUISHED that the call has: "noise scale", "down 2"
    architecture: int  # compute capability: 90 for H100 and H200; 0 for a CPU
    dtype: torch.dtype  # of the first tensor
    layout: str  # of the first tensor: nhwc or nchw; "rows" if it is no image
    size: int  # log2 of the number of elements, rounded up


class Entry(NamedTuple):
    """The value that `choices.note` records for a row that decided."""

    alternative: str = "plain PyTorch taken"


# By op, then by call. The text says how many times faster plain PyTorch was, forward and backward together.
TABLE: dict[str, dict[Where, str]] = {}

# Keyword arguments that make calls of one function different work.
DISTINGUISHED = ("noise", "scale", "up", "down", "act")
# Convolutions are PyTorch's own already. Only their double backward is ours.
NOT_OFFERED = ("conv2d", "conv_transpose2d")
LOW = (torch.bfloat16, torch.float16)

taken: Counter[str] = Counter()  # calls that got plain PyTorch so far, by op
_in_force = TABLE
_inside = 0


def offered(function: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs `reference` for the calls in the table, and `function` for all others.

    Its attribute `ours` is `function`. Its attribute `where(...)` returns a call's place in the table.
    """
    name, first = function.__name__, next(iter(inspect.signature(function).parameters))

    def where(*args: Any, **kwargs: Any) -> Where:
        return _where(args[0] if args else kwargs[first], kwargs)

    @wraps(function)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        if not _in_force or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        rows = _in_force.get(name)
        if rows and (at := where(*args, **kwargs)) in rows and not _casts(at):
            return _plain(name, at, reference, args, kwargs)
        return function(*args, **kwargs)

    dispatched.ours, dispatched.where = function, where
    return dispatched


def takes(op: str, where: Where) -> bool:
    """Return whether this call gets plain PyTorch."""
    return where in _in_force.get(op, {})


def inside() -> bool:
    """Return whether plain PyTorch is running because the table says so."""
    return _inside > 0


@contextmanager
def off() -> Iterator[None]:
    """Give every call our kernel while entered. Tuning, checking and sanitizing need that."""
    global _in_force
    before, _in_force = _in_force, {}
    try:
        yield
    finally:
        _in_force = before


def _where(first: Tensor | Sequence[Tensor], options: dict[str, Any]) -> Where:
    x = first if isinstance(first, Tensor) else first[0]
    count = x.numel() if isinstance(first, Tensor) else sum(t.numel() for t in first)
    said = [name for name in DISTINGUISHED if name in options and _matters(options[name])] if options else ()
    variant = " ".join(_said(name, options[name]) for name in said) if said else ""
    return Where(variant, _architecture(x.device), x.dtype, _layout(x), max(count - 1, 0).bit_length())


def _casts(at: Where) -> bool:
    """Return whether autocast makes the op read one precision and write another. No such call was timed."""
    device = "cuda" if at.architecture else "cpu"
    return at.dtype is torch.float32 and torch.is_autocast_enabled(device)


def _matters(value: Any) -> bool:
    return isinstance(value, Tensor) or value not in (None, False, 1)


def _said(name: str, value: Any) -> str:
    return name if isinstance(value, Tensor) or value is True else f"{name} {value}"


def _layout(x: Tensor) -> str:
    if x.dim() != 4:
        return "rows"
    if x.is_contiguous():
        return "nchw"
    return "nhwc" if x.is_contiguous(memory_format=torch.channels_last) else "other"


@lru_cache(maxsize=64)
def _architecture(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _plain(op: str, at: Where, reference: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    global _inside
    choices.note(op, described(at), Entry())
    taken[op] += 1
    if at.dtype in LOW:
        args = tuple(_lowered(value, at.dtype) for value in args)
        kwargs = {name: _lowered(value, at.dtype) for name, value in kwargs.items()}
    _inside += 1
    try:
        return reference(*args, **kwargs)
    finally:
        _inside -= 1


def described(at: Where) -> str:
    """Return a row's key in one line."""
    dtype = str(at.dtype).removeprefix("torch.")
    words = (at.variant, f"sm_{at.architecture}", dtype, at.layout, f"up to 2^{at.size} elements")
    return " ".join(filter(None, words))


def _lowered(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
