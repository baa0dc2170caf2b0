"""The step that is timed holds no gradients: it is compared as well, traced as such, and must move its weights."""

import copy
import dataclasses
import functools
import gc
import re

import pytest
import torch

from ladder.engine.timed_rung import Invalid, Rung, replaced_timer
from ladder.parity import check as parity
from ladder.parity import reference
from ladder.receipts import evidence
from stylegan_lite.losses import PHASES
from stylegan_lite.step.pair import autocast
from tests.support import fake_graphs
from tests.support.rung_steps import cold, gathered, receipt, small
from tests.support.small import LEAST

OURS = {"conv": "double_backward", "set_to_none": True}
HOW = ["eager", "a graph for each phase", "a graph for each kind of step"]
torch.set_num_threads(1)


def prepared(how, patch, recipe=None):
    step = small(recipe or OURS, resolution=8)
    step.recipe = dataclasses.replace(step.recipe, whole_step_graph=how == HOW[2])
    step.keep_gradients = True
    cold(step)
    step.counts = [] if how == HOW[0] else fake_graphs.capture(step, patch)
    return step


def kept(step):
    return [keep for graph in step.graphs.values() for _, keep in graph.phases]


@pytest.mark.parametrize("how", HOW)
def test_a_step_that_is_found_right_is_left_as_it_is_timed(how, references, monkeypatch):
    step = prepared(how, monkeypatch)
    names = sorted(step.graphs)
    assert all(kept(step)) and step.counts == [*range(1, len(names) + 1)]
    found = parity.check_step(step, cache=references)
    assert found["verdict"] == "ok", found["problems"]
    assert not step.keep_gradients and sorted(step.graphs) == names and not any(kept(step))
    assert not any(step.held.values())
    assert step.counts == [*range(1, len(names) + 1)] * 2  # the old graphs were freed first
    step.cycle()
    assert step.check_finite() is None


def only_where_gradients_are_kept(step):
    for optimizer in (step.opt_G, step.opt_D):

        def update(*args, inner=optimizer.step, **how):
            return inner(*args, **how) if step.keep_gradients else None

        optimizer.step = update


def no_average_where_none_are_kept(step):
    inner = step._update_ema
    step._update_ema = lambda: inner() if step.keep_gradients else None


@pytest.mark.covering
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("plant", "said"), [(only_where_gradients_are_kept, "update"), (no_average_where_none_are_kept, "ema")]
)
def test_what_is_wrong_only_in_the_step_that_is_timed_is_found(how, plant, said, references, monkeypatch):
    step = prepared(how, monkeypatch)
    plant(step)
    if step.graphs:
        fake_graphs.capture(step, monkeypatch)
    found = parity.check_step(step, cache=references)
    assert found["verdict"] == "failed: parity"
    assert found["reason"].startswith("as it is timed: ") and said in found["reason"], found["problems"]


def test_a_graph_that_holds_another_step_after_the_second_capture_is_found(references, monkeypatch):
    step = prepared(HOW[2], monkeypatch)
    stop = step.stop_keeping

    def without_path_length():
        stop()
        step.graphs["G_main+G_pl+D_main"] = step.graphs["G_main+D_main"]

    step.stop_keeping = without_path_length
    found = parity.check_step(step, cache=references)
    assert found["reason"].startswith("as it is timed: ") and "G_pl" in found["reason"]


# The comparison after timing


def nothing(step):
    """Plant no bug."""


@pytest.fixture(params=HOW)
def timed(request, references, monkeypatch):
    """A function that makes a step, wrong as its arguments make it, and runs a cycle: no gradients are kept."""
    monkeypatch.setattr(reference, "CACHE", references)

    def make(plant=nothing, captured=nothing):
        step = small(OURS, resolution=8)
        step.recipe = dataclasses.replace(step.recipe, whole_step_graph=request.param == HOW[2])
        plant(step)
        step.prepare()
        if request.param != HOW[0]:
            fake_graphs.capture(step, monkeypatch)
        captured(step)
        step.cycle()
        return step

    return make


def test_the_true_step_has_no_finding(timed):
    messages: list[str] = []
    assert parity.compare_timed_step(timed(), messages.append) == {"problem": None, "left_out": None}
    assert messages  # signs of life for the watchdog


