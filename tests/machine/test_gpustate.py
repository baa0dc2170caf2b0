"""The GPU beside the timed process: what is void, who was there, and what nobody can know."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ladder.engine.pool import WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import gpu_state
from ladder.machine.gpu_state import Watch, describe_company, find_void_reason
from tests.support.fake_nvml import UUID, FakeNvml

MINE = 100
MIB = 2**20
QUESTIONS = [name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet") and "Handle" not in name]


def visit(fake: FakeNvml, own: set[int] | None = None, polls: int = 4, quiet: bool = True) -> dict[str, Any]:
    """The summary of a visit that lasts at least so many polls."""
    watch = Watch(UUID, nvml=fake, interval_s=0.001)
    percent = watch.quiet(0.01) if quiet else None
    with watch.window({MINE} if own is None else own) as window:
        if watch.gpu.unknown is None and "nvmlDeviceGetClockInfo" not in fake.refuse:
            with fake.polled:
                assert fake.polled.wait_for(lambda: fake.polls >= polls, 120)
    summary = window.summary(percent)
    watch.close()
    return summary


def at_poll(number: int, **answers: Any) -> Callable[[FakeNvml, int], None]:
    """Changes what the GPU answers from one poll on."""
    return lambda fake, polls: vars(fake).update(answers) if polls == number else None


def test_a_quiet_gpu_is_known_alone_and_not_void() -> None:
    fake = FakeNvml(bits=0x01)
    summary = visit(fake)
    assert summary["state"] == "known" and summary["tenancy"] == "alone" and summary["polls"] >= 4
    assert (summary["sm_mhz"], summary["memory_mhz"], summary["temperature_c"]) == (1980, 2619, 55)
    assert summary["power_w"] == 400 and summary["reasons"] == [] and summary["foreign_processes"] == 0
    assert summary["drift_bytes"] == 0 and summary["ecc_errors"] == 0 and summary["quiet_percent"] == 0
    assert find_void_reason(summary) is None and describe_company(summary) is None
    assert fake.open == 0  # NVML is given back


@pytest.mark.parametrize(
    ("bits", "says"),
    [
        (0x08, "hardware slowdown"),
        (0x48, "hardware thermal slowdown"),
        (0x88, "power brake"),
        (0x20, "thermal slowdown"),
    ],
)
def test_a_slowdown_at_any_one_poll_voids_the_visit(bits: int, says: str, outcome: Any) -> None:
    def once(fake: FakeNvml, polls: int) -> None:
        fake.bits = bits if polls == 2 else 0

    seen = find_void_reason(visit(FakeNvml(then=once)))
    assert seen == says
    void(outcome, f"throttle reasons 0x{bits:02x} at one poll", seen)


def void(outcome: Any, injected: str, seen: str) -> None:
    outcome(fault="throttled visit", injected=injected, outcome=f"the visit is void: {seen}", number=False)


def test_what_limits_the_clock_by_design_does_not_void() -> None:
    for bits in (0x01, 0x02, 0x04, 0x10):
        assert find_void_reason(visit(FakeNvml(bits=bits))) is None


def test_counters_show_a_slowdown_that_no_poll_saw(outcome: Any) -> None:
    unseen = find_void_reason(visit(FakeNvml(thermal_ns=7, then=at_poll(2, thermal_ns=9_000_007))))
    assert "between two polls" in unseen
    void(outcome, "a violation counter grows by 9 ms between two polls", unseen)
    assert find_void_reason(visit(FakeNvml(thermal_ns=9_000_000))) is None  # of before
    memory = find_void_reason(visit(FakeNvml(ecc=3, then=at_poll(2, ecc=4))))
    assert "memory errors" in memory
    void(outcome, "an uncorrected memory error during the visit", memory)
    assert find_void_reason(visit(FakeNvml(ecc=3))) is None


def clock(mhz: float | None, *reasons: str, **more: Any) -> dict[str, Any]:
    return {"state": "known", "sm_mhz": mhz, "reasons": list(reasons), "tenancy": "alone", **more}


def test_a_clock_that_is_not_the_rungs_own_voids_unless_power_capped(outcome: Any) -> None:
    usual = [clock(1980), clock(1965), clock(1980)]
    assert find_void_reason(clock(1921), usual) is None  # 2.98%
    assert find_void_reason(clock(1920), usual) == "SM clock 1920 MHz, usually 1980"  # 3.03%
    assert find_void_reason(clock(2045), usual) == "SM clock 2045 MHz, usually 1980"
    assert find_void_reason(clock(1500, "power_cap"), usual) is None
    assert find_void_reason(clock(1500, violation_ms={"power": 3.0}), usual) is None
    assert find_void_reason(clock(1500), usual[:1]) is None  # which of the two is usual?
    capped = [clock(1500, "power_cap")] * 5 + usual[:2]
    assert (
        find_void_reason(clock(1500), capped) == "SM clock 1500 MHz, usually 1972"
    )  # capped visits are no measure
    assert find_void_reason(clock(None), usual) is None
    void(outcome, "an SM clock 3.03 percent below the rung's own", find_void_reason(clock(1920), usual))


def test_a_canary_that_is_off_voids(outcome: Any) -> None:
    seen = [1.000e-4, 1.002e-4, 0.999e-4]
    assert find_void_reason(clock(1980), canary_s=1.009e-4, earlier_canaries_s=seen) is None
    assert "canary kernel 102 us, usually 100" == find_void_reason(clock(1980), (), 1.02e-4, seen)
    assert "canary" in find_void_reason(clock(1980), (), 0.985e-4, seen)
    assert (
        find_void_reason(clock(1980), (), 1.02e-4, seen[:1]) is None
        and find_void_reason(clock(1980), (), None, seen) is None
    )
    # It needs no NVML.
    assert "canary" in find_void_reason(gpu_state.make_unknown("no NVML"), (), 1.02e-4, seen)
    reason = find_void_reason(clock(1980), (), 1.02e-4, seen)
    void(outcome, "a canary kernel that takes 2 percent longer", reason)


def shared(outcome: Any, injected: str, seen: dict[str, Any]) -> None:
    said = f"tenancy: {seen['tenancy']}, noisy: not publishable: {describe_company(seen)}"
    outcome(fault="company on the GPU", injected=injected, outcome=said)


def test_foreign_processes_are_company_and_idle_displays_are_not(outcome: Any) -> None:
    two = visit(FakeNvml(compute={MINE: 2**30, 7: 2**30, 8: 2**30}))
    assert describe_company(two) == "2 foreign compute processes" and two["tenancy"] == "shared"
    shared(outcome, "two foreign compute processes", two)
    came = visit(FakeNvml(then=at_poll(3, compute={MINE: 4 * 2**30, 7: 1})))
    assert describe_company(came) == "1 foreign compute process"
    shared(outcome, "a foreign process that comes during the visit", came)
    desk = visit(FakeNvml(display={7: MIB}, busy=[1]))
    assert describe_company(desk) is None and desk["display_processes"] == 1 and desk["quiet_percent"] == 1
    assert find_void_reason(two) is None  # noisy, with its numbers


def test_processes_are_recognized_by_another_numbering_too() -> None:
    """In a container NVML may give the host's numbers; a worker of ours is among them all the same."""
    assert visit(FakeNvml(compute={9001: 2**30}), own={MINE})["tenancy"] == "alone"
    assert (
        describe_company(visit(FakeNvml(compute={9001: 2**30, 9002: 2**30}), own={MINE}))
        == "1 foreign compute process"
    )
    mine = {MINE: 2**30, 101: 2**20}
    assert visit(FakeNvml(compute=mine), own=set(mine))["foreign_processes"] == 0
    assert visit(FakeNvml(compute=mine | {7: 1}), own=set(mine))["foreign_processes"] == 1
    hidden = visit(FakeNvml(compute={}))
    assert hidden["foreign_processes"] is None and hidden["tenancy"] == "unknown"


