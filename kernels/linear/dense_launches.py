"""The launches of `kernels.dense`, forward and all gradients, and the cut of its layers into programs.

No tile is tuned. Two wishes decide: two programs for every multiprocessor, and many loads of 16 bytes a thread on their
way at once. One deep layer's gradients from many samples are a library's products.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.launches import Known, launch_grid, launch_known
from ..common.tiles import power_of_2, tl_accumulator
from .dense_kernels import dense_finish_kernel, dense_grad_kernel, dense_kernel


class Call(NamedTuple):
    """The operation of a group of layers, and its layout."""

    weight_gain: float
    bias_gain: float
    act: bool
    slope: float
    gain: float
    slots: tuple[int, ...]  # the slot of x [N, slots, I] that each layer reads
    biased: bool

    def product(self) -> "Call":
        """Return the bilinear part alone."""
        return self._replace(bias_gain=1.0, act=False, slope=1.0, gain=1.0, biased=False)


class _Cover(NamedTuple):
    """The cut of a group of layers into programs. Layers follow each other in one buffer, 16 bytes aligned."""

    base: tuple[int, ...]  # the start of each layer, in outputs
    total: int  # outputs, padding included
    grid: tuple[int, int, int]
    chunk: int  # inputs that a forward program sums over
    forward: dict
    x_jobs: int
    w_jobs: int
    backward: dict
    launches: Known


ENOUGH = 264  # programs; two for each multiprocessor of an H200
DEEP = 2048  # inputs from which on they are split among programs
# Samples from which on one deep layer's dx, dweight and dbias are PyTorch's products (docs/log.md).
PRODUCTS = (64, 16, 16)


@lru_cache(maxsize=1024)
def _cover(n: int, i: int, slots: int, reads: tuple[int, ...], widths: tuple[int, ...]) -> _Cover:
    base = tuple(sum(-(-w // 4) * 4 for w in widths[:k]) for k in range(len(widths) + 1))
    block_n, block_i, widest = min(power_of_2(n), 8), min(power_of_2(i), 128), power_of_2(max(widths))
    samples, unroll = -(-n // block_n), max(min(-(-i // block_i), 4), 1)

    def firsts(block: int) -> list[int]:
        return [sum(-(-w // block) for w in widths[:k]) for k in range(len(widths) + 1)]

    wide = i >= DEEP or firsts(8)[-1] * samples >= ENOUGH
    block_o = min(widest, 8 if wide else 4)
    *first, jobs = firsts(block_o)
    chunk = max(i, 1)
    if len(widths) == 1 and i >= DEEP and 0 < jobs * samples < 2 * ENOUGH:
        chunks = max(min(-(-2 * ENOUGH // (jobs * samples)), i // (block_i * unroll)), 1)
        chunk = -(-i // (chunks * block_i * unroll)) * block_i * unroll
    forward = {
        "FIRST": tuple(first), "BLOCK_N": block_n, "BLOCK_O": block_o, "BLOCK_I": block_i, "UNROLL": unroll,
        "num_warps": 4,
    }  # fmt: skip

    def x_jobs(block: int) -> int:
        return samples * slots * -(-i // block)

    x_block_i = next((b for b in (32, 16) if x_jobs(b) >= ENOUGH // 2), 8)
    x_block_i = min(x_block_i, power_of_2(i))
    x_block_o = min(512 // x_block_i, widest)
    w_block_o = min(widest, 16)
    *w_first, w_blocks = firsts(w_block_o)
    backward = {
        "FIRST": tuple(w_first), "READERS": _readers(reads, slots), "BLOCK_N": block_n,
        "X_BLOCK_O": x_block_o, "X_BLOCK_I": x_block_i, "X_UNROLL": max(min(-(-max(widths) // x_block_o), 8), 1),
        "W_BLOCK_O": w_block_o, "W_BLOCK_I": block_i, "W_UNROLL": min(power_of_2(n), 8), "num_warps": 4,
    }  # fmt: skip
    grid, w_jobs = (jobs, samples, max(-(-i // chunk), 1)), max(w_blocks * -(-i // block_i), w_blocks)
    return _Cover(base[:-1], base[-1], grid, chunk, forward, x_jobs(x_block_i), w_jobs, backward, {})


def _readers(reads: tuple[int, ...], slots: int) -> tuple[tuple[int, ...], ...]:
    """Return [rank][slot]: the layers that read each slot, -1 where a slot has fewer."""
    of = [[layer for layer, slot in enumerate(reads) if slot == s] for s in range(slots)]
    return tuple(
        tuple(layers[rank] if rank < len(layers) else -1 for layers in of)
        for rank in range(max(map(len, of)))
    )


def _constants(weights: Sequence[Tensor], cover: _Cover, call: Call) -> dict:
    """Return the constants that both kernels share."""
    return {
        "WIDTH": tuple([w.shape[0] for w in weights]), "BASE": cover.base, "SLOT": call.slots,
        "WEIGHT_GAIN": call.weight_gain, "BIAS_GAIN": call.bias_gain, "SLOPE": call.slope, "GAIN": call.gain,
        "ACC": tl_accumulator(weights[0].dtype),
    }  # fmt: skip


def _three(size: tuple[int, ...]) -> tuple[int, int, int]:
    """Return N, S, I of x [N, S, I] or [N, I]."""
    n, *slots, i = size
    return n, *(slots or (1,)), i


def _slices(flat: Tensor, cover: _Cover, shapes: list[tuple[int, ...]], unit: int) -> list[Tensor]:
    """Return each layer's part of a buffer with `unit` elements for each output."""
    start, found = flat.storage_offset(), []
    for base, shape in zip(cover.base, shapes, strict=True):
        strides = (shape[1], 1) if len(shape) == 2 else (1,)
        found.append(flat.as_strided(shape, strides, start + base * unit))
    return found


def forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None, call: Call
) -> list[Tensor]:
    """Return [N, O] of each layer, slices of one buffer.

    x is [N, S, I], or [N, I] for a single layer; weights are contiguous and of one dtype.
    """
    n, slots, i = _three(x.shape)
    widths = tuple([w.shape[0] for w in weights])
    cover = _cover(n, i, slots, call.slots, widths)
    flat = x.new_empty((n * cover.total,))
    ys = _slices(flat, cover, [(n, width) for width in widths], n)
    if not n * sum(widths):
        return ys
    whole, biases = cover.grid[2] == 1, None if biases is None else tuple(biases)
    into = flat if whole else x.new_empty((cover.grid[2] * n * widths[0],))

    def describe() -> tuple[tuple[int, ...], tuple[int, ...], dict]:
        constants = _constants(weights, cover, call) | {"WHOLE": whole, "ACT": call.act} | cover.forward
        return cover.grid, (n, i, slots * i, cover.chunk), constants

    launch_known(cover.launches, call, dense_kernel, (x, tuple(weights), biases, into), describe)
    if not whole:
        size, constants = n * widths[0], _constants(weights, cover, call)
        names = ("BIAS_GAIN", "WEIGHT_GAIN", "SLOPE", "GAIN", "ACC")
        launch_grid(
            dense_finish_kernel,
            (-(-size // 256),),
            (into, None if biases is None else biases[0], flat, size, widths[0]),
            CHUNKS=cover.grid[2],
            BLOCK=256,
            ACT=call.act,
            **{name: constants[name] for name in names},
        )
    return ys


def backward(gs, ys, x, weights, size: tuple[int, ...], call: Call, needs: tuple[bool, bool, bool]):
    """Return dx, of the size that x has, dweight and dbias of each layer. Those not needed are None, or lists of None.

    ys: results of the forward pass if it had an activation, else None. The tensor x is read only for the weights'
    gradients, and the weights only for the gradient of x. The weights' shapes are always read.
    """
    n, slots, i = _three(size)
    deep = len(weights) == slots == 1 and i >= DEEP
    products = tuple(need and deep and n >= most for need, most in zip(needs, PRODUCTS, strict=True))
    ours = tuple(need and not product for need, product in zip(needs, products, strict=True))
    found = _launched(gs, ys, x, weights, size, call, ours)
    if not any(products):
        return found
    theirs = _by_products(gs[0], None if ys is None else ys[0], x, weights[0], size, call, products)
    return tuple(a if product else b for a, b, product in zip(theirs, found, products, strict=True))


def _by_products(g, y, x, weight, size: tuple[int, ...], call: Call, needs: tuple[bool, bool, bool]):
    """Compute `backward` of one layer by PyTorch's matrix products."""
    dx, dweight, dbias = None, None, None
    # y has the sign of its input.
    d = g if y is None else torch.ops.aten.leaky_relu_backward(g, y, call.slope, True)
    scale = call.gain * call.weight_gain
    if needs[0]:
        dx = g.new_empty(size)
        flat = dx.view(len(d), -1)
        torch.addmm(flat, d, weight, beta=0, alpha=scale, out=flat)
    if needs[1]:
        dweight = g.new_empty((d.shape[1], size[-1]))
        torch.addmm(dweight, d.t(), x.view(len(d), -1), beta=0, alpha=scale, out=dweight)
    if needs[2]:
        dbias = d.sum(0).mul_(call.gain * call.bias_gain)
    return dx, [dweight], [dbias]


def _launched(gs, ys, x, weights, size: tuple[int, ...], call: Call, needs: tuple[bool, bool, bool]):
    """Compute `backward` in one launch of our kernel."""
    (n, slots, i), widths = _three(size), tuple([w.shape[0] for w in weights])
    cover = _cover(n, i, slots, call.slots, widths)
    gs = tuple([g.contiguous() for g in gs])
    needs_w = needs[1] or needs[2]
    dx = gs[0].new_empty(size) if needs[0] else None
    dw_flat = gs[0].new_empty((cover.total * i,)) if needs_w else None
    db_flat = gs[0].new_empty((cover.total,)) if needs[2] else None
    x_jobs, w_jobs = (cover.x_jobs if needs[0] else 0), (cover.w_jobs if needs_w else 0)

    def describe() -> tuple[tuple[int], tuple[int, ...], dict]:
        constants = _constants(weights, cover, call) | cover.backward
        return (x_jobs + w_jobs,), (n, i, slots * i, slots, x_jobs), constants

    if x_jobs + w_jobs:
        tensors = gs, None if ys is None else tuple(ys), x, tuple(weights), dx, dw_flat, db_flat
        launch_known(cover.launches, (call, needs), dense_grad_kernel, tensors, describe)
    nothing = [None] * len(widths)
    dweights = _slices(dw_flat, cover, [(w, i) for w in widths], i) if needs[1] else nothing
    dbiases = _slices(db_flat, cover, [(w,) for w in widths], 1) if needs[2] else nothing
    return dx, dweights, dbiases
