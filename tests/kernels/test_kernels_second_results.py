"""Ops with a second result, or with one more operand, compute what separate ops do, to the second derivative."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels.linear.rgb_weights import styled_group
from tests.support import interpreter

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
        return kernels.bias_act_modulate(
            x, bias, style, noise=noise, strength=strength, scale=next(iter(scale), None)
        )

    def plain(x, bias, style, strength, *scale):
        how = {"noise": noise, "strength": strength, "scale": next(iter(scale), None)}
        return kernels.bias_act_modulate_reference(x, bias, style, **how)

    agree(ours, plain, [x, bias, style, strength, *scale])


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_both_results_alone_has_its_own_gradient(used):
    given = [numbers(2, 3, 4, 4, last=True), numbers(3), numbers(2, 3)]
    (dx, dbias) = torch.autograd.grad(kernels.bias_act_modulate(*given)[used].square().sum(), given[:2])
    y = kernels.bias_act_reference(*given[:2])
    want = torch.autograd.grad((y, y * given[2][:, :, None, None])[used].square().sum(), given[:2])
    torch.testing.assert_close((dx, dbias), want)


def test_noise_has_a_gradient_where_it_is_asked_for():
    x, bias, style, strength, noise = (numbers(*s) for s in ((2, 3, 4, 4), (3,), (2, 3), (), (2, 1, 4, 4)))

    def gradients(op):
        y, z = op(x, bias, style, noise=noise, strength=strength)
        return torch.autograd.grad((y + z).square().sum(), (x, noise))

    found, want = (gradients(op) for op in (kernels.bias_act_modulate, kernels.bias_act_modulate_reference))
    torch.testing.assert_close(found, want)


def test_in_bf16_nothing_is_further_from_fp32_than_with_two_ops(monkeypatch):
    """In any direction: fewer maps are rounded on the way."""
    interpreter.round_to_nearest(monkeypatch)
    maps = [t.detach().bfloat16() for t in (numbers(2, 8, 12, 12, last=True) for _ in range(3))]
    noise, rows = numbers(2, 1, 12, 12).detach(), [numbers(*size) for size in ((8,), (2, 8), (), (2, 8))]
    ways = torch.randn(2, 8, 12, 12), torch.randn(2, 8), torch.randn(2, 8)

    def two(x, bias, style, **how):
        y = kernels.bias_act(x, bias, **how)
        return y, kernels.modulate(y, style)

    def derivatives(op, dtype):
        x, *gs = (t.to(dtype, copy=True).requires_grad_() for t in maps)
        bias, style, strength, scale = (t.detach().float().requires_grad_() for t in rows)
        ys = op(x, bias, style, noise=noise.float(), strength=strength, scale=scale)
        given = [x, style, scale]
        first = torch.autograd.grad(ys, [*given, bias, strength], gs, retain_graph=True)
        again = torch.autograd.grad(ys, given, gs, create_graph=True)
        along = [way.to(DEVICE, t.dtype) for way, t in zip(ways, again, strict=True)]
        return [*ys, *first, *torch.autograd.grad(again, [*given, *gs], along)]

    exact = derivatives(two, torch.float32)
    apart, joined = (
        [
            float(((a.float() - b).norm() / b.norm()).detach())
            for a, b in zip(derivatives(op, torch.bfloat16), exact, strict=True)
        ]
        for op in (two, kernels.bias_act_modulate)
    )
    assert all(b <= 1.1 * a for a, b in zip(apart, joined, strict=True)), (apart, joined)
    assert sum(joined) < sum(apart)


@pytest.mark.parametrize("last", [False, True])
def test_an_image_is_added_by_to_rgb(last):
    given = [numbers(2, 4, 3, 5, last=last), numbers(3, 4), numbers(3), numbers(2, 3, 3, 5, last=not last)]
    agree(
        lambda x, w, bias, image: [kernels.to_rgb(x, w, None, bias, image=image)],
        lambda x, w, bias, image: [torch.einsum("nchw,kc->nkhw", x, w) + bias[:, None, None] + image],
        given,
    )


def test_a_weight_may_have_the_styles_in_it():
    given = [numbers(2, 4, 3, 5, last=True), numbers(2, 3, 4), numbers(3), numbers(2, 3, 3, 5, last=True)]
    agree(
        lambda x, w, bias, image: [kernels.to_rgb(x, w, None, bias, image=image)],
        lambda x, w, bias, image: [kernels.to_rgb_reference(x, w, None, bias, image=image)],
        given,
    )


def test_styled_weights_of_all_layers():
    sizes = (3, 40, 2)
    agree(
        lambda *given: styled_group(given[:3], given[3:]),
        lambda *given: [w[None] * s[:, None] for w, s in zip(given[:3], given[3:], strict=True)],
        [*(numbers(3, c) for c in sizes), *(numbers(2, c) for c in sizes)],
    )


@pytest.mark.parametrize("wanted", [slice(0, 2), slice(2, 4), slice(0, 4)], ids=["weights", "styles", "both"])
def test_gradients_of_styled_weights_for_more_samples_than_a_tile_has(wanted):
    given = [*(numbers(3, c) for c in (37, 8)), *(numbers(18, c) for c in (37, 8))]
    gs = [numbers(18, 120)[:, : 3 * c].view(18, 3, c) for c in (37, 8)]  # lying among other numbers
    product = [w[None] * s[:, None] for w, s in zip(given[:2], given[2:], strict=True)]
    found = torch.autograd.grad(styled_group(given[:2], given[2:]), given[wanted], gs)
    torch.testing.assert_close(found, torch.autograd.grad(product, given[wanted], gs))


def test_styles_come_out_of_demodulation():
    sizes = (3, 5)
    given = [*(numbers(4, c) for c in sizes), *(numbers(2, c) for c in sizes)]
    given[:2] = [e.detach().square().requires_grad_() for e in given[:2]]

    def ours(*given):
        ds, styles = kernels.demodulate_group_fork(given[:2], given[2:])
        return [*ds, *(3 * s for s in styles)]

    def plain(*given):
        return [*kernels.demodulate_group_reference(given[:2], given[2:]), *(3 * s for s in given[2:])]

    agree(ours, plain, given)
