"""Looks at one recipe: what a fresh worker is asked, and when an onlooker takes another process."""

from contextlib import closing, contextmanager
from typing import Any

import pytest

from ladder.engine import looks
from ladder.engine.looks import Task
from ladder.engine.pool import Pool as RealPool
from ladder.engine.pool import WorkerFailure
from ladder.engine.visit import Visits
from tests.support import servers
from tests.support.small import LEAST

kept_servers = servers.kept_servers


class Worker:
    """A worker on a GPU that answers what was written down."""

    pid = 1

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked, self.closed = answers, [], False

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        self.asked.append(fields.get("part", do))
        answer = self.answers.get(fields.get("part", do), {})
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


class Pool:
    """A pool of workers that were written down."""

    def __init__(self, *workers: Worker) -> None:
        self.left = [*workers]

    def take(self) -> Worker:
        return self.left.pop(0)


@pytest.fixture
def visits() -> Visits:
    return Visits("cpu")


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


def test_what_voids_gpu_time_leaves_wall_time(monkeypatch: pytest.MonkeyPatch, visits: Visits) -> None:
    worker, seen = of_worker(monkeypatch, visits, 1, void="profiled cycles launched 3 and 4 kernels")
    assert worker.asked[-2:] == ["record", "record"]
    assert seen.gpu_ms is None and seen.wall_ms == [25.0] and "3 and 4" in seen.gpu_void
    _, seen = of_worker(monkeypatch, visits, 1, wall=0.015)
    assert seen.gpu_ms is None and "GPU time of 20 ms in a step of 15 ms" in seen.gpu_void
    _, failure = of_worker(monkeypatch, visits, 1, retries=2)
    assert failure.status == "oom" and "memory is too tight" in failure.reason
    _, failure = of_worker(monkeypatch, visits, 1, reasons=["hw_thermal"])
    assert failure.status == "invalid"


OF_GPU = {
    "prepare": {"prepare_s": 3.0, "device_used_bytes": 2**30},
    "kinds": {"cycles": CYCLES, "gpu_void": None},
}
ONE = ["build", "prepare", "kinds", "release"]
ON_GPU = Task(LEAST, {}, "cuda")


def looked(visits: Visits, tasks: list[Task], *workers: Worker, most: int = looks.MOST) -> list[str]:
    """Return the statuses of looks that an onlooker took, and close it."""
    onlooker, found = looks.Onlooker(Pool(*workers), most), []  # type: ignore[arg-type]
    for task in tasks:
        try:
            seen = onlooker.look(task, visits)
            assert seen.gpu_ms == [20.0, 20.0] and seen.wall_ms is None and seen.device_gib == 1.0
            found.append("ok")
        except WorkerFailure as failure:
            found.append(failure.status)
    onlooker.close()
    assert all(worker.closed for worker in workers)
    return found


def test_an_onlooker_takes_look_after_look_in_one_process_and_leaves_it_in_time(visits: Visits) -> None:
    first, second = Worker(**OF_GPU), Worker(**OF_GPU)
    assert looked(visits, [ON_GPU] * 3, first, second, most=2) == ["ok"] * 3
    assert first.asked == ["build", "load", "prepare", "kinds", "release", *ONE]
    assert second.asked == ["build", "load", "prepare", "kinds", "release"]


def test_a_void_look_is_repeated_once_in_a_fresh_process(visits: Visits) -> None:
    void = [
        Worker(**OF_GPU | {"kinds": {"cycles": None, "gpu_void": "launched 3 and 4 kernels"}})
        for _ in range(3)
    ]
    assert looked(visits, [ON_GPU], void[0], Worker(**OF_GPU)) == ["ok"]
    assert looked(visits, [ON_GPU], *void[1:]) == ["invalid"]


def test_a_real_process_leaves_a_step_and_builds_the_next(kept_servers: None, visits: Visits) -> None:
    with RealPool() as pool, closing(looks.Onlooker(pool)) as onlooker:
        first = onlooker.look(Task(LEAST, {}, "cpu"), visits)
        worker = onlooker.worker
        with pytest.raises(WorkerFailure, match="cuda_graphs: true needs a CUDA device"):
            onlooker.look(Task(LEAST, {"cuda_graphs": True, "adam": "capturable"}, "cpu"), visits)
        assert worker is not None and worker.ended and onlooker.worker is None
        onlooker.look(Task(LEAST, {}, "cpu"), visits)
        kept = onlooker.worker
        onlooker.look(Task(LEAST, {"set_to_none": True}, "cpu"), visits)
        assert onlooker.worker is kept and onlooker.taken == 2
    assert first.gpu_ms is None and len(first.wall_ms or []) == 2


@pytest.mark.gpu
def test_one_process_looks_at_captured_and_eager_steps_in_turn_on_a_gpu(kept_servers: None) -> None:
    captured = {"cuda_graphs": True, "adam": "capturable", "set_to_none": True, "precision": "bf16"}
    loading = {"workers": 2, "persistent_workers": True, "prefetch_factor": 1, "pin_memory": True}
    recipes: list[dict[str, Any]] = [captured, {}, captured | loading | {"async_copy": True}, captured]
    watched = Visits("cpu")  # the state of a GPU is another test's
    with RealPool() as pool, closing(looks.Onlooker(pool)) as onlooker:
        seen = [onlooker.look(Task(LEAST, recipe, "cuda"), watched) for recipe in recipes]
        assert onlooker.taken == len(recipes)
        fresh = looks.Onlooker(pool)
        with closing(fresh):
            again = fresh.look(Task(LEAST, captured, "cuda"), watched)
    assert all(look.gpu_ms and len(look.gpu_ms) == 2 and look.wall_ms is None for look in seen)
    assert seen[0].kernels == seen[3].kernels == again.kernels
