"""The op d[n, o] = 1 / sqrt(sum over i of energy[o, i] * style[n, i]^2 + eps) of several layers in one launch.

These are the coefficients of `kernels.demodulate`, for all layers of a generator together. Styles depend on w alone, so
all of them exist before the first convolution. One layer reads a few hundred thousand numbers and sums over its
outputs, which leaves most of a GPU idle. Thirteen layers side by side do not.

A weight comes in through its energy over the taps, energy[o, i] = sum over k of weight[o, i, k]^2. The energy is k^2
times smaller than the weight, and an op of its own (`weight_energies`). Coefficients may be made and differentiated
from one energy many times. Gradients add up there, so weights are read once forward and once backward. With h = -g *
d^3:

- dstyle = style * (h @ energy)
- denergy = 1/2 * h^T @ style^2
- dweight = 2 * weight * denergy
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.arguments import check_numbers, check_once, check_tensors, each
from ..common.needed import needed
from ..common.tiles import accumulator, check_device, dense_as, is_nhwc, without_autocast
from .demodulate_group_launches import (
    backward,
    energies_backward,
    energies_into,
    forward,
    new_energies,
    second_rows,
)


def weight_energies(weights: Sequence[Tensor]) -> list[Tensor]:
    """Compute [O, I] of each weight [O, I, kh, kw]: its squares summed over the taps, fused.

    Differentiable to any order. Weights have one number of taps. The results are parts of one buffer.

    Returns float32 (float64 if any weight is), also under autocast.
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    dtype = _check_weights(weights)
    if torch.compiler.is_compiling():
        return weight_energies_reference(weights)
    check_device(weights[0])
    return list(_Energies.apply(*_alike(weights, dtype)))


def refresh_energies(weights: Sequence[Tensor], energies: Sequence[Tensor]) -> None:
    """Write `weight_energies` of weights into existing tensors. Nothing is differentiated."""
    dtype = _check_weights(weights)
    check_device(weights[0])
    shapes = [tuple(w.shape[:2]) for w in weights]
    if [tuple(e.shape) for e in energies] != shapes or not all(e.is_contiguous() for e in energies):
        raise ValueError(f"need a contiguous energy [O, I] for each of {shapes}")
    if any(e.dtype != dtype for e in energies):
        raise ValueError(f"need energies in {dtype}, got {[e.dtype for e in energies]}")
    with torch.no_grad():
        energies_into(_alike(weights, dtype), energies)


def weight_energies_reference(weights: Sequence[Tensor]) -> list[Tensor]:
    """Compute `weight_energies` in plain PyTorch. Arguments as `weight_energies`."""
    dtype = _check_weights(weights)
    with without_autocast(weights[0]):
        return [w.to(dtype).square().sum((2, 3)) for w in weights]


def demodulate_group(energies: Sequence[Tensor], styles: Sequence[Tensor], eps: float = 1e-8) -> list[Tensor]:
    """Compute coefficients [N, O] of each layer from energies [O, I] and styles [N, I], fused. Differentiable twice.

    Returns float32 (float64 if any input is), also under autocast. The results are parts of one buffer.
    Raises as `weight_energies`.
    """
    dtype = _check(energies, styles, eps)
    if torch.compiler.is_compiling():  # The compiler fuses the operations around the products itself.
        return demodulate_group_reference(energies, styles, eps)
    check_device(styles[0])
    # Casts and copies belong out here, where autograd sees them. Double backward does not see those of a Function.
    return list(
        _Demodulate.apply(*(t.to(dtype).contiguous() for t in (*energies, *styles)), float(eps), False)
    )


def demodulate_group_fork(
    energies: Sequence[Tensor], styles: Sequence[Tensor], eps: float = 1e-8
) -> tuple[list[Tensor], list[Tensor]]:
    """Return `demodulate_group`, and the styles for their other readers, whose gradients are added in one launch."""
    dtype = _check(energies, styles, eps)
    if torch.compiler.is_compiling() or any(s.dtype is not dtype for s in styles):
        return demodulate_group(energies, styles, eps), list(styles)
    check_device(styles[0])
    found = _Demodulate.apply(*(t.to(dtype).contiguous() for t in (*energies, *styles)), float(eps), True)
    return list(found[: len(styles)]), list(found[len(styles) :])


