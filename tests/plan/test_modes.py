"""Modes of a run: the rungs that each measures, and which way round a gain is read."""

import pytest

from ladder.core.errors import UserError
from ladder.plan import catalog, modes, needs

EVERYTHING = dict.fromkeys(needs.NEEDS)
NO_GPU = dict.fromkeys(needs.NEEDS, "needs a CUDA GPU") | {"bf16": None}
NAMES = [rung.name for rung in catalog.load_ladder("article").rungs]


def planned(mode, capabilities=EVERYTHING, only=None):
    return {p.name: p for p in modes.plan_run(mode, catalog.load_ladder("article"), capabilities, only)}


def test_solo_is_one_change_on_the_baseline():
    found = planned("solo")
    assert list(found) == NAMES
    assert found["bf16"].recipe == {**found["baseline"].recipe, **catalog.load_rung("bf16").change}
    assert found["baseline"].recipe == catalog.load_rung("baseline").change


def test_leave_one_out_is_the_whole_ladder_without_one():
    found = planned("leave-one-out")
    assert list(found) == ["all", *NAMES[1:]]  # the baseline has no part in its verdicts
    whole = planned("cumulative")[NAMES[-1]].recipe
    assert found["all"].recipe == whole
    for name in NAMES[1:]:
        if found[name].recipe is None:
            assert "impossible to leave out" in found[name].skipped
            continue
        own = set(catalog.load_rung(name).change)
        assert set(whole) - set(found[name].recipe) <= own and found[name].recipe != whole
    assert "cuda_graphs" not in found["cuda_graphs"].recipe and found["cuda_graphs"].title.startswith(
        "without"
    )


def test_what_extends_a_rung_is_left_out_with_it():
    ladder = catalog.load_ladder("full")
    found = {p.name: p for p in modes.plan_run("leave-one-out", ladder, EVERYTHING)}
    without = found["fused_adam"]
    assert without.title == "without fused Adam and EMA and without fused update"
    assert "fused_update" not in without.recipe and without.recipe["weights"] == "once"
    graphs = found["cuda_graphs"].recipe  # eager, parallel streams have nothing to work on
    assert not {"whole_step_graph", "streams"} & graphs.keys() and graphs["joint_batch"]
    assert found["all"].recipe["streams"] == found["bf16"].recipe["streams"] == "two"
    assert all(p.recipe is not None and len(p.title) <= 90 for p in found.values()), found


def test_only_some_are_left_out_of_all_that_can_run():
    some = planned("leave-one-out", only=["bf16"])
    assert list(some) == ["all", "bf16"]
    assert some["all"].recipe == planned("leave-one-out")["all"].recipe
    bare = planned("leave-one-out", NO_GPU)
    assert bare["cuda_graphs"].skipped == "needs a CUDA GPU" and "cuda_graphs" not in bare["all"].recipe
    with pytest.raises(UserError, match="baseline alone leaves nothing out"):
        planned("leave-one-out", only=["baseline"])
    with pytest.raises(UserError, match="needs a CUDA GPU"):
        modes.plan_run("solo", catalog.Ladder("l", "L", [catalog.LadderRung("cuda_graphs")]), NO_GPU)


def test_what_changes_nothing_at_the_top_is_not_measured(monkeypatch):
    import dataclasses

    load = catalog.load_rung
    doubled = {"bf16": {"precision": "bf16", "channels_last": True, "instance_norm": "var_mean"}}
    monkeypatch.setattr(
        catalog,
        "load_rung",
        lambda name: dataclasses.replace(load(name), change=doubled.get(name, load(name).change)),
    )
    found = planned("leave-one-out")
    assert found["channels_last"].recipe is None
    assert found["channels_last"].skipped.startswith("nothing changes without it")
    assert found["bf16"].recipe["channels_last"] and "precision" not in found["bf16"].recipe


def recipes(mode):
    return {name: p.recipe for name, p in planned(mode).items() if p.recipe is not None}


def test_on_the_staircase_a_rung_depends_on_what_its_recipe_contains():
    known = recipes("cumulative")
    assert modes.depends_on("cumulative", known, "fused_act", {"bf16"}) == "bf16"
    assert modes.depends_on("cumulative", known, "fused_act", {"cuda_graphs", "bf16"}) == "bf16"  # the first
    assert modes.depends_on("cumulative", known, "channels_last", {"bf16"}) is None
    assert modes.depends_on("cumulative", known, "bf16", {"bf16"}) is None  # itself
    assert modes.depends_on("cumulative", known, "channels_last", {"baseline"}) is None  # it changes nothing
    assert modes.depends_on("cumulative", known, "never heard of", {"bf16"}) is None
    some = {name: known[name] for name in ("bf16", "cuda_graphs")}
    assert modes.depends_on("cumulative", some, "cuda_graphs", {"bf16"}) == "bf16"
    other = known | {"fused_act": {"fused_act": True}}  # a ladder that takes the change back
    assert modes.depends_on("cumulative", other, "fused_act", {"bf16"}) is None


def test_in_the_other_modes_everything_depends_on_the_first_entry_alone():
    for mode, first in (("solo", "baseline"), ("leave-one-out", "all")):
        known = recipes(mode)
        assert modes.depends_on(mode, known, "fused_act", {first}) == first
        assert modes.depends_on(mode, known, "fused_act", {"bf16"}) is None
        assert modes.depends_on(mode, known, first, {first}) is None
