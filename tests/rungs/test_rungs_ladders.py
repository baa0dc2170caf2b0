"""Whole ladders: what each rung changes alone must also hold in company, and so do those that save memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kernels
from ladder.core.protocol import IN_ORDER
from ladder.plan import catalog, needs
from ladder.receipts import evidence
from ladder.rungs import checkpointing
from stylegan_lite import make_step, networks, stylegan2
from stylegan_lite.config import Recipe
from stylegan_lite.step import compiled
from tests.parity.test_parity import cache, rounding  # noqa: F401  (fixtures)
from tests.stylegan_lite.test_recompute import FUSED
from tests.support.rung_steps import (
    assert_engaged,
    assert_the_same,
    checked,
    cold,
    every_phase,
    gathered,
    small,
)  # fmt: skip
from tests.support.small import LEAST

GPU_ONLY = (
    "cuda_graphs whole_step_graph graph_fills cudnn_benchmark pin_memory async_copy prefetch_stream".split()
)
LOADING = "workers persistent_workers prefetch_factor drop_last uint8_input cached_images adam".split()
ON_GPU = {  # rungs of those
    "cuda_graphs", "data_loading", "prefetch_stream", "whole_step_graph", "graph_fills", "cached_uint8",
}  # fmt: skip
WORKLOAD = LEAST | {"batch": 4, "mbstd_group": 2}
EVERYTHING = dict.fromkeys(needs.NEEDS)
interpreted = pytest.mark.skipif(
    not kernels.common.tiles.INTERPRETED, reason="a GPU is there, for which there are tests of the same"
)
torch.set_num_threads(1)


def climb(ladder: str = "full", norm: str = "demod") -> list[catalog.Planned]:
    """The rungs of a ladder that a workload of this norm can have."""
    able = needs.join_capabilities(dict.fromkeys(needs.OF_MACHINE), {"norm": norm})
    return [rung for rung in catalog.plan_climb(catalog.load_ladder(ladder), able) if rung.recipe is not None]


def for_cpu(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe without what needs a GPU or loads images."""
    return {key: value for key, value in recipe.items() if key not in (*GPU_ONLY, *LOADING)}


def find_recipe(ladder: str, rung: str) -> dict[str, Any]:
    climbed = catalog.plan_climb(catalog.load_ladder(ladder), EVERYTHING)
    return next(each.recipe for each in climbed if each.name == rung)


@pytest.mark.parametrize("name", ["full", "full_compile", "dependent_launch"])
def test_no_rung_of_a_ladder_undoes_another(name):
    ladder = catalog.load_ladder(name)
    top = catalog.plan_climb(ladder, EVERYTHING)[-1].recipe
    assert set(catalog.list_contained(top)) == {rung.name for rung in ladder.rungs}


def test_ladders_go_on_from_one_another():
    article, full, ours, dependent = (
        catalog.load_ladder(name).rungs for name in ("article", "full", "full_compile", "dependent_launch")
    )
    assert full[: len(article)] == article and dependent[-1].name == "dependent_launch"
    assert ours[:-1] == [rung for rung in full if rung.name != "parallel_streams"]
    assert ours[-1].name == "compile"
    planned = catalog.plan_climb(catalog.load_ladder("tf32"), EVERYTHING)
    assert [rung.name for rung in planned][:2] == ["baseline", "tf32"]


def test_the_distributed_ladders_stand_on_one_recipe_and_need_a_process_for_each_gpu():
    R = find_recipe("distributed", "fused_rgb")
    assert find_recipe("distributed_ddp", "ddp") == R | {"reduce": "ddp"} and "cuda_graphs" not in R
    assert find_recipe("distributed", "ddp") == find_recipe("distributed_ddp", "ddp")  # beside, as its rival
    top, distributed = (
        Recipe.from_dict(find_recipe(name, "fused_modulation")).to_dict() for name in ("full", "distributed")
    )
    assert distributed == top | {"reduce": "flat"}
    here = needs.join_capabilities(EVERYTHING, {"norm": "demod"})
    assert "ladder scale" in here["ranks"] and here.keys() >= EVERYTHING.keys()
    assert "reduce" not in catalog.plan_climb(catalog.load_ladder("distributed"), here)[-2].recipe
    full, names = climb()[-1].recipe, {"ddp", "flat_reduce", "captured_reduce", "data_parallel"}
    assert not names & set(catalog.list_contained(full))
    reduced = names & set(catalog.list_contained(full | {"reduce": "flat", "ranks": 2}))
    assert reduced == {"flat_reduce", "captured_reduce"}


# ---- the tops --------------------------------------------------------------------------------------------------------


@interpreted
@pytest.mark.slow
def test_the_top_of_the_ladder_computes_what_the_baseline_does(cache, rounding):  # noqa: F811
    found = checked(small(for_cpu(climb()[-1].recipe), **LEAST), cache)
    assert found["verdict"] == "ok", found["problems"]


