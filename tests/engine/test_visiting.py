"""Visits under a watched GPU: which count, which are repeated, and what a run says of its company."""

from collections.abc import Sequence
from typing import Any

import pytest

from ladder.core.records import read_record
from ladder.engine.pool import WorkerFailure
from ladder.engine.visit import Visits
from ladder.results.file import GpuState, Round
from tests.support.fake_nvml import UUID, FakeNvml

Each = dict[str, Any]


class FakeWorker:
    """Answers cycles with a sample each; `during` is called in each with its number from 1.

    `canaries` are the seconds of its canary kernel, the last of which stays.
    """

    pid = 100

    def __init__(self, during: Any = lambda number: None, canaries: Any = (1e-4,), **more: Any) -> None:
        self.cycles, self.during, self.canaries, self.more = 0, during, [*canaries], more
        self.asked: list[str] = []

    def canary(self) -> float | None:
        return self.canaries.pop(0) if len(self.canaries) > 1 else self.canaries[0]

    def call(self, do: str, **fields: Any) -> Each:
        self.asked.append(do)
        if do == "cycle":
            self.cycles += 1
            self.during(self.cycles)
            return {"samples_s": [0.01 * self.cycles], "event_s": None}
        assert do in ("finish", "canary")
        return {"canary_s": self.canary()} | (self.more if do == "finish" else {})


def a_round(seen: Each) -> Round:
    """Return the round of an accepted visit."""
    state = read_record(GpuState, seen["gpu"]) if seen["gpu"] else None
    return Round(round=0, samples_ms=[1.0], gpu=state, rejected=seen.get("rejected"))


def cycle(visits: Visits, worker: FakeWorker, own: Sequence[Each] = (), others: Sequence[int] = ()) -> Each:
    """One visit after a look around: its reply, and the reasons of the void visits before it."""
    visits.look_around()
    rejected: list[str] = []
    return visits.cycle(worker, {100, *others}, own, rejected) | {"rejected": rejected}


def finish(visits: Visits, worker: FakeWorker, canaries: Sequence[float] = ()) -> Each:
    rejected: list[str] = []
    return visits.finish(worker, canaries, rejected, main=False, lazy=False) | {"rejected": rejected}  # type: ignore[arg-type]


def gpu(**answers: Any) -> tuple[FakeNvml, Visits]:
    fake = FakeNvml(**answers)
    return fake, Visits("cuda", UUID, nvml=fake)


def test_a_visit_that_counts_carries_the_state_of_the_gpu() -> None:
    fake, visits = gpu()
    seen = cycle(visits, FakeWorker())
    assert seen["samples_s"] == [0.01] and seen["rejected"] == []
    assert seen["gpu"]["state"] == "known" and seen["gpu"]["tenancy"] == "alone"
    whole = visits.summary([a_round(seen)])
    assert whole == {"state": "known", "tenancy": "alone", "rejected_visits": 0, "notes": []}
    visits.close()
    assert fake.open == 0


def test_a_throttled_visit_is_repeated_and_counted(outcome: Any) -> None:
    fake, visits = gpu()

    def hot(number: int) -> None:
        fake.bits = 0x48 if number < 3 else 0
        with fake.polled:
            polls = fake.polls
            assert fake.polled.wait_for(lambda: fake.polls >= polls + 2, 20)
        fake.bits = 0

    worker = FakeWorker(hot)
    seen = cycle(visits, worker)
    assert worker.cycles == 3 and seen["samples_s"] == [0.03]
    assert seen["rejected"] == ["hardware thermal slowdown"] * 2
    rejected = visits.summary([a_round(seen)])["rejected_visits"]
    assert rejected == 2
    said = f"the visit that counts is the third; rejected visits: {rejected}"
    outcome(fault="throttled visit", injected="in two visits of a run", outcome=said, count=2, number=True)


