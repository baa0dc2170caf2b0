"""The rung fused_filter: every phase computes what it did, the receipt is earned, and a fallback is seen."""

import pytest
import torch

import kernels
from ladder import catalog, evidence, results
from stylegan_lite import ConfigError, Recipe, make_step
from stylegan_lite.step import PHASES
from tests.small import SMALL

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


@pytest.fixture(scope="module")
def gathered():
    """Evidence of one step for each recipe, norm and set of stand-ins for ops of `kernels`."""

    def gather(recipe, norm="demod", **stand_ins):
        step = small(recipe, norm=norm)
        step.prepare()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evidence, "traced_cycle", lambda step: ({}, 0.5))
            for name, function in stand_ins.items():
                patch.setattr(kernels, name, function)
            return evidence.gather(step)

    return gather


def two_ops_down(x, bias, taps, *, padding, filter_gain, slope, gain):
    a = kernels.bias_act(x, bias, slope=slope, gain=gain)
    return kernels.upfirdn2d(a, taps, padding=padding, gain=filter_gain)


def two_ops_up(x, taps, bias, *, padding, filter_gain, **more):
    return kernels.bias_act(kernels.upfirdn2d(x, taps, padding=padding, gain=filter_gain), bias, **more)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"modconv": "grouped"},
        {"norm": "instance"},
        LAST | {"fused_norm": True, "conv": "double_backward"},
    ],
    ids=str,
)
def test_every_phase_computes_the_same(how):
    how = dict(how)
    norm, found = how.pop("norm", "demod"), []
    for recipe in (BELOW, FUSED):
        step = small({"precision": "fp64"} | recipe | how, norm=norm)
        step.keep_gradients = True
        torch.manual_seed(3)
        step.feed.next()
        for phase in PHASES:
            step.run_phase(phase)
        found.append((step.losses(), step.gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    for phase in PHASES:
        for name, gradient in found[0][1][phase].items():
            torch.testing.assert_close(found[1][1][phase][name], gradient, rtol=1e-7, atol=1e-10)


def test_gradients_in_bf16_are_those_of_fp32_up_to_rounding():
    """Of fp32, not of the two ops in bf16: those round what lies between them, and are further off than the rung is."""
    found = []
    for recipe in (BELOW, FUSED | {"precision": "bf16"}):
        step = small(recipe | LAST)
        step.keep_gradients = True
        torch.manual_seed(3)
        step.feed.next()
        for phase in ("G_main", "D_main"):
            step.run_phase(phase)
        found.append(step.gradients)
    for phase in ("G_main", "D_main"):
        a, b = (torch.cat([g.flatten() for g in each[phase].values()]) for each in found)
        assert (a - b).norm() <= 0.1 * a.norm(), phase


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_its_receipt_and_those_below(norm, gathered):
    seen = gathered(FUSED, norm)
    rungs = catalog.contained(seen["recipe"])
    assert "fused_filter" in rungs
    for rung in rungs:
        found = catalog.load_rung(rung).receipt(seen)
        assert found.engaged, (rung, found.lines)
        assert all(results.TEXT.fullmatch(line) for line in found.lines), found.lines


def test_sabotaged_by_ops_that_fall_back(gathered, refused):
    words = "act_filter_kernel launched 0x"
    refused("fused_filter", gathered(FUSED, act_filter=two_ops_down), words, sabotage="act_filter is two ops")
    words = "filter_act_kernel launched 0x"
    refused("fused_filter", gathered(FUSED, filter_act=two_ops_up), words, sabotage="filter_act is two ops")


def test_sabotaged_by_a_fallback_in_most_layers(gathered, refused):
    honest, calls = kernels.act_filter, []

    def rarely(*args, **more):
        calls.append(1)
        return (two_ops_down if len(calls) % 4 else honest)(*args, **more)

    what = "act_filter is two ops in three calls of four"
    seen = gathered(FUSED, "instance", act_filter=rarely)
    refused("fused_filter", seen, "share a pass with a filter", sabotage=what)


def test_it_needs_what_it_joins():
    for missing in BELOW:
        with pytest.raises(ConfigError, match="fused_filter needs resample: triton and fused_act: true"):
            Recipe.from_dict({k: v for k, v in FUSED.items() if k != missing})
