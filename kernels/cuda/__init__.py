"""The article's kernels in CUDA C++: each source a page to read beside its Triton twin, built at first use.

The reason. Triton decides by itself how threads share a tile, and has no arrays in shared memory that outlive a loop.
CUDA C++ leaves both to the author. The article that this project measures states what that brings, and these sources
are its claims as code. `ladder kernels --op` times each, and docs/claims.md has what came of all of them.

One op that a network uses (recipe: `cuda_norm`): `instance_norm_act`. In NCHW memory a block keeps its plane in shared
memory between the statistics and their use, so x is read little more than once. Triton's kernels read it twice.

Pairs of small kernels, each differing in one thing:

- `strided_act` and `coalesced_act`: neighbouring threads at channels or at pixels.
- `divergent` and `predicated`: a branch inside of warps, or a choice of numbers.
- `shared_sum` and `shuffle_sum`: partial sums through shared memory, or through registers of a warp.
- `scalar_copy` and `vector_copy`: one element a thread, or 16 bytes.
- `empty`: a kernel that does nothing, for the cost of a launch.

Gradients. `instance_norm_act` has a backward in CUDA C++. Its double backward, which path length needs, is Triton's.
The pairs illustrate and have no gradients.

Builds (`build.py`). nvcc compiles all sources into one library, once for each set of flags and each architecture. The
sources include no header of PyTorch, so a build takes seconds. `Flags` chooses a build: `Flags(fast_math=True)`,
`Flags(max_threads=256, min_blocks=4)` (`__launch_bounds__`). Calls go through ctypes (`calls.py`).

Without nvcc. Ask `available()` first: it returns None, or one line why not. `instance_norm_act` says so once and runs
`kernels.instance_norm_act` or the reference in its place. The pairs raise `Unavailable`. Each function has a
`<name>_reference` in plain PyTorch.

A learner should read `common.cuh` for the vocabulary, then `copy.cu` and `reduction.cu`, which are short. The
idea of keeping a plane on the chip is in `planes.cu`. Its launches are in `instance_norm_act.py`.
"""

from .build import Flags, Unavailable, available
from .instance_norm_act import instance_norm_act, instance_norm_act_reference
from .pairs import (
    act_reference,
    branch_reference,
    coalesced_act,
    copy_reference,
    divergent,
    empty,
    predicated,
    scalar_copy,
    shared_sum,
    shuffle_sum,
    strided_act,
    sum_reference,
    vector_copy,
)
from .resources import Resources, resources

coalesced_act_reference = strided_act_reference = act_reference
divergent_reference = predicated_reference = branch_reference
shared_sum_reference = shuffle_sum_reference = sum_reference
scalar_copy_reference = vector_copy_reference = copy_reference

__all__ = [
    "Flags",
    "Resources",
    "Unavailable",
    "available",
    "coalesced_act",
    "coalesced_act_reference",
    "divergent",
    "divergent_reference",
    "empty",
    "instance_norm_act",
    "instance_norm_act_reference",
    "predicated",
    "predicated_reference",
    "resources",
    "scalar_copy",
    "scalar_copy_reference",
    "shared_sum",
    "shared_sum_reference",
    "shuffle_sum",
    "shuffle_sum_reference",
    "strided_act",
    "strided_act_reference",
    "vector_copy",
    "vector_copy_reference",
]
