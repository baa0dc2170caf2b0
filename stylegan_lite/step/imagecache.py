"""Images decoded once: a data set as one memory-mapped file of bytes, so that a batch is a copy without decoding.

A file holds [images, R, R, 3] uint8 and two last lines: the place of the images, and the identity of the file. It is
written under another name and renamed when it is complete. So a killed run leaves nothing that looks whole. If two
processes make the same file, either result is good. Its name carries a digest of the source's files (names, sizes,
times). A changed folder gets a new file, and the old file goes.

The folder of these files is bounded. Files whose images are gone are removed first. Then go those used longest ago,
until the rest and the new file fit. Every reader of a file holds a shared lock on it, and a locked file stays.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stylegan_lite.config import ConfigError

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bytes"
if not os.access(ROOT / ".cache" if (ROOT / ".cache").exists() else ROOT, os.W_OK):  # a read-only checkout
    CACHE = Path(tempfile.gettempdir()) / f"stylegan-ladder-{os.getuid()}" / "bytes"
VERSION = 2  # version of the file; raise it when the same images are laid out otherwise
LIMIT_GB = 100.0  # bytes of all files together; those used longest ago go first
STALE_S = 24 * 3600.0  # an unfinished file this old belongs to a process that was killed


class Source(Protocol):
    """Images in a fixed order that can be cached."""

    resolution: int

    def __len__(self) -> int: ...

    def decode(self, index: int) -> np.ndarray:
        """Return [R, R, 3] uint8."""

    def identity(self) -> tuple[str, list[str]]:
        """Return the place of the images, and lines that change whenever they do."""

    def tally(self) -> dict[str, int]:
        """Return how often an image was decoded, by this process and its workers."""


class CachedImages(Dataset):
    """``source`` read from its memory map: the same tensors for the same (index, flip) pairs, whole batches at a time.

    Batches are channels_last, as the file is. Each process maps the file for itself and shares its pages with the
    others.
    """

    def __init__(self, source: Source, as_uint8: bool) -> None:
        self.source, self.as_uint8 = source, as_uint8
        self.images: Tensor | None = None
        self.file: IO[bytes] | None = None  # locked while it is open
        self.mapped = counter()

    def __len__(self) -> int:
        return len(self.source)

    def prepare(self) -> None:
        """Find the file or make it. Raises ConfigError, one line, where it cannot be written."""
        self.file = _open(self.source, CACHE)
        self.images = _map(self.file, self.source)

    def __getitem__(self, key: tuple[int, bool]) -> Tensor:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[tuple[int, bool]]) -> Tensor:
        """Return a batch [N, 3, R, R] for the loader."""
        if self.images is None:
            self.prepare()
        batch = torch.empty((len(keys), *self.images.shape[1:]), dtype=torch.uint8)
        for pixels, (index, flip) in zip(batch, keys, strict=True):
            image = self.images[index]
            pixels.copy_(image.flip(1) if flip else image)
        self.mapped += len(keys)
        batch = batch.permute(0, 3, 1, 2)
        return batch if self.as_uint8 else batch.float() / 127.5 - 1

    def tally(self) -> dict[str, int]:
        """Return the images decoded and the images read from the map, by this process and its workers."""
        return self.source.tally() | {"mapped": int(self.mapped)}

    def __getstate__(self) -> dict:
        """Return the state for workers that are not forked: they map the file themselves."""
        return self.__dict__ | {"images": None, "file": None}


def as_batch(batch: Tensor) -> Tensor:
    """Return the batch unchanged, as the loader's ``collate_fn``."""
    return batch


def counter() -> Tensor:
    """Make a number that workers count up, too.

    It is not exact when several count at once, but never zero after a count.
    """
    return torch.zeros(1, dtype=torch.int64).share_memory_()