def test_memory_allocated_while_it_is_read_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, ask = FakeNvml(), FakeNvml.nvmlDeviceGetComputeRunningProcesses

    def allocates(self: FakeNvml, handle: str) -> list[Any]:
        if self.polls == 2:
            self.compute = {MINE: 9 * 2**30}
        return ask(self, handle)

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetComputeRunningProcesses", allocates)
    assert describe_company(visit(fake)) is None


def test_memory_beyond_our_own_that_comes_or_goes_is_company(outcome: Any) -> None:
    here = FakeNvml(then=at_poll(3, beyond=(500 + 65) * MIB))
    came = visit(here)
    assert describe_company(came) == "65 MiB of memory came or went that are not ours"
    gone = FakeNvml(then=at_poll(3, beyond=(500 - 65) * MIB))
    went = visit(gone)
    assert describe_company(went) == "65 MiB of memory came or went that are not ours"
    assert describe_company(visit(FakeNvml(then=at_poll(3, beyond=(500 + 63) * MIB)))) is None
    ours = FakeNvml(then=at_poll(3, compute={MINE: 9 * 2**30}))
    assert describe_company(visit(ours)) is None  # the growth is our own
    unknown = visit(FakeNvml(compute={MINE: None}, then=at_poll(3, beyond=9 * 2**30)))
    assert unknown["drift_bytes"] is None and describe_company(unknown) is None
    shared(outcome, "65 MiB of foreign memory that come during the visit", came)
    shared(outcome, "65 MiB of foreign memory that go during the visit", went)


