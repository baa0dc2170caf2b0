"""The article's kernels in CUDA C++: built at first use, each source a page, each with a plain-PyTorch reference.

`instance_norm_act` is the op that a network uses (recipe: `cuda_norm`), differentiable; where it cannot be built it
says so once and runs `kernels.instance_norm_act` or the reference in its place. The others are pairs to be timed
against each other; where they cannot be built they raise `Unavailable`. Ask `available()` first: None, or one line why
not. `Flags` chooses a build: `Flags(fast_math=True)`, `Flags(max_threads=256, min_blocks=4)` (`__launch_bounds__`).
"""

from kernels.cuda.build import Flags, Unavailable, available
from kernels.cuda.instance_norm_act import instance_norm_act, instance_norm_act_reference
from kernels.cuda.pairs import (
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
from kernels.cuda.resources import Resources, resources

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
