"""Evidence is gathered from the step as it is, leaves it running, and is small plain data."""

import json

import pytest
import torch

from ladder.receipts import evidence
from stylegan_lite import make_step
from stylegan_lite.losses import PHASES
from tests.support.small import LEAST


def ready(recipe: dict, device: str = "cpu", **workload):
    step = make_step(LEAST | workload, recipe, device=device)
    step.prepare()
    return step


def test_evidence_is_small_plain_data_and_the_step_goes_on():
    step = ready({"channels_last": True, "precision": "bf16", "set_to_none": True})
    found = evidence.gather_evidence(step)
    assert len(json.dumps(found, allow_nan=False)) < 4096
    assert json.loads(json.dumps(found)) == found
    assert "zero_grad" not in vars(step.opt_G) and "_fetch" not in vars(step.feed)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in step.G.modules())
    step.cycle()
    assert step.check_finite() is None


def test_every_island_is_seen():
    islands = evidence.gather_evidence(ready({}))["islands"]
    assert set(islands) == {
        "mapping and affines", "losses and penalties", "minibatch std", "statistics",
        "weights", "moments", "moving average",
    }  # fmt: skip
    assert all(set(found) == {"float32"} for found in islands.values())


class Replay:
    """Stands for a captured graph: work that no dispatch mode sees."""

    def replay(self) -> None:
        pass


def test_captured_phases_are_watched_eagerly_and_counted_as_they_are_timed():
    step = ready({})
    eager = evidence.gather_evidence(step)
    step.graphs = {phase: Replay() for phase in PHASES}
    found = evidence.gather_evidence(step)
    assert found["flops"] == eager["flops"] and len(step.graphs) == 4
    assert found["graphs"]["captured"] == sorted(PHASES)
    assert found["graphs"]["operators_eager"] > 500
    assert found["graphs"]["operators"] == 6  # two draws, three phases
    assert found["graphs"]["phases_per_step"] == 2 + 1 / 4 + 1 / 16
    assert eager["graphs"]["operators"] == eager["graphs"]["operators_eager"]


def test_where_eager_activations_do_not_fit_beside_the_graphs_they_are_dropped(monkeypatch):
    step = ready({})
    step.graphs = {phase: Replay() for phase in PHASES}
    watch_phases = evidence.watch_phases

    def tight(step):
        if step.graphs:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return watch_phases(step)

    monkeypatch.setattr(evidence, "watch_phases", tight)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = evidence.gather_evidence(step)
    assert found["graphs"]["captured"] == sorted(PHASES) and found["graphs"]["operators"] == 6
    assert found["flops"]["forward"]["float32"] > 0


def test_time_spent_waiting_for_data_is_the_loader_s(monkeypatch):
    step = ready({})
    fetch, now = step.feed._fetch, [0.0]
    monkeypatch.setattr(evidence.time, "perf_counter", lambda: now[0])

    def slow():
        now[0] += 0.080
        return fetch()

    step.feed._fetch = slow
    assert evidence.gather_evidence(step)["data"]["waiting_ms"] == 80
    assert step.feed._fetch is slow


@pytest.mark.gpu
def test_a_captured_step_launches_a_handful_and_its_copies_are_seen():
    recipe = {"cuda_graphs": True, "adam": "capturable", "set_to_none": True}
    recipe |= {"workers": 1, "pin_memory": True, "async_copy": True, "uint8_input": True, "drop_last": True}
    step = ready(recipe, "cuda")
    found = evidence.gather_evidence(step)
    assert found["graphs"]["launches"] < 32 < found["graphs"]["kernels"]
    assert found["graphs"]["replays"] == pytest.approx(found["graphs"]["phases_per_step"])
    gradients = found["gradients"]
    assert gradients["zero_kernels"] < gradients["tensors"] / 2 and found["adam"]["steps_on"] == ["cuda"]
    assert [c["pinned"] and c["side_stream"] for c in found["data"]["crossings"]] == [True]
    torch.cuda.synchronize()
    assert step.check_finite() is None
    step.close()


@pytest.mark.gpu
def test_an_eager_step_launches_everything_and_fills_its_gradients():
    found = evidence.gather_evidence(ready({}, "cuda"))
    assert found["graphs"]["launches"] > 500 and found["graphs"]["replays"] == 0
    gradients = found["gradients"]
    assert gradients["zero_kernels"] >= gradients["tensors"] and gradients["filled"] > 0
