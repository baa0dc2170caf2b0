"""Resampling by the separable [1, 3, 3, 1] filter: six plain-PyTorch spellings of the same linear maps, and a kernel.

StyleGAN2 low-passes wherever it changes resolution. With zeros outside the image, all spellings agree to rounding
(tests/stylegan_lite/test_resample.py). The fastest depends on dtype, memory format and the order of differentiation:

- ``depthwise``: a ``conv2d`` with one group a channel.
- ``channels_as_batch``: the same filter with channels folded into the batch; a copy when memory is channels_last.
- ``bilinear``: doubling by bilinear interpolation *is* [1, 3, 3, 1] once the border reads zeros. A convolution that
  resamples then runs at the high resolution, with four times the FLOPs.
- ``folded``: the filter convolved into the 3x3 weights; one 6x6 convolution of stride 2, no pass of its own.
- ``subpixel``: the same folded weights as one dense 3x3 convolution over 2x2 blocks of pixels, four times the channels.
  It has the FLOPs of ``folded`` in a shape for tensor cores, plus one copy between blocks and pixels.
- ``shifts``: the filter as a sum of shifted slices, along one dimension and then the other. Compiled, it is fused into
  one pass with the next operations. Uncompiled each slice is a pass, so ``subpixel`` takes its place.
- ``triton``: ``kernels.upfirdn2d`` between ordinary convolutions, as StyleGAN2's own CUDA op. It has a quarter of the
  FLOPs of ``folded`` for one more pass over memory.

``by`` is the module whose ``conv2d`` and ``conv_transpose2d`` are called: ``torch.nn.functional`` or ``kernels``.

Filter and gain follow upfirdn2d of Karras et al. 2020: unit gain going down, gain 4 going up.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

TAPS = (1.0, 3.0, 3.0, 1.0)
FILTERS = ("depthwise", "channels_as_batch", "shifts", "triton")  # these resample with the filter itself


def fir(device: torch.device, dtype: torch.dtype, gain: float) -> Tensor:
    """Return the 4x4 filter, [1, 1, 4, 4], summing to ``gain``. It is exact in BF16, and cached: no
    host copy in a graph.
    """
    # The compiler looks through caches, and would copy a host tensor in every run.
    if torch.compiler.is_compiling():
        taps = 1 + 2 * (torch.arange(4, device=device) % 3 > 0).to(dtype)  # TAPS
        return (taps[:, None] * taps * (gain / sum(TAPS) ** 2))[None, None]
    return _fir(device, dtype, gain)


@functools.cache
def _fir(device: torch.device, dtype: torch.dtype, gain: float) -> Tensor:
    taps = torch.tensor(TAPS, dtype=torch.float64)
    kernel = torch.outer(taps, taps) * (gain / taps.sum() ** 2)
    return kernel[None, None].to(device=device, dtype=dtype)


def _filter(
    x: Tensor, how: str, gain: float, *, padding: int, stride: int = 1, up: bool = False, by: ModuleType = F
) -> Tensor:
    """Apply the 4x4 filter to each channel. ``up`` applies its adjoint with stride (zero insertion, then filter)."""
    if how == "triton":
        import kernels

        gain /= sum(TAPS) ** 2
        if up:
            return kernels.upfirdn2d(x, TAPS, up=stride, padding=(padding + 1, padding), gain=gain)
        return kernels.upfirdn2d(x, TAPS, down=stride, padding=padding, gain=gain)
    if how == "shifts":
        return _shifted(x, gain, padding, stride, up)
    n, c, h, w = x.shape
    kernel = fir(x.device, x.dtype, gain)
    op = by.conv_transpose2d if up else by.conv2d
    if how == "channels_as_batch":
        y = op(x.reshape(n * c, 1, h, w), kernel, stride=stride, padding=padding)
        return y.reshape(n, c, *y.shape[2:])
    return op(x, kernel.expand(c, 1, 4, 4), stride=stride, padding=padding, groups=c)


def in_force(how: str) -> str:
    """Return the spelling that is used here and now."""
    return "subpixel" if how == "shifts" and not torch.compiler.is_compiling() else how


def _shifted(x: Tensor, gain: float, padding: int, stride: int, up: bool) -> Tensor:
    """Compute `_filter` by slices. Sums in float32 stay in registers once compiled. ``up``: by 2, with padding 1."""
    taps = [tap / sum(TAPS) * gain**0.5 for tap in TAPS]
    y = F.pad(x.to(torch.promote_types(x.dtype, torch.float32)), (padding,) * 4)
    for dim in (2, 3):
        if up:  # Zeros lie between pixels: an even pixel meets the second and fourth tap, an odd pixel the others.
            before, here, after = (y.narrow(dim, k, x.shape[dim]) for k in range(3))
            pair = here * taps[1] + before * taps[3], here * taps[2] + after * taps[0]
            y = torch.stack(pair, dim + 1).flatten(dim, dim + 1)
        else:
            length = y.shape[dim] - len(taps) + 1
            parts = [y.narrow(dim, k, length) for k in range(len(taps))]
            if stride == 2:
                parts = [part[:, :, ::2] if dim == 2 else part[:, :, :, ::2] for part in parts]
            y = sum(part * tap for part, tap in zip(parts, taps, strict=True))
    return y.to(x.dtype)


def upsample2d(x: Tensor, how: str, by: ModuleType = F) -> Tensor:
    """Upsample [N, C, H, W] -> [N, C, 2H, 2W], same dtype."""
    how = in_force(how)
    if how in FILTERS:
        return _filter(x, how, 4.0, padding=1, stride=2, up=True, by=by)
    return _double(F.pad(x, (1, 1, 1, 1)))[:, :, 2:-2, 2:-2]


def downsample2d(x: Tensor, how: str, by: ModuleType = F) -> Tensor:
    """Downsample [N, C, H, W] -> [N, C, H/2, W/2], same dtype. It is the adjoint of :func:`upsample2d` divided by 4."""
    how = in_force(how)
    if how in FILTERS:
        return _filter(x, how, 1.0, padding=1, stride=2, by=by)
    return _halve(F.pad(x, (2, 2, 2, 2)))[:, :, 1:-1, 1:-1]


def fork_down(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x, `downsample2d` of x with ``triton``). The gradients of both are summed in the filter's pass."""
    import kernels

    return kernels.fork_upfirdn2d(x, TAPS, down=2, padding=1, gain=1 / sum(TAPS) ** 2)


