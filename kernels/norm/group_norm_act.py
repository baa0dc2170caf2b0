"""The op y = act(group_norm(x)): group normalization (Wu and He 2018, arXiv:1803.08494) with the activation behind it.

PyTorch's `group_norm` takes NCHW alone: channels_last tensors are copied on the way in, and all that follows is NCHW.
Under autocast it computes in float32, and so does the activation behind it. This op reads x twice and writes y once, in
x's memory format and in autocast's dtype; its gradient reads g and x twice and writes dx. Statistics and sums are
float32, from partial sums that are added in a fixed order, so results are equal in every run.

The gradient of a gradient is composed of PyTorch's operators. A pass that will be differentiated computes its gradient
that way, too. The kernels are in `norm_act_kernels.py`, and `batch_norm_act.py` runs them with other groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.arguments import check_flags, check_numbers, check_once, check_tensors
from ..common.launches import launch_grid
from ..common.needed import is_recorded, needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.tiles import (
    Tiling,
    accumulator,
    check_device,
    dense,
    dense_as,
    is_nhwc,
    launch,
    output_dtype,
    power_of_2,
    tiling,
    tl_accumulator,
    without_autocast,
)
from .instance_norm_act_kernels import moments_kernel
from .norm_act_kernels import (
    join_groups_kernel,
    join_sums_kernel,
    norm_act_grad_kernel,
    norm_act_kernel,
    norm_act_sums_kernel,
)

# A joining program waits for memory, so it loads many numbers at a time. A batch norm has up to a thousand rows.
TOGETHER = 8192
COLUMNS = 8  # channels that it joins side by side, where each is a group of its own: 32 bytes


class Norm(NamedTuple):
    """The plain facts of one call."""

    groups: int  # of each sample; 0: each channel is one group of all samples (batch norm)
    eps: float
    silu: bool
    slope: float  # of the leaky ReLU, if not silu; 1: no activation

    def size(self, x: Tensor) -> int:
        """Return how many numbers share a mean."""
        return x.numel() // max((x.shape[0] * self.groups) if self.groups else x.shape[1], 1)

    def split(self, x: Tensor) -> Tensor:
        """Return x [N, C, H, W] or [1, C, 1, 1] with channels as [groups, C / groups]."""
        return x.unflatten(1, (self.groups, -1)) if self.groups else x

    @property
    def shared(self) -> tuple[int, ...]:
        """The dimensions of `split` that share a mean."""
        return (2, 3, 4) if self.groups else (0, 2, 3)


def group_norm_act(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    silu: bool = False,
    slope: float = 1.0,
) -> Tensor:
    """Compute act(group_norm(x, groups) * weight + bias), fused. Differentiable any number of times.

    Args:
        x: [N, C, ...] (NCHW or channels_last, kept); float16, bfloat16, float32 or float64.
        groups: a divisor of C. Each group of each sample has a mean and a variance.
        weight, bias: [C].
        eps: added to the (biased) variance.
        silu: whether the activation is SiLU.
        slope: else, slope of a leaky ReLU; by default there is no activation.

    Returns y like x, in x.dtype (autocast's dtype under autocast). Statistics and sums are float32 (float64 for
    float64).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside the interpreter.
    """
    check(x, weight, bias, groups, eps, silu, slope)
    return run(x, weight, bias, Norm(groups, float(eps), bool(silu), float(slope)))


def group_norm_act_reference(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    silu: bool = False,
    slope: float = 1.0,
) -> Tensor:
    """Compute `group_norm_act` in plain PyTorch. Arguments and result as `group_norm_act`."""
    check(x, weight, bias, groups, eps, silu, slope)
    return compose(x, weight, bias, Norm(groups, float(eps), bool(silu), float(slope)))


def bytes_moved(x: Tensor, *, backward: bool = False, out: torch.dtype | None = None) -> int:
    """Return the bytes that must cross memory if a group fits on the chip: x in, y out; backward: g, x in, dx out."""
    y = x.numel() * (out or x.dtype).itemsize
    return 2 * x.nbytes + y if backward else x.nbytes + y


@check_once
def check(x, weight, bias, groups=1, eps=0.0, silu=False, slope=1.0, **buffers) -> None:
    """Raise ValueError for arguments that do not fit. `buffers` are of shape [C], too."""
    check_tensors({"x": x}, weight=weight, bias=bias, **buffers)
    check_numbers(slope=slope)
    check_numbers(0, eps=eps)
    check_flags(silu=silu)
    check_numbers(1, kinds=(int, torch.SymInt), groups=groups)
    if x.dim() < 2:
        raise ValueError(f"x must be a float tensor [N, C, ...], got {x.dtype} {tuple(x.shape)}")
    c = x.shape[1]
    if c % groups:
        raise ValueError(f"groups must divide the {c} channels, got {groups}")
    for name, t in {"weight": weight, "bias": bias, **buffers}.items():
        if t is not None and t.shape != (c,):
            raise ValueError(f"{name} must be [C] = [{c}], got {tuple(t.shape)}")


def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm, running: tuple = ()) -> Tensor:
    """Return y for any x. `running`: running mean and variance [C], and how far they move."""
    check_device(x)
    if x.dim() != 4:
        y = run(x.reshape(*x.shape[:2], math.prod(x.shape[2:]), 1), weight, bias, norm, running)
        return y.reshape(x.shape)
    x = dense(x)
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    if torch.compiler.is_compiling():
        y, mean, rstd = OPERATORS.norm_act(x, weight, bias, *norm, output_dtype(x))
        if running:
            size, (running_mean, running_var, momentum) = norm.size(x), running
            variance = (rstd.pow(-2) - norm.eps) * (size / (size - 1))
            running_mean.lerp_(mean[0].to(running_mean.dtype), momentum)
            running_var.lerp_(variance[0].to(running_var.dtype), momentum)
        return y
    if not is_recorded(x, weight, bias):
        return forward(x, weight, bias, norm, output_dtype(x), running)[0]
    return _NormAct.apply(x, weight, bias, norm, output_dtype(x), running)


# ---- in plain PyTorch ----------------------------------------------------------------------------------------------


def compose(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
    """Return y, of PyTorch's operators."""
    if x.dim() != 4:
        y = compose(x.reshape(*x.shape[:2], math.prod(x.shape[2:]), 1), weight, bias, norm)
        return y.reshape(x.shape)
    with without_autocast(x):
        z = _affine(x, weight, bias, norm)[0]
        y = torch.nn.functional.silu(z) if norm.silu else torch.nn.functional.leaky_relu(z, norm.slope)
    return (y.flatten(1, 2) if norm.groups else y).to(output_dtype(x))


