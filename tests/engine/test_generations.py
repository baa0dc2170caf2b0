"""Generations: who is prepared and timed when, what becomes of failures, and what follows the last timed cycle."""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ladder.core.records import read_record, write_whole
from ladder.engine import rounds
from ladder.engine import run as measure
from ladder.engine.outcomes import Program
from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.engine.rounds import Interleaved
from ladder.machine import system
from ladder.plan import modes
from ladder.results.file import KernelProfile
from tests.support import servers
from tests.support.fake_runs import FAKE, WORKLOAD, by_name, run, stored

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
GIB = 2**30


def make_program(name: str, **more: Any) -> Program:
    return Program(
        **{"name": name, "rung": name, "side": name, "workload": {}, "recipe": {}, "code": None} | more
    )


class Calls(list[tuple[str, str, int, int]]):
    """(rung, command, begin, end) of every prepare and timed cycle, on one count."""

    meet: threading.Barrier | None = None  # where prepares wait for one another, however busy the machine is

    def of(self, *what: str) -> list[tuple[str, str, int, int]]:
        return [each for each in self if each[:2] == what]

    def count_beside(self, one: tuple[str, str, int, int]) -> int:
        """Return how many other calls overlap this one."""
        return sum(other is not one and other[2] < one[3] and one[2] < other[3] for other in self)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls of a run.

    The first prepare of a rung named once and the first cycle of one named later run out of memory. The first prepare
    of one named killed is killed.
    """
    made = Calls()
    ticks, real, lock, begun = [0], Worker.call, threading.Lock(), set[tuple[str, str]]()

    def tick() -> int:
        with lock:
            ticks[0] += 1
            return ticks[0]

    def call(worker: Any, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            worker.named = fields["recipe"]["name"]
        if do not in ("prepare", "cycle"):
            return real(worker, do, **fields)
        begin, first = tick(), (worker.named, do) not in begun
        begun.add((worker.named, do))
        if do == "prepare" and made.meet:
            made.meet.wait(60)
        time.sleep(0.05 if do == "prepare" else 0.01)
        try:
            if first and (worker.named, do) in (("once", "prepare"), ("later", "cycle")):
                raise WorkerFailure("oom", f"out of memory in {do}")
            if first and (worker.named, do) == ("killed", "prepare"):
                os.kill(worker.pid, signal.SIGKILL)
            return real(worker, do, **fields)
        finally:
            made.append((worker.named, do, begin, tick()))

    monkeypatch.setattr(Worker, "call", call)
    return made


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prepared at a time, also on a CPU."""
    monkeypatch.setattr(rounds, "PREPARED", {"cpu": 3})
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(system, "usable_cores", lambda: 16)


