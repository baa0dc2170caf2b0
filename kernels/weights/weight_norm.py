"""Weight normalization w = g * v / |v| of all layers of a network, in one launch each way.

It is Salimans and Kingma 2016 (arXiv:1602.07868), as PyTorch has it with `dim=0`: a length g for each output channel,
whose direction v is a row of the weight. PyTorch computes layer by layer, at each use. A vocoder has more than a
hundred layers of small weights, and each use costs launches. Here a program computes some rows of one layer. A table in
the GPU's memory has the addresses and sizes of all layers, so one compiled kernel serves any number of layers.

The results are parts of one buffer. So their gradients come back as one tensor, by the gradient of a split:
dg = <dw, v> / |v| and dv = g / |v| * (dw - v <dw, v> / |v|^2). Differentiated twice, the gradient is plain PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.arguments import check_dtype, check_once, check_tensors, each, remember
from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.tiles import (
    accumulator,
    check_device,
    dense,
    output_dtype,
    power_of_2,
    tl,
    tl_accumulator,
    triton,
    without_autocast,
)

BLOCK_O, BLOCK_K = 4, 256  # rows of a program, and what it loads of each at a time
TABLES = 64  # networks whose addresses are kept


def weight_norm(
    vs: Sequence[Tensor], gs: Sequence[Tensor], *, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Compute [g * v / |v|, ...] with the length of each row v[o], fused. Differentiable any number of times.

    Args:
        vs: [O, ...] (contiguous or channels_last, kept), of one dtype: float16, bfloat16, float32 or float64.
        gs: [O, 1, ...] each, of the same dtype.
        dtype: dtype of the results; that of vs (autocast's dtype under autocast) unless given.

    Sums are kept in float32 (float64 for float64).
    Raises ValueError for what does not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    _check(vs, gs, dtype)
    if torch.compiler.is_compiling():  # The compiler fuses small operations by itself.
        return weight_norm_reference(vs, gs, dtype=dtype)
    check_device(vs[0])
    vs, gs = [dense(v) for v in vs], [g.contiguous() for g in gs]
    dtype = dtype or output_dtype(vs[0])
    flat = _WeightNorm.apply(*vs, *gs, dtype)
    return [_shape(part, v) for part, v in zip(flat.split([v.numel() for v in vs]), vs, strict=True)]


def weight_norm_reference(
    vs: Sequence[Tensor], gs: Sequence[Tensor], *, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Compute `weight_norm` in plain PyTorch. Arguments, result dtype and memory format as `weight_norm`."""
    _check(vs, gs, dtype)
    dtype, acc = dtype or output_dtype(vs[0]), accumulator(vs[0].dtype)
    with without_autocast(vs[0]):
        return [
            (dense(v).to(acc) * (g.to(acc) / _norm(v.to(acc)))).to(dtype) for v, g in zip(vs, gs, strict=True)
        ]


