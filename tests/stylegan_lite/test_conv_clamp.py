"""conv_clamp: which activations it bounds, in which recipes, what refuses it, and that older results stay the same."""

import math

import pytest
import torch

import kernels
from stylegan_lite import ConfigError, Recipe, Workload, make_step
from stylegan_lite.layers import Conv, ModulatedConv, ToRGB
from tests.support.rung_steps import assert_the_same, every_phase
from tests.support.small import LEAST

BOUND = 0.05
CLAMP = {"conv_clamp": BOUND}
FUSED = {"fused_act": True, "fused_norm": True, "rgb": "triton", "resample": "triton", "joint_batch": True}
torch.set_num_threads(1)


@pytest.fixture
def in_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' references in their place: the model's wiring at a CPU's speed."""
    for name in kernels.__all__:
        if hasattr(kernels, f"{name}_reference") and not name.startswith("conv"):
            monkeypatch.setattr(kernels, name, getattr(kernels, f"{name}_reference"))


@pytest.mark.parametrize("recipe", [{}, FUSED], ids=["plain", "fused"])
def test_every_convolution_with_an_activation_is_bounded_and_reaches_the_bound(
    recipe: dict, in_plain_pytorch: None
) -> None:
    step = make_step(LEAST | CLAMP, recipe, device="cpu")
    largest: dict[str, float] = {}
    for network, of in ((step.G, "G"), (step.D, "D")):
        for name, layer in network.named_modules():
            if isinstance(layer, Conv | ModulatedConv | ToRGB):
                layer.register_forward_hook(
                    lambda _, __, y, name=f"{of}.{name}": largest.update(
                        {name: float(y.detach().abs().max())}
                    )
                )
    step.run_phase("G_main")
    skip, branch = largest.pop("D.blocks.0.skip"), largest.pop("D.blocks.0.conv1")
    assert 0 < largest.pop("D.conv") <= 1.001 * BOUND  # its input is too small to reach it
    assert skip > 0 and branch <= 1.001 * BOUND * math.sqrt(0.5)  # a skip has no activation
    assert len(largest) == 7
    assert {name: each for name, each in largest.items() if each != pytest.approx(BOUND)} == {}


def test_the_bound_follows_the_gain_of_a_residual_branch() -> None:
    """As published: with the gain sqrt(1/2) of the branch, 256 becomes 181."""
    D = make_step(LEAST | CLAMP, {}, device="cpu").D
    block = D.blocks[0]
    x = 1e4 * torch.randn(1, 4, 8, 8)
    assert float(block.conv1(x).detach().abs().max()) == pytest.approx(BOUND * math.sqrt(0.5))
    assert float(block.conv0(x).detach().abs().max()) == pytest.approx(BOUND)
    assert float(D.conv(x.repeat(1, 2, 1, 1)[:, :5]).detach().abs().max()) == pytest.approx(BOUND)


def test_fused_ops_compute_the_same_in_every_phase(in_plain_pytorch: None) -> None:
    found = [
        every_phase(make_step(LEAST | CLAMP, {"precision": "fp64"} | recipe, device="cpu"))
        for recipe in ({}, FUSED | {"conv": "double_backward"})
    ]
    free = every_phase(make_step(LEAST, {"precision": "fp64"}, device="cpu"))
    assert free[0]["D_main"] != pytest.approx(found[0][0]["D_main"])
    assert_the_same(found[1], found[0])


@pytest.mark.parametrize("key", ["fused_filter", "fused_residual"])
def test_passes_that_go_on_behind_the_activation_are_refused(key: str) -> None:
    recipe = Recipe.from_dict({"fused_act": True, "resample": "triton", key: True})
    with pytest.raises(ConfigError, match=rf"^recipe: {key} must be false: .* conv_clamp: 0\.05$"):
        recipe.refuse_for(Workload.from_dict(LEAST | CLAMP))
    recipe.refuse_for(Workload.from_dict(LEAST))
