"""What is called when an op is timed, what it is compared with, and whether its results are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ladder.studies.kernelbench.cases.registry import Case
from ladder.studies.kernelbench.timing import Call

# How the yardstick may be copied: pages that its pieces are rounded up to and how large a piece may be, in bytes. In a
# graph on an H200 the driver copied some sizes at up to 4.2 TB/s and others at 2.7 or less, also some of whole pages.
# Not taken from kernels.tuning: `kernels` may be an old commit's.
WAYS = tuple((page, largest) for page in (1 << 12, 1 << 16) for largest in (128 << 20, 384 << 20))
TOLERANCE = 0.1  # relative L2 error over all results, from plain PyTorch in the same precision


def call_of(case: Case, direction: str, function: Callable[..., Tensor], device: str) -> Call:
    """What is timed, on inputs of its own. Backward passes are `autograd.grad` alone, over a graph that is kept.

    - forward: the call, with gradients on, so that it saves what its backward needs;
    - backward: gradients of all inputs that have one;
    - double backward: R1's and path length's second differentiation: of the gradients that the penalty uses, by all
      inputs and by the gradient that came in.
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
    """Normal numbers in t's dtype and memory format, the same at each index whatever that format is."""
    return torch.empty_like(t).copy_(torch.randn(t.shape, device=t.device))


def copies(total: int, sets: int, device: str, way: tuple[int, int] = WAYS[0]) -> list[Call]:
    """The yardstick: `copy_` of half as many bytes, so that reading and writing together are `total`, rounded up.

    way: one of WAYS. Which of them is fastest depends on the size; that one is the yardstick.
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
    """Raise ValueError where results are not plain PyTorch's: some missing, or further off than rounding explains.

    A gradient that is zero may be missing.
    """
    square_error = square = 0.0
    for index, (got, want) in enumerate(zip(results, expected, strict=True)):
        if got is None and want is None:
            continue
        if got is None and bool(want.any()):
            raise ValueError(f"result {index} is missing")
        wide = 0.0 if want is None else want.float()
        square_error += float(((0.0 if got is None else got.float()) - wide).square().sum())
        square += 0.0 if want is None else float(wide.square().sum())
    if not square_error <= TOLERANCE**2 * square:
        raise ValueError(f"differs from plain PyTorch by {(square_error / max(square, 1e-30)) ** 0.5:.0%}")


@contextmanager
def compiling() -> Iterator[None]:
    """torch.compile as it must be for a backward that is run again and again over the same graph."""
    import torch._functorch.config as functorch

    if not hasattr(functorch, "donated_buffer"):  # an older torch, which does not refuse retain_graph
        yield
        return
    with functorch.patch(donated_buffer=False):
        yield


def flat(results: Any) -> list[Tensor | None]:
    results = [results] if isinstance(results, Tensor) else results
    return [t if t is None else t.detach() for t in results]