def test_a_rung_that_is_always_throttled_has_no_number_and_is_counted() -> None:
    _, visits = gpu(bits=0x80)
    worker = FakeWorker()
    with pytest.raises(WorkerFailure, match="throttled: 4 visits void, last: power brake") as failure:
        cycle(visits, worker)
    assert failure.value.status == "invalid" and worker.cycles == 4
    assert visits.summary([])["rejected_visits"] == 4
    with pytest.raises(WorkerFailure, match="throttled: 4 visits void"):  # three repeats in all its visits
        visits.cycle(worker, {100}, (), ["hardware thermal slowdown"] * 3)  # type: ignore[arg-type]
    assert worker.cycles == 5


def test_a_canary_that_stays_off_voids() -> None:
    _, visits = gpu()
    worker = FakeWorker(canaries=[1.02e-4])
    with pytest.raises(WorkerFailure, match="4 visits void, last: canary kernel 102 us, usually 100"):
        finish(visits, worker, [1e-4] * 2)
    assert worker.asked == ["finish", "canary", "canary", "canary"]
    assert visits.summary([])["rejected_visits"] == 4


def test_a_clock_that_is_not_the_rungs_own_voids() -> None:
    fake, visits = gpu()
    own = [{"sm_mhz": 1980, "reasons": []}] * 2
    fake.sm = 1700
    with pytest.raises(WorkerFailure, match="SM clock 1700 MHz, usually 1980"):
        cycle(visits, FakeWorker(), own=own)


def test_an_allocator_that_retried_voids_on_any_device(outcome: Any) -> None:
    for visits in (Visits("cpu"), gpu()[1]):
        with pytest.raises(WorkerFailure, match="allocator ran out and retried 2 times") as failure:
            finish(visits, FakeWorker(alloc_retries=2))
        assert failure.value.status == "invalid"
    said = f"{failure.value.status}: {failure.value.reason}"
    injected = "a process retries twice, on a CPU and on a GPU"
    outcome(fault="allocator retry", injected=injected, outcome=said, count=2, number=False)


def test_company_makes_a_run_noisy_and_voids_nothing(outcome: Any) -> None:
    fake, visits = gpu()
    seen = cycle(visits, FakeWorker())
    fake.busy = [80]  # after the last round
    visits.look_around()
    whole = visits.summary([a_round(seen)])
    assert whole["tenancy"] == "shared" and "80 percent utilization" in whole["notes"][0]
    _, visits = gpu(compute={100: 2**30, 666: 2**30})
    seen = cycle(visits, FakeWorker())
    whole = visits.summary([a_round(seen)])
    assert seen["rejected"] == [] and whole["tenancy"] == "shared"
    assert whole["notes"] == ["noisy: not publishable: 1 foreign compute process"]
    injected = "a foreign process in a visit of a run"
    outcome(fault="company on the GPU", injected=injected, outcome=whole["notes"][0], number=True)


def test_without_nvml_nothing_is_void_and_nothing_is_known(outcome: Any) -> None:
    visits = Visits("cuda", UUID, nvml=FakeNvml(refuse={"nvmlInit"}))
    seen = cycle(visits, FakeWorker())
    assert seen["gpu"]["state"] == "unknown" and seen["rejected"] == []
    tenancy = visits.summary([a_round(seen)])["tenancy"]
    assert tenancy == "unknown"
    said = f"tenancy: {tenancy}; the visit counts"
    outcome(fault="NVML absent or refused", injected="in a run", outcome=said, number=True)


# --- others of ours hold a context, too


@pytest.mark.parametrize(
    ("numbers", "foreign", "tenancy"),
    [
        ((100, 101, 102), 0, "alone"),
        ((7, 8, 9), 0, "alone"),  # in a container: NVML gives all of them numbers that are not ours
        ((100, 101, 102, 666), 1, "shared"),
        ((7, 8, 9, 10), 1, "shared"),
    ],
)
def test_whoever_is_there_beside_all_of_ours_is_company(numbers: Any, foreign: int, tenancy: str) -> None:
    _, visits = gpu(compute=dict.fromkeys(numbers, 2**30))
    seen = cycle(visits, FakeWorker(), others=[101, 102])["gpu"]
    assert (seen["foreign_processes"], seen["tenancy"]) == (foreign, tenancy)