def compose_gradients(
    g: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return dx, dweight and dbias, of PyTorch's operators, so that they can be differentiated."""
    with without_autocast(x):
        z, h, rstd, scale = _affine(x, weight, bias, norm)
        g = norm.split(g.to(h.dtype))
        if norm.silu:
            s = z.sigmoid()
            dz = g * s * (1 + z * (1 - s))
        else:
            dz = torch.where(z > 0, g, g * norm.slope)
        dh = dz if scale is None else dz * scale
        inner = dh - dh.mean(norm.shared, True) - h * (dh * h).mean(norm.shared, True)
        dx = (inner * rstd).flatten(1, 2) if norm.groups else inner * rstd
        over = (0, -2, -1)
        dweight = None if weight is None else (dz * h).sum(over).flatten().to(weight.dtype)
        return dx.to(x.dtype), dweight, None if bias is None else dz.sum(over).flatten().to(bias.dtype)


def _affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return z = h * weight + bias, the normalized h, rstd, and the weight, all as `Norm.split` has them."""
    acc = accumulator(x.dtype)
    u = norm.split(x.to(acc))
    var, mean = torch.var_mean(u, norm.shared, correction=0, keepdim=True)
    rstd = (var + norm.eps).rsqrt()
    h = (u - mean) * rstd
    scale, shift = (None if t is None else norm.split(t.to(acc).view(1, -1, 1, 1)) for t in (weight, bias))
    z = h if scale is None else h * scale
    return z if shift is None else z + shift, h, rstd, scale


# ---- launches ------------------------------------------------------------------------------------------------------


def _tiling(x: Tensor, norm: Norm, direction: str) -> Tiling:
    """Return the tiles of instance norm, whose passes are alike."""
    name = "instance_norm_act"
    return tiling(x.shape, is_nhwc(x), name, direction, x.dtype, x.device, merge=not norm.groups)


def _pass(kernel, t: Tiling, x: Tensor, norm: Norm, *pointers) -> None:
    width = x.shape[1] // norm.groups if norm.groups else 1
    launch(kernel, t, pointers, x.dtype, norm.groups, width, SILU=norm.silu, SLOPE=norm.slope)


def _join(kernel, t: Tiling, x: Tensor, norm: Norm, *arguments, **constants) -> None:
    """Launch a kernel that joins rows: a program for each group of each sample, or for COLUMNS channels."""
    channels = x.shape[1]
    rows = t.programs if norm.groups else t.rows
    width = channels // norm.groups if norm.groups else 1
    block_c = power_of_2(width) if norm.groups else min(power_of_2(channels), COLUMNS)
    block_r = min(power_of_2(rows), max(TOGETHER // block_c, 1))
    grid = (x.shape[0], norm.groups) if norm.groups else (1, -(-channels // block_c))
    launch_grid(
        kernel,
        grid,
        (*arguments, rows, norm.groups, width, norm.size(x)),
        **constants,
        GROUPED=norm.groups > 0,
        ACC=tl_accumulator(x.dtype),
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        num_warps=8 if block_r * block_c >= 4096 else 4,
        enable_fp_fusion=False,  # else a lane's product joins its neighbour's sum, and each lane has another number
    )


def forward(x, weight, bias, norm: Norm, dtype: torch.dtype, running: tuple = ()):
    """Return y, and mean and rstd of each group [N, groups], in batch norm [1, C]."""
    y, acc = torch.empty_like(x, dtype=dtype), accumulator(x.dtype)
    shape = (x.shape[0], norm.groups) if norm.groups else (1, x.shape[1])
    mean, rstd = x.new_empty((2, *shape), dtype=acc)
    if x.numel():
        t = _tiling(x, norm, "forward")
        channels, pixels, *_, tiles, programs = t.sizes
        means, m2s = x.new_empty((2, t.rows, channels), dtype=acc)
        launch(moments_kernel, t, (x, None, None, means, m2s), x.dtype, 0)
        running_mean, running_var, momentum = running or (None, None, 0.0)
        statistics = (means, m2s, mean, rstd, running_mean, running_var, momentum)
        facts = (channels, pixels, tiles, programs)
        _join(join_groups_kernel, t, x, norm, *statistics, *facts, PIXELS=t.options["BLOCK_P"], EPS=norm.eps)
        _pass(norm_act_kernel, t, x, norm, x, weight, bias, mean, rstd, y)
    return y, mean, rstd


def backward(g, x, weight, bias, mean, rstd, norm: Norm, needs: Sequence[bool]):
    """Return dx, dweight and dbias (None where not needed) for the gradient g of y."""
    g, acc = dense_as(g, is_nhwc(x)), mean.dtype
    sums = x.new_zeros if not x.numel() else x.new_empty
    both = sums((2, x.shape[0] if norm.groups else 1, x.shape[1]), dtype=acc)
    dx = torch.empty_like(x) if needs[0] else None
    if x.numel():
        t = _tiling(x, norm, "backward")
        rows = x.new_empty((2, t.rows, x.shape[1]), dtype=acc)
        _pass(norm_act_sums_kernel, t, x, norm, g, x, weight, bias, mean, rstd, *rows)
        means = mean.new_empty((2, *mean.shape))
        _join(join_sums_kernel, t, x, norm, *rows, weight, *both, *means, x.shape[1])
        if dx is not None:
            _pass(norm_act_grad_kernel, t, x, norm, g, x, weight, bias, mean, rstd, *means, dx)
    if not (needs[1] or needs[2]):
        return dx, None, None
    dbias, dweight = both.sum(1) if norm.groups else both[:, 0]
    return dx, dweight.to(weight.dtype) if needs[1] else None, dbias.to(bias.dtype) if needs[2] else None


# ---- autograd ------------------------------------------------------------------------------------------------------


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, norm, dtype, running):
        y, mean, rstd = forward(x, weight, bias, norm, dtype, running)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.norm = norm
        return y

    @staticmethod
    def backward(ctx, g):
        saved = ctx.saved_tensors  # read once: a checkpointed block runs again for it
        needs = needed(ctx, tuple(t is not None for t in saved[:3]))[:3]
        if torch.is_grad_enabled():
            return *_compose(ctx, g, saved, needs), None, None, None
        return *backward(g, *saved, ctx.norm, needs), None, None, None


def _compose(ctx, g: Tensor, saved: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients of x, weight and bias that are needed, to be differentiated themselves."""
    grads = compose_gradients(g, *saved[:3], ctx.norm)
    return [grad if need else None for grad, need in zip(grads, needs, strict=True)]


# ---- the operator for torch.compile --------------------------------------------------------------------------------

FACTS = "int groups, float eps, bool silu, float slope"


@operator(
    "norm_act",
    f"(Tensor x, Tensor? weight, Tensor? bias, {FACTS}, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
)
def norm_act(x, weight, bias, groups, eps, silu, slope, dtype):
    """Compute y, and mean and rstd for the gradient. Gradients of these two are ignored."""
    y, mean, rstd = forward(x, weight, bias, Norm(groups, eps, silu, slope), dtype)
    return y, mean.clone(), rstd.clone()  # They are halves of one tensor, and operators may not return views.


@norm_act.register_fake
def _(x, weight, bias, groups, eps, silu, slope, dtype):
    shape = (x.shape[0], groups) if groups else (1, x.shape[1])
    mean = x.new_empty(shape, dtype=accumulator(x.dtype))
    return torch.empty_like(x, dtype=dtype), mean, torch.empty_like(mean)


@operator(
    "norm_act_grad",
    f"(Tensor g, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd, {FACTS}, bool[] needs) -> Tensor[]",
)
def norm_act_grad(g, x, weight, bias, mean, rstd, groups, eps, silu, slope, needs):
    norm = Norm(groups, eps, silu, slope)
    dx, *rest = backward(g, x, weight, bias, mean, rstd, norm, needs)
    return pick((dx, *(None if t is None else t.clone() for t in rest)), needs)


@norm_act_grad.register_fake
def _(g, x, weight, bias, mean, rstd, groups, eps, silu, slope, needs):
    return empty_like((x, weight, bias), needs)


def _context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output[1:])
    ctx.norm = Norm(*inputs[3:7])


def _gradient(ctx, g, *_):
    saved, needs = ctx.saved_tensors, ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():
        return *_compose(ctx, g, saved, needs), *(None,) * 5
    return *place(norm_act_grad(g, *saved, *ctx.norm, needs), needs), *(None,) * 5


norm_act.register_autograd(_gradient, setup_context=_context)
