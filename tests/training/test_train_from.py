"""`ladder train --from`: a new training begins with the networks of a checkpoint, and NVIDIA's buffers stay with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from ladder.images import prepare
from ladder.machine import system
from ladder.training import checkpoint
from ladder.training.nvidia.convert import convert_file
from stylegan_lite.step import TrainingStep
from tests.support import nvidia_networks as theirs
from tests.support.commands import refused, succeed

torch.set_num_threads(1)
SMALLEST = {"channels": {4: 4, 8: 4}, "z": 4, "w": 4, "layers": 1, "group": 2}
FIELDS = {
    "resolution": 8, "channel_base": 32, "channel_max": 4, "batch": 2, "z_dim": 4, "w_dim": 4, "mapping_layers": 1,
    "conv_clamp": 0.8,
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU, five pictures in `photos`, and NVIDIA's networks in `a.pkl` and `a.pt`."""
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    monkeypatch.setattr(prepare, "CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    Path("photos").mkdir()
    for index in range(8):
        Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8)).save(f"photos/{index}.png")
    theirs.write(Path("a.pkl"), theirs.networks(**SMALLEST))
    checkpoint.write_checkpoint(Path("a.pt"), convert_file(Path("a.pkl")).content)
    Path("mine.yaml").write_text(yaml.safe_dump(FIELDS))


def train(*arguments: object, out: str = "out", steps: int = 1) -> tuple[object, ...]:
    common = ("--data", "photos", "--recipe", "baseline", "--out", out, "--steps", steps)
    return ("train", *common, *arguments)


def state(path: str) -> checkpoint.State:
    return checkpoint.load_checkpoint(Path(path))["state"]


def test_it_begins_with_the_networks_and_says_what_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[str, dict] = {}
    step = TrainingStep.step

    def watch(self: TrainingStep, lazy: bool = True) -> None:
        if not first:
            first.update(
                {
                    n: {k: v.clone() for k, v in getattr(self, n).state_dict().items()}
                    for n in ("G", "D", "G_ema")
                }
            )
            moments = [
                float(each.abs().max()) for held in self.opt_G.state.values() for each in held.values()
            ]
            assert self.count == 0 and not any(moments)
        step(self, lazy)

    monkeypatch.setattr(TrainingStep, "step", watch)
    said = succeed(*train("--from", "a.pt", steps=2)).stderr
    assert "networks of a.pt; step, optimizers and mean path length start fresh" in said
    begun = state("a.pt")
    for name, network in first.items():
        assert all(torch.equal(value, begun[name][key]) for key, value in network.items())
    content = checkpoint.load_checkpoint(Path("out/checkpoint.pt"))
    assert content["state"]["count"] == 2 and content["workload"]["batch"] == 8
    assert content["workload"]["conv_clamp"] == 0.8
    assert not torch.equal(content["state"]["G"]["const"], begun["G"]["const"])


def test_nvidias_buffers_go_with_the_training_and_come_back() -> None:
    succeed(*train("--from", "a.pt", "--workload", "mine.yaml"))
    succeed(*train("--resume", "out/checkpoint.pt", "--workload", "mine.yaml", steps=2))
    succeed("convert", "out/checkpoint.pt", "back.pt")
    back = torch.load("back.pt", weights_only=True)
    for label, network in theirs.networks(**SMALLEST).items():
        if label in ("G", "D", "G_ema"):
            for name, value in network.state_dict().items():
                kept = name.endswith(("noise_const", "resample_filter"))
                assert back[label][name].shape == value.shape
                assert not kept or torch.equal(back[label][name], value)
    assert not torch.equal(
        back["D"]["b8.conv0.weight"], theirs.networks(**SMALLEST)["D"].state_dict()["b8.conv0.weight"]
    )


def test_what_does_not_go_together_is_one_line() -> None:
    for arguments, says in (
        (("--from", "a.pt", "--resume", "a.pt"), "give one of them"),
        (("--resume", "a.pt"), "a.pt: is converted and has no training to go on with: give --from a.pt"),
        (("--from", "a.pkl"), "a.pkl: a pickle and no checkpoint: make one with `ladder convert a.pkl OUT`"),
        (("--from", "none.pt"), "none.pt: no such checkpoint file"),
    ):
        assert says in refused(*train(*arguments)) and not Path("out").exists()
