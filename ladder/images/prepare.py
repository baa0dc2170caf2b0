"""Images for a workload: prepared once at its resolution as JPEG, kept in a cache, read by the data loader.

They come from a user's folder or zip (`ladder.images.user`), or are random crops of the free photographs inside the
scikit-image wheel: nothing is downloaded. ``docs/training.md`` lists each photograph with its subject and licence.

An entry of the cache is a folder ``<key>/`` with ``images/*.jpg``, ``manifest.json`` and ``in-use``. It is written
under another name and renamed when it is complete, so a killed run leaves no half entry. Loaders read the files by
their path during a whole training. So a process holds a shared lock on ``in-use`` of each of its entries until it
ends, and only an entry that nobody holds is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import json
import os
import random
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from PIL import Image

from ladder.core import bounds, files
from ladder.core.errors import UserError
from ladder.core.text import format_count
from ladder.images import colour
from ladder.images import user as userimages

SAMPLE = "sample-photographs"
USER = "user-images"
JPEG_QUALITY = 90
VERSION = 2  # of the cache's content: raise it when the same input gives other images
CACHE = files.cache_folder("images")
NAMED = 20  # unreadable files named in the notes; the rest are counted
# scikit-image's other colour pictures are left out: some are drawn, and for some no free licence is stated.
PHOTOGRAPHS = (
    "astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg",
)  # fmt: skip
CROPS = 2048
SEED = 20191203  # any constant: the day StyleGAN2 appeared (arXiv:1912.04958)
LIMIT_GB = 50.0  # of all entries together; the least recently used go first
STALE_S = 24 * 3600.0  # a temporary folder this old belongs to a process that was killed
LOCK = "in-use"
_locks: dict[Path, IO[bytes]] = {}  # of this process: open files, closed by its end

Progress = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ImageSet:
    """Prepared images: ``count`` JPEG files in the folder ``path``.

    ``source`` is SAMPLE or USER; notes are for people.
    """

    path: str
    count: int
    source: str
    notes: list[str] = field(default_factory=list)


def prepare_images(
    data: str | None,
    resolution: int,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    at_least: int = 1,
) -> ImageSet:
    """Make the images of one workload, or find them in the cache.

    Args:
        data: folder (searched recursively) or zip of JPEG and PNG files; None takes the sample photographs.
        resolution: side of the square images, in pixels.
        cache: folder of the entries; None: ``.cache/images`` of the project.
        progress: called with (images done, images in all) while they are made.
        at_least: the batch. A training step needs a whole one.

    Raises:
        UserError: one line. ``data`` is missing, empty, or neither folder nor zip, or has too few usable
            images. Or the cache cannot be written, or Pillow is too old.
    """
    bounds.refuse_older("pillow")
    cache = CACHE if cache is None else Path(cache)
    progress = progress or (lambda done, total: None)
    try:
        if data is None:
            images = _prepare_sample(resolution, cache, progress)
        else:
            images = _prepare_user(data, resolution, cache, progress)
    except OSError as error:
        raise UserError(f"cannot write the image cache {cache}: {error.strerror or error}") from error
    if images.count < at_least:
        what = "sample photographs" if data is None else f"--data {data}"
        raise UserError(
            f"{what}: {format_count(images.count, 'usable image')}, fewer than one batch of {at_least}: "
            "add images or use a workload with a smaller batch"
        )
    return images


# --- the sample photographs -------------------------------------------------------------------------------------------


class Crop(NamedTuple):
    """A square of one photograph, ``side`` pixels wide, with its corner at (left, top)."""

    photograph: str
    left: int
    top: int
    side: int


def load_photographs() -> dict[str, Image.Image]:
    """Return scikit-image's photographs as sRGB images, by file name. Raises UserError if it or a file is missing."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the sample photographs need scikit-image, or give your own images with --data")
    data = Path(spec.submodule_search_locations[0]) / "data"
    photographs = {}
    for name in PHOTOGRAPHS:
        try:
            with Image.open(data / name) as image:
                photographs[name], _ = colour.convert_to_srgb(image, colour.read_profile(image))
        except OSError as error:
            raise UserError(
                f"scikit-image's photograph {name} cannot be read: {error.strerror or error}: reinstall its wheel"
                " (pip install --force-reinstall scikit-image) or give your own images with --data"
            ) from error
    return photographs