def test_all_live_together_and_one_cycle_is_timed_at_a_time(
    calls: Calls, three: None, tmp_path: Path
) -> None:
    calls.meet = threading.Barrier(3)
    result = run(tmp_path, {name: {} for name in "abcde"}, rounds=2, cycles=3)
    assert max(calls.count_beside(each) for each in calls if each[1] == "prepare") == 2
    timed = [each for each in calls if each[1] == "cycle"]
    assert all(calls.count_beside(each) == 0 for each in timed)
    # five rungs and a twin
    assert [do for _, do, _, _ in calls[: len(calls) // 2]] == ["prepare"] * 6 + ["cycle"] * 18
    passes = [tuple(name for name, *_ in timed[at : at + 6]) for at in (0, 6, 12)]
    assert len({*passes}) > 1 and {tuple(sorted(each)) for each in passes} == {("a", "a", "b", "c", "d", "e")}
    for rung in [*result["rungs"], *result["twins"]]:
        assert [each["passes"] for each in rung["rounds"]] == [[0, 1, 2]] * 2
        assert all(len(each["samples_ms"]) == 3 and each["visit_s"] > 0 for each in rung["rounds"])
    assert result["complete"] and stored(tmp_path) == result


def test_the_order_is_a_function_of_seed_generation_and_pass() -> None:
    programs = [make_program(f"{rung}{side}", rung=rung) for rung in "abcdef" for side in "xy"]
    orders = set()
    for seed, number, turn in ((0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1)):
        made = Interleaved("cpu", cycles=1, seed=seed)
        names = [each.name for each in made.order(number, programs, turn)]
        assert names == [each.name for each in made.order(number, programs, turn)]
        assert all(names[at][0] == names[at + 1][0] for at in range(0, 12, 2))  # a rung's programs in a row
        assert sorted(names) == sorted(each.name for each in programs)
        orders.add(tuple(names))
    assert len(orders) == 4


def test_what_runs_out_of_memory_beside_others_is_tried_again_alone(
    calls: Calls, three: None, tmp_path: Path
) -> None:
    """The same for one that was killed: the system may have run out of memory for them all."""
    names = ["baseline", "once", "later", "killed", "last"]
    rungs = by_name(run(tmp_path, {name: {} for name in names}))
    assert {name: rung["status"] for name, rung in rungs.items()} == dict.fromkeys(names, "ok")
    for what in (("once", "prepare"), ("later", "cycle"), ("killed", "prepare")):
        times = calls.of(*what)
        assert len(times) == 2 and calls.count_beside(times[1]) == 0
        assert [each["beside"] for each in rungs[what[0]]["rounds"]] == [0]


def test_a_rung_that_never_fits_or_breaks_is_out_and_the_others_go_on(calls: Calls, tmp_path: Path) -> None:
    broken = {"fault": "raise", "at": "prepare"}
    rungs = {"baseline": {}, "big": {"fault": "oom"}, "broken": broken, "last": {}}
    result = by_name(run(tmp_path, rungs, rounds=2))
    assert [result[name]["status"] for name in rungs] == ["ok", "oom", "failed", "ok"]
    assert sum(each[0] == "broken" for each in calls) == 1  # what is no matter of memory is not repeated
    assert len(result["last"]["rounds"]) == 2


def test_processes_come_in_shifts_where_memory_does_not_hold_them(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "MOST_ALIVE", 3)
    result = run(tmp_path, {name: {} for name in "abcd"}, cycles=2)
    shifts = ["prepare"] * 3 + ["cycle"] * 6 + ["prepare"] * 2 + ["cycle"] * 4
    assert [do for _, do, _, _ in calls] == shifts
    assert all(len(rung["rounds"]) == 1 for rung in [*result["rungs"], *result["twins"]])


@pytest.mark.parametrize(
    ("memory", "peaks", "more", "fits"),
    [
        (80, {}, "a", True),  # alone in any case
        (16, {"a": 15}, "a", True),
        (80, {"a": 9}, "ab", True),
        (80, {"a": 9}, "abcde", True),
        (80, {"a": 9}, "abcdefg", False),  # what is not known yet may take as much
        (80, {"a": 9, "b": 40}, "ab", True),
        (80, {"a": 27, "b": 40}, "ab", False),
    ],
)
def test_how_many_fit_depends_on_the_memory_that_was_seen(
    memory: float, peaks: dict[str, int], more: str, fits: bool
) -> None:
    made = Interleaved("cpu", cycles=1, seed=0)
    made.device, made.memory = "cuda", memory * GIB
    made.peaks = {name: peak * GIB for name, peak in peaks.items()}
    assert made._fits([], *map(make_program, more)) is fits


def test_whoever_stops_in_the_middle_leaves_no_worker() -> None:
    made = Interleaved("cpu", cycles=1, seed=0, torch=False)
    programs = [make_program(name, workload=WORKLOAD, recipe={"name": name}, code=FAKE) for name in "abc"]
    with contextlib.closing(made), contextlib.closing(made.round(0, programs)) as outcomes:
        next(outcomes)
        (pool,) = made._pools.values()
        taken = [*pool._taken]
    assert taken and all(worker.ended for worker in taken)


# --- what follows the last timed cycle ---


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str]]]:
    """answer(command=function of the worker and the fields): the list that gets (rung, command) of every call."""

    def replace(**answers: Callable[..., dict[str, Any]]) -> list[tuple[str, str]]:
        asked: list[tuple[str, str]] = []
        real = Worker.call

        def call(worker: Any, do: str, **fields: Any) -> dict[str, Any]:
            if do == "build":
                worker.named = fields["recipe"]["name"]
            asked.append((worker.named, f"{do} {fields['part']}" if "part" in fields else do))
            if fields.get("part") == "load":
                return {}
            return answers[do](worker, **fields) if do in answers else real(worker, do, **fields)

        monkeypatch.setattr(Worker, "call", call)
        return asked

    return replace


def profiled(gpu_ms: float = 0.01, kernels: tuple[float, float] = (9.0, 9.0)) -> dict[str, Any]:
    cycles = [{"gpu_ms": gpu_ms, "wall_ms": 1.0, "kernels": count} for count in kernels]
    row = {"name": "elementwise", "ms": gpu_ms, "launches": kernels[0]}
    void = None if kernels[0] == kernels[1] else "profiled cycles launched 9 and 8 kernels"
    return {"cycles": cycles, "profile": {"families": [row], "kernels": [row]}, "gpu_void": void}


