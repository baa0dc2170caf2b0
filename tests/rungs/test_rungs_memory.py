"""The rungs that save activations: on top of all others they agree with the reference and earn their receipts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ladder.base.protocol import IN_ORDER
from ladder.plan import catalog, needs
from ladder.receipts import evidence
from ladder.rungs import accumulate_2, accumulate_4, checkpointing
from stylegan_lite import make_step, networks, recompute
from tests.rungs.test_rungs_together import GPU_ONLY, LOADING, ON_GPU
from tests.stylegan_lite.test_recompute import FUSED
from tests.support.rung_steps import (
    assert_engaged,
    assert_replayed_alike,
    assert_the_same,
    cold,
    every_phase,
    gathered,
    small,
)
from tests.support.small import LEAST

WORKLOAD = LEAST | {"batch": 4, "mbstd_group": 2}


def recipe(ladder: str, rung: str) -> dict[str, Any]:
    """The recipe of a rung, without what needs a GPU or loads images."""
    climbed = catalog.climb(catalog.load_ladder(ladder), dict.fromkeys(needs.NEEDS))
    whole = next(each.recipe for each in climbed if each.name == rung)
    return {key: value for key, value in whole.items() if key not in GPU_ONLY + LOADING}


@pytest.mark.slow
@pytest.mark.parametrize("ladder", [pytest.param("accumulation", marks=pytest.mark.exhaustive), "memory"])
def test_on_top_of_all_others_nothing_changes_and_every_rung_is_engaged(ladder):
    """In FP64, with our kernels in Triton's interpreter, beside plain PyTorch. One run of each phase shows both."""
    plain = small(
        {"precision": "fp64", "channels_last": True, "set_to_none": True, "joint_batch": True}, **WORKLOAD
    )
    step = small(recipe(ladder, "accumulate_2") | {"precision": "fp64"}, **WORKLOAD)
    step.keep_gradients = True
    cold(step)
    torch.manual_seed(3)  # as `every_phase` does
    step.feed.next()
    seen = gathered(step)
    plain.feed.next = lambda: plain.real.copy_(step.real)  # the evidence has fetched batches
    losses, gradients = every_phase(plain, phases=IN_ORDER)
    found = {  # no gradient stands for zeros: biases have none in R1
        phase: {name: torch.zeros_like(g) for name, g in wanted.items()} | step.gradients[phase]
        for phase, wanted in gradients.items()
    }
    assert_the_same((step.losses(), found), (losses, gradients))
    assert_engaged(seen, {*catalog.contained(step.recipe.to_dict())} - ON_GPU)


def passes(**counts: list[int]) -> dict[str, Any]:
    named = {
        "Discriminator": [4] * 2 + [8] * 2 + [4] * 2,
        "SynthesisBlock": [4] * 12,
        "DiscriminatorBlock": [4] * 20,
    }
    return {"passes": named | counts, "recipe": {"joint_batch": True, "micro_batches": 2}}


def test_a_batch_in_one_piece_is_no_part(refused):
    assert accumulate_2.receipt(passes()).engaged and not accumulate_4.receipt(passes()).engaged
    assert not accumulate_2.receipt(passes(Discriminator=[])).engaged
    whole = passes(Discriminator=[8, 16, 8])
    for rung in ("accumulate_2", "accumulate_4", "accumulate_8"):
        refused(rung, whole, "8, 16, 8", sabotage="each phase runs its whole batch", planted="evidence")


def test_a_step_that_runs_its_whole_batch_is_not_engaged(refused):
    step = small({"micro_batches": 2}, **WORKLOAD)
    step._parts = lambda phase: 1
    refused("accumulate_2", gathered(step), "4, 4, 4, 4", sabotage="the step runs its whole batch")


def test_blocks_must_run_again_in_main_phases_and_there_alone(refused):
    assert checkpointing.receipt(passes()).engaged
    assert not checkpointing.receipt(passes(SynthesisBlock=[])).engaged
    again = passes(SynthesisBlock=[4] * 24)
    refused(
        "checkpointing",
        again,
        "SynthesisBlock 24x",
        sabotage="path length is checkpointed, too",
        planted="evidence",
    )
    again = passes(DiscriminatorBlock=[4] * 30)
    refused(
        "checkpointing",
        again,
        "DiscriminatorBlock 30x",
        sabotage="R1 is checkpointed, too",
        planted="evidence",
    )


