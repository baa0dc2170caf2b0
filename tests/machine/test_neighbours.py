"""What other processes take of the CPU: all that it did without our own, said and marked; unknown without /proc."""

from __future__ import annotations

import os

import pytest

from ladder.core import text
from ladder.machine import neighbours
from ladder.report import view as viewing
from ladder.results import publishable, store
from tests.support import made_up
from tests.support.typed import Reading

publishable = Reading(publishable)
view = Reading(viewing).view

PID = 40


def machine(tmp_path, monkeypatch, busy: list[int], own: int, lines: str = "") -> None:
    """A /proc of two cores that were busy for so many ticks, and our tree: this process, a child, a stranger."""
    cores = [f"cpu{core} {ticks} 0 0 900 50 0 0 0 7 7" for core, ticks in enumerate(busy)]
    (tmp_path / "stat").write_text("\n".join(["cpu 1 2 3 4 5 6 7 8 9 9", *cores, lines]))
    for pid, parent, ticks in ((PID, 1, 0), (41, PID, own), (42, 41, 0), (99, 1, 5000)):
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} {'0 ' * 9}{ticks} 0 0 0 0")
    monkeypatch.setattr(neighbours, "PROC", tmp_path)
    monkeypatch.setattr(neighbours, "CGROUP", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)


def taken(tmp_path, monkeypatch, busy, own) -> float | None:
    """The window is ten seconds."""
    machine(tmp_path, monkeypatch, [1000, 1000], 500)
    before = neighbours.take_sample(0.0, PID)
    machine(tmp_path, monkeypatch, busy, own)
    return neighbours.derive_share(before, neighbours.take_sample(10.0, PID))


TICK = os.sysconf("SC_CLK_TCK")


def test_the_share_is_what_the_cores_did_without_our_own_tree(tmp_path, monkeypatch):
    """Ten seconds of two cores, of which the child took ten and others six."""
    busy = [1000 + 10 * TICK, 1000 + 6 * TICK]
    assert taken(tmp_path, monkeypatch, busy, 500 + 10 * TICK) == pytest.approx(0.3)
    assert taken(tmp_path, monkeypatch, [1000 + 10 * TICK, 1000], 500 + 10 * TICK) == 0


def test_stolen_time_is_that_of_others_and_a_guests_is_not_counted_twice(tmp_path, monkeypatch):
    machine(tmp_path, monkeypatch, [0, 0], 0)
    before = neighbours.take_sample(0.0, PID)
    (tmp_path / "stat").write_text(f"cpu0 0 0 0 900 50 0 0 {4 * TICK} 999 999\ncpu1 0 0 0 0 0 0 0 0 0 0\n")
    assert neighbours.derive_share(before, neighbours.take_sample(10.0, PID)) == pytest.approx(0.2)


def test_in_a_container_with_a_quota_what_shares_it_counts(tmp_path, monkeypatch):
    machine(tmp_path, monkeypatch, [0, 0], 0)
    monkeypatch.setattr(neighbours, "CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 0\nuser_usec 0\n")
    before = neighbours.take_sample(0.0, PID)
    (tmp_path / "cpu.stat").write_text("usage_usec 4000000\nuser_usec 0\n")
    after = neighbours.take_sample(10.0, PID)
    assert (before.cores, neighbours.derive_share(before, after)) == (1, pytest.approx(0.4))


def test_without_proc_it_is_unknown_and_no_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "PROC", tmp_path / "none")
    assert neighbours.take_sample(0.0) is None and neighbours.derive_share(None, None) is None
    assert neighbours.list_marks([{neighbours.KEY: None, "visit_s": 5.0}, {}]) == []


def test_a_proc_that_counts_nothing_is_unknown(tmp_path, monkeypatch):
    assert taken(tmp_path, monkeypatch, [1000, 1000], 500 + 10 * TICK) is None


def test_visits_count_for_as_long_as_they_took_and_a_busy_cpu_is_not_publishable():
    rounds = [{neighbours.KEY: 0.9, "visit_s": 1.0}, {neighbours.KEY: 0.1, "visit_s": 9.0}]
    assert neighbours.average_rounds(rounds) == pytest.approx(0.18)
    (line,) = neighbours.list_marks(rounds)
    assert "not publishable" in line and "18 percent" in line and "run again when idle" in line
    assert neighbours.list_marks([{neighbours.KEY: 0.15, "visit_s": 1.0}]) == []
    assert text.TEXT.fullmatch(line)


def test_a_result_of_a_busy_cpu_says_so_wherever_it_is_shown():
    result = made_up.gpu_run()
    clean = [*publishable.publishable(result), store.few("round")]  # one rung alone has rounds
    result["rungs"][0]["rounds"] = [
        {"round": number, "samples_ms": [96.4], "visit_s": 2.0, neighbours.KEY: 0.5} for number in range(3)
    ]
    (mark,) = set(publishable.publishable(result)) - set(clean)
    assert "others took 50 percent of the CPU" in mark and mark in view(result).marks
