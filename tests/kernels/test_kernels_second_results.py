"""Ops with a second result, or with one more operand, compute what separate ops do, to the second derivative."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)


def numbers(*shape: int, last: bool = False) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64, device=DEVICE)
    return (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()


def agree(ours, plain, given: list[Tensor]) -> None:
    """Results, gradients and gradients of gradients are right, and as those of the separate ops."""
    found = []
    for function in (ours, plain):
        ys = function(*given)
        first = torch.autograd.grad(sum((y**2).sum() for y in ys), given, create_graph=True)
        found.append([*ys, *first, *torch.autograd.grad(sum((g**2).sum() for g in first), given)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert gradcheck(ours, given, fast_mode=True) and gradgradcheck(ours, given, fast_mode=True)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("last", [False, True])
def test_an_image_is_added_by_to_rgb(last):
    given = [numbers(2, 4, 3, 5, last=last), numbers(3, 4), numbers(3), numbers(2, 3, 3, 5, last=not last)]
    agree(
        lambda x, w, bias, image: [kernels.to_rgb(x, w, None, bias, image=image)],
        lambda x, w, bias, image: [torch.einsum("nchw,kc->nkhw", x, w) + bias[:, None, None] + image],
        given,
    )
