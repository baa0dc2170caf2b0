"""The ops whose implementation a recipe chooses: plain PyTorch, or a fused kernel from ``kernels/``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite.config import Recipe
from stylegan_lite.resample import TAPS, conv_up, is_channels_last
from stylegan_lite.spectral import weight_and_gain
from stylegan_lite.step.recompute import recomputed

GAIN = math.sqrt(2.0)  # leaky ReLU 0.2 roughly halves the second moment
SLOPE = 0.2


def full(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or as it is when float64. Statistics and penalties are never taken in less."""
    return x if x.dtype == torch.float64 else x.float()


def convolution_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a convolution of ``x``: autocast's dtype where that is on, which leaves float64 alone."""
    kind = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


class _Rows(torch.autograd.Function):
    """The op of `rows`: one copy that casts and changes the layout, forward and backward."""

    @staticmethod
    def forward(ctx, x):
        layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
        ctx.size, ctx.like = x.shape, {"dtype": x.dtype, "memory_format": layout}
        return x.to(
            torch.promote_types(x.dtype, torch.float32), memory_format=torch.contiguous_format
        ).flatten(1)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(ctx.size).to(**ctx.like)


def rows(x: Tensor) -> Tensor:
    """Return [N, C, H, W] as [N, C * H * W] in full precision."""
    kept = x.dtype in (torch.float32, torch.float64) and x.is_contiguous()
    if kept or torch.compiler.is_compiling():
        return full(x).flatten(1)
    return _Rows.apply(x)


def one_batch(*images: Tensor) -> Tensor:
    """Return batches of images [N, 3, R, R] one after another, in the memory format of the last.

    The result has the dtype that the next convolution would cast it to. Each image is read once and written once.
    """
    last = images[-1]
    layout = torch.channels_last if is_channels_last(last) else torch.contiguous_format
    shape = (sum(map(len, images)), *last.shape[1:])
    joined = torch.empty(shape, dtype=convolution_dtype(last), device=last.device, memory_format=layout)
    start = 0
    for each in images:
        joined[start : start + len(each)].copy_(each)
        start += len(each)
    return joined


def convolutions(recipe: Recipe) -> ModuleType:
    """Return the module of ``conv2d`` and ``conv_transpose2d``: PyTorch's, or ours, which is fast
    to differentiate twice.
    """
    if recipe.conv == "aten":
        return F
    import kernels

    return kernels


def fused_dense(x: Tensor, layer: nn.Module) -> Tensor:
    """Compute a ``Dense`` layer as one kernel: [N, I] -> [N, O]."""
    import kernels

    weight, gain = weight_and_gain(layer)
    return kernels.dense(
        x,
        weight,
        layer.bias,
        weight_gain=gain,
        bias_gain=layer.bias_gain,
        act=layer.act,
        slope=SLOPE,
        gain=GAIN if layer.act else 1.0,
    )


def logistic_loss(logits: Tensor, fakes: int) -> Tensor:
    """Compute mean softplus(logits[:fakes]) + mean softplus(-logits[fakes:]) of logits [N, 1] in one launch."""
    from kernels.pointwise import logistic_loss as fused

    return fused.logistic_loss(logits, fakes)


def fused_affines(ws: Tensor, layers: list[nn.Module], slots: list[int]) -> list[Tensor]:
    """Compute ``Dense`` layers without activation as one kernel: [N, O] each, each from its own w of ws [N, num_ws,
    w_dim].
    """
    import kernels

    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    gains = {"weight_gain": layers[0].weight_gain, "bias_gain": layers[0].bias_gain}
    return kernels.dense_group(ws, weights, biases, slots, **gains)


