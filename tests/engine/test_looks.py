"""One recipe in one process: looks of studies and visits for benches, what a worker is asked and when one is fresh."""

import json
from contextlib import closing, contextmanager
from typing import Any

import pytest

from ladder.engine import looks, once
from ladder.engine.looks import Task
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.pool import Worker as RealWorker
from ladder.engine.visit import Visits
from tests.support import servers
from tests.support.fake_runs import FAKE, WORKLOAD
from tests.support.small import LEAST

kept_servers = servers.kept_servers
CYCLES = [{"gpu_ms": 20.0, "wall_ms": 30.0, "kernels": 3000.0}] * 2
VOID = "profiled cycles launched 3 and 4 kernels"


class Worker:
    """A worker on a GPU that answers what was written down."""

    pid = 1

    def __init__(self, **answers: Any) -> None:
        prepared = {"prepare_s": 3.0, "device_used_bytes": 2**30}
        kinds = {"cycles": CYCLES, "gpu_void": None}
        self.answers = {"prepare": prepared, "kinds": kinds} | answers
        self.asked: list[str] = []
        self.closed = False

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        self.asked.append(fields.get("part", do))
        answer = self.answers.get(self.asked[-1], {})
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def close(self) -> None:
        self.closed = True

    def take(self) -> "Worker":  # as a pool
        return self

    kill = close


@pytest.fixture
def visits() -> Visits:
    return Visits("cpu")


# --- looks ---


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, visits: Visits) -> Any:
    """look(what the worker says): the fresh worker that was asked for a look, and the look or the failure."""

    def take(
        wall_s: float = 0.025, retries: int = 0, void: str | None = None, reasons: Any = None
    ) -> tuple[Worker, Any]:
        @contextmanager
        def watched(alive: set[int]) -> Any:
            yield {"tenancy": "alone", "reasons": reasons}

        monkeypatch.setattr(visits, "watched", watched)
        record = {"cycles": CYCLES, "profile": {}, "gpu_void": void}
        worker = Worker(record=record, visit={"samples_s": [wall_s], "alloc_retries": retries})
        task = Task(LEAST, {"cuda_graphs": True}, "cuda")
        try:
            return worker, looks.in_fresh_process(worker, task, visits, 1)  # type: ignore[arg-type]
        except WorkerFailure as failure:
            return worker, failure

    return take


def test_a_fresh_process_times_before_it_profiles(look: Any) -> None:
    worker, seen = look()
    assert worker.asked == ["build", "prepare", "visit", "load", "record"]
    assert (seen.wall_ms, seen.gpu_ms, seen.kernels, seen.device_gib) == ([25.0], [20.0, 20.0], 3000.0, 1.0)


def test_what_voids_gpu_time_leaves_wall_time(look: Any) -> None:
    worker, seen = look(void=VOID)
    assert worker.asked[-2:] == ["record", "record"]
    assert seen.gpu_ms is None and seen.wall_ms == [25.0] and "3 and 4" in seen.gpu_void
    _, seen = look(wall_s=0.015)
    assert seen.gpu_ms is None and "GPU time of 20 ms in a step of 15 ms" in seen.gpu_void
    _, failure = look(retries=2)
    assert failure.status == "oom" and "memory is too tight" in failure.reason
    assert look(reasons=["hw_thermal"])[1].status == "invalid"


ONE = ["build", "prepare", "kinds", "release"]
FIRST = ["build", "load", "prepare", "kinds", "release"]
ON_GPU = Task(LEAST, {}, "cuda")


def take_looks(visits: Visits, number: int, *workers: Worker, most: int = looks.MOST) -> list[str]:
    """Return the statuses of looks that an onlooker took, and close it."""
    left, statuses = [*workers], []
    pool = type("Pool", (), {"take": lambda self: left.pop(0)})()
    with closing(looks.Onlooker(pool, most)) as onlooker:
        for _ in range(number):
            try:
                seen = onlooker.look(ON_GPU, visits)
                assert seen.gpu_ms == [20.0, 20.0] and seen.wall_ms is None and seen.device_gib == 1.0
                statuses.append("ok")
            except WorkerFailure as failure:
                statuses.append(failure.status)
    assert not left and all(worker.closed for worker in workers)
    return statuses


