"""The op y = leaky_relu(instance_norm(x + noise * strength) * scale + bias) * gain in CUDA C++.

It is the op of `kernels.instance_norm_act` again, in the article's language, to be compared with Triton's.

In NCHW memory (`planes.cu`) a block has one plane. It keeps as much of the plane as fits into shared memory between the
statistics and their use. Two blocks of [8, 512, 256, 256] in BF16 keep seven eighths of a plane each, so x is read
little more than once. In channels_last memory (`pixels_forward.cu`, `pixels_backward.cu`) an access brings many planes
at once. No multiprocessor could keep them, so x is read twice. Sums are added in a fixed order: results are equal in
every run.

First derivatives are these kernels', too. Second derivatives, which path length needs, are Triton's.
"""

from __future__ import annotations

import functools
import math
import warnings

import torch
from torch import Tensor

from .. import available
from .. import instance_norm_act as triton_instance_norm_act
from ..common.tiles import (
    INTERPRETED,
    accumulator,
    dense,
    dense_as,
    is_nhwc,
    output_dtype,
    power_of_2,
    processor,
)
from ..norm.instance_norm_act import _check, bytes_moved, gradients, instance_norm_act_reference
from ..norm.instance_norm_act_planes import shared_bytes
from ..pointwise.noise import noise_stride
from .build import Flags, Unavailable, library
from .calls import DTYPES, call

__all__ = ["bytes_moved", "instance_norm_act", "instance_norm_act_reference"]

DEFAULT = Flags()
NARROW = 256  # threads of the kernels for channels_last memory, at most
PAIRED = 512  # threads of each of two blocks on a multiprocessor
LONGEST = 1 << 30  # pixels of a map
_said: set[str] = set()


def instance_norm_act(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    eps: float = 1e-5,
    slope: float = 0.2,
    gain: float | None = None,
    threads: int | None = None,
    flags: Flags = DEFAULT,
) -> Tensor:
    """Compute `kernels.instance_norm_act` in CUDA C++. Arguments, result, dtypes, memory formats and derivatives are
    equal.

    If the kernels cannot be built, or x is no CUDA tensor, a warning says so once. Triton's kernel then computes in
    their place, or the reference where Triton cannot run either.

    Args:
        threads: the block's size, a multiple of 32 up to 1024 (256 in channels_last memory); None: by the map's size.
        flags: the build, `Flags(fast_math=True)` for instance.
    """
    _check(x, scale, bias, noise, strength, eps, slope, gain)
    gain = math.sqrt(2) if gain is None else float(gain)
    if reason := _unavailable(x, flags):
        triton = (x.is_cuda or INTERPRETED) and available() is None
        _say(reason, "Triton's kernel" if triton else "the plain PyTorch reference")
        by = triton_instance_norm_act if triton else instance_norm_act_reference
        return by(x, scale, bias, noise=noise, strength=strength, eps=eps, slope=slope, gain=gain)
    wide, dtype = accumulator(x.dtype), output_dtype(x)
    if x.dtype not in (dtype, torch.float32):  # one 16-bit type under the other's autocast
        x = x.float()
    if noise is not None:
        # Gradients of noise are for projection: rare, so plain ops suffice.
        if noise.requires_grad and torch.is_grad_enabled():
            x, noise, strength = x + (noise * strength).to(x.dtype), None, None
        else:
            noise, strength = noise.to(wide).contiguous(), strength.to(wide).contiguous()
    scale, bias = scale.to(wide).contiguous(), bias.to(wide).contiguous()
    x = dense(x)
    _check_sizes(x, threads, flags)
    how = (float(eps), float(slope), gain, dtype, threads, flags)
    return _InstanceNormAct.apply(x, scale, bias, noise, strength, *how)


def _unavailable(x: Tensor, flags: Flags) -> str | None:
    if not x.is_cuda:
        return f"CUDA C++ needs a CUDA tensor, got one on {x.device}"
    return _not_built(flags, x.device.index)


@functools.cache  # every call asks
def _not_built(flags: Flags, device: int) -> str | None:
    try:
        library(flags, device)
    except Unavailable as error:
        return str(error)
    return None


def _say(reason: str, instead: str) -> None:
    if reason not in _said:
        _said.add(reason)
        warnings.warn(f"{reason}; {instead} computes instance_norm_act in its place", stacklevel=3)


def _check_sizes(x: Tensor, threads: int | None, flags: Flags) -> None:
    most = min(flags.max_threads, NARROW) if is_nhwc(x) else flags.max_threads
    if threads is not None and (threads % 32 or not 32 <= threads <= most):
        raise ValueError(f"threads must be a multiple of 32 from 32 to {most}, got {threads}")
    n, c, h, w = x.shape
    if h * w > LONGEST or (is_nhwc(x) and n > 65535) or n * c >= 1 << 31:
        raise ValueError(f"x {tuple(x.shape)} is larger than these kernels can count")


# ---- launches ----------------------------------------------------------------------------------------------------


