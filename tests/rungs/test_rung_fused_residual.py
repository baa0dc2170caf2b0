"""fused_residual: the discriminator's sums move into other passes, and nothing that it computes changes."""

import pytest
import torch

import kernels
from ladder.plan import catalog
from stylegan_lite import ConfigError, Recipe, networks, resample
from tests.support.rung_steps import (
    assert_engaged,
    assert_the_same,
    checked,
    every_phase,
    gathered,
    receipt,
    small,
)

PLAIN = {"fused_act": True, "conv": "double_backward"}
FUSED = PLAIN | {"fused_residual": True}
FORK = FUSED | {"resample": "triton"}
LAST = {"channels_last": True}
TINY = {"resolution": 8, "channel_max": 8, "batch": 2}
torch.set_num_threads(1)


def seen_of(recipe):
    return gathered(small(recipe, **TINY))


@pytest.fixture
def in_plain_pytorch(monkeypatch):
    """The kernels' references in their place: the model's wiring at a CPU's speed and with PyTorch's rounding."""
    for name in kernels.__all__:
        if hasattr(kernels, f"{name}_reference") and not name.startswith("conv"):
            monkeypatch.setattr(kernels, name, getattr(kernels, f"{name}_reference"))


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("recipe", [FUSED, FORK, FORK | LAST], ids=["sum", "fork", "fork nhwc"])
def test_every_phase_computes_the_same_with_fused_sums(norm, recipe):
    """Through the kernels, in float64, against the baseline's own spelling in the same memory format."""
    found = []
    for how in ({"channels_last": "channels_last" in recipe}, recipe):
        found.append(every_phase(small({"precision": "fp64"} | how, norm=norm, **TINY)))
    assert_the_same(found[1], found[0])


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_phases_agree_with_the_reference(norm, precision, in_plain_pytorch, references):
    step = small(FORK | LAST | {"precision": precision, "fused_norm": True}, resolution=8, norm=norm)
    found = checked(step, references)
    assert found["verdict"] == "ok", found["problems"]


def test_in_16_bits_the_skip_s_product_is_the_kernel_s_and_the_receipt_says_so():
    seen = seen_of(FORK | LAST | {"precision": "bf16"})
    assert_engaged(seen, ["fused_residual"])
    lines = receipt("fused_residual", seen).lines
    assert any(line.startswith("bias_act_skip_kernel launched") for line in lines)
    assert "bias_act_residual_kernel" not in seen["kernels"]


def test_a_skip_that_is_lost_is_found_by_parity(monkeypatch, in_plain_pytorch, references, planted_bug):
    lost = lambda x, bias, residual, **how: kernels.bias_act_reference(x, bias, **how)  # noqa: E731
    monkeypatch.setattr(kernels, "bias_act_residual", lost)
    found = checked(small(FORK, resolution=8), references)
    assert found["verdict"] == "failed: parity"
    what = "fused residual: the skip's result is not added"
    planted_bug(bug=what, planted="the activation's kernel ignores its residual", problem=found["reason"])


@pytest.mark.parametrize("recipe", [FUSED, FORK], ids=["sum", "fork"])
def test_fused_sums_show_in_the_receipt_and_the_rungs_below_are_seen(recipe):
    seen = seen_of(recipe)
    assert "residual sums in plain PyTorch: none left" in receipt("fused_residual", seen).lines
    rungs = catalog.contained(recipe)
    assert "fused_residual" in rungs
    assert_engaged(seen, rungs)


def test_fused_residual_sabotaged(monkeypatch, refused):
    fallback = networks.DiscriminatorBlock.forward

    def in_two_passes(self, x):
        self.fused = False
        return fallback(self, x)

    def filtered_apart(x):
        return x, resample.downsample2d(x, "triton")

    with monkeypatch.context() as patch:
        patch.setattr(networks.DiscriminatorBlock, "forward", in_two_passes)
        what = "the sum is PyTorch's own"
        refused("fused_residual", seen_of(FUSED), "bias_act_residual_kernel launched 0x", sabotage=what)
    with monkeypatch.context() as patch:
        patch.setattr(networks, "fork_down", filtered_apart)
        what = "the filter's gradient is added by autograd"
        refused("fused_residual", seen_of(FORK), "a pass of their own", sabotage=what)


def test_what_it_joins_must_be_on():
    with pytest.raises(ConfigError, match="fused_residual needs fused_act: true"):
        Recipe.from_dict({"fused_residual": True})
