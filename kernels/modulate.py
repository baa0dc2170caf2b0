"""y = x * style, one factor for each sample and channel: style modulation, and the demodulation scale applied.

Modulating the activation and convolving with the shared weight gives what StyleGAN2's per-sample weights give
(Karras et al. 2020, arXiv:1912.04958, eq. 1-3), without building them. Both gradients come from one pass over memory:
dx = g * style is written while dstyle = sum(g * x) is reduced, in a fixed order. So does the double backward.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.tiles import (
    Tiling,
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    output_dtype,
    store_row,
    tile_offsets,
    tiling,
    tl,
    triton,
)


def modulate(x: Tensor, style: Tensor) -> Tensor:
    """x [N, C, H, W] times style [N, C] (or [N, C, 1, 1]), fused; differentiable twice.

    x may be NCHW or channels_last (kept), float16, bfloat16, float32 or float64; style may have another dtype.
    Returns y in x.dtype (autocast's dtype under autocast); sums are kept in float32 (float64 for float64).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    _check(x, style)
    check_device(x)
    return _Modulate.apply(dense(x), style.contiguous(), output_dtype(x))


def modulate_reference(x: Tensor, style: Tensor) -> Tensor:
    """`modulate` in plain PyTorch: the same arguments, result dtype and memory format."""
    _check(x, style)
    return (x * style.view(*x.shape[:2], 1, 1)).to(output_dtype(x))


def bytes_moved(x: Tensor, *, backward: bool = False, out: torch.dtype | None = None) -> int:
    """Bytes that must cross memory: x in, y out; backward: dy and x in, dx out."""
    out_bytes = x.numel() * (out or x.dtype).itemsize
    return 2 * x.nbytes + out_bytes if backward else x.nbytes + out_bytes


def _check(x: Tensor, style: Tensor) -> None:
    if x.dim() != 4 or style.shape not in (x.shape[:2], (*x.shape[:2], 1, 1)):
        raise ValueError(
            f"need x [N, C, H, W] and style [N, C], got {tuple(x.shape)} and {tuple(style.shape)}"
        )


# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def scaled(x, style):
    """y."""
    return x * style


@triton.jit
def scaled_grad(g, x, style):
    """dx, and the terms that sum to dstyle."""
    return g * style, g * x


@triton.jit
def scaled_grad_grad(g, x, style, ddx, ddstyle):
    """Gradient of `scaled_grad` along (ddx, ddstyle): dg, dx, and the terms that sum to dstyle."""
    return ddx * style + ddstyle * x, ddstyle * g, ddx * g


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def modulate_kernel(
    x, style, y, C, P, stride_p, stride_c, tiles,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, _, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, 0, STEPS, BLOCK_P, BLOCK_C)
    s = tl.load(style + n * C + c, c < C, 0.0).to(ACC)
    tl.store(y + at, scaled(tl.load(x + at, inside, 0.0).to(ACC), s), inside)


@triton.jit
def modulate_grad_kernel(
    g, x, style, dx, dstyle, C, P, stride_p, stride_c, tiles,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx, and one row of partial sums of dstyle per program; either may be None."""
    total = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, _, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        s = tl.load(style + n * C + c, c < C, 0.0).to(ACC)
        x_value = tl.zeros([BLOCK_P, BLOCK_C], ACC)
        if dstyle is not None:
            x_value = tl.load(x + at, inside, 0.0).to(ACC)
        dx_value, term = scaled_grad(tl.load(g + at, inside, 0.0).to(ACC), x_value, s)
        total += term
        if dx is not None:
            tl.store(dx + at, dx_value, inside)
    if dstyle is not None:
        store_row(dstyle, tl.sum(total, 0), C, BLOCK_C)


@triton.jit
def modulate_grad_grad_kernel(
    g, x, style, ddx, ddstyle, dg, dx, dstyle, C, P, stride_p, stride_c, tiles,
    ACC: tl.constexpr, STEPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of `modulate_grad_kernel`; ddx or ddstyle may be None (zero), and so may the outputs dx and dstyle."""
    total = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for step in range(STEPS):
        n, _, c, at, inside = tile_offsets(C, P, stride_p, stride_c, tiles, step, STEPS, BLOCK_P, BLOCK_C)
        s = tl.load(style + n * C + c, c < C, 0.0).to(ACC)
        ddx_value = tl.zeros([BLOCK_P, BLOCK_C], ACC)
        x_value, g_value, dds = ddx_value, ddx_value, s * 0
        if ddx is not None:
            ddx_value = tl.load(ddx + at, inside, 0.0).to(ACC)
        if ddstyle is not None:
            dds = tl.load(ddstyle + n * C + c, c < C, 0.0).to(ACC)
            x_value = tl.load(x + at, inside, 0.0).to(ACC)
        if (dx is not None) or (dstyle is not None):
            g_value = tl.load(g + at, inside, 0.0).to(ACC)
        dg_value, dx_value, term = scaled_grad_grad(g_value, x_value, s, ddx_value, dds)
        total += term
        tl.store(dg + at, dg_value, inside)
        if dx is not None:
            tl.store(dx + at, dx_value, inside)
    if dstyle is not None:
        store_row(dstyle, tl.sum(total, 0), C, BLOCK_C)


# ---- autograd ----------------------------------------------------------------------------------------------------


def _launch(kernel, t: Tiling, dtype: torch.dtype, *pointers) -> None:
    if t.grid[0] * t.grid[1] == 0:
        return
    acc = tl.float64 if dtype is torch.float64 else tl.float32
    kernel[t.grid](*pointers, *t.sizes, ACC=acc, STEPS=t.steps, BLOCK_P=t.block_p, BLOCK_C=t.block_c)


class _Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, style, dtype):
        y = torch.empty_like(x, dtype=dtype)
        _launch(modulate_kernel, tiling(x.shape, is_nhwc(x)), x.dtype, x, style, y)
        ctx.save_for_backward(x, style)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None, None
        grad = _ModulateGrad.apply if torch.is_grad_enabled() else _grad
        return *grad(g, *ctx.saved_tensors, ctx.needs_input_grad[:2]), None


def _grad(g: Tensor, x: Tensor, style: Tensor, needs: tuple[bool, bool]):
    """dx and dstyle (None where not needed) for the gradient g of y."""
    nhwc = is_nhwc(x)
    g = dense_as(g, nhwc)
    t = tiling(x.shape, nhwc, reduce=needs[1])
    dx = torch.empty_like(x) if needs[0] else None
    dstyle = x.new_empty((t.samples, t.tiles, x.shape[1]), dtype=accumulator(x.dtype)) if needs[1] else None
    _launch(modulate_grad_kernel, t, x.dtype, g, x, style, dx, dstyle)
    return dx, dstyle.sum(1).view(style.shape).to(style.dtype) if needs[1] else None


class _ModulateGrad(torch.autograd.Function):
    """`_grad` as a function that can be differentiated itself."""

    @staticmethod
    def forward(ctx, g, x, style, needs):
        ctx.save_for_backward(g, x, style)
        ctx.set_materialize_grads(False)
        return _grad(g, x, style, needs)

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddstyle):
        if ddx is None and ddstyle is None:
            return None, None, None, None
        g, x, style = ctx.saved_tensors
        nhwc = is_nhwc(x)
        need_x = ctx.needs_input_grad[1] and ddstyle is not None
        need_style = ctx.needs_input_grad[2] and ddx is not None
        g = dense_as(g, nhwc)
        ddx = None if ddx is None else dense_as(ddx, nhwc)
        ddstyle = None if ddstyle is None else ddstyle.contiguous()
        t = tiling(x.shape, nhwc, reduce=need_style)
        dg = torch.empty_like(g)
        dx = torch.empty_like(x) if need_x else None
        rows = (t.samples, t.tiles, x.shape[1])
        dstyle = x.new_empty(rows, dtype=accumulator(x.dtype)) if need_style else None
        _launch(modulate_grad_grad_kernel, t, x.dtype, g, x, style, ddx, ddstyle, dg, dx, dstyle)
        return dg, dx, dstyle.sum(1).view(style.shape).to(style.dtype) if need_style else None, None
