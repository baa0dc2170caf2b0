"""StyleGAN2 (Karras et al. 2020, arXiv:1912.04958): mapping, synthesis (skip) and discriminator (resnet) networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite.config import Recipe, Workload, check_configs
from stylegan_lite.layers import Conv, Dense, FromRGB, ModulatedConv, ToRGB
from stylegan_lite.levers import discriminator_layer, synthesis_layer
from stylegan_lite.ops import (
    convolution_dtype,
    convolutions,
    full,
    fused_affines,
    grouped_demodulation,
    rows,
    styled_rgb,
)
from stylegan_lite.resample import fork_down, is_channels_last, upsample2d
from stylegan_lite.spectral import SpectralWeights, constrain
from stylegan_lite.step.recompute import Kind, passes, spent, through


class Mapping(nn.Module):
    """The map z [N, z_dim] -> w [N, w_dim], full precision whatever the recipe. It tracks the
    average w for truncation.
    """

    def __init__(self, workload: Workload, recipe: Recipe) -> None:
        super().__init__()
        check_configs(workload, recipe)
        widths = [workload.z_dim] + [workload.w_dim] * workload.mapping_layers
        self.layers = nn.ModuleList(
            Dense(a, b, act=True, lr_multiplier=0.01, recipe=recipe) for a, b in itertools.pairwise(widths)
        )
        self.register_buffer("w_avg", torch.zeros(workload.w_dim))
        self.w_avg_beta = workload.w_avg_beta

    def forward(self, z: Tensor) -> Tensor:
        x = full(z)
        x = F.rms_norm(x, x.shape[1:], eps=1e-8)
        for layer in self.layers:
            x = layer(x)
        return x

    def track(self, w: Tensor, mean: Callable[[Tensor], Tensor | None] = lambda own: own) -> None:
        """Move ``w_avg`` towards the batch mean of ``w`` [N, w_dim].

        ``mean`` makes the mean of a part that of the whole batch. It is None while parts are still to come.
        """
        if (whole := mean(w.detach().mean(0))) is not None:
            self.w_avg.lerp_(whole, 1 - self.w_avg_beta)


class SynthesisBlock(nn.Module):
    """One resolution: an upsampling and a plain layer, and the skip image's update.

    4x4 has only the plain layer, and with ``block_layers: 1`` the others only the upsampling one.
    """

    def __init__(self, workload: Workload, recipe: Recipe, resolution: int) -> None:
        super().__init__()
        check_configs(workload, recipe)
        channels = workload.fmaps(resolution)
        self.recipe = recipe
        self.conv0 = self.conv1 = None
        if resolution > 4:
            self.conv0 = synthesis_layer(workload, recipe, workload.fmaps(resolution // 2), channels, up=True)
        if resolution == 4 or workload.block_layers == 2:
            self.conv1 = synthesis_layer(workload, recipe, channels, channels, up=False)
        # Only conv1 reads conv0's result. toRGB reads conv1's result as well, with another style.
        self.joined = recipe.fused_modulation and isinstance(self.conv1, ModulatedConv) and resolution > 4
        self.modulates_next = recipe.fused_modulation and isinstance(self.conv1, ModulatedConv)
        clamp = {"clamp": workload.conv_clamp} if workload.norm == "demod" else {}
        self.to_rgb = ToRGB(channels, recipe, **clamp)
        for name, module in list(self.named_children()):
            affine = Dense(workload.w_dim, module.style_channels, bias_init=module.style_init, recipe=recipe)
            self.add_module(f"affine_{name}", affine)

    @property
    def affines(self) -> list[Dense]:
        """Return the layers that make the styles of this block's layers, in order. Each reads the next w."""
        return [getattr(self, f"affine_{name}") for name, _ in self.layers] + [self.affine_to_rgb]

    @property
    def layers(self) -> list[tuple[str, nn.Module]]:
        """Return the convolutions of this block with their names, in order."""
        both = (("conv0", self.conv0), ("conv1", self.conv1))
        return [(name, layer) for name, layer in both if layer is not None]

    def styles(self, w: list[Tensor]) -> list[Tensor]:
        """Return full-precision styles of this block's layers from their w's, [N, w_dim] each. ``w`` starts at the
        first layer's.
        """
        return [affine(w[k]) for k, affine in enumerate(self.affines)]

    def forward(
        self,
        x: Tensor,
        image: Tensor | None,
        styles: list[Tensor],
        noise: list[Tensor],
        coefficients: list[Tensor],
        then: Tensor | None = None,
        modulated: bool = False,
    ):
        """Return what the next block reads, and the image. ``then`` is the style of that block's first layer, which is
        told that its input is ``modulated``.
        """
        if self.conv0 is not None:
            how = ({"then": styles[1]} if self.joined else {}) | ({"modulated": True} if modulated else {})
            x = self.conv0(x, styles[0], noise[0], *coefficients[:1], **how)
        if self.conv1 is not None:
            how = ({"modulated": True} if self.joined else {}) | ({} if then is None else {"then": then})
            x = self.conv1(x, styles[-2], noise[-1], *coefficients[-1:], **how)
        x, following = x if then is not None else (x, x)
        if image is not None:
            image = upsample2d(image, self.recipe.resample, convolutions(self.recipe))
        if image is None or self.to_rgb.adds:
            return following, self.to_rgb(x, styles[-1], image)
        return following, image + self.to_rgb(x, styles[-1])