def _map(file: IO[bytes], source: Source) -> Tensor:
    shape = (len(source), source.resolution, source.resolution, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The warning that it cannot be written to: nobody does.
        return torch.from_numpy(np.memmap(file, np.uint8, "r", shape=shape))


def _open(source: Source, cache: Path) -> IO[bytes]:
    """Find the file or make it, and lock it against removal for as long as it is open."""
    while True:
        path = _find_or_make(source, cache)
        with suppress(FileNotFoundError):  # The file was removed since: make it again.
            file = open(path, "rb")
            with suppress(OSError):  # The file system has no locks, or the cache is read-only.
                fcntl.flock(file, fcntl.LOCK_SH)
                os.utime(path)  # The file is last used now.
            if os.fstat(file.fileno()).st_nlink:
                return file
            file.close()


def _find_or_make(source: Source, cache: Path) -> Path:
    place, lines = source.identity()
    r, count = source.resolution, len(source)
    lines = [f"v{VERSION} {count} images {r}x{r}", *lines]
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:20]
    of_source = f"{hashlib.sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}-{r}-"
    path = cache / f"{of_source}{digest}.bytes"
    last_lines = f"\n{json.dumps(place)}\n{lines[0]} {digest}\n".encode()
    if _is_whole(path, count * r * r * 3, last_lines):
        return path
    size = count * r * r * 3 + len(last_lines)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _make_room(cache, of_source, path, size)
        free = shutil.disk_usage(cache).free
        if free < size:
            raise OSError(errno.ENOSPC, f"{free / 1e9:.2f} GB are free")
        _make(source, path, last_lines)
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(cache):
            raise  # An image cannot be read, not the cache.
        what, why = f"{size / 1e9:.2f} GB for {count} images", error.strerror or str(error)
        raise ConfigError(
            f"recipe: cached_images: {what} cannot be written to the cache folder: {why}"
        ) from error
    return path


def _is_whole(path: Path, start: int, last_lines: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read() == last_lines
    except OSError:
        return False


def _make(source: Source, path: Path, last_lines: bytes) -> None:
    """Decode everything in threads (Pillow releases the GIL) into a temporary file; on disk before it is renamed.

    The file is written, not mapped: a write reports a full disk, and a mapped page would end the process.
    """
    handle, working = tempfile.mkstemp(prefix=".making-", dir=path.parent)
    size = source.resolution**2 * 3

    def put(index: int) -> None:
        _write(handle, source.decode(index).tobytes(), index * size)

    try:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with ThreadPoolExecutor(min(8, workers)) as pool:
            waiting = deque(pool.submit(put, index) for index in range(len(source)))
            try:
                while waiting:
                    waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
        _write(handle, last_lines, len(source) * size)
        os.fchmod(handle, 0o644)  # mkstemp's 0600 would shut out other users of a shared checkout
        os.fsync(handle)
        os.replace(working, path)
    except BaseException:
        os.unlink(working)
        raise
    finally:
        os.close(handle)


def _write(handle: int, content: bytes, offset: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written


def _make_room(cache: Path, of_source: str, path: Path, size: int) -> None:
    """Remove files of killed processes, files that will not be read again, and files that leave no room for ``size``
    bytes.
    """
    for file in cache.glob(".making-*"):
        with suppress(OSError):  # Its owner has just finished with it.
            if time.time() - file.stat().st_mtime > STALE_S:
                file.unlink()
    others = [file for file in cache.glob("*.bytes") if file != path]
    for file in others:
        if file.name.startswith(of_source) or not _has_source(file):
            _remove(file)
    left = {}
    for file in others:
        with suppress(FileNotFoundError):
            left[file] = file.stat()
    total = size + sum(status.st_size for status in left.values())
    for file in sorted(left, key=lambda file: left[file].st_mtime):
        if total > LIMIT_GB * 1e9 and _remove(file):
            total -= left[file].st_size


def _has_source(file: Path) -> bool:
    """Return whether the images of a file are still in their place. Files of an earlier version do not name it."""
    try:
        with open(file, "rb") as content:
            content.seek(max(0, os.fstat(content.fileno()).st_size - 2**14))
            place, about, _ = content.read().split(b"\n")[-3:]
        path = json.loads(place)
        return about.startswith(b"v%d " % VERSION) and (not os.path.isabs(path) or os.path.exists(path))
    except (OSError, ValueError):
        return False


def _remove(file: Path) -> bool:
    """Delete a file that nobody reads. Return whether it is gone."""
    try:
        with open(file, "r+b") as content:  # over NFS an exclusive lock needs leave to write
            fcntl.flock(content, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
