"""Images for a workload: prepared once at its resolution as JPEG, kept in a cache, read by the data loader.

Either a user's folder or zip (``ladder/userimages.py``) or the sample photographs (``ladder/photographs.py``). A
cache entry is a folder ``<key>/`` with ``images/*.jpg`` and ``manifest.json``. It is written under another name and
renamed when it is complete: a killed run leaves no half entry, and of two processes at work on the same one the
second to finish takes the first one's.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from PIL import Image

from ladder import files, photographs, userimages
from ladder.errors import UserError

SAMPLE = "sample-photographs"
USER = "user-images"
JPEG_QUALITY = 90
VERSION = 1  # of what is in the cache: raise it when the same input gives other images
CACHE = files.cache("images")
OURS = Path(__file__).resolve().parent.parent / ".cache" / "images"  # counts where it cannot be written, too
NAMED = 20  # unreadable files named in the notes; the rest are counted
STALE_S = 24 * 3600.0  # a temporary folder this old belongs to a process that was killed

Progress = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ImageSet:
    """Prepared images: ``count`` JPEG files in the folder ``path``; ``source`` is SAMPLE or USER; notes for people."""

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
    """Make the images of one workload, or find them made.

    Args:
        data: folder (searched recursively) or zip of JPEG and PNG files; None takes the sample photographs.
        resolution: side of the square images, in pixels.
        cache: where entries are kept; None: ``.cache/images`` of the project.
        progress: called with (images done, images in all) while they are made.
        at_least: the batch. A training step needs a whole one.

    Raises:
        UserError: ``data`` is missing, empty, neither folder nor zip, without a usable image or with fewer than
            ``at_least``; or the cache cannot be written. One line.
    """
    cache = CACHE if cache is None else Path(cache)
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
            f"{what}: {images.count} usable image{'s' * (images.count != 1)}, fewer than one batch of {at_least}: "
            "add images or use a workload with a smaller batch"
        )
    return images


def _prepare_sample(resolution: int, cache: Path, progress: Progress | None) -> ImageSet:
    key = f"sample-{resolution}-v{VERSION}"
    ready = _look_up(cache / key) or (_look_up(OURS / key) if cache == CACHE else None)
    if ready:
        return ready
    pictures = photographs.load()
    crops = photographs.plan({name: picture.size for name, picture in pictures.items()}, resolution)
    upscaled = sum(crop.side < resolution for crop in crops)
    notes = [f"{len(crops)} random crops of {len(pictures)} photographs that come with scikit-image"]
    if upscaled:
        notes.append(
            f"{upscaled} of them are upscaled to {resolution}x{resolution}: the photographs are smaller"
        )

    def fill(folder: Path) -> list[str]:
        def make(item: tuple[int, photographs.Crop]) -> None:
            index, crop = item
            picture = photographs.cut(pictures[crop.photograph], crop, resolution)
            _save(picture, folder / f"{index:06d}.jpg")

        for done, _ in enumerate(_in_threads(make, enumerate(crops)), 1):
            if progress:
                progress(done, len(crops))
        return notes

    return _make(cache / key, SAMPLE, fill)


def _prepare_user(data: str, resolution: int, cache: Path, progress: Progress | None) -> ImageSet:
    found = userimages.find(data)
    try:
        if not found.candidates:
            raise UserError(f"--data {data}: holds no JPEG or PNG image{_other_types(found.other_types)}")
        entry = cache / f"user-{_fingerprint(data, found)}-{resolution}-v{VERSION}"
        return _look_up(entry) or _make(
            entry,
            USER,
            lambda folder: _fill_user(data, found, folder, resolution, progress),
        )
    finally:
        found.close()


def _fill_user(
    data: str,
    found: userimages.Collection,
    folder: Path,
    resolution: int,
    progress: Progress | None,
) -> list[str]:
    """Convert every candidate; returns the notes. UserError if none could be used."""

    def make(item: tuple[int, userimages.Candidate]) -> tuple[str, str | None]:
        index, candidate = item
        try:
            picture, small = userimages.square(found.read(candidate), resolution)
        except userimages.Unreadable as error:
            return f"{candidate.name}: {error}", None
        _save(picture, folder / f"{index:06d}.jpg")
        return candidate.name, "upscaled" if small else "used"

    skipped, used, upscaled = list(found.skipped), 0, 0
    for done, (line, outcome) in enumerate(_in_threads(make, enumerate(found.candidates)), 1):
        if outcome is None:
            skipped.append(line)
        used += outcome is not None
        upscaled += outcome == "upscaled"
        if progress:
            progress(done, len(found.candidates))
    if not used:
        raise UserError(
            f"--data {data}: none of {len(found.candidates)} images can be read; the first: {skipped[0]}"
        )
    notes = [f"skipped {line}" for line in skipped[:NAMED]]
    if len(skipped) > NAMED:
        notes.append(f"skipped {len(skipped) - NAMED} more unreadable files")
    if found.other_types:
        notes.append(
            f"{len(found.other_types)} files are not JPEG or PNG{_other_types(found.other_types)}: ignored"
        )
    if upscaled:
        notes.append(f"{upscaled} of {used} images are smaller than {resolution}x{resolution}: upscaled")
    return notes


def _fingerprint(data: str, found: userimages.Collection) -> str:
    """Changes when the path does, or any candidate's name, size or time."""
    lines = [os.path.realpath(Path(data).expanduser())]
    lines += [f"{candidate.name} {candidate.stamp}" for candidate in found.candidates] + found.skipped
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _other_types(names: list[str]) -> str:
    suffixes = sorted({Path(name).suffix.lower() or "no suffix" for name in names})
    more = ", ..." if len(suffixes) > 5 else ""
    return f" (found {', '.join(suffixes[:5])}{more})" if names else ""


def _in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Results in order. Pillow releases the GIL while it decodes, resizes and encodes; few are in memory at once."""
    workers = max(
        1,
        min(
            8,
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        ),
    )
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _save(picture: Image.Image, path: Path) -> None:
    picture.save(path, "JPEG", quality=JPEG_QUALITY)


def _look_up(entry: Path) -> ImageSet | None:
    """The finished entry, or None if there is none or some of its files are gone."""
    try:
        manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
        images = ImageSet(path=str(entry / "images"), **manifest)
        present = sum(name.endswith(".jpg") for name in os.listdir(images.path))
    except (OSError, ValueError, TypeError):
        return None
    return images if present == images.count else None


def _make(entry: Path, source: str, fill: Callable[[Path], list[str]]) -> ImageSet:
    """Let ``fill`` write images into a temporary folder, add the manifest, and rename it to ``entry``."""
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
        working.chmod(0o755)  # mkdtemp's 0700 would shut out other users of a shared checkout
        return _put(working, entry)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _put(working: Path, entry: Path) -> ImageSet:
    try:
        working.rename(entry)
    except OSError:  # there already: another process was faster, or it is damaged
        ready = _look_up(entry)
        if ready:
            return ready
        aside = Path(tempfile.mkdtemp(prefix=".making-", dir=entry.parent)) / "damaged"
        entry.rename(aside)
        shutil.rmtree(aside.parent, ignore_errors=True)
        working.rename(entry)
    ready = _look_up(entry)
    if ready is None:
        raise UserError(f"image cache {entry}: changed while it was written; run again")
    return ready


def _remove_stale(cache: Path) -> None:
    for left in cache.glob(".making-*"):
        try:
            if time.time() - left.stat().st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # its owner has just finished with it
