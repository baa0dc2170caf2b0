"""The rungs of images: decoded once or behind the bus, batches are the plain loader's, and a cache is never torn."""

import os
import pickle
import shutil
import sys
import time
import types
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.machine import system
from ladder.plan import catalog
from ladder.receipts import evidence
from ladder.results import record
from stylegan_lite import ConfigError, Recipe, Workload, make_step
from stylegan_lite.step import imagecache
from stylegan_lite.step.data import DataFeed, ImageFolder
from stylegan_lite.step.gpudecode import JpegFiles
from tests.rungs.cases import LAST
from tests.support.rung_steps import assert_engaged, checked, gathered, receipt, small
from tests.support.small import SMALL

CACHED = {"cached_images": True}
DECODED = {"gpu_decode": True, "uint8_input": True}
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(imagecache, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def write_images(path, count, suffixes):
    path.mkdir()
    pixels = np.random.default_rng(0)
    for k in range(count):
        image = Image.fromarray(pixels.integers(0, 256, (16, 16, 3), np.uint8))
        image.save(path / f"{k:02}.{suffixes[k % len(suffixes)]}")
    return path


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path / "photos", 10, ("jpg", "png"))


@pytest.fixture
def jpegs(tmp_path):
    """An epoch ends inside the batches below, and leaves some over."""
    return write_images(tmp_path / "jpegs", 11, ("jpg",))


@pytest.fixture
def decodings(monkeypatch):
    """Return the list of decoded indices. The tally may miss one, because several threads decode."""
    decode, seen = ImageFolder.decode, []
    monkeypatch.setattr(ImageFolder, "decode", lambda self, k: (seen.append(k), decode(self, k))[1])
    return seen


def make_feed(folder, layout=torch.contiguous_format, **recipe):
    workload = Workload.from_dict(SMALL | {"data": str(folder) if folder else None})
    real = torch.empty((4, 3, 16, 16), memory_format=layout)
    return DataFeed(workload, Recipe.from_dict(recipe), real, seed=7)


def batches(feed, count=5):  # crosses two epochs of two whole batches
    try:
        feed.prepare()
        found = []
        for _ in range(count):
            feed.next()
            found.append(feed.real.clone())
        return found
    finally:
        feed.close()


def assert_alike(one, other):
    assert all(map(torch.equal, one, other)) and len({a.sum().item() for a in one}) > 2


