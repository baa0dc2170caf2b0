"""The op d[n, o] = 1 / sqrt(sum over i, k of (weight[o, i, k] * style[n, i])^2 + eps), without weights for each sample.

These are StyleGAN2's demodulation coefficients (Karras et al. 2020, arXiv:1912.04958, eq. 3). Weights for each sample
would be N times the weights. But the sum factors: with W2[o, i] = sum over k of weight^2 it is style^2 @ W2^T. One
kernel reads the weights once, keeps W2 for the gradients (1 / k^2 of the weights) and writes d.

With h = -g * d^3:  dweight = weight * (h^T @ style^2),  dstyle = style * (h @ W2).
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.arguments import check_numbers, check_once, check_tensors
from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.needed import is_recorded, needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.tiles import (
    accumulator,
    check_device,
    dense,
    is_nhwc,
    power_of_2,
    tl,
    tl_accumulator,
    triton,
    without_autocast,
)
from ..linear.weight_gradients import defer


def demodulate(weight: Tensor, style: Tensor, eps: float = 1e-8) -> Tensor:
    """Compute demodulation coefficients [N, O] of weight [O, I, kh, kw] and style [N, I], fused. Differentiable twice.

    Returns float32 (float64 if either input is), also under autocast: their square would leave float16's range.
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    _check(weight, style, eps)
    check_device(weight)
    if torch.compiler.is_compiling():
        return OPERATORS.demodulate(dense(weight), style.contiguous(), float(eps))[0]
    if not is_recorded(weight, style):
        return forward(dense(weight), style.contiguous(), float(eps))[0]
    return _Demodulate.apply(dense(weight), style.contiguous(), float(eps))


def demodulate_reference(weight: Tensor, style: Tensor, eps: float = 1e-8) -> Tensor:
    """Compute `demodulate` in plain PyTorch. Arguments and result dtype as `demodulate`."""
    _check(weight, style, eps)
    dtype = _accumulator(weight, style)
    with without_autocast(weight):
        w2 = weight.to(dtype).square().sum(dim=(2, 3))
        return (style.to(dtype).square() @ w2.t() + eps).rsqrt()


