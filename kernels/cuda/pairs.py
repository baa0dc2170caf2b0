"""Pairs of small kernels that differ in one thing each, to be read side by side and timed: one page of CUDA C++ a pair.

They illustrate, belong to no network and have no gradients. All take CUDA tensors and raise `Unavailable` where the
sources cannot be built. `threads` is the block's size, a whole number of warps, 32 to 1024. A tensor that is not
contiguous is copied first. `flags` chooses the build. Each has a `_reference` in plain PyTorch, which runs anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .build import Flags
from .calls import DTYPES, call, check_device

DEFAULT = Flags()
LARGEST_GRID = 65535  # blocks in y and z


def strided_act(
    x: Tensor,
    slope: float = 0.2,
    *,
    blocks: str | int = "all",
    threads: int = 256,
    out: Tensor | None = None,
    flags: Flags = DEFAULT,
) -> Tensor:
    """Compute leaky ReLU of NCHW memory with neighbouring threads at neighbouring channels: addresses H * W elements
    apart.

    Args:
        x: [N, C, H, W] or [N, C, P]; float32, float16, bfloat16 or float64.
        blocks: blocks of a sample. With "all" there are as many as there are elements for, one each. With "samples"
            there
            is one block, as in an example with a thread for each channel (then take threads = C). Or a number.
        out: tensor to write to, like x; else a new tensor.
    """
    return _act("strided_act", x, slope, blocks, threads, out, flags)


def coalesced_act(
    x: Tensor,
    slope: float = 0.2,
    *,
    blocks: str | int = "all",
    threads: int = 256,
    out: Tensor | None = None,
    flags: Flags = DEFAULT,
) -> Tensor:
    """Compute `strided_act` with neighbouring threads at neighbouring pixels. Nothing else differs; arguments are the
    same.
    """
    return _act("coalesced_act", x, slope, blocks, threads, out, flags)


def act_reference(x: Tensor, slope: float = 0.2) -> Tensor:
    """Compute `strided_act` and `coalesced_act` in plain PyTorch."""
    return torch.nn.functional.leaky_relu(x.contiguous(), slope)


def _act(
    name: str, x: Tensor, slope: float, blocks, threads: int, out: Tensor | None, flags: Flags
) -> Tensor:
    _check(x, threads, flags, DTYPES)
    if x.dim() < 2:
        raise ValueError(f"x must be [N, C, ...], got {tuple(x.shape)}")
    x = x.contiguous()
    samples, channels = x.shape[:2]
    y = _result(x, x.shape, x.dtype, out)
    if not x.numel():
        return y
    pixels = x[0, 0].numel()
    if channels * pixels >= 1 << 31 or samples > LARGEST_GRID:
        raise ValueError(f"a sample of {channels * pixels} elements, or {samples} samples, is too large here")
    if blocks == "samples":
        blocks = 1
    elif blocks == "all":
        blocks = -(-channels * pixels // threads)
    elif type(blocks) is not int or blocks < 1:
        raise ValueError(f'blocks must be "all", "samples" or a number from 1, got {blocks!r}')
    sizes = (samples, channels, pixels, blocks, threads)
    call(name, flags, x.device, x, y, float(slope), *sizes, DTYPES[x.dtype])
    return y


def divergent(
    x: Tensor,
    steps: int = 256,
    *,
    by: str = "thread",
    rate: float = 0.5,
    shift: float = 1.0,
    threads: int = 256,
    out: Tensor | None = None,
    flags: Flags = DEFAULT,
) -> Tensor:
    """Compute v * rate + shift at odd places and shift - v * rate at even ones, `steps` times, by an if and an else.

    Args:
        x: float32, any shape.
        by: with "thread" places are elements, and both sides of the branch are in every warp. With "warp" places are
            groups
            of 32 elements, and a warp takes one side.
    """
    return _branch("divergent", x, steps, by, rate, shift, threads, out, flags)


def predicated(
    x: Tensor,
    steps: int = 256,
    *,
    by: str = "thread",
    rate: float = 0.5,
    shift: float = 1.0,
    threads: int = 256,
    out: Tensor | None = None,
    flags: Flags = DEFAULT,
) -> Tensor:
    """Compute `divergent` without a branch. Each thread chooses its number, then all run the same instructions; equal
    bits.
    """
    return _branch("predicated", x, steps, by, rate, shift, threads, out, flags)


def branch_reference(
    x: Tensor, steps: int = 256, *, by: str = "thread", rate: float = 0.5, shift: float = 1.0
) -> Tensor:
    """Compute `divergent` and `predicated` in plain PyTorch. Its product and sum round twice, the kernels' once."""
    place = torch.arange(x.numel(), device=x.device).view(x.shape) // _GROUPS[by]
    rates = torch.where(place % 2 == 1, rate, -rate).to(x.dtype)
    v = x.contiguous()
    for _ in range(steps):
        v = v * rates + shift
    return v