def plan_crops(sizes: dict[str, tuple[int, int]], resolution: int, count: int = CROPS) -> list[Crop]:
    """Return ``count`` random squares, as many from each photograph. They depend on the arguments alone.

    A crop is at least 35% of the photograph's shorter side, and at least ``resolution`` if the photograph has that
    many pixels. Only smaller photographs are upscaled, and then from at least 70% of their shorter side.
    """
    chooser = random.Random(SEED)
    crops = []
    for index in range(count):
        name = PHOTOGRAPHS[index % len(PHOTOGRAPHS)]
        width, height = sizes[name]
        short = min(width, height)
        least = max(resolution, round(0.35 * short)) if short >= resolution else round(0.7 * short)
        side = chooser.randint(least, short)
        crops.append(Crop(name, chooser.randint(0, width - side), chooser.randint(0, height - side), side))
    return crops


def _prepare_sample(resolution: int, cache: Path, progress: Progress) -> ImageSet:
    key = f"sample-{resolution}-v{VERSION}"
    if ready := find_entry(cache / key):
        return ready
    pictures = load_photographs()
    crops = plan_crops({name: picture.size for name, picture in pictures.items()}, resolution)
    notes = [f"{len(crops)} random crops of {len(pictures)} photographs that come with scikit-image"]
    if upscaled := sum(crop.side < resolution for crop in crops):
        notes.append(
            f"{upscaled} of them are upscaled to {resolution}x{resolution}: the photographs are smaller"
        )

    def fill(folder: Path) -> list[str]:
        def make(item: tuple[int, Crop]) -> None:
            index, crop = item
            box = (crop.left, crop.top, crop.left + crop.side, crop.top + crop.side)
            picture = pictures[crop.photograph].resize(
                (resolution, resolution), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0
            )
            _save_picture(picture, folder / f"{index:06d}.jpg")

        for done, _ in enumerate(_map_in_threads(make, enumerate(crops)), 1):
            progress(done, len(crops))
        return notes

    return make_entry(cache / key, SAMPLE, fill, replaces=f"sample-{resolution}-v*")


# --- a user's images --------------------------------------------------------------------------------------------------


def _prepare_user(data: str, resolution: int, cache: Path, progress: Progress) -> ImageSet:
    collection = userimages.find_images(data)
    try:
        if not collection.candidates:
            raise UserError(f"--data {data}: holds no JPEG or PNG image{_list_types(collection.other_types)}")
        source = hashlib.sha256(os.fsencode(os.path.realpath(Path(data).expanduser()))).hexdigest()[:12]
        # The digest changes with any candidate's name, size or time, and with whether JPEGs are checked.
        lines = [f"{candidate.name} {candidate.stamp}" for candidate in collection.candidates]
        lines += [*collection.skipped, *_list_unchecked(collection)]
        digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:20]
        entry = cache / f"user-{source}-{resolution}-{digest}-v{VERSION}"

        def fill(folder: Path) -> list[str]:
            return _fill_user(data, collection, folder, resolution, progress)

        return find_entry(entry) or make_entry(entry, USER, fill, replaces=f"user-{source}-{resolution}-*")
    finally:
        collection.close()


def _fill_user(
    data: str, collection: userimages.Collection, folder: Path, resolution: int, progress: Progress
) -> list[str]:
    """Convert every candidate and return the notes. Raises UserError if none could be used."""

    def make(item: tuple[int, userimages.Candidate]) -> tuple[str, set[str] | None]:
        index, candidate = item
        try:
            picture, remarks = userimages.make_square(collection.read(candidate), resolution)
        except userimages.Unreadable as error:
            return f"{candidate.name}: {error}", None
        _save_picture(picture, folder / f"{index:06d}.jpg")
        return candidate.name, remarks

    total = len(collection.candidates)
    skipped, used, counts = list(collection.skipped), 0, Counter()
    for done, (line, remarks) in enumerate(_map_in_threads(make, enumerate(collection.candidates)), 1):
        if remarks is None:
            skipped.append(line)
        else:
            used += 1
            counts.update(remarks)
        progress(done, total)
    if not used:
        raise UserError(f"--data {data}: none of {total} images can be read; the first: {skipped[0]}")
    notes = [f"skipped {line}" for line in skipped[:NAMED]]
    if len(skipped) > NAMED:
        notes.append(f"skipped {len(skipped) - NAMED} more unreadable files")
    if others := collection.other_types:
        notes.append(f"ignored, not JPEG or PNG: {format_count(len(others), 'file')}{_list_types(others)}")
    if left_out := counts[userimages.PROFILE_LEFT_OUT]:
        notes.append(f"a colour profile cannot be applied, used without it: {left_out} of {used} images")
    if upscaled := counts[userimages.UPSCALED]:
        notes.append(f"smaller than {resolution}x{resolution}, upscaled: {upscaled} of {used} images")
    return [*notes, *_list_unchecked(collection)]


def _list_unchecked(collection: userimages.Collection) -> list[str]:
    """Return the note that JPEG files of a collection cannot be checked, if that is so."""
    has_jpegs = any(each.name.lower().endswith((".jpg", ".jpeg")) for each in collection.candidates)
    return [userimages.UNCHECKED] if has_jpegs and userimages.load_decoder() is None else []


