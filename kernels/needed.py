"""Which gradients a backward pass is really after.

`ctx.needs_input_grad` is fixed in the forward pass. `torch.autograd.grad(y, x)` wants the gradient of x alone, and
PyTorch's own operators then leave out the others; a Python Function is not told (pytorch/pytorch issue 174017). In R1
and in path length regularization that would be one weight gradient for each layer, computed and thrown away.
"""

import torch


def needed(ctx) -> tuple[bool, ...]:
    """`ctx.needs_input_grad`, less what the running backward pass will not use. Call it in `backward`.

    Asks the engine which nodes it is going to execute. Where that cannot be asked (another PyTorch, a compiled graph),
    everything counts as needed: more is computed, nothing goes wrong. Non-tensor inputs must come after the tensors.
    """
    asked = getattr(torch._C, "_will_engine_execute_node", None)
    if asked is None or torch.compiler.is_compiling():
        return ctx.needs_input_grad
    nodes = [node for node, _ in ctx.next_functions]
    nodes += [None] * (len(ctx.needs_input_grad) - len(nodes))
    pairs = zip(ctx.needs_input_grad, nodes, strict=True)
    return tuple(needs and node is not None and _runs(asked, node) for needs, node in pairs)


def _runs(asked, node) -> bool:
    try:
        return asked(node)
    except (
        RuntimeError
    ):  # a leaf that `autograd.grad` was asked for is not executed but captured; or no pass is running
        return True
