"""The rung grouped_demod: the same step in every phase, a receipt that is earned, planted bugs that parity sees."""

import copy

import pytest
import torch

from ladder.plan import catalog, modes, needs
from ladder.rungs.grouped_demod import MOST
from stylegan_lite import make_step
from stylegan_lite.step import PHASES
from tests.rungs.cases import GROUPED, ODD, UPDATE
from tests.support import rung_steps
from tests.support.rung_steps import cold, receipt
from tests.support.small import LEAST, SMALL

torch.set_num_threads(1)


def small(recipe=None, device="cpu", **workload):
    step = make_step(SMALL | ODD | workload, recipe or {}, device=device)
    step.keep_gradients = True
    return step


def gathered(recipe, sabotage=None, steps=1, **workload):
    step = small(recipe, **workload)
    step.keep_gradients = False
    return rung_steps.gathered(step, sabotage, steps)


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


def test_it_is_a_handful_of_launches_however_many_layers_there_are():
    calls = [gathered(GROUPED, resolution=r)["kernels"] for r in (8, 16)]
    for name in MOST:
        assert calls[0][name]["calls"] == calls[1][name]["calls"], name


def test_the_update_takes_the_gradients_of_kept_sums_as_they_are():
    recipe = UPDATE | GROUPED
    seen = gathered(recipe, **LEAST)
    for rung in {*catalog.contained(recipe), "grouped_demod"} - {"baseline"}:
        assert receipt(rung, seen).engaged, (rung, receipt(rung, seen).lines)
    assert "weight_energies_grad_kernel" not in seen["kernels"]
    assert seen["kernels"]["weight_energies_kernel"]["calls"] == 2  # after each update of G, and nowhere else


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
