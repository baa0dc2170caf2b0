"""The calls that are timed for an op, the yardstick beside them, and the check of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ladder.studies.kernelbench.cases.registry import Case
from ladder.studies.kernelbench.timing import Call

# Ways to copy the yardstick, in bytes: (page to which pieces are rounded up, largest piece).
# In a graph on an H200 the driver copied some sizes at up to 4.2 TB/s. Others, even some of whole pages, reached
# 2.7 TB/s or less.
# kernels.tuning is not imported for them: `kernels` may be an old commit's.
WAYS = tuple((page, largest) for page in (1 << 12, 1 << 16) for largest in (128 << 20, 384 << 20))
TOLERANCE = 0.1  # relative L2 error over all results, from plain PyTorch in the same precision


def call_of(case: Case, direction: str, function: Callable[..., Tensor], device: str) -> Call:
    """Return the timed call, on its own inputs. Backward passes are `autograd.grad` alone, over a kept graph.

    - forward: the call, with gradients on, so that it saves what its backward needs;
    - backward: gradients of all inputs that have one;
    - double backward: the second differentiation of R1 and path length. It differentiates the penalty's gradients by
      all inputs and by the incoming gradient.
    """
    inputs = case.tensors(device)
    if direction == "forward":
        return lambda: function(**inputs)
    wanted = [inputs[name] for name in case.differentiated]
    found = function(**inputs)
    ys = [found] if isinstance(found, Tensor) else list(found)
    gs = [random_like(y).requires_grad_(direction == "double backward") for y in ys]
    if direction == "backward":
        return lambda: torch.autograd.grad(ys, wanted, gs, retain_graph=True)
    through = [inputs[name] for name in case.entry.penalty]
    first = torch.autograd.grad(ys, through, gs, create_graph=True)
    along = [random_like(t) for t in first]
    return lambda: torch.autograd.grad(first, [*wanted, *gs], along, retain_graph=True, allow_unused=True)


def random_like(t: Tensor) -> Tensor:
    """Return normal numbers in t's dtype and memory format, the same at each index in any format."""
    return torch.empty_like(t).copy_(torch.randn(t.shape, device=t.device))


def copies(total: int, sets: int, device: str, way: tuple[int, int] = WAYS[0]) -> list[Call]:
    """Return the yardstick: `copy_` of half as many bytes, so that reads and writes together are `total`, rounded up.

    way: an entry of WAYS. The fastest depends on the size, and the fastest is the yardstick.
    """
    page, largest = way
    count = max(1, -(-total // 2 // largest))
    size = max(1, -(-total // 2 // count // page)) * page

    def one() -> Call:
        sources = torch.randint(-128, 128, (count, size), dtype=torch.int8, device=device)
        pairs = [(source, torch.empty_like(source)) for source in sources.unbind()]
        return lambda: [target.copy_(source) for source, target in pairs]

    return [one() for _ in range(sets)]


def disagree(results: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """Raise ValueError where a result is missing, or differs from plain PyTorch's by more than rounding explains.

    A gradient that is zero may be missing.
    """
    square_error = square = 0.0
    for index, (got, want) in enumerate(zip(results, expected, strict=True)):
        if got is None and want is None:
            continue
        if got is None and bool(want.any()):
            raise ValueError(f"result {index} is missing")
        seen, wide = (None if each is None else each.float() for each in (got, want))
        difference = wide if seen is None else seen if wide is None else seen - wide
        square_error += float(difference.square().sum())
        square += 0.0 if wide is None else float(wide.square().sum())
    if not square_error <= TOLERANCE**2 * square:
        raise ValueError(f"differs from plain PyTorch by {(square_error / max(square, 1e-30)) ** 0.5:.0%}")


@contextmanager
def compiling() -> Iterator[None]:
    """Set torch.compile up for a backward that is run repeatedly over the same graph."""
    import torch._functorch.config as functorch

    if not hasattr(functorch, "donated_buffer"):  # an older torch allows retain_graph anyway
        yield
        return
    with functorch.patch(donated_buffer=False):
        yield


def flat(results: Any) -> list[Tensor | None]:
    results = [results] if isinstance(results, Tensor) else results
    return [t if t is None else t.detach() for t in results]
