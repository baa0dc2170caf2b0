"""`ladder sample`: an image for each seed, whatever the others are, with NVIDIA's latents and constant noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.machine import system
from ladder.training import checkpoint
from ladder.training import sample as sampling
from ladder.training.nvidia.convert import convert_file
from stylegan_lite import make_step
from tests.support import nvidia_networks as theirs
from tests.support.commands import refused, succeed
from tests.support.small import LEAST

torch.set_num_threads(1)
NO_IMAGES: checkpoint.Images = {"source": "user-images", "count": 9}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")


@pytest.fixture(scope="module")
def nvidias(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvidia")
    made = convert_file(theirs.write(folder / "a.pkl", theirs.networks()))
    checkpoint.write_checkpoint(folder / "a.pt", made.content)
    return folder / "a.pt"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose three networks differ, and whose noise counts."""
    path, step = tmp_path_factory.mktemp("own") / "checkpoint.pt", make_step(LEAST, {}, device="cpu")
    with torch.no_grad():
        for name, each in step.G_ema.named_parameters():
            each.mul_(1.5)
            if name.endswith("noise_strength"):
                each.fill_(0.5)
    checkpoint.write_checkpoint(path, checkpoint.make_content(step, seed=0, seconds=0.0, images=NO_IMAGES))
    return path


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path)).astype(int)


def test_a_seed_gives_nvidias_image(nvidias: Path, tmp_path: Path) -> None:
    said = succeed("sample", nvidias, "--out", tmp_path / "s", "--seeds", "5", "--truncation", "0.7").stdout
    assert said.endswith("grid.png, and 1 image beside it\n")
    s = theirs.networks()["G_ema"].state_dict()
    z = torch.from_numpy(np.random.RandomState(5).randn(1, 6)).float()
    w = s["mapping.w_avg"].lerp(theirs.mapped(s, z, 2), 0.7)
    image = theirs.image(s, w.expand(6, -1), [4, 8, 16], 0.8)
    expected = (image.permute(0, 2, 3, 1) * 127.5 + 128).clamp(0, 255).to(torch.uint8)[0].numpy()
    found = pixels(tmp_path / "s" / "seed0005.png")
    assert found.shape == (16, 16, 3) and np.abs(found - expected).max() <= 1


def test_each_image_is_that_of_its_seed_alone(own: Path, tmp_path: Path) -> None:
    many, one = tmp_path / "many", tmp_path / "one"
    written = sampling.draw_images(own, many, [7, 0, 3], truncation=1.0, device="cpu")
    sampling.draw_images(own, one, [3], truncation=1.0, device="cpu")
    names = ["seed0007.png", "seed0000.png", "seed0003.png", "grid.png"]
    assert [path.name for path in written] == names and all(path.is_file() for path in written)
    assert (many / "seed0003.png").read_bytes() == (one / "seed0003.png").read_bytes()
    images = [pixels(many / name) for name in names[:3]]
    assert all(image.shape == (8, 8, 3) for image in images)
    assert (images[0] != images[1]).any() and (images[1] != images[2]).any()
    assert (pixels(many / "grid.png")[::8, ::8] == np.concatenate(images, 1)).all()  # small ones are enlarged


def test_truncation_to_nothing_leaves_the_noise(own: Path, nvidias: Path, tmp_path: Path) -> None:
    for path, alike in ((own, False), (nvidias, True)):  # NVIDIA's noise is constant
        out = tmp_path / path.stem
        sampling.draw_images(path, out, [1, 2], truncation=0.0, device="cpu")
        assert (pixels(out / "seed0001.png") == pixels(out / "seed0002.png")).all() == alike


@pytest.mark.parametrize(
    "text, seeds", [("0-3,7", [0, 1, 2, 3, 7]), ("5", [5]), (" 2 , 2,1", [2, 1]), ("4294967295", [2**32 - 1])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert sampling.parse_seeds(text) == seeds


def test_a_file_that_is_no_checkpoint_is_refused_and_nothing_is_made(own: Path, tmp_path: Path) -> None:
    assert "no such checkpoint" in refused("sample", tmp_path / "none.pt", "--out", tmp_path / "s")
    theirs.write(tmp_path / "a.pkl", theirs.networks())
    assert "a pickle and no checkpoint" in refused("sample", tmp_path / "a.pkl", "--out", tmp_path / "s")
    content = checkpoint.load_checkpoint(own)
    content["state"]["G_ema"].pop("const")
    checkpoint.write_checkpoint(tmp_path / "bad.pt", content)
    assert "damaged checkpoint" in refused("sample", tmp_path / "bad.pt", "--out", tmp_path / "s")
    assert not (tmp_path / "s").exists()