def test_a_quiet_window_waits_for_our_own_work_to_fade_but_not_for_others(outcome: Any) -> None:
    watch = Watch(UUID, nvml=FakeNvml(busy=[97, 97, 40, 0]), interval_s=0.001)
    assert watch.quiet(10) == 0
    watch = Watch(UUID, nvml=FakeNvml(busy=[97, 35, 60]), interval_s=0.001)
    assert watch.quiet(0.02) == 35
    busy = visit(FakeNvml(busy=[35]))
    assert describe_company(busy) == "35 percent utilization while nothing of ours ran"
    shared(outcome, "35 percent utilization in the quiet window", busy)


@pytest.mark.parametrize(
    ("uuid", "fake", "says"),
    [
        (None, FakeNvml(), "torch does not tell"),
        (UUID, FakeNvml(refuse={"nvmlInit"}), "NVML is not available: Refused: Not Supported"),
        ("GPU-another", FakeNvml(), "NVML does not know the GPU"),
        (UUID, FakeNvml(refuse=set(QUESTIONS)), "NVML tells neither clocks nor throttling"),
    ],
)  # fmt: skip
def test_absent_or_refused_nvml_is_unknown_and_voids_nothing(
    uuid: str | None, fake: FakeNvml, says: str, outcome: Any
) -> None:
    watch = Watch(uuid, nvml=fake, interval_s=0.001)
    quiet = watch.quiet(0.01)
    with watch.window({MINE}) as window:
        pass
    summary = window.summary(quiet)
    assert quiet is None and summary["state"] == summary["tenancy"] == "unknown" and says in summary["reason"]
    assert find_void_reason(summary, [summary] * 3) is None and describe_company(summary) is None
    watch.close()
    said = f"state: {summary['state']}, tenancy: {summary['tenancy']}, no visit is void for it"
    outcome(fault="NVML absent or refused", injected=says.partition(":")[0], outcome=said)


@pytest.mark.parametrize(
    "name", [n for n in dir(FakeNvml) if n.startswith("nvmlDeviceGet") and "Handle" not in n]
)
def test_each_refusal_costs_only_its_own_reading(name: str, outcome: Any) -> None:
    summary = visit(FakeNvml(refuse={name}), quiet=False)
    whole = visit(FakeNvml(), quiet=False)
    lost = {key for key in whole if whole[key] is not None and summary[key] is None}
    assert summary["state"] == "known" and len(lost) <= 4, lost
    assert lost or name.startswith("nvmlDeviceGetCurrentClocks") or "Utilization" in name
    assert find_void_reason(summary) is None
    said = f"state: {summary['state']}, only its own readings are missing, no visit is void for it"
    outcome(fault="NVML absent or refused", injected="one function of NVML refuses", outcome=said)


def test_a_driver_that_hangs_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    import threading

    never = threading.Event()
    watch = Watch(UUID, nvml=FakeNvml(then=lambda fake, polls: never.wait(30)), interval_s=0.001)
    join = threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", lambda thread, timeout=None: join(thread, 0.01))
    with watch.window({MINE}) as window:
        pass
    seen = window.summary(0)
    assert seen == gpu_state.make_unknown("NVML stopped answering")
    never.set()
    said = f"state: {seen['state']}: {seen['reason']}, the run goes on"
    outcome(fault="NVML absent or refused", injected="a driver that never answers", outcome=said)


def test_a_void_visit_is_repeated_three_times_at_most(outcome: Any) -> None:
    visits = Visits("cuda", UUID, nvml=FakeNvml(bits=0x80))
    calls: list[str] = []
    worker: Any = SimpleNamespace(pid=MINE, call=lambda do: calls.append(do) or {"samples_s": [0.01]})
    with pytest.raises(WorkerFailure) as failure:
        visits.cycle(worker, {MINE}, (), [])
    assert failure.value.reason == "throttled: 4 visits void, last: power brake" and len(calls) == 4
    said = f"tried {len(calls)} times, then {failure.value.reason}"
    outcome(fault="every sample rejected", injected="each visit is void", outcome=said, number=False)


