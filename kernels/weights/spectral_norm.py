"""Spectral normalization W / sigma(W) of several layers, and the power iteration behind it, each in two launches.

It is Miyato et al. 2018 (arXiv:1802.05957). sigma is the largest singular value of a weight as a matrix [O, the rest].
Vectors u and v beside the weight estimate it. They follow the weight by one step of the power iteration at a time:

- power_iteration, in place: u = W v / |W v|, v = W^T u / |W^T u|
- spectral_norm: gain * W / sigma with sigma = u^T W v
- its gradient: dW = gain / sigma * (g - <g, W> / sigma * u v^T)

u and v count as constants in the gradient. In plain PyTorch a layer is a dozen launches on a few megabytes, and layers
come one after another. Here all layers of a discriminator go side by side. Rows are summed in one launch. Work that
needs the sum over all rows is in the next launch. The result may be written in the dtype that a convolution reads.
Differentiated twice, the gradient is plain PyTorch's.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.arguments import check_dtype, check_numbers, check_once, check_tensors, each
from ..common.launches import launch_grid
from ..common.tiles import (
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    output_dtype,
    power_of_2,
    tl_accumulator,
    without_autocast,
)
from .spectral_norm_kernels import (
    spectral_columns_kernel,
    spectral_grad_kernel,
    spectral_products_kernel,
    spectral_rows_kernel,
    spectral_scale_kernel,
)

EPS = 1e-12  # no vector is divided by less


def spectral_norm(
    weights: Sequence[Tensor],
    us: Sequence[Tensor],
    vs: Sequence[Tensor],
    *,
    gains: Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Compute [gain * W / sigma, ...] with sigma = u^T W v, fused. Differentiable twice by the weights.

    Args:
        weights: [O, I, kh, kw] (contiguous or channels_last, kept) or [O, ...], of one dtype: float16, bfloat16,
            float32 or float64.
        us: [O] each, constants.
        vs: [the product of the other sizes] each, in the order of a contiguous weight, constants.
        gains: factors on the results; 1 unless given.
        dtype: dtype of the results; the weights' (autocast's dtype under autocast) unless given.

    Sums are kept in float32 (float64 for float64).
    Raises ValueError for what does not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    gains = _check(weights, us, vs, gains, dtype)
    if torch.compiler.is_compiling():  # The compiler fuses small operations by itself.
        return spectral_norm_reference(weights, us, vs, gains=gains, dtype=dtype)
    check_device(weights[0])
    weights = [dense(w) for w in weights]
    call = Call(gains, dtype or output_dtype(weights[0]))
    vectors = (t.detach().contiguous() for t in (*us, *vs))
    return list(_SpectralNorm.apply(*weights, *vectors, call))


def spectral_norm_reference(
    weights: Sequence[Tensor],
    us: Sequence[Tensor],
    vs: Sequence[Tensor],
    *,
    gains: Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Compute `spectral_norm` in plain PyTorch. Arguments, result dtype and memory format as `spectral_norm`."""
    gains = _check(weights, us, vs, gains, dtype)
    dtype, acc = dtype or output_dtype(weights[0]), accumulator(weights[0].dtype)
    found = []
    with without_autocast(weights[0]):
        for weight, u, v, gain in zip(weights, us, vs, gains, strict=True):
            w = dense(weight).to(acc)
            sigma = torch.vdot(u.detach().to(acc), torch.mv(w.flatten(1), v.detach().to(acc)))
            y = w / sigma
            found.append((y if gain == 1 else y * gain).to(dtype))
    return found


@torch.no_grad()
def power_iteration(weights: Sequence[Tensor], us: Sequence[Tensor], vs: Sequence[Tensor]) -> None:
    """Take one step for each layer, fused. Contiguous u and v are written in place. Raises as `spectral_norm`."""
    _check(weights, us, vs, None)
    if not all(t.is_contiguous() for t in (*us, *vs)):
        raise ValueError("u and v are written in place: they must be contiguous")
    if torch.compiler.is_compiling():
        return power_iteration_reference(weights, us, vs)
    check_device(weights[0])
    weights = tuple(dense(w) for w in weights)
    acc, cover = accumulator(weights[0].dtype), _cover(_layers(weights))
    t, arrived = _rows(weights, vs, cover, counters=True)
    s = weights[0].new_empty((cover.s_total,), dtype=acc)
    # Without fused products: Triton 3.6 joins a square with a neighbour's sum, and each lane then has another number.
    launch_grid(
        spectral_columns_kernel,
        (cover.s_jobs,),
        (weights, tuple(us), tuple(vs), t, s, arrived, EPS),
        ACC=tl_accumulator(acc),
        enable_fp_fusion=False,
        **cover.columns,
    )
    # A backward pass that still needs the old vectors must fail.
    torch.autograd.graph.increment_version([*us, *vs])


