"""Visits under a watched GPU: which count, which are repeated, and what a run says of its company."""

from typing import Any

import pytest

from ladder.engine.pool import WorkerFailure
from ladder.engine.visit import Visits
from tests.support.fake_nvml import UUID, FakeNvml

PREPARED = {"prepare_s": 1.0}


class FakeWorker:
    """Answers visits with one sample each; `during` is called in each with its number from 1."""

    pid = 100

    def __init__(self, during: Any = lambda number: None, **more: Any) -> None:
        self.visits, self.during, self.more = 0, during, more

    def wait_imported(self) -> None:
        pass

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        assert do == "visit" and fields == {"cycles": 2}
        self.visits += 1
        self.during(self.visits)
        seen = {"samples_s": [0.01 * self.visits], "event_s": None, "main_s": None, "lead_in_cycles": 1}
        return seen | {"settled": True, "canary_s": 1e-4} | self.more


def one(visits: Visits, worker: FakeWorker, own: list | None = None, others: list | None = None) -> dict:
    visits.look_around()
    return visits.visit(worker, 3, PREPARED, own or [], others or [], cycles=2)


def gpu(**answers: Any) -> tuple[FakeNvml, Visits]:
    fake = FakeNvml(**answers)
    return fake, Visits("cuda", UUID, nvml=fake)


def test_a_visit_that_counts_carries_the_state_of_the_gpu() -> None:
    fake, visits = gpu()
    seen = one(visits, FakeWorker())
    assert seen["round"] == 3 and seen["samples_ms"] == [10.0] and seen["rejected"] == []
    assert seen["gpu"]["state"] == "known" and seen["gpu"]["tenancy"] == "alone"
    assert seen["canary_s"] == 1e-4
    whole = visits.summary([{"rounds": [seen]}])
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
    seen = one(visits, worker)
    assert worker.visits == 3 and seen["samples_ms"] == [30.0]
    assert seen["rejected"] == ["hardware thermal slowdown"] * 2
    rejected = visits.summary([{"rounds": [seen]}])["rejected_visits"]
    assert rejected == 2
    said = f"the visit that counts is the third; rejected visits: {rejected}"
    outcome(fault="throttled visit", injected="in two visits of a run", outcome=said, count=2, number=True)


def test_a_rung_that_is_always_throttled_has_no_number_and_is_counted() -> None:
    _, visits = gpu(bits=0x80)
    worker = FakeWorker()
    with pytest.raises(WorkerFailure, match="throttled: 4 visits void, last: power brake") as failure:
        one(visits, worker)
    assert failure.value.status == "invalid" and worker.visits == 4
    assert visits.summary([{"rounds": []}])["rejected_visits"] == 4


def test_a_canary_that_is_off_voids() -> None:
    _, visits = gpu()
    before = [{"canary_s": 1e-4, "gpu": None}] * 2
    with pytest.raises(WorkerFailure, match="canary kernel 102 us, usually 100"):
        one(visits, FakeWorker(canary_s=1.02e-4), others=before)


def test_a_clock_that_is_not_the_rungs_own_voids() -> None:
    fake, visits = gpu()
    own = [{"gpu": {"sm_mhz": 1980, "reasons": []}}] * 2
    fake.sm = 1700
    with pytest.raises(WorkerFailure, match="SM clock 1700 MHz, usually 1980"):
        one(visits, FakeWorker(), own=own)


def test_an_allocator_that_retried_voids_on_any_device(outcome: Any) -> None:
    for visits in (Visits("cpu"), gpu()[1]):
        with pytest.raises(WorkerFailure, match="allocator ran out and retried 2 times") as failure:
            one(visits, FakeWorker(alloc_retries=2))
        assert failure.value.status == "invalid"
    said = f"{failure.value.status}: {failure.value.reason}"
    injected = "every visit retries twice, on a CPU and on a GPU"
    outcome(fault="allocator retry", injected=injected, outcome=said, count=8, number=False)


def test_company_makes_a_run_noisy_and_voids_nothing(outcome: Any) -> None:
    _, visits = gpu(compute={100: 2**30, 666: 2**30})
    seen = one(visits, FakeWorker())
    whole = visits.summary([{"rounds": [seen]}])
    assert seen["rejected"] == [] and whole["tenancy"] == "shared"
    assert whole["notes"] == ["noisy: not publishable: 1 foreign compute process"]
    injected = "a foreign process in a visit of a run"
    outcome(fault="company on the GPU", injected=injected, outcome=whole["notes"][0], number=True)


def test_work_of_others_after_the_last_round_is_seen() -> None:
    fake, visits = gpu()
    seen = one(visits, FakeWorker())
    fake.busy = [80]
    visits.look_around()
    whole = visits.summary([{"rounds": [seen]}])
    assert whole["tenancy"] == "shared" and "80 percent utilization" in whole["notes"][0]


def test_without_nvml_nothing_is_void_and_nothing_is_known(outcome: Any) -> None:
    visits = Visits("cuda", UUID, nvml=FakeNvml(refuse={"nvmlInit"}))
    seen = one(visits, FakeWorker())
    assert seen["gpu"]["state"] == "unknown" and seen["rejected"] == []
    tenancy = visits.summary([{"rounds": [seen]}])["tenancy"]
    assert tenancy == "unknown"
    said = f"tenancy: {tenancy}; the visit counts"
    outcome(fault="NVML absent or refused", injected="in a run", outcome=said, number=True)


def test_a_cpu_run_says_nothing_of_a_gpu() -> None:
    visits = Visits("cpu")
    seen = one(visits, FakeWorker(canary_s=None))
    assert "gpu" not in seen and visits.summary([{"rounds": [seen]}]) is None


def test_another_gpu_than_the_watched_one_is_named() -> None:
    _, visits = gpu()
    assert visits.check_gpu(UUID) is None and visits.check_gpu(UUID.removeprefix("GPU-")) is None
    assert "another GPU" in visits.check_gpu(UUID[:-1] + "9")
    assert Visits("cpu").check_gpu(None) is None