def test_the_state_of_a_process_is_that_of_all_its_visits() -> None:
    """Worst values, medians of clocks, sums of counters: no visit hides behind another."""
    first = clock(
        1980, "power_cap", power_w=400.0, temperature_c=60, longest_gap_ms=50.1, polls=3, ecc_errors=0
    )
    second = clock(1965, power_w=650.0, temperature_c=58, longest_gap_ms=90.0, polls=5, ecc_errors=1)
    third = clock(
        1950, "sync_boost", power_w=None, temperature_c=61, longest_gap_ms=None, polls=1, ecc_errors=0
    )
    first["violation_ms"], second["violation_ms"] = {"power": 1.5}, {"power": 2.0, "thermal": 0.25}
    third["violation_ms"] = None
    for number, each in enumerate((first, second, third)):
        each |= {"sm_mhz_min": 1900 - number, "quiet_percent": 0, "foreign_processes": 0, "drift_bytes": 0}
    whole = gpu_state.join_summaries([first, second, third])
    assert (whole["state"], whole["tenancy"], whole["polls"]) == ("known", "alone", 9)
    assert (whole["sm_mhz"], whole["sm_mhz_min"]) == (1965, 1898)
    assert (whole["power_w"], whole["temperature_c"], whole["longest_gap_ms"]) == (650.0, 61, 90.0)
    assert whole["reasons"] == ["power_cap", "sync_boost"] and whole["ecc_errors"] == 1
    assert whole["violation_ms"] == {"power": 3.5, "thermal": 0.25}
    assert gpu_state.is_power_capped(whole)


def test_company_in_one_visit_is_company_of_the_process() -> None:
    alone = clock(1980, polls=1, violation_ms=None) | {"foreign_processes": 0, "quiet_percent": 0}
    for seen in ({"foreign_processes": 2}, {"drift_bytes": 2**30}, {"quiet_percent": 40}):
        assert gpu_state.join_summaries([alone, alone | seen, alone])["tenancy"] == "shared"
    untold = gpu_state.join_summaries([alone | {"reasons": None, "foreign_processes": None}] * 2)
    assert untold["reasons"] is None and untold["violation_ms"] is None and untold["tenancy"] == "unknown"


def test_a_run_is_as_alone_as_its_least_lonely_visit() -> None:
    alone, unknown = clock(1980), gpu_state.make_unknown("no NVML")
    shared = clock(1980, foreign_processes=1) | {"tenancy": "shared"}
    assert gpu_state.summarize_run([alone, alone], 0) == {
        "state": "known", "tenancy": "alone", "rejected_visits": 0, "notes": [],
    }  # fmt: skip
    assert gpu_state.summarize_run([alone, unknown], 2)["tenancy"] == "unknown"
    noisy = gpu_state.summarize_run([unknown, shared, alone], 5)
    assert noisy["tenancy"] == "shared" and noisy["rejected_visits"] == 5 and noisy["state"] == "unknown"
    assert noisy["notes"] == ["noisy: not publishable: 1 foreign compute process"]
    assert gpu_state.summarize_run([], 0)["tenancy"] == "unknown"


def test_another_gpu_than_the_watched_one_is_noticed(outcome: Any) -> None:
    assert gpu_state.find_wrong_gpu(UUID, UUID.removeprefix("GPU-")) is None
    assert gpu_state.find_wrong_gpu(None, UUID) is None and gpu_state.find_wrong_gpu(UUID, None) is None
    assert "another GPU" in gpu_state.find_wrong_gpu(UUID, "GPU-other")
    assert gpu_state.find_wrong_gpu("MIG-a", "MIG-b") is not None
    said = gpu_state.find_wrong_gpu(UUID, "GPU-other")
    outcome(fault="wrong GPU", injected="the worker's UUID is another", outcome=said)


@pytest.mark.gpu
def test_a_real_gpu_is_seen_through_the_uuid_that_torch_gives() -> None:
    import os

    import torch

    watch = Watch(str(torch.cuda.get_device_properties(0).uuid))
    if watch.gpu.unknown and "NVML is not available" in watch.gpu.unknown:
        pytest.skip(watch.gpu.unknown)
    with watch.window({os.getpid()}) as window:
        seconds = [gpu_state.time_canary(torch) for _ in range(5)]
    summary = window.summary(watch.quiet())
    assert summary["state"] == "known" and summary["sm_mhz"] > 0, summary
    assert max(seconds) > 0