def test_an_onlooker_takes_look_after_look_in_one_process_and_leaves_it_in_time(visits: Visits) -> None:
    first, second = Worker(), Worker()
    assert take_looks(visits, 3, first, second, most=2) == ["ok"] * 3
    assert first.asked == [*FIRST, *ONE] and second.asked == FIRST


def test_a_void_look_is_repeated_once_in_a_fresh_process(visits: Visits) -> None:
    void = [Worker(kinds={"cycles": None, "gpu_void": VOID}) for _ in range(3)]
    assert take_looks(visits, 1, void[0], Worker()) == ["ok"]
    assert take_looks(visits, 1, *void[1:]) == ["invalid"]


def test_a_real_process_leaves_a_step_and_builds_the_next(kept_servers: None, visits: Visits) -> None:
    with Pool() as pool, closing(looks.Onlooker(pool)) as onlooker:
        first = onlooker.look(Task(LEAST, {}, "cpu"), visits)
        worker = onlooker.worker
        with pytest.raises(WorkerFailure, match="cuda_graphs: true needs a CUDA device"):
            onlooker.look(Task(LEAST, {"cuda_graphs": True, "adam": "capturable"}, "cpu"), visits)
        assert worker is not None and worker.ended and onlooker.worker is None
        onlooker.look(Task(LEAST, {}, "cpu"), visits)
        again = onlooker.worker
        onlooker.look(Task(LEAST, {"set_to_none": True}, "cpu"), visits)
        assert onlooker.worker is again and onlooker.taken == 2
    assert first.gpu_ms is None and len(first.wall_ms or []) == 2


@pytest.mark.gpu
def test_one_process_looks_at_captured_and_eager_steps_in_turn_on_a_gpu(kept_servers: None) -> None:
    captured = {"cuda_graphs": True, "adam": "capturable", "set_to_none": True, "precision": "bf16"}
    loading = {"workers": 2, "persistent_workers": True, "prefetch_factor": 1, "pin_memory": True}
    recipes: list[dict[str, Any]] = [captured, {}, captured | loading | {"async_copy": True}, captured]
    watched = Visits("cpu")  # the state of a GPU is another test's
    with Pool() as pool, closing(looks.Onlooker(pool)) as onlooker:
        seen = [onlooker.look(Task(LEAST, recipe, "cuda"), watched) for recipe in recipes]
        assert onlooker.taken == len(recipes)
        with closing(looks.Onlooker(pool)) as fresh:
            again = fresh.look(Task(LEAST, captured, "cuda"), watched)
    assert all(look.gpu_ms and len(look.gpu_ms) == 2 and look.wall_ms is None for look in seen)
    assert seen[0].kernels == seen[3].kernels == again.kernels


# --- one visit, for benches ---


def test_preparing_once_gives_its_parts_and_times_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = list[str](), RealWorker.call
    call = lambda self, do, **fields: asked.append(do) or real(self, do, **fields)  # noqa: E731
    monkeypatch.setattr(RealWorker, "call", call)
    reply = once.prepare_once(WORKLOAD, {"name": "a"}, "cpu", code=FAKE)
    assert asked == ["build", "prepare", "choices"]
    assert reply["prepare_s"] >= 0 and reply["choices"] == [] and reply["recipe"]["name"] == "a"
    assert not {"ok", "did", "gpu_uuid"} & {*reply}


def test_what_the_measured_code_says_of_its_preparing_stands_in_no_place_of_a_clock() -> None:
    lies = dict.fromkeys(("prepare_s", "capture_s", "compile_s"), 1000.0) | {
        "cache_s": -1000.0,
        "warmup_s": "1",
    }
    others = {"ok": False, "progress": "x", "build_s": 1000.0, "samples_s": [7.0], "peak_reserved_bytes": 1}
    own = {"prepare_s", "capture_s", "peak_rss_bytes"}
    for says in (lies, lies | others):
        reply = once.prepare_once(WORKLOAD, {"says": says}, "cpu", code=FAKE)
        assert {*reply} == {"build_s", "recipe", "settings", "choices"} | own
        assert reply["capture_s"] == 0 and reply["prepare_s"] < 1000 and reply["build_s"] < 1000
    reply = once.measure_once(WORKLOAD, {"says": lies | others}, "cpu", 1, code=FAKE)
    assert reply["peak_reserved_bytes"] is None and reply["prepare_s"] < 1000
    reply = once.prepare_once(WORKLOAD, {"prepare": 0.01, "says": {"warmup_s": 0.001}}, "cpu", code=FAKE)
    assert reply["warmup_s"] == 0.001  # which nobody else can tell, and which fits


