import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.base.errors import UserError
from ladder.images.prepare import ImageSet
from ladder.machine import system
from ladder.plan.catalog import Planned
from ladder.training import canary, trainings
from stylegan_lite.step import TrainingStep
from tests.support.fake_runs import alive, wait_for
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"ema_images": 8}


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    monkeypatch.setattr(canary, "MOST_SAMPLES", {"cpu": 16})


@pytest.fixture
def imported_once(monkeypatch):
    """Fork the processes from a server that has imported torch: a new process imports it for seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ladder.training.canary"])
    monkeypatch.setattr(trainings.multiprocessing, "get_context", lambda method: context)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("images")
    for index in range(16):
        shade = np.linspace(20 + 5 * index, 200, 64).reshape(8, 8, 1).repeat(3, 2)
        Image.fromarray(shade.astype(np.uint8)).save(folder / f"{index:02d}.png")
    return ImageSet(str(folder), 16, "user-images", [])


def planned(*extra):
    rungs = [Planned("baseline", "FP32 baseline", {}, None, None)]
    rungs.append(Planned("set_to_none", "set_to_none", {"set_to_none": True}, None, None))
    rungs.append(Planned("cuda_graphs", "CUDA graphs", None, "needs a CUDA GPU", None))
    return rungs + list(extra)


def go(images, out, rungs=None, seeds=3, steps=16, **more):
    return canary.run(
        "small",
        WORKLOAD,
        "article",
        rungs or planned(),
        images,
        "cpu",
        steps=steps,
        seeds=seeds,
        out=out,
        **more,
    )


def test_a_rung_that_computes_the_same_is_as_good_and_one_that_breaks_is_told(images, tmp_path, monkeypatch):
    nan = Planned("bf16", "x", {"precision": "bf16"}, None, None)
    inner = TrainingStep.step

    def diverging(step, lazy=True):
        inner(step, lazy)
        if step.recipe.precision == "bf16":
            step.G.const.data.fill_(float("nan"))

    monkeypatch.setattr(TrainingStep, "step", diverging)
    events = []
    result = go(images, tmp_path, planned(nan), on_event=events.append)
    verdicts = {rung["name"]: rung["verdict"] for rung in result["rungs"]}
    assert verdicts == {"baseline": "as good", "set_to_none": "as good", "cuda_graphs": None, "bf16": "broke"}
    low, high = result["band"]
    assert low < result["rungs"][0]["distance"] < high
    assert "NaN" in result["rungs"][3]["runs"][0]["reason"]
    assert [event["done"] for event in events[1:-1]] == list(range(1, 10))
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["complete"] and str(tmp_path) not in path.read_text()
    text = canary.table(result)
    assert "needs a CUDA GPU" in text and "as good" in text and "broke" in text


def test_a_worse_mean_is_told_from_the_spread_of_seeds():
    def rung(*distances):
        runs = [{"seed": k, "distance": d, "levels": {}, "reason": None} for k, d in enumerate(distances)]
        return {"name": "x", "runs": runs, "distance": None, "verdict": None}

    result = {"rungs": [rung(50, 51, 52), rung(52, 50, 51), rung(90, 91, 89), rung(20, 21, 22), rung(50)]}
    canary.judge(result)
    assert [r["verdict"] for r in result["rungs"]] == ["as good", "as good", "worse", "better", None]
    low, high = result["band"]
    assert (low + high) / 2 == pytest.approx(
        51
    ) and 7 < high - 51 < 9  # t(0.995, 2) = 9.92, sd 1: 9.92 sqrt(2/3)


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupting_keeps_what_is_finished(images, tmp_path, jobs, imported_once):
    def stop(event):
        if event["event"] == "trained" and event["done"] == 3:
            raise KeyboardInterrupt

    result = go(images, tmp_path, on_event=stop, steps=1, jobs=jobs)
    assert not result["complete"] and sum(len(rung["runs"]) for rung in result["rungs"]) == 3
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["notes"] == ["interrupted: what was finished is kept"]


def without_times(result):
    return {key: value for key, value in result.items() if key not in ("started", "seconds")}


@pytest.mark.slow
def test_trainings_side_by_side_give_the_same_result_in_the_same_order(images, tmp_path, imported_once):
    one = go(images, tmp_path / "one", steps=2, seeds=2, jobs=1)
    two = go(images, tmp_path / "two", steps=2, seeds=2, jobs=2)
    assert two["complete"] and without_times(one) == without_times(two)
    (table,) = (tmp_path / "two").rglob("*.md")
    assert "| set_to_none |" in table.read_text() and "needs a CUDA GPU" in table.read_text()


def pretend(folder):
    """Stands for training; what a task is called is what happens to it."""

    def train(name, seed):
        (folder / f"{os.getpid()}").touch()
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "raises":
            raise ValueError("no such thing")
        if name == "waits":
            time.sleep(60)
        return {"seed": seed, "reason": None}

    return train


def test_a_training_that_dies_is_a_record_and_the_others_go_on(tmp_path, imported_once):
    tasks = [("fine", 0), ("killed", 1), ("raises", 2), ("fine", 3), ("fine", 4)]
    ended = dict(trainings.run(pretend, (tmp_path,), tasks, 2))
    assert ended[tasks[1]] == {"reason": "worker killed by SIGKILL"}
    assert ended[tasks[2]] == {"reason": "ValueError: no such thing"}
    assert [ended[task] for task in tasks if task[0] == "fine"] == [
        {"seed": seed, "reason": None} for seed in (0, 3, 4)
    ]
    assert 3 <= len(list(tmp_path.iterdir())) <= 4  # two, and fresh ones after those that broke
    assert not any(alive(int(path.name)) for path in tmp_path.iterdir())


def test_no_training_goes_on_when_nobody_waits_for_it(tmp_path):
    running = trainings.run(pretend, (tmp_path,), [("fine", 0), ("waits", 1)], 2)
    assert next(running)[0] == ("fine", 0)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    running.close()
    assert not any(alive(int(path.name)) for path in tmp_path.iterdir())


def test_a_gpu_trains_several_at_a_time_and_a_cpu_one(monkeypatch):
    for cores, jobs in ((1, 1), (8, 2), (16, 4), (64, 4)):
        monkeypatch.setattr(system, "usable_cores", lambda cores=cores: cores)
        assert canary.usual_jobs("cuda") == jobs and canary.usual_jobs("cpu") == 1


def test_one_seed_has_no_band(images, tmp_path):
    with pytest.raises(UserError, match="--seeds 2"):
        go(images, tmp_path, seeds=1)
