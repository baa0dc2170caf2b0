"""Checks that all ops share: what is no float tensor, no list of tensors or no number is refused in one line.

They read types, shapes and Python's own numbers, never a tensor's values: nothing waits, and all can be traced.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import wraps
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Kinds of numbers. The compiler traces a number as a SymInt or SymFloat. Integral and Real let NumPy's numbers in.
WHOLE, ANY_WHOLE = (int, torch.SymInt), (int, torch.SymInt, Integral)
REAL = (float, int, torch.SymFloat, torch.SymInt, Real)
MOST = 4096  # shapes and numbers that are remembered
NOT_LISTS = (*REAL, str, bytes, dict, set)


def check_once(check: Callable) -> Callable:
    """Decorate a check of arguments: calls with the same shapes, dtypes, devices and numbers get the first's result."""
    known: dict[tuple, Any] = {}

    @wraps(check)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return check(*args, **kwargs)
        key = facts_of(args)
        if kwargs:
            key += *kwargs, *facts_of(kwargs.values())
        try:
            return known[key]
        except KeyError:
            pass
        except TypeError:  # an argument of a wrong type, which the check refuses
            return check(*args, **kwargs)
        found = check(*args, **kwargs)
        remember(known, key, found)
        return found

    return run


def remember(known: dict, key: Hashable, value: Any, most: int = MOST) -> None:
    """Keep a value by its key. A program with ever new shapes begins anew when it has `most` of them."""
    if len(known) >= most:
        known.clear()
    known[key] = value


def facts_of(values: Iterable[Any]) -> tuple:
    """Return what a check may depend on: shapes, dtypes and devices of tensors, and other values with their types."""
    return tuple(
        [
            (each.shape, each.dtype, each.device)
            if isinstance(each, Tensor)
            else facts_of(each)
            if isinstance(each, list | tuple)
            else (type(each), each)
            for each in values
        ]
    )


def check_tensors(needed: dict[str, Any], **given: Any) -> None:
    """Raise ValueError unless all are float tensors on the first one's device. Only those `given` may be None."""
    first = None
    for name, t in (needed | given if given else needed).items():
        if t is None and name not in needed:
            continue
        if not isinstance(t, Tensor):
            raise ValueError(f"{name} must be a float tensor, got {_shown(t)}")
        if t.dtype not in FLOATS:
            said = ", ".join(str(each).removeprefix("torch.") for each in FLOATS)
            raise ValueError(f"{name} must be a float tensor ({said}), got {t.dtype} {tuple(t.shape)}")
        here = t.device
        if first is None:
            first = here
            if here.type == "meta":
                raise ValueError(f"{name} is on the meta device, which holds no values: use a GPU or the CPU")
        elif here != first:
            raise ValueError(f"{name} is on {here}, {next(iter(needed))} on {first}: move one of them")


def fits(shape: Sequence[int], *wanted: Sequence[int]) -> bool:
    """Return whether a shape is one of those wanted. torch.compile finds a symbol by `==`, but not by `in`."""
    return any(shape == each for each in wanted)


def each(name: str, tensors: Any) -> dict[str, Any]:
    """Return the items of a list under names of their own, for `check_tensors` and `check_numbers`."""
    found = listed(tensors)
    if found is None:
        raise ValueError(f"{name} must be a list, got {_shown(tensors)}")
    return {f"{name}[{k}]": t for k, t in enumerate(found)}


def listed(values: Any) -> list[Any] | None:
    """Return the items of anything in order, or None for what has none."""
    if isinstance(values, NOT_LISTS):  # The compiler cannot ask a symbol the next question.
        return None
    ordered = hasattr(values, "__len__") and getattr(values, "ndim", 1)
    return list(values) if ordered else None


def check_numbers(least: float = -math.inf, *, kinds: tuple[type, ...] = REAL, **numbers: Any) -> None:
    """Raise ValueError unless all are finite numbers of these kinds from `least` on."""
    for name, value in numbers.items():
        if not (is_number(value, kinds) and value >= least):
            kind = "a finite number" if kinds is REAL else "an integer"
            limit = f" from {least} on" if least > -math.inf else ""
            raise ValueError(f"{name} must be {kind}{limit}, got {_shown(value)}")


def check_flags(**flags: Any) -> None:
    """Raise ValueError unless all are True or False."""
    for name, value in flags.items():
        if value is not True and value is not False and (type(value) is not int or value not in (0, 1)):
            raise ValueError(f"{name} must be True or False, got {_shown(value)}")


def check_dtype(dtype: Any) -> None:
    """Raise ValueError unless a result's dtype is a float dtype or None."""
    if dtype is not None and dtype not in FLOATS:
        raise ValueError(f"dtype must be a float dtype of torch or None, got {_shown(dtype)}")


def check_act(act: Any, slope: Any, gain: Any, clamp: Any) -> tuple[float, float]:
    """Validate the arguments of an activation, and return its slope and gain."""
    if act not in ("lrelu", "linear"):
        raise ValueError(f'act must be "lrelu" or "linear", got {act!r}')
    check_numbers(slope=slope, gain=1.0 if gain is None else gain)
    unbounded = clamp is None or (isinstance(clamp, float) and clamp == math.inf)
    check_numbers(0, clamp=0 if unbounded else clamp)
    slope, usual = (1.0, 1.0) if act == "linear" else (float(slope), math.sqrt(2))
    return slope, usual if gain is None else float(gain)


def taps_of(taps: Any, longest: int) -> list[float]:
    """Return the taps of a filter as a list, or raise ValueError."""
    hint = ": take taps.tolist()" if isinstance(taps, Tensor) else ""
    found = [] if hint else listed(taps) or []
    if not 1 <= len(found) <= longest or not all(is_number(t) for t in found):
        raise ValueError(
            f"taps must be a list of 1 to {longest} numbers, all finite, got {_shown(taps)}{hint}"
        )
    return found


def is_number(value: Any, kinds: tuple[type, ...] = REAL) -> bool:
    """Return whether this is a finite number of these kinds. A bool is none, nor is an integer of over 64 bits."""
    most = math.inf if kinds is REAL else 2**63
    if type(value) is int or (type(value) is float and kinds is REAL):  # nearly always, and quicker
        return -most < value < most
    return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) < most


def _shown(value: Any) -> str:
    text = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
