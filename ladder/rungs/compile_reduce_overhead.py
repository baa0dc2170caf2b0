"""Compile the main phases with torch.compile, in mode reduce-overhead: with its own CUDA graphs.

Change. This is `compile`, and Inductor captures its forward and backward graphs. Everything around them stays eager:
the optimizer, the moving average, path length, R1. The recipe needs `set_to_none`, because gradients live in the
graphs' memory, which the next run overwrites.

Why it should help. The launches of both networks, forward and backward, become four replays a step. A program that is
written eagerly needs no static input and no warm-up of its own, so this is the least work.

When it does not. Our own graphs hold more, the optimizer and the lazy phases included. On top of `cuda_graphs` there
is nothing left to gain, and a recipe with both is refused. It is an alternative for an eager recipe, and has not been
run on a GPU yet.
"""

from ladder.receipts import Receipt, judge_compilation

title = "torch.compile, reduce-overhead"
change = {"compile": "reduce-overhead"}
needs = ("cuda", "triton", "cuda_graphs")


def receipt(seen: dict) -> Receipt:
    """Check the same as for compile. The profiled launches beside it show the replays of its own graphs."""
    return judge_compilation(seen, "reduce-overhead")
