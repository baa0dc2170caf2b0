"""Rungs prepared side by side and timed one after another: who is at work when, and what becomes of failures."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.engine import inspection, pool
from ladder.engine import lanes as sidebyside
from ladder.engine import run as measure
from ladder.engine.pool import Worker, WorkerFailure
from ladder.machine import system
from tests.support.fake_runs import FAKE, WORKLOAD, Ladder, Planned, alive, by_name, run, stored

GIB = 2**30


held: dict[str, list[int | None]] = {}  # by rung: the threads that each of its processes may compute with


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, int, int]]]:
    """Three prepared at a time, also on a CPU. (rung, call, begin, end) of every prepare and visit, on one count.

    The first prepare of a rung named once and the first visit of one named later run out of memory.
    """
    monkeypatch.setattr(measure, "PREPARED", {"cpu": 3})
    monkeypatch.setattr(measure._Run, "lanes", lambda run: 3)
    monkeypatch.setattr(system, "usable_cores", lambda: 16)
    held.clear()
    made, ticks, real, lock = [], [0], Worker.call, threading.Lock()
    started: list[Worker] = []
    busy: list[Worker] = []

    def tick() -> int:
        with lock:
            ticks[0] += 1
            return ticks[0]

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "visit":
            busy.extend(other for other in started if not other._imported and not other.ended)
        if do == "build":
            worker.named = fields["recipe"]["name"]
            held.setdefault(worker.named, []).append(fields.get("threads"))
        if do not in ("prepare", "visit"):
            return real(worker, do, **fields)
        begin = tick()
        time.sleep(0.05)
        first = (worker.named, do) not in [each[:2] for each in made]
        try:
            if first and (worker.named, do) in (("once", "prepare"), ("later", "visit")):
                raise WorkerFailure("oom", f"out of memory in {do}")
            return real(worker, do, **fields)
        finally:
            made.append((worker.named, do, begin, tick()))

    def start(worker: Worker, **how: Any) -> None:
        init(worker, **how)
        started.append(worker)

    init = Worker.__init__
    monkeypatch.setattr(Worker, "__init__", start)
    monkeypatch.setattr(Worker, "call", call)
    yield made
    assert not busy, "a worker imported while another was timed"


def at_work(calls: list[tuple[str, str, int, int]], one: tuple[str, str, int, int]) -> int:
    """How many other calls overlap this one."""
    return sum(other is not one and other[2] < one[3] and one[2] < other[3] for other in calls)


def test_preparing_overlaps_and_timing_is_alone(calls: list, tmp_path: Path) -> None:
    result = run(tmp_path, {name: {} for name in "abcdefg"}, rounds=2)
    assert max(at_work(calls, each) for each in calls if each[1] == "prepare") == 2
    assert all(at_work(calls, each) == 0 for each in calls if each[1] == "visit")
    visits = [name for name, do, _, _ in calls if do == "visit"]
    assert len(visits) == 2 * (7 + len(result["twins"]))
    assert all(len(rung["rounds"]) == 2 and rung["status"] == "ok" for rung in result["rungs"])
    assert {each["beside"] for rung in result["rungs"] for each in rung["rounds"]} <= {0, 1, 2}
    assert any(each["beside"] == 2 for rung in result["rungs"] for each in rung["rounds"])
    assert result["complete"] and stored(tmp_path) == result


def test_what_is_prepared_beside_others_has_its_share_of_the_cores(calls: list, tmp_path: Path) -> None:
    run(tmp_path, {name: {} for name in ("baseline", "once", "b", "c", "d", "e")})
    shares = [each for name in held if name != "once" for each in held[name]]
    assert set(shares) <= {16 // 3, 16 // 2, None} and shares.count(16 // 3) >= 3
    assert held["once"][-1] is None  # alone, it has all


def test_timed_processes_end_together_when_nobody_is_timed(
    calls: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, close = [], Worker.close

    def closing(worker: Worker) -> None:
        if not worker.ended:
            ends.append(sum(do == "visit" for _, do, _, _ in calls))
        close(worker)

    monkeypatch.setattr(Worker, "close", closing)
    result = run(tmp_path, {name: {} for name in "abcdefg"})
    assert len(result["twins"]) == 1 and sorted(ends) == [3] * 3 + [6] * 3 + [8] * 2


def test_visits_keep_the_order_that_the_seed_gives(
    calls: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "side", {name: {} for name in "abcdefg"}, seed=3)
    beside = [name for name, do, _, _ in calls if do == "visit"]
    calls.clear()
    monkeypatch.setattr(measure._Run, "lanes", lambda run: 1)
    run(tmp_path / "alone", {name: {} for name in "abcdefg"}, seed=3)
    assert beside == [name for name, do, _, _ in calls if do == "visit"]


def test_what_runs_out_of_memory_beside_others_is_tried_again_alone(calls: list, tmp_path: Path) -> None:
    result = run(tmp_path, {name: {} for name in ("baseline", "once", "later", "last", "more")})
    found = by_name(result)
    assert {name: found[name]["status"] for name in found} == dict.fromkeys(found, "ok")
    for name, do in (("once", "prepare"), ("later", "visit")):
        times = [each for each in calls if each[:2] == (name, do)]
        assert len(times) == 2 and at_work(calls, times[1]) == 0
    assert all(len(rung["rounds"]) == 1 for rung in found.values())
    assert found["once"]["rounds"][0]["beside"] == found["later"]["rounds"][0]["beside"] == 0


def test_a_rung_that_never_fits_or_breaks_is_out_and_the_others_go_on(calls: list, tmp_path: Path) -> None:
    rungs = {
        "baseline": {},
        "big": {"fault": "oom"},
        "broken": {"fault": "raise", "at": "prepare"},
        "last": {},
    }
    found = by_name(run(tmp_path, rungs, rounds=2))
    assert [found[name]["status"] for name in rungs] == ["ok", "oom", "failed", "ok"]
    assert (
        len([each for each in calls if each[0] == "broken"]) == 1
    )  # what is no matter of memory is not repeated
    assert len(found["last"]["rounds"]) == 2


def test_what_chooses_by_measuring_is_prepared_alone(calls: list, tmp_path: Path) -> None:
    rungs = {name: {} for name in "abc"} | {"tuned": {"cudnn_benchmark": True}}
    rungs |= {"compiled": {"compile": "max-autotune"}, "z": {}}
    run(tmp_path, rungs, rounds=2)
    for each in calls:
        if each[0] in ("tuned", "compiled"):
            assert at_work(calls, each) == 0
    assert sum(each[:2] == ("tuned", "visit") for each in calls) == 2


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_rungs_are_prepared_tells_nothing_of_them(
    calls: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: signal.Signals
) -> None:
    """Those that were ended keep their numbers, and the run can be taken up."""
    workers, prepare = [], sidebyside._prepare_one

    def prepare_one(run: Any, pool: Any, name: str, number: int, *more: Any) -> None:
        if number == 1 and not workers:
            workers.extend(pool._taken)
            threading.Timer(0.4, os.kill, (os.getpid(), sign)).start()
        prepare(run, pool, name, number, *more)

    monkeypatch.setattr(sidebyside, "_prepare_one", prepare_one)
    rungs = {name: {"prepare": 1.2} for name in "abc"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
    try:
        result = run(tmp_path, rungs, rounds=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not result["complete"] and stored(tmp_path) == result
    assert {(rung["status"], len(rung["rounds"])) for rung in result["rungs"]} == {("ok", 1)}
    assert not any(alive(worker.pid) for worker in workers)
    (path,) = tmp_path.glob("*/*.json")
    again = run(tmp_path, rungs, rounds=2, resume=path)
    assert again["complete"] and all(len(rung["rounds"]) == 2 for rung in again["rungs"])


def test_who_was_killed_beside_others_is_tried_again_alone(
    calls: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have run out of memory for them all."""
    patched, killed = Worker.call, []

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "prepare" and worker.named == "big" and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return patched(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    result = run(tmp_path, {name: {} for name in ("a", "big", "b")})
    assert killed and {rung["status"] for rung in result["rungs"]} == {"ok"}
    assert [each["beside"] for each in by_name(result)["big"]["rounds"]] == [0]


def test_what_depends_on_one_that_failed_beside_it_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "PREPARED", {"cpu": 6})
    monkeypatch.setattr(measure._Run, "lanes", lambda run: 6)
    recipes = {"a": {}, "b": {"capacity": 1}, "c": {"capacity": 1, "sleep": 0.002}, "d": {"sleep": 0.001}}
    real, failed, visited = Worker.call, threading.Event(), []

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            worker.recipe = fields["recipe"]
        if do == "prepare" and worker.recipe == {"capacity": 1}:
            threading.Timer(0.2, failed.set).start()
            raise WorkerFailure("failed", "broken")
        if do == "prepare" and worker.recipe == recipes["c"]:
            failed.wait(10)
        if do == "visit":
            visited.append(worker.recipe)
        return real(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    plan = [Planned(name, recipe) for name, recipe in recipes.items()]
    result = measure.run_ladder(WORKLOAD, "fake", Ladder(), plan, "cpu", out=tmp_path, code=FAKE, rounds=1)
    assert {name: rung["status"] for name, rung in by_name(result).items()} == {
        "a": "ok",
        "b": "failed",
        "c": "skipped",
        "d": "ok",
    }
    assert recipes["c"] not in visited and recipes["d"] in visited


def test_an_interrupt_while_jobs_are_handed_out_stops_those_that_run() -> None:
    stopped = threading.Event()

    def jobs() -> Iterator[Any]:
        yield lambda: stopped.wait(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sidebyside.each(jobs(), 2, stopped.set)
    assert stopped.is_set()


def test_what_an_inspector_found_waits_for_the_file_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """New keys in a record while another thread writes it would end the run."""
    found = {"parity": {}, "receipts": {}, "inspection": {}}
    monkeypatch.setattr(inspection, "inspect", lambda *_: found)
    monkeypatch.setattr(measure._Run, "__init__", lambda self: None)
    a_run, rung = measure._Run(), {"name": "a"}
    a_run.lock, a_run.recipes = threading.RLock(), {"a": {}}
    a_run.seen = type("Seen", (), {"put": lambda *_: None})()
    thread = threading.Thread(target=a_run.inspect, args=(None, rung))
    with a_run.lock:
        thread.start()
        thread.join(0.2)
        assert rung == {"name": "a"}
    thread.join()
    assert rung == {"name": "a"} | found


@pytest.mark.parametrize(
    ("memory", "cores", "peaks", "lanes"),
    [
        (140, 16, [], 1),  # nothing is known yet
        (140, 16, [3 * GIB, 9 * GIB], 6),
        (24, 16, [3 * GIB], 3),
        (24, 16, [11 * GIB], 1),
        (16, 16, [15 * GIB], 1),
        (140, 4, [3 * GIB], 2),
        (140, 1, [3 * GIB], 1),
    ],
)
def test_how_many_fit(memory: float, cores: int, peaks: list[int], lanes: int) -> None:
    assert sidebyside.fitting(6, memory * GIB, cores, peaks) == lanes


def test_what_tunes_while_it_prepares_may_be_silent_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, real = {}, Worker.call

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            worker.named = fields["recipe"]["name"]
        if do == "prepare":
            seen[worker.named] = fields.get("patience", 0) > pool.TIMEOUTS["prepare"]
        return real(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    result = run(tmp_path, {"plain": {}, "tuned": {"compile": "max-autotune"}})
    assert seen == {"plain": False, "tuned": True} and result["complete"]
