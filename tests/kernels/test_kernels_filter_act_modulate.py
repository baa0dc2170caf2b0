"""filter_act_modulate beyond what tests/kernels/test_kernels_filtered_act.py asks of it and its kin: styles, shapes,
asking."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

import kernels
from kernels.upfirdn import filtered_act_launch as launching
from tests.kernels.test_kernels_filtered_act import FORMATS, everything, function, inputs, random

OP = "filter_act_modulate"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BINOMIAL = (0.125, 0.375, 0.375, 0.125)
torch.set_num_threads(1)


def once(f, given: list[Tensor]) -> list[Tensor]:
    """y and its gradients along a fixed g."""
    y = f(*given)
    return [y.detach(), *torch.autograd.grad(y, given, random(*y.shape, seed=5).to(y.dtype))]


def agree(given: list[Tensor], shape, compute=everything, **options) -> None:
    got = compute(function(OP, shape, **options), given)
    want = compute(function(OP, shape, reference=True, **options), given)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7, msg=lambda text, i=i: f"result {i}: {text}")


def with_style(shape, layout="nhwc", **types) -> tuple[list[Tensor], Tensor]:
    """The op's inputs, and their style, to be written to."""
    given = inputs(OP, shape, layout, **types)
    return given, given[-1].detach()


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
@hypothesis.given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 19), st.integers(2, 7), st.integers(2, 7)),
    layout=st.sampled_from(sorted(FORMATS)),
    padding=st.sampled_from([1, 2, (2, 1)]),
)
def test_any_shape_agrees_with_the_reference(shape, layout, padding):
    agree(inputs(OP, shape, layout), shape, once, padding=padding)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("style", [0.0, -0.0, 1e-30, -1e-30], ids=str)
def test_a_style_of_zero_has_its_gradient(style, layout):
    """y then tells nothing of the activation, but for what is left of it."""
    shape = (2, 3, 4, 5)
    given, styles = with_style(shape, layout)
    styles[0, 1] = styles[1, 2] = style
    agree(given, shape)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 0.1), (torch.bfloat16, 0.02)], ids=str)
def test_a_style_of_zero_has_about_its_gradient_in_low_precision(dtype, error):
    shape = (2, 3, 6, 6)
    given, styles = with_style(shape, dtype=dtype, wide=torch.float32)
    styles[0, 1] = 0
    f, reference = (function(OP, shape, reference=r, wide=torch.float32) for r in (False, True))
    y, *_, got = once(f, given)
    *_, want = once(reference, [t.detach().double().requires_grad_() for t in given])
    assert y[0, 1].abs().max() < 1e-3
    assert abs(got[0, 1] - want[0, 1]) <= error * want.abs().max() and want[0, 1].abs() > 0.5


def test_strided_and_expanded_inputs():
    shape = (2, 3, 4, 5)
    strided = [
        t.detach().repeat_interleave(2, -1)[..., ::2].requires_grad_() if t.dim() else t
        for t in inputs(OP, shape)
    ]
    assert not strided[0].is_contiguous() and not strided[-1].is_contiguous()
    agree(strided, shape)
    agree([t[:1].expand_as(t) if t.dim() > 1 else t for t in inputs(OP, shape)], shape)


def test_an_expanded_gradient():
    """sum() hands back a gradient of stride 0."""
    shape = (2, 3, 4, 5)
    given = inputs(OP, shape, "nhwc")
    found = [
        torch.autograd.grad(function(OP, shape, reference=r)(*given).sum(), given) for r in (False, True)
    ]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("of", ["x", "style"])
def test_nan_and_inf_come_out_where_the_references_do(of, value):
    shape = (2, 3, 5, 5)
    given = inputs(OP, shape, "nhwc")
    with torch.no_grad():
        given[0 if of == "x" else -1].flatten()[7 if of == "x" else 1] = value
    for padding in (1, 2):
        y, want = (
            function(OP, shape, BINOMIAL, padding=padding, reference=r)(*given).detach()
            for r in (False, True)
        )
        torch.testing.assert_close(y, want, equal_nan=True)


def test_only_what_is_asked_for_has_a_gradient():
    shape = (2, 3, 4, 5)
    for wanted in range(5):
        given = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(inputs(OP, shape, "nhwc"))]
        got, want = (
            torch.autograd.grad(function(OP, shape, reference=r)(*given).sin().sum(), given[wanted])[0]
            for r in (False, True)
        )
        torch.testing.assert_close(got, want)
        assert sum(d is not None for d in _asked(shape, given)) == 1


def _asked(shape, given):
    """Return the gradients of the backward pass."""
    y = function(OP, shape)(*given)
    y.sum().backward()
    return [t.grad for t in given]


def test_strips_agree_with_walks(monkeypatch):
    """Both ways to cover an image, in 16 bits, where either may be chosen."""
    shape = (2, 17, 13, 14)
    given, found = inputs(OP, shape, "nhwc", torch.float16, torch.float32), []
    f = function(OP, shape, BINOMIAL, padding=(2, 1), wide=torch.float32)
    for strips in ({}, {name: launching.Strip(8, 16, 16, 2) for name in (OP, f"{OP}_grad")}):
        monkeypatch.setattr(launching, "STRIPS", strips)
        launching._cover.cache_clear()
        found.append(once(f, given))
    launching._cover.cache_clear()
    for a, b in zip(*found, strict=True):
        assert (a.double() - b.double()).norm() <= 4e-3 * a.double().norm()


def test_the_style_is_one_number_a_map():
    for style in (torch.ones(2, 2), torch.ones(2), torch.ones(1, 2, 1, 1)):
        with pytest.raises(ValueError, match=r"style must be \[1, 2\]") as refusal:
            kernels.filter_act_modulate(torch.zeros(1, 2, 4, 4), BINOMIAL, style)
        assert "\n" not in str(refusal.value)
    how = {"noise": torch.zeros(1, 1, 5, 5, requires_grad=True), "strength": torch.zeros(()), "padding": 2}
    with pytest.raises(ValueError, match="noise has no gradient here"):
        kernels.filter_act_modulate(torch.zeros(1, 2, 4, 4), BINOMIAL, torch.ones(1, 2), **how)
