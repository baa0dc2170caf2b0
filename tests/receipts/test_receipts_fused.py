"""The receipts of the article's fused rungs, and of `fused_resample`: launched, and what they replace is gone."""

import pytest
import torch

import kernels
from ladder.plan import catalog
from ladder.receipts import receipt as receipts
from stylegan_lite import layers, make_step, ops
from tests.support.rung_steps import gathered, receipt
from tests.support.small import LEAST

fused = pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
torch.set_num_threads(1)


def seen_of(recipe: dict, sabotage=None, **workload) -> dict:
    return gathered(make_step(LEAST | workload, recipe, device="cpu"), sabotage)


# fused_norm, fused_act


@fused
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_fused_kernels_are_launched_and_what_they_replace_is_gone(norm):
    seen = seen_of({"fused_norm": True, "fused_act": True}, norm=norm)
    assert receipt("fused_norm", seen).engaged and receipt("fused_act", seen).engaged
    assert receipt("baseline", seen).engaged
    assert receipts.issue(catalog.contained(seen["recipe"]), seen).keys() == {
        "baseline",
        "fused_norm",
        "fused_act",
    }


@fused
@pytest.mark.parametrize(
    "norm, op, said",
    [("demod", "modulate", "modulate_kernel launched 0x"), ("demod", "demodulate", "demodulate_kernel launched 0x"),
     ("instance", "instance_norm_act", "instance_norm_act_kernel launched 0x")],
)  # fmt: skip
def test_fused_norm_sabotaged_by_an_op_that_falls_back_to_plain_pytorch(norm, op, said, monkeypatch, refused):
    monkeypatch.setattr(kernels, op, getattr(kernels, f"{op}_reference"))
    refused(
        "fused_norm",
        seen_of({"fused_norm": True}, norm=norm),
        said,
        sabotage=f"{op} falls back to plain PyTorch, norm {norm}",
    )


@fused
def test_fused_norm_sabotaged_in_one_kind_of_layer_only(monkeypatch, refused):
    """ToRGB alone goes the plain way: our kernels are still launched, what they replace is still there."""
    honest = ops.modulated_conv2d

    def one(x, weight, style, recipe, **options):
        plain = ops.Recipe(fused_norm=False) if weight.shape[-1] == 1 else recipe
        return honest(x, weight, style, plain, **options)

    monkeypatch.setattr(layers, "modulated_conv2d", one)
    refused(
        "fused_norm",
        seen_of({"fused_norm": True}),
        "modulation in plain PyTorch: ToRGB 6x",
        sabotage="ToRGB alone goes the plain way",
    )


@fused
def test_fused_act_sabotaged_by_plain_pytorch(monkeypatch, refused):
    monkeypatch.setattr(kernels, "bias_act", kernels.bias_act_reference)
    seen = seen_of({"fused_act": True})
    refused("fused_act", seen, "bias_act_kernel launched 0x", sabotage="bias_act falls back to plain PyTorch")
    assert any("Conv" in line for line in receipt("fused_act", seen).lines if line.startswith(receipts.NOT))


@fused
def test_fused_act_alone_leaves_the_activation_of_instance_norm_to_fused_norm(refused):
    seen = seen_of({"fused_act": True}, norm="instance", batch=1)
    assert seen["recipe"]["fused_norm"] is False
    seen["plain"]["act"] = {"NormalizedConv": 9}
    assert receipt("fused_act", seen).engaged
    seen["recipe"]["fused_norm"] = True
    refused(
        "fused_act",
        seen,
        "NormalizedConv 9x",
        sabotage="leaky ReLU of instance norm goes the plain way",
        planted="evidence",
    )


# fused_resample


@fused
def test_fused_resample_is_one_kernel_and_nothing_plain():
    seen = seen_of({"resample": "triton"})
    assert receipt("fused_resample", seen).engaged and receipt("baseline", seen).engaged
    assert receipts.issue(catalog.contained(seen["recipe"]), seen).keys() == {"baseline", "fused_resample"}


@pytest.mark.parametrize("how", ["depthwise", "bilinear", "folded", "subpixel"])
def test_fused_resample_sabotaged_by_any_plain_spelling(how, refused):
    """Whichever it is, it is seen in the discriminator, in the generator and in the skip image."""
    seen = seen_of({"resample": how})
    assert {"Conv", "ModulatedConv", "SynthesisBlock"} == set(seen["plain"]["resample"])
    seen["kernels"] = {"upfirdn2d_kernel": {"calls": 9, "dtypes": ["float32"]}}
    refused(
        "fused_resample",
        seen,
        "resampling in plain PyTorch: Conv ",
        sabotage=f"resampling goes by {how} instead",
    )


@fused
def test_fused_resample_sabotaged_by_an_op_that_falls_back(monkeypatch, refused):
    monkeypatch.setattr(kernels, "upfirdn2d", kernels.upfirdn2d_reference)
    refused(
        "fused_resample",
        seen_of({"resample": "triton"}),
        "upfirdn2d_kernel launched 0x",
        sabotage="upfirdn2d falls back to plain PyTorch",
    )
