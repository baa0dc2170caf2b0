"""The example of a training loop: it resumes exactly, writes samples and weights, and refuses in one line."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from ladder.core.errors import UserError
from ladder.images import prepare
from ladder.machine import system
from ladder.training.train import Settings, train_model
from stylegan_lite import Recipe, Workload
from stylegan_lite.networks import Generator
from stylegan_lite.step import TrainingStep, imagecache
from tests.support.small import LEAST

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train_mine.py"


@pytest.fixture(autouse=True)
def on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    monkeypatch.setattr(prepare, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(imagecache, "CACHE", tmp_path / "bytes")
    (tmp_path / "least.yaml").write_text(yaml.safe_dump(LEAST))


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_mine", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five pictures: an epoch of two batches and a partial one, so that four steps cross epochs."""
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(5):
        Image.fromarray(generator.integers(0, 256, (12, 9, 3), np.uint8)).save(folder / f"{index}.png")
    return folder


def go(example: ModuleType, photos: Path, out: Path, steps: int) -> int:
    workload = str(photos.parent / "least.yaml")
    return example.train(str(photos), out, steps, workload)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "G_ema.pt", weights_only=True)


def alike(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def state(out: Path) -> dict:
    return torch.load(out / "checkpoint.pt", weights_only=True)["state"]


def test_an_interrupted_training_goes_on_to_the_same_weights(
    example: ModuleType, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert go(example, photos, whole, 6) == 0
    assert go(example, photos, parts, 2) == 0 and state(parts)["count"] == 2
    step = TrainingStep.step

    def interrupted(self: TrainingStep) -> None:
        step(self)
        if self.count == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingStep, "step", interrupted)
    assert go(example, photos, parts, 6) == 130 and state(parts)["count"] == 3
    assert not alike(weights(parts), weights(whole))
    monkeypatch.setattr(TrainingStep, "step", step)
    assert go(example, photos, parts, 6) == 0
    assert alike(state(parts), state(whole)) and alike(weights(parts), weights(whole))
    assert (parts / "samples-000006.png").read_bytes() == (whole / "samples-000006.png").read_bytes()


def test_a_checkpoint_is_written_every_so_often(
    example: ModuleType, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "EVERY", 2)
    assert go(example, photos, tmp_path / "out", 5) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    grids = {f"samples-{count:06d}.png" for count in (2, 4, 5)}
    assert names == {"checkpoint.pt", "G_ema.pt", *grids}


def test_the_exported_weights_are_a_generator_and_not_the_one_in_training(
    example: ModuleType, photos: Path, tmp_path: Path
) -> None:
    assert go(example, photos, tmp_path / "out", 4) == 0
    exported, saved = weights(tmp_path / "out"), state(tmp_path / "out")
    assert alike(exported, dict(saved["G_ema"])) and not alike(exported, dict(saved["G"]))
    generator = Generator(Workload.from_dict(LEAST), Recipe())
    generator.load_state_dict(exported)
    noise = [torch.zeros(shape) for shape in generator.noise_shapes(1)]
    w = generator.mapping(torch.randn(1, LEAST["z_dim"]))
    assert generator(w[:, None].expand(-1, generator.num_ws, -1), noise).isfinite().all()
    assert len(np.unique(np.asarray(Image.open(tmp_path / "out" / "samples-000004.png")))) > 8


def test_weights_that_are_not_finite_leave_the_checkpoint_as_it_was(
    example: ModuleType, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert go(example, photos, tmp_path / "out", 1) == 0
    monkeypatch.setattr(TrainingStep, "check_finite", lambda self: "G.const is NaN or infinite after step 2")
    with pytest.raises(SystemExit, match=r"^train_mine: G\.const is NaN.* kept$"):
        go(example, photos, tmp_path / "out", 2)
    assert state(tmp_path / "out")["count"] == 1


def test_a_checkpoint_of_other_images_is_refused(example: ModuleType, photos: Path, tmp_path: Path) -> None:
    assert go(example, photos, tmp_path / "out", 1) == 0
    (photos / "0.png").unlink()
    with pytest.raises(UserError, match="trained on 5 user-images, here are 4"):
        go(example, photos, tmp_path / "out", 2)
    assert state(tmp_path / "out")["count"] == 1


@pytest.mark.parametrize(
    ("folder", "says"), [("none", "no such folder or zip file"), ("empty", "holds no JPEG or PNG image")]
)
def test_a_bad_folder_is_one_line_and_status_2_without_torch(tmp_path: Path, folder: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    code = (
        f"import runpy, sys; sys.argv = ['x', {folder!r}, 'out']\n"
        "from ladder.machine import system; system.choose_device = lambda: 'cpu'\n"
        f"try: runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')\nfinally: print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "False\n")
    assert run.stderr == f"train_mine: {folder}: {says}\n" and not (tmp_path / "out").exists()


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 80


def test_ladder_train_and_the_example_read_each_others_checkpoints(
    example: ModuleType, photos: Path, tmp_path: Path
) -> None:
    assert go(example, photos, tmp_path / "out", 2) == 0
    images, out = prepare.prepare_images(str(photos), LEAST["resolution"]), tmp_path / "out"
    workload = Workload.from_dict(LEAST).to_dict()
    train_model(workload, {}, images, Settings(out, "cpu", 3, resume=out / "checkpoint.pt"))
    assert state(out)["count"] == 3
    assert go(example, photos, out, 4) == 0 and state(out)["count"] == 4


def test_the_page_runs_as_written(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's workload is the preset `tiny`, so its images get that resolution."""
    monkeypatch.chdir(tmp_path)
    for path in photos.iterdir():
        Image.open(path).resize((32, 32)).save(path)
    loop, export = re.findall(r"```python\n(.+?)```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL)
    assert "range(1000)" in loop
    names: dict = {}
    exec(loop.replace("range(1000)", "range(2)"), names)
    step, images = names["step"], names["images"]
    assert step.count == 2 and images.shape == (16, 3, 32, 32) and images.dtype == torch.float32
    assert images.abs().max() <= 1 and all(p.dtype == torch.float32 for p in step.G.parameters())
    torch.save(step.G_ema.state_dict(), "G_ema.pt")
    exec(export, names)
    assert alike(dict(names["G"].state_dict()), dict(step.G_ema.state_dict()))
