"""The choice between a fused op and plain PyTorch, made anew for each call.

Exported packages offer their ops so. `kernels` itself does not: its callers want an error for a call that is not fused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .common.language import INTERPRETED, triton

HAS_TRITON = isinstance(triton, ModuleType)  # else a stand-in
EVERYWHERE = (
    "conv2d",
    "conv_transpose2d",
)  # PyTorch computes these on every device; their derivatives are ours
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


Op = Callable[..., Any]


def table(package: dict[str, Any], names: Iterable[str]) -> dict[str, tuple[Op, Op]]:
    """Return name -> (op that runs everywhere, its reference) for these ops of a package, given by its names."""
    references = {name: package[f"{name}_reference"] for name in names}
    return {
        name: (package[name] if name in EVERYWHERE else dispatched(package[name], plain), plain)
        for name, plain in references.items()
    }


def offer(package: dict[str, Any], names: Iterable[str]) -> dict[str, tuple[Op, Op]]:
    """Put these ops, as `table` returns them, in the place of the fused ones, and return the table."""
    ops = table(package, names)
    for name, (op, _) in ops.items():
        package[name] = op
        if name not in EVERYWHERE:  # pickle looks an op up by these
            op.__module__, op.__name__, op.__qualname__ = package["__name__"], name, name
    return ops


def dispatched(fused: Op, reference: Op) -> Op:
    """Return a function that runs `fused` where it can run, and `reference` everywhere else.

    Its attributes `fused` and `reference` are the two functions. The first argument of the call decides.
    """
    first = next(iter(inspect.signature(fused).parameters))

    @wraps(fused)
    def op(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get(first, ())
        several = given if isinstance(given, list | tuple) else (given,)
        runs = all(can_run_fused(each) for each in several if isinstance(each, Tensor))
        return (fused if runs else reference)(*args, **kwargs)

    vars(op).update(fused=fused, reference=reference)
    return op


def can_run_fused(x: Tensor) -> bool:
    """Return whether Triton can run a kernel on this tensor: on a CUDA GPU, or anywhere in Triton's interpreter."""
    if x.dtype not in DTYPES:
        return False
    if INTERPRETED:
        return True
    if not (HAS_TRITON and x.is_cuda and torch.version.cuda):
        return False
    # The compiler cannot trace the question, and torch.compile itself needs as new a GPU.
    return torch.compiler.is_compiling() or _can_run(x.device, x.dtype)


@lru_cache(maxsize=64)
def _can_run(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the GPU is new enough: compute capability 7.0 for Triton, 8.0 for bfloat16."""
    least = (8, 0) if dtype is torch.bfloat16 else (7, 0)
    return torch.cuda.get_device_capability(device) >= least
