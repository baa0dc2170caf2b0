"""The cache of images: one entry for a source and size, bounded, and none removed that somebody reads."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from ladder.core.errors import UserError
from ladder.images import prepare as images
from ladder.images.prepare import prepare_images
from tests.support import pictures
from tests.support.pictures import encode, fill, plain

source, cache = pictures.source, pictures.cache
ROOT = Path(__file__).resolve().parents[2]
READER = """
import sys
from pathlib import Path
from ladder.images.prepare import prepare_images
found = prepare_images(sys.argv[1], 16, cache=Path(sys.argv[2]))
print(found.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def read_elsewhere(data: str, cache: Path):
    """Another process has the images of ``data`` and reads them while the block runs; yields its folder."""
    command = [sys.executable, "-c", READER, data, str(cache)]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        yield Path(reader.stdout.readline().strip())
        reader.stdin.close()


@pytest.fixture(autouse=True)
def let_go():
    """A process holds what it was given; a test stands for many processes."""
    yield
    end_of_process()


def end_of_process() -> None:
    for entry in list(images._locks):
        images.release_entry(entry)


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_a_changed_source_replaces_its_entry_of_that_size_alone(source, cache, tmp_path):
    other = fill(tmp_path / "other", {"a.png": encode(plain())})
    kept = [prepare_images(other, 16, cache=cache), prepare_images(other, 32, cache=cache)]
    data = fill(source, {"a.png": encode(plain())})
    kept.append(prepare_images(data, 32, cache=cache))
    for k in range(3):
        fill(source, {f"new{k}.png": encode(plain())})
        newest = prepare_images(data, 16, cache=cache)
        assert newest.count == 2 + k
        assert entries(cache) == sorted(Path(each.path).parent.name for each in [*kept, newest])


def test_an_entry_that_another_process_reads_stays_until_that_ends(source, cache):
    data = fill(source, {"a.png": encode(plain())})
    with read_elsewhere(data, cache) as folder:
        fill(source, {"b.png": encode(plain())})
        assert prepare_images(data, 16, cache=cache).count == 2
        assert os.listdir(folder) == ["000000.jpg"] and len(entries(cache)) == 2
    fill(source, {"c.png": encode(plain())})
    newest = prepare_images(data, 16, cache=cache)
    assert entries(cache) == [Path(newest.path).parent.name]


def test_what_was_used_longest_ago_makes_room_and_that_is_said(tmp_path, cache, monkeypatch):
    made = {}
    for k, name in enumerate("abcd"):
        made[name] = fill(tmp_path / name, {"x.png": encode(plain(size=(64, 64)))})
        entry = Path(prepare_images(made[name], 16, cache=cache).path).parent
        end_of_process()
        os.utime(entry / images.LOCK, (k, k))
    size = sum(path.stat().st_size for path in entry.rglob("*"))
    prepare_images(made["a"], 16, cache=cache)  # used again: b and c are older now
    end_of_process()
    monkeypatch.setattr(images, "LIMIT_GB", 3.5 * size / 1e9)
    found = prepare_images(fill(tmp_path / "e", {"x.png": encode(plain())}), 16, cache=cache)
    assert found.notes == [
        f"2 sets of images were removed from the cache: it is kept below {images.LIMIT_GB:g} GB"
    ]
    left = [
        prepare_images(made[name], 16, cache=cache, progress=lambda *_: pytest.fail("made again"))
        for name in "ad"
    ]
    assert entries(cache) == sorted(Path(each.path).parent.name for each in [*left, found])


def test_the_bound_spares_what_is_made_and_what_is_read(source, cache, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "LIMIT_GB", 0.0)
    read = fill(tmp_path / "read", {"a.png": encode(plain())})
    with read_elsewhere(read, cache) as folder:
        found = prepare_images(fill(source, {"a.png": encode(plain())}), 16, cache=cache)
        assert os.listdir(found.path) == os.listdir(folder) == ["000000.jpg"]


def test_a_full_disk_is_one_line_and_leaves_nothing(source, cache, monkeypatch):
    def full(self, content):
        with open(self, "wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    data = fill(source, {f"{k}.png": encode(plain()) for k in range(3)})
    kept = prepare_images(data, 16, cache=cache)
    fill(source, {"new.png": encode(plain())})
    monkeypatch.setattr(images.Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"^cannot write the image cache .*: No space left on device$"):
        prepare_images(data, 16, cache=cache)
    assert entries(cache) == [Path(kept.path).parent.name]  # what is replaced goes when the new one is there


def test_a_cache_that_may_only_be_read_serves_what_it_has(source, cache, monkeypatch):
    data = fill(source, {"a.png": encode(plain())})
    found = prepare_images(data, 16, cache=cache)
    end_of_process()

    def read_only(path, mode="r", *args, **options):
        if "+" in mode or "w" in mode:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return io_open(path, mode, *args, **options)

    io_open = open
    monkeypatch.setattr("builtins.open", read_only)
    monkeypatch.setattr(os, "utime", lambda *a, **k: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only")))
    assert prepare_images(data, 16, cache=cache) == found
    assert list(images._locks) == [Path(found.path).parent]  # against those who may remove it