def no_update_of_the_generator(step):
    inner = step.opt_G.step
    step.opt_G.step = lambda *how, **more: None if step.count else inner(*how, **more)


def no_average(step):
    step._update_ema = lambda: None


@pytest.mark.covering
@pytest.mark.parametrize(
    ("plant", "said"), [(no_update_of_the_generator, r"^G_\w+ .*update of "), (no_average, r" ema of ")]
)
def test_a_step_that_trains_otherwise_is_named(timed, plant, said):
    problem = parity.compare_timed_step(timed(plant), print)["problem"]
    assert problem is not None and re.search(said, problem) and "\n" not in problem


def runs(step, instead):
    """Let something run in place of what was captured, or of a phase of an eager step."""
    for graph in step.graphs.values():
        graph.replay = functools.partial(instead, graph.replay)
    if not step.graphs:
        inner = step._compute
        step._compute = lambda phase: instead(lambda: inner(phase))


def stale(step):
    """Whatever was computed while the step was captured stays, and nothing new is."""
    runs(step, lambda replay: None)


def of_another_recipe(step):
    """The step says that it computes in FP32, and what was captured is in BF16."""
    own, other = step.amp, functools.partial(autocast, step.device, "bf16")

    def replay(inner):
        step.amp = other
        try:
            inner()
        finally:
            step.amp = own

    runs(step, replay)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("plant", "least"), [(stale, 0.5), (of_another_recipe, 1e-4)], ids=["stale outputs", "another recipe"]
)
def test_graphs_that_hold_something_else_are_found(timed, plant, least: float):
    problem = parity.compare_timed_step(timed(captured=plant), print)["problem"]
    assert problem is not None
    error = re.search(r"error ([0-9.e+-]+), budget", problem)
    assert error is not None and float(error[1]) > least, problem


