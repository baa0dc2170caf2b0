"""Images decoded once: the very batches of the plain loader, from a file that is never torn, stale or in the way."""

import os
import pickle
import shutil
import time

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.base import text
from ladder.parity import check as parity
from ladder.plan import catalog
from ladder.receipts import evidence
from ladder.results import record
from stylegan_lite import ConfigError, Recipe, Workload, imagecache, make_step
from stylegan_lite.data import DataFeed, ImageFolder
from tests.support.small import SMALL

CACHED = {"cached_images": True}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(imagecache, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "photos"
    path.mkdir()
    pixels = np.random.default_rng(0)
    for k in range(10):
        image = Image.fromarray(pixels.integers(0, 256, (16, 16, 3), np.uint8))
        image.save(path / f"{k}.{'png' if k % 2 else 'jpg'}")
    return path


@pytest.fixture
def decodings(monkeypatch):
    """Return the list of decoded indices. The tally may miss one, because several threads decode."""
    decode, seen = ImageFolder.decode, []
    monkeypatch.setattr(ImageFolder, "decode", lambda self, k: (seen.append(k), decode(self, k))[1])
    return seen


def feed(folder, batch=4, last=False, **recipe):
    workload = Workload(resolution=16, channel_base=128, batch=batch, data=str(folder) if folder else None)
    layout = torch.channels_last if last else torch.contiguous_format
    real = torch.empty((batch, 3, 16, 16), memory_format=layout)
    return DataFeed(workload, Recipe.from_dict(recipe), real, seed=7)


def batches(loader, count=5):  # crosses two epochs of two whole batches
    try:
        loader.prepare()
        found = []
        for _ in range(count):
            loader.next()
            found.append(loader.real.clone())
        return found
    finally:
        loader.close()


@pytest.mark.covering
@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"uint8_input": True},
        {"uint8_input": True, "workers": 2, "persistent_workers": True},
        {"workers": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels_last"])
@pytest.mark.parametrize("real", [True, False], ids=["files", "random"])
def test_batches_are_byte_for_byte_those_of_the_plain_loader(folder, recipe, last, real):
    folder = folder if real else None
    plain = batches(feed(folder, last=last, **recipe))
    cached = batches(feed(folder, last=last, **recipe | CACHED))
    assert all(torch.equal(a, b) for a, b in zip(plain, cached, strict=True))
    assert len({a.sum().item() for a in plain}) > 2


def test_what_the_loader_hands_over_is_bytes_in_the_order_of_the_file(folder):
    loader = feed(folder, **CACHED, uint8_input=True)
    loader.prepare()
    batch = loader._fetch()
    assert batch.dtype == torch.uint8 and batch.is_contiguous(memory_format=torch.channels_last)
    assert loader.dataset[3, True].equal(ImageFolder(str(folder), 16, True)[3, True])


def test_every_image_is_decoded_once_and_never_again(folder, cache, decodings):
    first = feed(folder, **CACHED)
    batches(first)
    assert sorted(decodings) == list(range(10))
    assert (
        first.dataset.tally()["decoded"] > 0 and first.dataset.tally()["mapped"] == 24
    )  # partial batches, too
    second = feed(folder, **CACHED)
    batches(second)
    assert second.dataset.tally()["decoded"] == 0
    assert len(list(cache.iterdir())) == 1
    workers = feed(folder, **CACHED, workers=2)
    batches(workers)  # counted there, too
    assert workers.dataset.tally()["decoded"] == 0 and workers.dataset.tally()["mapped"] > 0
    decoding = feed(folder, workers=1)
    batches(decoding)
    assert decoding.dataset.tally()["decoded"] >= 20


@pytest.mark.parametrize("damage", ["torn", "empty", "no last line", "another's"])
def test_a_torn_cache_is_made_again(folder, cache, damage, decodings):
    plain = batches(feed(folder))
    batches(feed(folder, **CACHED))
    (file,) = cache.iterdir()
    content = file.read_bytes()
    cut = {"torn": content[:-900], "empty": b"", "no last line": content[: 10 * 768]}
    file.write_bytes(cut.get(damage, content[:-4] + b"abc\n"))
    decodings.clear()
    assert all(torch.equal(a, b) for a, b in zip(plain, batches(feed(folder, **CACHED)), strict=True))
    assert sorted(decodings) == list(range(10)) and file.read_bytes() == content


@pytest.mark.parametrize("change", ["content", "time", "name", "more", "fewer"])
def test_a_changed_folder_gets_a_new_cache_and_the_old_one_goes(folder, cache, change):
    batches(feed(folder, **CACHED))
    (before,) = cache.iterdir()
    if change == "content":
        Image.new("RGB", (16, 16), (1, 2, 3)).save(folder / "1.png")
    elif change == "time":
        os.utime(folder / "1.png", (1, 1))
    elif change == "name":
        (folder / "1.png").rename(folder / "99.png")
    elif change == "more":
        shutil.copy(folder / "1.png", folder / "11.png")
    else:
        (folder / "1.png").unlink()
    cached = batches(feed(folder, **CACHED))
    assert all(torch.equal(a, b) for a, b in zip(batches(feed(folder)), cached, strict=True))
    (after,) = cache.iterdir()
    assert after != before


def test_another_folder_s_cache_is_left_alone(folder, cache, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for each in (folder, other, folder):
        batches(feed(each, **CACHED))
    assert len(list(cache.iterdir())) == 2


def test_a_killed_run_leaves_nothing_that_is_taken_for_a_cache(folder, cache, monkeypatch):
    def killed(self, index):
        if index == 7:
            raise KeyboardInterrupt
        return decode(self, index)

    decode = ImageFolder.decode
    monkeypatch.setattr(ImageFolder, "decode", killed)
    with pytest.raises(KeyboardInterrupt):
        feed(folder, **CACHED).prepare()
    assert list(cache.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(imagecache, "CACHE", cache)
    (cache / ".making-killed").write_bytes(b"half")  # by a signal: nobody tidied up
    (cache / ".making-at-work").write_bytes(b"half")
    os.utime(cache / ".making-killed", (time.time() - 2 * imagecache.STALE_S,) * 2)
    batches(feed(folder, **CACHED))
    assert sorted(file.suffix or file.name for file in cache.iterdir()) == [".bytes", ".making-at-work"]


def test_a_full_disk_is_refused_in_one_line(folder, cache, monkeypatch):
    def refused(words):
        with pytest.raises(ConfigError) as refusal:
            feed(folder, **CACHED).prepare()
        said = str(refusal.value)
        assert "cached_images" in said and "10 images" in said and words in said and "\n" not in said
        assert str(cache) not in said and list(cache.glob("*")) == []

    usage = shutil.disk_usage(folder)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=7000))
        refused("0.00 GB are free")
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:  # it fills up meanwhile
        patch.setattr(os, "pwrite", lambda *args: (_ for _ in ()).throw(full))
        refused("No space left on device")


def test_what_cannot_be_decoded_is_refused_as_without_a_cache(folder, cache):
    Image.new("RGB", (8, 8)).save(folder / "3.png")
    with pytest.raises(ConfigError, match=r"3\.png is 8x8, expected 16x16"):
        feed(folder, **CACHED).prepare()
    (folder / "3.png").unlink()
    (folder / "3.png").mkdir()  # cannot be opened, and that is not the cache's fault
    with pytest.raises(ConfigError, match=r"^workload: data: 3\.png cannot be read: Is a directory$"):
        feed(folder, **CACHED).prepare()


def test_workers_that_are_not_forked_map_the_file_themselves(folder):
    loader = feed(folder, **CACHED)
    loader.prepare()
    copy = pickle.loads(pickle.dumps(loader.dataset))
    assert copy.images is None
    assert torch.equal(copy[4, True], loader.dataset[4, True])


# In a step


def gathered(recipe, sabotage=None):
    step = make_step(SMALL, recipe, device="cpu")
    step.prepare()
    if sabotage:
        sabotage(step)
    return evidence.gather(step)


def test_making_the_cache_is_part_of_preparing_and_is_reported(folder, decodings):
    step = make_step(SMALL | {"data": str(folder)}, CACHED, device="cpu")
    took = step.prepare()
    assert took["cache_s"] > 0
    assert sorted(decodings) == list(range(10))
    assert "cache_s" not in make_step(SMALL, {}, device="cpu").prepare()
    seen = {"samples_s": [0.1], "event_s": None, "main_s": None, "lead_in_cycles": 1, "settled": None}
    kept = record.new_round(0, took | {"prepare_s": 1.0}, seen)
    assert record.read_round(kept).cache_s == took["cache_s"]


def test_the_rung_is_engaged_unless_images_are_decoded(folder, refused, references):
    step = make_step(SMALL | {"resolution": 8}, CACHED | LAST, device="cpu")
    step.keep_gradients = True
    step.prepare()
    found = parity.check(step, cache=references)
    assert found["verdict"] == "ok", found["problems"]
    rung = catalog.load_rung("cached_uint8")
    issued = rung.receipt(gathered(CACHED))
    assert issued.engaged and all(text.TEXT.fullmatch(line) for line in issued.lines)

    def decoding(step):
        plain = feed(folder)
        step.feed.loader, step.feed.dataset = plain.loader, plain.dataset
        step.feed.iterator, step.feed.sampler = None, plain.sampler

    refused("cached_uint8", gathered(CACHED, decoding), "images decoded while", sabotage="the loader decodes")
    refused(
        "cached_uint8",
        gathered(CACHED, lambda step: setattr(step.feed.dataset, "__class__", Bypassing)),
        "read from the memory map: 0",
        sabotage="images come from memory, not from the map",
    )


class Bypassing(imagecache.CachedImages):
    def __getitems__(self, keys):
        return torch.stack([self.source[key] for key in keys])