def test_measuring_once_gives_seconds_for_a_step_and_runs_no_cycle_that_asv_has_no_number_of(
    tmp_path: Any,
) -> None:
    log = tmp_path / "cycles"
    reply = once.measure_once(WORKLOAD, {"name": "a", "sleep": 0.016, "log": str(log)}, "cpu", 2, code=FAKE)
    assert [json.loads(line) for line in log.read_text().splitlines()] == [["a", True]] * 3  # one leads in
    assert len(reply["samples_s"]) == 2 and min(reply["samples_s"]) >= 0.001
    assert reply["peak_reserved_bytes"] is None and reply["peak_rss_bytes"] > 2**20
    with pytest.raises(WorkerFailure, match="out of memory") as failure:
        once.measure_once(WORKLOAD, {"fault": "oom", "at": "prepare"}, "cpu", 1, code=FAKE)
    assert failure.value.status == "oom"


def test_rows_share_a_pool_that_imports_once_and_each_has_a_worker_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, real = list[RealWorker](), Pool.take
    monkeypatch.setattr(Pool, "take", lambda pool: taken.append(real(pool)) or taken[-1])
    with once.open_pool("cpu", FAKE) as workers:
        for _ in range(2):
            reply = once.measure_once(WORKLOAD, {"name": "a"}, "cpu", 1, code=FAKE, workers=workers)
            assert len(reply["samples_s"]) == 1 and taken[-1].ended
    assert len({worker.pid for worker in taken}) == 2
    with pytest.raises(WorkerFailure, match="the run was ended"):
        once.measure_once(WORKLOAD, {"name": "a"}, "cpu", 1, code=FAKE, workers=workers)


def measure_on_gpu(recipe: dict[str, Any], *records: Any, load: Any = None) -> tuple[Worker, dict[str, Any]]:
    """Return a worker whose step takes 10 ms, and what is measured. Each recording is (gpu_ms, why it is void)."""
    replies = [{"cycles": [{"gpu_ms": ms} for ms in of], "gpu_void": void} for of, void in records]
    worker = Worker(
        build={"recipe": {}, "settings": {}, "build_s": 1.0},
        visit={"samples_s": [0.010, 0.011], "event_s": None},
        choices={"choices": []},
        load=load or {},
        record=replies,
    )
    reply = once.measure_once(WORKLOAD, recipe, "cuda", 2, workers=worker)  # type: ignore[arg-type]
    assert reply["samples_s"] == [0.010, 0.011]
    return worker, reply


def test_two_cycles_are_profiled_after_everything_else_and_give_gpu_seconds() -> None:
    worker, reply = measure_on_gpu({}, ([8.0, 8.02], None))
    assert worker.asked == ["build", "prepare", "visit", "choices", "load", "record"]
    assert reply["gpu_s"] == pytest.approx([0.008, 0.00802]) and reply["gpu_void"] is None


@pytest.mark.parametrize(
    ("recipe", "record", "load", "why"),
    [
        ({}, ([], "the profiler saw no kernels"), None, "the profiler saw no kernels"),
        ({}, ([8.0, 8.0], VOID), None, "3 and 4"),
        ({"cuda_graphs": True}, ([12.0, 12.0], None), None, "GPU time of 12 ms in a step of 10.5"),
        ({}, ([], None), WorkerFailure("failed", "profile: no CUPTI"), "no CUPTI"),
    ],
    ids=["no kernels", "other kernels", "beyond the wall", "no profiler"],
)
def test_a_gpu_time_that_does_not_count_leaves_its_reason_and_the_wall_times(
    recipe: Any, record: Any, load: Any, why: str
) -> None:
    _, reply = measure_on_gpu(recipe, record, record, load=load)
    assert reply["gpu_s"] is None and why in reply["gpu_void"]


def test_a_gpu_time_that_cannot_be_true_is_taken_once_more_after_a_rest() -> None:
    worker, reply = measure_on_gpu({"cuda_graphs": True}, ([12.0] * 2, None), ([10.4] * 2, None))
    assert reply["gpu_s"] == pytest.approx([0.0104] * 2) and reply["gpu_void"] is None
    assert worker.asked.count("record") == 2
