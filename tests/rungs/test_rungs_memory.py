"""The rungs that save activations: on top of all others they agree with the reference and earn their receipts."""

from __future__ import annotations

from typing import Any

import pytest

from ladder.plan import catalog, needs
from ladder.rungs import accumulate_2, accumulate_4, checkpointing
from tests.rungs.test_rungs_together import GPU_ONLY, LOADING, ON_GPU
from tests.support.rung_steps import assert_engaged, assert_the_same, every_phase, gathered, small
from tests.support.small import LEAST

WORKLOAD = LEAST | {"batch": 4, "mbstd_group": 2}


def recipe(ladder: str, rung: str) -> dict[str, Any]:
    """The recipe of a rung, without what needs a GPU or loads images."""
    climbed = catalog.climb(catalog.load_ladder(ladder), dict.fromkeys(needs.NEEDS))
    whole = next(each.recipe for each in climbed if each.name == rung)
    return {key: value for key, value in whole.items() if key not in GPU_ONLY + LOADING}


def at(ladder: str, rung: str):
    """The smallest step of a rung in FP64, with our kernels in Triton's interpreter."""
    step = small(recipe(ladder, rung) | {"precision": "fp64"}, **WORKLOAD)
    step.prepare()
    return step


@pytest.fixture(scope="module")
def top():
    return every_phase(at("full", "fused_modulation"))


@pytest.mark.slow
@pytest.mark.parametrize(("ladder", "rung"), [("accumulation", "accumulate_2"), ("memory", "accumulate_2")])
def test_on_top_of_all_others_nothing_changes_and_every_rung_is_engaged(ladder, rung, top):
    step = at(ladder, rung)
    assert_the_same(every_phase(step), top)
    step.keep_gradients = False
    assert_engaged(gathered(step), {*catalog.contained(step.recipe.to_dict())} - ON_GPU)


def passes(**counts: list[int]) -> dict[str, Any]:
    named = {
        "Discriminator": [4] * 2 + [8] * 2 + [4] * 2,
        "SynthesisBlock": [4] * 12,
        "DiscriminatorBlock": [4] * 20,
    }
    return {"passes": named | counts, "recipe": {"joint_batch": True, "micro_batches": 2}}


def test_a_batch_in_one_piece_is_no_part():
    assert accumulate_2.receipt(passes()).engaged and not accumulate_4.receipt(passes()).engaged
    assert not accumulate_2.receipt(passes(Discriminator=[8, 16, 8])).engaged
    assert not accumulate_2.receipt(passes(Discriminator=[])).engaged


def test_blocks_must_run_again_in_main_phases_and_there_alone():
    assert checkpointing.receipt(passes()).engaged
    assert not checkpointing.receipt(passes(SynthesisBlock=[])).engaged
    assert not checkpointing.receipt(passes(SynthesisBlock=[4] * 24)).engaged  # in path length, too
    assert not checkpointing.receipt(passes(DiscriminatorBlock=[4] * 30)).engaged  # in R1, too
