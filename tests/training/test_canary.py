"""`ladder train --canary`: verdicts, the file, trainings side by side, and what ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from click.testing import Result
from msgspec import structs
from PIL import Image

from ladder.core.paths import ROOT
from ladder.studies import canary as study
from ladder.studies import frame
from ladder.studies.canary import STUDY, Case, File, Observed
from ladder.training import canary
from ladder.training.canary import Outcome
from stylegan_lite.step import TrainingStep
from tests.studies.test_contract import read
from tests.support.commands import call
from tests.support.fake_runs import alive
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
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a canary of three rungs, one of which needs a GPU, on sixteen pictures."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("images")
    for index in range(16):
        shade = np.linspace(20 + 5 * index, 200, 64).reshape(8, 8, 1).repeat(3, 2)
        Image.fromarray(shade.astype(np.uint8)).save(folder / f"{index:02d}.png")
    files = tmp_path_factory.mktemp("files")
    (files / "little.yaml").write_text(yaml.safe_dump(WORKLOAD))
    ladder = {"rungs": ["baseline", "channels_last", "bf16", "cuda_graphs"]}
    (files / "short.yaml").write_text(yaml.safe_dump(ladder))
    names = ["-w", files / "little.yaml", "--ladder", files / "short.yaml", "--data", folder]
    return ["train", "--canary", *map(str, names), "--device", "cpu", "--steps", "1"]


def go(arguments: list[str], out: Path, *more: str) -> tuple[Result, File]:
    result = call(*arguments, "--out", str(out), *more)
    (path,) = out.glob("*.json")
    return result, frame.read_file(STUDY, path)


def test_a_rung_that_computes_the_same_is_as_good_and_one_that_breaks_is_named(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = TrainingStep.step

    def diverge(step: TrainingStep, lazy: bool = True) -> None:
        inner(step, lazy)
        if step.recipe.precision == "bf16":
            step.G.const.data.fill_(float("nan"))

    monkeypatch.setattr(TrainingStep, "step", diverge)
    result, file = go(arguments, tmp_path, "--steps", "16")
    assert result.exit_code == 1 and file.is_complete
    rungs = study.list_rungs(file)
    assert {rung.name: rung.verdict for rung in rungs} == {
        "baseline": "as good", "channels_last": "as good", "bf16": "broke", "cuda_graphs": None,
    }  # fmt: skip
    low, high = study.derive_band(file)
    assert low < rungs[0].distance < high
    assert "NaN" in file.observed["bf16, seed 0"].reason and "9/9 bf16, seed 2: broke" in result.stderr
    assert "needs a CUDA GPU" in result.stdout and "as good" in result.stdout and "broke" in result.stdout
    assert STUDY.derive(file)["rungs"][2]["verdict"] == "broke"


def test_a_worse_mean_is_distinguished_from_the_spread_of_seeds() -> None:
    _, golden = read("canary")
    distances = {
        "base": (50, 51, 52),
        "same": (52, 50, 51),
        "far": (90, 91, 89),
        "near": (20, 21, 22),
        "few": (50,),
    }
    cases, observed = {}, {}
    for rung, each in distances.items():
        for seed, distance in enumerate(each):
            cases[f"{rung}, {seed}"] = Case(rung=rung, title=rung, recipe={}, seed=seed)
            observed[f"{rung}, {seed}"] = Observed(levels={"8": float(distance)})
    file = structs.replace(golden, cases=cases, observed=observed)
    assert [rung.verdict for rung in study.list_rungs(file)] == [
        "as good",
        "as good",
        "worse",
        "better",
        None,
    ]
    low, high = study.derive_band(file)
    assert (low + high) / 2 == pytest.approx(51)
    assert 7 < high - 51 < 9  # t(0.995, 2) = 9.92, sd 1: 9.92 sqrt(2/3)


def test_the_committed_canary_has_the_verdicts_of_its_day() -> None:
    (path,) = (ROOT / "results" / "canary").glob("*.json")
    file = frame.read_file(STUDY, path)
    assert study.derive_band(file) == pytest.approx((88.4, 264.4), abs=0.1)
    assert {rung.verdict for rung in study.list_rungs(file)} == {"as good"}


@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 1)]
)
def test_an_interrupt_keeps_what_is_finished_and_it_is_gone_on_with(
    arguments: list[str],
    tmp_path: Path,
    imported_once: None,
    number: int,
    jobs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGHUP)}
    report = frame.Session.report

    def stop(session: frame.Session, line: str) -> None:
        report(session, line)
        if line.startswith("3/"):
            os.kill(os.getpid(), number)
            time.sleep(1)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(frame.Session, "report", stop)
            result, file = go(arguments, tmp_path, "--jobs", str(jobs))
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert result.exit_code == 130 and not file.is_complete
    kept = {key: each for key, each in file.observed.items() if each.status == "ok"}
    assert len(kept) == 3 and "interrupted" in frame.list_cautions(STUDY, file)
    if jobs == 1 and number == signal.SIGINT:
        (path,) = tmp_path.glob("*.json")
        _, file = go(arguments, tmp_path, "--resume", str(path))
        assert file.is_complete and kept.items() <= file.observed.items()


def pretend(folder: Path, task: tuple[str, int]) -> Outcome:
    """Stand for training; what a task is called is what happens to it."""
    name, number = task
    (folder / f"{os.getpid()}").touch()
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "raises":
        raise ValueError("no such thing")
    if name == "waits":
        time.sleep(60)
    return Outcome(samples=number)


def list_alive(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if alive(int(path.name)))


def test_a_training_that_dies_is_a_record_and_the_others_go_on(tmp_path: Path, imported_once: None) -> None:
    tasks = [("fine", 0), ("killed", 1), ("raises", 2), ("fine", 3), ("fine", 4)]
    outcomes = dict(canary.run_parallel(pretend, tmp_path, tasks, 2))
    assert [outcomes[task] for task in tasks] == [
        Outcome(),
        Outcome(reason="worker killed by SIGKILL"),
        Outcome(reason="ValueError: no such thing"),
        Outcome(samples=3),
        Outcome(samples=4),
    ]
    assert len(list(tmp_path.iterdir())) == 5  # a process for each
    assert not any(list_alive(tmp_path))
