"""fused_rgb: what the convolutions computed, in every phase, and a receipt that is earned."""

import pytest
import torch
import torch.nn.functional as F

import kernels
from stylegan_lite import make_step
from tests.support.rung_steps import assert_engaged, assert_the_same, checked, every_phase, gathered, receipt
from tests.support.small import LEAST, SMALL

RGB = {"rgb": "triton"}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
FUSED = LAST | {"fused_norm": True, "fused_act": True, "conv": "double_backward"}
TINY = SMALL | {"resolution": 8, "batch": 2}
pytestmark = pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and no interpreter")
torch.set_num_threads(1)


@pytest.mark.parametrize(
    "how",
    [{}, pytest.param(LAST, marks=pytest.mark.exhaustive), LAST | {"fused_act": True}],
    ids=["nchw", "nhwc", "fused act"],
)
def test_every_phase_computes_what_the_convolutions_did(how):
    """Path length differentiates toRGB twice, R1 fromRGB; without `fused_act` the activation stays PyTorch's."""
    recipes = (LAST if how else {}, how | RGB)
    steps = [make_step(TINY, recipe | {"precision": "fp64"}, device="cpu") for recipe in recipes]
    plain, fused = (every_phase(step, noise=True) for step in steps)
    assert_the_same(fused, plain, atol=1e-11)


@pytest.mark.parametrize(
    "below",
    [pytest.param({}, marks=pytest.mark.exhaustive), LAST | {"precision": "bf16"}],
    ids=["fp32", "bf16"],
)
def test_it_agrees_with_the_reference(below, references):
    step = make_step(SMALL | {"resolution": 8}, below | RGB, device="cpu")
    found = checked(step, references)
    assert found["verdict"] == "ok", found["problems"]


def test_the_image_is_in_full_precision_and_weights_are_those_of_the_other_recipe():
    step, plain = (make_step(TINY, r | {"precision": "bf16"} | LAST, device="cpu") for r in (RGB, {}))
    assert step.D.state_dict().keys() == plain.D.state_dict().keys()
    with step.amp(), torch.no_grad():
        noise = [torch.zeros(shape) for shape in step.G.noise_shapes(2)]
        image = step.G(torch.randn(2, step.G.num_ws, 16), noise)
        y = step.D.from_rgb(image)
    assert image.dtype == torch.float32 and y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_a_residual_is_added_as_by_every_convolution():
    layers = []
    for more in ({}, RGB):
        layers.append(make_step(TINY, FUSED | more | {"precision": "fp64"}, device="cpu").D.from_rgb)
    layers[1].load_state_dict(layers[0].state_dict())
    image = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    residual = torch.randn_like(layers[0](image))
    plain, fused = (layer(image, residual) for layer in layers)
    torch.testing.assert_close(fused, plain, atol=1e-11, rtol=0)
    assert not torch.allclose(fused, layers[1](image))


# the receipt


def seen_of(recipe: dict, **workload: str) -> dict:
    return gathered(make_step(LEAST | workload, recipe, device="cpu"))


@pytest.mark.parametrize("norm", ["demod", pytest.param("instance", marks=pytest.mark.exhaustive)])
def test_the_receipt_is_earned_and_the_rungs_below_keep_theirs(norm):
    """With instance norm nothing but toRGB is modulated, so `fused_norm` has no launch of its own left to show."""
    recipe = FUSED | RGB | {"precision": "bf16"}
    below = {"channels_last", "bf16", "fused_norm", "fused_act", "conv_double_backward"}
    assert_engaged(seen_of(recipe, norm=norm), {"fused_rgb", *below})
    assert_engaged(seen_of(RGB), ("fused_rgb", "baseline"))
    plain = receipt("fused_rgb", seen_of(FUSED))
    assert not plain.engaged and "launched 0x" in plain.reason


def convolved_to(x, weight, style, bias, *, gain, dtype, image):
    """toRGB as it was, with weights [N, 3, C] that have the style in them."""
    n, c, h, w = x.shape
    y = F.conv2d(x.reshape(1, n * c, h, w), (weight * gain).flatten(0, 1)[:, :, None, None], groups=n)
    y = y.view(n, 3, h, w).to(dtype) + bias.view(1, -1, 1, 1)
    return y if image is None else y + image


def convolved_from(image, weight, bias=None, *, gain, channels_last, slope, act_gain):
    y = F.conv2d(image, weight * gain, bias)
    return F.leaky_relu(y, slope) * act_gain


@pytest.mark.parametrize(
    ("name", "other", "layer"), [("to_rgb", convolved_to, "toRGB"), ("from_rgb", convolved_from, "fromRGB")]
)
def test_fused_rgb_sabotaged_by_a_convolution_in_one_kind_of_layer(name, other, layer, monkeypatch, refused):
    monkeypatch.setattr(kernels, name, other)
    refused("fused_rgb", seen_of(RGB), "1x1 convolutions", "forward", sabotage=f"{layer} convolves")