def bytes_moved(vs: Sequence[Tensor], outs: Sequence[Tensor], *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: v in, the result out; backward: its gradient and v in, dv out."""
    inputs, results = sum(v.nbytes for v in vs), sum(y.nbytes for y in outs)
    return 2 * inputs + results if backward else inputs + results


@check_once
def _check(vs, gs, dtype=None) -> None:
    check_tensors(each("vs", vs) | each("gs", gs))
    check_dtype(dtype)
    shapes, lengths = [tuple(v.shape) for v in vs], [tuple(g.shape) for g in gs]
    if not shapes or lengths != [(*s[:1], *(1,) * (len(s) - 1)) for s in shapes]:
        raise ValueError(f"need v [O, ...] and g [O, 1, ...] of each layer, got {shapes} and {lengths}")
    if not all(map(math.prod, shapes)):
        raise ValueError(f"weights must be of some size, got {shapes}")
    if len({t.dtype for t in (*vs, *gs)}) > 1:
        raise ValueError(f"weights must be of one float dtype, got {[str(t.dtype) for t in (*vs, *gs)]}")


def _norm(v: Tensor) -> Tensor:
    """Return the length of each row, [O, 1, ...]."""
    return v.flatten(1).norm(dim=1).view(-1, *(1,) * (v.dim() - 1))


def _shape(part: Tensor, like: Tensor) -> Tensor:
    """Return a part of a buffer as a weight with the shape and memory format of `like`."""
    if like.is_contiguous():
        return part.view(like.shape)
    o, i, h, w = like.shape
    return part.view(o, h, w, i).permute(0, 3, 1, 2)


# ---- kernels -------------------------------------------------------------------------------------------------------

COLUMNS = 6  # of the table: address of v, address of g, rows, numbers of a row, first number and first row in buffers


@triton.jit
def my_layer(table, jobs, T: tl.constexpr, BLOCK_O: tl.constexpr, COLUMNS: tl.constexpr):
    """Return v and g of this program's layer, its rows and their length, where they begin, and its rows' numbers."""
    layer, o = tl.load(jobs + 2 * tl.program_id(0)), tl.load(jobs + 2 * tl.program_id(0) + 1)
    v = tl.load(table + layer * COLUMNS).to(tl.pointer_type(T))
    g = tl.load(table + layer * COLUMNS + 1).to(tl.pointer_type(T))
    O, K = tl.load(table + layer * COLUMNS + 2), tl.load(table + layer * COLUMNS + 3)
    at, row = tl.load(table + layer * COLUMNS + 4), tl.load(table + layer * COLUMNS + 5)
    return v, g, O, K, at, row, o + tl.arange(0, BLOCK_O).to(tl.int64)[:, None]


@triton.jit
def weight_norm_kernel(
    table, jobs, flat, T: tl.constexpr, ACC: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write some rows of one layer's result."""
    after_previous(DEPENDENT)
    v, g, O, K, at, _, o = my_layer(table, jobs, T, BLOCK_O, COLUMNS)
    squares = tl.zeros([BLOCK_O, BLOCK_K], ACC)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        x = tl.load(v + o * K + k, (o < O) & (k < K), 0.0).to(ACC)
        squares += x * x
    square = tl.where(o < O, tl.sum(squares, 1)[:, None], 1.0)
    scale = tl.load(g + o, o < O, 0.0).to(ACC) / tl.sqrt(square)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        inside = (o < O) & (k < K)
        tl.store(flat + at + o * K + k, tl.load(v + o * K + k, inside, 0.0).to(ACC) * scale, inside)


@triton.jit
def weight_norm_grad_kernel(
    table, jobs, dflat, dvs, dgs, T: tl.constexpr, ACC: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write dv and dg of some rows of one layer."""
    after_previous(DEPENDENT)
    v, g, O, K, at, row, o = my_layer(table, jobs, T, BLOCK_O, COLUMNS)
    squares = tl.zeros([BLOCK_O, BLOCK_K], ACC)
    products = tl.zeros([BLOCK_O, BLOCK_K], ACC)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        inside = (o < O) & (k < K)
        x = tl.load(v + o * K + k, inside, 0.0).to(ACC)
        squares += x * x
        products += x * tl.load(dflat + at + o * K + k, inside, 0.0).to(ACC)
    square, product = tl.where(o < O, tl.sum(squares, 1)[:, None], 1.0), tl.sum(products, 1)[:, None]
    norm = tl.sqrt(square)
    tl.store(dgs + row + o, product / norm, o < O)
    scale, along = tl.load(g + o, o < O, 0.0).to(ACC) / norm, product / square
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        inside = (o < O) & (k < K)
        x = tl.load(v + o * K + k, inside, 0.0).to(ACC)
        dw = tl.load(dflat + at + o * K + k, inside, 0.0).to(ACC)
        tl.store(dvs + at + o * K + k, scale * (dw - along * x), inside)


# ---- launches and autograd -----------------------------------------------------------------------------------------


class Table(NamedTuple):
    """The layers as a kernel reads them."""

    layers: Tensor  # int64 [layers, COLUMNS]
    jobs: Tensor  # int32 [programs, 2]: layer and first row


_tables: dict[tuple, Table] = {}


def _table(vs: Sequence[Tensor], gs: Sequence[Tensor]) -> Table:
    """Return the table of these tensors. It is made when their addresses are new, which waits for a copy."""
    key = (vs[0].device, *[(v.data_ptr(), g.data_ptr(), v.shape) for v, g in zip(vs, gs, strict=True)])
    if key not in _tables:
        rows, sizes = [v.shape[0] for v in vs], [v.numel() for v in vs]
        starts, firsts = accumulate(sizes, initial=0), accumulate(rows, initial=0)
        layers = [
            [v.data_ptr(), g.data_ptr(), n, size // n, at, first]
            for v, g, n, size, at, first in zip(vs, gs, rows, sizes, starts, firsts, strict=False)
        ]
        jobs = [[k, o] for k, n in enumerate(rows) for o in range(0, n, BLOCK_O)]
        found = Table(
            torch.tensor(layers, device=vs[0].device),
            torch.tensor(jobs, dtype=torch.int32, device=vs[0].device),
        )
        remember(_tables, key, found, TABLES)
    return _tables[key]


def _launch(kernel, vs: Sequence[Tensor], gs: Sequence[Tensor], *buffers: Tensor) -> None:
    table, dtype = _table(vs, gs), vs[0].dtype
    launch_grid(
        kernel,
        (len(table.jobs),),
        (*table, *buffers),
        T=getattr(tl, str(dtype).removeprefix("torch.")),
        ACC=tl_accumulator(dtype),
        COLUMNS=COLUMNS,
        BLOCK_O=BLOCK_O,
        BLOCK_K=min(power_of_2(max(v[0].numel() for v in vs)), BLOCK_K),
        num_warps=4,
    )


class _WeightNorm(torch.autograd.Function):
    """All results in one buffer. Inputs are all v, all g, the dtype."""

    @staticmethod
    def forward(ctx, *inputs):
        *tensors, dtype = inputs
        vs, gs = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        flat = vs[0].new_empty((sum(v.numel() for v in vs),), dtype=dtype)
        _launch(weight_norm_kernel, vs, gs, flat)
        ctx.save_for_backward(*tensors)
        return flat

    @staticmethod
    def backward(ctx, dflat):
        tensors = ctx.saved_tensors
        vs, gs = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        sizes, rows = [v.numel() for v in vs], [g.numel() for g in gs]
        if torch.is_grad_enabled():
            parts = [_shape(part, v) for part, v in zip(dflat.split(sizes), vs, strict=True)]
            found = [_gradients(dw, v, g) for dw, v, g in zip(parts, vs, gs, strict=True)]
            return *[dv for dv, _ in found], *[dg for _, dg in found], None
        dvs, dgs = vs[0].new_empty((sum(sizes),)), vs[0].new_empty((sum(rows),))
        _launch(weight_norm_grad_kernel, vs, gs, dflat.contiguous(), dvs, dgs)
        dv = [_shape(part, v) for part, v in zip(dvs.split(sizes), vs, strict=True)]
        return *dv, *[part.view(g.shape) for part, g in zip(dgs.split(rows), gs, strict=True)], None


def _gradients(dw: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return dv and dg of one layer by operations that autograd can differentiate."""
    acc, dims = accumulator(v.dtype), tuple(range(1, v.dim()))
    with without_autocast(v):
        dw, x, length = dw.to(acc), v.to(acc), g.to(acc)
        norm = _norm(x)
        product = (dw * x).sum(dims, True) if dims else dw * x
        dv = length / norm * (dw - product / norm.square() * x)
        return dv.to(v.dtype), (product / norm).to(g.dtype)