def grouped_demodulation(layers: list[nn.Module], styles: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Compute demodulation coefficients [N, O] of ``ScaledWeight`` layers, with a style [N, I] each, in a few launches.

    Returns them, and the styles for the layers: gradients of both are added in one launch.
    """
    import kernels

    energies = [layer.energy for layer in layers]
    if any(energy is None for energy in energies):  # the energies are not kept
        energies = kernels.weight_energies([layer.weight for layer in layers])
    return kernels.demodulate_group_fork(energies, styles)


def styled_rgb(layers: list[nn.Module], styles: list[Tensor]) -> list[Tensor]:
    """Return the weights [N, 3, C] of ``ToRGB`` layers with their styles [N, C] in them, in one launch."""
    from kernels.linear.rgb_weights import styled_group

    return styled_group([layer.weight for layer in layers], styles)


def conv3x3(x: Tensor, weight: Tensor, up: bool, recipe: Recipe, filtered: bool = True) -> Tensor:
    """Compute [N, I, H, W] * [O, I, 3, 3] -> [N, O, H, W], or [N, O, 2H, 2W] with ``up``. ``filtered`` is as in
    ``conv_up``.
    """
    by = convolutions(recipe)
    if up:
        return conv_up(x, weight, recipe.resample, by=by, filtered=filtered)
    return by.conv2d(x, weight, padding=weight.shape[-1] // 2)


def modulated_conv2d(
    x: Tensor,
    weight: Tensor,
    style: Tensor,
    recipe: Recipe,
    *,
    up: bool = False,
    demodulate: bool = True,
    copy: Tensor | None = None,
    coefficients: Tensor | None = None,
    modulated: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute a convolution whose input channels are scaled for each sample (Karras et al. 2020, section 2.2).

    Args:
        x: [N, I, H, W].
        weight: [O, I, k, k].
        style: [N, I], full precision.
        demodulate: scale each output channel to unit expected norm.
        copy: the weight in the convolution's dtype, if it is kept (``weights: once``). Demodulation reads the weight.
        coefficients: demodulation's, if they have been made for all layers at once; never with modconv: grouped.
        modulated: x has been scaled by the style already (``recipe.fused_modulation``).

    Returns:
        [N, O, H', W'] in the dtype of convolutions, and the demodulation coefficients [N, O] that are still to be
            applied.
        The second is None if they have been applied, or if there are none. With ``recipe.fused_filter`` and ``up`` the
        filter is still to be applied as well.
    """
    kernel = weight if copy is None else copy
    if recipe.modconv == "grouped":
        return _modulated_conv2d_grouped(x, kernel, style, recipe, up, demodulate), None
    if recipe.fused_norm:
        import kernels

        x = x if modulated else kernels.modulate(x, style)
        y = conv3x3(x, kernel, up, recipe, not recipe.fused_filter)
        if demodulate and coefficients is None:
            coefficients = kernels.demodulate(weight, style)
        if coefficients is None or recipe.fused_act:  # fused_act applies the scale in its own pass
            return y, coefficients
        return kernels.modulate(y, coefficients), None
    y = conv3x3(x * style.to(x.dtype)[:, :, None, None], kernel, up, recipe, not recipe.fused_filter)
    if not demodulate:
        return y, None
    if coefficients is None:
        coefficients = demodulation(weight, style)
    if recipe.fused_act:
        return y, coefficients
    return y * coefficients.to(y.dtype)[:, :, None, None], None


def demodulation(weight: Tensor, style: Tensor, eps: float = 1e-8) -> Tensor:
    """Return rsqrt(sum over I, k, k of (weight * style)^2 + eps), [N, O], without weights for each sample."""
    with torch.autocast(style.device.type, enabled=False):
        energy = weight.square().sum((2, 3))  # [O, I]
        return (style.square() @ energy.t() + eps).rsqrt()


def _modulated_conv2d_grouped(
    x: Tensor, weight: Tensor, style: Tensor, recipe: Recipe, up: bool, demodulate: bool
) -> Tensor:
    """Compute it as the paper's code does: one weight tensor a sample, samples as groups of one convolution."""
    n, c_in, h, w = x.shape
    c_out, _, k, _ = weight.shape
    weights = weight[None] * style[:, None, :, None, None]  # [N, O, I, k, k]
    if demodulate:
        weights = weights * (weights.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    x = x.reshape(1, n * c_in, h, w)
    weights = weights.to(x.dtype)
    if not up:
        by_sample = weights.reshape(n * c_out, c_in, k, k)
        y = convolutions(recipe).conv2d(x, by_sample, padding=k // 2, groups=n)
        return y.reshape(n, c_out, h, w)
    by_input = weights.transpose(0, 1).reshape(c_out, n * c_in, k, k)
    filtered = not recipe.fused_filter
    y = conv_up(x, by_input, recipe.resample, groups=n, by=convolutions(recipe), filtered=filtered)
    return y.reshape(n, c_out, *y.shape[2:])


def bias_act(
    x: Tensor,
    bias: Tensor,
    recipe: Recipe,
    *,
    scale: Tensor | None = None,
    noise: Tensor | None = None,
    strength: Tensor | None = None,
    gain: float = GAIN,
    residual: Tensor | None = None,
    skip: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute leaky_relu(x * scale + noise * strength + bias) * gain (+ residual, or the 1x1 convolution of skip).

    Args:
        x: [N, C, H, W] or [N, C].
        bias: [C].
        scale: [N, C].
        noise: [N, 1, H, W].
        strength: [].
        residual: like x. With it there is neither scale nor noise, and fused_residual is on.
        skip: an image [N, I, H, W] and a weight [C, I, 1, 1], in place of residual.
    """
    if skip is not None:
        import kernels

        return recomputed(kernels.bias_act_skip, x, bias, *skip, gain=gain)
    if residual is not None:
        import kernels

        return kernels.bias_act_residual(x, bias, residual, gain=gain)
    if recipe.fused_act:
        import kernels

        how = {"noise": noise, "strength": strength, "scale": scale, "gain": gain}
        if scale is None:  # The op keeps its result, not x.
            return kernels.bias_act(x, bias, **how)
        return recomputed(kernels.bias_act, x, bias, **how)
    if noise is not None:
        x = x + (noise * strength).to(x.dtype)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    x = F.leaky_relu(x + bias.to(x.dtype).view(shape), SLOPE)
    return x if gain == 1 else x * gain


def bias_act_modulate(
    x: Tensor, bias: Tensor, style: Tensor, *, scale: Tensor | None, noise: Tensor, strength: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `bias_act` of x, and that times the style [N, C] of the next layer, in one pass."""
    import kernels

    how = {"scale": scale, "noise": noise, "strength": strength}
    return recomputed(kernels.bias_act_modulate, x, bias, style, slope=SLOPE, gain=GAIN, **how)


def clamped(x: Tensor, bound: float | None) -> Tensor:
    """Return x with its values limited to +-``bound``, in a pass of its own; x itself without a bound."""
    return x if bound is None else x.clamp(-bound, bound)


def act_filter(x: Tensor, bias: Tensor, gain: float) -> Tensor:
    """Compute ``bias_act`` and the filter before a halving convolution: [N, C, H, W] -> [N, C, H+1, W+1]."""
    import kernels

    how = {"padding": 2, "filter_gain": 1 / sum(TAPS) ** 2, "slope": SLOPE, "gain": gain}
    return recomputed(kernels.act_filter, x, bias, TAPS, **how)


def filter_act(
    x: Tensor,
    bias: Tensor,
    *,
    scale: Tensor | None,
    noise: Tensor,
    strength: Tensor,
    gain: float = GAIN,
    style: Tensor | None = None,
) -> Tensor:
    """Compute the filter after a doubling convolution, and ``bias_act``: [N, C, H+1, W+1] -> [N, C, H, W].

    style: [N, C], a factor on the result in the same pass.
    """
    import kernels

    how: dict[str, Any] = {"padding": 1, "filter_gain": 4 / sum(TAPS) ** 2, "slope": SLOPE, "gain": gain}
    how |= {"noise": noise, "strength": strength, "scale": scale}
    if style is not None:
        return recomputed(kernels.filter_act_modulate, x, TAPS, style, bias, **how)
    return recomputed(kernels.filter_act, x, TAPS, bias, **how)


def fused_norm(recipe: Recipe) -> Callable[..., Tensor]:
    """Return the fused instance norm: Triton's, or that of CUDA C++."""
    import kernels

    if not recipe.cuda_norm:
        return kernels.instance_norm_act
    import kernels.cuda

    return functools.partial(kernels.cuda.instance_norm_act, flags=kernels.cuda.Flags(recipe.fast_math))


def instance_norm_act(
    x: Tensor, scale: Tensor, bias: Tensor, noise: Tensor, strength: Tensor, recipe: Recipe, eps: float = 1e-5
) -> Tensor:
    """Compute leaky_relu(instance_norm(x + noise * strength) * scale + bias) * gain, statistics over H and W of each
    map.

    Args:
        x: [N, C, H, W].
        scale, bias: [N, C].
        noise: [N, 1, H, W].
        strength: [].
    """
    if recipe.fused_norm and recipe.fused_act:
        return fused_norm(recipe)(x, scale, bias, noise=noise, strength=strength, eps=eps, gain=GAIN)
    x = x + (noise * strength).to(x.dtype)
    if recipe.fused_norm:
        return fused_norm(recipe)(x, scale, bias, eps=eps, gain=GAIN)
    scale, bias = scale[:, :, None, None], bias[:, :, None, None].to(x.dtype)
    if recipe.instance_norm == "functional":
        x = F.instance_norm(x, eps=eps)
    else:  # This keeps channels_last. F.instance_norm reshapes to one long batch and copies to NCHW.
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        x = x - x.mean((2, 3), keepdim=True, dtype=wide).to(x.dtype)
        deviation = torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True, dtype=wide)
        variance = deviation.square() / (x.shape[2] * x.shape[3])
        scale = scale * (variance + eps).rsqrt()
    x = torch.addcmul(bias, x, scale.to(x.dtype))
    return F.leaky_relu(x, SLOPE) * GAIN
