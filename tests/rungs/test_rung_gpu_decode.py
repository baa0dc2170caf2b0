"""JPEG files decoded behind the bus: the same images in the same order, and one line where they cannot be."""

import sys
import types
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.machine import system
from ladder.plan import catalog
from ladder.receipts import evidence
from stylegan_lite import ConfigError, Recipe, Workload
from stylegan_lite.data import DataFeed
from stylegan_lite.gpudecode import JpegFiles
from tests.support.rung_steps import receipt
from tests.support.small import SMALL

RECIPE = {"gpu_decode": True, "uint8_input": True}


@pytest.fixture
def torchvision(monkeypatch):
    """What stands for torchvision: its interface, and Pillow's decoder."""

    def decode_jpeg(files, mode, device):
        assert mode == "RGB" and all(f.dtype == torch.uint8 and f.dim() == 1 for f in files)
        images = [np.asarray(Image.open(BytesIO(f.numpy().tobytes())).convert(mode)) for f in files]
        return [torch.from_numpy(image.copy()).permute(2, 0, 1).to(device) for image in images]

    io = types.SimpleNamespace(decode_jpeg=decode_jpeg, ImageReadMode=types.SimpleNamespace(RGB="RGB"))
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(io=io))
    monkeypatch.setitem(sys.modules, "torchvision.io", io)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in range(11):  # an epoch ends inside the batches below, and leaves some over
        image = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(image).save(tmp_path / f"{name:02}.jpg")
    return tmp_path


def batches(recipe, data, count=5):
    workload = Workload.from_dict(SMALL | {"data": None if data is None else str(data)})
    real = torch.empty(4, 3, 16, 16)
    feed, found = DataFeed(workload, Recipe.from_dict(recipe), real, seed=3), []
    for _ in range(count):
        feed.next()
        found.append(real.clone())
    feed.close()
    return found, feed


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_that_the_cpu_decodes(torchvision, folder, workers, refused):
    mine, feed = batches(RECIPE | {"workers": workers}, folder)
    theirs, _ = batches({"uint8_input": True}, folder)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    counted = evidence.tally(types.SimpleNamespace(feed=feed))
    assert counted == {"decoded": 0, "mapped": 0, "decoded_on_gpu": 20}
    seen = {"data": counted | {"waiting_ms": 0.1, "fetched": 1.0}}
    assert receipt("gpu_decode", seen).engaged
    if workers == 0:
        seen["data"]["decoded_on_gpu"] = 0
        said = "images decoded on the GPU: 0"
        refused("gpu_decode", seen, said, sabotage="nothing was decoded there", planted="evidence")


def test_random_images_become_files_first(torchvision):
    (batch, *_), _ = batches(RECIPE, None, 1)
    assert batch.min() >= -1 and batch.max() <= 1 and batch.std() > 0.2


def test_what_cannot_be_is_one_line(torchvision, folder, monkeypatch):
    for more, words in (
        ({"uint8_input": False}, "uint8_input: true"),
        ({"cached_images": True}, "cached_images: false"),
    ):
        with pytest.raises(ConfigError, match=words):
            Recipe.from_dict(RECIPE | more)
    with pytest.raises(ConfigError, match="gpu_decode: true needs a CUDA device"):
        Recipe.from_dict(RECIPE).refuse_on("cpu")
    Image.new("RGB", (16, 16)).save(folder / "99.png")
    with pytest.raises(ConfigError, match=r"JPEG files alone, not 99\.png"):
        batches(RECIPE, folder, 1)
    (folder / "99.png").unlink()
    Image.new("RGB", (8, 24)).save(folder / "00.jpg")
    with pytest.raises(ConfigError, match="8x24, expected 16x16"):
        batches(RECIPE, folder, 5)
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(ConfigError, match="pip install torchvision"):
        batches(RECIPE, folder, 1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "not a JPEG"), (b"\x89PNG", "not a JPEG"), (None, "truncated"), (b"\xff\xd8rest", "not a JPEG")],
)
def test_a_file_that_cannot_be_decoded_is_named(torchvision, folder, workers, content, said):
    whole = (folder / "07.jpg").read_bytes()
    (folder / "07.jpg").write_bytes(whole[:-100] if content is None else content)
    with pytest.raises(ConfigError, match=f"^workload: data: 07.jpg cannot be read: [^\\n]*{said}"):
        batches(RECIPE | {"workers": workers}, folder, 5)


def test_an_error_of_the_gpu_is_no_fault_of_a_file(torchvision, folder, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(sys.modules["torchvision.io"], "decode_jpeg", fails)
    with pytest.raises(RuntimeError, match="CUDA error"):
        batches(RECIPE, folder, 1)


def test_a_machine_without_torchvision_says_what_to_install(monkeypatch):
    found = {"error": None, "triton_error": None, "capability": [9, 0], "bf16": True}
    missing = "needs torchvision: pip install torchvision"
    monkeypatch.setattr(system, "probe", lambda: found | {"nvjpeg_error": missing})
    can = system.capabilities("cuda")
    planned = catalog.climb(catalog.load_ladder("fp16"), can | {"demodulation": None})
    skipped = {rung.name: rung.skipped for rung in planned if rung.skipped}
    assert skipped == {"gpu_decode": missing}
    monkeypatch.setattr(system, "probe", lambda: found | {"nvjpeg_error": None, "capability": [8, 0]})
    assert "compute capability 8.9" in system.capabilities("cuda")["fp8"]


def test_a_file_is_read_as_it_is(folder):
    source = types.SimpleNamespace(files=[str(folder / "03.jpg")], __len__=lambda self: 1)
    data, flip, name = JpegFiles(source)[0, True]
    assert flip and name == "03.jpg" and data.numpy().tobytes() == (folder / "03.jpg").read_bytes()
