"""The op `instance_norm_act` for large NCHW maps. A program reads a plane twice, the second time from the L2 cache.

Triton has no place to keep a plane of 256 x 256 between its statistics and their use. A block of CUDA C++ keeps it in
shared memory. But a GPU's L2 cache holds a plane or two for each multiprocessor. So only as many programs run as the
cache has room for, and each takes one plane after another. One of the two reads of a plane then crosses memory.

Written values pass through that cache, too, and push out values that will be read again. So the cache must have room
for the written plane as well, and stores are marked as the first to be dropped (`hints`). Reads can be marked only
where they are not fetched ahead: Triton's `cp.async` carries no mark (`tests/kernels/test_kernels_planes_hints.py`
reads the PTX).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import choices
from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.tiles import (
    LONGEST,
    accumulator,
    is_nhwc,
    load,
    processor,
    store,
    tl,
    tl_accumulator,
    triton,
)
from ..pointwise.noise import noise_stride
from .instance_norm_act_kernels import (
    instance_norm_grad,
    noisy,
    normalized_act,
    normalized_act_grad,
)

LEAST_PIXELS = 1024  # smaller planes are walked over in tiles of several


class Config(NamedTuple):
    """The way that programs walk over planes. `python -m kernels.tuning.planes` times others."""

    per_sm: float  # programs for each multiprocessor
    block: int  # pixels at a time
    warps: int
    stages: int = 3  # stages of the pipeline for the first read: all but one hold a block in shared memory
    again: int = 3  # stages for the second read
    hints: bool = False  # mark loads to be kept in the L2 cache, and stores as the first to go
    back: bool = False  # read again from the end, which the cache is most likely to hold


class Walk(NamedTuple):
    """The launch that covers the planes of one tensor."""

    programs: int  # programs; each takes every so-manyeth plane
    block: int
    warps: int
    stages: int = 3
    again: int = 3
    hints: bool = False
    back: bool = False


# By the share of the L2 cache that one plane for each multiprocessor takes, of every tensor read or written. The first
# row that allows so much counts. Two programs take half of the cache at most: one loads while the other adds up its
# threads' sums. At 1.1 of the cache, 83% of the second reads missed. One program may take more than the whole cache,
# because it beats a third pass even if some reads miss (docs/log.md). If the second read goes backwards, only what was
# read first misses. 16 numbers a thread are two accesses of 16 bytes, or four. Marks stand only where planes push each
# other out: written values may be read soon. The rows with marks were found by `kernels.tuning.planes` on an H200.
CONFIGS: tuple[tuple[float, Config | None], ...] = (
    (0.25, Config(2, 4096, 8)),
    (0.56, Config(2, 4096, 16, stages=3, again=1, hints=True, back=True)),
    (0.83, Config(1, 16384, 32, stages=1, again=1, hints=True, back=True)),
    (1.2, Config(1, 8192, 16, stages=1, again=1, hints=True, back=True)),
    (1.7, Config(1, 8192, 32, stages=1, again=1, hints=True, back=True)),
)
_forced: list[Config | None] = []


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["planes"])
def instance_norm_act_planes_kernel(
    x, noise, strength, scale, bias, mean, rstd, y, eps, planes, C, P, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    AGAIN: tl.constexpr, HINTS: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write y, and mean and rstd of each plane of u = x + noise * strength. Only the last block of
    a plane may be partial.
    """
    after_previous(DEPENDENT)
    KEEP: tl.constexpr = "evict_last" if HINTS else None
    DROP: tl.constexpr = "evict_first" if HINTS else None
    i = tl.arange(0, BLOCK)
    k = tl.load(strength).to(ACC) if strength is not None else None
    seen = tl.maximum((P - i + BLOCK - 1) // BLOCK, 0).to(ACC)  # numbers at each position
    for plane in tl.range(tl.program_id(0), planes, tl.num_programs(0)):
        at, e_at = P.to(tl.int64) * plane, noise_stride.to(tl.int64) * (plane // C)
        means, m2 = tl.zeros([BLOCK], ACC), tl.zeros([BLOCK], ACC)
        # Moments relative to the first values: a mean far from zero costs no digits.
        origin = tl.load(x + at).to(ACC)
        if noise is not None:
            origin += tl.load(noise + e_at).to(ACC) * k
        for p in tl.range(0, P, BLOCK, num_stages=STAGES):
            inside = i < P - p
            e = load(noise + e_at + p + i, inside, WHOLE, ACC) if noise is not None else None
            u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC, KEEP) - origin
            delta = tl.where(inside, u - means, 0.0)  # Welford's running moments
            means += delta * (tl.full([], 1.0, ACC) / (p // BLOCK + 1))
            m2 += tl.where(inside, delta * (u - means), 0.0)
        mu = tl.sum(seen * means, 0) / P
        r = 1 / tl.sqrt(tl.sum(m2 + seen * (means - mu) * (means - mu), 0) / P + eps)
        mu += origin
        tl.store(mean + plane, mu)
        tl.store(rstd + plane, r)
        s, b = tl.load(scale + plane).to(ACC), tl.load(bias + plane).to(ACC)
        for q in tl.range(0, P, BLOCK, num_stages=AGAIN):
            p = (P - 1) // BLOCK * BLOCK - q if BACK else q
            inside = i < P - p
            e = load(noise + e_at + p + i, inside, WHOLE, ACC) if noise is not None else None
            u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC, DROP)
            store(y + at + p + i, normalized_act(u, mu, r, s, b, SLOPE, GAIN), inside, WHOLE, DROP)


@triton.jit(do_not_specialize=["planes"])
def instance_norm_act_planes_grad_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, dz_h_sum, dz_sum, dx, dstrength, planes, C, P, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    AGAIN: tl.constexpr, HINTS: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write the sums over each plane that are dscale and dbias, then dx and each plane's part of
    dstrength, where wanted.
    """
    after_previous(DEPENDENT)
    TWICE: tl.constexpr = dx is not None or dstrength is not None
    KEEP: tl.constexpr = "evict_last" if HINTS and TWICE else None
    DROP: tl.constexpr = "evict_first" if HINTS else None
    i = tl.arange(0, BLOCK)
    k = tl.load(strength).to(ACC) if strength is not None else None
    for plane in tl.range(tl.program_id(0), planes, tl.num_programs(0)):
        at, e_at = P.to(tl.int64) * plane, noise_stride.to(tl.int64) * (plane // C)
        mu, r = tl.load(mean + plane), tl.load(rstd + plane)
        s, b = tl.load(scale + plane).to(ACC), tl.load(bias + plane).to(ACC)
        sum_dz, sum_dz_h = tl.zeros([BLOCK], ACC), tl.zeros([BLOCK], ACC)
        for p in tl.range(0, P, BLOCK, num_stages=STAGES):
            inside = i < P - p
            e = load(noise + e_at + p + i, inside, WHOLE, ACC) if noise is not None else None
            u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC, KEEP)
            dz = load(g + at + p + i, inside, WHOLE, ACC, KEEP)
            dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
            sum_dz += dz
            sum_dz_h += tl.where(inside, dz * h, 0.0)
        of_dz, of_dz_h = tl.sum(sum_dz, 0), tl.sum(sum_dz_h, 0)
        tl.store(dz_sum + plane, of_dz)
        tl.store(dz_h_sum + plane, of_dz_h)
        if TWICE:
            sum_du_noise = tl.zeros([BLOCK], ACC)
            for q in tl.range(0, P, BLOCK, num_stages=AGAIN):
                p = (P - 1) // BLOCK * BLOCK - q if BACK else q
                inside = i < P - p
                e = load(noise + e_at + p + i, inside, WHOLE, ACC) if noise is not None else None
                u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC, DROP)
                dz = load(g + at + p + i, inside, WHOLE, ACC, DROP)
                dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
                du = instance_norm_grad(dz, h, r, s, of_dz / P, of_dz_h / P)
                if dx is not None:
                    store(dx + at + p + i, du, inside, WHOLE, DROP)
                if dstrength is not None:
                    sum_du_noise += tl.where(inside, du * e, 0.0)
            if dstrength is not None:
                tl.store(dstrength + plane, tl.sum(sum_du_noise, 0))


# ---- launches ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def shared_bytes(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may use. Without a GPU they are an H200's."""
    if device.type != "cuda":
        return 227 << 10
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10)


@lru_cache(maxsize=64)
def cache_bytes(device: torch.device) -> int:
    """Return the size of a GPU's L2 cache in bytes. Without a GPU it is an H200's, as in `tiles.processor`."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 60 << 20


@contextmanager
def forced(how: Config | None) -> Iterator[None]:
    """Give every call this configuration while entered. With None they take the kernels by tiles. For tuning."""
    _forced.append(how)
    try:
        yield
    finally:
        _forced.pop()


def cache_share(x: Tensor, tensors: int) -> float:
    """Return the share of the L2 cache that one plane for each multiprocessor takes.

    Planes of the `tensors` that are read twice count, and of the one written.
    """
    planes = processor(x.device)[1] * (tensors + 1)
    return planes * x.shape[2] * x.shape[3] * x.element_size() / cache_bytes(x.device)


def config(x: Tensor, tensors: int) -> Config | None:
    """Return the table's configuration, or None where the cache holds too few of the planes of x."""
    if _forced:
        return _forced[-1]
    share = cache_share(x, tensors)
    for most, how in CONFIGS:
        if share <= most:
            choices.note("instance_norm_act planes", f"up to {most} of the L2 cache", how)
            return how
    return None


def walk(x: Tensor, tensors: int = 1) -> Walk | None:
    """Return the walk over the planes of x where each program reads those of `tensors` tensors twice.

    Returns None where another way is better: channels_last memory, small planes, too few planes to keep a GPU busy, or
    planes too large for its L2 cache.
    """
    planes, pixels = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    processors = processor(x.device)[1]
    if is_nhwc(x) or not LEAST_PIXELS <= pixels < LONGEST or planes < 2 * processors:
        return None
    how = config(x, tensors)
    return how and Walk(min(planes, max(1, int(processors * how.per_sm))), *how[1:])


def stages(wanted: int, block: int, whole: bool, pixel_bytes: int, device: torch.device) -> int:
    """Return the stages of the pipeline that fit.

    All but one of them hold a block of loads in shared memory, `pixel_bytes` a pixel.
    """
    # If blocks are not aligned, threads hand masks over to each other through shared memory.
    scratch = 0 if whole else 2 * block
    return max(1, min(wanted, 1 + (shared_bytes(device) - scratch) // (block * pixel_bytes)))


def _launch(kernel, how: Walk, x: Tensor, noise: Tensor | None, *arguments, g=None, **constants) -> None:
    pixels = x.shape[2] * x.shape[3]
    whole, read = pixels % how.block == 0, sum(t.element_size() for t in (x, noise, g) if t is not None)
    double = x.dtype is torch.float64  # for checks only
    first, again = (
        1 if double else stages(wanted, how.block, whole, read, x.device)
        for wanted in (how.stages, how.again)
    )
    launch_grid(
        kernel,
        (how.programs,),
        (*arguments, x.shape[0] * x.shape[1], x.shape[1], pixels, noise_stride(noise)),
        ACC=tl_accumulator(x.dtype),
        WHOLE=whole,
        STAGES=first,
        AGAIN=again,
        HINTS=how.hints,
        BACK=how.back,
        BLOCK=how.block,
        num_warps=how.warps,
        **constants,
    )


def forward(
    x, scale, bias, noise, strength, eps: float, slope: float, gain: float, dtype: torch.dtype, how: Walk
):
    """Return y, mean and rstd [N, C] of a contiguous x."""
    y = torch.empty_like(x, dtype=dtype)
    mean, rstd = x.new_empty((2, *x.shape[:2]), dtype=accumulator(x.dtype))
    arguments = (x, noise, strength, scale, bias, mean, rstd, y, eps)
    _launch(instance_norm_act_planes_kernel, how, x, noise, *arguments, SLOPE=slope, GAIN=gain)
    return y, mean, rstd


def backward(
    g,
    x,
    noise,
    strength,
    scale,
    bias,
    mean,
    rstd,
    slope: float,
    gain: float,
    needs: tuple[bool, ...],
    how: Walk,
):
    """Return dx and dstrength (None where not needed), and the sums [2, N, C] of dz * h and of dz.
    g and x are contiguous.
    """
    dx = torch.empty_like(x) if needs[0] else None
    sums = x.new_empty((2, *x.shape[:2]), dtype=accumulator(x.dtype))
    parts = torch.empty_like(sums[0]) if needs[3] else None
    arguments = (g, x, noise, strength, scale, bias, mean, rstd, *sums, dx, parts)
    _launch(instance_norm_act_planes_grad_kernel, how, x, noise, *arguments, g=g, SLOPE=slope, GAIN=gain)
    return dx, None if parts is None else parts.sum().reshape(strength.shape).to(strength.dtype), sums
