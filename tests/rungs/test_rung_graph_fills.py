"""graph_fills: where it is refused, that each capture is rewritten before it is used, and its receipt."""

import dataclasses
import types

import pytest
import torch

from ladder.base.protocol import PHASES
from ladder.plan import catalog, needs
from ladder.receipts import evidence
from stylegan_lite import ConfigError, Recipe, fills, make_step, preparing
from stylegan_lite.fills import Fills
from tests.support import fake_graphs
from tests.support.rung_steps import assert_replayed_alike, gathered, receipt, small
from tests.support.small import LEAST

GRAPHS = {"cuda_graphs": True, "adam": "capturable"}


def test_where_it_cannot_be_it_is_refused_in_one_line(monkeypatch):
    with pytest.raises(ConfigError, match=r"^recipe: graph_fills needs cuda_graphs: true"):
        Recipe.from_dict({"graph_fills": True}, "recipe")
    with pytest.raises(ConfigError, match="cuda_graphs: true needs a CUDA device"):
        small(GRAPHS | {"graph_fills": True})
    monkeypatch.setattr(Recipe, "refuse_on", lambda *_: None)
    monkeypatch.setattr(fills, "unavailable", lambda: "needs another torch")
    with pytest.raises(ConfigError, match=r"^recipe: graph_fills needs another torch$"):
        make_step(LEAST, GRAPHS | {"graph_fills": True}, device="cpu")


def test_results_without_it_are_those_of_a_recipe_that_does_not_know_it():
    assert "graph_fills" not in Recipe.from_dict(GRAPHS).to_dict()
    recipe = Recipe.from_dict(GRAPHS | {"graph_fills": True})
    assert recipe.to_dict()["graph_fills"] is True and Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.fixture
def captured(monkeypatch):
    """Return a step captured as a CPU can, what was done in order, and the step's evidence."""

    def capture(on=True):
        said = []
        step = small(None, **LEAST)
        step.prepare()
        step.recipe = dataclasses.replace(step.recipe, graph_fills=on)
        monkeypatch.setattr(fills, "compile_ahead", lambda: said.append("compile"))

        def replace(graph, stream):
            said.append((len(graph.phases), stream))  # the capture is over
            return Fills(3, 2, {"of several rows": 1})

        monkeypatch.setattr(fills, "replace_memsets", replace)
        fake_graphs.capture(step, monkeypatch)
        return step, said

    return capture


def test_each_graph_is_rewritten_after_its_capture_and_again_when_it_is_captured_anew(captured):
    step, said = captured()
    assert said == ["compile", *[(1, None)] * 4]
    assert step.fills.keys() == step.graphs.keys() == set(PHASES)
    preparing.capture_again(step)
    assert said == ["compile", *[(1, None)] * 4] * 2 and step.fills.keys() == step.graphs.keys()


def test_nothing_is_kept_or_rewritten_unless_it_is_asked_for(captured, monkeypatch):
    step, said = captured(on=False)
    assert not said and not step.fills
    made = []

    def new(*given, **how):
        made.append((given, how))
        return types.SimpleNamespace()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    monkeypatch.setattr(step, "_compute", lambda phase: None)
    preparing._capture(step)
    assert made == [((), {})] * 4  # a call that any torch knows


def seen_with(**changes):
    return {"fills": {"found": 8, "replaced": 8, "left": {}, "memsets": 0.0} | changes}


def test_the_receipt_wants_nodes_replaced_and_no_memset_in_a_graph(refused):
    assert receipt("graph_fills", seen_with()).engaged
    unseen = receipt("graph_fills", seen_with(memsets=None))
    assert unseen.engaged and unseen.lines[-1] == "memsets in replayed graphs: not profiled"
    for changes, words, sabotage in (
        (
            {"replaced": 0, "left": {"in a graph with programmatic edges": 8}},
            "0 of 8",
            "graphs that are left as they are",
        ),
        ({"found": 0, "replaced": 0}, "0 of 0", "a step without memsets"),
        ({"memsets": 58.75}, "58.8 a step", "graphs that were instantiated before"),
    ):
        refused("graph_fills", seen_with(**changes), words, sabotage=sabotage, planted="evidence")
    left = receipt(
        "graph_fills", seen_with(replaced=6, left={"of several rows": 1, "empty or too long": 1}, memsets=2.1)
    )
    assert left.engaged and left.lines[1] == "memset nodes that stay: empty or too long 1, of several rows 1"


def test_the_evidence_adds_up_all_graphs(captured):
    step, _ = captured()
    seen = gathered(step)
    assert seen["fills"] == {"found": 12, "replaced": 8, "left": {"of several rows": 4}, "memsets": None}
    assert receipt("graph_fills", seen).engaged


def test_a_step_without_it_has_no_evidence_of_it(refused):
    refused("graph_fills", gathered(small(None, **LEAST)), "0 of 0", sabotage="its change not applied")


SIZE = {"resolution": 64, "channel_base": 2048, "channel_max": 64, "batch": 8}


def top():
    able = needs.possible(dict.fromkeys(needs.OF_MACHINE), {"norm": "demod"})
    climbed = catalog.climb(catalog.load_ladder("full"), able)
    return [rung for rung in climbed if rung.recipe is not None][-1].recipe | {"workers": 1}


@pytest.mark.gpu
def test_no_memset_runs_in_a_graph_of_the_top_unless_its_graphs_are_left_as_they_are(monkeypatch, refused):
    step = make_step(SIZE, top(), device="cuda")
    step.prepare()
    seen = evidence.gather(step)
    print(seen["fills"])
    if not seen["fills"]["found"]:
        pytest.skip("on this GPU cuDNN clears nothing by a memset")
    assert receipt("graph_fills", seen).engaged and receipt("whole_step_graph", seen).engaged

    def leave(graph, stream):
        graph.instantiate()
        return Fills(1, 1, {})

    monkeypatch.setattr(fills, "replace_memsets", leave)
    preparing.capture_again(step)
    refused("graph_fills", evidence.gather(step), "in replayed graphs", sabotage="graphs are not rewritten")
    step.close()


@pytest.mark.gpu
def test_every_phase_computes_the_same_without_memsets():
    assert_replayed_alike(SIZE, *(top() | {"graph_fills": on} for on in (False, True)))
