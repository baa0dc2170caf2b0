"""The weights of toRGB for each sample, weight [K, C] * style [N, C]. Both gradients are sums of one launch.

The work is two products and two sums over a few thousand numbers. PyTorch needs four launches for each resolution, and
a launch costs more than the work.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.needed import needed
from ..common.tiles import power_of_2, tl, tl_accumulator, triton
from .dense_kernels import pick

BLOCK_C = 32


def styled(weight: Tensor, style: Tensor) -> Tensor:
    """Compute weight [K, C] * style [N, C] -> [N, K, C], both of one dtype. Differentiable to any order."""
    if torch.compiler.is_compiling():  # The compiler fuses small operations by itself.
        return weight[None] * style[:, None]
    return _Styled.apply(weight.contiguous(), style.contiguous())


@triton.jit
def styled_grad_kernel(
    g, weight, style, dweight, dstyle, N, C, stride_n, stride_k,
    K: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dweight[k, c] = sum over n of g * style and dstyle[n, c] = sum over k of g * weight,
    whichever are given.
    """
    after_previous(DEPENDENT)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    rows = ()
    sums = ()
    for k in tl.static_range(K):
        rows += (tl.load(weight + k * C + c, c < C, 0.0).to(ACC),)
        sums += (tl.zeros([BLOCK_N, BLOCK_C], ACC),)
    for start in range(0, N, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        inside = (n < N) & (c < C)
        s = tl.load(style + n * C + c, inside, 0.0).to(ACC)
        total = tl.zeros([BLOCK_N, BLOCK_C], ACC)
        added = ()
        for k in tl.static_range(K):
            found = tl.load(g + n * stride_n + k * stride_k + c, inside, 0.0).to(ACC)
            total += found * rows[k]
            added += (sums[k] + found * s,)
        sums = added
        if dstyle is not None:
            tl.store(dstyle + n * C + c, total, inside)
    if dweight is not None:
        flat = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
        for k in tl.static_range(K):
            tl.store(dweight + k * C + flat, tl.sum(sums[k], 0), flat < C)


class _Styled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, style):
        ctx.save_for_backward(weight, style)
        ctx.set_materialize_grads(False)
        return weight[None] * style[:, None]

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None
        (weight, style), (needs_weight, needs_style) = ctx.saved_tensors, needed(ctx)
        if torch.is_grad_enabled() or not g.numel():
            dweight = (g * style[:, None]).sum(0) if needs_weight else None
            return dweight, (g * weight).sum(1) if needs_style else None
        n, k, c = g.shape
        g = g if g.stride(2) == 1 else g.contiguous()
        dweight = torch.empty_like(weight) if needs_weight else None
        dstyle = torch.empty_like(style) if needs_style else None
        launch_grid(
            styled_grad_kernel,
            (-(-c // BLOCK_C),),
            (g, weight, style, dweight, dstyle, n, c, g.stride(0), g.stride(1)),
            K=k,
            ACC=tl_accumulator(g.dtype),
            BLOCK_N=min(power_of_2(n), 16),
            BLOCK_C=BLOCK_C,
        )
        return dweight, dstyle


# ---- all blocks at once ------------------------------------------------------------------------------------------


def styled_group(weights: Sequence[Tensor], styles: Sequence[Tensor]) -> list[Tensor]:
    """Return `styled` of each weight [K, C] and style [N, C], with one K and one N, in one launch. So is the gradient.

    Differentiated twice, it is the product that PyTorch has.
    """
    weights = [w.flatten(1) for w in weights]
    if torch.compiler.is_compiling():
        return [styled(w, s) for w, s in zip(weights, styles, strict=True)]
    return list(_StyledGroup.apply(*(t.contiguous() for t in (*weights, *styles))))


@triton.jit
def styled_group_kernel(
    weights, styles, into, N, FIRST: tl.constexpr, INS: tl.constexpr, BASE: tl.constexpr,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write weight[k, c] * style[n, c] of each layer, one after another."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    C, base = pick(INS, job, FIRST), pick(BASE, job, FIRST)
    c = (job - pick(FIRST, job, FIRST)) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    inside = (n < N) & (c < C)
    s = tl.load(pick(styles, job, FIRST) + n * C + c, inside, 0.0)
    for k in tl.static_range(K):
        w = tl.load(pick(weights, job, FIRST) + k * C + c, c < C, 0.0)
        tl.store(into + N * K * base + (n * K + k) * C + c, w * s, inside)


@triton.jit
def styled_group_grad_kernel(
    gs, weights, styles, dweight, dstyle, N, FIRST: tl.constexpr, INS: tl.constexpr, BASE: tl.constexpr,
    STRIDES: tl.constexpr, K: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of each layer's weight and style, whichever are given."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    C, base, stride = pick(INS, job, FIRST), pick(BASE, job, FIRST), pick(STRIDES, job, FIRST)
    g, weight = pick(gs, job, FIRST), pick(weights, job, FIRST)
    style = pick(styles, job, FIRST)
    c = (job - pick(FIRST, job, FIRST)) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    rows = ()
    sums = ()
    for k in tl.static_range(K):
        rows += (tl.load(weight + k * C + c, c < C, 0.0),)
        sums += (tl.zeros([BLOCK_N, BLOCK_C], ACC),)
    for start in range(0, N, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        inside = (n < N) & (c < C)
        s = tl.load(style + n * C + c, inside, 0.0)
        total = tl.zeros([BLOCK_N, BLOCK_C], ACC)
        added = ()
        for k in tl.static_range(K):
            found = tl.load(g + n * stride + k * C + c, inside, 0.0)
            total += found * rows[k]
            added += (sums[k] + found * s,)
        sums = added
        if dstyle is not None:
            tl.store(dstyle + N * base + n * C + c, total, inside)
    if dweight is not None:
        flat = (job - pick(FIRST, job, FIRST)) * BLOCK_C + tl.arange(0, BLOCK_C)
        for k in tl.static_range(K):
            tl.store(dweight + K * base + k * C + flat, tl.sum(sums[k], 0), flat < C)


class _StyledGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        weights, styles, jobs, base, known = _layers(tensors)
        (k, _), n = weights[0].shape, len(styles[0])
        into = styles[0].new_empty((n * k * base[-1],))
        grid = jobs, -(-n // known["BLOCK_N"])
        launch_grid(styled_group_kernel, grid, (tuple(weights), tuple(styles), into, n), **known)
        return (
            *(p.view(n, k, -1) for p in _parts(into, [(n * k, w.shape[1]) for w in weights], base, n * k)),
        )

    @staticmethod
    def backward(ctx, *gs):
        weights, styles, jobs, base, known = _layers(ctx.saved_tensors)
        layers, asked = len(gs), needed(ctx)
        needs = any(asked[:layers]), any(asked[layers:])
        if torch.is_grad_enabled():
            dweights = [
                (g * s[:, None]).sum(0) if needs[0] else None for g, s in zip(gs, styles, strict=True)
            ]
            dstyles = [(g * w).sum(1) if needs[1] else None for g, w in zip(gs, weights, strict=True)]
            return *dweights, *dstyles
        (k, _), n = weights[0].shape, len(styles[0])
        gs = [g if (g.stride(1), g.stride(2)) == (g.shape[2], 1) else g.contiguous() for g in gs]
        dweight, dstyle = (
            styles[0].new_empty((size * base[-1],)) if need else None
            for size, need in zip((k, n), needs, strict=True)
        )
        launch_grid(
            styled_group_grad_kernel,
            (jobs,),
            (tuple(gs), tuple(weights), tuple(styles), dweight, dstyle, n),
            STRIDES=tuple(g.stride(0) for g in gs),
            ACC=tl_accumulator(styles[0].dtype),
            **known,
        )
        shapes, nothing = [(k, w.shape[1]) for w in weights], [None] * layers
        dweights = _parts(dweight, shapes, base, k) if needs[0] else nothing
        dstyles = _parts(dstyle, [(n, c) for _, c in shapes], base, n) if needs[1] else nothing
        return *dweights, *dstyles


def _layers(
    tensors: Sequence[Tensor],
) -> tuple[Sequence[Tensor], Sequence[Tensor], int, tuple[int, ...], dict]:
    """Return weights, styles, programs, the start of each layer in columns, and the kernels' constants."""
    weights, styles = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
    columns = [w.shape[1] for w in weights]
    *first, jobs = accumulate((-(-c // BLOCK_C) for c in columns), initial=0)
    base = tuple(accumulate((-(-c // 4) * 4 for c in columns), initial=0))  # parts begin at 16 bytes
    known = {"FIRST": tuple(first), "INS": tuple(columns), "BASE": base[:-1], "K": len(weights[0])}
    known |= {"BLOCK_N": min(power_of_2(len(styles[0])), 16), "BLOCK_C": BLOCK_C}
    return weights, styles, jobs, base, known


def _parts(flat: Tensor, shapes: Sequence[tuple[int, int]], base: Sequence[int], unit: int) -> list[Tensor]:
    """Return each layer's [rows, columns] of a buffer with ``unit`` elements for each column."""
    pairs = zip(shapes, base, strict=False)
    return [flat.as_strided(shape, (shape[1], 1), at * unit) for shape, at in pairs]
