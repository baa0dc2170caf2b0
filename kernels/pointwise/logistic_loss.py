"""The non-saturating logistic loss (Goodfellow et al. 2014, arXiv:1406.2661) and its gradient, from one launch.

A main phase ends in a handful of logits. Their softplus, mean and gradient are eight launches of PyTorch, for a
discriminator's fakes and reals together fourteen. The chain of activations waits for each of them, and a launch costs
more than the work. One program computes the loss and the gradient by each logit. Backward multiplies the latter by the
loss's own gradient.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.dependent_launch import after_previous
from ..common.launches import launch_grid
from ..common.tiles import accumulator, check_device, power_of_2, tl, tl_accumulator, triton

BLOCK = 256  # most logits that the program holds at a time


def logistic_loss(logits: Tensor, fakes: int) -> Tensor:
    """Compute mean softplus(logits[:fakes]) + mean softplus(-logits[fakes:]) -> []. Differentiable to any order.

    Args:
        logits: [N, 1], float16, bfloat16, float32 or float64. The fakes come first. A mean over none is 0.

    Returns the loss in float32 (float64), summed in it.
    Raises ValueError for what does not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    _check(logits, fakes)
    if torch.compiler.is_compiling():  # The compiler fuses small operations by itself.
        return logistic_loss_reference(logits, fakes)
    check_device(logits)
    return _LogisticLoss.apply(logits.contiguous(), fakes)


def logistic_loss_reference(logits: Tensor, fakes: int) -> Tensor:
    """Compute `logistic_loss` in plain PyTorch."""
    _check(logits, fakes)
    wide = logits.to(accumulator(logits.dtype))
    fake, real = wide[:fakes], wide[fakes:]
    terms = [F.softplus(signed).mean() for signed in (fake, -real) if len(signed)]
    return torch.stack(terms).sum()


def bytes_moved(logits: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: logits in, gradient out; backward: gradient in and out."""
    return 2 * logits.nbytes


def _check(logits: Tensor, fakes: int) -> None:
    if logits.dim() != 2 or logits.shape[1] != 1 or not len(logits) or not logits.is_floating_point():
        raise ValueError(f"logits must be a float tensor [N, 1], got {logits.dtype} {tuple(logits.shape)}")
    if not 0 <= fakes <= len(logits):
        raise ValueError(f"fakes must be 0 to {len(logits)}, the number of logits, got {fakes}")


@triton.jit
def softplus_and_slope(z):
    """Compute log(1 + exp(z)) and its derivative, without overflow."""
    e = tl.exp(-tl.abs(z))
    # log(1 + e) by the rounded 1 + e, whose error the factor takes back: a small e is not lost in the sum.
    u = 1 + e
    tail = tl.where(u == 1, e, tl.log(u) * (e / tl.where(u == 1, 1.0, u - 1)))
    return tl.maximum(z, 0.0) + tail, tl.where(z < 0, e, 1.0) / u


@triton.jit
def logistic_loss_kernel(
    logits, loss, gradient, N, FAKES, BLOCK: tl.constexpr, ACC: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Write the loss, and its gradient by each logit."""
    after_previous(DEPENDENT)
    total = tl.zeros([BLOCK], ACC)
    for start in range(0, N, BLOCK):
        k = start + tl.arange(0, BLOCK)
        sign = tl.where(k < FAKES, 1.0, -1.0).to(ACC)
        count = tl.maximum(tl.where(k < FAKES, FAKES, N - FAKES), 1).to(ACC)
        value, slope = softplus_and_slope(sign * tl.load(logits + k, k < N, 0.0).to(ACC))
        total += tl.where(k < N, value / count, 0.0)
        tl.store(gradient + k, sign * slope / count, k < N)
    tl.store(loss, tl.sum(total, 0))


class _LogisticLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, fakes):
        loss = logits.new_empty((), dtype=accumulator(logits.dtype))
        gradient = torch.empty_like(logits)
        launch_grid(
            logistic_loss_kernel,
            (1,),
            (logits, loss, gradient, len(logits), fakes),
            BLOCK=min(power_of_2(len(logits)), BLOCK),
            ACC=tl_accumulator(logits.dtype),
            num_warps=1,
        )
        ctx.save_for_backward(logits, gradient)
        ctx.fakes = fakes
        return loss

    @staticmethod
    def backward(ctx, g):
        logits, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradient = gradient_in_plain_pytorch(logits, ctx.fakes)
        return (gradient * g).to(logits.dtype), None


def gradient_in_plain_pytorch(logits: Tensor, fakes: int) -> Tensor:
    """Compute the kernel's gradient in operations that autograd can differentiate."""
    wide = logits.to(accumulator(logits.dtype))
    fake, real = wide[:fakes], wide[fakes:]
    parts = [
        sign * (sign * each).sigmoid() / len(each) for sign, each in ((1, fake), (-1, real)) if len(each)
    ]
    return torch.cat(parts)
