"""Looks at one recipe: the figures of a trace, failures in this process, and what a fresh worker is asked."""

from contextlib import contextmanager
from typing import Any

import pytest

from ladder.engine import looks
from ladder.engine.looks import Task
from ladder.engine.pool import WorkerFailure
from ladder.engine.timed_rung import Invalid, Rung
from ladder.engine.visit import Visits
from tests.support.small import LEAST

STEP = 16 * 10**6  # ns of a cycle for a millisecond a step


def kernel(name: str, stream: int, begin: float, end: float) -> tuple[str, bool, int, int, int]:
    return name, True, stream, int(begin * STEP), int(end * STEP)


def test_gpu_time_is_the_union_of_kernels_and_copies_of_each_cycle() -> None:
    first = [kernel("conv", 7, 0, 2), kernel("act", 9, 1, 3), ("cudaLaunchKernel", False, 0, 0, 99 * STEP)]
    second = [kernel("conv", 7, 10, 12), kernel("Memcpy HtoD", 9, 13, 14)]
    found = looks.figures([first, second])
    assert [each["gpu_ms"] for each in found] == [3.0, 3.0]
    assert [each["kernels"] for each in found] == [2 / 16, 1 / 16]
    with pytest.raises(Invalid, match="saw no kernels"):
        looks.figures([first, [kernel("Memcpy HtoD", 9, 13, 14)]])


@pytest.fixture
def visits() -> Visits:
    return Visits("cpu")


def test_a_recipe_that_cannot_run_here_is_a_failure_with_a_reason(visits: Visits) -> None:
    with pytest.raises(WorkerFailure, match="cuda_graphs: true needs a CUDA device") as failure:
        looks.in_this_process(Task(LEAST, {"cuda_graphs": True, "adam": "capturable"}, "cpu"), visits)
    assert failure.value.status == "failed"


def test_a_void_look_is_repeated_once_and_memory_is_not(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def build(self: Rung, *_: Any, **__: Any) -> dict[str, Any]:
        tries.append(wanted)
        raise MemoryError("out of memory") if wanted == "oom" else Invalid("cycles launched 3 and 4 kernels")

    monkeypatch.setattr(Rung, "do_import", lambda self, torch: {})
    monkeypatch.setattr(Rung, "do_build", build)
    for wanted, times in (("invalid", looks.TRIES), ("oom", 1)):
        tries.clear()
        with pytest.raises(WorkerFailure) as failure:
            looks.in_this_process(Task(LEAST, {}, "cpu"), visits)
        assert failure.value.status == wanted and len(tries) == times


class Worker:
    """A worker on a GPU that answers what was written down."""

    pid = 1

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, []

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        self.asked.append(fields.get("part", do))
        return self.answers.get(fields.get("part", do), {})


CYCLES = [{"gpu_ms": 20.0, "wall_ms": 30.0, "kernels": 3000.0}] * 2


def of_worker(monkeypatch: pytest.MonkeyPatch, visits: Visits, cycles: int, **more: Any) -> Any:
    """Return a worker that was asked for a look, and the look or the failure."""

    @contextmanager
    def watched(alive: set[int]) -> Any:
        yield {"tenancy": "alone", "reasons": more.get("reasons")}

    monkeypatch.setattr(visits, "watched", watched)
    record = {"cycles": CYCLES, "profile": {}, "gpu_void": more.get("void")}
    visit = {"samples_s": [more.get("wall", 0.025)], "alloc_retries": more.get("retries", 0)}
    worker = Worker(prepare={"prepare_s": 3.0, "device_used_bytes": 2**30}, record=record, visit=visit)
    task = Task(LEAST, {"cuda_graphs": True}, "cuda")
    try:
        return worker, looks.in_fresh_process(worker, task, visits, cycles)  # type: ignore[arg-type]
    except WorkerFailure as failure:
        return worker, failure


def test_a_fresh_process_times_before_it_profiles(monkeypatch: pytest.MonkeyPatch, visits: Visits) -> None:
    worker, seen = of_worker(monkeypatch, visits, 2)
    assert worker.asked == ["build", "prepare", "visit", "load", "record"]
    assert (seen.wall_ms, seen.gpu_ms, seen.kernels, seen.device_gib) == ([25.0], [20.0, 20.0], 3000.0, 1.0)
    worker, seen = of_worker(monkeypatch, visits, 0)
    assert worker.asked == ["build", "prepare", "load", "record"] and seen.wall_ms is None


def test_what_voids_gpu_time_leaves_wall_time(monkeypatch: pytest.MonkeyPatch, visits: Visits) -> None:
    worker, seen = of_worker(monkeypatch, visits, 1, void="profiled cycles launched 3 and 4 kernels")
    assert worker.asked[-2:] == ["record", "record"]
    assert seen.gpu_ms is None and seen.wall_ms == [25.0] and "3 and 4" in seen.gpu_void
    _, seen = of_worker(monkeypatch, visits, 1, wall=0.015)
    assert seen.gpu_ms is None and "GPU time of 20 ms in a step of 15 ms" in seen.gpu_void
    _, failure = of_worker(monkeypatch, visits, 0, void="profiled cycles launched 3 and 4 kernels")
    assert failure.status == "invalid"
    _, failure = of_worker(monkeypatch, visits, 1, retries=2)
    assert failure.status == "oom" and "memory is too tight" in failure.reason
    _, failure = of_worker(monkeypatch, visits, 1, reasons=["hw_thermal"])
    assert failure.status == "invalid"
