"""One recipe in one fresh worker, for benches, with the fake code that tests of the harness measure."""

import json
from pathlib import Path

import pytest

from ladder.engine import once
from ladder.engine.pool import Pool, Worker, WorkerFailure

FAKE = Path(__file__).resolve().parents[1] / "support" / "fake_code"
WORKLOAD = {"batch": 8, "data": None}


def test_preparing_once_gives_its_parts_and_times_nothing(monkeypatch):
    asked, real = [], Worker.call

    def call(self, do, **fields):
        asked.append(do)
        return real(self, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    found = once.prepare_once(WORKLOAD, {"name": "a"}, "cpu", code=FAKE)
    assert asked == ["build", "prepare", "choices"]
    assert found["prepare_s"] >= 0 and found["choices"] == [] and found["recipe"]["name"] == "a"
    assert not {"ok", "did", "gpu_uuid"} & {*found}


def test_what_the_measured_code_says_of_its_preparing_stands_in_no_place_of_a_clock():
    lies = {
        "prepare_s": 1000.0,
        "capture_s": 1000.0,
        "cache_s": -1000.0,
        "compile_s": 1000.0,
        "warmup_s": "1",
    }
    others = {"ok": False, "progress": "x", "build_s": 1000.0, "samples_s": [7.0], "peak_reserved_bytes": 1}
    for recipe in ({"says": lies}, {"says": lies | others}):
        found = once.prepare_once(WORKLOAD, recipe, "cpu", code=FAKE)
        own = {"prepare_s", "capture_s", "peak_rss_bytes"}
        assert {*found} == {"build_s", "recipe", "settings", "choices"} | own
        assert found["capture_s"] == 0 and found["prepare_s"] < 1000 and found["build_s"] < 1000
    found = once.measure_once(WORKLOAD, recipe, "cpu", 1, code=FAKE)
    assert found["peak_reserved_bytes"] is None and found["prepare_s"] < 1000
    found = once.prepare_once(WORKLOAD, {"prepare": 0.01, "says": {"warmup_s": 0.001}}, "cpu", code=FAKE)
    assert found["warmup_s"] == 0.001  # which nobody else can tell, and which fits


def test_timing_once_runs_no_cycle_that_asv_has_no_number_of(tmp_path):
    log = tmp_path / "cycles"
    once.measure_once(WORKLOAD, {"name": "a", "log": str(log)}, "cpu", 2, code=FAKE)
    assert [json.loads(line) for line in log.read_text().splitlines()] == [["a", True]] * 3  # one leads in


def test_rows_share_a_pool_that_imports_once_and_each_has_a_worker_that_ends(monkeypatch):
    taken, real = [], Pool.take
    monkeypatch.setattr(Pool, "take", lambda pool: taken.append(real(pool)) or taken[-1])
    with once.open_pool("cpu", FAKE) as workers:
        for _ in range(2):
            found = once.measure_once(WORKLOAD, {"name": "a"}, "cpu", 1, code=FAKE, workers=workers)
            assert len(found["samples_s"]) == 1
            assert taken[-1].ended
    assert len({worker.pid for worker in taken}) == 2
    with pytest.raises(WorkerFailure, match="the run was ended"):
        once.measure_once(WORKLOAD, {"name": "a"}, "cpu", 1, code=FAKE, workers=workers)


def on_a_gpu(monkeypatch, answer, cycles=({"gpu_ms": 8.0}, {"gpu_ms": 8.02}), void=None):
    """Answer as a worker on a GPU whose step takes 10 ms. Return the list that gets each command."""
    asked = []
    answers = {
        "build": {"recipe": {}, "settings": {}, "build_s": 1.0},
        "prepare": {"prepare_s": 1.0, "capture_s": 0.0},
        "visit": {"samples_s": [0.010, 0.011], "event_s": None},
        "choices": {"choices": []},
        "profile load": {},
        "profile record": {"cycles": list(cycles), "profile": None, "gpu_void": void},
    }

    def call(self, do, **fields):
        asked.append(f"{do} {fields['part']}" if "part" in fields else do)
        found = (answers | answer)[asked[-1]]
        found = found() if callable(found) else found
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(Worker, "call", call)
    return asked


def measured_on_a_gpu(recipe=None):
    with Pool(code=FAKE, torch=False) as workers:
        return once.measure_once(WORKLOAD, recipe or {}, "cuda", 2, code=FAKE, workers=workers)


def test_two_cycles_are_profiled_after_everything_else_and_give_gpu_seconds(monkeypatch):
    asked = on_a_gpu(monkeypatch, {})
    found = measured_on_a_gpu()
    assert asked == ["build", "prepare", "visit", "choices", "profile load", "profile record"]
    assert found["gpu_s"] == pytest.approx([0.008, 0.00802]) and found["gpu_void"] is None
    assert found["samples_s"] == [0.010, 0.011]


@pytest.mark.parametrize(
    ("recipe", "answer", "seen", "why"),
    [
        ({}, {}, {"cycles": (), "void": "the profiler saw no kernels"}, "the profiler saw no kernels"),
        ({}, {}, {"void": "profiled cycles launched 90 and 91 kernels"}, "90 and 91"),
        (
            {"cuda_graphs": True},
            {},
            {"cycles": ({"gpu_ms": 12.0},) * 2},
            "GPU time of 12 ms in a step of 10.5",
        ),
        ({}, {"profile load": WorkerFailure("failed", "profile: no CUPTI")}, {}, "no CUPTI"),
    ],
    ids=["no kernels", "other kernels", "beyond the wall", "no profiler"],
)
def test_a_gpu_time_that_does_not_count_leaves_its_reason_and_the_wall_times(
    monkeypatch, recipe, answer, seen, why
):
    on_a_gpu(monkeypatch, answer, **seen)
    found = measured_on_a_gpu(recipe)
    assert found["gpu_s"] is None and why in found["gpu_void"]
    assert found["samples_s"] == [0.010, 0.011]


def test_a_gpu_time_that_cannot_be_true_is_taken_once_more_after_a_rest(monkeypatch):
    seen = [{"cycles": [{"gpu_ms": ms}] * 2, "gpu_void": None} for ms in (12.0, 10.4)]
    asked = on_a_gpu(monkeypatch, {"profile record": lambda: seen.pop(0)})
    found = measured_on_a_gpu({"cuda_graphs": True})
    assert found["gpu_s"] == pytest.approx([0.0104] * 2) and found["gpu_void"] is None
    assert asked.count("profile record") == 2
