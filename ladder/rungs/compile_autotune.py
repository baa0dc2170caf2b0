"""Compile the main phases with torch.compile, autotuned: max-autotune without its slowest, least useful parts.

Change. This is `compile` with Inductor's option `max_autotune`. It times cuDNN against Triton templates for
convolutions, and several tiles for each kernel that it generates. The mode `max-autotune` adds two things, which are
left to `compile_max_autotune`. One is Triton templates for matmuls, which in this model have a few samples in
float32. The other is `coordinate_descent_tuning`, which starts from each kernel's best tile, compiles a neighbour,
times it, and so on.

Why it should help. The default mode picks tiles by rules; here they are timed on the shapes at hand. Candidates are
compiled on all cores at once. Coordinate descent compiles one after another, kernel by kernel, for kernels that have
a good tile already.

When it does not. Most of a step is 3x3 convolutions, and for those cuDNN usually stays the fastest candidate. On an
H200 the tuning brought less than 1% over the default mode (docs/log.md). The choice can differ from run to run if two
candidates are within noise of each other.
"""

from ladder.receipts import Receipt, judge_compilation

title = "torch.compile, autotuned"
change = {"compile": "autotune"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check the same as for compile, with this option."""
    return judge_compilation(seen, "autotune")
