"""GPU time of profiled cycles: the union of kernels, what a step consists of, and when there is no figure."""

from types import SimpleNamespace
from typing import Any

import pytest

from ladder.core.protocol import CYCLE_STEPS
from ladder.core.records import read_record
from ladder.engine import profiling
from ladder.engine.gpu_time import rest_s
from ladder.receipts import traces
from ladder.results.file import KernelProfile

MS = 1_000_000


def event(name: str, begin: float, end: float, stream: int = 7, on_device: bool = True) -> Any:
    """An event from `begin` to `end` milliseconds of a step, so a cycle of it takes as many of a step."""
    return (name, on_device, stream, int(begin * MS * CYCLE_STEPS), int(end * MS * CYCLE_STEPS))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that digests cycles, each given by its events; a cycle's wall time is 2 ms a step."""
    monkeypatch.setattr(traces, "list_events", lambda seen: seen)
    monkeypatch.setattr(traces, "sees_kernels", lambda: True)

    def digested(*cycles: list[Any]) -> dict[str, Any]:
        ends = [10 * (number + 1) * MS * CYCLE_STEPS for number in range(len(cycles))]
        moved = [
            (*each[:3], each[3] + begin, each[4] + begin)
            for begin, cycle in zip([0, *ends], cycles, strict=False)
            for each in cycle
        ]
        walls = [0.002 * CYCLE_STEPS] * len(cycles)
        return profiling.digest_cycles(profiling.Recorded(walls, ends, moved))

    return digested


CYCLE = [
    event("cudaLaunchKernel", 0, 9, on_device=False),
    event("sm90_xmma_gemm_bf16", 0, 1),
    event("void at::native::elementwise_kernel<4, lambda(int)>(int)", 0.5, 1.5, stream=8),
    event("Memcpy HtoD (Pinned -> Device)", 3, 3.25, stream=9),
    event("Context Sync", 0, 9),
]


def test_gpu_time_is_the_union_of_kernels_and_copies_over_all_streams(recorded: Any) -> None:
    found = recorded(CYCLE, CYCLE)
    assert found["cycles"] == [{"gpu_ms": 1.75, "wall_ms": 2.0, "kernels": 2 / CYCLE_STEPS}] * 2
    assert found["gpu_void"] is None


def test_cycles_that_launch_other_kernels_have_no_gpu_time_that_counts(recorded: Any) -> None:
    found = recorded(CYCLE, [*CYCLE, event("gemm", 4, 5)])
    assert found["gpu_void"] == "profiled cycles launched 2 and 3 kernels"
    assert profiling.find_difference([]) is profiling.find_difference([9.0, 9.0]) is None
    assert (
        profiling.find_difference([4146.5, 4146.3125], 0.001) is None
    )  # NVIDIA's loop mixes styles at a random layer
    assert "and 4100 kernels" in str(profiling.find_difference([256.5, 256.25], 0.0009)), (
        "more than that voids"
    )


def test_a_step_consists_of_families_and_of_kernels(recorded: Any) -> None:
    found = recorded(CYCLE)["profile"]
    assert [(row["name"], row["ms"]) for row in found["families"]] == [
        ("matmul", 1.0),
        ("elementwise", 1.0),
        ("memcpy and memset", 0.25),
    ]
    assert [row["ms"] for row in found["kernels"]] == [1.0, 1.0, 0.25]
    assert all(row["launches"] == pytest.approx(1 / CYCLE_STEPS) for row in found["kernels"])
    read_record(KernelProfile, found)  # a result may hold it


def test_the_gpu_is_free_as_soon_as_the_profiled_cycles_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    def profiled(cycles: Any, ran: Any) -> None:
        for each in (lambda: did.append("begins"), cycles, ran, lambda: did.append("reads")):
            each()

    monkeypatch.setattr(traces, "profile_cycle", profiled)
    step = SimpleNamespace(cycle=lambda: did.append("cycle"))
    waits = {"align": lambda: did.append("all ranks"), "synchronize": lambda: did.append("ends")}
    rung = SimpleNamespace(step=step, tell=did.append, **waits)
    found = profiling.record_cycles(rung)
    assert did == ["begins", *["all ranks", "cycle", "ends"] * 2, "ran", "reads"]
    assert len(found.wall_s) == 2 and found.ended_ns == sorted(set(found.ended_ns))


def test_the_gpu_rests_before_each_profiled_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[Any] = []
    monkeypatch.setattr(profiling.time, "sleep", did.append)
    monkeypatch.setattr(traces, "profile_cycle", lambda cycles, ran: cycles())
    nothing = {name: lambda *_: None for name in ("align", "synchronize")}
    step = SimpleNamespace(cycle=lambda: did.append("cycle"))
    profiling.record_cycles(SimpleNamespace(step=step, **nothing), rest_s=0.25)
    assert did == [0.25, "cycle", profiling.APART_S] * 2


def test_a_captured_step_rests_as_long_as_its_cycle_took_and_an_eager_one_does_not() -> None:
    assert rest_s([0.03, 0.02, 0.01], True) == pytest.approx(0.02 * CYCLE_STEPS)
    assert rest_s([0.5], True) == 1.0
    assert rest_s([0.02], False) == rest_s([], True) == 0.0
