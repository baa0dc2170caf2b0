"""A residual block's end with its skip: act(x + bias) * gain plus a 1x1 convolution of the skip's image, in one pass.

The skip of a discriminator's block is a product with few FLOPs for its bytes. Computed alone, it writes a map that
`bias_act_residual` only reads and adds. Here the product's epilogue is that op, so the map never crosses memory. A
program loads its pixels of x before the product, and needs them behind it.

No derivative is new. The gradient of y goes to the activation, as in `bias_act_residual`, and to the convolution, as in
`conv2d`. Both can be differentiated to any order that their own files tell.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import choices
from ..common.arguments import check_tensors
from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.needed import needed
from ..common.tiles import (
    INTERPRETED,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    new_image,
    output_dtype,
    store,
    tl,
    tl_accumulator,
    triton,
    widen,
)
from ..pointwise import residual as sums
from ..pointwise.bias_act import _BiasActGrad, activate, affine, backward
from . import conv2d

SMALL = 1 << 20  # elements of y; up to here large tiles leave multiprocessors idle
LARGEST = 1 << 31  # pixels; they are counted in 32 bits
GEOMETRY = conv2d.Geometry((1, 1), (0, 0), (0, 0), False, 1, nhwc=True)


def bias_act_skip(
    x: Tensor,
    bias: Tensor | None,
    low: Tensor,
    weight: Tensor,
    *,
    act: str = "lrelu",
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """Compute act(x + bias) * gain + conv2d(low, weight), fused. Differentiable twice.

    One kernel serves 16-bit images in channels_last memory on a GPU. Other calls are `conv2d` and `bias_act_residual`.

    Args:
        x: [N, O, H, W]; float16, bfloat16, float32 or float64.
        bias: [O].
        low: [N, I, H, W]. Another dtype or memory format than x's is converted.
        weight: [O, I, 1, 1].
        act, slope, gain: as `bias_act`.

    Returns y like x, in x.dtype (autocast's dtype under autocast), rounded once, after the sum.
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    _check(x, low, weight)
    dtype = output_dtype(x)
    x, low, weight = dense(x), low.to(dtype), weight.to(dtype)
    if torch.compiler.is_compiling() or not _served(x, low, dtype):
        product = conv2d.conv2d(low, weight)
        return sums.bias_act_residual(x, bias, product, act=act, slope=slope, gain=gain)
    slope, gain = sums._check_residual(x, bias, x, act, slope, gain)
    check_device(x)
    call = sums.ResidualCall(slope, gain, None, True, x.dtype)
    bias = None if bias is None else bias.contiguous()
    return _BiasActSkip.apply(x, bias, dense_as(low, True), dense_as(weight, True), call)


def bias_act_skip_reference(
    x: Tensor,
    bias: Tensor | None,
    low: Tensor,
    weight: Tensor,
    *,
    act: str = "lrelu",
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """Compute `bias_act_skip` in plain PyTorch. Arguments and result as `bias_act_skip`."""
    _check(x, low, weight)
    product = F.conv2d(low.to(output_dtype(x)), weight.to(output_dtype(x)))
    return sums.bias_act_residual_reference(x, bias, product, act=act, slope=slope, gain=gain)


def bytes_moved(x: Tensor, low: Tensor, weight: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: x, low and w in, y out.

    Backward: dy, x, low and w in; dx, dlow and dw out.
    """
    return (
        3 * x.nbytes + 2 * (low.nbytes + weight.nbytes)
        if backward
        else 2 * x.nbytes + low.nbytes + weight.nbytes
    )


def _check(x: Tensor, low: Tensor, weight: Tensor) -> None:
    check_tensors({"x": x, "low": low, "weight": weight})
    fits = x.dim() == low.dim() == weight.dim() == 4
    if not fits or low.shape != (len(x), weight.shape[1], *x.shape[2:]) or weight.shape[2:] != (1, 1):
        shapes = f"x {list(x.shape)}, low {list(low.shape)}, weight {list(weight.shape)}"
        raise ValueError(
            f"bias_act_skip: need x [N, O, H, W], low [N, I, H, W], weight [O, I, 1, 1], got {shapes}"
        )
    if weight.shape[0] != x.shape[1]:
        raise ValueError(f"bias_act_skip: x has {x.shape[1]} channels, weight makes {weight.shape[0]}")


def _served(x: Tensor, low: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the kernel takes this call."""
    if not (INTERPRETED or (x.is_cuda and x.dtype.itemsize == 2)) or x.dtype is not dtype:
        return False
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    return is_nhwc(x) and 0 < min(x.numel(), low.numel()) and pixels < LARGEST


# ---- launch ------------------------------------------------------------------------------------------------------


class Config(NamedTuple):
    """A tile: block_m pixels by block_n channels, block_k input channels at a time."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int  # blocks on their way from memory


# By (compute capability, size). The rows for (9, 0) were the fastest of those timed on an H200 (docs/log.md).
CONFIGS: dict[tuple[tuple[int, int] | None, str], Config] = {
    ((9, 0), "large"): Config(64, 128, 64, 4, 3),
    ((9, 0), "small"): Config(64, 64, 64, 4, 4),
    (None, "large"): Config(64, 64, 32, 4, 3),
    (None, "small"): Config(64, 64, 32, 4, 3),
}
_forced: list[Config] = []  # set by trials and by tests: the last one counts


def config(capability: tuple[int, int], elements: int) -> Config:
    """Return the entry of the table for a y of this many elements."""
    if _forced:
        return _forced[-1]
    size = "small" if elements <= SMALL else "large"
    entry = CONFIGS.get((capability, size)) or CONFIGS[None, size]
    choices.note("bias_act_skip", size, entry)
    return entry


def forward(x: Tensor, bias: Tensor | None, low: Tensor, weight: Tensor, call: sums.ResidualCall) -> Tensor:
    """Compute y, for images in channels_last memory and x's dtype."""
    (n, outputs, h, w), inputs = x.shape, low.shape[1]
    how = config(torch.cuda.get_device_capability(x.device) if x.is_cuda else (0, 0), x.numel())
    pixels = n * h * w
    y = new_image(x, outputs, (h, w), True, x.dtype)
    grid = (-(-pixels // how.block_m) * -(-outputs // how.block_n),)
    sizes = zip((pixels, outputs, inputs), (how.block_m, how.block_n, how.block_k), strict=True)
    launch_grid(
        bias_act_skip_kernel,
        grid,
        (x, bias, low, weight, y, pixels, inputs, outputs),
        STEPS=-(-inputs // how.block_k),
        WHOLE=all(size % block == 0 for size, block in sizes),
        SLOPE=call.slope,
        GAIN=call.gain,
        ACC=tl_accumulator(x.dtype),
        BLOCK_M=how.block_m,
        BLOCK_N=how.block_n,
        BLOCK_K=how.block_k,
        num_warps=how.warps,
        num_stages=how.stages,
    )
    return y


# ---- kernel ------------------------------------------------------------------------------------------------------


@triton.jit
def _block(pointers, inside, WHOLE: tl.constexpr):
    """Load a block in its own dtype, zero where not inside. WHOLE: all of it is inside."""
    if WHOLE:
        return tl.load(pointers)
    else:
        return tl.load(pointers, inside, 0.0)


if INTERPRETED:  # it would multiply the bits of bfloat16 as integers

    @triton.jit
    def _product(a, b, total, ACC: tl.constexpr):
        return tl.dot(a.to(ACC), b.to(ACC), total, input_precision="ieee", out_dtype=ACC)

else:

    @triton.jit
    def _product(a, b, total, ACC: tl.constexpr):
        return tl.dot(a, b, total, input_precision="ieee", out_dtype=ACC)


@triton.jit(do_not_specialize=["M"])
def bias_act_skip_kernel(
    x, bias, low, weight, y, M, I, O,
    STEPS: tl.constexpr, WHOLE: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y [M, O] = activation of x [M, O] + low [M, I] @ weight [O, I]^T, for BLOCK_M pixels, BLOCK_N channels.

    Programs of the same pixels are neighbours, so low comes from memory once.
    """
    after_previous(DEPENDENT)
    across = tl.cdiv(O, BLOCK_N)
    first = tl.program_id(0) // across * BLOCK_M
    m = tl.arange(0, BLOCK_M)[:, None]
    o = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    i = tl.arange(0, BLOCK_K)
    # 64 bits for the tile's start are enough. Offsets in it have 32.
    start, at = first.to(tl.int64) * O, m * O + o[None, :]
    inside = (m < M - first) & (o < O)[None, :]
    u = _block(x + start + at, inside, WHOLE)  # on its way while the product is computed
    lows = low + first.to(tl.int64) * I + (m * I + i[None, :])
    weights = weight + (o[None, :] * I + i[:, None])
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    for step in range(STEPS):
        k = step * BLOCK_K
        a = _block(lows + k, (m < M - first) & (i < I - k)[None, :], WHOLE)
        b = _block(weights + k, (o < O)[None, :] & (i < I - k)[:, None], WHOLE)
        total = _product(a, b, total, ACC)
    b = _block(bias + o, o < O, WHOLE).to(ACC)[None, :] if bias is not None else None
    u = affine(widen(u, ACC), None, None, None, b)
    store(y + start + at, activate(u, SLOPE, GAIN, None) + total, inside, WHOLE)


# ---- autograd ----------------------------------------------------------------------------------------------------


class _BiasActSkip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, low, weight, call):
        _, _, needs_low, needs_weight, _ = ctx.needs_input_grad
        kept = low if needs_weight else None, weight if needs_low or needs_weight else None
        ctx.save_for_backward(x if call.saves(False) else None, bias, *kept)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.size = call, low.shape
        return forward(x, bias, low, weight, call)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 5
        x, bias, low, weight = ctx.saved_tensors
        needs = needed(ctx, (True, bias is not None, True, True))
        g = dense_as(g, True)  # once for both
        dx = dbias = None
        if needs[0] or needs[1]:
            grad = _BiasActGrad.apply if torch.is_grad_enabled() else backward
            dx, dbias, _, _ = grad(g, x, bias, None, None, None, ctx.call, (*needs[:2], False, False))
        return dx, dbias, *conv2d.gradients(g, low, weight, GEOMETRY, ctx.size, needs[2], needs[3]), None
