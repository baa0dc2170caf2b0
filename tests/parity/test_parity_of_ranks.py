"""Two ranks of batch 4 are within the budget of parity of one process of batch 8, all four phases; faults are not."""

from __future__ import annotations

from typing import Any

import pytest

from ladder.parity import check
from stylegan_lite import make_step
from tests.support import process_groups
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"batch": 8}
BF16 = {"precision": "bf16", "channels_last": True, "set_to_none": True, "joint_batch": True}
RECIPES = {
    "flat": {"reduce": "flat"},
    "ddp": BF16 | {"reduce": "ddp"},
    "flat, lean weights": BF16 | {"reduce": "flat", "weights": "once"},
}
PLANTED = ("the gradients are not reduced", "the lengths are each rank's own", "both take the same samples")
ON_ONE = "a rank is given wrong images"  # the other must not go on alone


def checked(cache: str) -> dict[str, Any]:
    found = {name: parity({"ranks": 2, **recipe}, cache) for name, recipe in RECIPES.items()}
    for fault in (*PLANTED, ON_ONE):
        found[fault] = parity({"ranks": 2, "reduce": "flat"}, cache, fault)
    return found


def parity(recipe: dict[str, Any], cache: str, fault: str | None = None) -> dict[str, Any]:
    step = make_step(WORKLOAD, recipe, device="cpu")
    step.keep_gradients = True
    ranks = step.ranks
    if fault == PLANTED[0]:
        ranks.reduce = lambda *_: None
    elif fault == PLANTED[1]:
        ranks.local = True
    step.prepare()
    if fault == PLANTED[2]:
        ranks.rank = 0
    with pytest.MonkeyPatch.context() as patch:
        if fault == ON_ONE and ranks.rank == 1:
            patch.setattr(check.freshness, "check_images", lambda step: ["image 1 of batch 1 is not the one"])
        return check.check_step(step, cache=cache)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return process_groups.run(checked, 2, tmp_path_factory.mktemp("references"))


@pytest.mark.parametrize("name", RECIPES)
def test_ranks_are_within_the_budget_of_parity(name, found):
    for each in found:
        assert each[name]["verdict"] == "ok", each[name]["problems"]
        assert each[name]["phases"].keys() == {"G_main", "G_pl", "D_main", "D_r1"}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_of_ranks_is_not(fault, found):
    assert any(each[fault]["verdict"] == "failed: parity" for each in found)


def test_a_finding_of_one_rank_ends_the_check_of_all(found):
    first, second = (each[ON_ONE] for each in found)
    assert (first["verdict"], second["verdict"]) == ("ok", "failed: parity") and len(second["problems"]) == 1