def conv_up(
    x: Tensor, weight: Tensor, how: str, groups: int = 1, by: ModuleType = F, filtered: bool = True
) -> Tensor:
    """Double the resolution with a 3x3 transposed convolution, then filter: [N, I, H, W] -> [N, O, 2H, 2W].

    Args:
        weight: [O / groups, I, 3, 3]; rows of each group's inputs follow one another along I.
        filtered: False leaves the filter to the caller (``how: triton``): [N, O, 2H + 1, 2W + 1].
    """
    how = in_force(how)
    # Zero insertion, filter and taps commute. One extra pixel on each side feeds the 3x3.
    if how == "bilinear":
        doubled = _double(F.pad(x, (1, 1, 1, 1)))[:, :, 1:-1, 1:-1]
        return by.conv2d(doubled, _split(weight, groups).flip(2, 3), groups=groups)
    if how == "folded":
        folded = _fold(weight.transpose(0, 1), 4.0)
        return by.conv_transpose2d(x, folded, stride=2, padding=2, groups=groups)
    if how == "subpixel":
        blocks = blocks_of_up(_fold(_split(weight, groups), 4.0), groups, is_channels_last(x))
        return blocks_to_pixels(by.conv2d(x, blocks, padding=1, groups=groups))
    y = by.conv_transpose2d(x, weight.transpose(0, 1), stride=2, groups=groups)
    return _filter(y, how, 4.0, padding=1, by=by) if filtered else y


def conv_down(x: Tensor, weight: Tensor, how: str, by: ModuleType = F, filtered: bool = False) -> Tensor:
    """Filter, then halve the resolution with a strided convolution: [N, I, H, W] -> [N, O, H/2, W/2].

    Args:
        weight: [O, I, 3, 3], or [O, I, 1, 1] for the residual skip.
        filtered: x has been through the filter (3x3 weights, ``how: triton``), and has a pixel more each way.
    """
    how = in_force(how)
    if how in ("folded", "subpixel") and weight.shape[-1] == 1:
        return by.conv2d(x, weight * fir(x.device, weight.dtype, 1.0), stride=2, padding=1)
    if how == "folded":
        return by.conv2d(x, _fold(weight, 1.0), stride=2, padding=2)
    if how == "subpixel":
        return by.conv2d(
            pixels_to_blocks(x), blocks_of_down(_fold(weight, 1.0), is_channels_last(x)), padding=1
        )
    if weight.shape[-1] == 1:
        return by.conv2d(downsample2d(x, how, by), weight)
    if how == "bilinear":
        return _halve(by.conv2d(x, weight, padding=3))[:, :, 1:-1, 1:-1]
    return by.conv2d(x if filtered else _filter(x, how, 1.0, padding=2, by=by), weight, stride=2)