def bytes_moved(weight: Tensor, style: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: weight and style in, d and W2 out; backward: those in, dweight and
    dstyle out.
    """
    item = _accumulator(weight, style).itemsize
    inputs, d, w2 = (
        weight.nbytes + style.nbytes,
        style.shape[0] * weight.shape[0],
        weight.shape[0] * weight.shape[1],
    )
    return 2 * inputs + (2 * d + w2) * item if backward else inputs + (d + w2) * item


@check_once
def _check(weight: Tensor, style: Tensor, eps: float) -> None:
    check_tensors({"weight": weight, "style": style})
    check_numbers(0, eps=eps)
    if weight.dim() != 4 or style.dim() != 2 or style.shape[1] != weight.shape[1]:
        shapes = f"{tuple(weight.shape)} and {tuple(style.shape)}"
        raise ValueError(f"need weight [O, I, kh, kw] and style [N, I], got {shapes}")


def _accumulator(weight: Tensor, style: Tensor) -> torch.dtype:
    return accumulator(torch.promote_types(weight.dtype, style.dtype))


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def demodulate_kernel(
    weight, style, w2, d, eps, N, O, I, stride_i, stride_k,
    TAPS: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_I: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute one output channel for BLOCK_N samples: W2 on the way, then d."""
    after_previous(DEPENDENT)
    o = tl.program_id(0).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.zeros([BLOCK_N, BLOCK_I], ACC)
    for start in range(0, I, BLOCK_I):
        i = (start + tl.arange(0, BLOCK_I)).to(tl.int64)
        w_sum = tl.zeros([BLOCK_I], ACC)
        for k in tl.static_range(TAPS):
            w = tl.load(weight + o * I * TAPS + i * stride_i + k * stride_k, i < I, 0.0).to(ACC)
            w_sum += w * w
        tl.store(w2 + o * I + i, w_sum, (i < I) & (tl.program_id(1) == 0))
        inside = (n[:, None] < N) & (i[None, :] < I)
        s = tl.load(style + n[:, None] * I + i[None, :], inside, 0.0).to(ACC)
        total += w_sum[None, :] * (s * s)
    tl.store(d + n * O + o, 1 / tl.sqrt(tl.sum(total, 1) + eps), n < N)


@triton.jit
def demodulate_dweight_kernel(
    g, d, weight, style, dweight, N, O, I, stride_i, stride_k,
    TAPS: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_I: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dweight = weight * (h^T @ style^2) for one output channel and BLOCK_I input channels."""
    after_previous(DEPENDENT)
    o = tl.program_id(0).to(tl.int64)
    i = (tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)).to(tl.int64)
    total = tl.zeros([BLOCK_N, BLOCK_I], ACC)
    for start in range(0, N, BLOCK_N):
        n = (start + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
        d_no = tl.load(d + n * O + o, n < N, 0.0).to(ACC)
        h = -tl.load(g + n * O + o, n < N, 0.0).to(ACC) * d_no * d_no * d_no
        s = tl.load(style + n * I + i[None, :], (n < N) & (i[None, :] < I), 0.0).to(ACC)
        total += h * s * s
    factor = tl.sum(total, 0)
    for k in tl.static_range(TAPS):
        at = o * I * TAPS + i * stride_i + k * stride_k
        tl.store(dweight + at, tl.load(weight + at, i < I, 0.0).to(ACC) * factor, i < I)


@triton.jit
def demodulate_dstyle_kernel(
    g, d, w2, style, dstyle, O, I,
    ACC: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dstyle = style * (h @ W2) for one sample and BLOCK_I input channels."""
    after_previous(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    total = tl.zeros([BLOCK_O, BLOCK_I], ACC)
    for start in range(0, O, BLOCK_O):
        o = (start + tl.arange(0, BLOCK_O)).to(tl.int64)
        d_no = tl.load(d + n * O + o, o < O, 0.0).to(ACC)
        h = -tl.load(g + n * O + o, o < O, 0.0).to(ACC) * d_no * d_no * d_no
        at = o[:, None] * I + i[None, :]
        total += h[:, None] * tl.load(w2 + at, (o[:, None] < O) & (i[None, :] < I), 0.0)
    s = tl.load(style + n * I + i, i < I, 0.0).to(ACC)
    tl.store(dstyle + n * I + i, s * tl.sum(total, 0), i < I)


# ---- autograd ----------------------------------------------------------------------------------------------------


def _geometry(weight: Tensor) -> tuple[int, int, int, int, int]:
    """Return O, I, stride of I, stride of the taps, and their number, in either memory format."""
    o, i, kh, kw = weight.shape
    return (o, i, 1, i, kh * kw) if is_nhwc(weight) else (o, i, kh * kw, 1, kh * kw)


def forward(weight: Tensor, style: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return d [N, O] and W2 [O, I], for dense tensors."""
    o, i, stride_i, stride_k, taps = _geometry(weight)
    n, dtype = style.shape[0], _accumulator(weight, style)
    d, w2 = weight.new_empty((n, o), dtype=dtype), weight.new_empty((o, i), dtype=dtype)
    if o:
        block_n = min(power_of_2(n), 8)
        launch_grid(
            demodulate_kernel,
            (o, max(1, -(-n // block_n))),
            (weight, style, w2, d, eps, n, o, i, stride_i, stride_k),
            TAPS=taps,
            ACC=tl_accumulator(dtype),
            BLOCK_N=block_n,
            BLOCK_I=min(power_of_2(i), 128),
        )
    return d, w2


def backward(g, weight, style, d, w2, needs: tuple[bool, ...]):
    """Return dweight and dstyle (None where not needed) for the gradient g of d."""
    o, i, stride_i, stride_k, taps = _geometry(weight)
    n, g, acc = style.shape[0], g.contiguous(), tl_accumulator(d.dtype)
    dweight = torch.empty_like(weight) if needs[0] else None
    dstyle = torch.empty_like(style) if needs[1] else None
    block_i = min(power_of_2(i), 128)
    if needs[0] and o * i:
        launch_grid(
            demodulate_dweight_kernel,
            (o, -(-i // block_i)),
            (g, d, weight, style, dweight, n, o, i, stride_i, stride_k),
            TAPS=taps,
            ACC=acc,
            BLOCK_N=min(power_of_2(n), 16),
            BLOCK_I=block_i,
        )
    block_i = min(block_i, 32)
    if needs[1] and n * i:
        launch_grid(
            demodulate_dstyle_kernel,
            (n, -(-i // block_i)),
            (g, d, w2, style, dstyle, o, i),
            ACC=acc,
            BLOCK_O=min(power_of_2(o), 128),
            BLOCK_I=block_i,
        )
    return dweight, dstyle


class _Demodulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, style, eps):
        d, w2 = forward(weight, style, eps)
        ctx.save_for_backward(weight, style, d, w2)
        return d

    @staticmethod
    def backward(ctx, g):
        grad = _DemodulateGrad.apply if torch.is_grad_enabled() else backward
        weight, *others = ctx.saved_tensors
        needs_weight, needs_style, _ = needed(ctx)
        if needs_weight and defer((weight,), lambda: backward(g, weight, *others, (True, False))[:1]):
            needs_weight = False
        return *grad(g, weight, *others, (needs_weight, needs_style)), None


class _DemodulateGrad(torch.autograd.Function):
    """`backward` as a function that can be differentiated itself. d and W2 stand for the tensors
    that they came from.
    """

    @staticmethod
    def forward(ctx, g, weight, style, d, w2, needs):
        ctx.save_for_backward(g, weight, style, d, w2)
        ctx.set_materialize_grads(False)
        return backward(g, weight, style, d, w2, needs)

    @staticmethod
    @once_differentiable
    def backward(ctx, ddweight, ddstyle):
        if ddweight is None and ddstyle is None:
            return (None,) * 6
        g, weight, style, d, w2 = ctx.saved_tensors
        with without_autocast(g):
            dg, compute, dstyle = _grad_grad(
                ddweight, ddstyle, g, weight.to(d.dtype), style.to(d.dtype), d, w2
            )
            deferred = defer((weight,), lambda: [compute().to(weight.dtype)])
            dweight = None if deferred else compute().to(weight.dtype)
        return dg, dweight, dstyle.to(style.dtype), None, None, None


def _grad_grad(ddweight, ddstyle, g, weight, style, d, w2):
    """Return the gradient of sum(ddweight * dweight) + sum(ddstyle * dstyle) by g, weight and style.

    Both sums are linear in h = -g * d^3. They are sum(h * q), and d depends on the inputs through e = style^2 @ W2^T.
    The weight's gradient is returned as a function that computes it.
    """
    s2 = style.square()
    h = -g * d**3
    q, ds, b = 0, 0, 0
    if ddstyle is not None:
        a = ddstyle.to(d.dtype) * style
        q, ds = a @ w2.t(), ddstyle * (h @ w2)
    if ddweight is not None:
        b = (ddweight * weight).sum(dim=(2, 3))
        q, ds = q + s2 @ b.t(), ds + 2 * style * (h @ b)
    de = 1.5 * q * g * d**5

    def dweight() -> Tensor:
        dw2 = de.t() @ s2
        if ddstyle is not None:
            dw2 += h.t() @ a
        found = (2 * dw2)[:, :, None, None] * weight
        return found if ddweight is None else found + ddweight * (h.t() @ s2)[:, :, None, None]

    return -(d**3) * q, dweight, ds + 2 * style * (de @ w2)


# ---- the operator for torch.compile --------------------------------------------------------------------------------


@operator("demodulate", "(Tensor weight, Tensor style, float eps) -> (Tensor, Tensor)")
def demodulate_operator(weight, style, eps):
    """Compute d, and W2 for the gradient. A gradient of W2 itself is ignored."""
    return forward(weight, style, eps)


@demodulate_operator.register_fake
def _(weight, style, eps):
    dtype, (o, i) = _accumulator(weight, style), weight.shape[:2]
    return weight.new_empty((style.shape[0], o), dtype=dtype), weight.new_empty((o, i), dtype=dtype)


@operator(
    "demodulate_grad",
    "(Tensor g, Tensor weight, Tensor style, Tensor d, Tensor w2, bool[] needs) -> Tensor[]",
)
def demodulate_grad(g, weight, style, d, w2, needs):
    return pick(backward(g, weight, style, d, w2, needs), needs)


@demodulate_grad.register_fake
def _(g, weight, style, d, w2, needs):
    return empty_like((weight, style), needs)


def _demodulate_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], *output)


def _demodulate_gradient(ctx, g, _):
    needs = list(ctx.needs_input_grad[:2])
    if torch.is_grad_enabled():
        return *_DemodulateGrad.apply(g, *ctx.saved_tensors, needs), None
    return *place(demodulate_grad(g, *ctx.saved_tensors, needs), needs), None


demodulate_operator.register_autograd(_demodulate_gradient, setup_context=_demodulate_context)
