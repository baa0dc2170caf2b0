"""The rung fused_modulation: every phase computes what it did, the receipt is earned, and a fallback is seen."""

import pytest
import torch

import kernels
from ladder.plan import catalog
from stylegan_lite import ConfigError, Recipe
from tests.support.rung_steps import assert_engaged, assert_the_same, cold, every_phase, gathered, small
from tests.support.small import LEAST

BELOW = {"resample": "triton", "fused_act": True, "fused_norm": True, "fused_filter": True}
JOINED = BELOW | {"fused_modulation": True}
MORE = {
    "channels_last": True,
    "conv": "double_backward",
    "weights": "once",
    "demodulation": "grouped",
    "rgb": "triton",
    "streams": "two",
    "joint_batch": True,
}
TINY = {"channel_base": 64, "channel_max": 8, "mapping_layers": 1, "batch": 2, "mbstd_group": 2}
torch.set_num_threads(1)


def tiny(recipe, resolution=8, **workload):
    return small(recipe, resolution=resolution, **TINY | workload)


def seen_of(recipe, function=None, resolution=8):
    """Evidence of a step in which a function may stand in for the op."""
    step = cold(small(recipe, **LEAST | {"resolution": resolution}))
    with pytest.MonkeyPatch.context() as patch:
        if function:
            patch.setattr(kernels, "filter_act_modulate", function)
        return gathered(step)


def two_ops(x, taps, style, bias, **how):
    return kernels.modulate(kernels.filter_act(x, taps, bias, **how), style)


def three_ops(x, taps, style, bias, *, padding, filter_gain, **how):
    y = kernels.upfirdn2d(x, taps, padding=padding, gain=filter_gain)
    return kernels.modulate(kernels.bias_act(y, bias, **how), style)


@pytest.mark.parametrize("how", [{}, pytest.param(MORE, marks=pytest.mark.exhaustive)], ids=str)
def test_every_phase_computes_the_same(how):
    found = [every_phase(tiny({"precision": "fp64"} | recipe | how)) for recipe in (BELOW, JOINED)]
    assert_the_same(found[1], found[0], atol=1e-10)


def test_gradients_in_bf16_are_near_those_in_fp32():
    """One sign that rounding turns decides the error of so small a network: sixteen had 0.1 to 10 times that without.

    tests/kernels/test_kernels_bias_act.py compares the errors of the ops.
    """
    for phase in ("G_main", "G_pl"):

        def gradients(recipe, phase=phase):
            found = every_phase(tiny(recipe), phases=(phase,))[1][phase]
            return torch.cat([g.flatten() for g in found.values()])

        exact = gradients(BELOW)
        assert (gradients(JOINED | {"precision": "bf16"}) - exact).norm() <= 0.3 * exact.norm(), phase


def test_a_workload_without_modulation_is_left_as_it_is():
    found = [every_phase(tiny({"precision": "fp64"} | r, norm="instance")) for r in (BELOW, JOINED)]
    assert_the_same(found[1], found[0])


@pytest.mark.parametrize("how", [pytest.param({}, marks=pytest.mark.exhaustive), MORE], ids=str)
def test_its_receipt_and_those_below(how):
    seen = seen_of(JOINED | how)
    rungs = catalog.contained(seen["recipe"])
    assert {"fused_modulation", "fused_filter", "fused_norm", "fused_act"} <= set(rungs)
    assert_engaged(seen, rungs)


@pytest.mark.parametrize("function", [two_ops, pytest.param(three_ops, marks=pytest.mark.exhaustive)])
def test_sabotaged_by_ops_that_fall_back(refused, function):
    words = "filter_act_modulate_kernel launched 0x"
    sabotage = f"the op is {function.__name__.replace('_', ' ')}"
    refused("fused_modulation", seen_of(JOINED, function), words, sabotage=sabotage)


@pytest.mark.parametrize(
    ("function", "words", "resolution"),
    [
        (two_ops, "activations behind a filter that are written as they are", 8),
        pytest.param(three_ops, "modulations by themselves", 16, marks=pytest.mark.exhaustive),
    ],
)
def test_sabotaged_by_a_fallback_in_one_layer(refused, function, words, resolution):
    honest, calls = kernels.filter_act_modulate, []

    def rarely(*args, **how):
        calls.append(1)
        return (honest if len(calls) % 2 else function)(*args, **how)

    what = f"in every second layer the op is {function.__name__.replace('_', ' ')}"
    refused("fused_modulation", seen_of(JOINED, rarely, resolution), words, sabotage=what)


def test_sabotaged_by_a_model_that_never_calls_it(refused):
    seen = seen_of(BELOW)
    seen["recipe"] |= {"fused_modulation": True}
    words = "filter_act_modulate_kernel launched 0x"
    refused("fused_modulation", seen, words, sabotage="its change not applied")


def test_it_needs_what_it_joins():
    for missing in ("fused_filter", "fused_norm"):
        with pytest.raises(ConfigError, match="fused_modulation needs fused_filter: true, fused_norm: true"):
            Recipe.from_dict({k: v for k, v in JOINED.items() if k != missing})
    with pytest.raises(ConfigError, match="modconv: dense"):
        Recipe.from_dict(JOINED | {"modconv": "grouped"})
