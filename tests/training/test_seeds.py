"""Trainings side by side, and what ends them."""

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
from PIL import Image

from ladder.core.paths import ROOT
from ladder.engine.pair import describe_pair
from ladder.studies import frame
from ladder.studies.quality import STUDY, File, derive_rungs
from ladder.training import seeds
from ladder.training.seeds import Outcome
from stylegan_lite.step import TrainingStep
from stylegan_lite.step.loading import find_model
from tests.support.commands import call
from tests.support.fake_runs import alive
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"ema_images": 8}


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "MOST_SAMPLES", {"cpu": 16})


@pytest.fixture
def imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes from a server that has imported torch: a new process imports it for seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ladder.training.seeds"])
    monkeypatch.setattr(seeds.multiprocessing, "get_context", lambda method: context)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a comparison of two rungs with the baseline, on sixteen pictures."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("images")
    for index in range(16):
        shade = np.linspace(20 + 5 * index, 200, 64).reshape(8, 8, 1).repeat(3, 2)
        Image.fromarray(shade.astype(np.uint8)).save(folder / f"{index:02d}.png")
    files = tmp_path_factory.mktemp("files")
    (files / "little.yaml").write_text(yaml.safe_dump(WORKLOAD))
    names = ["-w", files / "little.yaml", "--ladder", "article", "--data", folder]
    how = ("--rungs", "channels_last,bf16", "--seeds", "2", "--points", "1", "--device", "cpu")
    return ["quality", *map(str, names), *how]


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
    verdicts = {rung.name: rung.verdict for rung in derive_rungs(file)}
    assert (
        verdicts["channels_last"] in ("as good", "not decided with 2 seeds") and verdicts["bf16"] == "broke"
    )
    assert "NaN" in file.observed["bf16, seed 0"].reason and "8/8 bf16, seed 1: broke" in result.stderr


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
            result, file = go(arguments, tmp_path, "--steps", "1", "--jobs", str(jobs))
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
    outcomes = dict(seeds.run_parallel(pretend, tmp_path, tasks, 2))
    assert [outcomes[task] for task in tasks] == [
        Outcome(),
        Outcome(reason="worker killed by SIGKILL"),
        Outcome(reason="ValueError: no such thing"),
        Outcome(samples=3),
        Outcome(samples=4),
    ]
    assert len(list(tmp_path.iterdir())) == 5  # a process for each
    assert not any(list_alive(tmp_path))


def make_pair(tmp_path: Path, change: str = "", to: str = "") -> dict:
    """Return the workload of the example dcgan, narrow, with a change of its source."""
    source = (ROOT / "examples" / "pairs" / "dcgan.py").read_text()
    assert change in source
    (tmp_path / "mine.py").write_text(source.replace(change, to))
    for index in range(8):
        Image.effect_noise((64, 64), 90 + index).convert("RGB").save(tmp_path / f"{index}.png")
    settings = {"width": 4, "batch": 4, "z_dim": 8}
    fields = describe_pair(find_model("mine.py", tmp_path), settings, "cpu", 0)["fields"]
    return fields | {"data": str(tmp_path)}


def test_a_pair_of_the_users_own_is_trained_in_a_process_of_its_own(
    tmp_path: Path, imported_once: None
) -> None:
    setup = seeds.Setup(make_pair(tmp_path), "cpu", 2, points=2)
    ((_, outcome),) = seeds.train_all(setup, [seeds.Task("one", {}, 0)], 1)
    assert outcome.reason is None and [point.step for point in outcome.points] == [1, 2]
    assert set(outcome.points[0].levels) == {"64", "32", "16"} and outcome.points[0].frechet is None


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ("def sample(", "def draw(", "the pair needs sample(networks, z)"),
        (
            "return G(z)",
            "return G(z)[:, :1]",
            "sample returns images of [1, 64, 64], the data are [3, 64, 64]",
        ),
    ],
)
def test_a_pair_without_samples_is_refused_before_it_is_trained(
    tmp_path: Path, change: str, to: str, says: str
) -> None:
    setup = seeds.Setup(make_pair(tmp_path, change, to), "cpu", 10**6)
    outcome = seeds.train_rung(setup, seeds.Task("one", {}, 0), seeds.read_real(setup))
    assert outcome.refused and says in (outcome.reason or "")


def test_what_a_task_plants_is_trained(tmp_path: Path) -> None:
    for index in range(8):
        Image.effect_noise((8, 8), 90 + index).convert("RGB").save(tmp_path / f"{index}.png")
    setup = seeds.Setup(WORKLOAD | {"data": str(tmp_path)}, "cpu", 2)
    clean, again, planted = (
        seeds.train_rung(setup, seeds.Task("", {}, 0, variant), seeds.read_real(setup))
        for variant in (None, None, ["bugs", "sign_flipped"])
    )
    assert clean.points[0].levels == again.points[0].levels != planted.points[0].levels