def _list_types(names: list[str]) -> str:
    suffixes = sorted({Path(name).suffix.lower() or "no suffix" for name in names})
    more = ", ..." if len(suffixes) > 5 else ""
    return f" (found {', '.join(suffixes[:5])}{more})" if names else ""


def _map_in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results in order. Pillow releases the GIL while it works."""
    from ladder.machine.system import usable_cores

    with ThreadPoolExecutor(min(8, usable_cores())) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _save_picture(picture: Image.Image, path: Path) -> None:
    encoded = io.BytesIO()  # written by Python, whose error names a full disk; Pillow's does not
    picture.save(encoded, "JPEG", quality=JPEG_QUALITY)
    path.write_bytes(encoded.getvalue())


# --- the cache --------------------------------------------------------------------------------------------------------


def find_entry(entry: Path) -> ImageSet | None:
    """Return the finished entry, locked against removal until this process ends; None if files of it are missing.

    On a file system without locks nobody removes entries.
    """
    if not (entry / "manifest.json").exists():
        return None
    release_entry(entry)
    for mode in ("r+b", "rb"):  # a cache may be read-only
        with suppress(OSError):
            _locks[entry] = open(entry / LOCK, mode)
            fcntl.flock(_locks[entry], fcntl.LOCK_SH)  # waits while another process moves the entry away
            os.utime(entry / LOCK)  # last used now
            break
    try:
        manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
        images = ImageSet(path=str(entry / "images"), **manifest)
        is_whole = sum(name.endswith(".jpg") for name in os.listdir(images.path)) == images.count
        if lock := _locks.get(
            entry
        ):  # else it was moved away, perhaps made again, while we waited for the lock
            is_whole &= os.path.samestat(os.fstat(lock.fileno()), os.stat(entry / LOCK))
    except (OSError, ValueError, TypeError):
        is_whole = False
    if not is_whole:
        release_entry(entry)
    return images if is_whole else None


def make_entry(entry: Path, source: str, fill: Callable[[Path], list[str]], replaces: str) -> ImageSet:
    """Make an entry and hold it, then remove the entries that it replaces and those beyond the cache's limit.

    If two processes make the same entry, the second to finish takes the first one's.

    Args:
        entry: the folder to make.
        source: SAMPLE or USER.
        fill: writes JPEG files into the folder that it gets, and returns the notes.
        replaces: the pattern of names of earlier entries of the same source and size.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    for left in entry.parent.glob(".making-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)
    working = Path(tempfile.mkdtemp(prefix=".making-", dir=entry.parent))
    try:
        folder = working / "images"
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata and of sizes that are bounded here
            notes = fill(folder)
        manifest = {"count": len(os.listdir(folder)), "source": source, "notes": notes}
        (working / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        (working / LOCK).touch()
        working.chmod(0o755)  # mkdtemp's 0700 would shut out other users of a shared checkout
        try:
            working.rename(entry)
        except OSError:  # there already: another process was faster, or the entry is damaged
            if (ready := find_entry(entry)) is not None:
                return ready
            if not remove_entry(entry):
                raise UserError(
                    f"image cache {entry}: files are missing, and another process uses it"
                ) from None
            working.rename(entry)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    if (images := find_entry(entry)) is None:
        raise UserError(f"image cache {entry}: changed while it was written; run again")
    for other in entry.parent.glob(replaces):
        if other != entry:
            release_entry(other)  # a caller of the source as it is now no longer needs the source as it was
            remove_entry(other)
    sizes, used, gone = dict[Path, int](), dict[Path, float](), 0
    for other in entry.parent.glob("[!.]*"):
        with suppress(OSError):  # it has just been removed
            used[other] = (other / LOCK).stat().st_mtime
            sizes[other] = sum(path.stat().st_size for path in other.rglob("*"))
    for other in sorted(sizes, key=lambda each: used[each]):
        if sum(sizes.values()) > LIMIT_GB * 1e9 and other != entry and remove_entry(other):
            del sizes[other]
            gone += 1
    note = f"{gone} sets of images were removed from the cache: it is kept below {LIMIT_GB:g} GB"
    return replace(images, notes=[*images.notes, note]) if gone else images


def release_entry(entry: Path) -> None:
    """Give up this process's lock on an entry."""
    if entry in _locks:
        _locks.pop(entry).close()


def remove_entry(entry: Path) -> bool:
    """Delete an entry unless it is in use. Return whether it is gone; it is moved first, so nobody finds half of it."""
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=entry.parent))
    try:
        with open(entry / LOCK, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            entry.rename(aside / "removed")
            return True
    except OSError:
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
