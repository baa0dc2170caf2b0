"""`ladder penalty`: both sides are timed and compared with FP64; a wrong gradient has no time."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from ladder.studies.penalty import networks
from tests.support.commands import call, refused


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A network of its own under a common name."""

    def make():
        return nn.Sequential(networks.conv(3, 4, 4, 2), networks.act(), networks.conv(4, 4, groups=2))

    monkeypatch.setitem(networks.NETWORKS, "R3GAN", (8, make))


def measure(tmp_path, *options):
    return call(
        "penalty",
        "R3GAN",
        "--device",
        "cpu",
        "--batch",
        2,
        "--repeats",
        2,
        "--out",
        tmp_path,
        "--json",
        *options,
    )


def test_both_sides_are_timed_in_pairs_and_compared_with_fp64(tmp_path):
    result = measure(tmp_path)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["networks"]
    assert [row["name"] for row in rows] == ["R3GAN tf32", "R3GAN bf16"]
    for row in rows:
        assert len(row["plain_ms"]) == len(row["fast_ms"]) == 2 and row["interval"][0] <= row["factor"]
        assert row["plain_error"] < 0.1 and row["fast_error"] < 0.1
    assert [*tmp_path.glob("*.json")] and "named twice" in refused(
        "penalty", "UNet", "UNet", "--device", "cpu"
    )


def test_wrong_gradients_have_no_time(tmp_path, monkeypatch):
    @contextmanager
    def wrong():
        original = networks.F.softplus
        networks.F.softplus = lambda x: 2 * original(x)
        yield
        networks.F.softplus = original

    monkeypatch.setattr(networks, "fast_double_backward", wrong)
    result = measure(tmp_path)
    rows = json.loads(result.stdout)["networks"]
    assert result.exit_code == 1 and {row["status"] for row in rows} == {"failed: parity"}
    assert not any(row.get("plain_ms") for row in rows)


@pytest.mark.parametrize(
    ("make", "size", "shape"),
    [
        (networks.make_dcgan, 64, (1, 1, 1, 1)), (networks.make_patchgan, 256, (1, 1, 30, 30)),
        (networks.make_sngan, 32, (1, 1)), (networks.make_unet, 128, (1, 1, 128, 128)),
        (networks.make_r3gan, 64, (1, 1)),
    ],
)  # fmt: skip
def test_each_network_judges_images_of_its_resolution(make, size, shape):
    with torch.device("meta"):
        assert make()(torch.empty(1, 3, size, size)).shape == shape
