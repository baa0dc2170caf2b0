"""Programs of two commits prepared side by side and timed one after another, and what becomes of failures."""

import contextlib
import itertools
from typing import Any

import pytest

from ladder.engine import run as measure
from ladder.engine.pool import Worker
from ladder.engine.rounds import Interleaved, Program
from ladder.machine import system
from tests.engine.test_sidebyside import calls  # noqa: F401  (a fixture)
from tests.support.fake_runs import FAKE, WORKLOAD

GIB = 2**30


def programs(*names: str, **recipe: Any) -> list[Program]:
    return [Program(name, "top", name, WORKLOAD, {"name": name, **recipe}, FAKE) for name in names]


@pytest.fixture
def rounds() -> Any:
    made = Interleaved("cpu", cycles=1, seed=0, settle=False, torch=False)
    with contextlib.closing(made):
        yield made


def test_three_are_prepared_at_a_time_and_each_is_timed_alone(
    calls: list,  # noqa: F811
    rounds: Interleaved,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that ran out of memory beside others is visited again alone."""
    monkeypatch.setattr(Interleaved, "_lanes", lambda self, left: min(3, len(left)))
    seen = {each.program.name: each for each in rounds.round(0, programs("a", "b", "once", "later", "e"))}
    assert {each.status for each in seen.values()} == {"ok"} and len(seen) == 5
    beside = {name: each.round["beside"] for name, each in seen.items()}
    assert beside == {"a": 2, "b": 2, "later": 0, "e": 0, "once": 0}
    visits = [each for each in calls if each[1] == "visit"]
    for name, do, begin, end in visits:
        others = [each for each in calls if each != (name, do, begin, end)]
        assert not [each for each in others if each[2] < end and each[3] > begin], name
    prepares = [each for each in calls if each[1] == "prepare"]
    assert any(a[2] < b[3] and b[2] < a[3] for a, b in itertools.combinations(prepares, 2))


def test_what_fails_by_its_own_fault_is_told_once(
    rounds: Interleaved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interleaved, "_lanes", lambda self, left: len(left))
    wrong = programs("wrong", fault="raise", at="prepare")
    seen = [*rounds.round(0, [*programs("a", "b"), *wrong])]
    assert {each.program.name: each.status for each in seen} == {"a": "ok", "b": "ok", "wrong": "failed"}


def test_how_many_depends_on_memory_and_on_what_must_be_alone(
    rounds: Interleaved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "PREPARED", {"cpu": 6})
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    rounds.memory = 80.0 * GIB
    some = programs(*"abcdefgh")
    assert rounds._lanes(some) == 1  # nobody knows yet what one needs
    rounds._accepted["a"] = [{"peak_reserved_bytes": 9 * GIB}]
    assert rounds._lanes(some) == 4 and rounds._lanes(some[:2]) == 2
    chooses = programs("x", cudnn_benchmark=True)
    assert rounds._lanes([*some[:2], *chooses, *some]) == 2 and rounds._lanes([*chooses, *some]) == 1


def test_side_by_side_each_has_its_share_of_the_cores(
    rounds: Interleaved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "usable_cores", lambda: 16)
    held, real = [], Worker.call

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        held.extend([fields.get("threads")] * (do == "build"))
        return real(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    assert all(each.status == "ok" for each in rounds.round(0, programs("a")))
    monkeypatch.setattr(Interleaved, "_lanes", lambda self, left: len(left))
    assert all(each.status == "ok" for each in rounds.round(1, programs("a", "b", "c")))
    assert held == [None, 5, 5, 5]


def test_whoever_stops_in_the_middle_leaves_no_worker(
    rounds: Interleaved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interleaved, "_lanes", lambda self, left: len(left))
    with contextlib.closing(rounds.round(0, programs("a", "b", "c"))) as visits:
        next(visits)
    (pool,) = rounds._pools.values()
    assert pool._taken and all(worker.ended for worker in pool._taken)
