"""`ladder precision` on a GPU: rows checked side by side and timed alone; what becomes of failures."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ladder.engine import lanes as sidebyside
from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.studies.precision import measure as measures
from ladder.studies.precision import plan as precision
from ladder.studies.precision import record
from ladder.studies.precision import run as precision_run
from ladder.studies.precision.run import Run, TimeUp
from tests.support.fake_runs import FAKE, alive, wait_for

GIB = 2**30
WORKLOAD = {"batch": 8, "mbstd_group": 4, "data": None}
PARITY = {
    "verdict": "ok",
    "problems": [],
    "reason": None,
    "phases": {"G_main": {"gradient": {"error": 0.01, "budget": 0.1, "nearest_error": 1, "nearest_budget": 2}}},
    "budget": {"factor": 2.5, "precision": "fp32", "spellings": ["as it is"], "left_out": []},
}  # fmt: skip
MEMORY = {"device_used_bytes": 9 * GIB, "peak_reserved_bytes": 4 * GIB, "peak_allocated_bytes": 3 * GIB}


class Seen:
    """What workers were asked: (row, call, begin, end) on one count."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, int]] = []
        self.started: list[Worker] = []
        self.first: dict[tuple[str, str], Any] = {}  # what the first such call of a row raises or adds
        self.ticks, self.lock = 0, threading.Lock()
        self.running: list[str] = []
        # A call that waits until another runs, which may start late.
        self.beside: tuple[str, str] | None = None
        self.paired: str | None = None  # all such calls but the first wait until two run at once
        self.two = threading.Event()

    @contextmanager
    def begun(self, name: str, do: str) -> Iterator[None]:
        """Note a call, which begins when it has the company that it waits for."""
        begin = self.tick()
        with self.lock:
            self.running.append(do)
            if self.running.count(self.paired) > 1:
                self.two.set()
        try:
            if (name, do) == self.beside and not self.of(do, name):
                wait_for(lambda: len(self.running) > 1)
            if do == self.paired and self.of(do):
                assert self.two.wait(120)
            yield
        finally:
            with self.lock:
                self.running.remove(do)
                self.calls.append((name, do, begin, self.ticks + 1))
                self.ticks += 1

    def tick(self) -> int:
        with self.lock:
            self.ticks += 1
            return self.ticks

    def of(self, do: str, name: str | None = None) -> list[tuple[str, str, int, int]]:
        return [each for each in self.calls if each[1] == do and name in (None, each[0])]

    def company(self, one: tuple[str, str, int, int]) -> int:
        """How many other calls overlap this one."""
        return sum(other is not one and other[2] < one[3] and one[2] < other[3] for other in self.calls)

    def most(self, do: str) -> int:
        """How many such calls there were at once."""
        calls = self.of(do)
        return max(sum(other[2] <= one[2] < other[3] for other in calls) for one in calls)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Workers of fake steps that pass for those of a GPU with 16 cores beside it."""
    asked, real, start = Seen(), Worker.call, Worker.__init__
    monkeypatch.setattr(os, "cpu_count", lambda: 16)

    def init(worker: Worker, *how: Any) -> None:
        start(worker, *how)
        asked.started.append(worker)

    def answer(worker: Worker, do: str, fields: dict[str, Any]) -> dict[str, Any]:
        name = worker.named
        with asked.lock:
            how = asked.first.pop((name, do), {})
        if how == "killed":
            os.kill(worker.pid, signal.SIGKILL)
            how = {}
        if isinstance(how, WorkerFailure):
            raise how
        if do == "parity":
            return {"ok": True, "did": do} | PARITY | how
        if do == "visit":
            fields |= {"settle_s": 0, "settle_cycles": 0}
            return real(worker, do, **fields) | MEMORY | how
        return real(worker, do, **fields)

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            worker.named = fields["recipe"]["name"]
            return real(worker, do, **fields | {"device": "cpu"})
        with asked.begun(worker.named, do):
            time.sleep(0.01 if do == "visit" else 0.03)
            return answer(worker, do, fields)

    monkeypatch.setattr(Worker, "__init__", init)
    monkeypatch.setattr(Worker, "call", call)
    yield asked
    assert all(asked.company(each) == 0 for each in asked.of("visit")), "something ran while a row was timed"
    assert all(worker.ended for worker in asked.started)


def rows(**recipes: dict[str, Any]) -> record.Rows:
    """All ten rows; a recipe's name is its row's, as in `top_fp32`."""
    found = []
    for base in precision.BASES:
        for name in record.NAMES:
            recipe = {"name": f"{base}_{name}"} | recipes.get(f"{base}_{name}", {})
            found.append(precision.new_row(name, base, recipe))
    return {record.title(row): row for row in found}


def measure(found: record.Rows, save: Any = lambda history: None, **how: Any) -> Any:
    how = {
        "device": "cuda",
        "rounds": 1,
        "cycles": 1,
        "memory_gib": 140.0,
        "steps": 0,
        "batch_seconds": 0,
    } | how
    workers = Pool(code=FAKE, torch=False)
    return measures.measure(precision.Plan(WORKLOAD, **how), found, lambda line: None, None, save, workers)


def by_name(found: record.Rows) -> record.Rows:
    return {row.recipe["name"]: row for row in found.values()}


def statuses(found: record.Rows) -> set[str]:
    return {row.status for row in found.values()}


def test_parity_is_checked_side_by_side_after_the_first_and_before_any_is_timed(seen: Seen) -> None:
    found = rows()
    seen.paired = "parity"
    measure(found)
    checked = seen.of("parity")
    assert len(checked) == 10 and statuses(found) == {"ok"} and all(row.parity for row in found.values())
    first = seen.of("parity", "baseline_fp32")[0]
    assert first == checked[0] and seen.company(first) == 0
    assert 2 <= seen.most("parity") <= 7
    assert max(each[3] for each in checked) < min(each[2] for each in seen.of("visit"))


def test_what_compiles_most_is_checked_first_and_what_shares_its_kernels_last(
    monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sidebyside, "inspect", lambda run, pool, names, lanes: asked.extend([*names, lanes]))
    measure(rows(), rounds=0)
    assert asked[:3] == ["FP32 on the top", "BF16 on the top", "FP16 on the top"]
    assert asked[7:] == ["TF32 on the top", "FP8 dense, BF16 on the top", 7]
    asked.clear()
    measure(rows(), rounds=0, memory_gib=45.0)
    assert asked[-1] == 2
    asked.clear()
    measure(rows(), rounds=0, memory_gib=24.0)
    assert not asked


@pytest.mark.parametrize(
    "how",
    ["killed", WorkerFailure("oom", "out of memory in parity"), WorkerFailure("invalid", "NaN")],
    ids=["killed", "oom", "invalid"],
)
@pytest.mark.parametrize("do", ["prepare", "parity"])
def test_what_fails_beside_others_is_checked_again_alone(seen: Seen, how: Any, do: str) -> None:
    found = rows()
    if how == "killed" and do == "parity":
        how = WorkerFailure("failed", "worker killed by SIGKILL", {"signal": "SIGKILL"})
    seen.first["top_bf16", do] = how
    seen.beside = "top_bf16", do
    measure(found, rounds=0)
    assert statuses(found) == {"ok"} and all(row.parity for row in found.values())
    tries = seen.of(do, "top_bf16")
    assert len(tries) == 2 and seen.company(tries[1]) == 0
    assert seen.company(tries[0])


def test_what_is_no_matter_of_memory_is_not_asked_again_nor_timed(seen: Seen) -> None:
    found = rows()
    wrong = {"verdict": "failed: parity", "reason": "G_main: error 1, budget 0.1"}
    seen.first["top_tf32", "parity"] = WorkerFailure("failed", "parity: sizes differ")
    seen.first["top_fp16", "parity"] = seen.first["baseline_fp8", "parity"] = wrong
    measure(found)
    status = {name: (row.status, len(row.rounds)) for name, row in by_name(found).items()}
    assert status["top_tf32"] == ("failed", 0) and status["top_fp16"] == ("failed: parity", 0)
    assert status["baseline_fp8"] == ("ok", 1)  # is here to be tried
    assert [getattr(by_name(found)["baseline_fp8"].parity, key) for key in wrong] == list(wrong.values())
    assert set(status.values()) == {("ok", 1), ("failed", 0), ("failed: parity", 0)}
    assert len(seen.of("parity")) == 10


def test_a_row_is_prepared_and_timed_alone_so_the_memory_in_use_is_its_own(seen: Seen) -> None:
    found = rows()
    measure(found, rounds=3, parity=False)
    for row in found.values():
        assert [(each.round, each.beside, each.device_gib) for each in row.rounds] == [
            (0, 0, 9),
            (1, 0, 9),
            (2, 0, 9),
        ]
        assert all((each.reserved_gib, each.allocated_gib) == (4, 3) for each in row.rounds)
    assert not any(map(seen.company, seen.calls))
    derived = record.derive(found.values())
    assert {(row.device_gib, row.reserved_gib) for row in derived} == {(9, 4)}
    orders = [[name for name, *_ in seen.of("visit")][10 * k : 10 * k + 10] for k in range(3)]
    assert len({tuple(order) for order in orders}) == 3


def test_rows_of_a_round_are_timed_in_the_order_of_the_seed(seen: Seen) -> None:
    for _ in range(2):
        measure(rows(), rounds=2, parity=False, seed=5)
    visits = [name for name, *_ in seen.of("visit")]
    assert visits[:20] == visits[20:]


def test_one_that_fails_for_good_is_out_and_the_others_go_on(seen: Seen) -> None:
    found = rows(top_fp32={"fault": "oom", "at": "prepare"})
    measure(found, rounds=2)
    named = by_name(found)
    assert named["top_fp32"].status == "oom" and not named.pop("top_fp32").rounds
    assert all(len(row.rounds) == 2 for row in named.values())


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_rows_are_checked_keeps_those_that_were(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, sign: signal.Signals
) -> None:
    from ladder.base.stopping import stop_on_sigterm

    found = rows(**{f"top_{name}": {"prepare": 100} for name in record.NAMES})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
    checked: list[str] = []
    sent: list[signal.Signals] = []

    def save(history: Any) -> None:
        checked[:] = [name for name, row in by_name(found).items() if row.parity]
        if len(checked) == 5 and not sent:  # a second one would reach the test behind this one
            sent.append(sign)
            threading.Timer(0.2, os.kill, (os.getpid(), sign)).start()

    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt) as stopped, stop_on_sigterm():
            measure(found, save)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.type is KeyboardInterrupt and time.monotonic() - begin < 90
    assert statuses(found) == {"ok"} and not any(row.rounds for row in found.values())
    assert [name for name, row in by_name(found).items() if row.parity] == checked
    assert sorted(checked) == sorted(f"baseline_{name}" for name in record.NAMES)
    assert not any(alive(worker.pid) for worker in seen.started)


def test_the_end_of_the_minutes_waits_for_what_runs_beside_others(seen: Seen) -> None:
    found = rows()
    saved = []

    def save(history: Any) -> None:
        saved.append(sum(row.parity is not None for row in found.values()))
        if len(saved) >= 2:
            raise TimeUp

    with pytest.raises(TimeUp):
        measure(found, save)
    finished = sum(row.parity is not None for row in found.values())
    assert len(seen.of("prepare")) == finished == len(saved) and 2 <= finished <= 8
    assert statuses(found) == {"ok"} and not seen.of("visit")
    measure(found)
    assert len(seen.of("parity")) == 10 and all(len(row.rounds) == 1 for row in found.values())


def test_the_end_of_the_minutes_ends_a_round_after_the_row_that_is_timed(seen: Seen) -> None:
    found = rows()
    measure(found, parity=False)

    def save(history: Any) -> None:
        raise TimeUp

    with pytest.raises(TimeUp):
        measure(found, save, rounds=2, parity=False)
    assert sorted(len(row.rounds) for row in found.values()) == [1] * 9 + [2]


def test_on_a_cpu_one_at_a_time(seen: Seen) -> None:
    found = dict(list(rows().items())[:4])
    measure(found, device="cpu", memory_gib=None, rounds=2)
    assert statuses(found) == {"ok"} and all(row.parity and len(row.rounds) == 2 for row in found.values())
    assert not any(map(seen.company, seen.calls))
    assert len(seen.started) == 4 + 2 * 4


def test_the_first_try_of_a_batch_is_what_memory_should_hold(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows()
    first, second = list(found)[:2]
    sizes = {"allocated_gib": 3.0, "reserved_gib": 4.0, "device_gib": 5.0, "rss_gib": 1.0}
    found[first] = replace(found[first], rounds=[record.Round(round=0, samples_ms=[1.0], **sizes)])
    found[second] = replace(found[second], recipe=(found[second].recipe or {}) | {"micro_batches": 2})

    def build(session: precision_run.Session) -> None:
        if session.workload["batch"] > 100:
            raise WorkerFailure("oom", "out of memory in prepare")

    monkeypatch.setattr(precision_run.Session, "build", build)
    how = {"memory_gib": 140.0, "batch_seconds": 60.0}
    with Pool(code=FAKE, torch=False) as workers:
        for name in (first, second):
            asked = precision.Plan(WORKLOAD, "cuda", **how)
            measures.find_largest_batch(asked, found, name, lambda line: None, workers)
    assert [each.batch for each in found[first].largest.tried][:2] == [64, 128]  # 64 needs 40 of 140 GiB
    assert [each.batch for each in found[second].largest.tried][:2] == [8, 16]  # nothing is known of it
    assert found[first].largest.settled and found[second].largest.settled
    assert found[first].largest.batch == 100 and found[second].largest.batch == 96  # of parts of whole groups


def test_a_search_that_was_interrupted_is_gone_on_with(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, row),) = list(rows().items())[:1]
    found = {name: row}
    tried: list[int] = []

    def build(session: precision_run.Session) -> None:
        tried.append(session.workload["batch"])
        if tried == [8, 16, 32]:
            raise KeyboardInterrupt
        if session.workload["batch"] > 100:
            raise WorkerFailure("oom", "out of memory in prepare")

    monkeypatch.setattr(precision_run.Session, "build", build)

    how = {"parity": False, "rounds": 0, "batch_seconds": 60.0}
    with pytest.raises(KeyboardInterrupt):
        measure(found, **how)
    fits = [record.Try(batch=batch, reason=None) for batch in (8, 16)]
    assert found[name].largest == record.Largest(batch=16, settled=False, tried=fits)
    measure(found, **how)
    largest = found[name].largest
    assert tried[3:5] == [32, 64] and largest.settled and 93 < largest.batch <= 100
    before = len(tried)
    measure(found, **how)
    assert len(tried) == before  # it has come to its end


def test_a_row_of_which_nothing_is_due_starts_no_worker(seen: Seen) -> None:
    found = {name: replace(row, status="failed: parity") for name, row in rows().items()}
    run = Run(precision.Plan(WORKLOAD, "cuda"), {}, Pool(code=FAKE, torch=False), print, lambda: None)
    run.inspect_all()
    run.round(0, lambda names: None)
    measure(found)
    assert not seen.started
