"""The op y = leaky_relu(x * scale) * gain, with a factor for each channel of each sample.

It is `bias_act` with a scale and nothing else. The kernels are those of `bias_act`: operands that are not given are
left out when the kernels are compiled. Forward reads x and writes y. Backward reads dy and x and writes dx, with the
scale's gradient on the way. A StyleGAN2 layer without noise and bias comes down to this.
"""

import math

import torch
from torch import Tensor

from ..common.arguments import check_tensors
from .bias_act import bias_act, bias_act_reference
from .bias_act import bytes_moved as _bytes_moved

GAIN = math.sqrt(2)


def scale_act(x: Tensor, scale: Tensor, *, slope: float = 0.2, gain: float = GAIN) -> Tensor:
    """Compute leaky_relu(x * scale) * gain, fused. Differentiable twice.

    Args:
        x: [N, C, H, W] (NCHW or channels_last, kept) or [N, C]; float16, bfloat16, float32 or float64.
        scale: [N, C].

    Returns and raises as `bias_act`.
    """
    check_tensors({"scale": scale})
    return bias_act(x, scale=scale, slope=slope, gain=gain)


def scale_act_reference(x: Tensor, scale: Tensor, *, slope: float = 0.2, gain: float = GAIN) -> Tensor:
    """Compute `scale_act` in plain PyTorch. Arguments, result dtype and memory format as `scale_act`."""
    check_tensors({"scale": scale})
    return bias_act_reference(x, scale=scale, slope=slope, gain=gain)


def bytes_moved(x: Tensor, *, backward: bool = False, out: torch.dtype | None = None) -> int:
    """Return the bytes that must cross memory: x in, y out; backward: dy and x in, dx out."""
    return _bytes_moved(x, backward=backward, out=out)
