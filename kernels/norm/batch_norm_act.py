"""The op y = act(batch_norm(x)) of training: batch normalization (Ioffe and Szegedy 2015, arXiv:1502.03167) and the
activation behind it, in the passes of `group_norm_act.py`. A group is here one channel of all samples.

PyTorch reads x twice and writes the normalized x, which the activation reads again; in backward likewise. Here the
activation is in the same pass, forward and backward. Running statistics move in the small launch between the passes.
"""

from __future__ import annotations

from torch import Tensor

from ..common.arguments import check_numbers, check_tensors, listed
from .group_norm_act import Norm, bytes_moved, check, compose, run

__all__ = ["batch_norm_act", "batch_norm_act_reference", "bytes_moved"]


def batch_norm_act(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    running: tuple[Tensor, Tensor, float] | None = None,
    eps: float = 1e-5,
    silu: bool = False,
    slope: float = 1.0,
) -> Tensor:
    """Compute act(batch_norm(x) * weight + bias) by the batch's own statistics, fused. Differentiable any number of
    times.

    Args:
        x: [N, C, ...] (NCHW or channels_last, kept); float16, bfloat16, float32 or float64.
        weight, bias: [C].
        running: running mean and variance [C], changed in place, and how far they move (PyTorch's momentum). The
            variance moves towards the unbiased one.
        eps: added to the (biased) variance.
        silu: whether the activation is SiLU.
        slope: else, slope of a leaky ReLU, 0 for a ReLU; by default there is no activation.

    Returns y like x, in x.dtype (autocast's dtype under autocast). Statistics and sums are float32 (float64 for
    float64).
    Raises ValueError for shapes that do not fit or one number a channel, RuntimeError for a CPU tensor outside the
    interpreter.
    """
    norm = _check(x, weight, bias, running, eps, silu, slope)
    return run(x, weight, bias, norm, running or ())


def batch_norm_act_reference(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    running: tuple[Tensor, Tensor, float] | None = None,
    eps: float = 1e-5,
    silu: bool = False,
    slope: float = 1.0,
) -> Tensor:
    """Compute `batch_norm_act` in plain PyTorch. Arguments and result as `batch_norm_act`."""
    norm = _check(x, weight, bias, running, eps, silu, slope)
    if running:
        mean, variance, momentum = running
        u = x.detach().to(mean.dtype).transpose(0, 1).flatten(1)
        mean.lerp_(u.mean(1), momentum)
        variance.lerp_(u.var(1), momentum)
    return compose(x, weight, bias, norm)


def _check(x, weight, bias, running, eps, silu, slope) -> Norm:
    buffers = {}
    if running is not None:
        parts = listed(running)
        if parts is None or len(parts) != 3:
            raise ValueError("running must be (mean, variance, momentum)")
        check_tensors({"running mean": parts[0], "running variance": parts[1]})
        check_numbers(momentum=parts[2])
        buffers = {"running_mean": parts[0], "running_var": parts[1]}
    check(x, weight, bias, 1, eps, silu, slope, **buffers)
    if x.numel() and x.numel() == x.shape[1]:
        raise ValueError(f"more than one number is needed for each channel, got {tuple(x.shape)}")
    return Norm(0, float(eps), bool(silu), float(slope))
