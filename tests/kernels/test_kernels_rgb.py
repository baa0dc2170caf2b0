"""to_rgb and from_rgb beyond the table of `opcases.py`: what is launched, and weights that have styles in them."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels.linear import rgb_kernels
from kernels.linear.rgb_weights import styled, styled_group
from tests.kernels.opcases import DEVICE, make_inputs

torch.set_num_threads(1)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=DEVICE, requires_grad=True)


def test_only_what_is_asked_for_is_launched(monkeypatch):
    """The generator's step does not want the discriminator's weights, and R1 wants the image alone."""
    ran = []
    launch = rgb_kernels.launch
    monkeypatch.setattr(
        rgb_kernels, "launch", lambda kernel, *a, **k: (ran.append(kernel.__name__), launch(kernel, *a, **k))
    )
    image, weight, bias = make_inputs("from_rgb", (2, 8, 4, 4), "nhwc")

    def launched(wanted, *inputs) -> list[str]:
        y = kernels.from_rgb(*inputs)
        ran.clear()
        torch.autograd.grad(y.sum(), wanted)
        return list(ran)

    assert launched([image], image, weight, bias) == ["rgb_narrow_kernel"]
    assert launched([weight, bias], image.detach(), weight, bias) == ["rgb_correlate_kernel"]
    y = kernels.from_rgb(image, weight, bias)
    ran.clear()
    (gradient,) = torch.autograd.grad(y.sum(), image, create_graph=True)  # R1
    assert ran == ["rgb_narrow_kernel"]
    ran.clear()
    torch.autograd.grad(gradient.square().sum(), weight)
    assert ran == ["rgb_correlate_kernel"]
    x, weight, style, bias = make_inputs("to_rgb", (2, 8, 4, 4), "nhwc")
    y = kernels.to_rgb(x, weight, style, bias)
    ran.clear()
    torch.autograd.grad(y.sum(), [x, weight, style, bias])
    assert ran == ["rgb_correlate_kernel"]  # all gradients from one pass


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
def test_gradients_of_styled_weights_from_one_launch_are_those_of_the_product(wanted):
    """More samples and channels than a tile has, and a gradient that lies among other numbers."""
    torch.manual_seed(0)
    weight, style = (torch.randn(s, dtype=torch.float64, device=DEVICE) for s in ((3, 37), (18, 37)))
    inputs = [t.requires_grad_(needed) for t, needed in zip((weight, style), wanted, strict=True)]
    g = torch.randn(18, 120, dtype=torch.float64, device=DEVICE)[:, 3:114].view(18, 3, 37)
    left = [t for t in inputs if t.requires_grad]
    found = torch.autograd.grad(styled(*inputs), left, g)
    want = torch.autograd.grad(weight[None] * style[:, None], left, g)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b)


def test_styled_weights_of_all_layers():
    sizes = (3, 40, 2)
    given = [*(numbers(3, c) for c in sizes), *(numbers(2, c) for c in sizes)]
    found = []
    for styled_of in (
        styled_group,
        lambda weights, styles: [w[None] * s[:, None] for w, s in zip(weights, styles, strict=True)],
    ):
        ys = styled_of(given[:3], given[3:])
        first = torch.autograd.grad(sum((y**2).sum() for y in ys), given, create_graph=True)
        found.append([*ys, *first, *torch.autograd.grad(sum((g**2).sum() for g in first), given)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    ours = lambda *given: styled_group(given[:3], given[3:])  # noqa: E731
    assert gradcheck(ours, given, fast_mode=True) and gradgradcheck(ours, given, fast_mode=True)


@pytest.mark.parametrize("wanted", [slice(0, 2), slice(2, 4), slice(0, 4)], ids=["weights", "styles", "both"])
def test_gradients_of_styled_weights_for_more_samples_than_a_tile_has(wanted):
    given = [*(numbers(3, c) for c in (37, 8)), *(numbers(18, c) for c in (37, 8))]
    gs = [numbers(18, 120)[:, : 3 * c].view(18, 3, c) for c in (37, 8)]  # lying among other numbers
    product = [w[None] * s[:, None] for w, s in zip(given[:2], given[2:], strict=True)]
    found = torch.autograd.grad(styled_group(given[:2], given[2:]), given[wanted], gs)
    torch.testing.assert_close(found, torch.autograd.grad(product, given[wanted], gs))
