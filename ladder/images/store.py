"""A cache of prepared images: whole folders of bounded size, at most one for each source and resolution.

An entry is a folder ``<key>/`` with ``images/*.jpg``, ``manifest.json`` and ``in-use``. It is written under another
name and renamed when it is complete, so a killed run leaves no half entry. If two processes make the same entry, the
second to finish takes the first one's.

Loaders read the files by their path during a whole training. So a process holds a shared lock on ``in-use`` of each
of its entries until it ends. Only an entry that nobody holds is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from ladder.base.errors import UserError

LIMIT_GB = 50.0  # of all entries together; the least recently used go first
STALE_S = 24 * 3600.0  # a temporary folder this old belongs to a process that was killed
LOCK = "in-use"
_held: dict[Path, IO[bytes]] = {}  # this process's locks: open files, closed by its end


@dataclass(frozen=True)
class ImageSet:
    """Prepared images: ``count`` JPEG files in the folder ``path``.

    ``source`` is SAMPLE or USER; notes are for people.
    """

    path: str
    count: int
    source: str
    notes: list[str] = field(default_factory=list)


def find_entry(entry: Path) -> ImageSet | None:
    """Return the finished entry and hold it; None if there is none or some of its files are gone."""
    if not (entry / "manifest.json").exists():
        return None
    _hold(entry)
    images = _read(entry)
    if images is None or not _holds(entry):  # moved away, perhaps made again, while we waited for the lock
        _let_go(entry)
        return None
    return images


def make_entry(entry: Path, source: str, fill: Callable[[Path], list[str]], replaces: str) -> ImageSet:
    """Make an entry and hold it, then remove the entries that it replaces and those beyond the cache's limit.

    Args:
        entry: the folder to make.
        source: SAMPLE or USER of ``ladder.images.prepare``.
        fill: writes JPEG files into the folder that it gets, and returns the notes.
        replaces: the pattern of names of earlier entries of the same source and size.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(entry.parent)
    working = Path(tempfile.mkdtemp(prefix=".making-", dir=entry.parent))
    try:
        folder = working / "images"
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata and of sizes that are bounded here
            notes = fill(folder)
        images = ImageSet("", len(os.listdir(folder)), source, notes)
        manifest = {key: value for key, value in asdict(images).items() if key != "path"}
        (working / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        (working / LOCK).touch()
        working.chmod(0o755)  # mkdtemp's 0700 would shut out other users of a shared checkout
        images = _put(working, entry)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    gone = _make_room(entry, replaces)
    note = f"{gone} sets of images were removed from the cache: it is kept below {LIMIT_GB:g} GB"
    return replace(images, notes=[*images.notes, note]) if gone else images


def _read(entry: Path) -> ImageSet | None:
    try:
        manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
        images = ImageSet(path=str(entry / "images"), **manifest)
        present = sum(name.endswith(".jpg") for name in os.listdir(images.path))
    except (OSError, ValueError, TypeError):
        return None
    return images if present == images.count else None


def _put(working: Path, entry: Path) -> ImageSet:
    try:
        _rename(working, entry)
    except OSError:  # there already: another process was faster, or the entry is damaged
        ready = find_entry(entry)
        if ready:
            return ready
        if not _remove(entry):
            raise UserError(f"image cache {entry}: files are missing, and another process uses it") from None
        _rename(working, entry)
    ready = _read(entry)
    if ready is None:
        raise UserError(f"image cache {entry}: changed while it was written; run again")
    return ready


def _rename(working: Path, entry: Path) -> None:
    """Rename a finished folder. It is held first, so nobody removes it in between."""
    _hold(working)
    try:
        working.rename(entry)
    except OSError:
        _let_go(working)
        raise
    if working in _held:
        _held[entry] = _held.pop(working)


def _hold(entry: Path) -> None:
    """Lock the entry against removal until this process ends. On a file system without locks nobody removes entries."""
    _let_go(entry)
    file = None
    for mode in ("r+b", "rb"):  # a cache may be read-only
        with suppress(OSError):
            file = open(entry / LOCK, mode)
            break
    if file is None:
        return
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)  # waits while another process moves the entry away
        os.utime(entry / LOCK)  # last used now
    _held[entry] = file


def _holds(entry: Path) -> bool:
    """Return whether our lock is on the folder that is there now. Also True if no lock could be had."""
    if entry not in _held:
        return True
    try:
        return os.path.samestat(os.fstat(_held[entry].fileno()), os.stat(entry / LOCK))
    except OSError:
        return False


def _let_go(entry: Path) -> None:
    if entry in _held:
        _held.pop(entry).close()


@contextmanager
def _alone(entry: Path) -> Iterator[bool]:
    """Yield whether no other process holds the entry. No process can begin to while the block runs."""
    try:
        with open(entry / LOCK, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
    except FileNotFoundError:
        yield True  # of an earlier version, or damaged
    except OSError:
        yield False


def _remove(entry: Path) -> bool:
    """Delete an entry unless it is in use. Return whether it is gone; it is moved first, so nobody finds half of it."""
    with _alone(entry) as alone:
        if not alone:
            return False
        try:
            aside = Path(tempfile.mkdtemp(prefix=".making-", dir=entry.parent))
        except OSError:
            return False
        try:
            entry.rename(aside / "removed")
        except OSError:
            aside.rmdir()
            return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _make_room(entry: Path, replaces: str) -> int:
    """Remove the entries that ``entry`` replaces, then the least recently used. Return the number of the latter."""
    for other in entry.parent.glob(replaces):
        if other != entry:
            _let_go(other)  # a caller of the source as it is now no longer needs the source as it was
            _remove(other)
    others = [each for each in entry.parent.iterdir() if each != entry and not each.name.startswith(".")]
    sizes = {each: _size(each) for each in [entry, *others]}
    total, gone = sum(sizes.values()), 0
    for other in sorted(others, key=_last_used):
        if total <= LIMIT_GB * 1e9:
            break
        if _remove(other):
            total, gone = total - sizes[other], gone + 1
    return gone


def _size(entry: Path) -> int:
    """Return the bytes of the entry's files; 0 if it has just been removed."""
    total = 0
    for folder, _, names in os.walk(entry):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _last_used(entry: Path) -> float:
    for path in (entry / LOCK, entry):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _remove_stale(cache: Path) -> None:
    for left in cache.glob(".making-*"):
        try:
            if time.time() - left.stat().st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # its owner has just finished with it
