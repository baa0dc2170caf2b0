"""Which gradients a backward pass is really after.

`ctx.needs_input_grad` is fixed in the forward pass. `torch.autograd.grad(y, x)` wants the gradient of x alone, and
PyTorch's own operators then leave out the others; a Python Function is not told (pytorch/pytorch issue 174017). In R1
and in path length regularization that would be one weight gradient for each layer, computed and thrown away.
"""

import torch


def needed(ctx, tensors: tuple[bool, ...] | None = None) -> tuple[bool, ...]:
    """`ctx.needs_input_grad`, less what the running backward pass will not use. Call it in `backward`.

    Asks the engine which nodes it is going to execute. Where that cannot be asked (another PyTorch, a compiled graph),
    everything counts as needed: more is computed, nothing goes wrong.

    tensors: which of the first inputs were tensors, as far as there are tensors (an input that is None has no node).
    Unless given, non-tensor inputs must come after the tensors.
    """
    asked = getattr(torch._C, "_will_engine_execute_node", None)
    if asked is None or torch.compiler.is_compiling():
        return ctx.needs_input_grad
    nodes = iter([node for node, _ in ctx.next_functions])
    if tensors is not None:
        nodes = iter([next(nodes) if there else None for there in tensors])
    pairs = ((needs, next(nodes, None)) for needs in ctx.needs_input_grad)
    return tuple(needs and node is not None and _runs(asked, node) for needs, node in pairs)


def _runs(asked, node) -> bool:
    try:
        return asked(node)
    except RuntimeError:  # no pass is running; or a leaf, which `autograd.grad` captures and does not execute
        return True
