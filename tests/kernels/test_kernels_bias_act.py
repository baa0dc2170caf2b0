"""bias_act where its pieces meet, what its sums and its memory are, and its variant with a modulated result."""

import pytest
import torch
from torch import Tensor

import kernels
from tests.support import interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def grads_at(function, x, **options):
    x = x.clone().requires_grad_()
    y = function(x, **options)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize(
    "options", [{}, {"clamp": 0.5}, {"slope": 0.0}, {"slope": -0.3}, {"act": "linear"}], ids=str
)
def test_at_the_kinks_the_gradient_is_pytorchs(options):
    """Exactly zero (either sign), exactly at the bound, and one rounding beside each."""
    bound = torch.tensor([0.0, -0.0, 0.5, -0.5, -2.5], device=DEVICE)
    up, down = torch.nextafter(bound, bound + 1), torch.nextafter(bound, bound - 1)
    x = torch.stack([bound, up, down])
    got = grads_at(kernels.bias_act, x, gain=1.0, **options)
    want = grads_at(kernels.bias_act_reference, x, gain=1.0, **options)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_bias_gradient_loses_no_mass_in_bfloat16(layout):
    """4087 ones added one by one in bfloat16 would stop at 256, and even their partial sums would be rounded."""
    x = torch.ones(1, 2, 61, 67, dtype=torch.bfloat16, device=DEVICE).contiguous(memory_format=layout)
    bias = torch.zeros(2, device=DEVICE, requires_grad=True)
    (grad,) = torch.autograd.grad(kernels.bias_act(x, bias, gain=1.0).sum(), bias)
    assert grad.tolist() == [4087, 4087]


def test_the_convolutions_output_is_not_kept_where_the_sign_of_y_will_do():
    saved = []
    x = torch.randn(2, 3, 4, 4, device=DEVICE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = kernels.bias_act(x, torch.zeros(3, device=DEVICE))
    assert y.data_ptr() in saved
    assert x.data_ptr() not in saved


# bias_act_modulate


def numbers(*shape: int, last: bool = False) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64, device=DEVICE)
    return (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()


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
    torch.manual_seed(1)
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
