"""How an op registers itself as an operator of PyTorch, for torch.compile.

The compiler traces a function and fuses what it can. The code around a launch (tables, caches, tuples of pointers) is
not for it to trace. So the file of an op registers the op as an operator, with three parts:

- the operator: a function that launches the kernels without autograd;
- a fake implementation: shapes, dtypes and memory formats of the results, without computing;
- a gradient: another operator, registered in the same way.

An operator may not return its input or a view. So gradients that are not needed are left out of the result, and parts
of one buffer are copied apart. Arguments are tensors and plain numbers, so a call's facts are written out as a tuple
and read back. The registered gradient has no double backward under torch.compile. In eager mode it has one.

Eager calls never come here. An operator with a registered gradient costs several times the CPU time of an
autograd.Function. A step that waits for the CPU would pay that in full. An op asks `torch.compiler.is_compiling()`,
and calls its operator only then. Both ways run the same launches, so results are equal. Without Triton no operator can
run, but all can be registered, so the package imports anywhere.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.library import custom_op

# The package's full name with underscores for its dots: copies under other names live in one process.
NAMESPACE = __name__.removesuffix(".common.operators").replace(".", "_")
OPERATORS = getattr(torch.ops, NAMESPACE)


def operator(name: str, schema: str) -> Callable:
    """Return a decorator that registers a function as this package's operator; it changes none of its arguments."""
    return custom_op(f"{NAMESPACE}::{name}", mutates_args=(), schema=schema)


def place(grads: Iterable[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    """Return gradients at their places, None at the others: an operator returns only the needed gradients."""
    there = iter(grads)
    return [next(there) if need else None for need in needs]


def pick(grads: Iterable[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """Return the needed gradients."""
    return [grad for grad, need in zip(grads, needs, strict=True) if need]


def empty_like(inputs: Iterable[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """Return the needed gradients of these inputs for a fake implementation."""
    return [torch.empty_like(t) for t in pick(inputs, needs)]
