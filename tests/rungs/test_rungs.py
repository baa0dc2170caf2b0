"""Every rung file teaches, and changes what it says; later files are covered without an edit here."""

from itertools import pairwise

import pytest

from ladder.plan import catalog, needs
from stylegan_lite.config import Recipe


@pytest.mark.parametrize("name", catalog.rungs())
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
    planned = catalog.climb(catalog.load_ladder("article"), dict.fromkeys(needs.NEEDS))
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
