"""Before a rung is timed it must show that it is on and computes the same: what happens where it cannot."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ladder.engine import inspection
from ladder.engine import run as measure
from ladder.engine.pool import Worker, WorkerFailure
from ladder.engine.visit import Visits
from tests.support import servers
from tests.support.fake_runs import by_name, known, run, stored

OK = {"verdict": "ok", "reason": None, "problems": [], "phases": {}}
kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
WRONG = {
    "verdict": "failed: parity",
    "reason": "D_r1 gradient: error 1, budget 0.02",
    "problems": ["D_r1 gradient: error 1, budget 0.02"],
}
ON = {"bf16": {"engaged": True, "lines": ["convolution FLOPs in BF16: 1.000"]}}
OFF = {"bf16": {"engaged": False, "lines": ["not engaged: convolution FLOPs in BF16: 0.000"]}}
EVIDENCE = {"device": "cuda", "graphs": {"busy_ms": 12.5, "kernels": 100.0}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """Workers of fake steps answer what their recipe's "parity" and "receipts" say; who was asked what is listed."""
    monkeypatch.setattr(inspection, "CACHE", tmp_path / "cache")
    asked, real = [], Worker.call

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "threads":  # of a worker that builds nothing
            return real(worker, do, **fields)
        if do == "build":
            worker.recipe = fields["recipe"]
        asked.append((worker.recipe["name"], do))
        if do == "prove":
            return {"problem": None}
        if do == "trace":
            return {}
        said = worker.recipe.get(do, {"parity": OK, "receipts": ON}.get(do))
        said = {"wrong": WRONG, "off": OFF}.get(said, said) if isinstance(said, str) else said
        if said is None:
            return real(worker, do, **fields)
        if isinstance(said, str):
            raise WorkerFailure("failed", f"{do}: {said}")
        return said if do == "parity" else {"receipts": said, "evidence": EVIDENCE}

    monkeypatch.setattr(Worker, "call", call)
    return asked


@pytest.mark.parametrize(
    ("how", "status", "reason", "fault"),
    [
        (
            {"parity": "wrong"}, "failed: parity", "D_r1 gradient: error 1, budget 0.02",
            ("parity failed", "an error outside its budget"),
        ),
        (
            {"receipts": "off"}, "not engaged", "bf16: convolution FLOPs in BF16: 0.000",
            ("silent fallback", "a receipt that speaks against the rung"),
        ),
        (
            {"parity": "RuntimeError: sizes differ"}, "failed", "parity: RuntimeError: sizes differ",
            ("parity failed", "the comparison itself breaks"),
        ),
        (
            {"receipts": "worker killed by SIGSEGV"}, "failed", "receipts: worker killed by SIGSEGV",
            ("silent fallback", "the inspector dies before it has seen anything"),
        ),
    ],
)  # fmt: skip
def test_a_rung_that_cannot_show_what_it_is_is_never_timed(
    how: dict, status: str, reason: str, fault: tuple[str, str], asked: list, tmp_path: Path, outcome: Any
) -> None:
    result = run(tmp_path / "out", {"a": {}, "bad": how, "c": {}}, inspect=True)
    bad, others = by_name(result)["bad"], [by_name(result)[name] for name in "ac"]
    assert (bad["status"], bad["reason"]) == (status, reason) and bad["step_ms"] is None
    assert bad["rounds"] == [] and ("bad", "cycle") not in asked and ("a", "cycle") in asked
    for rung in others:
        assert rung["status"] == "ok" and rung["receipts"] == ON and known(rung["parity"]) == known(OK)
        assert known(rung["inspection"]) == {"gpu_busy_ms": 12.5, "kernels_per_step": 100.0}
    if how.get("parity") == "wrong":
        assert bad["parity"]["verdict"] == "failed: parity" and ("bad", "receipts") not in asked
    if how.get("receipts") == "off":
        assert bad["receipts"] == OFF
    assert stored(tmp_path / "out") == result
    outcome(fault=fault[0], injected=fault[1], outcome=bad, kept=all(rung["step_ms"] for rung in others))


def test_inspectors_come_first_and_end_before_the_timing(asked: list, tmp_path: Path) -> None:
    run(tmp_path / "out", {"a": {}, "b": {}}, inspect=True)
    did = [do for _, do in asked]
    assert did.count("parity") == did.count("receipts") == 2
    assert max(i for i, do in enumerate(did) if do == "receipts") < did.index("begin")
    assert did.index("parity") < did.index("trace") < did.index("receipts")  # which let the step train on