# ---- cached_uint8 ----------------------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize(
    "recipe",
    [{}, {"uint8_input": True}, {"uint8_input": True, "workers": 2, "persistent_workers": True}, {"workers": 1}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("real", [True, False], ids=["files", "random"])
def test_batches_are_byte_for_byte_those_of_the_plain_loader(folder, recipe, layout, real):
    feeds = (make_feed(folder if real else None, layout, **recipe | how) for how in ({}, CACHED))
    assert_alike(*map(batches, feeds))


def test_what_the_loader_hands_over_is_bytes_in_the_order_of_the_file(folder):
    feed = make_feed(folder, **CACHED, uint8_input=True)
    feed.prepare()
    batch = feed._fetch()
    assert batch.dtype == torch.uint8 and batch.is_contiguous(memory_format=torch.channels_last)
    assert feed.dataset[3, True].equal(ImageFolder(str(folder), 16, True)[3, True])
    forked = pickle.loads(pickle.dumps(feed.dataset))  # a worker that is not forked maps the file itself
    assert forked.images is None and torch.equal(forked[4, True], feed.dataset[4, True])


def test_every_image_is_decoded_once_and_never_again(folder, cache, decodings):
    def count(**recipe):
        feed = make_feed(folder, **recipe)
        batches(feed)
        return feed.dataset.tally()

    first = count(**CACHED)
    assert sorted(decodings) == list(range(10))
    assert first["decoded"] > 0 and first["mapped"] == 24  # partial batches, too
    assert count(**CACHED)["decoded"] == 0 and len(list(cache.iterdir())) == 1
    workers = count(**CACHED, workers=2)  # counted there, too
    assert workers["decoded"] == 0 and workers["mapped"] > 0
    assert count(workers=1)["decoded"] >= 20


@pytest.mark.parametrize("damage", ["torn", "empty", "no last line", "another's"])
def test_a_torn_cache_is_made_again(folder, cache, damage, decodings):
    plain = batches(make_feed(folder))
    batches(make_feed(folder, **CACHED))
    (file,) = cache.iterdir()
    content = file.read_bytes()
    cut = {"torn": content[:-900], "empty": b"", "no last line": content[: 10 * 768]}
    file.write_bytes(cut.get(damage, content[:-4] + b"abc\n"))
    decodings.clear()
    assert_alike(plain, batches(make_feed(folder, **CACHED)))
    assert sorted(decodings) == list(range(10)) and file.read_bytes() == content


CHANGES = {
    "content": lambda folder: Image.new("RGB", (16, 16), (1, 2, 3)).save(folder / "01.png"),
    "time": lambda folder: os.utime(folder / "01.png", (1, 1)),
    "name": lambda folder: (folder / "01.png").rename(folder / "99.png"),
    "more": lambda folder: shutil.copy(folder / "01.png", folder / "11.png"),
    "fewer": lambda folder: (folder / "01.png").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_folder_gets_a_new_cache_and_the_old_one_goes(folder, cache, change):
    batches(make_feed(folder, **CACHED))
    (before,) = cache.iterdir()
    CHANGES[change](folder)
    assert_alike(*(batches(make_feed(folder, **how)) for how in ({}, CACHED)))
    (after,) = cache.iterdir()
    assert after != before


def test_another_folder_s_cache_is_left_alone(folder, cache, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    for each in (folder, other, folder):
        batches(make_feed(each, **CACHED))
    assert len(list(cache.iterdir())) == 2


def test_a_killed_run_leaves_nothing_that_is_taken_for_a_cache(folder, cache, monkeypatch):
    def decode(self, index):
        if index == 7:
            raise KeyboardInterrupt
        return honest(self, index)

    honest = ImageFolder.decode
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ImageFolder, "decode", decode)
        make_feed(folder, **CACHED).prepare()
    assert list(cache.iterdir()) == []
    (cache / ".making-killed").write_bytes(b"half")  # by a signal: nobody tidied up
    (cache / ".making-at-work").write_bytes(b"half")
    os.utime(cache / ".making-killed", (time.time() - 2 * imagecache.STALE_S,) * 2)
    batches(make_feed(folder, **CACHED))
    assert sorted(file.suffix or file.name for file in cache.iterdir()) == [".bytes", ".making-at-work"]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_full_disk_is_refused_in_one_line(when, folder, cache, monkeypatch):
    full, usage = OSError(28, "No space left on device"), shutil.disk_usage(folder)
    with monkeypatch.context() as patch, pytest.raises(ConfigError) as refusal:
        if when == "before":
            patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=7000))
        else:
            patch.setattr(os, "pwrite", lambda *args: (_ for _ in ()).throw(full))
        make_feed(folder, **CACHED).prepare()
    words = "0.00 GB are free" if when == "before" else "No space left on device"
    said = str(refusal.value)
    assert "cached_images" in said and "10 images" in said and words in said and "\n" not in said
    assert str(cache) not in said and list(cache.glob("*")) == []


def test_what_cannot_be_decoded_is_refused_as_without_a_cache(folder):
    Image.new("RGB", (8, 8)).save(folder / "03.png")
    with pytest.raises(ConfigError, match=r"03\.png is 8x8, expected 16x16"):
        make_feed(folder, **CACHED).prepare()
    (folder / "03.png").unlink()
    (folder / "03.png").mkdir()  # cannot be opened, and that is not the cache's fault
    with pytest.raises(ConfigError, match=r"^workload: data: 03\.png cannot be read: Is a directory$"):
        make_feed(folder, **CACHED).prepare()


def test_making_the_cache_is_part_of_preparing_and_is_reported(folder, decodings):
    took = make_step(SMALL | {"data": str(folder)}, CACHED, device="cpu").prepare()
    assert took["cache_s"] > 0 and sorted(decodings) == list(range(10))
    assert "cache_s" not in small({}).prepare()
    seen = {"samples_s": [0.1], "event_s": None, "main_s": None, "lead_in_cycles": 1, "settled": None}
    kept = record.new_round(0, took | {"prepare_s": 1.0}, seen)
    assert record.read_round(kept).cache_s == took["cache_s"]


class Bypassing(imagecache.CachedImages):
    def __getitems__(self, keys):
        return torch.stack([self.source[key] for key in keys])


