"""conv_double_backward: every phase computes the same, and no convolution is left with an image for a kernel."""

import pytest
import torch
import torch.nn.functional as F

import kernels
from ladder.plan import catalog
from tests.support.rung_steps import assert_engaged, assert_the_same, every_phase, gathered, receipt, small

OURS = {"conv": "double_backward"}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
BF16 = LAST | {"precision": "bf16"}
torch.set_num_threads(1)


@pytest.mark.covering
@pytest.mark.parametrize("resample", ["depthwise", "channels_as_batch", "bilinear", "folded", "subpixel"])
@pytest.mark.parametrize("how", [{"modconv": "grouped"}, LAST, {"norm": "instance"}], ids=str)
def test_every_phase_computes_the_same_with_either_convolution(resample, how):
    how = dict(how)
    workload = {"norm": how.pop("norm", "demod"), "resolution": 8}
    found = []
    for conv in ("aten", "double_backward"):
        recipe = {"precision": "fp64", "resample": resample, "conv": conv} | how
        found.append(every_phase(small(recipe, **workload)))
    assert_the_same(found[1], found[0])


@pytest.mark.covering
@pytest.mark.parametrize("below", [{}, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_r1_and_path_length_call_no_convolution_with_an_image_for_a_kernel(norm, below):
    seen = gathered(small(below | OURS, norm=norm))
    assert receipt("conv_double_backward", seen).engaged
    plain = receipt("conv_double_backward", gathered(small(below, norm=norm)))
    assert not plain.engaged and "largest kernel in the double backward: 16" in plain.reason
    rungs = catalog.contained(below | OURS)  # and the rungs below see what they saw
    assert_engaged(seen, rungs)


def test_conv_double_backward_sabotaged_by_pytorch_s_convolution(monkeypatch, refused):
    monkeypatch.setattr(kernels, "conv2d", F.conv2d)
    seen, what = gathered(small(OURS)), "conv2d is PyTorch's own"
    refused("conv_double_backward", seen, "largest kernel in the double backward: 16", sabotage=what)


def test_conv_double_backward_sabotaged_in_one_kind_of_layer_only(monkeypatch, refused):
    honest = kernels.conv2d
    monkeypatch.setattr(
        kernels, "conv2d", lambda x, w, **how: (F.conv2d if w.shape[-1] == 1 else honest)(x, w, **how)
    )
    what = "conv2d is PyTorch's own for 1x1 convolutions"
    refused("conv_double_backward", gathered(small(OURS)), "largest kernel", sabotage=what)


def test_what_nothing_differentiates_twice_is_not_engaged(refused):
    seen = gathered(small(OURS))
    del seen["convolutions"]["double backward"]
    what = "nothing is differentiated twice"
    refused("conv_double_backward", seen, "double backward: 0", sabotage=what, planted="evidence")
