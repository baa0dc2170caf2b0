"""torch.compile of the main phases, in mode max-autotune.

What changes. As `compile`, and Inductor times what it can choose between: library calls against Triton templates for
matmuls and convolutions, and many tiles for each kernel that it generates. Inside our CUDA graphs this is
`max-autotune-no-cudagraphs`, because a graph cannot be captured inside another; in an eager recipe the mode brings
graphs of its own.

Why it should help. The default mode picks tiles by rules. Timing them on the shapes at hand, on the GPU at hand,
finds better ones for odd sizes.

When it does not. Most of a step is 3x3 convolutions, and for those cuDNN usually stays the fastest candidate. Tuning
takes minutes in the first process, and what it picks can differ from run to run, where two candidates are
within noise of each other. It is an alternative to `compile`: keep whichever measures better.
"""

from ladder.receipts import Receipt, torch_compile

title = "torch.compile, max-autotune"
change = {"compile": "max-autotune"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """As for compile, and in the mode that the recipe calls for: without graphs of its own inside ours."""
    mode = "max-autotune-no-cudagraphs" if seen["recipe"]["cuda_graphs"] else "max-autotune"
    return torch_compile.receipt(seen, mode)