def is_channels_last(x: Tensor) -> bool:
    """Return whether channels are the fastest dimension in memory."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def blocks_to_pixels(x: Tensor) -> Tensor:
    """Turn [N, 4C, H, W] into [N, C, 2H, 2W], memory format kept. channels_last wants (row, column, C) order of the 4C.

    ``F.pixel_shuffle`` would return NCHW for a channels_last input.
    """
    if not is_channels_last(x):
        return F.pixel_shuffle(x, 2)
    n, c, h, w = x.shape
    x = x.permute(0, 2, 3, 1).reshape(n, h, w, 2, 2, c // 4).transpose(2, 3)
    return x.reshape(n, 2 * h, 2 * w, c // 4).permute(0, 3, 1, 2)


def pixels_to_blocks(x: Tensor) -> Tensor:
    """Turn [N, C, H, W] into [N, 4C, H/2, W/2]: the inverse of :func:`blocks_to_pixels`."""
    if not is_channels_last(x):
        return F.pixel_unshuffle(x, 2)
    n, c, h, w = x.shape
    x = x.permute(0, 2, 3, 1).reshape(n, h // 2, 2, w // 2, 2, c).transpose(2, 3)
    return x.reshape(n, h // 2, w // 2, 4 * c).permute(0, 3, 1, 2)


def blocks_of_up(folded: Tensor, groups: int, channels_last: bool) -> Tensor:
    """Turn 6x6 weights [O, I, 6, 6] of a stride-2 transposed convolution into [4 O, I, 3, 3], which produce 2x2 blocks.

    Output pixel 2m + p reads input m + t through tap p + 2 - 2t, t in {-1, 0, 1}.
    """
    o, i = folded.shape[:2]
    taps = folded.reshape(groups, o // groups, i, 3, 2, 3, 2).flip(3, 5)
    # The weights themselves are channels_last, or every call would convert them.
    if channels_last and groups == 1:
        return taps.permute(0, 4, 6, 1, 3, 5, 2).reshape(4 * o, 3, 3, i).permute(0, 3, 1, 2)
    return taps.permute(0, 1, 4, 6, 2, 3, 5).reshape(4 * o, i, 3, 3)


def blocks_of_down(folded: Tensor, channels_last: bool) -> Tensor:
    """Turn 6x6 weights [O, I, 6, 6] of a stride-2 convolution into [O, 4 I, 3, 3], which read 2x2 blocks."""
    o, i = folded.shape[:2]
    taps = folded.reshape(o, i, 3, 2, 3, 2)
    if channels_last:
        return taps.permute(0, 2, 4, 3, 5, 1).reshape(o, 3, 3, 4 * i).permute(0, 3, 1, 2)
    return taps.permute(0, 1, 3, 5, 2, 4).reshape(o, 4 * i, 3, 3)


def _split(weight: Tensor, groups: int) -> Tensor:
    """Turn [O / g, I, k, k] with groups along I into [O, I / g, k, k] with groups along O, as ``conv2d`` wants them."""
    if groups == 1:
        return weight
    out, inputs, k, _ = weight.shape
    return weight.reshape(out, groups, inputs // groups, k, k).transpose(0, 1).reshape(groups * out, -1, k, k)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False).to(x.dtype)


def _halve(x: Tensor) -> Tensor:
    """Halve by antialiased bilinear interpolation: [1, 3, 3, 1] / 8 away from the border, where it renormalizes.

    PyTorch has no BF16 version of it on the CPU.
    """
    wide = x.float() if x.device.type == "cpu" and x.dtype == torch.bfloat16 else x
    return F.interpolate(wide, scale_factor=0.5, mode="bilinear", align_corners=False, antialias=True).to(
        x.dtype
    )


def _fold(weight: Tensor, gain: float) -> Tensor:
    """Turn [A, B, 3, 3] into [A, B, 6, 6]: the 3x3 taps convolved with the filter (its own mirror image)."""
    a, b = weight.shape[:2]
    kernel = fir(weight.device, weight.dtype, gain)
    return F.conv2d(weight.reshape(a * b, 1, 3, 3), kernel, padding=3).reshape(a, b, 6, 6)