@torch.no_grad()
def power_iteration_reference(weights: Sequence[Tensor], us: Sequence[Tensor], vs: Sequence[Tensor]) -> None:
    """Take the steps of `power_iteration` in plain PyTorch. Arguments as `power_iteration`."""
    _check(weights, us, vs, None)
    acc = accumulator(weights[0].dtype)
    with without_autocast(weights[0]):
        for weight, u, v in zip(weights, us, vs, strict=True):
            w = weight.to(acc).flatten(1)
            wide = F.normalize(torch.mv(w, v.to(acc)), dim=0, eps=EPS)
            v.copy_(F.normalize(torch.mv(w.t(), wide), dim=0, eps=EPS))
            u.copy_(wide)


def bytes_moved(weights: Sequence[Tensor], outs: Sequence[Tensor], *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: each weight in, the result out; backward: gradient and weight in, dW
    out.

    The weight is read twice, for sigma and for the quotient. A layer's weight fits into the cache in between.
    """
    inputs, results = sum(w.nbytes for w in weights), sum(y.nbytes for y in outs)
    return 2 * inputs + results if backward else inputs + results


class Call(NamedTuple):
    gains: tuple[float, ...]
    dtype: torch.dtype


@check_once
def _check(weights, us, vs, gains, dtype=None) -> tuple[float, ...]:
    """Validate the arguments, and return the gains."""
    check_tensors(each("weights", weights) | each("us", us) | each("vs", vs))
    check_dtype(dtype)
    shapes = [tuple(w.shape) for w in weights]
    vectors = [(tuple(u.shape), tuple(v.shape)) for u, v in zip(us, vs, strict=False)]
    wanted = [((w.shape[0],), (w[0].numel(),)) for w in weights if w.dim() > 1 and w.numel()]
    if not shapes or not len(shapes) == len(us) == len(vs) or vectors != wanted:
        raise ValueError(
            f"need weights [O, ...] of some size, u [O] and v [rest], got {shapes} and {vectors}"
        )
    if len({w.dtype for w in weights}) > 1:
        raise ValueError(f"weights must be of one float dtype, got {[str(w.dtype) for w in weights]}")
    named = each("gains", (1.0,) * len(shapes) if gains is None else gains)
    check_numbers(**named)
    gains = tuple(map(float, named.values()))
    if len(gains) != len(shapes):
        raise ValueError(f"need a gain for each of {len(shapes)} weights, got {len(gains)}")
    return gains


def _is_nhwc(w: Tensor) -> bool:
    return w.dim() == 4 and not w.is_contiguous() and is_nhwc(w)


# ---- launches ----------------------------------------------------------------------------------------------------


class Cover(NamedTuple):
    """The cut of layers into programs, for rows (`jobs`) and for columns (`s_jobs`), with the kernels' constants."""

    jobs: int
    total: int  # numbers in t and in d, one for each row
    s_jobs: int
    s_total: int  # numbers in s, one for each column
    rows: dict
    columns: dict


Layers = tuple[tuple[int, int, int, int], ...]  # O, columns, A and B (see `column_at`) of each


def _layers(weights: Sequence[Tensor]) -> Layers:
    found = []
    for w in weights:
        columns = w[0].numel()
        order = (w.shape[1], columns // w.shape[1]) if _is_nhwc(w) else (columns, 1)
        found.append((w.shape[0], columns, *order))
    return tuple(found)


@lru_cache(maxsize=64)
def _cover(layers: Layers) -> Cover:
    outs, columns, a, b = zip(*layers, strict=True)
    block_o, block_k = min(power_of_2(max(outs)), 4), min(power_of_2(max(columns)), 512)
    s_block_o, s_block_k = min(power_of_2(max(outs)), 32), min(power_of_2(max(columns)), 64)
    programs = tuple(-(-k // s_block_k) for k in columns)
    *first, jobs = accumulate((-(-o // block_o) for o in outs), initial=0)
    *s_first, s_jobs = accumulate(programs, initial=0)
    *base, total = accumulate((-(-o // 4) * 4 for o in outs), initial=0)  # so that loads are vectors
    *s_base, s_total = accumulate((-(-k // 4) * 4 for k in columns), initial=0)
    both = {"OUTS": outs, "COLUMNS": columns, "BASE": tuple(base), "NUMBER": tuple(range(len(layers)))}
    both |= {"A": a, "B": b, "num_warps": 4}
    rows = {"FIRST": tuple(first), "BLOCK_O": block_o, "BLOCK_K": block_k}
    across = {"FIRST": tuple(s_first), "PROGRAMS": programs, "S_BASE": tuple(s_base)}
    across |= {"BLOCK_O": s_block_o, "BLOCK_K": s_block_k, "BLOCK_V": min(power_of_2(max(columns)), 1024)}
    return Cover(jobs, total, s_jobs, s_total, both | rows, both | across)


def _of(cover: Cover, *names: str) -> dict:
    """Return these constants of the rows' kernels, and the constants that all of them take."""
    always = ("FIRST", "OUTS", "COLUMNS", "BASE", "BLOCK_O", "BLOCK_K", "num_warps")
    return {name: cover.rows[name] for name in (*always, *names)}


def _block_v(cover: Cover) -> int:
    return min(power_of_2(max(cover.rows["OUTS"])), 512)


def _rows(weights, vs, cover: Cover, counters: bool = False) -> tuple[Tensor, Tensor | None]:
    """Compute t = W v of all layers in one buffer. If asked for, also return zeroed counters for the next launch."""
    acc = accumulator(weights[0].dtype)
    t = weights[0].new_empty((cover.total,), dtype=acc)
    arrived = weights[0].new_empty((len(weights),), dtype=torch.int32) if counters else None
    constants = _of(cover, "A", "B", "NUMBER")
    launch_grid(
        spectral_rows_kernel,
        (cover.jobs,),
        (tuple(weights), tuple(vs), t, arrived),
        ACC=tl_accumulator(acc),
        **constants,
    )
    return t, arrived


def forward(weights, us, vs, call: Call) -> tuple[list[Tensor], Tensor]:
    """Return the results, and sigma [layers]."""
    acc, cover = accumulator(weights[0].dtype), _cover(_layers(weights))
    t, _ = _rows(weights, vs, cover)
    outs = [torch.empty_like(w, dtype=call.dtype) for w in weights]
    sigmas = weights[0].new_empty((len(weights),), dtype=acc)
    launch_grid(
        spectral_scale_kernel,
        (cover.jobs,),
        (tuple(weights), tuple(us), t, tuple(outs), sigmas),
        GAINS=call.gains,
        ACC=tl_accumulator(acc),
        BLOCK_V=_block_v(cover),
        **_of(cover, "NUMBER"),
    )
    return outs, sigmas


def backward(gs, weights, us, vs, sigmas, call: Call) -> list[Tensor]:
    """Return dW of each layer."""
    acc, cover = accumulator(weights[0].dtype), _cover(_layers(weights))
    gs = tuple(_like(g, w) for g, w in zip(gs, weights, strict=True))
    d = weights[0].new_empty((cover.total,), dtype=acc)
    launch_grid(
        spectral_products_kernel,
        (cover.jobs,),
        (tuple(weights), gs, d),
        ACC=tl_accumulator(acc),
        **_of(cover),
    )
    found = [torch.empty_like(w) for w in weights]
    launch_grid(
        spectral_grad_kernel,
        (cover.jobs,),
        (gs, tuple(us), tuple(vs), d, sigmas, tuple(found)),
        GAINS=call.gains,
        ACC=tl_accumulator(acc),
        BLOCK_V=_block_v(cover),
        **_of(cover, "A", "B", "NUMBER"),
    )
    return found


def _like(g: Tensor, w: Tensor) -> Tensor:
    """Return g in the memory format of w."""
    return dense_as(g, _is_nhwc(w)) if g.dim() == 4 else g.contiguous()


# ---- autograd ----------------------------------------------------------------------------------------------------


class _SpectralNorm(torch.autograd.Function):
    """The op as a Function. Its inputs are all weights, all u, all v, the call."""

    @staticmethod
    def forward(ctx, *inputs):
        *tensors, call = inputs
        layers = len(call.gains)
        parts = [tensors[k * layers : (k + 1) * layers] for k in range(3)]
        outs, sigmas = forward(*parts, call)
        ctx.save_for_backward(*tensors, sigmas)
        ctx.call = call
        return tuple(outs)

    @staticmethod
    def backward(ctx, *gs):
        *tensors, sigmas = ctx.saved_tensors
        layers, call = len(gs), ctx.call
        parts = [tensors[k * layers : (k + 1) * layers] for k in range(3)]
        if torch.is_grad_enabled():
            found = [_gradient(*each) for each in zip(gs, *parts, call.gains, strict=True)]
        else:
            found = backward(gs, *parts, sigmas, call)
        return *found, *[None] * (2 * layers + 1)


def _gradient(g: Tensor, weight: Tensor, u: Tensor, v: Tensor, gain: float) -> Tensor:
    """Compute the result of `spectral_grad_kernel` by operations that autograd can differentiate."""
    acc = accumulator(weight.dtype)
    with without_autocast(weight):
        g, w, u, v = (t.to(acc) for t in (g, weight, u, v))
        sigma = torch.vdot(u, torch.mv(w.flatten(1), v))
        along = (g * w).sum() / sigma * torch.outer(u, v).view(w.shape)
        return ((g - along) * (gain / sigma)).to(weight.dtype)