def _vector(extent: int, x: Tensor, *others: Tensor | None) -> int:
    """Return 1 if accesses of 16 bytes along `extent` elements of x never straddle anything, else 0."""
    aligned = all(t is None or t.data_ptr() % 16 == 0 for t in (x, *others))
    return int(aligned and extent % (16 // x.element_size()) == 0)


def _threads(threads: int | None, x: Tensor, vector: int, flags: Flags, *, pairs: bool = False) -> int:
    """Return a block's size for one plane: eight accesses for each thread, one warp at least.

    pairs: two blocks share a multiprocessor if each then still keeps three quarters of its plane. One reads while the
    other writes. That takes 308 us where one block takes 352 (8x512x256x256, BF16, H200: block sizes of the claims).
    """
    if threads is not None:
        return threads
    pixels, size = x.shape[2] * x.shape[3], x.element_size()
    accesses = pixels // (16 // size if vector else 1)
    most = PAIRED if pairs and 3 * pixels * size <= 2 * shared_bytes(x.device) else flags.max_threads
    return min(max(-(-accesses // 8 // 32) * 32, 32), most, flags.max_threads)


def _columns(x: Tensor, vector: int, threads: int | None, flags: Flags) -> tuple[int, int, int, int]:
    """Return lanes, pixels of a chunk for sums and for a pass that only writes, and threads, in
    channels_last memory.
    """
    n, c, h, w = x.shape
    threads = min(flags.max_threads, NARROW) if threads is None else threads
    accesses = -(-c // (16 // x.element_size() if vector else 1))
    lanes = min(32, power_of_2(accesses))
    groups, rows = -(-accesses // lanes), threads // lanes
    # Chunks, so that each multiprocessor has some blocks
    wanted = max(1, processor(x.device)[1] * 8 // (n * groups))
    chunks = min(wanted, max(1, h * w // (rows * 2)))
    return lanes, -(-h * w // chunks), rows * 16, threads


def forward(x, scale, bias, noise, strength, eps, slope, gain, dtype, threads, flags: Flags):
    """Return y, and the mean and rstd [N, C] of each map, for dense tensors."""
    n, c, h, w = x.shape
    y = torch.empty_like(x, dtype=dtype)
    mean, rstd = x.new_empty((2, n, c), dtype=accumulator(x.dtype))
    if not x.numel():
        return y, mean, rstd
    layer, codes = (noise, strength, scale, bias, noise_stride(noise)), (DTYPES[x.dtype], DTYPES[dtype])
    if not is_nhwc(x):
        vector = _vector(h * w, x, y, noise)
        sizes = (n, c, h * w, vector, _threads(threads, x, vector, flags, pairs=True))
        call("planes_forward", flags, x.device, x, y, mean, rstd, *layer, eps, slope, gain, *sizes, *codes)
        return y, mean, rstd
    vector = _vector(c, x, y, scale, bias)
    lanes, summed, written, threads = _columns(x, vector, threads, flags)
    means, m2s = x.new_empty((2, n, c, -(-h * w // summed)), dtype=mean.dtype)
    first = (noise, strength, layer[-1], eps, n, c, h * w, vector, lanes, summed, threads, codes[0])
    call("pixels_moments", flags, x.device, x, means, m2s, mean, rstd, *first)
    second = (*layer, slope, gain, n, c, h * w, vector, lanes, written, threads, *codes)
    call("pixels_forward", flags, x.device, x, y, mean, rstd, *second)
    return y, mean, rstd


def backward(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs, *, threads, flags: Flags):
    """Return (dx, dscale, dbias, dstrength) for the gradient g of y. dx and dstrength are None unless `needs` asks for
    them.
    """
    n, c, h, w = x.shape
    g = dense_as(g, is_nhwc(x))
    dx = torch.empty_like(x) if needs[0] else None
    if not x.numel():
        none = torch.zeros_like(mean)
        return dx, none, none.clone(), torch.zeros_like(strength) if needs[3] else None
    dscale, dbias = torch.empty_like(mean), torch.empty_like(mean)
    layer = (noise, strength, scale, bias, noise_stride(noise), slope, gain)
    codes = (DTYPES[x.dtype], DTYPES[g.dtype])
    if not is_nhwc(x):
        vector = _vector(h * w, x, g, noise)
        sizes = (n, c, h * w, vector, _threads(threads, x, vector, flags))
        partial = torch.empty_like(mean) if needs[3] else None
        pointers = (g, x, mean, rstd, dx, dscale, dbias, partial)
        call("planes_backward", flags, x.device, *pointers, *layer, *sizes, *codes)
    else:
        vector = _vector(c, x, g, scale, bias)
        lanes, summed, written, threads = _columns(x, vector, threads, flags)
        sums = x.new_empty((2, n, c, -(-h * w // summed)), dtype=mean.dtype)
        numbers = (n, c, h * w, vector, lanes)
        pointers = (g, x, mean, rstd, sums, dscale, dbias)
        call("pixels_sums", flags, x.device, *pointers, *layer, *numbers, summed, threads, *codes)
        groups = -(-c // (lanes * (16 // x.element_size() if vector else 1)))
        partial = mean.new_empty((n, groups, -(-h * w // written))) if needs[3] else None
        if needs[0] or needs[3]:
            pointers = (g, x, mean, rstd, dscale, dbias, dx, partial)
            call("pixels_backward", flags, x.device, *pointers, *layer, *numbers, written, threads, *codes)
    return dx, dscale, dbias, partial.sum().view_as(strength) if needs[3] else None


class _InstanceNormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, bias, noise, strength, eps, slope, gain, dtype, threads, flags):
        y, mean, rstd = forward(x, scale, bias, noise, strength, eps, slope, gain, dtype, threads, flags)
        ctx.save_for_backward(x, scale, bias, noise, strength, mean, rstd)
        ctx.constants = (slope, gain)
        ctx.how = {"threads": threads, "flags": flags}
        return y

    @staticmethod
    def backward(ctx, g):
        return *gradients(ctx, g, functools.partial(backward, **ctx.how)), *(None,) * 6
