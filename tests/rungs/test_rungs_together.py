"""All rungs of the full ladder at once: what each of them changes alone must also hold in company."""

import pytest
import torch

import kernels
from ladder.plan import catalog, needs
from stylegan_lite import compiled
from tests.parity.test_parity import cache, rounding  # noqa: F401  (fixtures)
from tests.support.rung_steps import (
    assert_engaged,
    assert_the_same,
    checked,
    cold,
    every_phase,
    gathered,
    small,
)
from tests.support.small import LEAST

GPU_ONLY = (
    "cuda_graphs",
    "whole_step_graph",
    "graph_fills",
    "cudnn_benchmark",
    "pin_memory",
    "async_copy",
    "prefetch_stream",
)
LOADING = (
    "workers",
    "persistent_workers",
    "prefetch_factor",
    "drop_last",
    "uint8_input",
    "cached_images",
    "adam",
)
ON_GPU = {
    "cuda_graphs",
    "data_loading",
    "prefetch_stream",
    "whole_step_graph",
    "graph_fills",
    "cached_uint8",
}  # rungs of those


def climbed(ladder: str = "full", norm: str = "demod") -> list[catalog.Planned]:
    """The rungs of a ladder that a workload of this norm can have."""
    able = needs.possible(dict.fromkeys(needs.OF_MACHINE), {"norm": norm})
    return [rung for rung in catalog.climb(catalog.load_ladder(ladder), able) if rung.recipe is not None]


def everything(ladder: str = "full", norm: str = "demod") -> dict:
    """The top of the full ladder, without what needs a GPU or loads images."""
    top = climbed(ladder, norm)[-1].recipe
    return {key: value for key, value in top.items() if key not in GPU_ONLY + LOADING}


@pytest.mark.slow
def test_the_top_of_the_ladder_computes_what_the_baseline_does(cache, rounding):  # noqa: F811
    if not kernels.common.tiles.INTERPRETED:
        pytest.skip("a GPU is there: test_the_whole_ladder_agrees_and_is_engaged_on_the_gpu")
    found = checked(small(everything(), **LEAST), cache)
    assert found["verdict"] == "ok", found["problems"]


def test_the_compiled_ladder_is_the_full_one_but_for_the_second_stream():
    full, ladder = (catalog.load_ladder(name) for name in ("full", "full_compile"))
    kept = [rung for rung in full.rungs if rung.name != "parallel_streams"]
    assert ladder.rungs[:-1] == kept and ladder.rungs[-1].name == "compile"
    top = catalog.climb(ladder, dict.fromkeys(needs.NEEDS))[-1].recipe
    assert set(catalog.contained(top)) == {rung.name for rung in ladder.rungs}  # none undoes another


@pytest.mark.parametrize("norm", ["demod", pytest.param("instance", marks=pytest.mark.exhaustive)])
def test_at_the_top_every_rung_below_still_earns_its_receipt(norm):
    """A rung may do the work of another's kernel: the receipt of the other must know, whatever the workload's norm."""
    if not kernels.common.tiles.INTERPRETED:
        pytest.skip("a GPU is there: test_the_whole_ladder_agrees_and_is_engaged_on_the_gpu")
    step = small(everything(norm=norm), **LEAST, norm=norm)
    assert_engaged(gathered(step), {rung.name for rung in climbed(norm=norm)} - ON_GPU)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_the_top_of_the_ladder_compiles_whole_and_computes_the_same(precision, monkeypatch):
    """Each main phase is one graph without a break: none of our ops is looked into."""
    if not kernels.common.tiles.INTERPRETED:
        pytest.skip("a GPU is there: test_the_whole_ladder_agrees_and_is_engaged_on_the_gpu")

    def by_autograd(graph, inputs, mode):
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    monkeypatch.setattr(compiled, "inductor", by_autograd)
    recipe = everything("full_compile") | {"precision": precision}
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
        both = [torch.cat([g[name].flatten() for name in gradients]) for g in (got[1][phase], gradients)]
        assert float((both[0] - both[1]).norm() / both[1].norm()) < 0.05, phase
    rungs = {rung.name for rung in catalog.load_ladder("full_compile").rungs}
    assert_engaged(gathered(step), rungs - ON_GPU)
