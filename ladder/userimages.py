"""A user's own images: find JPEG and PNG files in a folder or zip, and turn each into a square RGB image.

The files are read as if they came from a stranger: nothing is extracted to disk (so a path inside a zip can point
nowhere), a file's bytes and an image's pixels are bounded before they are decoded, and only Pillow's JPEG and PNG
readers ever see them.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from PIL import Image, ImageOps

from ladder.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png")
MAX_BYTES = 128 * 2**20  # of one file, unpacked
MAX_PIXELS = 80_000_000  # of one image; 320 MB once decoded with alpha


class Unreadable(Exception):
    """An image that is skipped; the message says why, in a few words."""


@dataclass(frozen=True)
class Candidate:
    """One file that may be an image. ``stamp`` (size, time or checksum) changes when its content does."""

    name: str
    stamp: tuple[int, ...]


@dataclass
class Collection:
    """Candidates in name order, what was passed over while looking, and how to read one."""

    candidates: list[Candidate]
    read: Callable[[Candidate], bytes]
    close: Callable[[], None]
    skipped: list[str] = field(default_factory=list)
    other_types: list[str] = field(default_factory=list)


def find(data: str) -> Collection:
    """List the images of a folder (recursively) or zip. UserError if ``data`` is missing, neither, or damaged."""
    path = Path(data).expanduser()
    try:
        if path.is_dir():
            return _find_in_folder(path)
        if not path.exists():
            raise UserError(f"--data {data}: no such folder or zip file")
        if path.is_file() and zipfile.is_zipfile(path):
            return _find_in_zip(path)
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"--data {data}: cannot be read: {_reason(error)}") from error
    raise UserError(f"--data {data}: is neither a folder nor a zip file of JPEG or PNG images")


def square(content: bytes, resolution: int) -> tuple[Image.Image, bool]:
    """Decode, turn upright, centre-crop and resize to [resolution, resolution] RGB.

    Returns:
        the image, and whether it had to be upscaled.

    Raises:
        Unreadable: not a JPEG or PNG that Pillow can decode, or one with more than ``MAX_PIXELS`` pixels.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Unreadable(f"{width}x{height} is more than {MAX_PIXELS // 10**6} million pixels")
            image.draft(None, (2 * resolution, 2 * resolution))  # JPEG: decode at a half, quarter or eighth
            image.load()
            picture = ImageOps.fit(
                to_rgb(_upright(image)),
                (resolution, resolution),
                Image.Resampling.LANCZOS,
            )
            return picture, min(width, height) < resolution
    except Unreadable:
        raise
    except MemoryError:
        raise Unreadable("not enough memory to decode it") from None
    except (
        Exception
    ) as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ... on damaged files
        raise Unreadable(_reason(error)) from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged metadata beside sound pixels
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode to RGB: 16-bit grey is scaled to 8 bits, transparency is laid over white."""
    if image.mode.startswith("I"):  # 16-bit PNG; Pillow's own conversion clips at 255
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _find_in_folder(root: Path) -> Collection:
    os.listdir(root)  # os.walk is silent about a folder it may not read
    found = Collection([], lambda candidate: _read_file(root / candidate.name), lambda: None)
    for name in sorted(_walk(root, found.skipped)):
        if _passed_over(name, found):
            continue
        try:
            status = (root / name).stat()
        except OSError as error:
            found.skipped.append(f"{name}: {_reason(error)}")
            continue
        found.candidates.append(Candidate(name, (status.st_size, status.st_mtime_ns)))
    return found


def _walk(root: Path, skipped: list[str]) -> Iterator[str]:
    """Relative file names below ``root``; links to folders are followed, each folder once."""
    seen: set[str] = set()

    def complain(error: OSError) -> None:
        skipped.append(f"{os.path.relpath(error.filename, root)}: {_reason(error)}")

    for folder, folders, files in os.walk(root, onerror=complain, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.relpath(os.path.join(folder, name), root) for name in files)


def _find_in_zip(path: Path) -> Collection:
    archive = zipfile.ZipFile(path)
    found = Collection([], lambda candidate: _read_member(archive, candidate.name), archive.close)
    members = {
        info.filename: info for info in archive.infolist() if not info.is_dir()
    }  # of two alike the last
    for name in sorted(members):
        if not _passed_over(name, found):
            found.candidates.append(Candidate(name, (members[name].file_size, members[name].CRC)))
    return found


def _passed_over(name: str, found: Collection) -> bool:
    """Hidden files (``__MACOSX/._x.jpg``, ``.thumb.png``) in silence, other types with a count."""
    path = PurePosixPath(name)
    if path.name.startswith(".") or "__MACOSX" in path.parts:
        return True
    if path.suffix.lower() not in SUFFIXES:
        found.other_types.append(name)
        return True
    return False


def _read_file(path: Path) -> bytes:
    if not path.is_file():  # a pipe called x.jpg would block for ever
        raise Unreadable("not a regular file")
    try:
        with open(path, "rb") as stream:
            return _bounded(stream.read(MAX_BYTES + 1))
    except OSError as error:
        raise Unreadable(_reason(error)) from error


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        with archive.open(
            name
        ) as stream:  # reads no more than asked, whatever size the zip's directory claims
            return _bounded(stream.read(MAX_BYTES + 1))
    except Unreadable:
        raise
    except Exception as error:  # encrypted, unknown compression, wrong checksum, damaged stream
        raise Unreadable(_reason(error)) from error


def _bounded(content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES // 2**20} MiB")
    return content


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    if text.startswith("cannot identify image file"):
        return "not a JPEG or PNG image"
    return text[:120] or type(error).__name__