def demodulate_group_reference(
    energies: Sequence[Tensor], styles: Sequence[Tensor], eps: float = 1e-8
) -> list[Tensor]:
    """Compute `demodulate_group` in plain PyTorch. Arguments and result dtype as `demodulate_group`."""
    dtype = _check(energies, styles, eps)
    with without_autocast(styles[0]):
        pairs = zip(energies, styles, strict=True)
        return [(s.to(dtype).square() @ e.to(dtype).t() + eps).rsqrt() for e, s in pairs]


def demodulate_group_fork_reference(
    energies: Sequence[Tensor], styles: Sequence[Tensor], eps: float = 1e-8
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute `demodulate_group_fork` in plain PyTorch, where autograd adds the gradients."""
    return demodulate_group_reference(energies, styles, eps), list(styles)


def bytes_moved(weights: Sequence[Tensor], styles: Sequence[Tensor], *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: weights and styles in, energies out and in, d out.

    backward: weights, styles, energies, d and its gradient in; the gradients of styles and weights out; those of
    energies out and in.
    """
    item = accumulator(_promoted([*weights, *styles])).itemsize
    energies = sum(w.shape[0] * w.shape[1] for w in weights) * item
    d = sum(w.shape[0] for w in weights) * styles[0].shape[0] * item
    inputs = sum(t.nbytes for t in (*weights, *styles))
    return 2 * inputs + 3 * energies + 2 * d if backward else inputs + 2 * energies + d


def _promoted(tensors: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(t.dtype is torch.float64 for t in tensors) else tensors[0].dtype


def _check_weights(weights: Sequence[Tensor]) -> torch.dtype:
    check_tensors(each("weights", weights))
    shapes = [tuple(w.shape) for w in weights]
    if not shapes or any(len(s) != 4 for s in shapes) or len({s[2] * s[3] for s in shapes}) > 1:
        raise ValueError(f"need weights [O, I, kh, kw] with one number of taps, got {shapes}")
    return accumulator(_promoted(weights))


@check_once
def _check(energies: Sequence[Tensor], styles: Sequence[Tensor], eps: float) -> torch.dtype:
    check_tensors(each("energies", energies) | each("styles", styles))
    check_numbers(0, eps=eps)
    pairs = [(tuple(e.shape), tuple(s.shape)) for e, s in zip(energies, styles, strict=False)]
    fit = all(len(e) == len(s) == 2 and e[1] == s[1] and s[0] == pairs[0][1][0] for e, s in pairs)
    if not pairs or len(energies) != len(styles) or not fit:
        raise ValueError(f"need an energy [O, I] and a style [N, I] for each layer, one N, got {pairs}")
    return accumulator(_promoted([*energies, *styles]))


def _alike(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the weights in one dtype and one memory format. A network's weights are so already, and are returned
    themselves.
    """
    if len({w.dtype for w in weights}) > 1:
        weights = [w.to(dtype) for w in weights]
    nhwc = any(is_nhwc(w) and w.shape[2] * w.shape[3] > 1 for w in weights)
    return [dense_as(w, nhwc) for w in weights]


# ---- autograd ----------------------------------------------------------------------------------------------------


class _Energies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *weights):
        ctx.save_for_backward(*weights)
        ctx.set_materialize_grads(False)
        energies = new_energies(weights, accumulator(weights[0].dtype))
        energies_into(weights, energies)
        return tuple(energies)

    @staticmethod
    def backward(ctx, *gs):
        weights, found = ctx.saved_tensors, [None] * len(gs)
        wanted = [k for k, need in enumerate(needed(ctx)) if need and gs[k] is not None]
        with without_autocast(weights[0]):
            if torch.is_grad_enabled():
                made = [(2 * weights[k] * gs[k][:, :, None, None]).to(weights[k].dtype) for k in wanted]
            else:
                made = energies_backward([gs[k] for k in wanted], [weights[k] for k in wanted])
        for k, dweight in zip(wanted, made, strict=True):
            found[k] = dweight
        return tuple(found)


class _Demodulate(torch.autograd.Function):
    """The op as a Function. Its inputs are all energies, all styles, eps, and whether styles are returned as well."""

    @staticmethod
    def forward(ctx, *inputs):
        *tensors, eps, forks = inputs
        layers = len(tensors) // 2
        ds = forward(tensors[:layers], tensors[layers:], eps)
        ctx.save_for_backward(*tensors, *ds)
        return *ds, *(s.view_as(s) for s in tensors[layers:] if forks)

    @staticmethod
    def backward(ctx, *gs):
        layers, asked = len(ctx.saved_tensors) // 3, needed(ctx)
        needs = any(asked[:layers]), any(asked[layers:-2])
        gs = [g.contiguous() for g in gs]
        gs, adds = gs[:layers], gs[layers:]
        if torch.is_grad_enabled():
            return *_DemodulateGrad.apply(*gs, *ctx.saved_tensors, *adds, layers, needs), None, None
        denergies, dstyles = backward(gs, *_split(ctx.saved_tensors, 3), needs, adds=adds or None)
        return *denergies, *dstyles, None, None


class _DemodulateGrad(torch.autograd.Function):
    """`backward` as a function that can be differentiated itself. Each d stands for the tensors that it came from."""

    @staticmethod
    def forward(ctx, *inputs):
        *tensors, layers, needs = inputs
        tensors, adds = tensors[: 4 * layers], tensors[4 * layers :]
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.adds = bool(adds)
        denergies, dstyles = backward(*_split(tensors, 4), needs, adds=adds or None)
        return *denergies, *dstyles

    @staticmethod
    @once_differentiable
    def backward(ctx, *directions):
        vs, us = _split(directions, 2)
        gs, energies, styles, ds = _split(ctx.saved_tensors, 4)
        layers, nothing = len(gs), [None] * len(gs)
        through = us if ctx.adds else ()
        if all(t is None for t in directions):
            return *nothing * 4, *through, None, None
        with without_autocast(gs[0]):
            if any(v is not None for v in vs):
                three = [_second(*each) for each in zip(vs, us, gs, energies, styles, ds, strict=True)]
                dgs, denergies, dstyles = zip(*three, strict=True)
            else:
                asked = needed(ctx)
                needs = any(asked[layers : 2 * layers]), any(asked[2 * layers : 3 * layers])
                us = [
                    torch.zeros_like(s) if u is None else u.contiguous()
                    for u, s in zip(us, styles, strict=True)
                ]
                dgs, es = second_rows(us, gs, energies, styles, ds)
                denergies, dstyles = backward(gs, energies, styles, ds, needs, us, es)
        return *dgs, *denergies, *dstyles, *nothing, *through, None, None


def _second(v, u, g, energy, style, d):
    """Return the gradient of sum(v * denergy) + sum(u * dstyle) by g, energy and style, in plain PyTorch.

    Both sums are linear in h = -g * d^3. They are sum(h * q), and d depends on the inputs through style^2 @ energy^T.
    """
    square, h = style.square(), -g * d**3
    q, denergy, dstyle = 0, 0, 0
    if u is not None:
        a = u * style
        q, denergy, dstyle = a @ energy.t(), h.t() @ a, u * (h @ energy)
    if v is not None:
        q, dstyle = q + square @ v.t() / 2, dstyle + style * (h @ v)
    e = 1.5 * q * g * d**5
    return -(d**3) * q, denergy + e.t() @ square, dstyle + 2 * style * (e @ energy)


def _split(tensors: Sequence, parts: int) -> list[Sequence]:
    """Return equal parts, one after another."""
    size = len(tensors) // parts
    return [tensors[k * size : (k + 1) * size] for k in range(parts)]
