"""act_filter, filter_act and filter_act_modulate beyond the table of `opcases.py`: padding, tables, styles of zero."""

import sys

import pytest
import torch
from torch import Tensor

import kernels
from ladder.receipts.watch import launches
from tests.kernels import opcases
from tests.kernels.opcases import (
    BINOMIAL,
    CASES,
    DEVICE,
    FORMATS,
    agree,
    functions,
    make_inputs,
)

launching = sys.modules["kernels.upfirdn.filtered_act_launch"]
module = sys.modules["kernels.upfirdn.filtered_act"]
every_format = pytest.mark.parametrize("layout", FORMATS)
torch.set_num_threads(1)


def compute_once(function, inputs: list[Tensor]) -> list[Tensor]:
    """Return y and its gradients along fixed numbers."""
    y = function(*inputs)
    (g,) = opcases.make_directions([y])
    return [y.detach(), *torch.autograd.grad(y, [t for t in inputs if t.requires_grad], g.detach())]


@pytest.mark.parametrize("padding", [1, (0, 3, 2, 1)], ids=str)
@pytest.mark.parametrize("op", ["act_filter", "filter_act", "filter_act_modulate"])
def test_any_padding_agrees_with_the_reference(op, padding, monkeypatch):
    call = opcases.filtered(op, alone=True, padding=padding)
    inputs = "NCHW C NC" if op.endswith("modulate") else "NCHW C"
    monkeypatch.setitem(CASES, "padded", opcases.Case(inputs, call))
    agree("padded", make_inputs("padded", (2, 3, 5, 4), "nhwc"))


@every_format
def test_what_pads_an_activation_is_zero_and_not_the_activated_bias(layout):
    x = torch.zeros(1, 1, 2, 2, device=DEVICE).contiguous(memory_format=FORMATS[layout])
    y = kernels.act_filter(x, torch.ones(1, device=DEVICE), (1.0, 1.0), padding=1, gain=1.0)
    want = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], device=DEVICE)
    torch.testing.assert_close(y[0, 0], want)


@pytest.mark.parametrize("entry", sorted(launching.CONFIGS, key=str), ids=str)
def test_every_configuration_agrees_with_the_reference(entry, monkeypatch):
    """As it runs for large images: no strip is shortened."""
    name, nhwc = entry[-2:]
    monkeypatch.setattr(launching, "config", lambda *_: launching.CONFIGS[entry])
    launching._cover.cache_clear()
    case = name.split("_grad")[0]
    inputs, found = make_inputs(case, (1, 2, 9, 9), "nhwc" if nhwc else "nchw"), []
    wanted = [t for t in inputs if t.requires_grad]
    for function in functions(case):
        y = function(*inputs)
        (g,) = opcases.make_directions([y])
        if name.endswith("_grad"):
            y = torch.autograd.grad(y, wanted, g, create_graph=name.endswith("grad_grad"))[0]
        if name.endswith("grad_grad"):
            y = torch.autograd.grad(y.sin().sum(), g)[0]
        found.append(y.detach())
    torch.testing.assert_close(*found)
    launching._cover.cache_clear()


def test_a_backward_pass_is_one_launch_and_its_sums():
    """Only path length's second derivative runs the separate ops."""
    for op in ("act_filter", "filter_act", "filter_act_modulate"):
        inputs = make_inputs(op, (2, 3, 4, 5), "nhwc")
        with launches() as seen:
            torch.autograd.grad(functions(op)[0](*inputs).sum(), [t for t in inputs if t.requires_grad])
        counts = {name: each["calls"] for name, each in seen.items() if "sum" not in name}
        assert counts == {f"{op}_kernel": 1, f"{op}_grad_kernel": 1}


@every_format
@pytest.mark.parametrize("style", [0.0, -0.0, 1e-30, -1e-30], ids=str)
def test_a_style_of_zero_has_its_gradient(style, layout):
    """y then tells nothing of the activation, but for what is left of it."""
    inputs = make_inputs("filter_act_modulate", (2, 3, 4, 5), layout)
    styles = inputs[4].detach()
    styles[0, 1] = styles[1, 2] = style
    agree("filter_act_modulate", inputs)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 0.1), (torch.bfloat16, 0.02)], ids=str)
def test_a_style_of_zero_has_about_its_gradient_in_low_precision(dtype, most):
    inputs = [t.detach() for t in make_inputs("filter_act_modulate", (2, 3, 6, 6), "nhwc", torch.float32)]
    inputs[4][0, 1] = 0
    inputs[0], style = inputs[0].to(dtype), inputs[4].requires_grad_()
    y, got = compute_once(functions("filter_act_modulate")[0], inputs)
    exact = [t.detach().double().requires_grad_(t is style) for t in inputs]
    *_, want = compute_once(functions("filter_act_modulate")[1], exact)
    assert y[0, 1].abs().max() < 1e-3
    assert abs(got[0, 1] - want[0, 1]) <= most * want.abs().max() and want[0, 1].abs() > 0.1


def test_strips_agree_with_walks(monkeypatch):
    """Both ways to cover an image, in 16 bits, where either may be chosen."""
    op, found = "filter_act_modulate", []
    inputs = make_inputs(op, (2, 17, 13, 14), "nhwc", torch.float16)
    for strips in ({}, {name: launching.Strip(8, 16, 16, 2) for name in (op, f"{op}_grad")}):
        monkeypatch.setattr(launching, "STRIPS", strips)
        launching._cover.cache_clear()
        found.append(compute_once(functions(op)[0], inputs))
    launching._cover.cache_clear()
    for a, b in zip(*found, strict=True):
        assert (a.double() - b.double()).norm() <= 4e-3 * a.double().norm()


def test_bytes_moved_are_those_of_the_maps():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)
    assert module.bytes_moved(x, BINOMIAL, padding=2) == 2 * 3 * (16 + 25) * 2
    assert module.bytes_moved(x, BINOMIAL, padding=2, backward=True) == 2 * 3 * (16 + 25 + 25) * 2
