"""Layers with equalized learning rate: unit-variance weights, scaled by He's constant at their use."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite import fp8
from stylegan_lite.config import Recipe
from stylegan_lite.ops import (
    GAIN,
    SLOPE,
    act_filter,
    bias_act,
    bias_act_modulate,
    clamped,
    conv3x3,
    convolution_dtype,
    convolutions,
    filter_act,
    full,
    fused_dense,
    instance_norm_act,
    modulated_conv2d,
)
from stylegan_lite.resample import conv_down
from stylegan_lite.spectral import weight_and_gain
from stylegan_lite.step.recompute import recomputed, spent
from stylegan_lite.weights import ScaledWeight


class Dense(nn.Module):
    """A fully connected layer in full precision, [N, I] -> [N, O]; optional leaky ReLU with gain sqrt(2).

    Args:
        lr_multiplier: scales the change of one optimizer step; weights are stored divided by it.
        bias_init: initial bias as it is applied.
        recipe: ``dense`` chooses between PyTorch's spelling and one kernel.
    """

    full_precision = True

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        act: bool = False,
        lr_multiplier: float = 1.0,
        bias_init: float = 0.0,
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / lr_multiplier)
        self.bias = nn.Parameter(torch.full((outputs,), bias_init / lr_multiplier))
        self.weight_gain = lr_multiplier / math.sqrt(inputs)
        self.bias_gain = lr_multiplier
        self.act = act
        self.fused = recipe is not None and recipe.dense == "triton"
        self.fp8 = recipe is not None and recipe.dense == "fp8" and fp8.fits(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return fused_dense(x, self)
        bias = self.bias if self.bias_gain == 1 else self.bias * self.bias_gain
        weight, gain = weight_and_gain(self)
        if self.fp8:
            y = fp8.linear(full(x), weight * gain) + bias
        else:
            y = F.linear(full(x), weight * gain, bias)
        return F.leaky_relu(y, SLOPE) * GAIN if self.act else y


class ModulatedConv(ScaledWeight):
    """A modulated 3x3 or 1x1 convolution, noise, bias, leaky ReLU: a layer of the synthesis network (``norm: demod``).

    ``forward(x [N, I, H, W], style [N, I], noise [N, 1, H', W'])`` -> [N, O, H', W'], doubled with ``up``. The
    demodulation ``coefficients`` [N, O] may be given. ``then`` [N, O] is the style of the next layer. That layer is
    then told that its input is ``modulated``. With ``up`` nothing else may read the result. Without it there are two
    results, the second of them modulated. ``clamp`` bounds the result.
    """

    style_init = 1.0
    demodulated = True

    def __init__(
        self,
        inputs: int,
        outputs: int,
        recipe: Recipe,
        *,
        up: bool,
        kernel: int = 3,
        clamp: float | None = None,
    ) -> None:
        super().__init__()
        self.clamp = clamp
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.noise_strength = nn.Parameter(torch.zeros([]))
        self.style_channels = inputs
        self.recipe = recipe
        self.up = up

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        noise: Tensor,
        coefficients: Tensor | None = None,
        *,
        then: Tensor | None = None,
        modulated: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        # Demodulation divides any constant out of the weights, He's constant included.
        known = {"copy": self.compute_copy, "coefficients": coefficients, "modulated": modulated}
        x, scale = modulated_conv2d(x, self.weight, style, self.recipe, up=self.up, **known)
        if self.up and self.recipe.fused_filter:
            return filter_act(
                x, self.bias, scale=scale, noise=noise, strength=self.noise_strength, style=then
            )
        rest = {"scale": scale, "noise": noise, "strength": self.noise_strength}
        if then is not None:
            return bias_act_modulate(x, self.bias, then, **rest)
        return clamped(bias_act(x, self.bias, self.recipe, **rest), self.clamp)


class NormalizedConv(ScaledWeight):
    """A 3x3 convolution, noise, instance norm with the style's affine, leaky ReLU (``norm: instance``; AdaIN).

    ``style`` is [N, 2 O]: an addend to a scale of one, then the bias (Huang & Belongie 2017; Karras et al. 2019).
    """

    style_init = 0.0

    def __init__(self, inputs: int, outputs: int, recipe: Recipe, *, up: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.noise_strength = nn.Parameter(torch.zeros([]))
        self.style_channels = 2 * outputs
        self.weight_gain = 1 / math.sqrt(inputs * 9)
        self.recipe = recipe
        self.up = up

    def forward(self, x: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        x = conv3x3(x, self.scaled_weight(), self.up, self.recipe)
        scale, bias = style.chunk(2, dim=1)
        return instance_norm_act(x, scale + 1, bias, noise, self.noise_strength, self.recipe)


class ToRGB(ScaledWeight):
    """A modulated 1x1 convolution to 3 channels without demodulation: [N, I, H, W] -> [N, 3, H, W], full precision.

    ``clamp`` bounds the result. A layer that ``adds`` takes an ``image`` [N, 3, H, W] to be added to it. The style may
    be the styled weight [N, 3, I] itself, as ``Generator.forward`` makes it for all blocks at once.
    """

    style_init = 1.0

    def __init__(self, inputs: int, recipe: Recipe, clamp: float | None = None) -> None:
        super().__init__()
        self.clamp = clamp
        self.weight = nn.Parameter(torch.randn(3, inputs, 1, 1))
        self.bias = nn.Parameter(torch.zeros(3))
        self.style_channels = inputs
        self.weight_gain = 1 / math.sqrt(inputs)
        self.recipe = recipe
        self.keeps_copy = recipe.rgb == "conv"
        self.adds = recipe.rgb == "triton" and clamp is None  # an image, in the same pass

    def forward(self, x: Tensor, style: Tensor, image: Tensor | None = None) -> Tensor:
        if self.recipe.rgb == "triton":
            import kernels

            dtype = torch.promote_types(x.dtype, torch.float32)
            how = {"gain": self.weight_gain, "dtype": dtype, "image": image}
            args = (style, None) if style.dim() == 3 else (self.weight, style)
            return clamped(kernels.to_rgb(x, *args, self.bias, **how), self.clamp)
        if self.compute_copy is None:
            style = style * self.weight_gain
        y, _ = modulated_conv2d(x, self.weight, style, self.recipe, demodulate=False, copy=self.compute_copy)
        return clamped(full(y) + self.bias.view(1, -1, 1, 1), self.clamp)


class Conv(ScaledWeight):
    """A convolution of the discriminator, optionally halving the resolution, bias and leaky ReLU (plus a residual).

    Args:
        kernel: 1 or 3.
        gain: gain of the activation; 1 where a residual sum follows, which divides by sqrt(2).
        act: without it neither bias nor activation; ``gain`` then scales the weights.
        shares_filter: the filter of a halving 3x3 convolution runs with the activation of the layer before. Both layers
            are told so.
        spare: channels of zeros that x has behind its ``inputs``; the parameter has no weights for them.
        clamp: bound of the activation at its usual gain; it follows a smaller ``gain``, as published.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        recipe: Recipe,
        *,
        down: bool = False,
        act: bool = True,
        gain: float = GAIN,
        shares_filter: bool = False,
        spare: int = 0,
        clamp: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if act else None
        self.weight_gain = (1.0 if act else gain) / math.sqrt(inputs * kernel**2)
        self.act_gain = gain
        self.recipe = recipe
        self.down = down
        self.shares_filter = shares_filter
        self.spare = spare
        self.clamp = None if clamp is None else clamp * gain / GAIN

    def forward(
        self, x: Tensor, residual: Tensor | None = None, skip: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        weight, by = self.scaled_weight(), convolutions(self.recipe)
        if self.spare:
            weight = F.pad(weight.to(convolution_dtype(weight)), (0, 0, 0, 0, 0, self.spare))
        if self.down:
            read, x = x, conv_down(x, weight, self.recipe.resample, by=by, filtered=self.shares_filter)
            if self.shares_filter:  # Nothing else reads it.
                spent(read)
        else:
            x = by.conv2d(x, weight, padding=weight.shape[-1] // 2)
            if self.shares_filter:
                return act_filter(x, self.bias, self.act_gain)
        if self.bias is None:
            return x
        x = bias_act(x, self.bias, self.recipe, gain=self.act_gain, residual=residual, skip=skip)
        return clamped(x, self.clamp)


class FromRGB(Conv):
    """The discriminator's first layer with ``rgb: triton``: 1x1 convolution of the image, bias and leaky ReLU."""

    full_precision = True  # of its weight, whatever convolutions run in

    def __init__(self, outputs: int, recipe: Recipe, clamp: float | None = None) -> None:
        super().__init__(3, outputs, 1, recipe, clamp=clamp)
        self.keeps_copy = False

    def forward(
        self, x: Tensor, residual: Tensor | None = None, skip: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        import kernels

        weight, gain = weight_and_gain(self)
        by_pixel = self.recipe.channels_last or None
        if self.recipe.fused_act and residual is None and skip is None:
            act = {"slope": SLOPE, "act_gain": self.act_gain}
            x = recomputed(kernels.from_rgb, x, weight, self.bias, gain=gain, channels_last=by_pixel, **act)
        else:
            x = kernels.from_rgb(x, weight, gain=gain, slope=1.0, act_gain=1.0, channels_last=by_pixel)
            x = bias_act(x, self.bias, self.recipe, gain=self.act_gain, residual=residual, skip=skip)
        return clamped(x, self.clamp)
