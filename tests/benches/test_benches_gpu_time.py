"""GPU seconds of a step as a series of their own, from the process that also gives wall seconds and memory."""

import json

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented

from benches import _measure, _spawning, series
from benches.rungs import Rung
from benches.workloads import Workload
from ladder.engine import once
from ladder.machine import system


@pytest.fixture
def visits(tmp_path, monkeypatch):
    """A machine with a GPU, and the list of visits that its processes make."""
    here = {"device": "cuda", "capabilities": dict.fromkeys(system.CAPABILITIES)}
    (tmp_path / "machine.json").write_text(json.dumps(here))
    monkeypatch.setenv(_measure.HANDOVER, str(tmp_path))
    monkeypatch.setattr(_measure, "images", lambda workload: "unused")
    made = []

    def measure_once(workload, recipe, device, cycles, code=None, workers=None):
        made.append(recipe)
        void = "the profiler saw no kernels" if recipe["channels_last"] else None
        gpu = None if void else [0.25, 0.26]
        found = {"samples_s": [0.5], "peak_reserved_bytes": 7, "gpu_s": gpu, "gpu_void": void}
        return found | {"recipe": recipe}

    monkeypatch.setattr(once, "measure_once", measure_once)
    return made


@pytest.mark.parametrize(("kind", "workload"), [(Rung, "article"), (Workload, "large")])
def test_one_visit_yields_gpu_seconds_beside_time_and_memory(visits, kind, workload):
    bench = kind()
    bench.setup(workload, "baseline")
    assert bench.samples_gpu_time(workload, "baseline") == [0.25, 0.26]
    assert bench.samples_step_time(workload, "baseline") == [0.5]
    assert bench.track_peak_memory(workload, "baseline") == 7
    assert len(visits) == 1
    bench.samples_gpu_time(workload, "baseline")  # asv's next round: a fresh process
    assert len(visits) == 2


def test_without_a_figure_that_counts_gpu_time_is_not_applicable_and_the_wall_time_is_there(visits):
    rung = Rung()
    rung.setup("article", "channels_last")
    with pytest.raises(SkipNotImplemented, match="saw no kernels"):
        rung.samples_gpu_time("article", "channels_last")
    assert rung.samples_step_time("article", "channels_last") == [0.5] and len(visits) == 1


def test_on_a_cpu_it_is_not_applicable_and_no_process_is_started(tmp_path, monkeypatch):
    handover = tmp_path
    (handover / "machine.json").write_text(
        json.dumps({"device": "cpu", "capabilities": system.capabilities("cpu")})
    )
    monkeypatch.setattr(_measure, "_record", lambda *_: pytest.fail("measured"))
    index = len(series.RUNGS) * series.WORKLOADS.index("tiny")
    assert _spawning.at_hand(f"rungs.Rung.samples_gpu_time-{index}", handover) == "NaN"
    assert _spawning.at_hand(f"rungs.Rung.samples_step_time-{index}", handover) is None  # a process is needed
