"""The gradients that a running backward pass really needs.

`ctx.needs_input_grad` is fixed in the forward pass. `torch.autograd.grad(y, x)` wants only the gradient of x, and
PyTorch's own operators then skip the others. A Python Function is not told (pytorch/pytorch issue 174017). In R1 and in
path length regularization it would compute one weight gradient for each layer and throw it away.
"""

import torch
from torch import Tensor

_will_execute = getattr(torch._C, "_will_engine_execute_node", None)


def is_recorded(*tensors: Tensor | None) -> bool:
    """Return whether autograd records a call on these tensors. Else its Function need not be called."""
    if torch.is_grad_enabled():
        for each in tensors:
            if each is not None and each.requires_grad:
                return True
    return False


def needed(ctx, tensors: tuple[bool, ...] | None = None) -> tuple[bool, ...]:
    """Return `ctx.needs_input_grad` without the gradients that the running backward pass will not use.

    Call it in `backward`. It asks the autograd engine which nodes will be executed. Another PyTorch or a compiled graph
    cannot be asked. Every gradient then counts as needed: more is computed, and the result is the same.

    Args:
        ctx: the Function's context.
        tensors: whether each of the first inputs was a tensor. An input that is None has no node. Without this
            argument, inputs that are no tensors must come after the tensors.
    """
    if _will_execute is None or torch.compiler.is_compiling():
        return ctx.needs_input_grad
    # A node for each tensor; None where no gradient is needed.
    runs = [node is not None and _runs(node) for node, _ in ctx.next_functions]
    if tensors is not None:
        there = iter(runs)
        runs = [each and next(there) for each in tensors]
    return (*runs, *(False,) * (len(ctx.needs_input_grad) - len(runs)))


def _runs(node) -> bool:
    try:
        return _will_execute(node)
    # Either no pass is running, or the node is a leaf, which `autograd.grad` captures and does not execute.
    except RuntimeError:
        return True
