"""GPU time from the kinds of a cycle's steps: which steps run, and the cycles that their events make."""

import time
from typing import Any

import pytest

from ladder.engine import profiling
from ladder.engine.channel import Nobody
from ladder.engine.timed_rung import Rung
from ladder.receipts import traces

MS = 10**6  # ns


class Step:
    """The order of phases that the article's workload has."""

    @staticmethod
    def phases(index: int) -> tuple[str, ...]:
        path = ("G_pl",) if index % 4 == 0 else ()
        penalty = ("D_r1",) if index % 16 == 0 else ()
        return ("G_main", *path, "D_main", *penalty)


def kernel(begin: float, end: float, name: str = "conv", stream: int = 7) -> profiling.Event:
    return name, True, stream, int(begin * MS), int(end * MS)


def test_each_kind_of_step_is_found_once_with_its_number() -> None:
    assert profiling.list_kinds(Step()) == [(0, 1), (1, 12), (4, 3)]


def test_a_cycle_counts_each_kind_as_often_as_it_comes() -> None:
    whole = [kernel(0, 30), kernel(20, 40, stream=9), ("cudaLaunchKernel", False, 0, 0, 99 * MS)]
    main, path = [kernel(50, 60), kernel(60, 61, "Memcpy HtoD")], [kernel(70, 90)]
    first, second = (
        profiling.compose_cycles([whole, main, path] * 2, [0.3, 0.1, 0.2] * 2, [1, 12, 3])["cycles"] or []
    )
    assert first == second
    assert first["gpu_ms"] == pytest.approx((40 + 12 * 11 + 3 * 20) / 16)
    assert first["wall_ms"] == pytest.approx((300 + 12 * 100 + 3 * 200) / 16)
    assert first["kernels"] == pytest.approx((2 + 12 + 3) / 16)


@pytest.mark.parametrize(
    "broken, words",
    [
        ([kernel(0, 1, "Memcpy HtoD")], "saw no kernels"),
        ([kernel(0, 0)], "gave 1 of 1 kernels no duration"),
        ([kernel(0, 1), kernel(1, 2)], "launched 16 and 32 kernels"),
    ],
)
def test_events_without_a_gpu_time_are_void(broken: list[Any], words: str) -> None:
    found = profiling.compose_cycles([[kernel(0, 1)], broken], [0.1, 0.1], [16])
    assert found["cycles"] is None and words in (found["gpu_void"] or "")


class Recorded(Step):
    """A step that writes down what runs, and how it ends."""

    def __init__(self, broken: str | None = None) -> None:
        self.ran: list[int | str] = []
        self.broken = broken

    def step(self) -> None:
        self.ran.append("first")

    def _step(self, index: int, lazy: bool) -> None:
        assert lazy
        self.ran.append(index)

    def check_finite(self) -> str | None:
        return self.broken


@pytest.mark.parametrize("broken", [None, "loss of D_r1 is NaN or infinite after step 7"])
def test_a_worker_profiles_each_kind_twice(broken: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def profiled(cycle: Any, ran: Any = None) -> list[profiling.Event]:
        waited.clear()
        cycle()
        return [("conv", True, 7, at, at + MS) for at in waited]

    monkeypatch.setattr(traces, "profile_cycle", profiled)
    monkeypatch.setattr(traces, "list_events", iter)
    monkeypatch.setattr(Rung, "synchronize", lambda self: (time.sleep(0.002), waited.append(time.time_ns())))
    rung = Rung(None, Nobody())
    rung.device, rung.step = "cuda", Recorded(broken)
    found = rung.do_profile("kinds")
    assert rung.step.ran == ["first", *[0, 1, 4] * 2] and rung.profiled
    assert found["gpu_void"] == broken
    if broken:
        assert found["cycles"] is None
        return
    assert [(each["gpu_ms"], each["kernels"]) for each in found["cycles"]] == [(1.0, 1.0)] * 2
    assert all(each["wall_ms"] >= 2 for each in found["cycles"])
