"""Cheaper layers in the place of a block's 3x3 convolution: levers that change the model, fields of a workload.

Each is a spatial part of few FLOPs and a 1x1 convolution that mixes channels. The 1x1 convolution is the layer of
`stylegan_lite.layers`: it carries modulation, demodulation, noise, bias and activation. Per pixel, C to C channels:

| convolution | spatial part | 1x1 | multiply-adds |
|---|---|---|---|
| full | | | 9 C^2 |
| separable | 3x3 of each channel by itself | C to C | C^2 + 9 C |
| grouped | 3x3 in 8 groups of channels | C to C | 2.1 C^2 |
| inverted_residual | 1x1 from C to 2 C, 3x3 of each channel, both with leaky ReLU | 2 C to C | 4 C^2 + 18 C |

Separable: Chollet 2017 (arXiv:1610.02357). Grouped: Xie et al. 2017 (arXiv:1611.05431). Inverted residual: Sandler et
al. 2018 (arXiv:1801.04381), whose sum needs as many channels out as in and the same resolution. A layer
that doubles the resolution upsamples first. In a layer that halves it the 1x1 convolution filters and halves, as the
residual skip does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite.config import Recipe, Workload
from stylegan_lite.layers import Conv, ModulatedConv, NormalizedConv
from stylegan_lite.ops import GAIN, SLOPE, convolutions
from stylegan_lite.resample import upsample2d
from stylegan_lite.weights import ScaledWeight

GROUPS = 8  # or the channels, if they are fewer
EXPANSION = 2


class Spatial(ScaledWeight):
    """A convolution of k x k pixels in groups of channels, without bias: [N, I, H, W] -> [N, O, H, W]."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, groups: int, recipe: Recipe, *, act: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs // groups, kernel, kernel))
        self.weight_gain = 1 / math.sqrt(inputs // groups * kernel**2)
        self.groups, self.recipe, self.act = groups, recipe, act

    def forward(self, x: Tensor) -> Tensor:
        weight = self.scaled_weight()
        x = convolutions(self.recipe).conv2d(x, weight, padding=weight.shape[-1] // 2, groups=self.groups)
        return F.leaky_relu(x, SLOPE) * GAIN if self.act else x


class Cheaper(nn.Module):
    """A spatial part and the layer of 1x1 convolutions behind it, called as that layer is.

    Args:
        layer: makes the 1x1 layer from its input channels.
        up: the image is doubled before both.
        keeps: whether the layer keeps the resolution. An inverted residual then adds the image to as many channels.
    """

    def __init__(
        self, inputs: int, outputs: int, workload: Workload, recipe: Recipe, layer: Callable[[int], Any], *,
        up: bool = False, keeps: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        wide, parts = inputs, []
        if workload.convolution == "inverted_residual":
            wide = EXPANSION * inputs
            parts.append(Spatial(inputs, wide, 1, 1, recipe, act=True))
        groups = math.gcd(GROUPS, inputs) if workload.convolution == "grouped" else wide
        parts.append(Spatial(wide, wide, 3, groups, recipe, act=len(parts) > 0))
        self.spatial = nn.Sequential(*parts)
        self.core = layer(wide)
        self.recipe, self.up = recipe, up
        self.sums = len(parts) > 1 and keeps and inputs == outputs

    @property
    def style_init(self) -> float:
        return self.core.style_init

    @property
    def style_channels(self) -> int:
        return self.core.style_channels

    def forward(self, x: Tensor, *args: Any, **how: Any) -> Tensor:
        if self.up:
            x = upsample2d(x, self.recipe.resample, convolutions(self.recipe))
        y = self.core(self.spatial(x), *args, **how)
        return (x + y) * math.sqrt(0.5) if self.sums else y


def synthesis_layer(workload: Workload, recipe: Recipe, inputs: int, outputs: int, *, up: bool) -> nn.Module:
    """Return a layer of the generator's blocks, as the workload has them."""
    if workload.norm == "instance":
        return NormalizedConv(inputs, outputs, recipe, up=up)
    if workload.convolution == "full":
        return ModulatedConv(inputs, outputs, recipe, up=up, clamp=workload.conv_clamp)

    def layer(wide: int) -> nn.Module:
        return ModulatedConv(wide, outputs, recipe, up=False, kernel=1, clamp=workload.conv_clamp)

    return Cheaper(inputs, outputs, workload, recipe, layer, up=up)


def discriminator_layer(
    workload: Workload, recipe: Recipe, inputs: int, outputs: int, **how: Any
) -> nn.Module:
    """Return a layer of the discriminator's blocks, as the workload has them. ``how`` is as in ``Conv``."""
    if workload.convolution == "full":
        return Conv(inputs, outputs, 3, recipe, **how)

    def layer(wide: int) -> nn.Module:
        return Conv(wide, outputs, 1, recipe, **how)

    return Cheaper(inputs, outputs, workload, recipe, layer, keeps=not how.get("down", False))
