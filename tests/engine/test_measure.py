"""Runs of a whole ladder of fake steps: what a fault in one rung does to the result, and what it must not do."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ladder.engine import run as measure
from ladder.results import judging
from tests.support.fake_runs import (
    Planned,
    alive,
    by_name,
    job,
    run,
    stored,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_rung_that_fails_is_a_record_and_the_others_go_on(tmp_path: Path) -> None:
    """`tests/project/test_faults.py` has the faults. The first rung that can be timed is the baseline."""
    rungs = {
        "baseline": {"fault": "raise", "at": "build"},
        "first": {"sleep": 0.01},
        "none": None,
        "chatty": {"fault": "print"},
        "untidy": {"fault": "raise", "at": "close"},
    }
    result = run(tmp_path, rungs)
    found = by_name(result)
    assert [found[name]["status"] for name in rungs] == ["failed", "ok", "n/a", "ok", "ok"]
    assert found["baseline"]["reason"] == "build: RuntimeError: weight of model.py is wrong"
    assert found["none"]["reason"] == "needs a CUDA GPU" and found["none"]["step_ms"] is None
    assert result["baseline"] == "first" and found["first"]["speedup_total"] == 1
    assert found["first"]["speedup_previous"] is None and found["chatty"]["speedup_previous"] > 1
    assert result["complete"] and stored(tmp_path) == result
    assert "someone" not in json.dumps(result) and str(tmp_path) not in json.dumps(result)
    assert result["workload"] == {"name": "fake", "batch": 8, "resolution": 8, "data": "user-images"}


def test_a_rung_that_fails_in_a_later_round_has_no_number_and_keeps_its_samples(tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    broken = {"fault": "raise", "at": "prepare", "once": once}
    rungs = by_name(run(tmp_path / "out", {"a": {}, "b": broken}, rounds=3))
    assert rungs["b"]["status"] == "failed"
    assert rungs["b"]["reason"].startswith("generation 2: prepare: RuntimeError")
    assert len(rungs["b"]["rounds"]) == 1 and rungs["b"]["step_ms"] is None
    assert len(rungs["a"]["rounds"]) == 3 and rungs["a"]["interval_ms"]


def test_what_contains_the_change_of_a_rung_that_is_out_is_skipped(tmp_path: Path, outcome: Any) -> None:
    oom = {"fault": "oom"}
    recipes = {"a": {}, "b": oom, "c": oom | {"capacity": 1}, "d": {"log": None}}
    plan = [Planned(name, recipe) for name, recipe in recipes.items()]
    events: list[dict] = []
    measure.run_ladder(job(tmp_path, plan, rounds=2), events.append)
    rungs = by_name(stored(tmp_path))
    assert [rungs[name]["status"] for name in "abcd"] == ["ok", "oom", "skipped", "ok"]
    assert rungs["c"]["reason"] == "depends on b" and rungs["c"]["step_ms"] is None
    # in the first generation all live together, so c is in vain, but in the second it is not begun
    phases = {(event["rung"], event["round"]) for event in events if event["event"] == "phase"}
    assert {each for each in phases if each[0] in "cd"} == {("c", 0), ("d", 0), ("d", 1)}
    assert events[-1]["done"] == events[-1]["total"]
    injected = "out of memory in the rung before, whose change it contains"
    kept = rungs["a"]["step_ms"] is not None and rungs["d"]["step_ms"] is not None
    outcome(fault="a rung failed", injected=injected, outcome=rungs["c"], kept=kept)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_whole_generations(tmp_path: Path, sign: signal.Signals) -> None:
    pids = tmp_path / "pids"
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.support import fake_runs
hang = dict(fault="hang", at="prepare", pids={str(pids)!r}, once={str(tmp_path / "once")!r})
rungs = dict(quick=dict(), hang=hang)
result = fake_runs.run(Path({str(tmp_path / "out")!r}), rungs, rounds=2)
print("returned", result["complete"])
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: pids.exists() and pids.read_text().endswith("]"), process)
    process.send_signal(sign)
    assert process.communicate(timeout=120)[0].strip() == "returned False"
    result = stored(tmp_path / "out")
    rungs = by_name(result)
    assert not result["complete"] and result["protocol"]["notes"][-1].startswith("interrupted")
    for rung in rungs.values():  # the second generation is dropped as a whole
        assert (rung["status"], len(rung["rounds"])) == ("ok", 1) and rung["step_ms"] > 0
    wait_for(lambda: not any(alive(pid) for pid in json.loads(pids.read_text())))


def test_each_visit_drains_the_loader_then_times_and_the_end_leaves_out_the_lazy_phases(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    rungs = {"first": {}, "a": {"log": str(log), "capacity": 33}, "last": {}}  # without twins of its own
    rung = by_name(run(tmp_path / "out", rungs, rounds=2, cycles=2, quick=False))["a"]
    lazy = [json.loads(line)[1] for line in log.read_text().splitlines()]
    # 33 batches may wait in the loader: 3 cycles consume them before each timed cycle.
    # `main` is timed in the second generation only.
    generation = 2 * ([True] * 3 + [True])
    assert lazy == [*generation, *generation, False]
    assert [r["lead_in_cycles"] for r in rung["rounds"]] == [0, 0]
    assert len(rung["samples_ms"]) == 4 and rung["settings"]["seen"] == 0


def test_a_sample_is_the_time_of_one_step(tmp_path: Path) -> None:
    rung = by_name(run(tmp_path, {"a": {"sleep": 0.16}}))["a"]
    assert rung["step_ms"] >= 10 and rung["images_per_s"] == pytest.approx(8000 / rung["step_ms"])
    assert rung["step_ms"] < 160  # not the time of a cycle, even on a busy machine


def test_twins_of_the_lowest_and_the_highest_rung_are_in_every_round(tmp_path: Path) -> None:
    rungs: dict[str, dict | None] = {"a": {}, "b": {}, "c": {"sleep": 0.01}, "gone": None}
    result = run(tmp_path, rungs, rounds=3, quick=False)
    assert [(twin["of"], len(twin["rounds"])) for twin in result["twins"]] == [("a", 3), ("c", 3)]
    assert [rung["name"] for rung in result["rungs"]] == list(rungs)  # a twin is no rung
    assert result["noise"]["eager"]["rounds"] == 3 and result["noise"]["eager"]["floor"] > 0
    found = by_name(result)
    assert found["a"]["verdict"] is None and found["b"]["verdict"] and found["gone"]["verdict"] is None
    assert found["c"]["gain"]["against"] == "b" and found["c"]["gain"]["rounds"] == 3
    assert found["c"]["gain"]["ratio"] == pytest.approx(found["c"]["speedup_previous"])
    assert stored(tmp_path) == result
    quick = run(tmp_path / "quick", rungs)
    assert [twin["of"] for twin in quick["twins"]] == ["a"]


def test_a_run_is_not_resumed_as_something_else(tmp_path: Path) -> None:
    run(tmp_path, {"a": {}, "b": {}})
    (path,) = tmp_path.glob("*/*.json")
    with pytest.raises(measure.UserError, match=r"ladder\.rungs"):
        run(tmp_path, {"a": {}}, resume=path)


def test_rounds_are_added_while_intervals_are_wide_and_the_budget_lasts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(judging, "wants_generations", lambda result: len(result.rungs[0].rounds) < 5)
    extended = run(tmp_path / "1", {"a": {}}, rounds=None, quick=False, budget_s=600)
    assert extended["protocol"]["rounds"] == len(by_name(extended)["a"]["rounds"]) == 5
    short = run(tmp_path / "2", {"a": {}}, rounds=None, cycles=3, quick=False, budget_s=0.01)
    assert short["protocol"]["rounds"] == 3 and short["complete"]
    assert [len(r["samples_ms"]) for r in by_name(short)["a"]["rounds"]] == [3, 1, 1]
    assert any("to fit the budget" in note for note in short["protocol"]["notes"])
