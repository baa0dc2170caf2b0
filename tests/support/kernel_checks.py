"""What tests judge kernels by: errors beside plain PyTorch's own, and memory that shows what was written."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from ladder.studies.kernelbench import bench as kernelcalls
from ladder.studies.kernelbench.cases import Case

Tensors = Iterable[Tensor]


def error(got: Tensor, want: Tensor) -> float:
    """Relative L2 error."""
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


def assert_no_worse(
    got: Tensors, plain: Tensors, exact: Tensors, dtype: torch.dtype, slack: float = 1.5
) -> None:
    """Compare errors with a budget: plain PyTorch's own against float64 in this dtype, times ``slack``, and four
    roundings.
    """
    for i, (ours, theirs, want) in enumerate(zip(got, plain, exact, strict=True)):
        budget = slack * error(theirs, want) + 4 * torch.finfo(dtype).eps
        assert error(ours, want) <= budget, f"result {i}"


def garble(t: Tensor) -> Tensor:
    return t.fill_(float("nan") if t.is_floating_point() else 1234)


def poison_memory(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Fill the memory that a kernel asks for from now on with NaN, with 32 more on either side.

    Returns:
        what was asked for since, with what lies around it
    """
    new_empty, empty_like, around = Tensor.new_empty, torch.empty_like, []

    def poisoned(self: Tensor, size: tuple[int, ...], **options: object) -> Tensor:
        if not isinstance(size, tuple):
            return new_empty(self, size, **options)
        store = garble(new_empty(self, torch.Size(size).numel() + 64, **options))
        around.append(store)
        return store[32:-32].view(size)

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: garble(empty_like(*a, **k)))
    return around


def assert_untouched(around: list[Tensor]) -> None:
    """Nothing was written beside the memory that was asked for."""
    edges = [edge for store in around for edge in (store[:32], store[-32:])]
    assert all((edge.isnan() | (edge == 1234)).all() for edge in edges)


def assert_agrees(case: Case, directions: Iterable[str]) -> None:
    """The op computes what plain PyTorch does, and not nothing, in each direction."""
    for direction in directions:
        results = []
        for function in (case.fused(), case.plain()):
            torch.manual_seed(0)
            results.append(kernelcalls.flat(kernelcalls.call_of(case, direction, function, "cpu")()))
        kernelcalls.compare_results(*results)
        assert any(t is not None and t.any() for t in results[0])