def test_every_timed_cycle_comes_before_the_first_profiled_one(tmp_path: Path, answer: Any) -> None:
    asked = answer(profile=lambda worker, **_: profiled())
    result = run(tmp_path, {"a": {}, "b": {}}, cycles=2, rounds=2)
    generation = [do for _, do in asked[: len(asked) // 2]]
    first = next(at for at, do in enumerate(generation) if do.startswith("profile"))
    assert not {"cycle", "finish"} & {*generation[first:]}
    assert generation.count("profile record") == 3
    rung = by_name(result)["a"]
    assert [len(each["profiled"]) for each in rung["rounds"]] == [2, 2] and not rung["rounds"][0]["gpu_void"]
    assert rung["profile"] == write_whole(read_record(KernelProfile, profiled()["profile"]))
    assert stored(tmp_path) == result


def test_profiled_cycles_that_do_not_count_are_recorded_once_more(tmp_path: Path, answer: Any) -> None:
    """A GPU at its power limit may be slower for a while: the second recording stands, whatever it says."""
    void = profiled(kernels=(9.0, 8.0))
    replies = {"a": [void, profiled(0.02)], "b": [void, void]}
    left: dict[tuple[int, str], list[Any]] = {}

    def record(worker: Any, **_: Any) -> dict[str, Any]:
        return left.setdefault((id(worker), worker.named), list(replies[worker.named])).pop(0)

    asked = answer(profile=record)
    rungs = by_name(run(tmp_path, {"a": {}, "b": {}}, rounds=1))
    (first,), (other,) = rungs["a"]["rounds"], rungs["b"]["rounds"]
    assert [each["gpu_ms"] for each in first["profiled"]] == [0.02, 0.02] and first["gpu_void"] is None
    assert other["gpu_void"] == void["gpu_void"]
    assert asked.count(("b", "profile record")) >= 2 and rungs["b"]["step_ms"]


def test_each_process_of_mistakes_is_profiled_for_one_short_cycle_and_judged_by_it(
    tmp_path: Path, answer: Any
) -> None:
    """Three generations of the entries and of the twin: so the GPU's work gets a verdict, too."""
    work, asked = {"clean": 65.0, "slow": 72.0, "waits": 65.0}, []

    def record(worker: Any, part: str, cycles: int, **_: Any) -> dict[str, Any]:
        asked.append((worker.named, part, cycles))
        gpu_ms = work[worker.named] + len(asked) / 1000
        return {"cycles": [{"gpu_ms": gpu_ms, "wall_ms": 170.0, "kernels": 3044.0}], "gpu_void": None}

    answer(profile=record)
    result = run(tmp_path, {name: {} for name in work}, rounds=3, mode=modes.MISTAKES)
    assert Counter(asked) == {(name, "kinds", 1): 6 if name == "clean" else 3 for name in work}
    slow, waits = (by_name(result)[name] for name in ("slow", "waits"))
    assert slow["gpu_verdict"] == "slower" and waits["gpu_verdict"] == "less than"
    assert slow["gpu_gain"]["against"] == "clean" and len(slow["gpu_gain"]["interval"]) == 2
    assert all(len(each["profiled"]) == 1 for rung in result["twins"] for each in rung["rounds"])
    assert stored(tmp_path) == result


@pytest.mark.parametrize(
    ("reply", "status"),
    [({"did": "profile"}, "ok"), ({"signal": "SIGSEGV"}, "failed")],
    ids=["says so", "dies"],
)
def test_a_profiler_that_fails_leaves_the_wall_time_of_a_process_that_lives_on(
    tmp_path: Path, answer: Any, reply: dict[str, Any], status: str
) -> None:
    def record(worker: Any, **_: Any) -> dict[str, Any]:
        if worker.named == "b":
            raise WorkerFailure("failed", "profile: RuntimeError: no CUPTI", reply)
        return profiled()

    answer(profile=record)
    result = run(tmp_path, {"a": {}, "b": {}}, rounds=2)
    rung = by_name(result)["b"]
    assert rung["status"] == status and by_name(result)["a"]["gpu_ms"]
    if status == "ok":
        assert rung["step_ms"] and rung["gpu_ms"] is None and len(rung["rounds"]) == 2
        assert "GPU time void in generation 1, 2: profile: RuntimeError: no CUPTI" in rung["notes"]
    assert stored(tmp_path) == result


def test_a_process_that_was_profiled_refuses_to_be_timed() -> None:
    with Pool(code=FAKE, torch=False) as workers:
        worker = workers.take()
        worker.call("build", workload={}, recipe={}, device="cpu", seed=0)
        worker.call("begin")
        worker.call("cycle")
        worker.call("profile", part="load")
        for do, how in (("cycle", {}), ("finish", {"main": True})):
            with pytest.raises(WorkerFailure, match="never timed again"):
                worker.call(do, **how)


def test_a_step_that_computes_something_else_after_timing_loses_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(measure._Run, "inspect_all", lambda self, pool: None)
    problems = {"b": "G_main update: error 1, budget 0.02"}
    asked = answer(prove=lambda worker, **_: {"problem": problems.get(worker.named)})
    rungs = by_name(run(tmp_path, {"a": {}, "b": {}, "c": {}}, rounds=2, inspect=True))
    assert rungs["b"]["status"] == "failed: parity" and rungs["b"]["step_ms"] is None
    assert rungs["b"]["reason"] == f"after timing: {problems['b']}"
    assert rungs["a"]["rounds"][0]["after"] == "ok" and asked.count(("b", "prove")) == 1
    stored(tmp_path)
