"""Launches that pass by Triton's own dispatch: a compiled kernel is looked up by what it was compiled for.

For each launch Triton binds the arguments, queries the driver about each pointer and writes out a key of all options.
In an eager step, which has hundreds of short kernels, this takes the CPU longer than the GPU needs to compute. So only
the first launch of a kernel with one grid, one set of dtypes, numbers and constants is Triton's. After that the
compiled kernel is launched with addresses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import dependent_launch
from .language import triton

ALIGNED = 16  # bytes; Triton compiles a kernel for pointers that are multiples of it, and another for others
MOST = 4096  # launches that are kept; a program with ever new shapes begins anew
LEAST = (3, 6)  # Triton whose compiled kernels take every parameter in order
# "direct" as above, "triton" for launches that are watched, "none" for no launches: it times the CPU without a GPU.
way = "direct"

_known: dict[tuple, tuple[Callable[..., None], tuple]] = {}
_device = torch.cuda.current_device
_stream: Callable[[int], int]  # Triton's; known once it has launched


def launch_kernel(kernel: Any, grid: tuple[int, ...], arguments: tuple, **constants: Any) -> None:
    """Launch a kernel that takes DEPENDENT (`dependent_launch.py`) on its tensors' device, on the current stream there.

    Args:
        kernel: a function with `triton.jit`.
        arguments: tensors on one device, numbers, None, and tuples of those, in the kernel's order.
        constants: the kernel's other parameters and launch options, by name.
    """
    if way == "none":
        return
    addresses, kinds, device = _read(arguments)
    if device >= 0 and device != _device():  # Triton launches on the current device.
        with torch.cuda.device(device):
            return launch_kernel(kernel, grid, arguments, **constants)
    if way == "triton":
        kernel[grid](*arguments, **constants, **dependent_launch.launching())
        return
    key = (id(kernel), grid, device, dependent_launch.ON, *kinds, *constants.values())
    found = _known.get(key)
    if found is None:
        _launch_first(kernel, grid, arguments, constants | dependent_launch.launching(), key)
    else:
        run, tail = found
        run(*addresses, *tail, stream=_stream(device))


def _read(arguments: tuple) -> tuple[list, list, int]:
    """Return the arguments with addresses in place of tensors, what Triton compiles for, and the number of the device.

    Triton compiles for dtypes and alignments, and for some numbers, of which all are taken.
    """
    addresses, kinds, device = [], [], -1
    for each in arguments:
        if isinstance(each, Tensor):
            addresses.append(at := each.data_ptr())
            kinds.append((each.dtype, at % ALIGNED == 0))
            device = each.get_device()
        elif type(each) is tuple:
            inner, types, on = _read(each)
            addresses.append(tuple(inner))
            kinds.append(tuple(types))
            device = max(device, on)
        else:
            addresses.append(each)
            kinds.append(each)
    return addresses, kinds, device


def _launch_first(kernel: Any, grid: tuple[int, ...], arguments: tuple, constants: dict, key: tuple) -> None:
    """Launch by way of Triton, and keep the compiled kernel if later calls can launch it directly."""
    global _stream
    compiled = kernel[grid](*arguments, **constants)
    # The interpreter compiles nothing, and nothing is compiled while `kernels.precompile` listens.
    if not hasattr(compiled, "packed_metadata") or tuple(map(int, triton.__version__.split(".")[:2])) < LEAST:
        return
    _stream = triton.runtime.driver.active.get_current_stream
    if len(_known) >= MOST:
        _known.clear()
    # A compiled kernel takes all parameters, those that were compiled in, too.
    tail = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
    _known[key] = compiled[(*grid, 1, 1)[:3]], tail
