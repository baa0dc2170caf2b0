"""whole_step_graph: whole steps compute what their phases do, what is wrong in one is found, a receipt."""

import copy
import dataclasses

import pytest
import torch

from ladder.parity import check as parity
from stylegan_lite.step import PHASES, TrainingStep
from tests.support.rung_steps import gathered, receipt, small

OURS = {"conv": "double_backward"}
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def seen():
    return gathered(small())


WHOLE = [("G_main", "D_main"), ("G_main", "G_pl", "D_main"), ("G_main", "G_pl", "D_main", "D_r1")]


def whole(recipe=None, **workload):
    """A step that runs whole as a CPU can: through the path of a whole-step graph, which finds no graph to replay."""
    step = small(recipe, **workload)
    step.recipe = dataclasses.replace(step.recipe, whole_step_graph=True)
    step.keep_gradients = True
    step.prepare()
    return step


def test_a_cycle_has_three_kinds_of_steps_and_one_launch_for_each_step():
    step, ran, filled = whole(), [], []
    assert sorted(step.together) == sorted(WHOLE) and small().together == []
    step.graphs = {"+".join(kind): None for kind in WHOLE}
    step._fill, step.replay_together = filled.append, ran.append
    step.cycle()
    assert ran == [WHOLE[2], *([WHOLE[0]] * 3 + [WHOLE[1]]) * 3, *[WHOLE[0]] * 3]
    assert filled == [phase for kind in ran for phase in kind]
    ran.clear()
    step.cycle(lazy=False)
    assert ran == [WHOLE[0]] * 16


def test_a_whole_step_computes_what_its_phases_compute_in_order():
    found = []
    for step in (small(), whole()):
        torch.manual_seed(2)
        step.feed.next()
        for phase in step.inputs:
            step._fill(phase)
        step.replay_together(WHOLE[2])
        found.append(step)
    assert found[0].losses() == found[1].losses()
    for a, b in zip(found[0].G.parameters(), found[1].G.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_replay_hands_back_the_gradients_its_own_graph_holds():
    class Graph:
        def replay(self):
            pass

    step = whole()
    step.graphs = {"+".join(kind): Graph() for kind in WHOLE}
    step.held = {"+".join(kind): {"G_main": {"of": kind}} for kind in WHOLE}
    for kind in WHOLE:
        step.run(kind)
        assert step.gradients["G_main"]["of"] == kind


def test_whole_steps_agree_with_the_reference(references):
    found = parity.check(whole(OURS, resolution=8), cache=references)
    assert found["verdict"] == "ok", found["problems"]
    assert set(found["phases"]) == set(PHASES) == set(found["replays"])
    assert {"loss", "gradient", "update", "ema"} <= set(found["phases"]["D_main"])


def stale_weights(step):
    """D_main is given images of the generator as it was before this step's update: a cast kept too long."""
    generator, compute = copy.deepcopy(step.G), step._compute
    step.copies[generator] = step.copies[step.G]

    def planted(phase):
        if phase == "G_main":
            generator.load_state_dict(step.G.state_dict())
        fresh, step.G = step.G, generator if phase == "D_main" else step.G
        update = step._update_ema
        step._update_ema = lambda: None
        compute(phase)
        step.G, step._update_ema = fresh, update
        if phase == "D_main":
            update()

    step._compute = planted


def no_average(step):
    step._update_ema = lambda: None


def no_penalty(step):
    compute = step._compute
    step._compute = lambda phase: None if phase == "D_r1" else compute(phase)


def kind_left_out(step):
    run = step.run
    step.run = lambda kind: run(WHOLE[0] if kind == WHOLE[1] else kind)


BUGS = {
    "whole step: D_main sees G's weights from before the update": stale_weights,
    "whole step: the moving average is not updated": no_average,
    "whole step: R1 is skipped": no_penalty,
    "whole step: another kind of step is run": kind_left_out,
}


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_wrong_in_a_whole_step_is_found(bug, references, planted_bug):
    step = whole(OURS, resolution=8)
    BUGS[bug](step)
    found = parity.check(step, cache=references)
    assert found["verdict"] == "failed: parity"
    planted_bug(bug=bug, planted="phases of a whole step in sequence", problem=found["reason"])


def test_parity_with_a_broken_schedule_says_so_and_compares_what_should_be_run(references, monkeypatch):
    """The sequences of a broken step have no reference."""
    honest = TrainingStep.phases
    monkeypatch.setattr(
        TrainingStep, "phases", lambda self, k, lazy=True: honest(self, k, lazy) if lazy else ("G_main",)
    )
    found = parity.check(whole(OURS, resolution=8), cache=references)
    assert found["problems"] == ["a cycle without lazy phases runs D_main 0 times, expected 16"]


def test_a_whole_step_graph_shows_in_its_receipt_and_is_cuda_graphs_too(seen, refused):
    found = seen["graphs"] | {
        "captured": ["+".join(kind) for kind in WHOLE],
        "replays": 1.0,
        "together": ["+".join(kind) for kind in WHOLE],
    }
    found |= {"operators": 9, "launches": 12.0, "kernels": 2000.0}
    good = seen | {"graphs": found, "adam": seen["adam"] | {"capturable": True, "steps_on": ["cuda"]}}
    assert receipt("whole_step_graph", good).engaged and receipt("cuda_graphs", good).engaged
    for bad, what in (
        ({"captured": [*PHASES]}, "every phase has its graph"),
        ({"captured": []}, "nothing is captured"),
        ({"replays": 2.31}, "every phase is replayed"),
        ({"captured": ["+".join(WHOLE[2])]}, "one kind of step of three is captured"),
    ):
        refused("whole_step_graph", good | {"graphs": found | bad}, sabotage=what, planted="evidence")
    assert not receipt("cuda_graphs", good | {"graphs": found | {"captured": ["G_main+D_main"]}}).engaged
    assert not receipt("cuda_graphs", good | {"graphs": found | {"together": []}}).engaged


def test_a_whole_step_is_counted_as_it_is_timed():
    class Graph:
        def replay(self):
            pass

    step = whole()
    step.graphs = {"+".join(kind): Graph() for kind in WHOLE}
    step.held = {name: {} for name in step.graphs}
    found = gathered(step)
    assert found["graphs"]["operators"] == 6 and found["graphs"]["operators_eager"] > 500
    assert found["graphs"]["together"] == found["graphs"]["captured"] == sorted(step.graphs)


@pytest.mark.gpu
@pytest.mark.parametrize("set_to_none", [True, False])
def test_whole_step_graphs_compute_what_the_phases_graphs_compute(set_to_none):
    graphs = {"cuda_graphs": True, "adam": "capturable", "set_to_none": set_to_none} | OURS
    alone, together = (small(graphs | {"whole_step_graph": on}, "cuda") for on in (False, True))
    for step in (alone, together):
        step.prepare()
    assert sorted(together.graphs) == sorted("+".join(kind) for kind in WHOLE)
    for kind in (*WHOLE, WHOLE[0], WHOLE[2]):  # graphs that share a pool, back and forth
        for step in (alone, together):
            step.feed.next()
            torch.manual_seed(len(kind))
            for phase in kind:
                step._fill(phase)
        for phase in kind:
            alone.replay(phase)
        together.replay_together(kind)
        assert together.losses() == pytest.approx(alone.losses(), rel=2e-2, abs=1e-3)
    together.cycle()
    assert together.check_finite() is None
