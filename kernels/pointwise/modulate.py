"""The op y = x * style with one factor for each sample and channel: style modulation, and the demodulation scale.

A modulated activation and a shared weight give the same result as StyleGAN2's weights for each sample (Karras et al.
2020, arXiv:1912.04958, eq. 1-3), without building those. Both gradients come from one pass over memory: dx = g * style
is written while dstyle = sum(g * x) is summed in a fixed order. The double backward is one pass, too.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.arguments import check_once, check_tensors, fits
from ..common.dependent_launch import after_previous
from ..common.needed import is_recorded, needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.sums import Sums, store_row
from ..common.tiles import (
    COUNTS,
    Tiling,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    launch,
    load,
    my_tiles,
    output_dtype,
    store,
    tile_at,
    tiling,
    tl,
    triton,
)


def modulate(x: Tensor, style: Tensor) -> Tensor:
    """Compute x [N, C, H, W] times style [N, C] (or [N, C, 1, 1]), fused. Differentiable twice.

    Args:
        x: NCHW or channels_last (kept); float16, bfloat16, float32 or float64.
        style: may have another dtype than x.

    Returns y in x.dtype (autocast's dtype under autocast). Sums are kept in float32 (float64 for float64).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    _check(x, style)
    check_device(x)
    run = _Modulate.apply if is_recorded(x, style) else forward
    if torch.compiler.is_compiling():
        run = OPERATORS.modulate
    return run(dense(x), style.contiguous(), output_dtype(x))


def modulate_reference(x: Tensor, style: Tensor) -> Tensor:
    """Compute `modulate` in plain PyTorch. Arguments, result dtype and memory format as `modulate`."""
    _check(x, style)
    return (x * style.view(*x.shape[:2], 1, 1)).to(output_dtype(x))


def bytes_moved(x: Tensor, *, backward: bool = False, out: torch.dtype | None = None) -> int:
    """Return the bytes that must cross memory: x in, y out; backward: dy and x in, dx out."""
    out_bytes = x.numel() * (out or x.dtype).itemsize
    return 2 * x.nbytes + out_bytes if backward else x.nbytes + out_bytes


@check_once
def _check(x: Tensor, style: Tensor) -> None:
    check_tensors({"x": x, "style": style})
    if x.dim() != 4 or not fits(style.shape, x.shape[:2], (*x.shape[:2], 1, 1)):
        raise ValueError(
            f"need x [N, C, H, W] and style [N, C], got {tuple(x.shape)} and {tuple(style.shape)}"
        )


# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def scaled(x, style):
    """Compute y."""
    return x * style


@triton.jit
def scaled_grad(g, x, style):
    """Compute dx, and the terms that sum to dstyle."""
    return g * style, g * x


@triton.jit
def scaled_grad_grad(g, x, style, ddx, ddstyle):
    """Compute the gradient of `scaled_grad` along (ddx, ddstyle): dg, dx, and the terms that sum to dstyle."""
    return ddx * style + ddstyle * x, ddstyle * g, ddx * g


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
def modulate_kernel(
    x, style, y, C, P, stride_p, stride_c, tiles, programs, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(style + n * C + c, c < C, WHOLE, ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        _, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        store(y + at + ij, scaled(load(x + at + ij, inside, WHOLE, ACC), s), inside, WHOLE)


@triton.jit(do_not_specialize=COUNTS)
def modulate_grad_kernel(
    g, x, style, dx, dstyle, C, P, stride_p, stride_c, tiles, programs, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx, and each program's sums of dstyle over its pixels. Either may be None."""
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(style + n * C + c, c < C, WHOLE, ACC)
    total = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        _, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        g_value = load(g + at + ij, inside, WHOLE, ACC)
        x_value = load(x + at + ij, inside, WHOLE, ACC) if dstyle is not None else g_value
        dx_value, term = scaled_grad(g_value, x_value, s)
        if dstyle is not None:
            total += term
        if dx is not None:
            store(dx + at + ij, dx_value, inside, WHOLE)
    if dstyle is not None:
        store_row(dstyle, total, C, BLOCK_C)


@triton.jit(do_not_specialize=COUNTS)
def modulate_grad_grad_kernel(
    g, x, style, ddx, ddstyle, dg, dx, dstyle, C, P, stride_p, stride_c, tiles, programs, ACC: tl.constexpr,
    WALK: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of `modulate_grad_kernel`. ddx or ddstyle may be None (zero), and so may dx and dstyle."""
    after_previous(DEPENDENT)
    n, first, end, c, base, i, ij = my_tiles(
        C, P, stride_p, stride_c, tiles, programs, WALK, BLOCK_P, BLOCK_C
    )
    s = load(style + n * C + c, c < C, WHOLE, ACC)
    dds = load(ddstyle + n * C + c, c < C, WHOLE, ACC) if ddstyle is not None else s * 0
    total = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for tile in tl.range(first, end, programs, num_stages=STAGES):
        _, at, inside = tile_at(tile, base, i, c, C, P, stride_p, BLOCK_P)
        zero = tl.zeros([BLOCK_P, BLOCK_C], ACC)
        ddx_value = load(ddx + at + ij, inside, WHOLE, ACC) if ddx is not None else zero
        x_value = load(x + at + ij, inside, WHOLE, ACC) if ddstyle is not None else zero
        g_value = zero
        if (dx is not None) or (dstyle is not None):
            g_value = load(g + at + ij, inside, WHOLE, ACC)
        dg_value, dx_value, term = scaled_grad_grad(g_value, x_value, s, ddx_value, dds)
        if dstyle is not None:
            total += term
        store(dg + at + ij, dg_value, inside, WHOLE)
        if dx is not None:
            store(dx + at + ij, dx_value, inside, WHOLE)
    if dstyle is not None:
        store_row(dstyle, total, C, BLOCK_C)


# ---- autograd ----------------------------------------------------------------------------------------------------


def _tiling(x: Tensor, nhwc: bool, direction: str) -> Tiling:
    return tiling(x.shape, nhwc, "modulate", direction, x.dtype, x.device)


def forward(x: Tensor, style: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute y for dense tensors."""
    y = torch.empty_like(x, dtype=dtype)
    launch(modulate_kernel, _tiling(x, is_nhwc(x), "forward"), (x, style, y), x.dtype)
    return y


def backward(g: Tensor, x: Tensor, style: Tensor, needs: tuple[bool, ...]):
    """Compute dx and dstyle (None where not needed) for the gradient g of y."""
    nhwc = is_nhwc(x)
    g, t = dense_as(g, nhwc), _tiling(x, nhwc, "backward")
    dx = torch.empty_like(x) if needs[0] else None
    sums = Sums(t, x.dtype, torch.empty_like(style) if needs[1] else None)
    launch(modulate_grad_kernel, t, (g, x, style, dx, sums.into[0]), x.dtype)
    return dx, sums.finish()[0]


class _Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, style, dtype):
        ctx.save_for_backward(x, style)
        ctx.set_materialize_grads(False)
        return forward(x, style, dtype)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None, None
        grad = _ModulateGrad.apply if torch.is_grad_enabled() else backward
        return *grad(g, *ctx.saved_tensors, needed(ctx)[:2]), None


class _ModulateGrad(torch.autograd.Function):
    """`backward` as a function that can be differentiated itself."""

    @staticmethod
    def forward(ctx, g, x, style, needs):
        ctx.save_for_backward(g, x, style)
        ctx.set_materialize_grads(False)
        return backward(g, x, style, needs)

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddstyle):
        if ddx is None and ddstyle is None:
            return None, None, None, None
        g, x, style = ctx.saved_tensors
        needs, nhwc = needed(ctx), is_nhwc(x)
        t = _tiling(x, nhwc, "double_backward")
        g = dense_as(g, nhwc)
        ddx = None if ddx is None else dense_as(ddx, nhwc)
        ddstyle = None if ddstyle is None else ddstyle.contiguous()
        dg = torch.empty_like(g)
        dx = torch.empty_like(x) if needs[1] and ddstyle is not None else None
        sums = Sums(t, x.dtype, torch.empty_like(style) if needs[2] and ddx is not None else None)
        pointers = (g, x, style, ddx, ddstyle, dg, dx, sums.into[0])
        launch(modulate_grad_grad_kernel, t, pointers, x.dtype)
        return dg, dx, sums.finish()[0], None


# ---- the operator for torch.compile --------------------------------------------------------------------------------


@operator("modulate", "(Tensor x, Tensor style, ScalarType dtype) -> Tensor")
def modulate_operator(x, style, dtype):
    return forward(x, style, dtype)


@modulate_operator.register_fake
def _(x, style, dtype):
    return torch.empty_like(x, dtype=dtype)


@operator("modulate_grad", "(Tensor g, Tensor x, Tensor style, bool[] needs) -> Tensor[]")
def modulate_grad(g, x, style, needs):
    return pick(backward(g, x, style, needs), needs)


@modulate_grad.register_fake
def _(g, x, style, needs):
    return empty_like((x, style), needs)


def _modulate_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def _modulate_gradient(ctx, g):
    needs = list(ctx.needs_input_grad[:2])
    if torch.is_grad_enabled():
        return *_ModulateGrad.apply(g, *ctx.saved_tensors, needs), None
    return *place(modulate_grad(g, *ctx.saved_tensors, needs), needs), None


modulate_operator.register_autograd(_modulate_gradient, setup_context=_modulate_context)