def test_a_step_that_keeps_its_activations_is_not_engaged(refused, monkeypatch):
    monkeypatch.setattr(networks, "through", lambda block, checkpointing, *inputs: block(*inputs))
    step = small({"checkpointing": True}, **WORKLOAD)
    refused(
        "checkpointing", gathered(step), "SynthesisBlock 0x", sabotage="the networks keep their activations"
    )


def launches(**counts: tuple[int, int]) -> dict[str, Any]:
    """Evidence of two parts: three blocks in D and in G, whose passes run again in the main phases."""
    found = {"act_filter": (24, 6), "filter_act_modulate": (30, 6), "bias_act_modulate": (30, 6)} | counts
    kernels = {f"{op}_kernel": {"calls": calls, "backward": again} for op, (calls, again) in found.items()}
    recipe = {"joint_batch": True, "micro_batches": 2, "fused_modulation": True}
    forward = {"Generator": [4] * 2 + [2] * 4 + [4] * 2, "Discriminator": [4] * 2 + [8] * 2 + [4] * 2}
    return {"passes": forward, "recipe": recipe, "kernels": kernels, "norm": "demod"}


@pytest.mark.parametrize(
    ("op", "counts", "sabotage"),
    [
        ("act_filter", (18, 0), "D keeps the results of its passes"),
        ("act_filter", (30, 12), "R1 is checkpointed, too"),
        ("filter_act_modulate", (27, 3), "one part keeps the results of its passes"),
        ("bias_act_modulate", (42, 18), "path length is checkpointed, too"),
    ],
)
def test_passes_must_run_again_in_main_phases_and_there_alone(refused, op, counts, sabotage):
    assert checkpointing.receipt(launches()).engaged
    says = f"{op} in backward: {counts[1]}x"
    refused("checkpointing", launches(**{op: counts}), says, sabotage=sabotage, planted="evidence")


def test_blocks_that_run_again_beside_the_passes_are_refused(refused):
    seen = launches()
    seen["passes"]["DiscriminatorBlock"] = [8] * 6
    refused(
        "checkpointing",
        seen,
        "SynthesisBlock 0x, DiscriminatorBlock 6x",
        sabotage="blocks run again too",
        planted="evidence",
    )


def test_a_fused_step_that_keeps_its_results_is_not_engaged(refused, monkeypatch):
    monkeypatch.setattr(recompute, "kind", lambda *_: "")
    step = small(FUSED | {"checkpointing": True}, **LEAST)
    refused("checkpointing", gathered(step), "act_filter in backward: 0x", sabotage="all results are kept")


@pytest.mark.exhaustive
def test_a_fused_step_without_joint_batches_earns_the_receipt():
    step = small(FUSED | {"checkpointing": True, "joint_batch": False}, **WORKLOAD)
    found = checkpointing.receipt(gathered(step))
    assert found.engaged, found.lines


def on_gpu() -> dict[str, Any]:
    climbed = catalog.climb(catalog.load_ladder("memory"), dict.fromkeys(needs.NEEDS))
    return next(each.recipe for each in climbed if each.name == "checkpointing")


ON_GPU_SIZE = {"resolution": 64, "channel_base": 2048, "channel_max": 64, "batch": 8}


@pytest.mark.gpu
def test_every_phase_computes_the_same_captured():
    """A result that is freed too early is another tensor's memory by the time that a graph reads it."""
    assert_replayed_alike(ON_GPU_SIZE, *(on_gpu() | {"checkpointing": on} for on in (False, True)))


@pytest.mark.gpu
def test_the_captured_rung_earns_its_receipt():
    step = make_step(ON_GPU_SIZE, on_gpu() | {"workers": 1}, device="cuda")
    step.prepare()
    found = checkpointing.receipt(evidence.gather(step))
    step.close()
    assert found.engaged, found.lines
