"""Ops with a second result, or with one more operand, compute what separate ops do, to the second derivative."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels.linear.rgb_weights import styled_group
from kernels.pointwise.bias_act_modulate import bias_act_modulate
from kernels.weights.demodulate_group import demodulate_group_fork

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
@pytest.mark.parametrize("scaled", [False, True])
def test_an_activation_and_the_modulated_one(last, scaled):
    x, bias, style = numbers(2, 3, 5, 4, last=last), numbers(3), numbers(2, 3)
    noise, strength = numbers(2, 1, 5, 4).detach(), numbers()
    scale = [numbers(2, 3)] if scaled else []

    def ours(x, bias, style, strength, *scale):
        return bias_act_modulate(
            x, bias, style, noise=noise, strength=strength, scale=next(iter(scale), None)
        )

    def plain(x, bias, style, strength, *scale):
        how = {"noise": noise, "strength": strength, "scale": next(iter(scale), None)}
        y = kernels.bias_act_reference(x, bias, **how)
        return y, y * style[:, :, None, None]

    agree(ours, plain, [x, bias, style, strength, *scale])


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_both_results_alone_has_its_own_gradient(used):
    given = [numbers(2, 3, 4, 4, last=True), numbers(3), numbers(2, 3)]
    (dx, dbias) = torch.autograd.grad(bias_act_modulate(*given)[used].square().sum(), given[:2])
    y = kernels.bias_act_reference(*given[:2])
    want = torch.autograd.grad((y, y * given[2][:, :, None, None])[used].square().sum(), given[:2])
    torch.testing.assert_close((dx, dbias), want)


@pytest.mark.parametrize("last", [False, True])
def test_an_image_is_added_by_to_rgb(last):
    given = [numbers(2, 4, 3, 5, last=last), numbers(2, 3, 4), numbers(3), numbers(2, 3, 3, 5, last=last)]
    agree(
        lambda x, w, bias, image: [kernels.to_rgb(x, w, None, bias, image=image)],
        lambda x, w, bias, image: [torch.einsum("nchw,nkc->nkhw", x, w) + bias[:, None, None] + image],
        given,
    )


def test_styled_weights_of_all_layers():
    sizes = (3, 40, 2)
    agree(
        lambda *given: styled_group(given[:3], given[3:]),
        lambda *given: [w[None] * s[:, None] for w, s in zip(given[:3], given[3:], strict=True)],
        [*(numbers(3, c) for c in sizes), *(numbers(2, c) for c in sizes)],
    )


def test_styles_come_out_of_demodulation():
    sizes = (3, 5)
    given = [*(numbers(4, c) for c in sizes), *(numbers(2, c) for c in sizes)]
    given[:2] = [e.detach().square().requires_grad_() for e in given[:2]]

    def ours(*given):
        ds, styles = demodulate_group_fork(given[:2], given[2:])
        return [*ds, *(3 * s for s in styles)]

    def plain(*given):
        return [*kernels.demodulate_group_reference(given[:2], given[2:]), *(3 * s for s in given[2:])]

    agree(ours, plain, given)
