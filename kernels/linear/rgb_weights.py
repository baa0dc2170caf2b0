"""The weights of toRGB for each sample, weight [K, C] * style [N, C]. Both gradients are sums of one launch.

The work is two products and two sums over a few thousand numbers. PyTorch needs four launches for each resolution, and
a launch costs more than the work.
"""

import torch
from torch import Tensor

from kernels.common.dependent_launch import after_previous, launching
from kernels.common.needed import needed
from kernels.common.tiles import power_of_2, tl, tl_accumulator, triton

BLOCK_C = 32


def styled(weight: Tensor, style: Tensor) -> Tensor:
    """Compute weight [K, C] * style [N, C] -> [N, K, C], both of one dtype. Differentiable to any order."""
    if torch.compiler.is_compiling():  # The compiler fuses small operations by itself.
        return weight[None] * style[:, None]
    return _Styled.apply(weight.contiguous(), style.contiguous())


@triton.jit
def styled_grad_kernel(
    g, weight, style, dweight, dstyle, N, C, stride_n, stride_k,
    K: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dweight[k, c] = sum over n of g * style and dstyle[n, c] = sum over k of g * weight,
    whichever are given.
    """
    after_previous(DEPENDENT)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    rows = ()
    sums = ()
    for k in tl.static_range(K):
        rows += (tl.load(weight + k * C + c, c < C, 0.0).to(ACC),)
        sums += (tl.zeros([BLOCK_N, BLOCK_C], ACC),)
    for start in range(0, N, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        inside = (n < N) & (c < C)
        s = tl.load(style + n * C + c, inside, 0.0).to(ACC)
        total = tl.zeros([BLOCK_N, BLOCK_C], ACC)
        added = ()
        for k in tl.static_range(K):
            found = tl.load(g + n * stride_n + k * stride_k + c, inside, 0.0).to(ACC)
            total += found * rows[k]
            added += (sums[k] + found * s,)
        sums = added
        if dstyle is not None:
            tl.store(dstyle + n * C + c, total, inside)
    if dweight is not None:
        flat = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
        for k in tl.static_range(K):
            tl.store(dweight + k * C + flat, tl.sum(sums[k], 0), flat < C)


class _Styled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, style):
        ctx.save_for_backward(weight, style)
        ctx.set_materialize_grads(False)
        return weight[None] * style[:, None]

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None
        (weight, style), (needs_weight, needs_style) = ctx.saved_tensors, needed(ctx)
        if torch.is_grad_enabled() or not g.numel():
            dweight = (g * style[:, None]).sum(0) if needs_weight else None
            return dweight, (g * weight).sum(1) if needs_style else None
        n, k, c = g.shape
        g = g if g.stride(2) == 1 else g.contiguous()
        dweight = torch.empty_like(weight) if needs_weight else None
        dstyle = torch.empty_like(style) if needs_style else None
        styled_grad_kernel[(-(-c // BLOCK_C),)](
            g, weight, style, dweight, dstyle, n, c, g.stride(0), g.stride(1),
            K=k, ACC=tl_accumulator(g.dtype), BLOCK_N=min(power_of_2(n), 16), BLOCK_C=BLOCK_C, **launching(),
        )  # fmt: skip
        return dweight, dstyle
