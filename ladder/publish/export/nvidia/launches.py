"""Launches that repeat, for loops that launch kernel by kernel and wait for the CPU.

Triton asks at each launch which of its compiled kernels the arguments want, by all their types, sizes and options. A
network calls an op with the same few shapes for ever. So an op prepares what a shape decides when it first meets it,
and keeps it by the shape. The tensors alone change from then on, and the kernel that Triton found is launched itself.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernels.common.language import triton
from kernels.common.needed import _runs

LEAST = (3, 6)  # Triton whose compiled kernels take every parameter in order; an older one is asked each time
ALIGNED = (
    16  # bytes; Triton compiles a kernel for pointers that are multiples of it, and another for all others
)
MOST = 1024  # shapes that are kept for an op


class Launch:
    """A kernel over one grid, with numbers and constants that stay as they are.

    All calls give tensors of the same dtypes, on the same device, and None at the same places. That device need not be
    the current one. The first call is an ordinary launch, and so is a call with a tensor that is not aligned.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], numbers: tuple[int, ...], constants: Mapping[str, Any]
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, (*grid, 1, 1)[:3], numbers, constants
        self.tail: tuple[Any, ...] = ()  # all arguments behind the tensors, in the kernel's order
        self.run: Callable[..., None] | None = None
        self.current: Callable[[], int]  # returns the current device
        self.stream: Callable[[int], int]  # returns the current stream of a device
        self.on = -1  # the tensors' device

    def __call__(self, *tensors: Tensor | None) -> None:
        bits = 0
        addresses: list[int | None] = []
        for each in tensors:
            if each is None:
                addresses.append(None)
            else:
                addresses.append(at := each.data_ptr())
                bits |= at
        if self.run is None or bits % ALIGNED:
            self._ask(tensors, bits)
        elif self.current() == self.on:
            # Triton would ask the driver about each tensor, but takes an address as it is.
            self.run(*addresses, *self.tail, stream=self.stream(self.on))
        else:
            with torch.cuda.device(self.on):
                self.run(*addresses, *self.tail, stream=self.stream(self.on))

    def _ask(self, tensors: tuple[Tensor | None, ...], bits: int) -> None:
        """Launch by way of Triton, and keep the compiled kernel for later calls if it can be launched itself."""
        on = next(each for each in tensors if each is not None).get_device()
        with torch.cuda.device(on) if on >= 0 else contextlib.nullcontext():
            compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
            if bits % ALIGNED or not hasattr(compiled, "__getitem__") or _version() < LEAST:
                return  # Triton's interpreter compiles nothing.
            driver = triton.runtime.driver.active
            self.current, self.stream = driver.get_current_device, driver.get_current_stream
            self.on = self.current()
            names = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
            self.tail = (*self.numbers, *(self.constants[name] for name in names))
            self.run = compiled[self.grid]


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(triton.__version__))[:2])


def remember(known: dict[Hashable, Any], key: Hashable, prepared: Any) -> None:
    """Keep what was prepared for a shape. A program with ever new shapes begins anew when it has too many."""
    if len(known) >= MOST:
        known.clear()
    known[key] = prepared


def is_wanted(ctx: Any, place: int) -> bool:
    """Return whether the running backward pass uses the gradient of the tensor at this place among a call's tensors.

    `ctx.needs_input_grad` says whether any pass could. See `needed` in `kernels/common/needed.py`.
    """
    asked = getattr(torch._C, "_will_engine_execute_node", None)
    node = ctx.next_functions[place][0]
    return node is not None and (asked is None or _runs(asked, node))
