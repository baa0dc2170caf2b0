"""`instance_norm_act` of large NCHW maps: a program reads a plane, then reads it again while the L2 cache still has it.

Triton has nowhere to keep a plane of 256 x 256 between its statistics and their use, as a block of CUDA C++ has in
shared memory. But a GPU's L2 cache holds a plane or two for each multiprocessor. So no more programs run than it has
room for, each takes one plane after another, and of the two times that a plane is read one crosses memory.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.instance_norm_act_kernels import instance_norm_grad, noisy, normalized_act, normalized_act_grad
from kernels.noise import noise_stride
from kernels.tiles import LONGEST, accumulator, is_nhwc, load, processor, store, tl, tl_accumulator, triton

# Of one program on a multiprocessor, and of each of two, which is better where the cache has room: while one of them
# adds up its threads' sums, the other loads. 16 numbers a thread are two accesses of 16 bytes, or four.
BLOCKS, WARPS, STAGES = (8192, 4096), (16, 8), 3
SHARE = 0.6  # of the L2 cache for planes that will be read again; what is written passes through it, too
LEAST_PIXELS = 1024  # smaller planes are walked over in tiles of several


class Walk(NamedTuple):
    """How the planes are covered."""

    programs: int  # each takes every so-manyeth plane
    block: int  # pixels at a time
    warps: int


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["planes"])
def instance_norm_act_planes_kernel(
    x, noise, strength, scale, bias, mean, rstd, y, eps, planes, C, P, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y, and mean and rstd of each plane of u = x + noise * strength. Only the last block of a plane may be partial."""
    i = tl.arange(0, BLOCK)
    k = tl.load(strength).to(ACC) if strength is not None else None
    seen = tl.maximum((P - i + BLOCK - 1) // BLOCK, 0).to(ACC)  # numbers at each position
    for plane in tl.range(tl.program_id(0), planes, tl.num_programs(0)):
        at, e_at = P.to(tl.int64) * plane, noise_stride.to(tl.int64) * (plane // C)
        means, m2 = tl.zeros([BLOCK], ACC), tl.zeros([BLOCK], ACC)
        origin = tl.load(x + at).to(ACC)  # moments as seen from there: a mean far from zero costs no digits
        if noise is not None:
            origin += tl.load(noise + e_at).to(ACC) * k
        for p in tl.range(0, P, BLOCK, num_stages=STAGES):
            inside = i < P - p
            e = load(noise + e_at + p + i, inside, WHOLE, ACC) if noise is not None else None
            u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC) - origin
            delta = tl.where(inside, u - means, 0.0)  # Welford's running moments
            means += delta * (tl.full([], 1.0, ACC) / (p // BLOCK + 1))
            m2 += tl.where(inside, delta * (u - means), 0.0)
        mu = tl.sum(seen * means, 0) / P
        r = 1 / tl.sqrt(tl.sum(m2 + seen * (means - mu) * (means - mu), 0) / P + eps)
        mu += origin
        tl.store(mean + plane, mu)
        tl.store(rstd + plane, r)
        s, b = tl.load(scale + plane).to(ACC), tl.load(bias + plane).to(ACC)
        for p in tl.range(0, P, BLOCK, num_stages=STAGES):
            inside = i < P - p
            e = load(noise + e_at + p + i, inside, WHOLE, ACC) if noise is not None else None
            u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC)
            store(y + at + p + i, normalized_act(u, mu, r, s, b, SLOPE, GAIN), inside, WHOLE)


@triton.jit(do_not_specialize=["planes"])
def instance_norm_act_planes_grad_kernel(
    g, x, noise, strength, scale, bias, mean, rstd, dz_h_sum, dz_sum, dx, dstrength, planes, C, P, noise_stride,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums over each plane that are dscale and dbias, then dx and each plane's part of dstrength, where wanted."""
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
            u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC)
            dz = load(g + at + p + i, inside, WHOLE, ACC)
            dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
            sum_dz += dz
            sum_dz_h += tl.where(inside, dz * h, 0.0)
        of_dz, of_dz_h = tl.sum(sum_dz, 0), tl.sum(sum_dz_h, 0)
        tl.store(dz_sum + plane, of_dz)
        tl.store(dz_h_sum + plane, of_dz_h)
        if dx is not None or dstrength is not None:
            sum_du_noise = tl.zeros([BLOCK], ACC)
            for p in tl.range(0, P, BLOCK, num_stages=STAGES):
                inside = i < P - p
                e = load(noise + e_at + p + i, inside, WHOLE, ACC) if noise is not None else None
                u = noisy(x + at + p + i, e, k, inside, WHOLE, ACC)
                dz = load(g + at + p + i, inside, WHOLE, ACC)
                dz, h = normalized_act_grad(dz, u, mu, r, s, b, SLOPE, GAIN)
                du = instance_norm_grad(dz, h, r, s, of_dz / P, of_dz_h / P)
                if dx is not None:
                    store(dx + at + p + i, du, inside, WHOLE)
                if dstrength is not None:
                    sum_du_noise += tl.where(inside, du * e, 0.0)
            if dstrength is not None:
                tl.store(dstrength + plane, tl.sum(sum_du_noise, 0))


# ---- launches ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def shared_bytes(device: torch.device) -> int:
    """Shared memory that one program may use; an H200's where there is no GPU."""
    if device.type != "cuda":
        return 227 << 10
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10)


@lru_cache(maxsize=64)
def cache_bytes(device: torch.device) -> int:
    """Size of a GPU's L2 cache; an H200's where there is no GPU, as in `tiles.processor`."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 60 << 20


def walk(x: Tensor, tensors: int = 1) -> Walk | None:
    """How to walk over the planes of x where each program reads those of `tensors` tensors twice.

    None where it is not the way: channels_last, small planes, too few of them to keep a GPU busy, or too large for its
    L2 cache.
    """
    planes, pixels = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    processors = processor(x.device)[1]
    if is_nhwc(x) or not LEAST_PIXELS <= pixels < LONGEST or planes < 2 * processors:
        return None
    room = int(SHARE * cache_bytes(x.device) // (processors * pixels * x.element_size() * tensors))
    if not room:
        return None
    each = min(room, len(BLOCKS))
    return Walk(min(planes, processors * each), BLOCKS[each - 1], WARPS[each - 1])


def stages(block: int, whole: bool, pixel_bytes: int, device: torch.device) -> int:
    """Of the pipeline: all but one of them hold a block of what is loaded in shared memory, `pixel_bytes` a pixel."""
    scratch = 0 if whole else 2 * block  # where blocks are not aligned, to hand masks over between threads
    return max(1, min(STAGES, 1 + (shared_bytes(device) - scratch) // (block * pixel_bytes)))


def _launch(kernel, how: Walk, x: Tensor, noise: Tensor | None, *arguments, g=None, **constants) -> None:
    pixels = x.shape[2] * x.shape[3]
    whole, read = pixels % how.block == 0, sum(t.element_size() for t in (x, noise, g) if t is not None)
    double = x.dtype is torch.float64  # for checks only
    ahead = 1 if double else stages(how.block, whole, read, x.device)
    kernel[(how.programs,)](
        *arguments, x.shape[0] * x.shape[1], x.shape[1], pixels, noise_stride(noise), ACC=tl_accumulator(x.dtype),
        WHOLE=whole, STAGES=ahead, BLOCK=how.block, num_warps=how.warps, **constants,
    )  # fmt: skip


def forward(
    x, scale, bias, noise, strength, eps: float, slope: float, gain: float, dtype: torch.dtype, how: Walk
):
    """y, mean and rstd [N, C] of a contiguous x."""
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
    """dx and dstrength (None where not needed), and the sums of dz * h and of dz, [2, N, C]; g and x are contiguous."""
    dx = torch.empty_like(x) if needs[0] else None
    sums = x.new_empty((2, *x.shape[:2]), dtype=accumulator(x.dtype))
    parts = torch.empty_like(sums[0]) if needs[3] else None
    arguments = (g, x, noise, strength, scale, bias, mean, rstd, *sums, dx, parts)
    _launch(instance_norm_act_planes_grad_kernel, how, x, noise, *arguments, g=g, SLOPE=slope, GAIN=gain)
    return dx, None if parts is None else parts.sum().reshape(strength.shape).to(strength.dtype), sums
