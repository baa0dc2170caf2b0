"""torch.compile of the main phases, autotuned: max-autotune without what takes longest and brings least.

What changes. As `compile`, with Inductor's option `max_autotune`: it times cuDNN against Triton templates for
convolutions, and several tiles for each kernel that it generates. The mode `max-autotune` does two things more, which
are left to `compile_max_autotune`: Triton templates for matmuls, which in this model are all of a few samples in
float32; and `coordinate_descent_tuning`, which walks on from each kernel's best tile: it compiles a neighbour, times
it, compiles the next.

Why it should help. The default mode picks tiles by rules; here they are timed on the shapes at hand. Candidates are
compiled on all cores at once. Coordinate descent compiles one after another, kernel by kernel, for kernels that have a
good tile already.

When it does not. Most of a step is 3x3 convolutions, and for those cuDNN usually stays the fastest candidate. What is
picked can differ from run to run, where two candidates are within noise of each other.
"""

from ladder.receipts import Receipt, torch_compile

title = "torch.compile, autotuned"
change = {"compile": "autotune"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """As for compile, with this option."""
    return torch_compile.receipt(seen, "autotune")
