"""Images for a workload: prepared once at its resolution as JPEG, kept in a cache, read by the data loader.

They come from a user's folder or zip (``ladder/images/user.py``), or are the sample photographs
(``ladder/images/photographs.py``). ``ladder/images/store.py`` keeps them.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from PIL import Image

from ladder.base import bounds, files
from ladder.base.errors import UserError
from ladder.images import damage, photographs
from ladder.images import store as imagestore
from ladder.images import user as userimages
from ladder.images.store import ImageSet

SAMPLE = "sample-photographs"
USER = "user-images"
JPEG_QUALITY = 90
VERSION = 2  # of the cache's content: raise it when the same input gives other images
CACHE = files.cache("images")
OURS = files.ROOT / ".cache" / "images"  # read even if it cannot be written
NAMED = 20  # unreadable files named in the notes; the rest are counted
JPEGS = (".jpg", ".jpeg")

Progress = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")


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
    ready = imagestore.find_entry(cache / key) or (
        imagestore.find_entry(OURS / key) if cache == CACHE else None
    )
    if ready:
        return ready
    pictures = photographs.load_photographs()
    crops = photographs.plan_crops({name: picture.size for name, picture in pictures.items()}, resolution)
    upscaled = sum(crop.side < resolution for crop in crops)
    notes = [f"{len(crops)} random crops of {len(pictures)} photographs that come with scikit-image"]
    if upscaled:
        notes.append(
            f"{upscaled} of them are upscaled to {resolution}x{resolution}: the photographs are smaller"
        )

    def fill(folder: Path) -> list[str]:
        def make(item: tuple[int, photographs.Crop]) -> None:
            index, crop = item
            picture = photographs.cut_crop(pictures[crop.photograph], crop, resolution)
            _save(picture, folder / f"{index:06d}.jpg")

        for done, _ in enumerate(_in_threads(make, enumerate(crops)), 1):
            if progress:
                progress(done, len(crops))
        return notes

    return imagestore.make_entry(cache / key, SAMPLE, fill, replaces=f"sample-{resolution}-v*")


def _prepare_user(data: str, resolution: int, cache: Path, progress: Progress | None) -> ImageSet:
    collection = userimages.find_images(data)
    try:
        if not collection.candidates:
            raise UserError(
                f"--data {data}: holds no JPEG or PNG image{_other_types(collection.other_types)}"
            )
        source = hashlib.sha256(os.fsencode(os.path.realpath(Path(data).expanduser()))).hexdigest()[:12]
        entry = cache / f"user-{source}-{resolution}-{_fingerprint(collection)}-v{VERSION}"
        return imagestore.find_entry(entry) or imagestore.make_entry(
            entry,
            USER,
            lambda folder: _fill_user(data, collection, folder, resolution, progress),
            replaces=f"user-{source}-{resolution}-*",
        )
    finally:
        collection.close()


def _fill_user(
    data: str, collection: userimages.Collection, folder: Path, resolution: int, progress: Progress | None
) -> list[str]:
    """Convert every candidate and return the notes. Raises UserError if none could be used."""

    def make(item: tuple[int, userimages.Candidate]) -> tuple[str, set[str] | None]:
        index, candidate = item
        try:
            picture, remarks = userimages.make_square(collection.read(candidate), resolution)
        except userimages.Unreadable as error:
            return f"{candidate.name}: {error}", None
        _save(picture, folder / f"{index:06d}.jpg")
        return candidate.name, remarks

    skipped, used, counts = list(collection.skipped), 0, Counter()
    for done, (line, remarks) in enumerate(_in_threads(make, enumerate(collection.candidates)), 1):
        if remarks is None:
            skipped.append(line)
        else:
            used += 1
            counts.update(remarks)
        if progress:
            progress(done, len(collection.candidates))
    if not used:
        raise UserError(
            f"--data {data}: none of {len(collection.candidates)} images can be read; the first: {skipped[0]}"
        )
    notes = [f"skipped {line}" for line in skipped[:NAMED]]
    if len(skipped) > NAMED:
        notes.append(f"skipped {len(skipped) - NAMED} more unreadable files")
    if collection.other_types:
        files = (
            "1 file is" if len(collection.other_types) == 1 else f"{len(collection.other_types)} files are"
        )
        notes.append(f"{files} not JPEG or PNG{_other_types(collection.other_types)}: ignored")
    if left_out := counts[userimages.PROFILE_LEFT_OUT]:
        notes.append(
            f"{left_out} of {used} images {'has' if left_out == 1 else 'have'} a colour profile that "
            "cannot be applied: used without it"
        )
    if upscaled := counts[userimages.UPSCALED]:
        are = "is" if upscaled == 1 else "are"
        notes.append(f"{upscaled} of {used} images {are} smaller than {resolution}x{resolution}: upscaled")
    if damage.load_decoder() is None and _has_jpegs(collection):
        notes.append(damage.UNCHECKED)
    return notes


def _has_jpegs(collection: userimages.Collection) -> bool:
    return any(candidate.name.lower().endswith(JPEGS) for candidate in collection.candidates)


def _fingerprint(collection: userimages.Collection) -> str:
    """Return a digest that changes with any candidate's name, size or time, and with whether JPEGs are checked."""
    lines = [
        f"{candidate.name} {candidate.stamp}" for candidate in collection.candidates
    ] + collection.skipped
    lines += [damage.UNCHECKED] * (damage.load_decoder() is None and _has_jpegs(collection))
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _other_types(names: list[str]) -> str:
    suffixes = sorted({Path(name).suffix.lower() or "no suffix" for name in names})
    more = ", ..." if len(suffixes) > 5 else ""
    return f" (found {', '.join(suffixes[:5])}{more})" if names else ""


def _in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results in order, with few in memory at once. Pillow releases the GIL while it works."""
    workers = max(
        1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
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
    encoded = io.BytesIO()  # written by Python, whose error names a full disk; Pillow's does not
    picture.save(encoded, "JPEG", quality=JPEG_QUALITY)
    path.write_bytes(encoded.getvalue())
