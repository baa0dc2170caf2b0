"""GPU time against waits of known length, by the GPU's own clock: on one stream, on two, and beside a slow host."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from ladder.core.protocol import CYCLE_STEPS
from ladder.engine import profiling
from ladder.engine.timed_rung import Rung
from ladder.receipts import kernel_families
from ladder.receipts.traces import measure_union
from tests.support.spinning import allowed_us

KEPT = 8  # cycles

pytestmark = pytest.mark.gpu


class Waits:
    """A step of a wait of so many microseconds on each stream, and of a sleep of the host.

    The streams run side by side, and nothing joins them. The first is the current one, unless it is `left_out`.
    """

    data_capacity = 0

    def __init__(self, *waits_us: int, sleep_s: float = 0.0, left_out: bool = False) -> None:
        import torch

        self.waits_us, self.sleep_s, self.count = waits_us, sleep_s, 0
        first = torch.cuda.Stream() if left_out else torch.cuda.current_stream()
        self.streams = [first, *(torch.cuda.Stream() for _ in waits_us[1:])]
        self.kept = torch.zeros(KEPT, CYCLE_STEPS, len(waits_us), 4, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()

    def cycle(self, lazy: bool = True) -> None:
        import torch

        from tests.support.spin_kernel import spin_kernel

        for at in range(CYCLE_STEPS):
            for number, (us, stream) in enumerate(zip(self.waits_us, self.streams, strict=True)):
                with torch.cuda.stream(stream):
                    state = self.kept[self.count, at, number]
                    spin_kernel[(1,)](state, 1000 * us, chained=False, num_warps=1)
            time.sleep(self.sleep_s)
        self.count += 1

    def clock_us(self, cycle: int) -> float:
        """Return the microseconds of a step in which a wait ran, by the clock that the waits read."""
        spans = []
        for waits in self.kept[cycle].tolist():
            spans += [
                (state[0] - 1000 * us, state[2]) for us, state in zip(self.waits_us, waits, strict=True)
            ]
        return measure_union(spans) / 1000 / CYCLE_STEPS


def rung_of(step: Waits) -> Rung:
    """Return the rung of a worker with this step, whose kernel is compiled."""
    rung = Rung(None, SimpleNamespace(send=lambda message: None))  # type: ignore[arg-type]
    rung.device, rung.step = "cuda", step
    rung.timed_cycle()
    return rung


def gpu_us(rung: Rung) -> float:
    """Return the GPU time of a step, which both profiled cycles must give as the waits' own clock does.

    The waits' category has it, too, within 2% or 10 microseconds. No pattern knows the name of a wait.
    """
    begun = rung.step.count
    found = profiling.digest_cycles(profiling.record_cycles(rung))
    assert found["gpu_void"] is None
    for number, cycle in enumerate(found["cycles"]):
        truth = rung.step.clock_us(begun + number)
        assert 1000 * cycle["gpu_ms"] == pytest.approx(truth, abs=allowed_us(truth)), number
    (waits,) = [row for row in found["profile"]["families"] if row["name"] == kernel_families.OTHER]
    truth = rung.step.clock_us(begun)
    assert 1000 * waits["own_ms"] == pytest.approx(truth, abs=max(0.02 * truth, 10))
    return 1000 * found["cycles"][0]["gpu_ms"]


@pytest.mark.parametrize("waits", [(1000,), (1000, 1500)], ids=["one stream", "two streams"])
def test_waits_come_back_as_gpu_time(waits: tuple[int, ...]) -> None:
    assert gpu_us(rung_of(Waits(*waits))) == pytest.approx(
        max(waits), rel=0.05
    )  # their sum is 1.7 times as much


def test_a_host_that_sleeps_changes_wall_time_alone_and_a_longer_wait_changes_both() -> None:
    plain, asleep, longer = (rung_of(each) for each in (Waits(1000), Waits(1000, sleep_s=0.002), Waits(1200)))
    walls = [1e6 * rung.timed_cycle()[0] for rung in (plain, asleep, longer)]  # before any profiler
    busy = [gpu_us(rung) for rung in (plain, asleep, longer)]
    assert walls[1] > walls[0] + 900 and busy[1] == pytest.approx(busy[0], abs=allowed_us(busy[0]))
    assert walls[2] - walls[0] == pytest.approx(200, abs=20)
    assert busy[2] - busy[0] == pytest.approx(200, abs=allowed_us(busy[2]))


def test_work_on_a_stream_that_nobody_waits_for_is_in_the_time_of_a_step() -> None:
    wall, event = rung_of(Waits(1000, left_out=True)).timed_cycle()
    assert wall > 0.001 and event is not None and event < wall / 2  # a note says so of such a rung
