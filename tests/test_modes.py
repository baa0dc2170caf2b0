"""What each mode measures, and which way round a gain is read."""

import pytest

from ladder import catalog, modes
from ladder.errors import UserError

EVERYTHING = dict.fromkeys(catalog.NEEDS)
NO_GPU = dict.fromkeys(catalog.NEEDS, "needs a CUDA GPU") | {"bf16": None}
NAMES = [rung.name for rung in catalog.load_ladder("article").rungs]


def planned(mode, capabilities=EVERYTHING, only=None):
    return {p.name: p for p in modes.plan(mode, catalog.load_ladder("article"), capabilities, only)}


def test_solo_is_one_change_on_the_baseline():
    found = planned("solo")
    assert list(found) == NAMES
    assert found["bf16"].recipe == {**found["baseline"].recipe, **catalog.load_rung("bf16").change}
    assert found["baseline"].recipe == catalog.load_rung("baseline").change


def test_leave_one_out_is_the_whole_ladder_without_one():
    found = planned("leave-one-out")
    assert list(found) == ["baseline", "all", *NAMES[1:]]
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


def test_only_some_are_left_out_of_all_that_can_run():
    some = planned("leave-one-out", only=["bf16"])
    assert (
        list(some) == ["baseline", "all", "bf16"]
        and some["all"].recipe == planned("leave-one-out")["all"].recipe
    )
    bare = planned("leave-one-out", NO_GPU)
    assert bare["cuda_graphs"].skipped == "needs a CUDA GPU" and "cuda_graphs" not in bare["all"].recipe


def test_a_ladder_whose_base_cannot_run_has_no_other_mode():
    with pytest.raises(UserError, match="needs a CUDA GPU"):
        modes.plan("solo", catalog.Ladder("l", "L", [catalog.LadderRung("cuda_graphs")]), NO_GPU)
