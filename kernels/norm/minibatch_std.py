"""The standard deviation over groups of samples, appended to x as one channel, in one pass. The gradient is one pass,
too.

This is the minibatch standard deviation of Karras et al. 2018 (arXiv:1710.10196, section 3), behind the last block of
StyleGAN2's discriminator. Plain PyTorch launches ten small kernels on a tensor that fits into the cache, and as many
backward. Here one program for each sample computes its group's deviation. The samples of a group compute the same
number, which costs less than a second launch. The program writes the sample, the new channel, and channels of zeros up
to a multiple that tensor cores read without a copy. Sums are in a fixed order.

The double backward (R1) differentiates the gradient as plain PyTorch spells it.
"""

import torch
from torch import Tensor

from ..common.arguments import WHOLE, check_numbers, check_once, check_tensors
from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.tiles import (
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    new_image,
    power_of_2,
    tl,
    tl_accumulator,
    triton,
)

EPS = 1e-8
TILE = 2048  # elements of each sample of a group that a program holds at a time
WARPS = 8


def minibatch_std(x: Tensor, group: int, *, parts: int = 1, multiple: int = 1) -> Tensor:
    """Append the deviation of each group to x: [N, C, H, W] -> [N, C + 1, H, W], fused. Differentiable twice.

    Args:
        x: NCHW or channels_last (kept); float16, bfloat16, float32 or float64. Autocast leaves its dtype alone.
        group: samples of a group; fewer where a part has fewer. Groups are strided: sample n of a part is in group
            n mod (samples / group).
        parts: batches that follow one another along N. Each has groups of its own.
        multiple: channels of zeros follow until the number of channels is a multiple of this.

    Statistics are kept in float32 (float64).
    Raises ValueError for what does not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    group = _check(x, group, parts, multiple)
    if torch.compiler.is_compiling():  # The compiler fuses small operations by itself.
        return minibatch_std_reference(x, group, parts=parts, multiple=multiple)
    check_device(x)
    return _MinibatchStd.apply(dense(x), group, parts, -(-(x.shape[1] + 1) // multiple) * multiple)


def minibatch_std_reference(x: Tensor, group: int, *, parts: int = 1, multiple: int = 1) -> Tensor:
    """Compute `minibatch_std` in plain PyTorch. Arguments, result dtype and memory format as `minibatch_std`."""
    group = _check(x, group, parts, multiple)
    n, c, h, w = x.shape
    wide = x.to(accumulator(x.dtype)).reshape(parts, group, -1, c, h, w)
    deviation = (wide.var(1, correction=0) + EPS).sqrt().mean((2, 3, 4))
    channel = deviation.to(x.dtype).repeat(1, group).view(n, 1, 1, 1).expand(n, 1, h, w)
    y = torch.cat([x, channel, x.new_zeros(n, -(c + 1) % multiple, h, w)], 1)
    return dense_as(y, is_nhwc(dense(x)))


def bytes_moved(x: Tensor, y: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: x in, y out; backward: dy and x in, dx out."""
    return (2 if backward else 1) * x.nbytes + y.nbytes


