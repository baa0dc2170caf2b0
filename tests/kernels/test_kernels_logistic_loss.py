"""logistic_loss against plain PyTorch: value, gradient and second derivative, and far from zero."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from kernels.pointwise import logistic_loss as ours
from kernels.pointwise.logistic_loss import logistic_loss, logistic_loss_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)


def some(n: int, dtype=torch.float64) -> Tensor:
    x = torch.randn(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (3 * x).to(DEVICE, dtype).requires_grad_()


@pytest.mark.parametrize(("n", "fakes"), [(8, 0), (16, 8), (6, 6), (7, 3), (1, 0)])
def test_value_and_both_derivatives_agree_with_the_reference(n, fakes):
    x, found = some(n), []
    for function in (logistic_loss, logistic_loss_reference):
        loss = function(x, fakes)
        (plain,) = torch.autograd.grad(2.5 * loss, x, retain_graph=True)
        (first,) = torch.autograd.grad(loss**2, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append([loss, plain, first, second])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    assert gradcheck(lambda x: logistic_loss(x, fakes), x, fast_mode=True)
    assert gradgradcheck(lambda x: logistic_loss(x, fakes), x, fast_mode=True)


def test_more_logits_than_the_program_holds(monkeypatch):
    monkeypatch.setattr(ours, "BLOCK", 4)
    test_value_and_both_derivatives_agree_with_the_reference(11, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_are_in_full_precision_under_any_dtype(dtype):
    x = some(9, dtype)
    exact = x.detach().double().requires_grad_()
    got, want = logistic_loss(x, 4), logistic_loss_reference(exact, 4)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0)
    (dx,), (exact_dx,) = torch.autograd.grad(got, x), torch.autograd.grad(want, exact)
    assert dx.dtype == dtype
    torch.testing.assert_close(dx.double(), exact_dx, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("value", [-400.0, -60.0, -17.5, 0.0, 17.5, 60.0, 400.0])
def test_far_from_zero_nothing_is_lost_or_overflows(value):
    x = torch.tensor([[value]], device=DEVICE, requires_grad=True)
    exact = x.detach().double()
    loss = logistic_loss(x, 1)
    torch.testing.assert_close(
        loss.double(), torch.logaddexp(exact, torch.zeros_like(exact)).sum(), rtol=1e-6, atol=1e-38
    )
    (slope,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(slope.double(), exact.sigmoid(), rtol=1e-5, atol=1e-38)


def test_nan_stays_visible():
    x = torch.tensor([[0.0], [float("nan")]], device=DEVICE, requires_grad=True)
    loss = logistic_loss(x, 1)
    (slope,) = torch.autograd.grad(loss, x)
    assert loss.isnan() and slope[1].isnan() and slope[0] == 0.5