def test_the_rung_is_engaged_unless_images_are_decoded(folder, refused, references):
    found = checked(small(CACHED | LAST, resolution=8), references)
    assert found["verdict"] == "ok", found["problems"]
    assert_engaged(gathered(small(CACHED), steps=16), ["cached_uint8"])

    def decode(step):
        plain = make_feed(folder)
        step.feed.loader, step.feed.dataset = plain.loader, plain.dataset
        step.feed.iterator, step.feed.sampler = None, plain.sampler

    for sabotage, words, what in (
        (decode, "images decoded while", "the loader decodes"),
        (lambda step: setattr(step.feed.dataset, "__class__", Bypassing), "read from the memory map: 0",
            "images come from memory, not from the map"),
    ):  # fmt: skip
        refused("cached_uint8", gathered(small(CACHED), sabotage, steps=16), words, sabotage=what)


# ---- gpu_decode ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_that_the_cpu_decodes(torchvision, jpegs, workers):
    feed = make_feed(jpegs, **DECODED, workers=workers)
    assert_alike(batches(feed), batches(make_feed(jpegs, uint8_input=True)))
    counted = evidence.tally_images(types.SimpleNamespace(feed=feed))
    assert counted == {"decoded": 0, "mapped": 0, "decoded_on_gpu": 20}
    assert receipt("gpu_decode", {"data": counted | {"waiting_ms": 0.1, "fetched": 1.0}}).engaged


def test_random_images_become_files_first_and_a_file_is_read_as_it_is(torchvision, jpegs):
    (batch,) = batches(make_feed(None, **DECODED), 1)
    assert batch.min() >= -1 and batch.max() <= 1 and batch.std() > 0.2
    source = types.SimpleNamespace(files=[str(jpegs / "03.jpg")], __len__=lambda self: 1)
    data, flip, name = JpegFiles(source)[0, True]
    assert flip and name == "03.jpg" and data.numpy().tobytes() == (jpegs / "03.jpg").read_bytes()


def test_what_cannot_be_is_one_line(torchvision, jpegs, monkeypatch):
    with pytest.raises(ConfigError, match="gpu_decode: true needs a CUDA device"):
        Recipe.from_dict(DECODED).refuse_on("cpu")
    Image.new("RGB", (16, 16)).save(jpegs / "99.png")
    with pytest.raises(ConfigError, match=r"JPEG files alone, not 99\.png"):
        batches(make_feed(jpegs, **DECODED), 1)
    (jpegs / "99.png").unlink()
    Image.new("RGB", (8, 24)).save(jpegs / "00.jpg")
    with pytest.raises(ConfigError, match="8x24, expected 16x16"):
        batches(make_feed(jpegs, **DECODED))
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(ConfigError, match="pip install torchvision"):
        batches(make_feed(jpegs, **DECODED), 1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "not a JPEG"), (b"\x89PNG", "not a JPEG"), (None, "truncated"), (b"\xff\xd8rest", "not a JPEG")],
)
def test_a_file_that_cannot_be_decoded_is_named(torchvision, jpegs, workers, content, said):
    whole = (jpegs / "07.jpg").read_bytes()
    (jpegs / "07.jpg").write_bytes(whole[:-100] if content is None else content)
    with pytest.raises(ConfigError, match=f"^workload: data: 07.jpg cannot be read: [^\\n]*{said}"):
        batches(make_feed(jpegs, **DECODED, workers=workers))


def test_an_error_of_the_gpu_is_no_fault_of_a_file(torchvision, jpegs, monkeypatch):
    fails = lambda *_, **__: (_ for _ in ()).throw(RuntimeError("CUDA error"))  # noqa: E731
    monkeypatch.setattr(sys.modules["torchvision.io"], "decode_jpeg", fails)
    with pytest.raises(RuntimeError, match="CUDA error"):
        batches(make_feed(jpegs, **DECODED), 1)


def test_a_machine_without_torchvision_says_what_to_install(monkeypatch):
    found = {"error": None, "triton_error": None, "capability": [9, 0], "bf16": True}
    missing = "needs torchvision: pip install torchvision"
    monkeypatch.setattr(system, "probe_gpu", lambda: found | {"nvjpeg_error": missing})
    planned = catalog.plan_climb(
        catalog.load_ladder("fp16"), system.list_capabilities("cuda") | {"demodulation": None}
    )
    assert {rung.name: rung.skipped for rung in planned if rung.skipped} == {"gpu_decode": missing}
    monkeypatch.setattr(system, "probe_gpu", lambda: found | {"nvjpeg_error": None, "capability": [8, 0]})
    assert "compute capability 8.9" in system.list_capabilities("cuda")["fp8"]