_GROUPS = {"thread": 1, "warp": 32}


def _branch(
    name: str, x: Tensor, steps: int, by: str, rate, shift, threads: int, out, flags: Flags
) -> Tensor:
    _check(x, threads, flags, {torch.float32})
    if by not in _GROUPS:
        raise ValueError(f'by must be "thread" or "warp", got {by!r}')
    if not 0 <= steps < 1 << 31:
        raise ValueError(f"steps must be 0 or more, got {steps}")
    x = x.contiguous()
    y = _result(x, x.shape, x.dtype, out)
    if x.numel():
        numbers = (x.numel(), float(rate), float(shift), steps, _GROUPS[by], threads)
        call(name, flags, x.device, x, y, *numbers)
    return y


def shared_sum(x: Tensor, *, threads: int = 256, out: Tensor | None = None, flags: Flags = DEFAULT) -> Tensor:
    """Sum rows [rows, columns] -> [rows], a block each, with partial sums halved through shared memory.

    Args:
        x: float32, float16, bfloat16 (summed, and returned, in float32) or float64.
        threads: a power of two.
    """
    if threads & (threads - 1):
        raise ValueError(f"threads must be a power of two to be halved, got {threads}")
    return _sum("shared_sum", x, threads, out, flags)


def shuffle_sum(
    x: Tensor, *, threads: int = 256, out: Tensor | None = None, flags: Flags = DEFAULT
) -> Tensor:
    """Compute `shared_sum` with shuffles between the threads of a warp. Only warps' totals pass
    through shared memory.
    """
    return _sum("shuffle_sum", x, threads, out, flags)


def sum_reference(x: Tensor) -> Tensor:
    """Compute `shared_sum` and `shuffle_sum` in plain PyTorch."""
    return x.sum(1, dtype=_wide(x.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _sum(name: str, x: Tensor, threads: int, out: Tensor | None, flags: Flags) -> Tensor:
    _check(x, threads, flags, DTYPES)
    if x.dim() != 2:
        raise ValueError(f"x must be [rows, columns], got {tuple(x.shape)}")
    x = x.contiguous()
    y = _result(x, x.shape[:1], _wide(x.dtype), out)
    if len(x):
        call(name, flags, x.device, x, y, *x.shape, threads, DTYPES[x.dtype])
    return y


def scalar_copy(
    x: Tensor, *, threads: int = 256, out: Tensor | None = None, flags: Flags = DEFAULT
) -> Tensor:
    """Copy one element a thread: 2-byte accesses for 16-bit types. x: any dtype of 1, 2, 4 or 8 bytes."""
    return _copy("scalar_copy", x, threads, out, flags)


def vector_copy(
    x: Tensor, *, threads: int = 256, out: Tensor | None = None, flags: Flags = DEFAULT
) -> Tensor:
    """Copy 16 bytes a thread whatever the dtype. A tensor that does not begin at a multiple of 16
    bytes is moved first.
    """
    return _copy("vector_copy", x, threads, out, flags)


def copy_reference(x: Tensor) -> Tensor:
    """Copy as `scalar_copy` and `vector_copy`, in plain PyTorch."""
    return x.clone(memory_format=torch.contiguous_format)


def _copy(name: str, x: Tensor, threads: int, out: Tensor | None, flags: Flags) -> Tensor:
    _check(x, threads, flags)
    if x.element_size() > 8:
        raise ValueError(f"elements of 1, 2, 4 or 8 bytes, got {x.dtype}")
    x = x.contiguous()
    if x.data_ptr() % 16:
        x = x.clone()
    y = _result(x, x.shape, x.dtype, out)
    if y.data_ptr() % 16:
        raise ValueError("out must begin at a multiple of 16 bytes")
    if x.numel():
        call(name, flags, x.device, x, y, x.numel(), x.element_size(), threads)
    return y


def empty(*, blocks: int = 1, threads: int = 32, flags: Flags = DEFAULT) -> None:
    """Launch the kernel that does nothing, on the current device and stream."""
    call("empty", flags, torch.device("cuda"), blocks, threads)


def _check(x: Tensor, threads: int, flags: Flags, dtypes=None) -> None:
    check_device(x)
    if dtypes is not None and x.dtype not in dtypes:
        raise ValueError(f"dtype must be one of {', '.join(map(str, dtypes))}, got {x.dtype}")
    if threads % 32 or not 32 <= threads <= flags.max_threads:
        raise ValueError(f"threads must be a multiple of 32 from 32 to {flags.max_threads}, got {threads}")


def _result(x: Tensor, shape, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    if out is None:
        return x.new_empty(shape, dtype=dtype)
    if out.shape != shape or out.dtype != dtype or out.device != x.device or not out.is_contiguous():
        raise ValueError(f"out must be a contiguous {dtype} tensor {tuple(shape)} on {x.device}")
    return out
