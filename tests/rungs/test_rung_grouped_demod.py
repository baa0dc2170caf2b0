"""The rung grouped_demod: the same step in every phase, a receipt that is earned, planted bugs that parity sees."""

import copy

import pytest
import torch

import kernels
from ladder.parity import check as parity
from ladder.plan import catalog, modes, needs
from ladder.rungs.grouped_demod import MOST
from stylegan_lite import ConfigError, Recipe, make_step, networks
from stylegan_lite.step import PHASES
from tests.support import rung_steps
from tests.support.rung_steps import cold, receipt
from tests.support.small import LEAST, SMALL

GROUPED = {"demodulation": "grouped"}
TOP = {
    "precision": "bf16",
    "channels_last": True,
    "fused_norm": True,
    "set_to_none": True,
    "conv": "double_backward",
    "weights": "once",
}  # fmt: skip  (what matters beside it: each kernel more costs the interpreter a minute)
UPDATE = {"weights": "once", "fused_adam": True, "ema": "foreach", "fused_update": True}
TINY = SMALL | {"resolution": 8, "channel_base": 64, "z_dim": 10, "w_dim": 12}
torch.set_num_threads(1)


def small(recipe=None, device="cpu", **workload):
    step = make_step(TINY | workload, recipe or {}, device=device)
    step.keep_gradients = True
    return step


@pytest.fixture
def plain_kernels(monkeypatch):
    """The ops in plain PyTorch, where what matters is how the model calls them: the interpreter is slow."""
    for name in ("weight_energies", "demodulate_group_fork"):
        monkeypatch.setattr(kernels, name, getattr(kernels, f"{name}_reference"))


def gathered(recipe, sabotage=None, steps=1, **workload):
    step = small(recipe, **workload)
    step.keep_gradients = False
    return rung_steps.gathered(step, sabotage, steps)


BELOW = {
    "alone": {},
    "channels_last": {"channels_last": True, "weights": "once"},
    "fused_update": {"channels_last": True, "conv": "double_backward", "set_to_none": True} | UPDATE,
}


