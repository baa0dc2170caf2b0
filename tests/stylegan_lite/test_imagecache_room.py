"""The cache of decoded images: bounded, without files whose images are gone, and none removed that somebody reads."""

import os
from pathlib import Path

import numpy as np
import pytest

from stylegan_lite.step import imagecache


class Pictures:
    """Four pictures of one grey in a folder."""

    resolution = 8

    def __init__(self, place: Path, level: int = 0) -> None:
        place.mkdir(exist_ok=True)
        self.place, self.level = place, level

    def __len__(self) -> int:
        return 4

    def decode(self, index: int) -> np.ndarray:
        return np.full((8, 8, 3), self.level, np.uint8)

    def identity(self) -> tuple[str, list[str]]:
        return str(self.place), [str(self.level)]

    def tally(self) -> dict[str, int]:
        return {"decoded": 0}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(imagecache, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def prepared(source: Pictures) -> imagecache.CachedImages:
    found = imagecache.CachedImages(source, True)
    found.prepare()
    assert (found[2, False] == source.level).all()
    return found


def test_a_file_goes_when_its_images_are_gone(tmp_path, cache):
    prepared(Pictures(tmp_path / "old"))
    (tmp_path / "old").rmdir()
    (cache / "0123456789ab-8-0123456789abcdef0123.bytes").write_bytes(
        bytes(800) + b"\nv1 4 images 8x8 01234\n"
    )
    prepared(Pictures(tmp_path / "new"))
    assert len(list(cache.iterdir())) == 1


def test_what_was_used_longest_ago_makes_room(tmp_path, cache, monkeypatch):
    sources = {name: Pictures(tmp_path / name, ord(name)) for name in "abcd"}
    for k, source in enumerate(sources.values()):
        size = os.path.getsize(prepared(source).file.name)
        for file in cache.iterdir():
            if file.stat().st_mtime > 1000:
                os.utime(file, (k, k))
    prepared(sources["a"])  # used again
    monkeypatch.setattr(imagecache, "LIMIT_GB", 3.1 * size / 1e9)
    prepared(Pictures(tmp_path / "e"))
    assert len(list(cache.iterdir())) == 3
    monkeypatch.setattr(imagecache, "_make", lambda *a: pytest.fail("made again"))
    prepared(sources["a"]), prepared(sources["d"])
