"""Calls of the exported functions: types from their own declarations, addresses of tensors, the current stream.

An exported function is declared in its .cu file on lines that begin `extern "C" int name(`. Parameters are pointers (a
tensor, or None), int64_t, double, and last the stream. The result is a cudaError_t. ctypes gets the types from that
declaration. So a call with too few arguments, or with a wrong kind, is refused here and not on the GPU.
"""

from __future__ import annotations

import ctypes
import functools
import re

import torch
from torch import Tensor

from .build import Flags, Unavailable, library, sources

_EXPORTED = re.compile(r'extern "C" int (\w+)\(([^)]*)\)')
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}  # as in common.cuh


@functools.cache
def signatures() -> dict[str, tuple[type, ...]]:
    """Return every exported function's parameter types."""
    found = {}
    for path in sources():
        for name, parameters in _EXPORTED.findall(path.read_text()):
            found[name] = tuple(_type(p) for p in parameters.split(",") if p.strip())
    return found


def _type(parameter: str) -> type:
    if "*" in parameter or "cudaStream_t" in parameter:
        return ctypes.c_void_p
    return {"int64_t": ctypes.c_int64, "double": ctypes.c_double}[parameter.split()[0]]


@functools.cache
def function(name: str, flags: Flags, device: int):
    """Return an exported function, built for the GPU of this number, that takes addresses and numbers."""
    found = getattr(library(flags, device), name)
    found.argtypes, found.restype = signatures()[name], ctypes.c_int
    return found


def call(name: str, flags: Flags, device: torch.device, *arguments) -> None:
    """Launch on the device's current stream.

    Raises RuntimeError with CUDA's words where that fails, and `Unavailable` where there is no GPU.
    """
    try:
        current = torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:  # a build of torch without CUDA; no driver, or no GPU
        raise Unavailable(f"CUDA C++ needs a CUDA GPU that PyTorch can use: {error}") from None
    if device.index is not None and device.index != current:
        with torch.cuda.device(device):
            return call(name, flags, device, *arguments)
    values = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
    error = function(name, flags, current)(*values, torch.cuda.current_stream().cuda_stream)
    if error:
        text = ctypes.create_string_buffer(200)
        function("error_text", flags, current)(error, ctypes.addressof(text), len(text))
        raise RuntimeError(f"{name}: CUDA error {error}: {text.value.decode()}")


def check_device(x: Tensor) -> None:
    """Raise for a tensor that no kernel can read."""
    if not x.is_cuda:
        raise ValueError(f"CUDA C++ kernels need a CUDA tensor, got one on {x.device}")
