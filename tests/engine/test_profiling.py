"""GPU time of profiled cycles, whole or from kinds of steps: figures, composition, and when there are none."""

from types import SimpleNamespace
from typing import Any

import pytest

from ladder.core.protocol import CYCLE_STEPS
from ladder.core.records import read_record
from ladder.engine import profiling
from ladder.engine.channel import Nobody
from ladder.engine.gpu_time import find_excess, rest_s
from ladder.engine.timed_rung import Rung
from ladder.receipts import traces
from ladder.results.file import KernelProfile

MS = 1_000_000  # ns


def event(name: str, begin: float, end: float, stream: int = 7, on_device: bool = True) -> Any:
    """An event from `begin` to `end` milliseconds of a step, so a cycle of it takes as many of a step."""
    return (name, on_device, stream, int(begin * MS * CYCLE_STEPS), int(end * MS * CYCLE_STEPS))


CYCLE = [
    event("cudaLaunchKernel", 0, 9, on_device=False),
    event("sm90_xmma_gemm_bf16", 0, 1),
    event("void at::native::elementwise_kernel<4, lambda(int)>(int)", 0.5, 1.5, stream=8),
    event("Memcpy HtoD (Pinned -> Device)", 3, 3.25, stream=9),
    event("Context Sync", 0, 9),
]


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that digests cycles, each given by its events; a cycle's wall time is 2 ms a step."""
    monkeypatch.setattr(traces, "list_events", lambda events: events)

    def digest(*cycles: list[Any]) -> dict[str, Any]:
        ends = [10 * (number + 1) * MS * CYCLE_STEPS for number in range(len(cycles))]
        moved = [
            (*each[:3], each[3] + begin, each[4] + begin)
            for begin, cycle in zip([0, *ends], cycles, strict=False)
            for each in cycle
        ]
        walls = [0.002 * CYCLE_STEPS] * len(cycles)
        return profiling.digest_cycles(profiling.Recorded(walls, ends, moved))

    return digest


def test_gpu_time_is_the_union_of_kernels_and_copies_over_all_streams(digested: Any) -> None:
    figures = digested(CYCLE, CYCLE)
    assert figures["cycles"] == [{"gpu_ms": 1.75, "wall_ms": 2.0, "kernels": 2 / CYCLE_STEPS}] * 2
    families, kernels = figures["profile"]["families"], figures["profile"]["kernels"]
    assert [(row["name"], row["ms"]) for row in families] == [
        ("matmul", 1.0), ("elementwise", 1.0), ("memcpy and memset", 0.25),
    ]  # fmt: skip
    assert [row["ms"] for row in kernels] == [1.0, 1.0, 0.25]
    assert all(row["launches"] == pytest.approx(1 / CYCLE_STEPS) for row in kernels)
    assert read_record(KernelProfile, figures["profile"]) and figures["gpu_void"] is None


def test_cycles_that_launch_other_kernels_have_no_gpu_time_that_counts(digested: Any) -> None:
    assert (
        digested(CYCLE, [*CYCLE, event("gemm", 4, 5)])["gpu_void"]
        == "profiled cycles launched 2 and 3 kernels"
    )
    assert profiling.find_difference([]) is profiling.find_difference([9.0, 9.0]) is None
    # NVIDIA's loop mixes styles at a random layer
    assert profiling.find_difference([4146.5, 4146.3125], 0.001) is None
    assert "and 4100 kernels" in str(profiling.find_difference([256.5, 256.25], 0.0009))


def test_the_gpu_rests_before_each_profiled_cycle_and_is_free_when_they_have_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[Any] = []

    def profiled(cycles: Any, ran: Any) -> None:
        cycles()
        ran()
        did.append("reads")

    monkeypatch.setattr(traces, "profile_cycle", profiled)
    monkeypatch.setattr(profiling.time, "sleep", did.append)
    waits = {"align": lambda: did.append("all ranks"), "synchronize": lambda: did.append("ends")}
    step = SimpleNamespace(cycle=lambda: did.append("cycle"))
    recorded = profiling.record_cycles(SimpleNamespace(step=step, tell=did.append, **waits), rest_s=0.25)
    assert did == [*[0.25, "all ranks", "cycle", "ends", profiling.APART_S] * 2, "ran", "reads"]
    assert len(recorded.wall_s) == 2 and recorded.ended_ns == sorted(recorded.ended_ns)


def test_a_captured_step_rests_as_long_as_its_cycle_took_and_an_eager_one_does_not() -> None:
    assert rest_s([0.03, 0.02, 0.01], True) == pytest.approx(0.02 * CYCLE_STEPS)
    assert rest_s([0.5], True) == 1.0
    assert rest_s([0.02], False) == rest_s([], True) == 0.0