@check_once
def _check(x: Tensor, group: int, parts: int, multiple: int) -> int:
    """Validate the arguments, and return the size of a group."""
    check_tensors({"x": x})
    if x.dim() != 4 or 0 in x.shape[1:]:
        raise ValueError(
            f"x must be a float tensor [N, C, H, W] of some size, got {x.dtype} {tuple(x.shape)}"
        )
    check_numbers(1, kinds=WHOLE, group=group, parts=parts, multiple=multiple)
    if not x.shape[0]:
        return 1  # There are no samples, so groups of any size are right.
    group = min(group, x.shape[0] // parts)
    if group == 0 or x.shape[0] % (parts * group):
        raise ValueError(f"{x.shape[0]} samples are not {parts} parts of whole groups of {max(group, 1)}")
    return group


# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def mean_and_deviation(values, GROUP: tl.constexpr, EPS: tl.constexpr):
    """Compute the mean and the deviation of a tuple of tiles, one for each sample of a group."""
    mean = values[0]
    for k in tl.static_range(1, GROUP):
        mean += values[k]
    mean = mean / GROUP
    square = (values[0] - mean) * (values[0] - mean)
    for k in tl.static_range(1, GROUP):
        square += (values[k] - mean) * (values[k] - mean)
    return mean, tl.sqrt(square / GROUP + EPS)


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def load_group(x, step, inside, GROUP: tl.constexpr, ACC: tl.constexpr):
    """Load a tile of each sample of a group. Samples of a group lie `step` apart."""
    values = ()
    for k in tl.static_range(GROUP):
        values += (tl.load(x + k * step, inside, 0.0).to(ACC),)
    return values


@triton.jit
def minibatch_std_kernel(
    x, y, C, P, OC, stride_p, stride_c, stride_yp, stride_yc, part, groups,
    GROUP: tl.constexpr, EPS: tl.constexpr, ACC: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write sample n of y [N, OC, P]: x, then the group's deviation, then zeros. A part has `groups` groups."""
    after_previous(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    size = tl.full([], 1, tl.int64) * C * P
    first = x + (n // part * part + n % part % groups) * size
    i = tl.arange(0, BLOCK_P)[:, None]
    j = tl.arange(0, BLOCK_C)[None, :]
    total = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for p0 in range(0, P, BLOCK_P):
        for c0 in range(0, C, BLOCK_C):
            inside = (p0 + i < P) & (c0 + j < C)
            at = (p0 + i) * stride_p + (c0 + j) * stride_c
            values = load_group(first + at, groups * size, inside, GROUP, ACC)
            _, deviation = mean_and_deviation(values, GROUP, EPS)
            total += tl.where(inside, deviation, 0.0)
    statistic = tl.sum(tl.sum(total, 0), 0) / size.to(ACC)
    y += n * OC * P
    for p0 in range(0, P, BLOCK_P):
        for c0 in range(0, OC, BLOCK_C):
            p, c = p0 + i, c0 + j
            value = tl.load(x + n * size + (p * stride_p + c * stride_c), (p < P) & (c < C), 0.0).to(ACC)
            value = tl.where(c == C, statistic, value)
            tl.store(y + (p * stride_yp + c * stride_yc), value, (p < P) & (c < OC))


@triton.jit
def minibatch_std_grad_kernel(
    g, x, dx, C, P, OC, stride_p, stride_c, stride_yp, stride_yc, part, groups,
    GROUP: tl.constexpr, EPS: tl.constexpr, ACC: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write sample n of dx: its own part of g, and the share that the group's deviation sends back to it."""
    after_previous(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    size = tl.full([], 1, tl.int64) * C * P
    first = n // part * part + n % part % groups
    i = tl.arange(0, BLOCK_P)[:, None]
    j = tl.arange(0, BLOCK_C)[None, :]
    sums = tl.zeros([BLOCK_P, 1], ACC)
    for p0 in range(0, P, BLOCK_P):
        for k in tl.static_range(GROUP):
            channel = g + (first + k * groups) * OC * P + C * stride_yc
            sums += tl.load(channel + (p0 + i) * stride_yp, p0 + i < P, 0.0).to(ACC)
    statistic = tl.sum(tl.sum(sums, 0), 0) / (size * GROUP).to(ACC)
    for p0 in range(0, P, BLOCK_P):
        for c0 in range(0, C, BLOCK_C):
            p, c = p0 + i, c0 + j
            inside = (p < P) & (c < C)
            at = p * stride_p + c * stride_c
            values = load_group(x + first * size + at, groups * size, inside, GROUP, ACC)
            mean, deviation = mean_and_deviation(values, GROUP, EPS)
            own = tl.load(x + n * size + at, inside, 0.0).to(ACC)
            du = tl.load(g + n * OC * P + (p * stride_yp + c * stride_yc), inside, 0.0).to(ACC)
            tl.store(dx + n * size + at, du + statistic * (own - mean) / deviation, inside)


def _launch(kernel, tensors: tuple[Tensor, ...], x: Tensor, width: int, group: int, parts: int) -> None:
    """Launch one program for each sample. `width`: channels of y."""
    n, c, h, w = x.shape
    if not n:
        return
    pixels, part = h * w, n // parts
    if is_nhwc(x):
        strides = c, 1, width, 1
        block_c = min(power_of_2(c), 512)
        block_p = min(power_of_2(pixels), max(TILE // block_c, 1))
    else:
        strides = 1, pixels, 1, pixels
        block_p = min(power_of_2(pixels), TILE)
        block_c = min(power_of_2(c), max(TILE // block_p, 1))
    launch_grid(
        kernel,
        (n,),
        (*tensors, c, pixels, width, *strides, part, part // group),
        GROUP=group,
        EPS=EPS,
        ACC=tl_accumulator(x.dtype),
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        num_warps=WARPS,
    )


# ---- autograd ----------------------------------------------------------------------------------------------------


def gradient_in_plain_pytorch(g: Tensor, x: Tensor, group: int, parts: int) -> Tensor:
    """Compute the result of `minibatch_std_grad_kernel` in operations that autograd can differentiate."""
    _, c, h, w = x.shape
    acc = accumulator(x.dtype)
    wide = x.to(acc).reshape(parts, group, -1, c, h, w)
    centred = wide - wide.mean(1, keepdim=True)
    deviation = (centred.square().mean(1, keepdim=True) + EPS).sqrt()
    statistic = g[:, c].to(acc).reshape(parts, group, -1, h * w).sum((1, 3)) / (group * c * h * w)
    back = statistic.view(parts, 1, -1, 1, 1, 1) * centred / deviation
    return dense_as((back.reshape(x.shape) + g[:, :c]).to(x.dtype), is_nhwc(x))


class _MinibatchStd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, parts, width):
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        ctx.group, ctx.parts, ctx.width = group, parts, width
        y = new_image(x, width, x.shape[2:], is_nhwc(x), x.dtype)
        _launch(minibatch_std_kernel, (x, y), x, width, group, parts)
        return y

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None, None, None
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return gradient_in_plain_pytorch(g, x, ctx.group, ctx.parts), None, None, None
        dx = torch.empty_like(x)
        tensors = dense_as(g, is_nhwc(x)), x, dx
        _launch(minibatch_std_grad_kernel, tensors, x, ctx.width, ctx.group, ctx.parts)
        return dx, None, None, None
