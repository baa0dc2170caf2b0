"""The op y = leaky_relu(instance_norm(x + noise * strength) * scale + bias) * gain: the tail of an AdaIN layer.

It is instance normalization (Ulyanov et al. 2016, arXiv:1607.08022) with the style's scale and bias for each sample and
channel (Karras et al. 2019, arXiv:1812.04948). The noise before it and the leaky ReLU after it are fused in. The op
reads x twice, once for the statistics and once to apply them, and writes y once. Eager PyTorch moves about four times
that. Large maps in NCHW memory have kernels of their own. There the L2 cache serves the second read
(`instance_norm_act_planes.py`).

Each program takes Welford's statistics, and Chan's rule joins them: a mean far from zero costs no digits. All sums over
pixels are partial sums added in a fixed order, so results are equal in every run. The kernels are in
`instance_norm_act_kernels.py`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.arguments import check_numbers, check_once, check_tensors
from ..common.launches import launch_grid
from ..common.needed import is_recorded, needed
from ..common.operators import OPERATORS, empty_like, operator, pick, place
from ..common.sums import Sums
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
)
from ..pointwise.noise import check_noise, noise_stride
from . import instance_norm_act_planes as planes
from .instance_norm_act_kernels import (
    instance_norm_act_grad_grad_kernel,
    instance_norm_act_grad_kernel,
    instance_norm_act_kernel,
    instance_norm_act_sums_kernel,
    join_moments_kernel,
    moments_kernel,
)


def instance_norm_act(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    eps: float = 1e-5,
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """Compute leaky_relu((u - mean) / sqrt(var + eps) * scale + bias) * gain with u = x + noise * strength, fused.

    Differentiable twice.

    Args:
        x: [N, C, H, W] (NCHW or channels_last, kept); float16, bfloat16, float32 or float64.
        scale, bias: [N, C].
        noise: [N, 1, H, W] or [1, 1, H, W].
        strength: scalar tensor.
        eps: added to the (biased) variance.
        slope: slope of the leaky ReLU.
        gain: sqrt(2) unless given.

    Returns y like x, in x.dtype (autocast's dtype under autocast). Statistics and sums are float32 (float64 for
    float64).
    Raises ValueError for shapes that do not fit, RuntimeError for a CPU tensor outside the interpreter.
    """
    _check(x, scale, bias, noise, strength, eps, slope, gain)
    check_device(x)
    gain = math.sqrt(2) if gain is None else float(gain)
    if noise is not None:
        # Gradients of noise are for projection: rare, so plain ops suffice.
        if noise.requires_grad and torch.is_grad_enabled():
            x, noise, strength = x + (noise * strength).to(x.dtype), None, None
        else:
            noise, strength = noise.contiguous(), strength.contiguous()
    scale, bias = scale.contiguous(), bias.contiguous()
    x = dense(x)
    arguments = (x, scale, bias, noise, strength, float(eps), float(slope), gain, output_dtype(x))
    if torch.compiler.is_compiling():
        return OPERATORS.instance_norm_act(*arguments)[0]
    if not is_recorded(*arguments[:5]):
        return forward(*arguments)[0]
    return _InstanceNormAct.apply(*arguments)


def instance_norm_act_reference(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    eps: float = 1e-5,
    slope: float = 0.2,
    gain: float | None = None,
) -> Tensor:
    """Compute `instance_norm_act` in plain PyTorch. Arguments and result as `instance_norm_act`."""
    _check(x, scale, bias, noise, strength, eps, slope, gain)
    u = x if noise is None else x + noise * strength
    var, mean = torch.var_mean(u.to(accumulator(x.dtype)), dim=(2, 3), correction=0, keepdim=True)
    h = (u - mean) * (var + eps).rsqrt()
    y = torch.nn.functional.leaky_relu(h * scale[:, :, None, None] + bias[:, :, None, None], slope)
    return (y * (math.sqrt(2) if gain is None else gain)).to(output_dtype(x))


def bytes_moved(
    x: Tensor, noise: Tensor | None = None, *, backward: bool = False, out: torch.dtype | None = None
) -> int:
    """Return the bytes that must cross memory if a plane fits on the chip: x in, y out; backward:
    dy and x in, dx out.
    """
    out_bytes = x.numel() * (out or x.dtype).itemsize
    activation = 2 * x.nbytes + out_bytes if backward else x.nbytes + out_bytes
    return activation + (noise.nbytes if noise is not None else 0)


@check_once
def _check(x, scale, bias, noise, strength, eps=0.0, slope=1.0, gain=None) -> None:
    check_tensors({"x": x, "scale": scale, "bias": bias}, noise=noise, strength=strength)
    check_numbers(slope=slope, gain=1.0 if gain is None else gain)
    check_numbers(0, eps=eps)
    if x.dim() != 4:
        raise ValueError(f"x must be a float tensor [N, C, H, W], got {x.dtype} {tuple(x.shape)}")
    n, c = x.shape[:2]
    if scale.shape != (n, c) or bias.shape != (n, c):
        raise ValueError(
            f"scale and bias must be [N, C] = {[n, c]}, got {tuple(scale.shape)} and {tuple(bias.shape)}"
        )
    check_noise(noise, strength, x)


# ---- autograd ----------------------------------------------------------------------------------------------------


def _tiling(x: Tensor, direction: str) -> Tiling:
    return tiling(x.shape, is_nhwc(x), "instance_norm_act", direction, x.dtype, x.device)


def _launch(kernel, t: Tiling, x: Tensor, noise: Tensor | None, *pointers, **constants) -> None:
    launch(kernel, t, pointers, x.dtype, noise_stride(noise), **constants)


def _moments(x: Tensor, noise: Tensor | None, strength: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and 1 / sqrt(var + eps) of x + noise * strength, both [N, C]."""
    t, acc = _tiling(x, "forward"), accumulator(x.dtype)
    mean, rstd = x.new_empty((2, *x.shape[:2]), dtype=acc)
    if x.numel():
        channels, pixels, *_, tiles, programs = t.sizes
        means, m2s = x.new_empty((2, t.rows, channels), dtype=acc)
        _launch(moments_kernel, t, x, noise, x, noise, strength, means, m2s)
        block_c = min(power_of_2(channels), 32)
        launch_grid(
            join_moments_kernel,
            (t.samples, -(-channels // block_c)),
            (means, m2s, mean, rstd, eps, channels, pixels, tiles, programs),
            PIXELS=t.options["BLOCK_P"],
            ACC=tl_accumulator(x.dtype),
            BLOCK_T=min(power_of_2(programs), 64),
            BLOCK_C=block_c,
        )
    return mean, rstd


def forward(x, scale, bias, noise, strength, eps: float, slope: float, gain: float, dtype: torch.dtype):
    """Return y, and the mean and rstd [N, C] of each map, for dense tensors."""
    if how := planes.walk(x):
        return planes.forward(x, scale, bias, noise, strength, eps, slope, gain, dtype, how)
    y = torch.empty_like(x, dtype=dtype)
    mean, rstd = _moments(x, noise, strength, eps)
    pointers = (x, noise, strength, scale, bias, mean, rstd, y)
    _launch(instance_norm_act_kernel, _tiling(x, "forward"), x, noise, *pointers, SLOPE=slope, GAIN=gain)
    return y, mean, rstd


def _sums(
    t: Tiling, x: Tensor, noise: Tensor | None, slope: float, gain: float, pointers: tuple, places: slice
):
    """Return the sums of `instance_norm_act_sums_kernel` that `places` names, [sums, N, C]."""
    five: list[Tensor | None] = [None] * 5
    out = x.new_empty((len(five[places]), *x.shape[:2]), dtype=accumulator(x.dtype))
    sums = Sums(t, x.dtype, out)
    five[places] = sums.into[0].view(out.shape[0], -1)
    _launch(instance_norm_act_sums_kernel, t, x, noise, *pointers, *five, SLOPE=slope, GAIN=gain)
    return sums.finish()[0]


def backward(
    g, x, scale, bias, noise, strength, mean, rstd, slope: float, gain: float, needs: tuple[bool, ...]
):
    """Return (dx, dscale, dbias, dstrength) for the gradient g of y (None where not needed), and
    the sums [2, N, C] used.
    """
    g, t = dense_as(g, is_nhwc(x)), _tiling(x, "backward")
    common = (g, x, noise, strength, scale, bias, mean, rstd)
    if how := planes.walk(x, 2):
        dx, dstrength, sums = planes.backward(*common, slope, gain, needs, how)
        return (dx, sums[0].to(scale.dtype), sums[1].to(bias.dtype), dstrength), sums
    sums = _sums(t, x, noise, slope, gain, (*common, None, None), slice(0, 2))
    dx = torch.empty_like(x) if needs[0] else None
    total = Sums(t, x.dtype, program=torch.empty_like(strength) if needs[3] else None)
    if needs[0] or needs[3]:
        pointers = (*common, *sums, dx, total.into[2])
        _launch(instance_norm_act_grad_kernel, t, x, noise, *pointers, SLOPE=slope, GAIN=gain)
    return (dx, sums[0].to(scale.dtype), sums[1].to(bias.dtype), total.finish()[2]), sums


def gradients(ctx, g: Tensor, backward: Callable[..., tuple]) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, scale, bias, noise and strength.

    They come from `backward` unless they will be differentiated themselves.

    Args:
        ctx: holds the five inputs, mean and rstd as saved tensors, and the constants slope and gain.
        backward: takes g, these and the needed ones of dx, dscale, dbias and dstrength. It returns the four.
    """
    saved = ctx.saved_tensors
    needs = needed(ctx, tuple(t is not None for t in saved[:5]))
    needs = (*needs[:3], needs[4])
    first = _InstanceNormActGrad.apply if torch.is_grad_enabled() else backward
    dx, dscale, dbias, dstrength = first(g, *saved, *ctx.constants, needs)
    return dx, dscale, dbias, None, dstrength


class _InstanceNormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, bias, noise, strength, eps, slope, gain, dtype):
        y, mean, rstd = forward(x, scale, bias, noise, strength, eps, slope, gain, dtype)
        ctx.save_for_backward(x, scale, bias, noise, strength, mean, rstd)
        ctx.constants = (slope, gain)
        return y

    @staticmethod
    def backward(ctx, g):
        return *gradients(ctx, g, lambda *arguments: backward(*arguments)[0]), None, None, None, None


class _InstanceNormActGrad(torch.autograd.Function):
    """`backward` as a function that can be differentiated itself. mean and rstd stand for the
    inputs that they came from.
    """

    @staticmethod
    def forward(ctx, g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs):
        grads, sums = backward(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs)
        ctx.save_for_backward(g, x, scale, bias, noise, strength, mean, rstd, sums)
        ctx.set_materialize_grads(False)
        ctx.constants = (slope, gain)
        return grads

    @staticmethod
    @once_differentiable
    def backward(ctx, ddx, ddscale, ddbias, ddstrength):
        if ddx is None and ddscale is None and ddbias is None and ddstrength is None:
            return (None,) * 11
        *saved, sums = ctx.saved_tensors
        needs = needed(ctx, tuple(t is not None for t in saved))
        g, x, scale, bias, noise, strength, mean, rstd = saved
        g, t = dense_as(g, is_nhwc(x)), _tiling(x, "double_backward")
        ddx = None if ddx is None else dense_as(ddx, is_nhwc(x))
        ddscale, ddbias = (d if d is None else d.contiguous() for d in (ddscale, ddbias))
        common = (g, x, noise, strength, scale, bias, mean, rstd, ddx, ddstrength)
        direction = _sums(t, x, noise, *ctx.constants, common, slice(2, 5))
        dg = torch.empty_like(g)
        dx = torch.empty_like(x) if needs[1] else None
        total = Sums(t, x.dtype, program=torch.empty_like(strength) if needs[5] else None)
        pointers = (*common, ddscale, ddbias, *sums, *direction, dg, dx, total.into[2])
        slope, gain = ctx.constants
        _launch(instance_norm_act_grad_grad_kernel, t, x, noise, *pointers, SLOPE=slope, GAIN=gain)
        (b, a), (v, w, d) = sums, direction
        dscale = (rstd * (d - (a * v + b * w) / max(t.sizes[1], 1))).to(scale.dtype) if needs[2] else None
        return dg, dx, dscale, None, None, total.finish()[2], None, None, None, None, None


# ---- the operator for torch.compile --------------------------------------------------------------------------------


@operator(
    "instance_norm_act",
    "(Tensor x, Tensor scale, Tensor bias, Tensor? noise, Tensor? strength, float eps, float slope, float"
    " gain, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
)
def instance_norm_act_operator(x, scale, bias, noise, strength, eps, slope, gain, dtype):
    """Compute y, and mean and rstd for the gradient. Gradients of these two are ignored."""
    y, mean, rstd = forward(x, scale, bias, noise, strength, eps, slope, gain, dtype)
    return y, mean.clone(), rstd.clone()  # They are halves of one tensor, and operators may not return views.


@instance_norm_act_operator.register_fake
def _(x, scale, bias, noise, strength, eps, slope, gain, dtype):
    mean = x.new_empty(x.shape[:2], dtype=accumulator(x.dtype))
    return torch.empty_like(x, dtype=dtype), mean, torch.empty_like(mean)


@operator(
    "instance_norm_act_grad",
    "(Tensor g, Tensor x, Tensor scale, Tensor bias, Tensor? noise, Tensor? strength, Tensor mean, Tensor"
    " rstd, float slope, float gain, bool[] needs) -> Tensor[]",
)
def instance_norm_act_grad(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs):
    inputs = (g, x, scale, bias, noise, strength, mean, rstd)
    (dx, dscale, dbias, dstrength), _ = backward(*inputs, slope, gain, needs)
    return pick((dx, dscale.clone(), dbias.clone(), dstrength), needs)


@instance_norm_act_grad.register_fake
def _(g, x, scale, bias, noise, strength, mean, rstd, slope, gain, needs):
    return empty_like((x, scale, bias, strength), needs)


def _instance_norm_act_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.constants = inputs[6:8]


def _instance_norm_act_gradient(ctx, g, *_):
    needs = [ctx.needs_input_grad[i] for i in (0, 1, 2, 4)]
    if torch.is_grad_enabled():
        grads = _InstanceNormActGrad.apply(g, *ctx.saved_tensors, *ctx.constants, needs)
    else:
        grads = place(instance_norm_act_grad(g, *ctx.saved_tensors, *ctx.constants, needs), needs)
    dx, dscale, dbias, dstrength = grads
    return dx, dscale, dbias, None, dstrength, None, None, None, None


instance_norm_act_operator.register_autograd(
    _instance_norm_act_gradient, setup_context=_instance_norm_act_context
)
