"""The end of a generation: profiles, the proof of the timed step, and the next server."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ladder.core.records import read_record, write_whole
from ladder.engine import pool
from ladder.engine import run as measure
from ladder.engine.gpu_time import find_excess
from ladder.engine.pool import Worker, WorkerFailure
from ladder.plan import modes
from ladder.results.file import KernelProfile
from tests.support.fake_runs import FAKE, by_name, run, stored


def commands(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> list[tuple[str, str]]:
    """Answer commands of workers in their place. Return the list that gets (rung, command)."""
    seen: list[tuple[str, str]] = []
    real = Worker.call

    def call(worker: Any, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            worker.named = fields["recipe"]["name"]
        part = fields.get("part")
        seen.append((worker.named, f"{do} {part}" if part else do))
        if do in answers:
            found = answers[do]
            return found(worker, **fields) if callable(found) else found
        return real(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    return seen


def profiled(gpu_ms: float = 0.01, kernels: tuple[float, float] = (9.0, 9.0)) -> dict[str, Any]:
    cycles = [{"gpu_ms": gpu_ms, "wall_ms": 1.0, "kernels": count} for count in kernels]
    row = {"name": "elementwise", "ms": gpu_ms, "launches": kernels[0]}
    return {"cycles": cycles, "profile": {"families": [row], "kernels": [row]}, "gpu_void": None}


def test_every_timed_cycle_comes_before_the_first_profiled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = profiled()
    seen = commands(monkeypatch, {"profile": lambda worker, part, **_: said if part == "record" else {}})
    result = run(tmp_path, {"a": {}, "b": {}}, cycles=2, rounds=2)
    generation = [do for _, do in seen[: len(seen) // 2]]
    first = next(at for at, do in enumerate(generation) if do.startswith("profile"))
    assert not {"cycle", "finish"} & {*generation[first:]}
    assert generation.count("profile record") == 3
    rung = by_name(result)["a"]
    assert [len(each["profiled"]) for each in rung["rounds"]] == [2, 2] and rung["rounds"][0][
        "gpu_void"
    ] is None
    assert (
        rung["profile"] == write_whole(read_record(KernelProfile, said["profile"]))
        and stored(tmp_path) == result
    )


def test_profiled_cycles_that_do_not_count_are_recorded_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU at its power limit may be slower for a while: the second recording stands, whatever it says."""
    said = {"a": [profiled(kernels=(9.0, 8.0)), profiled(0.02)], "b": [profiled(kernels=(9.0, 8.0))] * 2}
    left: dict[tuple[int, str], list[Any]] = {}

    def record(worker: Worker, part: str, **_: Any) -> dict[str, Any]:
        if part == "load":
            return {}
        found = left.setdefault((id(worker), worker.named), list(said[worker.named])).pop(0)
        different = len({each["kernels"] for each in found["cycles"]}) > 1
        return found | {"gpu_void": "profiled cycles launched 9 and 8 kernels" if different else None}

    seen = commands(monkeypatch, {"profile": record})
    found = by_name(run(tmp_path, {"a": {}, "b": {}}, rounds=1))
    assert [each["gpu_ms"] for each in found["a"]["rounds"][0]["profiled"]] == [0.02, 0.02]
    assert found["a"]["rounds"][0]["gpu_void"] is None
    assert found["b"]["rounds"][0]["gpu_void"] == "profiled cycles launched 9 and 8 kernels"
    assert seen.count(("b", "profile record")) >= 2 and found["b"]["step_ms"]


def test_each_process_of_mistakes_is_profiled_for_one_short_cycle_and_judged_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three generations of the entries and of the twin: so the GPU's work gets a verdict, too."""
    work, asked = {"clean": 65.0, "slow": 72.0, "waits": 65.0}, []

    def answer(worker: Worker, part: str, cycles: int = 0, **_: Any) -> dict[str, Any]:
        if part == "load":
            return {}
        asked.append((worker.named, part, cycles))  # type: ignore[attr-defined]
        cycle = {"gpu_ms": work[worker.named] + len(asked) / 1000, "wall_ms": 170.0, "kernels": 3044.0}  # type: ignore[attr-defined]
        return {"cycles": [cycle], "gpu_void": None}

    commands(monkeypatch, {"profile": answer})
    result = run(tmp_path, {name: {} for name in work}, rounds=3, mode=modes.MISTAKES)
    assert Counter(asked) == {(name, "kinds", 1): 6 if name == "clean" else 3 for name in work}
    found = by_name(result)
    assert found["slow"]["gpu_verdict"] == "slower" and found["waits"]["gpu_verdict"] == "less than"
    assert found["slow"]["gpu_gain"]["against"] == "clean" and len(found["slow"]["gpu_gain"]["interval"]) == 2
    assert all(len(each["profiled"]) == 1 for rung in result["twins"] for each in rung["rounds"])
    assert stored(tmp_path) == result


