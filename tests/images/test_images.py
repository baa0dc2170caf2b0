"""Image preparation: the sample set, and the cache."""

import multiprocessing
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from ladder.core.errors import UserError
from ladder.images import prepare as images
from ladder.images import user as userimages
from ladder.images.prepare import prepare_images
from tests.support import pictures
from tests.support.pictures import decoded, encode, fill, plain

source, cache = pictures.source, pictures.cache

# The sample set


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> images.ImageSet:
    return prepare_images(None, 32, cache=tmp_path_factory.mktemp("sample"))


def test_sample_set_is_2048_colour_jpegs(sample):
    assert (sample.count, sample.source) == (2048, "sample-photographs")
    pictures = decoded(sample)
    assert len(pictures) == sample.count
    assert {picture.shape for picture in pictures} == {(32, 32, 3)}
    assert np.mean([np.ptp(picture, axis=2).mean() > 5 for picture in pictures]) > 0.5  # not grey
    assert len({picture.tobytes() for picture in pictures}) > 2000  # crops differ


def test_sample_set_needs_no_network_and_is_the_same_every_time(sample, cache, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the sample set reached for the network")

    monkeypatch.setattr(socket, "socket", refuse)
    again = prepare_images(None, 32, cache=cache)
    for first, second in zip(
        sorted(Path(sample.path).iterdir()), sorted(Path(again.path).iterdir()), strict=True
    ):
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("resolution", [32, 256, 512, 1024])
def test_crops_lie_inside_and_only_small_photographs_are_upscaled(resolution):
    sizes = {name: picture.size for name, picture in images.load_photographs().items()}
    for crop in images.plan_crops(sizes, resolution):
        width, height = sizes[crop.photograph]
        assert 0 <= crop.left <= width - crop.side and 0 <= crop.top <= height - crop.side
        assert crop.side >= resolution or min(width, height) < resolution


def test_every_photograph_is_documented_with_its_licence():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for name in images.PHOTOGRAPHS:
        assert any(name in row and ("CC0" in row or "public domain" in row) for row in rows)


# The cache


def test_images_are_made_once_and_again_when_the_source_changes(source, cache, monkeypatch):
    data = fill(source, {"a.png": encode(plain())})
    first = prepare_images(data, 16, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(userimages, "make_square", lambda *a: pytest.fail("decoded again"))
        assert prepare_images(data, 16, cache=cache) == first
    fill(source, {"a.png": encode(plain((0, 0, 255), size=(50, 50)))})
    second = prepare_images(data, 16, cache=cache)
    assert second.path != first.path and decoded(second)[0][8, 8].argmax() == 2
    assert prepare_images(data, 32, cache=cache).path != second.path


def test_a_damaged_entry_is_made_again(source, cache):
    data = fill(source, {f"{k}.png": encode(plain()) for k in range(3)})
    found = prepare_images(data, 16, cache=cache)
    os.unlink(Path(found.path) / "000001.jpg")
    assert prepare_images(data, 16, cache=cache) == found
    assert len(os.listdir(found.path)) == 3
    (Path(found.path).parent / "manifest.json").write_text("{")
    assert prepare_images(data, 16, cache=cache) == found
    assert not list(cache.glob(".making-*"))


def test_an_interrupted_preparation_leaves_nothing(source, cache):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    data = fill(source, {f"{k}.png": encode(plain()) for k in range(3)})
    with pytest.raises(KeyboardInterrupt):
        prepare_images(data, 16, cache=cache, progress=interrupt)
    assert not any(cache.iterdir())


def _race(data: str, cache: Path, barrier, results) -> None:
    barrier.wait()
    found = prepare_images(data, 16, cache=cache)
    results.put((found.path, found.count, len(os.listdir(found.path))))


def test_two_processes_at_once_share_one_entry(source, cache):
    data = fill(source, {f"{k}.png": encode(plain(size=(300, 300))) for k in range(30)})
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    racers = [context.Process(target=_race, args=(data, cache, barrier, results)) for _ in range(2)]
    for racer in racers:
        racer.start()
    first, second = results.get(timeout=120), results.get(timeout=120)
    for racer in racers:
        racer.join(60)
    assert first == second and first[1:] == (30, 30)
    assert [path.name for path in cache.iterdir()] == [Path(first[0]).parent.name]


def test_leftovers_of_killed_runs_are_removed_and_those_at_work_kept(source, cache):
    cache.mkdir()
    old, fresh = cache / ".making-old", cache / ".making-fresh"
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (0, 0))
    prepare_images(fill(source, {"a.png": encode(plain())}), 16, cache=cache)
    assert not old.exists() and fresh.exists()


def test_a_cache_that_cannot_be_written_is_one_line(source, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot write the image cache"):
        prepare_images(fill(source, {"a.png": encode(plain())}), 16, cache=blocked / "cache")
