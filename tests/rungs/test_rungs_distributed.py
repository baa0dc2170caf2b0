"""The distributed rungs: their ladders can be climbed, and their receipts tell a reduction from none."""

from __future__ import annotations

import pytest

from ladder.plan import catalog, needs
from ladder.rungs import captured_reduce, data_parallel, ddp, flat_reduce
from stylegan_lite.config import Recipe

PHASES = ("G_main", "G_pl", "D_main", "D_r1")


def seen(**changed) -> dict:
    reduced = {"ranks": 2, "gpus": 2, "bytes": dict.fromkeys(PHASES, 10**8)}
    reduced |= {"comm_ms": 2.0, "exposed_ms": 0.5, "comm_kernels": 2.3}
    kinds = ["G_main+D_main", "G_main+G_pl+D_main"]
    return {"reduced": reduced | changed, "graphs": {"together": kinds, "captured": kinds, "replays": 1.0}}


@pytest.mark.parametrize("rung", [ddp, flat_reduce, captured_reduce, data_parallel])
def test_a_step_that_reduces_is_engaged_and_one_that_does_not_is_not(rung):
    assert rung.receipt(seen()).engaged
    assert not rung.receipt(seen(ranks=1, gpus=1)).engaged
    assert not rung.receipt(seen(comm_ms=0.0, exposed_ms=0.0)).engaged
    not_profiled = rung.receipt(seen(comm_ms=None, exposed_ms=None, comm_kernels=None))
    assert not_profiled.engaged and "communication: not profiled" in not_profiled.lines
    assert (
        "communication: 2.000 ms a step, 0.500 ms of it exposed, 75% overlapped" in rung.receipt(seen()).lines
    )


@pytest.mark.parametrize("rung", [ddp, flat_reduce, captured_reduce])
def test_a_phase_whose_gradients_stay_at_home_is_not_engaged(rung):
    found = rung.receipt(seen(bytes={"G_main": 5}))
    assert not found.engaged and "D_r1 0.000 MB" in (found.reason or "")


def test_ddp_must_overlap_and_a_flat_reduction_need_not():
    exposed = seen(exposed_ms=2.0)
    assert not ddp.receipt(exposed).engaged and flat_reduce.receipt(exposed).engaged


def test_an_all_reduce_that_is_not_in_the_graph_is_not_captured():
    found = seen()
    found["graphs"]["captured"] = []
    assert not captured_reduce.receipt(found).engaged


def test_the_ladders_stand_on_one_recipe_and_need_a_process_for_each_gpu():
    able = dict.fromkeys(needs.NEEDS)
    climbs = {
        name: {rung.name: rung.recipe for rung in catalog.climb(catalog.load_ladder(name), able)}
        for name in ("distributed", "distributed_ddp", "full")
    }
    R = climbs["distributed"]["fused_rgb"]
    assert climbs["distributed_ddp"]["ddp"] == R | {"reduce": "ddp"} and "cuda_graphs" not in R
    assert climbs["distributed"]["ddp"] == climbs["distributed_ddp"]["ddp"]  # measured beside, as its rival
    top = Recipe.from_dict(climbs["full"]["fused_modulation"]).to_dict()
    assert Recipe.from_dict(climbs["distributed"]["fused_modulation"]).to_dict() == top | {"reduce": "flat"}
    here = needs.possible(able, {"norm": "demod"})
    assert "ladder scale" in here["ranks"] and needs.possible(able, {"norm": "demod"}).keys() >= able.keys()
    assert "reduce" not in catalog.climb(catalog.load_ladder("distributed"), here)[-2].recipe


def test_a_recipe_without_ranks_holds_no_distributed_rung():
    full = catalog.climb(catalog.load_ladder("full"), dict.fromkeys(needs.NEEDS))[-1].recipe
    names = {"ddp", "flat_reduce", "captured_reduce", "data_parallel"}
    assert not names & set(catalog.contained(full))
    assert names & set(catalog.contained(full | {"reduce": "flat", "ranks": 2})) == {
        "flat_reduce",
        "captured_reduce",
    }