@pytest.mark.parametrize(
    ("reply", "status"),
    [({"did": "profile"}, "ok"), ({"signal": "SIGSEGV"}, "failed")],
    ids=["says so", "dies"],
)
def test_a_profiler_that_fails_leaves_the_wall_time_of_a_process_that_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any], status: str
) -> None:
    def fails(worker: Worker, part: str, **_: Any) -> dict[str, Any]:
        if part == "record" and worker.named == "b":
            raise WorkerFailure("failed", "profile: RuntimeError: no CUPTI", reply)
        return profiled() if part == "record" else {}

    commands(monkeypatch, {"profile": fails})
    result = run(tmp_path, {"a": {}, "b": {}}, rounds=2)
    found = by_name(result)["b"]
    assert found["status"] == status and by_name(result)["a"]["gpu_ms"]
    if status == "ok":
        assert found["step_ms"] and found["gpu_ms"] is None and len(found["rounds"]) == 2
        assert "GPU time void in generation 1, 2: profile: RuntimeError: no CUPTI" in found["notes"]
    assert stored(tmp_path) == result


def test_a_process_that_was_profiled_refuses_to_be_timed() -> None:
    with pool.Pool(code=FAKE, torch=False) as workers:
        worker = workers.take()
        worker.call("build", workload={}, recipe={}, device="cpu", seed=0)
        worker.call("begin")
        worker.call("cycle")
        worker.call("profile", part="load")
        for do, how in (("cycle", {}), ("finish", {"main": True})):
            with pytest.raises(WorkerFailure, match="never timed again"):
                worker.call(do, **how)


@pytest.mark.parametrize(
    ("cycles", "samples", "captured", "why"),
    [
        (None, [0.1], True, None),
        ([{"gpu_ms": 100.9, "kernels": 3000.0}] * 2, [0.1], True, None),
        ([{"gpu_ms": 101.2, "kernels": 3000.0}] * 2, [0.1], True, "GPU time of 101.2 ms in a step of 100 ms"),
        (
            [{"gpu_ms": 101.2, "kernels": 0.0, "sm_mhz": 1680.0}, {"gpu_ms": 101.2, "sm_mhz": 1700}],
            [0.1],
            True,
            "GPU time of 101.2 ms (profiled at 1690 MHz) in a step of 100 ms",
        ),
        (
            [{"gpu_ms": 101.2, "kernels": 3000.0}] * 2,
            [0.1],
            False,
            None,
        ),  # an eager step's wall time is the host's
    ],
)
def test_a_captured_step_cannot_work_longer_than_it_takes(
    cycles: Any, samples: list[float], captured: bool, why: str | None
) -> None:
    assert find_excess(cycles, samples, captured) == why


def test_a_step_that_computes_something_else_after_timing_loses_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure._Run, "inspect_all", lambda self, pool: None)
    problems = {"b": "G_main update: error 1, budget 0.02"}
    seen = commands(monkeypatch, {"prove": lambda worker: {"problem": problems.get(worker.named)}})
    result = run(tmp_path, {"a": {}, "b": {}, "c": {}}, rounds=2, inspect=True)
    found = by_name(result)
    assert (found["b"]["status"], found["b"]["reason"]) == (
        "failed: parity",
        "after timing: G_main update: error 1, budget 0.02",
    )
    assert found["b"]["step_ms"] is None and found["a"]["rounds"][0]["after"] == "ok"
    assert [do for name, do in seen if name == "b"].count("prove") == 1
    stored(tmp_path)