class Generator(nn.Module):
    """Mapping and synthesis.

    ``forward(ws, noise)``: ``ws`` [N, num_ws, w_dim], ``noise`` from :meth:`noise_shapes` -> image [N, 3, R, R], full
    precision, unbounded. A block's toRGB shares its w with the next block's first layer, as published. Raises
    ConfigError unless made with a Workload and a Recipe.
    """

    again: Kind = ""  # what backward runs once more; set for each phase

    def __init__(self, workload: Workload, recipe: Recipe) -> None:
        super().__init__()
        check_configs(workload, recipe)
        # Backward calls it once only gradients of ``last`` are to come.
        self.notice: Callable[[], None] | None = None
        self.workload = workload
        self.first_ws = [0] + [1 + workload.block_layers * k for k in range(len(workload.resolutions) - 1)]
        self.num_ws = self.first_ws[-1] + workload.block_layers + 1
        self.mapping = Mapping(workload, recipe)
        self.const = nn.Parameter(torch.randn(workload.fmaps(4), 4, 4))
        self.blocks = nn.ModuleList(SynthesisBlock(workload, recipe, r) for r in workload.resolutions)
        self.grouped = recipe.demodulation == "grouped" and workload.norm == "demod"

    @property
    def last(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients a backward pass finds last."""
        return [*self.mapping.parameters()]

    def noise_shapes(self, batch: int) -> list[tuple[int, int, int, int]]:
        """Return one [N, 1, H, W] for each 3x3 layer, from 4x4 up."""
        layers = self.workload.block_layers
        return [(batch, 1, r, r) for r in self.workload.resolutions for _ in range(1 if r == 4 else layers)]

    def styles(self, ws: Tensor, first: list[int]) -> list[list[Tensor]]:
        """Return full-precision styles of each block's layers, [N, C] each. ``first``: the w that a block's first layer
        reads.
        """
        if not self.blocks[0].affine_conv1.fused:
            w = ws.unbind(1)
            return [block.styles(w[k:]) for block, k in zip(self.blocks, first, strict=True)]
        own = [(k + j, a) for b, k in zip(self.blocks, first, strict=True) for j, a in enumerate(b.affines)]
        found = iter(fused_affines(ws, [affine for _, affine in own], [slot for slot, _ in own]))
        return [[next(found) for _ in block.affines] for block in self.blocks]

    def coefficients(self, styles: list[list[Tensor]]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Return demodulation coefficients of each block's layers, and the styles to use with them.

        There are no coefficients if layers make their own, or have none.
        """
        if not self.grouped:
            return [[] for _ in self.blocks], styles
        layers = [[layer for _, layer in block.layers] for block in self.blocks]
        theirs = [style for each in styles for style in each[:-1]]  # the last style is toRGB's
        found, theirs = map(iter, grouped_demodulation([layer for each in layers for layer in each], theirs))
        own = [[*(next(theirs) for _ in each[:-1]), each[-1]] for each in styles]
        return [[next(found) for _ in each] for each in layers], own

    def forward(self, ws: Tensor, noise: list[Tensor]) -> Tensor:
        tell(self.notice, ws)
        with torch.autocast(ws.device.type, enabled=False):
            styles = self.styles(ws, self.first_ws)
            coefficients, styles = self.coefficients(styles)
            if self.blocks[0].to_rgb.recipe.rgb == "triton":
                weights = styled_rgb([block.to_rgb for block in self.blocks], [each[-1] for each in styles])
                styles = [[*each[:-1], weight] for each, weight in zip(styles, weights, strict=True)]
        x, image = self.const.expand(len(ws), -1, -1, -1), None
        last = self.blocks[0].conv1.recipe.channels_last
        x = x.to(convolution_dtype(x), memory_format=torch.channels_last if last else torch.preserve_format)
        modulated = False
        following = [each[0] for each in styles[1:]] + [None]
        parts = zip(self.blocks, self.first_ws, styles, coefficients, following, strict=True)
        with passes(self.again):
            for block, k, style, scales, then in parts:
                part, then = noise[k : k + len(style) - 1], then if block.modulates_next else None
                x, image = through(block, self.again, x, image, style, part, scales, then, modulated)
                modulated = then is not None
        return image


def tell(notice: Callable[[], None] | None, x: Tensor) -> None:
    """Have backward call ``notice`` once it has the gradient of x."""
    if notice is not None and x.requires_grad:
        x.register_hook(lambda gradient: notice())


class DiscriminatorBlock(nn.Module):
    """A residual block, [N, I, H, W] -> [N, O, H/2, W/2]. Both branches carry 1 / sqrt(2) in their gains."""

    def __init__(self, workload: Workload, recipe: Recipe, resolution: int) -> None:
        super().__init__()
        check_configs(workload, recipe)
        inputs, outputs = workload.fmaps(resolution), workload.fmaps(resolution // 2)
        both: dict[str, Any] = {"shares_filter": recipe.fused_filter, "clamp": workload.conv_clamp}
        self.conv0 = None
        if workload.block_layers == 2:
            self.conv0 = discriminator_layer(workload, recipe, inputs, inputs, **both)
        self.conv1 = discriminator_layer(workload, recipe, inputs, outputs, down=True, gain=1.0, **both)
        self.fused = recipe.fused_residual
        self.forks = self.fused and recipe.resample == "triton"  # x is filtered where the skip branches off
        # The skip's product then runs in the activation's kernel.
        self.joins = self.forks and recipe.channels_last and recipe.conv == "double_backward"
        self.skip = Conv(inputs, outputs, 1, recipe, down=not self.forks, act=False, gain=math.sqrt(0.5))

    def forward(self, x: Tensor) -> Tensor:
        if not self.fused:
            return self.conv1(self.plain(x)) + self.skip(x)
        x, low = fork_down(x) if self.forks else (x, x)
        y = self.plain(x)
        if self.forks and self.conv0 is not None:
            spent(x)
        if self.joins:
            return self.conv1(y, skip=(low, self.skip.scaled_weight()))
        return self.conv1(y, residual=self.skip(low))

    def plain(self, x: Tensor) -> Tensor:
        """Return what the layer that keeps the resolution makes of x: x itself with ``block_layers: 1``."""
        return x if self.conv0 is None else self.conv0(x)


def minibatch_std(x: Tensor, group: int, parts: int = 1, multiple: int = 1) -> Tensor:
    """Append the standard deviation over groups of samples as one channel: [N, C, H, W] -> [N, C + 1, H, W].

    Statistics are in full precision (Karras et al. 2018, section 3). Groups are strided as published: sample n is in
    group n mod (N / group).

    Args:
        parts: batches that follow one another along N; each has groups of its own, as if it came alone.
        multiple: channels of zeros follow until the number of channels is a multiple of this.
    """
    n, c, h, w = x.shape
    group = min(group, n // parts)
    deviation = full(x).view(parts, group, n // parts // group, c, h, w)
    deviation = (deviation.var(1, correction=0) + 1e-8).sqrt().mean((2, 3, 4))  # [parts, N / parts / group]
    channel = deviation.to(x.dtype).repeat(1, group).view(n, 1, 1, 1).expand(n, 1, h, w)
    spare = -(c + 1) % multiple
    zeros = [x.new_zeros(()).expand(n, spare, h, w)] if spare else []
    y = torch.cat([x, channel, *zeros], dim=1)
    return y.contiguous(memory_format=torch.channels_last) if is_channels_last(x) else y


class Discriminator(nn.Module):
    """The map from image [N, 3, R, R] to logits [N, 1], full precision.

    ``parts`` batches may follow one another along N: no statistic is taken over samples of two of them. Raises
    ConfigError unless made with a Workload and a Recipe.
    """

    again: Kind = ""  # what backward runs once more; set for each phase

    def __init__(self, workload: Workload, recipe: Recipe) -> None:
        super().__init__()
        check_configs(workload, recipe)
        self.notice: Callable[[], None] | None = None  # as the generator's
        top = workload.fmaps(4)
        self.group = workload.mbstd_group
        widest = workload.fmaps(workload.resolution)
        clamp = workload.conv_clamp
        self.from_rgb: Conv = (
            FromRGB(widest, recipe, clamp)
            if recipe.rgb == "triton"
            else Conv(3, widest, 1, recipe, clamp=clamp)
        )
        self.blocks = nn.ModuleList(
            DiscriminatorBlock(workload, recipe, r) for r in reversed(workload.resolutions[1:])
        )
        # Layers behind this block have nearly all weights, and backward passes them first.
        self.deep = next(k for k, r in enumerate(reversed(workload.resolutions)) if workload.fmaps(r) == top)
        # Without a multiple of 8 channels, cuDNN copies image and weight to tensors that have one, in every call.
        self.multiple = 8 if recipe.joint_batch else 1
        self.conv = Conv(top + 1, top, 3, recipe, spare=-(top + 1) % self.multiple, clamp=clamp)
        self.fused_std = recipe.joint_batch and recipe.fused_norm
        self.hidden = Dense(top * 16, top, act=True, recipe=recipe)
        self.logit = Dense(top, 1, recipe=recipe)
        if workload.spectral_norm:
            constrain(self)
        self.spectral_weights = SpectralWeights(self, recipe)

    @property
    def last(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients a backward pass finds last."""
        return [p for part in (self.from_rgb, *self.blocks[: self.deep]) for p in part.parameters()]

    def forward(self, image: Tensor, parts: int = 1) -> Tensor:
        if len(image) % parts:
            raise ValueError(f"{len(image)} images are not {parts} batches of one size")
        if not self.spectral_weights.fused or torch.compiler.is_compiling():
            return self.judge(image, parts)
        self.spectral_weights.make(convolution_dtype(self.conv.weight))
        try:
            return self.judge(image, parts)
        finally:
            self.spectral_weights.drop()

    def judge(self, image: Tensor, parts: int) -> Tensor:
        """Return the logits of `forward`, with the layers' weights in force made by the caller."""
        with passes(self.again):
            x = self.from_rgb(image)
            for k, block in enumerate(self.blocks):
                if k == self.deep:
                    tell(self.notice, x)
                x = through(block, self.again, x)
            x = self.conv(self.append_std(x, parts))
        with torch.autocast(x.device.type, enabled=False):
            return self.logit(self.hidden(rows(x)))

    def append_std(self, x: Tensor, parts: int) -> Tensor:
        """Return x [N, C, H, W] with its standard deviation over groups, and zeros up to a multiple of channels."""
        if not self.fused_std:
            return minibatch_std(x, self.group, parts, self.multiple)
        import kernels

        return kernels.minibatch_std(x, self.group, parts=parts, multiple=self.multiple)
