"""The distributed rungs: their ladders can be climbed, and their receipts tell a reduction from none."""

from __future__ import annotations

import pytest

from ladder.plan import catalog, needs
from ladder.rungs import captured_reduce, data_parallel, ddp, flat_reduce
from stylegan_lite.config import Recipe

PHASES = ("G_main", "G_pl", "D_main", "D_r1")


def seen(**changed) -> dict:
    reduced = {"ranks": 2, "gpus": 2, "bytes": dict.fromkeys(PHASES, 10**8)}
    reduced |= {"comm_ms": 2.0, "exposed_ms": 0.5, "comm_bursts": 11.0}
    kinds = ["G_main+D_main", "G_main+G_pl+D_main"]
    graphs = {"together": kinds, "captured": kinds, "replays": 1.0, "phases_per_step": 2.0}
    return {"reduced": reduced | changed, "graphs": graphs}


RUNGS = [ddp, flat_reduce, captured_reduce, data_parallel]


@pytest.mark.parametrize("rung", RUNGS)
def test_a_step_that_reduces_is_engaged(rung):
    assert rung.receipt(seen()).engaged
    not_profiled = rung.receipt(seen(comm_ms=None, exposed_ms=None, comm_bursts=None))
    assert not_profiled.engaged and "communication: not profiled" in not_profiled.lines
    assert (
        "communication: 2.000 ms a step, 0.500 ms of it exposed, bursts a phase: 5.5"
        in rung.receipt(seen()).lines
    )


@pytest.mark.parametrize("rung", ["ddp", "flat_reduce", "captured_reduce", "data_parallel"])
def test_one_gpu_or_none_of_the_traffic_is_not_engaged(rung, refused):
    words = "GPUs of the process: 1" if rung == "data_parallel" else "ranks: 1"
    refused(rung, seen(ranks=1, gpus=1), words, sabotage="one GPU alone", planted="evidence")
    silent = seen(comm_ms=0.0, exposed_ms=0.0, comm_bursts=0.0)
    refused(
        rung, silent, "communication: 0.000 ms", sabotage="nothing moves between GPUs", planted="evidence"
    )


@pytest.mark.parametrize("rung", ["ddp", "flat_reduce", "captured_reduce"])
def test_a_phase_whose_gradients_stay_at_home_is_not_engaged(rung, refused):
    found = seen(bytes=dict.fromkeys(PHASES[:3], 10**8))
    refused(rung, found, "D_r1 0.000", sabotage="R1's gradients are not reduced", planted="evidence")


def test_ddp_must_begin_during_backward_and_a_flat_reduction_need_not(refused):
    late = seen(comm_bursts=3.0, exposed_ms=2.0)
    refused(
        "ddp",
        late,
        "bursts a phase: 1.5",
        sabotage="gradients are reduced after backward",
        planted="evidence",
    )
    assert flat_reduce.receipt(late).engaged


def test_ddp_is_engaged_on_a_host_so_slow_that_nothing_runs_beside_its_buckets():
    assert ddp.receipt(seen(exposed_ms=2.0)).engaged


def test_an_all_reduce_that_is_not_in_the_graph_is_not_captured(refused):
    found = seen()
    found["graphs"]["captured"] = found["graphs"]["captured"][:1]
    refused("captured_reduce", found, "captured: 1 of 2", sabotage="one kind of step of two is captured",
            planted="evidence")  # fmt: skip


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