@pytest.mark.parametrize("below", BELOW)
def test_every_phase_computes_the_same(below):
    """Through the kernels, in float64: path length differentiates them twice."""
    found = []
    for recipe in ({}, GROUPED):
        step = small({"precision": "fp64"} | BELOW[below] | recipe)
        torch.manual_seed(3)
        step.feed.next()
        for _ in range(2):
            for phase in PHASES:
                step.run_phase(phase)
        found.append((step.losses(), step.gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    for phase in PHASES:
        assert found[0][1][phase].keys() == found[1][1][phase].keys()
        for name, gradient in found[0][1][phase].items():
            torch.testing.assert_close(found[1][1][phase][name], gradient, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("below", [pytest.param({}, marks=pytest.mark.exhaustive), TOP], ids=["alone", "top"])
def test_the_rung_agrees_with_the_reference(below, references):
    step = small(below | GROUPED)
    step.prepare()
    found = parity.check(step, cache=references)
    assert found["verdict"] == "ok", found["problems"]


def test_an_average_is_sampled_as_the_baseline_samples():
    z = torch.randn(3, 10)
    images = [small(recipe).sample(z, truncation=0.7) for recipe in ({}, GROUPED)]
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-4)


def test_what_it_cannot_be_joined_with_is_said():
    with pytest.raises(ConfigError, match="demodulation: grouped needs modconv: dense"):
        Recipe.from_dict(GROUPED | {"modconv": "grouped"})


def test_a_workload_without_demodulation_goes_on_without_it():
    ladder, everything = catalog.load_ladder("full"), dict.fromkeys(needs.NEEDS)
    for name, skipped in (("article", False), ("adain-256", True)):
        there = needs.possible(everything, catalog.load_workload(name)[1])
        planned = {rung.name: rung for rung in modes.plan(modes.CUMULATIVE, ladder, there)}
        assert ("norm: instance" in (planned["grouped_demod"].skipped or "")) == skipped
        assert ("demodulation" in planned["cached_uint8"].recipe) != skipped
        assert planned["cached_uint8"].recipe["fused_residual"] is True


def test_a_recipe_of_a_workload_without_it_still_trains():
    step = small({"precision": "fp64"} | GROUPED, norm="instance")
    step.prepare()
    step.step()
    assert step.check_finite() is None


# Receipt


@pytest.fixture(scope="module")
def seen():
    return gathered(TOP | GROUPED)


def test_the_receipt_is_earned(seen):
    for rung in {*catalog.contained(TOP | GROUPED), "grouped_demod"}:
        assert receipt(rung, seen).engaged, (rung, receipt(rung, seen).lines)
    assert not receipt("grouped_demod", gathered({"fused_norm": True})).engaged


def test_it_is_a_handful_of_launches_however_many_layers_there_are():
    calls = [gathered(GROUPED, resolution=r)["kernels"] for r in (8, 16)]
    for name in MOST:
        assert calls[0][name]["calls"] == calls[1][name]["calls"], name


def test_grouped_demod_sabotaged_by_plain_pytorch(plain_kernels, refused):
    what = "weight_energies and demodulate_group are plain PyTorch"
    refused("grouped_demod", gathered(GROUPED), "weight_energies_kernel launched 0x", sabotage=what)


def test_grouped_demod_sabotaged_by_coefficients_in_each_layer(refused):
    def layerwise(step):
        step.G.grouped = False

    recipe, what = {"fused_norm": True} | GROUPED, "each layer makes its own coefficients"
    refused("grouped_demod", gathered(recipe, layerwise), "launched 0x", sabotage=what)


def test_grouped_demod_sabotaged_by_a_group_for_each_layer(monkeypatch, refused):
    honest = networks.grouped_demodulation

    def one_by_one(layers, styles):
        pairs = [honest([layer], [style]) for layer, style in zip(layers, styles, strict=True)]
        return [each for (each,), _ in pairs], [style for _, (style,) in pairs]

    monkeypatch.setattr(networks, "grouped_demodulation", one_by_one)
    what = "each layer is a group of its own"
    refused("grouped_demod", gathered(GROUPED), "launches in one run of each phase", sabotage=what)


def test_the_update_takes_the_gradients_of_kept_sums_as_they_are():
    recipe = UPDATE | GROUPED
    seen = gathered(recipe, **LEAST)
    for rung in {*catalog.contained(recipe), "grouped_demod"} - {"baseline"}:
        assert receipt(rung, seen).engaged, (rung, receipt(rung, seen).lines)
    assert "weight_energies_grad_kernel" not in seen["kernels"]
    assert seen["kernels"]["weight_energies_kernel"]["calls"] == 2  # after each update of G, and nowhere else


def test_grouped_demod_sabotaged_by_sums_that_are_not_kept_up(refused):
    def forgetful(step):
        step.copies[step.G].refresh_energies = lambda: None

    what = "sums over taps are not made again when weights change"
    seen = gathered(UPDATE | GROUPED, forgetful, steps=0, **LEAST)
    refused("grouped_demod", seen, "launched 0x", sabotage=what)

    def late(step):
        honest, step.opt_G.step = step.opt_G.step, lambda: None
        step.opt_G.step = lambda: (honest(), step.G.blocks[0].conv1.weight.data.mul_(1.1))

    what = "a weight is changed after the sums were made"
    seen = gathered(UPDATE | GROUPED, late, **LEAST)
    refused("grouped_demod", seen, "not what their weight has become", sabotage=what)


def test_a_run_is_resumed_with_sums_of_the_weights_that_were_loaded():
    recipe = {"set_to_none": True} | UPDATE
    step = cold(small(recipe | GROUPED, **LEAST))
    step.step()
    state = copy.deepcopy(step.state_dict())
    step.step()
    for other in (GROUPED, {}):
        resumed = small(recipe | other, **LEAST)
        resumed.load_state_dict(state)
        resumed.step()
        for phase in PHASES:
            assert resumed.losses()[phase] == pytest.approx(step.losses()[phase], rel=1e-4)


# Planted bugs


def wrong_style(monkeypatch):
    """Coefficients of the layer whose style is the same size: shapes fit."""
    honest = kernels.demodulate_group_reference

    def shifted(energies, styles):
        return honest(energies, [styles[0], styles[0], *styles[2:]]), styles

    monkeypatch.setattr(kernels, "demodulate_group_fork", shifted)


def one_tap(monkeypatch):
    monkeypatch.setattr(kernels, "weight_energies", lambda ws: [w[:, :, 1, 1].square() * 9 for w in ws])


def detached_energies(monkeypatch):
    def forgetful(weights):
        return [e.detach() for e in kernels.weight_energies_reference(weights)]

    monkeypatch.setattr(kernels, "weight_energies", forgetful)


def half_a_gradient(monkeypatch):
    """2 * weight without the 2."""

    def halved(weights):
        return [(e + e.detach()) / 2 for e in kernels.weight_energies_reference(weights)]

    monkeypatch.setattr(kernels, "weight_energies", halved)


BUGS = {
    "grouped demodulation: a layer reads the style of another": wrong_style,
    "grouped demodulation: the energy of one tap": one_tap,
    "grouped demodulation: weights get no gradient from it": detached_energies,
    "grouped demodulation: half of the weights' gradient": half_a_gradient,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_outside_the_budget(bug, plain_kernels, monkeypatch, planted_bug, references):
    BUGS[bug](monkeypatch)
    step = cold(small(GROUPED))
    found = parity.check(step, cache=references)
    assert found["verdict"] == "failed: parity"
    planted_bug(bug=bug, planted="kernels.weight_energies and demodulate_group", problem=found["reason"])


@pytest.mark.gpu
def test_captured_phases_agree_with_the_reference(references):
    graphs = {"cuda_graphs": True, "adam": "capturable", "set_to_none": True, "conv": "double_backward"}
    step = make_step(SMALL, graphs | GROUPED, device="cuda")
    step.keep_gradients = True
    step.prepare()
    found = parity.check(step, cache=references)
    step.close()
    assert found["verdict"] == "ok", found["problems"]