@pytest.mark.parametrize(
    ("cycles", "captured", "why"),
    [
        (None, True, None),
        ([{"gpu_ms": 100.9, "kernels": 3000.0}] * 2, True, None),
        ([{"gpu_ms": 101.2, "kernels": 3000.0}] * 2, True, "GPU time of 101.2 ms in a step of 100 ms"),
        (
            [{"gpu_ms": 101.2, "kernels": 0.0, "sm_mhz": 1680.0}, {"gpu_ms": 101.2, "sm_mhz": 1700}], True,
            "GPU time of 101.2 ms (profiled at 1690 MHz) in a step of 100 ms",
        ),
        ([{"gpu_ms": 101.2, "kernels": 3000.0}] * 2, False, None),  # an eager step's wall time is the host's
    ],
)  # fmt: skip
def test_a_captured_step_cannot_work_longer_than_it_takes(
    cycles: Any, captured: bool, why: str | None
) -> None:
    assert find_excess(cycles, [0.1], captured) == why


# --- kinds of steps ---


class Step:
    """A step with the order of phases that the article's workload has, which writes down what runs."""

    def __init__(self, broken: str | None = None) -> None:
        self.ran: list[int | str] = []
        self.broken = broken

    def phases(self, index: int) -> tuple[str, ...]:
        return ("G_main", *("G_pl",) * (index % 4 == 0), "D_main", *("D_r1",) * (index % 16 == 0))

    def step(self) -> None:
        self.ran.append("first")

    def _step(self, index: int, lazy: bool) -> None:
        assert lazy
        self.ran.append(index)

    def check_finite(self) -> str | None:
        return self.broken


def kernel(begin: float, end: float, name: str = "conv", stream: int = 7) -> profiling.Event:
    return name, True, stream, int(begin * MS), int(end * MS)


def test_a_cycle_counts_each_kind_as_often_as_it_comes() -> None:
    assert profiling.list_kinds(Step()) == [(0, 1), (1, 12), (4, 3)]
    whole = [kernel(0, 30), kernel(20, 40, stream=9), ("cudaLaunchKernel", False, 0, 0, 99 * MS)]
    main, path = [kernel(50, 60), kernel(60, 61, "Memcpy HtoD")], [kernel(70, 90)]
    reply = profiling.compose_cycles([whole, main, path] * 2, [0.3, 0.1, 0.2] * 2, [1, 12, 3])
    first, second = reply["cycles"]
    assert first == second and reply["gpu_void"] is None
    assert first["gpu_ms"] == pytest.approx((40 + 12 * 11 + 3 * 20) / 16)
    assert first["wall_ms"] == pytest.approx((300 + 12 * 100 + 3 * 200) / 16)
    assert first["kernels"] == pytest.approx((2 + 12 + 3) / 16)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ([kernel(0, 1, "Memcpy HtoD")], "saw no kernels"),
        ([kernel(0, 0)], "gave 1 of 1 kernels no duration"),
        ([kernel(0, 1), kernel(1, 2)], "launched 16 and 32 kernels"),
    ],
)
def test_events_without_a_gpu_time_are_void(broken: list[Any], words: str) -> None:
    reply = profiling.compose_cycles([[kernel(0, 1)], broken], [0.1, 0.1], [16])
    assert reply["cycles"] is None and words in reply["gpu_void"]


@pytest.mark.parametrize("broken", [None, "loss of D_r1 is NaN or infinite after step 7"])
def test_a_worker_profiles_each_kind_twice(broken: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited = [0], list[int]()

    def wait(rung: Rung) -> None:
        clock[0] += MS
        waited.append(clock[0])

    def profiled(cycle: Any, ran: Any = None) -> list[profiling.Event]:
        waited.clear()
        cycle()
        return [("conv", True, 7, at, at + MS) for at in waited]

    monkeypatch.setattr(traces, "profile_cycle", profiled)
    monkeypatch.setattr(traces, "list_events", iter)
    monkeypatch.setattr(Rung, "synchronize", wait)
    monkeypatch.setattr(profiling.time, "time_ns", lambda: clock[0] + 1)
    rung = Rung(None, Nobody())
    rung.device, rung.step = "cuda", Step(broken)
    reply = rung.do_profile("kinds")
    assert rung.step.ran == ["first", *[0, 1, 4] * 2] and rung.profiled
    assert reply["gpu_void"] == broken
    cycles = None if broken else [(1.0, 1.0)] * 2
    assert (reply["cycles"] and [(each["gpu_ms"], each["kernels"]) for each in reply["cycles"]]) == cycles
