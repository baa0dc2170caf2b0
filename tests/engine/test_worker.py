"""Inside the worker: when a step time stands still, how long a GPU was busy, what kind of failure it was."""

import time
import types

import pytest

from ladder.engine.channel import Nobody
from ladder.engine.timed_rung import Invalid, NoContract, Rung, is_settled, peak_rss
from ladder.engine.worker import make_failure


@pytest.mark.parametrize(
    ("times", "settled"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 1.004], True),
        ([1.0, 1.01], False),
        ([2.0, 1.5, 1.2, 1.0], False),  # still warming up
        ([1.0, 1.1, 1.05, 1.06], True),  # noisy, but the same in both halves
        ([5.0, 1.0, 1.001, 1.0, 1.001], True),  # the first cycle no longer counts
    ],
)
def test_settled_is_when_two_windows_agree(times: list[float], settled: bool) -> None:
    assert is_settled(times) == settled


def test_the_lead_in_goes_on_until_the_time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    rung = Rung(None, None)
    rung.step = type("Step", (), {"data_capacity": 20})
    for times, limit_s, limit_cycles, expected in (
        ([5, 4, 3, 3, 3, 3, 3], 30, 8, (7, True)),
        ([9, 8, 7, 6, 5, 4, 3, 2, 1], 30, 8, (8, False)),
        ([9, 8, 7], 30, 1, (2, False)),  # 20 batches in the loader: two cycles, whatever the limit
        ([9, 8, 7], 0, 0, (2, None)),
    ):
        left = iter(times)
        monkeypatch.setattr(rung, "timed_cycle", lambda left=left: (float(next(left)), None))
        assert rung.lead_in(limit_s, limit_cycles) == expected


class Loading:
    """A step of 1 ms whose loader needs 80 ms for a batch, and holds 33 ready while nobody trains."""

    data_capacity = 33

    def __init__(self) -> None:
        self.now, self.count, self.ready, self.trained = 0.0, 0, self.data_capacity, 0
        self.feed = types.SimpleNamespace(next=self.take)

    def take(self) -> None:
        self.now += 0.0 if self.ready else 0.08
        self.ready = max(0, self.ready - 1)

    def step(self) -> None:
        self.take()
        self.now, self.count, self.trained = self.now + 0.001, self.count + 1, self.trained + 1

    def cycle(self, lazy: bool = True) -> None:
        for _ in range(16):
            self.step()


def test_a_timed_cycle_goes_at_the_loader_s_rate_whatever_it_held_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rung = Rung(None, Nobody())
    rung.step = step = Loading()
    monkeypatch.setattr(time, "perf_counter", lambda: step.now)
    (sample,) = rung.do_cycle()["samples_s"]
    assert sample == pytest.approx(0.081)
    assert step.trained <= 16 + 2  # what was held ready is taken, not trained on


class Stepping:
    """A step whose phases take 1, 2, 3 and 4 seconds of a clock of its own, and the first of all a minute more."""

    took = {"G_main": 1.0, "D_main": 2.0, "G_pl": 3.0, "D_r1": 4.0}

    def __init__(self) -> None:
        self.count, self.now = 0, 0.0

    def phases(self, index: int, lazy: bool = True) -> tuple[str, ...]:
        path, penalty = ("G_pl",) * (index % 4 == 0), ("D_r1",) * (index % 16 == 0)
        return ("G_main", *path, "D_main", *penalty)

    def step(self) -> None:
        self.now += sum(self.took[phase] for phase in self.phases(self.count)) + 60 * (self.count == 0)
        self.count += 1


@pytest.mark.parametrize("count", [0, 16, 5])
def test_what_a_lazy_phase_adds_to_a_step_that_has_it(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    rung = Rung(None, Nobody())
    rung.step = Stepping()
    rung.step.count = count
    monkeypatch.setattr(rung, "mark", lambda: rung.step.now)
    assert rung.lazy_costs() == {"G_pl": 3.0, "D_r1": 4.0}


CAPTURE = "CUDA error: operation failed due to a previous error during capture"


def ended_in(first: Exception, words: str) -> Exception:
    """Return the error of a context's end, which hides the error that ended its block."""
    try:
        try:
            raise first
        finally:
            raise RuntimeError(words)
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "oom"),
        (ended_in(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), CAPTURE), "oom"),
        (ended_in(ValueError("wrong shape"), CAPTURE), "failed"),
        (ended_in(RuntimeError("CUDA out of memory"), "a later bug"), "failed"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "failed"),
        (ValueError("capture"), "failed"),
        (Invalid("G_main: loss is NaN"), "invalid"),
        (NoContract("no package"), "n/a"),
    ],
)
def test_each_failure_has_its_status(error: Exception, status: str) -> None:
    reply = make_failure(error, "prepare", Rung(None, None))
    assert reply["status"] == status and not reply["ok"] and reply["reason"]
    assert peak_rss() >= reply["peak_rss_bytes"] > 2**20


@pytest.mark.gpu
def test_a_capture_takes_a_part_of_preparing() -> None:
    import torch

    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()

    class Step:
        def prepare(self) -> dict[str, float]:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x.add_(1)
            return {"capture_s": 1000.0}

    rung = Rung(None, None)
    rung.step, rung.device = Step(), "cuda"
    found = rung.do_prepare()
    assert 0 < found["capture_s"] <= found["prepare_s"]


@pytest.mark.gpu
def test_the_profiler_sees_what_a_spin_kernel_takes() -> None:
    import torch

    from ladder.receipts import traces

    rung = Rung(None, Nobody())
    rung.device = "cuda"

    class Step:
        data_capacity = 0

        def cycle(self, lazy: bool = True) -> None:
            for _ in range(16):
                torch.cuda._sleep(10_000_000)

    rung.step = Step()
    for _ in range(4):  # the spin is counted in clock cycles: an idle GPU's clock has to rise first
        rung.timed_cycle()
    wall, event = rung.timed_cycle()
    seen = traces.trace_cycle(rung.step.cycle)
    assert seen["kernels"] == 1 and seen["busy_ms"] == pytest.approx(1000 * wall, rel=0.05)
    assert event == pytest.approx(wall, rel=0.05)