def test_what_was_shown_is_not_asked_again_until_something_changes(
    asked: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rungs = {"a": {}, "bad": {"receipts": "off"}}
    first = run(tmp_path / "1", rungs, inspect=True)
    asked.clear()
    again = run(tmp_path / "2", rungs, inspect=True)
    assert [name for name, do in asked if do == "receipts"] == [
        "bad"
    ]  # what it could not show is asked again
    assert by_name(again)["a"]["inspection"] == by_name(first)["a"]["inspection"]
    asked.clear()
    monkeypatch.setattr(inspection, "source_digest", lambda: "another commit")
    run(tmp_path / "3", rungs, inspect=True)
    assert [name for name, do in asked if do == "parity"] == ["a", "bad"]


def test_a_rung_whose_check_broke_is_checked_again_before_a_resumed_run_times_it(
    asked: list, tmp_path: Path
) -> None:
    run(tmp_path / "out", {"a": {}, "b": {"parity": "killed"}, "c": {"parity": "wrong"}}, inspect=True)
    (path,) = (tmp_path / "out").glob("*/*.json")
    asked.clear()
    after = by_name(run(tmp_path / "out", {"a": {}, "b": {}, "c": {}}, inspect=True, resume=path))
    did = [do for name, do in asked if name == "b"]
    timed = ["begin", "cycle", "finish", "choices", *["profile"] * 2, "prove"]
    assert did == ["build", "prepare", "parity", "profile", "trace", "receipts", "build", "prepare", *timed]
    assert after["b"]["status"] == "ok" and known(after["b"]["parity"]) == known(OK)
    assert after["c"]["status"] == "failed: parity" and not [do for name, do in asked if name == "c"]


def test_a_worker_on_another_gpu_stops_the_run_at_once(
    asked: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    monkeypatch.setattr(Visits, "check_gpu", lambda visits, seen: "the worker runs on another GPU")
    with pytest.raises(measure.UserError, match="another GPU") as error:
        run(tmp_path / "out", {"a": {}, "b": {}}, inspect=True)
    assert [do for _, do in asked] == ["build"]
    assert not stored(tmp_path / "out")["complete"]
    outcome(fault="wrong GPU", injected="in a run", outcome=f"the run ends: {error.value}", number=False)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """This project's sources, to be changed and put back, and their digest."""
    root = tmp_path_factory.mktemp("copied")
    for package in ("kernels", "stylegan_lite", "ladder"):
        shutil.copytree(inspection.ROOT / package, root / package)
    before = inspection.source_digest(root)
    assert inspection.source_digest(root) == before == inspection.source_digest()
    return root, before


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ("kernels/pointwise/modulate.py", True),
        ("stylegan_lite/losses.py", True),
        ("ladder/rungs/bf16.py", True),  # its receipt; rungs are imported by name
        ("ladder/engine/worker.py", True),
        ("ladder/engine/timed_rung.py", True),
        ("ladder/engine/inspection.py", True),
        ("ladder/parity/check.py", True),  # imported inside a function of the worker
        ("ladder/parity/reference.py", True),
        ("ladder/receipts/evidence.py", True),
        ("ladder/report/chart.py", False),
        ("ladder/report/tables.py", False),
        ("ladder/studies/kernelbench/bench.py", False),
        ("ladder/ladders/full.yaml", False),  # an order of recipes; each finding belongs to one recipe
    ],
)
def test_a_change_of_what_a_finding_depends_on_is_another_inspection(
    changed: str, other: bool, copied: tuple[Path, str]
) -> None:
    root, before = copied
    text = (root / changed).read_text()
    (root / changed).write_text(text + "# changed\n")
    after = inspection.source_digest(root)
    (root / changed).write_text(text)
    assert (after != before) is other


# --- several at once ---


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch, asked: list) -> dict[str, Any]:
    """Three inspectors at a time, also on a CPU; counts who is at work while one is traced, and otherwise."""
    monkeypatch.setattr(measure, "LANES", {"cpu": 3})
    seen = {"at work": 0, "most": 0, "beside a trace": 0, "calls": []}
    real, lock, begun = Worker.call, threading.Lock(), threading.Event()

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do not in ("prepare", "parity", "trace", "receipts"):
            return real(worker, do, **fields)
        with lock:
            seen["at work"] += 1
            seen["most"] = max(seen["most"], seen["at work"])
            seen["calls"].append((worker.recipe["name"], do))
            if do == "trace":
                seen["beside a trace"] = max(seen["beside a trace"], seen["at work"] - 1)
            number = len(seen["calls"])
            if number >= seen.get("alone", 0) + 3:
                begun.set()
        try:
            if number > seen.get("alone", number):  # the other two may take long to start on a busy machine
                begun.wait(120)
            time.sleep(0.03)
            first = seen["calls"].count(("big", "parity")) == 1
            if first and (do, worker.recipe["name"]) == ("parity", "big"):
                raise WorkerFailure("oom", "out of memory in parity")
            return real(worker, do, **fields)
        finally:
            with lock:
                if do == "trace":
                    seen["beside a trace"] = max(seen["beside a trace"], seen["at work"] - 1)
                seen["at work"] -= 1

    monkeypatch.setattr(Worker, "call", call)
    return seen


@pytest.fixture(params=["small", "large"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A workload whose first inspector is alone, as its reference needs the memory; or one that is small."""
    if request.param == "large":
        monkeypatch.setattr(measure, "SMALL_PIXELS", -1)
    return request.param == "large"


def test_inspectors_work_side_by_side_but_for_the_trace(lanes: dict, large: bool, tmp_path: Path) -> None:
    rungs = {name: {} for name in "abcdefg"} | {"bad": {"receipts": "off"}, "wrong": {"parity": "wrong"}}
    lanes["alone"] = 4 if large else 0  # calls of the inspector that is alone
    result = run(tmp_path / "out", rungs, inspect=True)
    assert lanes["most"] == 3 and lanes["beside a trace"] == 0
    inspections = [name for name, do in lanes["calls"] if do == "parity"]
    assert sorted(inspections) == sorted(rungs)  # once each
    first = [("a", do) for do in ("prepare", "parity", "trace", "receipts")] if large else None
    assert first in (lanes["calls"][:4], None)  # a large workload's first is alone
    assert large or {do for _, do in lanes["calls"][:3]} == {"prepare"}
    found = by_name(result)
    assert {name for name in rungs if found[name]["status"] == "ok"} == set("abcdefg")
    assert (found["bad"]["status"], found["wrong"]["status"]) == ("not engaged", "failed: parity")
    assert stored(tmp_path / "out") == result and result["complete"]


def test_what_runs_out_of_memory_beside_others_is_inspected_again_alone(lanes: dict, tmp_path: Path) -> None:
    result = run(tmp_path / "out", {"a": {}, "big": {}, "b": {}}, inspect=True)
    assert by_name(result)["big"]["status"] == "ok" and known(by_name(result)["big"]["parity"]) == known(OK)
    assert lanes["calls"].count(("big", "parity")) == 2
