"""`ladder train --canary`: verdicts, the file, trainings side by side, and what ends them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.base.errors import UserError
from ladder.core.job import Job
from ladder.core.records import read_record
from ladder.images.prepare import ImageSet
from ladder.machine import system
from ladder.plan.catalog import Planned
from ladder.training import canary, canary_file
from ladder.training.canary_file import Canary, Rung, Training
from stylegan_lite.step import TrainingStep
from tests.support.fake_runs import alive, wait_for
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"ema_images": 8}


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "MOST_SAMPLES", {"cpu": 16})


@pytest.fixture
def imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes from a server that has imported torch: a new process imports it for seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ladder.training.canary"])
    monkeypatch.setattr(canary.multiprocessing, "get_context", lambda method: context)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("images")
    for index in range(16):
        shade = np.linspace(20 + 5 * index, 200, 64).reshape(8, 8, 1).repeat(3, 2)
        Image.fromarray(shade.astype(np.uint8)).save(folder / f"{index:02d}.png")
    return ImageSet(str(folder), 16, "user-images", [])


RUNGS = (
    Planned("baseline", "FP32 baseline", {}, None, None),
    Planned("set_to_none", "set_to_none", {"set_to_none": True}, None, None),
    Planned("cuda_graphs", "CUDA graphs", None, "needs a CUDA GPU", None),
)


def go(
    images: ImageSet, out: Path, *more: Planned, on_event: Callable[[Any], None] | None = None, **options: Any
) -> Canary:
    chosen = canary.Options(**{"steps": 1} | options)
    job = Job("cpu", "small", WORKLOAD, images.source, system.facts("cpu"), chosen, out)
    return canary.run(job, [*RUNGS, *more], images, on_event)


def stored(out: Path) -> Canary:
    (path,) = out.rglob("*.json")
    data = json.loads(path.read_text())
    assert canary_file.KIND.find_problem(data) is None
    return read_record(Canary, data)


def test_a_rung_that_computes_the_same_is_as_good_and_one_that_breaks_is_named(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = TrainingStep.step

    def diverge(step: TrainingStep, lazy: bool = True) -> None:
        inner(step, lazy)
        if step.recipe.precision == "bf16":
            step.G.const.data.fill_(float("nan"))

    monkeypatch.setattr(TrainingStep, "step", diverge)
    events: list[Any] = []
    nan = Planned("bf16", "x", {"precision": "bf16"}, None, None)
    file = go(images, tmp_path, nan, on_event=events.append, steps=16)
    assert {rung.name: file.judge(rung) for rung in file.rungs} == {
        "baseline": "as good", "set_to_none": "as good", "cuda_graphs": None, "bf16": "broke",
    }  # fmt: skip
    low, high = file.band
    assert low < file.rungs[0].distance < high and "NaN" in file.rungs[3].runs[0].reason
    assert [event["done"] for event in events[1:-1]] == list(range(1, 10))
    assert stored(tmp_path).is_complete and str(tmp_path) not in next(tmp_path.rglob("*.json")).read_text()
    text = canary_file.render_terminal(file, 120)
    assert "needs a CUDA GPU" in text and "as good" in text and "broke" in text
    assert canary_file.write_derived(file)["rungs"][3]["verdict"] == "broke"


def test_a_worse_mean_is_distinguished_from_the_spread_of_seeds() -> None:
    def make_rung(*distances: float) -> Rung:
        return Rung("x", "X", {}, None, [Training(seed, {"8": d}) for seed, d in enumerate(distances)])

    rungs = [make_rung(50, 51, 52), make_rung(52, 50, 51), make_rung(90, 91, 89), make_rung(20, 21, 22),
             make_rung(50)]  # fmt: skip
    file = Canary(
        schema=2, kind="canary", machine=None, started="", ladder="article", steps=1, seeds=3, samples=1,
        rungs=rungs,
    )  # fmt: skip
    assert [file.judge(each) for each in rungs] == ["as good", "as good", "worse", "better", None]
    low, high = file.band
    assert (low + high) / 2 == pytest.approx(51)
    assert 7 < high - 51 < 9  # t(0.995, 2) = 9.92, sd 1: 9.92 sqrt(2/3)


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(
    ("stop", "jobs"),
    [(interrupt, 1), (interrupt, 2), (terminate, 1), (hang_up, 1)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_interrupt_keeps_what_is_finished(
    images: ImageSet, tmp_path: Path, imported_once: None, stop: Callable[[], None], jobs: int
) -> None:
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        go(images, tmp_path, on_event=lambda event: stop() if event.get("done") == 3 else None, jobs=jobs)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    file = stored(tmp_path)
    assert not file.is_complete and sum(len(rung.runs) for rung in file.rungs) == 3
    assert canary_file.KIND.list_cautions(file)


@pytest.mark.slow
def test_trainings_side_by_side_give_the_same_result_in_the_same_order(
    images: ImageSet, tmp_path: Path, imported_once: None
) -> None:
    one, two = (go(images, tmp_path / str(jobs), steps=2, seeds=2, jobs=jobs) for jobs in (1, 2))
    assert two.is_complete and one.rungs == two.rungs
    (page,) = (tmp_path / "2").rglob("*.md")
    assert "| set\\_to\\_none |" in page.read_text() and "needs a CUDA GPU" in page.read_text()


def pretend(folder: Path, task: tuple[str, int]) -> Training:
    """Stand for training; what a task is called is what happens to it."""
    name, seed = task
    (folder / f"{os.getpid()}").touch()
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "raises":
        raise ValueError("no such thing")
    if name == "waits":
        time.sleep(60)
    return Training(seed)


def list_alive(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if alive(int(path.name)))


def test_a_training_that_dies_is_a_record_and_the_others_go_on(tmp_path: Path, imported_once: None) -> None:
    tasks = [("fine", 0), ("killed", 1), ("raises", 2), ("fine", 3), ("fine", 4)]
    outcomes = dict(canary.run_parallel(pretend, tmp_path, tasks, 2))
    assert [outcomes[task] for task in tasks] == [
        Training(0),
        Training(1, reason="worker killed by SIGKILL"),
        Training(2, reason="ValueError: no such thing"),
        Training(3),
        Training(4),
    ]
    assert len(list(tmp_path.iterdir())) == 5  # a process for each
    assert not any(list_alive(tmp_path))


def test_no_training_goes_on_when_nobody_waits_for_it(tmp_path: Path) -> None:
    running = canary.run_parallel(pretend, tmp_path, [("fine", 0), ("waits", 1)], 2)
    assert next(running)[0] == ("fine", 0)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    running.close()
    assert not any(list_alive(tmp_path))


def test_a_gpu_trains_several_at_a_time_and_a_cpu_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, jobs in ((1, 1), (8, 2), (16, 4), (64, 4)):
        monkeypatch.setattr(system, "usable_cores", lambda cores=cores: cores)
        assert canary.choose_jobs("cuda") == jobs and canary.choose_jobs("cpu") == 1


def test_one_seed_has_no_band(images: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--seeds 2"):
        go(images, tmp_path, seeds=1)
