"""Compile the main phases with torch.compile, in mode max-autotune.

Change. This is `compile`, and Inductor times its choices: library calls against Triton templates for matmuls and
convolutions, and many tiles for each generated kernel. Inside our CUDA graphs the mode is
`max-autotune-no-cudagraphs`, because a graph cannot be captured inside another. In an eager recipe the mode brings
graphs of its own.

Why it should help. The default mode picks tiles by rules. Timing them on the shapes and the GPU at hand finds better
ones for odd sizes.

When it does not. Most of a step is 3x3 convolutions, and for those cuDNN usually stays the fastest candidate. Tuning
takes minutes in the first process, and on an H200 it did not end in the time there was. The choice can differ from
run to run if two candidates are within noise of each other. It is an alternative to `compile` and `compile_autotune`:
keep whichever measures better.
"""

from ladder.receipts import Receipt, judge_compilation

title = "torch.compile, max-autotune"
change = {"compile": "max-autotune"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check the same as for compile, in the recipe's mode: without graphs of its own inside ours."""
    mode = "max-autotune-no-cudagraphs" if seen["recipe"]["cuda_graphs"] else "max-autotune"
    return judge_compilation(seen, mode)
