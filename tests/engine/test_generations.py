"""Generations: who is prepared and timed when, what becomes of failures, and what follows the last timed cycle."""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.engine import lanes, rounds
from ladder.engine.outcomes import Program
from ladder.engine.pool import Worker, WorkerFailure
from ladder.engine.rounds import Interleaved
from ladder.machine import system
from tests.support import servers
from tests.support.fake_runs import FAKE, WORKLOAD, by_name, run, stored

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
GIB = 2**30


class Calls(list[tuple[str, str, int, int]]):
    """(rung, command, begin, end) of every prepare and timed cycle, on one count."""

    meet: threading.Barrier | None = None  # where prepares wait for one another, however busy the machine is


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """The calls of a run.

    The first prepare of a rung named once and the first cycle of one named later run out of memory.
    """
    made = Calls()
    ticks, real, lock = [0], Worker.call, threading.Lock()

    def tick() -> int:
        with lock:
            ticks[0] += 1
            return ticks[0]

    def call(worker: Any, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            worker.named = fields["recipe"]["name"]
        if do not in ("prepare", "cycle"):
            return real(worker, do, **fields)
        begin = tick()
        if do == "prepare" and made.meet:
            made.meet.wait(60)
        time.sleep(0.05 if do == "prepare" else 0.01)
        first = (worker.named, do) not in [each[:2] for each in made]
        try:
            if first and (worker.named, do) in (("once", "prepare"), ("later", "cycle")):
                raise WorkerFailure("oom", f"out of memory in {do}")
            return real(worker, do, **fields)
        finally:
            made.append((worker.named, do, begin, tick()))

    monkeypatch.setattr(Worker, "call", call)
    yield made


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prepared at a time, also on a CPU."""
    monkeypatch.setattr(rounds, "PREPARED", {"cpu": 3})
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(system, "usable_cores", lambda: 16)


def at_work(calls: Calls, one: tuple[str, str, int, int]) -> int:
    """How many other calls overlap this one."""
    return sum(other is not one and other[2] < one[3] and one[2] < other[3] for other in calls)


def test_all_live_together_and_one_cycle_is_timed_at_a_time(
    calls: Calls, three: None, tmp_path: Path
) -> None:
    calls.meet = threading.Barrier(3)
    result = run(tmp_path, {name: {} for name in "abcde"}, rounds=2, cycles=3)
    assert max(at_work(calls, each) for each in calls if each[1] == "prepare") == 2
    timed = [each for each in calls if each[1] == "cycle"]
    assert all(at_work(calls, each) == 0 for each in timed)
    first = [do for _, do, _, _ in calls[: len(calls) // 2]]
    assert first == ["prepare"] * 6 + ["cycle"] * 18  # five rungs and a twin
    whole = Counter(name for name, *_ in timed[:18])
    assert whole == {"a": 6, "b": 3, "c": 3, "d": 3, "e": 3}
    passes = [[name for name, *_ in timed[at : at + 6]] for at in (0, 6, 12)]
    assert len({tuple(each) for each in passes}) > 1 and {tuple(sorted(each)) for each in passes} == {
        ("a", "a", "b", "c", "d", "e")
    }
    for rung in [*result["rungs"], *result["twins"]]:
        assert [each["passes"] for each in rung["rounds"]] == [[0, 1, 2]] * 2
        assert all(len(each["samples_ms"]) == 3 and each["visit_s"] > 0 for each in rung["rounds"])
    assert result["complete"] and stored(tmp_path) == result


def test_the_order_is_a_function_of_seed_generation_and_pass() -> None:
    programs = [Program(f"{rung}{side}", rung, side, {}, {}, None) for rung in "abcdef" for side in "xy"]
    orders = {}
    for seed, number, turn in ((0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1)):
        made = Interleaved("cpu", cycles=1, seed=seed)
        names = [each.name for each in made.order(number, programs, turn)]
        assert names == [each.name for each in made.order(number, programs, turn)]
        assert all(names[at][0] == names[at + 1][0] for at in range(0, 12, 2))  # a rung's programs in a row
        orders[tuple(names)] = sorted(names)
    assert len(orders) == 4 and {tuple(each) for each in orders.values()} == {
        tuple(sorted(p.name for p in programs))
    }


def test_what_runs_out_of_memory_beside_others_is_tried_again_alone(
    calls: Calls, three: None, tmp_path: Path
) -> None:
    result = run(tmp_path, {name: {} for name in ("baseline", "once", "later", "last")})
    assert {name: rung["status"] for name, rung in by_name(result).items()} == dict.fromkeys(
        ("baseline", "once", "later", "last"), "ok"
    )
    for name, do in (("once", "prepare"), ("later", "cycle")):
        times = [each for each in calls if each[:2] == (name, do)]
        assert len(times) == 2 and at_work(calls, times[1]) == 0
        assert [each["beside"] for each in by_name(result)[name]["rounds"]] == [0]


def test_a_rung_that_never_fits_or_breaks_is_out_and_the_others_go_on(calls: Calls, tmp_path: Path) -> None:
    rungs = {
        "baseline": {},
        "big": {"fault": "oom"},
        "broken": {"fault": "raise", "at": "prepare"},
        "last": {},
    }
    found = by_name(run(tmp_path, rungs, rounds=2))
    assert [found[name]["status"] for name in rungs] == ["ok", "oom", "failed", "ok"]
    assert sum(each[0] == "broken" for each in calls) == 1  # what is no matter of memory is not repeated
    assert len(found["last"]["rounds"]) == 2


def test_processes_come_in_shifts_where_memory_does_not_hold_them(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MOST_ALIVE", 3)
    result = run(tmp_path, {name: {} for name in "abcd"}, cycles=2)
    assert [do for _, do, _, _ in calls] == (["prepare"] * 3 + ["cycle"] * 6) + (
        ["prepare"] * 2 + ["cycle"] * 4
    )
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
    assert made._fits([], *(Program(name, name, name, {}, {}, None) for name in more)) is fits


def test_who_was_killed_beside_others_is_tried_again_alone(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have run out of memory for them all."""
    patched, killed = Worker.call, []

    def call(worker: Any, do: str, **fields: Any) -> dict[str, Any]:
        if do == "prepare" and worker.named == "big" and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return patched(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    result = run(tmp_path, {name: {} for name in ("a", "big", "b")})
    assert killed and {rung["status"] for rung in result["rungs"]} == {"ok"}
    assert [each["beside"] for each in by_name(result)["big"]["rounds"]] == [0]


def test_whoever_stops_in_the_middle_leaves_no_worker() -> None:
    made = Interleaved("cpu", cycles=1, seed=0, torch=False)
    taken: list[Worker] = []
    with contextlib.closing(made):
        programs = [Program(name, name, name, WORKLOAD, {"name": name}, FAKE) for name in "abc"]
        with contextlib.closing(made.round(0, programs)) as outcomes:
            next(outcomes)
            (one,) = made._pools.values()
            taken += one._taken
    assert taken and all(worker.ended for worker in taken)
