"""The rung fused_filter: every phase computes what it did, the receipt is earned, and a fallback is seen."""

import pytest
import torch

import kernels
from ladder.plan import catalog
from stylegan_lite import ConfigError, Recipe, make_step
from tests.support.rung_steps import assert_engaged, assert_the_same, cold, every_phase, gathered
from tests.support.small import LEAST, SMALL

BELOW = {"resample": "triton", "fused_act": True}
FUSED = BELOW | {"fused_filter": True}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
torch.set_num_threads(1)


TINY = {
    "resolution": 8,
    "channel_base": 64,
    "channel_max": 8,
    "mapping_layers": 1,
    "batch": 2,
    "mbstd_group": 2,
}


def small(recipe, **workload):
    return make_step(SMALL | TINY | workload, recipe, device="cpu")


def seen_of(recipe, norm="demod", **stand_ins):
    """Evidence of a step in which functions stand in for ops of `kernels`."""
    step = cold(small(recipe, norm=norm, **LEAST))
    with pytest.MonkeyPatch.context() as patch:
        for name, function in stand_ins.items():
            patch.setattr(kernels, name, function)
        return gathered(step)


def two_ops_down(x, bias, taps, *, padding, filter_gain, slope, gain):
    a = kernels.bias_act(x, bias, slope=slope, gain=gain)
    return kernels.upfirdn2d(a, taps, padding=padding, gain=filter_gain)


def two_ops_up(x, taps, bias, *, padding, filter_gain, **more):
    return kernels.bias_act(kernels.upfirdn2d(x, taps, padding=padding, gain=filter_gain), bias, **more)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, marks=pytest.mark.exhaustive),
        pytest.param({"modconv": "grouped"}, marks=pytest.mark.exhaustive),
        pytest.param({"norm": "instance"}, marks=pytest.mark.exhaustive),
        LAST | {"fused_norm": True, "conv": "double_backward"},
    ],
    ids=str,
)
def test_every_phase_computes_the_same(how):
    how = dict(how)
    norm, found = how.pop("norm", "demod"), []
    for recipe in (BELOW, FUSED):
        found.append(every_phase(small({"precision": "fp64"} | recipe | how, norm=norm)))
    assert_the_same(found[1], found[0], atol=1e-10)


def test_gradients_in_bf16_are_those_of_fp32_up_to_rounding():
    """Of fp32, not of the two ops in bf16: those round what lies between them, and are further off than the rung is."""
    phases = ("G_main", "D_main")
    found = [
        every_phase(small(recipe | LAST), phases=phases) for recipe in (BELOW, FUSED | {"precision": "bf16"})
    ]
    for phase in phases:
        a, b = (torch.cat([g.flatten() for g in gradients[phase].values()]) for _, gradients in found)
        assert (a - b).norm() <= 0.1 * a.norm(), phase


@pytest.mark.parametrize("norm", ["demod", pytest.param("instance", marks=pytest.mark.exhaustive)])
def test_its_receipt_and_those_below(norm):
    seen = seen_of(FUSED, norm)
    rungs = catalog.contained(seen["recipe"])
    assert "fused_filter" in rungs
    assert_engaged(seen, rungs)


def test_sabotaged_by_ops_that_fall_back(refused):
    words = "act_filter_kernel launched 0x"
    refused("fused_filter", seen_of(FUSED, act_filter=two_ops_down), words, sabotage="act_filter is two ops")
    words = "filter_act_kernel launched 0x"
    refused("fused_filter", seen_of(FUSED, filter_act=two_ops_up), words, sabotage="filter_act is two ops")


def test_sabotaged_by_a_fallback_in_most_layers(refused):
    honest, calls = kernels.act_filter, []

    def rarely(*args, **more):
        calls.append(1)
        return (two_ops_down if len(calls) % 4 else honest)(*args, **more)

    what = "act_filter is two ops in three calls of four"
    seen = seen_of(FUSED, "instance", act_filter=rarely)
    refused("fused_filter", seen, "share a pass with a filter", sabotage=what)


def test_it_needs_what_it_joins():
    for missing in BELOW:
        with pytest.raises(ConfigError, match="fused_filter needs resample: triton and fused_act: true"):
            Recipe.from_dict({k: v for k, v in FUSED.items() if k != missing})