@interpreted
@pytest.mark.parametrize("norm", ["demod", pytest.param("instance", marks=pytest.mark.exhaustive)])
def test_at_the_top_every_rung_below_still_earns_its_receipt(norm):
    """A rung may do the work of another's kernel: the receipt of the other must know, whatever the workload's norm."""
    climbed = climb(norm=norm)
    step = small(for_cpu(climbed[-1].recipe), **LEAST, norm=norm)
    assert_engaged(gathered(step), {rung.name for rung in climbed} - ON_GPU)


@interpreted
@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_the_top_of_the_ladder_compiles_whole_and_computes_the_same(precision, monkeypatch):
    """Each main phase is one graph without a break: none of our ops is looked into."""

    def by_autograd(graph, inputs, mode):
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    monkeypatch.setattr(compiled, "inductor", by_autograd)
    recipe = for_cpu(climb("full_compile")[-1].recipe) | {"precision": precision}
    step = small(recipe, **LEAST)
    step.prepare()
    found = step.compiled
    assert found.failed is None, found.failed
    assert dict(found.graphs) == {"G_main": 1, "D_main": 1} and not found.breaks
    plain = cold(small(recipe | {"compile": "off"}, **LEAST))
    # Lazy phases first: Adam's first update follows signs, and makes of a rounding in BF16 a step of its own.
    order = ("G_pl", "G_main", "D_r1", "D_main")
    got, want = (every_phase(each, phases=order) for each in (step, plain))
    assert dict(found.runs) == {"G_main": 1, "D_main": 1} and not found.late
    if precision == "fp64":
        assert_the_same(got, want)
        return
    assert got[0] == pytest.approx(want[0], rel=0.02)
    for phase, gradients in want[1].items():
        a, b = (torch.cat([g[name].flatten() for name in gradients]) for g in (got[1][phase], gradients))
        assert float((a - b).norm() / b.norm()) < 0.05, phase
    rungs = {rung.name for rung in catalog.load_ladder("full_compile").rungs}
    assert_engaged(gathered(step), rungs - ON_GPU)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("ladder", ["full", "full_compile"])
def test_the_whole_ladder_agrees_and_is_engaged_on_the_gpu(ladder, norm, references):
    climbed = climb(ladder, norm)
    for rung in climbed[8:] if ladder == "full" else climbed[-1:]:
        step = small(rung.recipe | {"workers": 1}, "cuda", norm=norm)
        found = checked(step, references)
        assert step.compiled is None or step.compiled.failed is None, step.compiled.failed
        step.keep_gradients = False
        seen = evidence.gather_evidence(step)
        step.close()
        assert found["verdict"] == "ok", (rung.name, found["problems"])
        assert_engaged(
            seen, catalog.list_contained(rung.recipe) if ladder == "full" else [r.name for r in climbed]
        )


# ---- the rungs that save memory --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ladder", [pytest.param("accumulation", marks=pytest.mark.exhaustive), "memory"])
def test_on_top_of_all_others_nothing_changes_and_every_rung_is_engaged(ladder):
    """In FP64, with our kernels in Triton's interpreter, beside plain PyTorch. One run of each phase shows both."""
    alike = {"precision": "fp64", "channels_last": True, "set_to_none": True, "joint_batch": True}
    plain = small(alike, **WORKLOAD)
    step = small(for_cpu(find_recipe(ladder, "accumulate_2")) | {"precision": "fp64"}, **WORKLOAD)
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
    assert_engaged(seen, {*catalog.list_contained(step.recipe.to_dict())} - ON_GPU)


@pytest.mark.parametrize(
    ("rung", "recipe", "module", "name", "value", "words", "what"),
    [
        ("accumulate_2", {"micro_batches": 2}, None, "_parts", lambda phase: 1, "4, 4, 4, 4",
            "the step runs its whole batch"),
        ("checkpointing", {"checkpointing": True}, networks, "through", lambda block, _, *inputs: block(*inputs),
            "SynthesisBlock 0x", "the networks keep their activations"),
        ("checkpointing", FUSED | {"checkpointing": True}, stylegan2, "kind", lambda *_: "",
            "act_filter in backward: 0x", "all results are kept"),
    ],
)  # fmt: skip
def test_a_step_that_saves_nothing_is_not_engaged(
    rung, recipe, module, name, value, words, what, refused, monkeypatch
):
    if module is not None:
        monkeypatch.setattr(module, name, value)
    step = small(recipe, **LEAST if module is stylegan2 else WORKLOAD)
    if module is None:
        setattr(step, name, value)
    refused(rung, gathered(step), words, sabotage=what)


@pytest.mark.exhaustive
def test_a_fused_step_without_joint_batches_earns_the_receipt():
    step = small(FUSED | {"checkpointing": True, "joint_batch": False}, **WORKLOAD)
    found = checkpointing.receipt(gathered(step))
    assert found.engaged, found.lines


@pytest.mark.gpu
def test_the_captured_rung_earns_its_receipt():
    size = {"resolution": 64, "channel_base": 2048, "channel_max": 64, "batch": 8}
    step = make_step(size, find_recipe("memory", "checkpointing") | {"workers": 1}, device="cuda")
    step.prepare()
    found = checkpointing.receipt(evidence.gather_evidence(step))
    step.close()
    assert found.engaged, found.lines
