from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from stylegan_lite import ConfigError, Recipe, Workload
from stylegan_lite.step import imagecache
from stylegan_lite.step.data import DataFeed, EpochSampler


@pytest.fixture
def folder(tmp_path):
    for k in range(10):
        pixels = np.full((16, 16, 3), 20 * k, np.uint8)
        pixels[:, 8:] += 10  # left and right differ: a flip shows
        Image.fromarray(pixels).save(tmp_path / f"{k}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def feed(folder, batch=4, **recipe):
    workload = Workload(resolution=16, channel_base=128, batch=batch, data=str(folder))
    return DataFeed(workload, Recipe.from_dict(recipe), torch.empty(batch, 3, 16, 16), seed=7)


def identities(batch):
    """Image number and whether it was flipped, from the pixels."""
    levels = (batch[:, 0, 0] + 1) * 127.5
    return [(round(float(row.min())) // 20, bool(row[0] > row[-1])) for row in levels]


@pytest.mark.parametrize(
    "recipe", [{}, {"uint8_input": True}, {"workers": 1, "persistent_workers": True}], ids=str
)
def test_every_recipe_feeds_the_same_images_in_the_same_order(folder, recipe):
    reference, other = feed(folder), feed(folder, **recipe)
    try:
        for _ in range(5):  # crosses two epochs of two whole batches
            reference.next()
            other.next()
            torch.testing.assert_close(other.real, reference.real, rtol=0, atol=1e-6)
    finally:
        other.close()


def test_an_epoch_shows_each_image_at_most_once_and_both_orientations_come_up(folder):
    loader = feed(folder)
    seen, flips = [], set()
    for _ in range(2):
        loader.next()
        batch = identities(loader.real)
        seen += [k for k, _ in batch]
        flips |= {f for _, f in batch}
    assert len(set(seen)) == 8
    for _ in range(8):
        loader.next()
        flips |= {f for _, f in identities(loader.real)}
    assert flips == {True, False}
    assert loader.real.min() >= -1 and loader.real.max() <= 1


def test_resuming_continues_with_the_next_batch(folder):
    loader = feed(folder)
    for _ in range(3):
        loader.next()
    other = feed(folder)
    other.load_state_dict(loader.state_dict())
    for _ in range(4):
        loader.next()
        other.next()
        assert torch.equal(loader.real, other.real)


def test_epochs_are_shuffled_differently_and_by_the_seed():
    sampler = EpochSampler(50, 1, True)
    first = list(sampler)
    sampler.epoch = 1
    assert list(sampler) != first
    assert list(EpochSampler(50, 1, True)) == first != list(EpochSampler(50, 2, True))


def test_unusable_folders_are_refused_in_one_line(folder, tmp_path):
    with pytest.raises(ConfigError, match="10 images are fewer than one batch of 16"):
        feed(folder, batch=16)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match="no JPEG or PNG files"):
        feed(empty)
    (tmp_path / "file").write_text("")
    for path, why in (
        (tmp_path / "none", "No such file"),
        (tmp_path / "file", "Not a directory"),
        ("a\0", "null"),
    ):
        with pytest.raises(
            ConfigError, match=rf"^workload: data: no folder of images can be read at .*: .*{why}"
        ):
            feed(path)
    Image.new("RGB", (8, 8)).save(folder / "0.png")
    with pytest.raises(ConfigError, match=r"0\.png is 8x8, expected 16x16"):
        loader = feed(folder)
        for _ in range(3):
            loader.next()


def damaged(path, content):
    """Write a file that no batch can be made of, or none at all. Return what is to be said of it."""
    picture = BytesIO()
    Image.effect_noise((16, 16), 100).convert("RGB").save(picture, "JPEG" if path.suffix == ".jpg" else "PNG")
    path.write_bytes({"truncated": picture.getvalue()[:-60]}.get(content, content.encode()))
    if content == "missing":
        path.unlink()
    return {"truncated": "truncated", "missing": "No such file"}.get(content, "not a JPEG or PNG image")


WAYS = [
    {},
    {"uint8_input": True},
    {"workers": 1, "prefetch_factor": 1},
    {"workers": 2, "persistent_workers": True, "uint8_input": True},
    {"cached_images": True},
]


@pytest.mark.covering
@pytest.mark.parametrize("recipe", WAYS, ids=str)
@pytest.mark.parametrize("content", ["truncated", "<html>", "", "missing"])
@pytest.mark.parametrize("name", ["5.png", "photo 5.jpg"])
def test_a_picture_that_cannot_be_decoded_is_named_in_one_line(folder, monkeypatch, recipe, content, name):
    monkeypatch.setattr(imagecache, "CACHE", folder / "cache")
    (folder / "5.png").rename(folder / name)
    loader = feed(folder, **recipe)
    said = damaged(folder / name, content)
    try:
        with pytest.raises(ConfigError) as refusal:
            loader.prepare()
            for _ in range(6):
                loader.next()
    finally:
        loader.close()
    text = str(refusal.value)
    assert text.startswith(f"workload: data: {name} cannot be read: ") and said in text and "\n" not in text
    assert list((folder / "cache").glob("*")) == []


@pytest.mark.gpu
def test_copies_ahead_on_a_side_stream_feed_the_same_images(folder):
    workload = Workload(resolution=16, channel_base=128, batch=4, data=str(folder))
    real = torch.empty(4, 3, 16, 16, device="cuda")
    recipe = Recipe.from_dict(
        {
            "workers": 2,
            "pin_memory": True,
            "async_copy": True,
            "uint8_input": True,
            "persistent_workers": True,
        }
    )
    ahead, reference = DataFeed(workload, recipe, real, seed=7), feed(folder)
    try:
        for _ in range(7):
            ahead.next()
            reference.next()
            torch.testing.assert_close(real.cpu(), reference.real, rtol=0, atol=1e-6)
    finally:
        ahead.close()
