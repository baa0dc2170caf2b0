"""Launches that pass by Triton's own dispatch: a compiled kernel is looked up by what it was compiled for.

For each launch Triton binds the arguments, queries the driver about each pointer and writes out a key of all options.
In an eager step, which has hundreds of short kernels, this takes the CPU longer than the GPU needs to compute. So only
the first launch of a kernel with one grid, one set of dtypes, numbers and constants is Triton's. After that Triton's
launcher in C is called with addresses. Hooks that are added to `triton.knobs` later do not see these launches.
"""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import dependent_launch
from .arguments import remember
from .language import triton

ALIGNED = 16  # bytes; Triton compiles a kernel for pointers that are multiples of it, and another for others
LEAST = (3, 6)  # Triton whose compiled kernels take every parameter in order
# "direct": as above. "triton": always by way of Triton, where launches are intercepted. "none": nothing is launched, so
# that the CPU can be timed without a GPU.
mode = "direct"

# Compiled kernels as functions of a stream and the arguments, each with the arguments behind the tensors.
Known = dict[tuple, tuple[Callable[[int, tuple], Any], tuple]]

_known: Known = {}
_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_stream: Callable[[int], int]  # Triton's; known once it has launched


def launch_grid(kernel: Any, grid: tuple[int, ...], arguments: tuple, **constants: Any) -> None:
    """Launch a kernel that takes DEPENDENT (`dependent_launch.py`) on its tensors' device, on the current stream there.

    Args:
        kernel: a function with `triton.jit`.
        arguments: tensors on one device, numbers, None, and tuples of those, in the kernel's order.
        constants: the kernel's other parameters and launch options, by name.
    """
    launch_known(_known, (grid, *constants.values()), kernel, arguments, lambda: (grid, (), constants))


def launch_known(
    known: Known,
    key: tuple,
    kernel: Any,
    arguments: tuple,
    describe: Callable[[], tuple[tuple[int, ...], tuple, dict[str, Any]]],
) -> None:
    """Launch likewise, where a `key` determines everything but the arguments.

    Args:
        known: where the compiled kernel is kept, for arguments of these dtypes.
        key: what `describe` depends on, besides `known`, the kernel and the arguments.
        describe: returns the grid, numbers behind the arguments, and the constants.
    """
    if mode == "none":
        return
    addresses, kinds, device = _read(arguments)
    if device >= 0 and device != _device():  # Triton launches on the current device.
        with torch.cuda.device(device):
            return launch_known(known, key, kernel, arguments, describe)
    whole = (id(kernel), device, dependent_launch.ON, key, *kinds)
    found = known.get(whole) if mode == "direct" else None
    if found is not None:
        found[0](_stream(device), (*addresses, *found[1]))
        return
    grid, numbers, constants = describe()
    constants = constants | dependent_launch.launching()
    compiled = kernel[grid](*arguments, *numbers, **constants)
    if mode == "direct":
        _keep(known, whole, kernel, compiled, grid, len(arguments), numbers, constants)


def _read(arguments: tuple) -> tuple[list, list, int]:
    """Return the arguments with addresses in place of tensors, what Triton compiles for, and the number of the device.

    Triton compiles for dtypes and alignments, and for some numbers, of which all are taken.
    """
    addresses, kinds, tensor = [], [], None
    for each in arguments:
        if each is None:
            addresses.append(None)
            kinds.append(None)
        elif isinstance(each, Tensor):
            addresses.append(at := each.data_ptr())
            kinds.append((each.dtype, False) if at % ALIGNED else each.dtype)
            tensor = each
        elif type(each) is tuple:
            inner, types, _ = _read(each)
            addresses.append(tuple(inner))
            kinds.append(tuple(types))
            tensor = each[0] if tensor is None else tensor
        else:
            addresses.append(each)
            kinds.append(each)
    return addresses, kinds, -1 if tensor is None else tensor.get_device()


def _keep(known: Known, key: tuple, kernel: Any, compiled: Any, grid: tuple[int, ...], count: int, numbers: tuple,
          constants: dict[str, Any]) -> None:  # fmt: skip
    """Keep a compiled kernel if later calls can launch it directly. It takes all parameters in their order."""
    global _stream
    # The interpreter compiles nothing, and nothing is compiled while `kernels.precompile` listens.
    if not hasattr(compiled, "packed_metadata") or _version() < LEAST:
        return
    _stream = triton.runtime.driver.active.get_current_stream
    tail = [constants[name] for name in kernel.arg_names[count + len(numbers) :]]
    remember(known, key, (_prepare(compiled, (*grid, 1, 1)[:3]), (*numbers, *tail)))


def _prepare(compiled: Any, grid: tuple[int, ...]) -> Callable[[int, tuple], Any]:
    """Return a launch of a compiled kernel. Triton's own takes four functions of Python to reach its launcher in C.

    A copy of the last of them notes what that launcher gets. Kernels with scratch memory, and hooks, stay with Triton.
    """
    calls: list[tuple] = []
    with contextlib.suppress(AttributeError, TypeError):  # a Triton that is built differently
        probe, hooks = copy.copy(compiled.run), triton.knobs.runtime.launch_enter_hook.calls
        launch, probe.launch, last = probe.launch, lambda *passed: calls.append(passed), object()
        if not (probe.global_scratch_size or probe.profile_scratch_size or hooks):
            probe(*grid, None, compiled.function, compiled.packed_metadata, None, None, None, last)
    if not calls:
        way = compiled[grid]
        return lambda stream, arguments: way(*arguments, stream=stream)
    (x, y, z, _, *between, end) = calls[0]
    if end is last:
        return lambda stream, arguments: launch(x, y, z, stream, *between, *arguments)
    return lambda stream, arguments: launch(x, y, z, stream, *between, arguments)  # since Triton 3.7


def _version() -> tuple[int, ...]:
    return tuple(map(int, triton.__version__.split(".")[:2]))