def test_a_reference_of_a_smaller_batch_fits_no_timed_buffers(references, monkeypatch):
    monkeypatch.setattr(reference, "CACHE", references)
    step = small(OURS, resolution=8)
    real = reference.get_reference
    half = dataclasses.replace(step.workload, batch=step.workload.batch // 2)
    monkeypatch.setattr(reference, "get_reference", lambda workload, *rest: real(half, *rest))
    no_update_of_the_generator(step)
    assert parity.compare_timed_step(step, print) == {
        "problem": None,
        "left_out": f"its batch of {step.workload.batch} does not fit a reference of {half.batch}",
    }


# Seen by the timed process itself


def worker_of(step):
    rung = Rung(None, type("Channel", (), {"send": lambda self, message: None})())
    rung.step = step
    return rung


@pytest.mark.parametrize(
    ("network", "still"),
    [
        (None, None),
        ("G", "G, G_ema"),
        pytest.param("D", "D", marks=pytest.mark.exhaustive),
        ("G_ema", "G_ema"),
    ],
)
def test_weights_that_stand_still_while_they_are_timed_void_the_time(network, still):
    step = cold(small(OURS, **LEAST))
    if network == "G_ema":
        step._update_ema = lambda: None
    elif network:
        getattr(step, f"opt_{network}").step = lambda: None
    visit = {"cycles": 1, "settle_s": 0, "settle_cycles": 0, "main": False}
    if still is None:
        assert worker_of(step).do_visit(**visit)["samples_s"]
        return
    with pytest.raises(Invalid, match=f"^weights of {still} did not move in the cycles that were timed$"):
        worker_of(step).do_visit(**visit)


def test_a_synchronization_of_the_measured_code_voids_the_time(monkeypatch):
    """Work on a stream of its own could go on after it."""
    assert replaced_timer("cuda") is None
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    assert replaced_timer("cpu") is None
    assert replaced_timer("cuda").startswith("the measured code replaced torch.cuda.synchronize")


def fill(tensors, value=float("nan")):
    for tensor in tensors:
        tensor.detach().fill_(value)


BROKEN = {
    "G_ema": (lambda step: fill(step.G_ema.parameters()), "G_ema.const is NaN"),
    "the mean path length": (lambda step: fill([step.pl_mean]), "mean path length is NaN"),
    "a running mean": (lambda step: fill([step.G.mapping.w_avg]), "G.mapping.w_avg is NaN"),
    "that of the average": (lambda step: fill([step.G_ema.mapping.w_avg]), "G_ema.mapping.w_avg is NaN"),
    "compute copies": (
        lambda step: fill([e.copy for e in step.copies[step.D].entries], float("inf")),
        "compute copy of D.",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_made_of_weights_is_looked_at_for_nan(what):
    plant, said = BROKEN[what]
    step = small(OURS | {"weights": "once"})
    step.prepare()
    step.step()
    assert step.check_finite() is None
    plant(step)
    assert step.check_finite().startswith(said), step.check_finite()


def test_copies_of_nan_are_stale():
    step = small(OURS | {"weights": "once"})
    step.prepare()
    assert evidence.compute_copies(step)["stale"] == 0
    entries = step.copies[step.G].entries
    fill([e.copy for e in entries])
    assert evidence.compute_copies(step)["stale"] == len(entries)


# Receipts of a capture


class Issued:
    """A graph of which the CPU issues nothing but the replay."""

    def replay(self):
        pass


def on_a_gpu(seen):
    seen["adam"] |= {"capturable": True, "steps_on": ["cuda"]}
    return seen


def test_one_graph_of_three_is_not_a_captured_step(monkeypatch):
    step = prepared(HOW[2], monkeypatch)
    step.stop_keeping()
    step.graphs = {kind: Issued() for kind in step.graphs}
    seen = on_a_gpu(gathered(step))
    for rung in ("cuda_graphs", "whole_step_graph"):
        assert receipt(rung, seen).engaged, receipt(rung, seen).lines
    for kind in ("G_main+D_main", "G_main+G_pl+D_main"):
        graph = step.graphs.pop(kind)
        seen = on_a_gpu(gathered(step))
        for rung in ("cuda_graphs", "whole_step_graph"):
            assert receipt(rung, seen).reason == "not engaged: kinds of steps captured: 2 of 3"
        assert seen["graphs"]["operators"] > 500  # of the kind that runs eagerly
        step.graphs[kind] = graph


TWO = OURS | {"weights": "once", "streams": "two"}


@pytest.mark.parametrize("how", HOW[1:])
def test_a_capture_in_line_is_not_engaged_whatever_runs_eagerly_beside_it(how, monkeypatch):
    step = prepared(how, monkeypatch, TWO)
    step.parallel.branch.active = False
    step.stop_keeping()
    step.parallel.branch.active = True
    seen = gathered(step)
    assert set(seen["parallel"]["phases"]) == set(PHASES)
    assert receipt("parallel_streams", seen).reason.startswith(
        "not engaged: work on the second stream: G_main 0x"
    )
    step.stop_keeping()
    found = receipt("parallel_streams", gathered(step))
    assert found.engaged, found.lines


def test_one_kind_of_step_that_is_captured_in_line_shows(monkeypatch):
    step = prepared(HOW[2], monkeypatch, TWO)
    compute, runs = step._compute, []

    def planted(phase):
        runs.append(phase)
        step.parallel.branch.active = len(runs) > 2  # the first graph: G_main and D_main
        compute(phase)

    step._compute = planted
    step.stop_keeping()
    seen = gathered(step)
    assert receipt("parallel_streams", seen).reason.startswith(
        "not engaged: work on the second stream: G_main 0x"
    )


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("more", [{}, {"streams": "two"}], ids=["one stream", "two streams"])
def test_a_second_capture_takes_no_more_memory_and_computes_the_same(whole, more):
    lean = {"weights": "once", "fused_adam": True, "ema": "foreach", "fused_update": True}
    graphs = {"cuda_graphs": True, "adam": "capturable", "whole_step_graph": whole}
    size = {"resolution": 64, "channel_base": 4096, "channel_max": 128, "w_dim": 128, "batch": 8}
    step = small(OURS | lean | graphs | more, "cuda", **size)
    step.keep_gradients = True
    step.prepare()
    step.cycle()
    state, figures, reserved = copy.deepcopy(step.state_dict()), [], []
    for _ in range(3):
        step.load_state_dict(state)
        step.cycle()
        figures.append(step.losses())
        gc.collect()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
        step.stop_keeping()
    for again in figures[1:]:
        assert again == pytest.approx(figures[0], rel=5e-2, abs=1e-3)
    assert max(reserved[1:]) <= 1.05 * reserved[0] and step.check_finite() is None
    step.close()
