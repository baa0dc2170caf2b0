"""Every rung teaches what it changes, computes what it did, and is refused where its change was not applied."""

from itertools import pairwise

import pytest
import torch

import kernels
from ladder.plan import catalog, needs
from stylegan_lite import ConfigError, Recipe, networks
from tests.rungs import cases
from tests.support.rung_steps import (
    assert_engaged,
    assert_the_same,
    checked,
    cold,
    every_phase,
    gathered,
    receipt,
    small,
)

torch.set_num_threads(1)


@pytest.mark.parametrize("name", catalog.list_rungs())
def test_a_rung_teaches_what_it_changes_why_it_helps_and_when_it_does_not(name):
    rung = catalog.load_rung(name)
    assert rung.summary.endswith((".", "?")) and len(rung.summary) <= 110
    if name != "baseline":
        assert rung.change, "a rung that changes nothing is not a rung"
        for part in ("Change.", "Why it should help.", "When it does not."):
            assert part in rung.text


def test_the_baseline_is_the_recipe_defaults():
    assert catalog.load_rung("baseline").change == {}


def test_every_rung_of_the_article_changes_the_recipe_below_it():
    planned = catalog.plan_climb(catalog.load_ladder("article"), dict.fromkeys(needs.NEEDS))
    recipes = [Recipe.from_dict(rung.recipe) for rung in planned]
    for lower, higher in pairwise(recipes):
        assert lower != higher


def test_data_loading_asks_for_no_more_workers_than_cores(monkeypatch):
    import importlib
    import os

    from ladder.rungs import data_loading

    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinity on this system")
    for cores, workers in ((1, 1), (4, 4), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert importlib.reload(data_loading).change["workers"] == workers
    monkeypatch.undo()
    importlib.reload(data_loading)


# ---- the suite over the tables of `cases.py` ----------------------------------------------------------------------


@pytest.fixture
def in_plain_pytorch(monkeypatch):
    """The kernels' references in their place: the model's wiring at a CPU's speed and with PyTorch's rounding."""
    for name in kernels.__all__:
        if hasattr(kernels, f"{name}_reference") and not name.startswith("conv"):
            monkeypatch.setattr(kernels, name, getattr(kernels, f"{name}_reference"))


def mark_quick(rows):
    """Parametrize by name; what is not quick is left to `make test-all`."""
    return [
        pytest.param(row, marks=() if row.quick else pytest.mark.exhaustive, id=name) for name, row in rows
    ]


@pytest.mark.parametrize("case", mark_quick(cases.list_same()))
def test_every_phase_computes_the_same(case):
    """Through the kernels, in float64: R1 and path length differentiate them twice."""
    found = []
    for recipe in (case.below, case.change):
        step = small({"precision": "fp64"} | recipe, **case.workload)
        found.append(every_phase(step, rounds=case.rounds, noise=case.noise))
    assert_the_same(found[1], found[0], atol=case.atol)


@pytest.mark.parametrize("case", mark_quick(cases.REFERENCES.items()))
def test_it_agrees_with_the_reference(case, references, request):
    if case.plain:
        request.getfixturevalue("in_plain_pytorch")
    found = checked(small(case.recipe, **cases.EIGHT | case.workload), references)
    assert found["verdict"] == "ok", found["problems"]


@pytest.mark.parametrize("case", mark_quick((each.rung, each) for each in cases.EARNED))
def test_the_receipt_is_earned_and_so_are_those_of_the_rungs_below(case):
    seen = gathered(small(case.recipe, **case.workload), steps=case.steps)
    assert_engaged(seen, {*catalog.list_contained(seen["recipe"]), case.rung})
    if case.without is not None:
        assert not receipt(case.rung, gathered(small(case.without, **case.workload))).engaged


@pytest.mark.parametrize("case", mark_quick((f"{each.rung}: {each.what}", each) for each in cases.SABOTAGES))
def test_a_sabotaged_step_is_not_engaged(case, refused):
    step = cold(small(case.recipe, **case.workload))
    with pytest.MonkeyPatch.context() as patch:
        seen = gathered(step, lambda step: case.plant(step, patch), case.steps)
    refused(case.rung, seen, *case.words, sabotage=case.what)


@pytest.fixture(scope="module")
def seen():
    """The evidence of a plain step."""
    return gathered(small())


@pytest.mark.parametrize("case", list(cases.list_forged()), ids=lambda case: f"{case.rung}: {case.what}")
def test_forged_evidence_is_not_engaged(case, seen, refused):
    good = cases.merge(seen, case.good)
    assert receipt(case.rung, good).engaged, receipt(case.rung, good).lines
    bad = cases.merge(good, case.bad)
    refused(case.rung, bad, *case.words, sabotage=case.what, planted="evidence")


@pytest.mark.parametrize(("rung", "changes", "line"), cases.ACCEPTED)
def test_what_was_not_profiled_or_had_to_stay_is_accepted(rung, changes, line, seen):
    found = receipt(rung, cases.merge(seen, changes))
    assert found.engaged and (not line or line in found.lines), found.lines


def test_a_flag_is_not_blamed_on_a_recipe_that_asks_for_it(seen):
    assert not receipt("baseline", cases.merge(seen, cases.BENCHMARK)).engaged
    assert not receipt("dependent_launch", {"kernels": {}}).engaged
    assert not receipt("joint_batch", {"passes": {}, "recipe": {"fused_norm": False}}).engaged


@pytest.mark.parametrize("bug", cases.BUGS)
def test_a_planted_bug_is_outside_the_budget(bug, in_plain_pytorch, monkeypatch, planted_bug, references):
    case = cases.BUGS[bug]
    module, name = (kernels, case.op) if case.op else (networks, "minibatch_std")
    monkeypatch.setattr(module, name, case.function)
    found = checked(small(case.recipe, resolution=8, **case.workload), references)
    assert found["verdict"] == "failed: parity" and case.words in found["reason"]
    planted_bug(bug=bug, planted=f"{name} of one rung", problem=found["reason"])


@pytest.mark.parametrize(("recipe", "words"), cases.IMPOSSIBLE)
def test_an_impossible_recipe_is_refused_in_one_line(recipe, words):
    with pytest.raises(ConfigError) as refusal:
        Recipe.from_dict(recipe)
    assert all(word in str(refusal.value) for word in words) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("recipe", cases.NEED_A_GPU)
def test_what_needs_a_gpu_is_refused_on_the_cpu(recipe):
    with pytest.raises(ConfigError, match=next(iter(recipe))) as refusal:
        small(recipe)
    assert "\n" not in str(refusal.value)
