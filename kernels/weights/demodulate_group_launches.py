"""The launches of `kernels.demodulate_group`, and the cut of its layers into programs. No tile is tuned."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from ..common.launches import launch_grid
from ..common.tiles import is_nhwc, power_of_2, tl_accumulator
from .demodulate_group_kernels import (
    demodulate_group_grad_kernel,
    demodulate_group_kernel,
    demodulate_group_rows_kernel,
    weight_energies_grad_kernel,
    weight_energies_kernel,
)

Shapes = tuple[tuple[int, int], ...]  # O and I of each layer
ALIGNED = 4  # elements; each layer's part of a buffer begins at a multiple, so that loads are vectors


def _starts(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the start of each part, and the end of the last part."""
    return (0, *accumulate(sizes))


def _parts(flat: Tensor, shapes: Sequence[tuple[int, int]], bases: Sequence[int], unit: int) -> list[Tensor]:
    """Return each layer's [rows, columns] of a buffer with `unit` elements for each base."""
    start, pairs = flat.storage_offset(), zip(shapes, bases, strict=False)
    return [flat.as_strided(shape, (shape[1], 1), start + base * unit) for shape, base in pairs]


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


# ---- energies ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _tiles(shapes: Shapes, taps: int) -> tuple[int, dict]:
    """Return programs and constants of a walk over [O, I] of all layers: 16 bytes a thread for each tap."""
    block_i = min(power_of_2(max(i for _, i in shapes)), 128)
    block_o = min(power_of_2(max(o for o, _ in shapes)), max(512 // block_i, 1))
    *first, jobs = _starts([-(-o // block_o) * -(-i // block_i) for o, i in shapes])
    constants = {
        "FIRST": tuple(first),
        "OUTS": tuple(o for o, _ in shapes),
        "INS": tuple(i for _, i in shapes),
    }
    return jobs, constants | {"TAPS": taps, "BLOCK_O": block_o, "BLOCK_I": block_i, "num_warps": 4}


def _walk(weights: Sequence[Tensor]) -> tuple[int, dict]:
    taps = weights[0].shape[2] * weights[0].shape[3]
    jobs, constants = _tiles(tuple((w.shape[0], w.shape[1]) for w in weights), taps)
    nhwc = any(is_nhwc(w) for w in weights)  # A tensor that is dense in both formats lies alike in both.
    return jobs, constants | {"NHWC": nhwc}


def energies_into(weights: Sequence[Tensor], energies: Sequence[Tensor]) -> None:
    """Write E [O, I] of each weight. Weights have one dtype and one number of taps, and are dense
    in one memory format.
    """
    jobs, constants = _walk(weights)
    if jobs:
        acc = tl_accumulator(energies[0].dtype)
        launch_grid(weight_energies_kernel, (jobs,), (tuple(weights), tuple(energies)), ACC=acc, **constants)


def energies_backward(gs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """Return 2 * weight * g of each weight."""
    found = [torch.empty_like(w) for w in weights]
    jobs, constants = _walk(weights) if weights else (0, {})
    if jobs:
        gs = tuple(g.contiguous() for g in gs)
        acc = tl_accumulator(gs[0].dtype)
        launch_grid(
            weight_energies_grad_kernel, (jobs,), (gs, tuple(weights), tuple(found)), ACC=acc, **constants
        )
    return found


def new_energies(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return an empty [O, I] for each weight, parts of one buffer."""
    shapes = [(w.shape[0], w.shape[1]) for w in weights]
    *bases, total = _starts([_padded(o * i) for o, i in shapes])
    return _parts(weights[0].new_empty((total,), dtype=dtype), shapes, bases, 1)


# ---- coefficients ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _rows(n: int, shapes: Shapes) -> tuple[tuple[int, int], tuple[int, ...], int, dict]:
    """Return the grid, the start of each layer, the number of outputs, and the constants of sums over inputs."""
    outs, ins = zip(*shapes, strict=True)
    block_n, block_o = min(power_of_2(n), 8), min(power_of_2(max(outs)), 8)
    block_i = min(power_of_2(max(ins)), 128)
    *first, jobs = _starts([-(-o // block_o) for o in outs])
    *base, total = _starts([_padded(o) for o in outs])
    constants = {
        "FIRST": tuple(first), "OUTS": outs, "INS": ins, "BASE": tuple(base),
        "BLOCK_N": block_n, "BLOCK_O": block_o, "BLOCK_I": block_i,
        "UNROLL": max(min(-(-max(ins) // block_i), 2), 1), "num_warps": 4,
    }  # fmt: skip
    return (jobs, -(-n // block_n)), tuple(base), total, constants


@lru_cache(maxsize=256)
def _columns(n: int, shapes: Shapes) -> dict:
    """Return programs and constants of sums over outputs (dstyle) and over samples (denergy)."""
    outs, ins = zip(*shapes, strict=True)
    s_block_i = min(power_of_2(max(ins)), 16)
    s_block_o = min(power_of_2(max(outs)), 64)
    *s_first, style_jobs = _starts([-(-i // s_block_i) for i in ins])
    *s_base, style_total = _starts([_padded(i) for i in ins])
    e_block_i, e_block_o = min(power_of_2(max(ins)), 128), min(power_of_2(max(outs)), 16)
    *e_first, jobs = _starts([-(-o // e_block_o) * -(-i // e_block_i) for o, i in shapes])
    *e_base, energy_total = _starts([_padded(o * i) for o, i in shapes])
    block_n = min(power_of_2(n), 8)
    constants = {
        "S_FIRST": tuple(s_first), "E_FIRST": tuple(e_first), "OUTS": outs, "INS": ins,
        "S_BASE": tuple(s_base), "E_BASE": tuple(e_base), "BLOCK_N": block_n,
        "S_BLOCK_O": s_block_o, "S_BLOCK_I": s_block_i, "S_UNROLL": max(min(-(-max(outs) // s_block_o), 2), 1),
        "E_BLOCK_O": e_block_o, "E_BLOCK_I": e_block_i, "E_UNROLL": min(power_of_2(n), 4), "num_warps": 8,
    }  # fmt: skip
    return {
        "samples": -(-n // block_n), "style_jobs": style_jobs, "energy_jobs": jobs,
        "style_total": style_total, "energy_total": energy_total, "constants": constants,
    }  # fmt: skip


def _shapes(energies: Sequence[Tensor]) -> Shapes:
    return tuple(tuple(e.shape) for e in energies)


def forward(energies: Sequence[Tensor], styles: Sequence[Tensor], eps: float) -> list[Tensor]:
    """Return d [N, O] of each layer, parts of one buffer, for contiguous tensors of one dtype."""
    n, shapes = styles[0].shape[0], _shapes(energies)
    grid, base, total, constants = _rows(n, shapes)
    flat = styles[0].new_empty((n * total,))
    if grid[0] * grid[1]:
        acc = tl_accumulator(flat.dtype)
        launch_grid(
            demodulate_group_kernel,
            grid,
            (tuple(energies), tuple(styles), flat, eps, n),
            ACC=acc,
            **constants,
        )
    return _parts(flat, [(n, o) for o, _ in shapes], base, n)


def second_rows(us, gs, energies, styles, ds) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradient of each g along directions u of the styles' gradients, and e, [N, O] each."""
    n, shapes = styles[0].shape[0], _shapes(energies)
    grid, base, total, constants = _rows(n, shapes)
    dg, e = (styles[0].new_empty((n * total,)) for _ in range(2))
    if grid[0] * grid[1]:
        layers = [tuple(each) for each in (energies, styles, us, gs, ds)]
        launch_grid(
            demodulate_group_rows_kernel, grid, (*layers, dg, e, n), ACC=tl_accumulator(dg.dtype), **constants
        )
    return tuple(_parts(flat, [(n, o) for o, _ in shapes], base, n) for flat in (dg, e))


def backward(gs, energies, styles, ds, needs: tuple[bool, bool], us=None, es=None, adds=None):
    """Return gradients of energies and of styles (lists of None where not needed) for gradients g of d.

    adds: other gradients of the styles, which are added. us, es: directions of the styles' gradients, and the results
    of `second_rows` for them. With both, the function returns the gradients' gradient.
    """
    n, shapes, nothing = styles[0].shape[0], _shapes(energies), [None] * len(styles)
    cover = _columns(n, shapes)
    energy_jobs, style_jobs = needs[0] * cover["energy_jobs"], needs[1] * cover["style_jobs"]
    denergy = styles[0].new_empty((cover["energy_total"],)) if needs[0] else None
    dstyle = styles[0].new_empty((n * cover["style_total"],)) if needs[1] else None
    if style_jobs * cover["samples"] + energy_jobs:
        layers = [None if each is None else tuple(each) for each in (gs, ds, es, energies, styles, us, adds)]
        grid = style_jobs + energy_jobs, max(cover["samples"], 1)
        launch_grid(
            demodulate_group_grad_kernel,
            grid,
            (*layers, dstyle, denergy, n, style_jobs),
            ACC=tl_accumulator(styles[0].dtype),
            **cover["constants"],
        )
    bases = cover["constants"]
    denergies = _parts(denergy, shapes, bases["E_BASE"], 1) if needs[0] else nothing
    dstyles = _parts(dstyle, [(n, i) for _, i in shapes], bases["S_BASE"], n) if needs[1] else nothing
    return denergies, dstyles
