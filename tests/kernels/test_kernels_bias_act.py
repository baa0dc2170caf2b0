"""bias_act where its pieces meet, in bfloat16 sums, and for inputs it must refuse or treat apart."""

import pytest
import torch

import kernels

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


@pytest.mark.parametrize("scaled", [False, True])
def test_features_without_pixels(scaled):
    x = torch.randn(5, 7, dtype=torch.float64, device=DEVICE, requires_grad=True)
    bias = torch.randn(7, dtype=torch.float64, device=DEVICE, requires_grad=True)
    scale = torch.randn(5, 7, dtype=torch.float64, device=DEVICE, requires_grad=True) if scaled else None
    wanted = [t for t in (x, bias, scale) if t is not None]
    got, want = (f(x, bias, scale=scale, clamp=1.5) for f in (kernels.bias_act, kernels.bias_act_reference))
    torch.testing.assert_close(got, want)
    for a, b in zip(
        torch.autograd.grad(got.sum(), wanted), torch.autograd.grad(want.sum(), wanted), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_noise_may_be_optimized_too():
    """Projection of images optimizes the noise maps."""
    x, noise = (
        torch.randn(2, c, 3, 4, dtype=torch.float64, device=DEVICE, requires_grad=True) for c in (5, 1)
    )
    strength = torch.tensor(0.7, dtype=torch.float64, device=DEVICE, requires_grad=True)
    scale = torch.randn(2, 5, dtype=torch.float64, device=DEVICE, requires_grad=True)

    def function(x, noise, strength, scale):
        return kernels.bias_act(x, noise=noise, strength=strength, scale=scale)

    assert torch.autograd.gradcheck(function, (x, noise, strength, scale), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x, noise, strength, scale), fast_mode=True)


def test_the_convolutions_output_is_not_kept_where_the_sign_of_y_will_do():
    saved = []
    x = torch.randn(2, 3, 4, 4, device=DEVICE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = kernels.bias_act(x, torch.zeros(3, device=DEVICE))
    assert y.data_ptr() in saved
    assert x.data_ptr() not in saved


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 3, 4), {}, r"\[N, C\] or \[N, C, H, W\]"),
        ((2, 3), {"bias": torch.zeros(2)}, r"bias must be \[C\] = \[3\], got \(2,\)"),
        ((2, 3), {"scale": torch.zeros(3, 2)}, r"scale must be"),
        ((2, 3, 4, 4), {"noise": torch.zeros(2, 1, 4, 4)}, "come together"),
        ((2, 3, 4, 4), {"noise": torch.zeros(2, 1, 4, 5), "strength": torch.zeros(())}, "noise must be"),
        ((2, 3), {"act": "gelu"}, '"lrelu" or "linear"'),
    ],
)
def test_inputs_that_do_not_fit_are_refused(shape, options, message):
    for function in (kernels.bias_act, kernels.bias_act_reference):
        with pytest.raises(ValueError, match=message):
            function(torch.zeros(shape), **options)
