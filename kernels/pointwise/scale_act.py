"""y = leaky_relu(x * scale) * gain, a factor for each channel of each sample: `bias_act` with a scale and nothing else.

The kernels are those of `kernels.bias_act`, which leave out what is not given when they are compiled. Forward reads
x and writes y; backward reads dy and x and writes dx, with the scale's gradient on the way. StyleGAN2's layers have
noise and a bias besides; this is what is left of one whose demodulation scale meets its activation directly.
"""

import math

import torch
from torch import Tensor

from kernels.pointwise.bias_act import bias_act, bias_act_reference
from kernels.pointwise.bias_act import bytes_moved as _bytes_moved

GAIN = math.sqrt(2)


def scale_act(x: Tensor, scale: Tensor, *, slope: float = 0.2, gain: float = GAIN) -> Tensor:
    """leaky_relu(x * scale) * gain, fused; differentiable twice.

    Args:
        x: [N, C, H, W] (NCHW or channels_last, kept) or [N, C]; float16, bfloat16, float32 or float64.
        scale: [N, C].

    Returns and raises as `bias_act` does.
    """
    return bias_act(x, scale=scale, slope=slope, gain=gain)


def scale_act_reference(x: Tensor, scale: Tensor, *, slope: float = 0.2, gain: float = GAIN) -> Tensor:
    """`scale_act` in plain PyTorch: the same arguments, result dtype and memory format."""
    return bias_act_reference(x, scale=scale, slope=slope, gain=gain)


def bytes_moved(x: Tensor, *, backward: bool = False, out: torch.dtype | None = None) -> int:
    """Bytes that must cross memory: x in, y out; backward: dy and x in, dx out."""
    return _bytes_moved(x, backward=backward, out=out)
