"""torch.compile of the main phases, in mode reduce-overhead: with CUDA graphs that the compiler makes itself.

What changes. As `compile`, and Inductor captures its forward and backward graphs. Everything around them stays
eager: the optimizer, the moving average, path length, R1. The recipe needs `set_to_none`, because gradients live in the
graphs' memory, which the next run overwrites.

Why it should help. The launches of both networks, forward and backward, become four replays a step, without a static
input or a warm-up of our own: it is the least work for a program that is written eagerly.

When it does not. Our own graphs hold more, the optimizer and the lazy phases included, so on top of `cuda_graphs` it
has nothing left to gain, and the two cannot be combined: the recipe is refused. It is an alternative for an eager
recipe.
"""

from ladder.receipts import Receipt, torch_compile

title = "torch.compile, reduce-overhead"
change = {"compile": "reduce-overhead"}
needs = ("cuda", "triton", "cuda_graphs")


def receipt(seen: dict) -> Receipt:
    """As for compile; that it replays graphs of its own is in the profiled launches, beside it."""
    return torch_compile.receipt(seen, "reduce-overhead")
