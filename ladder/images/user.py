"""A user's own images: JPEG and PNG files of a folder or zip, or MNIST's idx files, each made a square RGB image.

The files are read as if they came from a stranger. Nothing is extracted to disk, so a path inside a zip can point
nowhere. A file's bytes and an image's pixels are bounded before they are decoded. Only Pillow's readers of JPEG and
PNG, libjpeg-turbo, and LittleCMS for profiles see them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import posixpath
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import IO

from PIL import Image, ImageOps

from ladder.core.errors import UserError
from ladder.images import colour, idx

SUFFIXES = (".jpg", ".jpeg", ".png")
# Folders in which systems and NAS boxes keep thumbnails and deleted files, in small letters.
NOT_THE_USERS = {
    *("__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "$recycle.bin"),
    *("system volume information", "lost+found"),
}
LINKS = 8  # links in a zip that are followed one after another; more are a loop
MAX_BYTES = 128 * 2**20  # of one file, unpacked
MAX_PIXELS = 80_000_000  # of one image; 320 MB once decoded with alpha
PADDING = 16  # bytes: some cameras write a few too many before the end marker, and the picture is whole
WARNINGS = re.compile(r"Premature end|Corrupt JPEG data|Inconsistent progression")
EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
UNCHECKED = "cut-off JPEG files are not recognized: simplejpeg is not installed (pip install simplejpeg)"
UPSCALED, PROFILE_LEFT_OUT = "upscaled", "profile left out"  # remarks of `make_square` on a picture


class Unreadable(Exception):
    """An image that is skipped. The message says why, in a few words."""


@dataclass(frozen=True)
class Candidate:
    """One file that may be an image. ``stamp`` (size, time or checksum) changes when its content does."""

    name: str
    stamp: tuple[int, ...]


@dataclass
class Collection:
    """Candidates in name order, a reader for them, and the files that were skipped in the search."""

    candidates: list[Candidate]
    read: Callable[[Candidate], bytes]
    close: Callable[[], None]
    skipped: list[str] = field(default_factory=list)
    other_types: list[str] = field(default_factory=list)


def find_images(data: str) -> Collection:
    """Return the images of a folder (recursively) or zip, or the training images of a folder with MNIST's idx files.

    Raises UserError if ``data`` is missing, neither, or damaged.
    """
    path = Path(data).expanduser()
    try:
        if path.is_dir() and any(path.glob(f"{idx.TRAINING}*")):
            return _find_in_idx(idx.find_file(path, idx.TRAINING))
        if path.is_dir():
            return _find_in_folder(path)
        if not path.exists():
            raise UserError(f"--data {data}: no such folder or zip file")
        if path.is_file() and zipfile.is_zipfile(path):
            return _find_in_zip(path)
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"--data {data}: cannot be read: {_describe_reason(error)}") from error
    raise UserError(f"--data {data}: is neither a folder nor a zip file of JPEG or PNG images")


def make_square(content: bytes, resolution: int) -> tuple[Image.Image, set[str]]:
    """Return a picture decoded, upright, centre-cropped and resized to [resolution, resolution] sRGB.

    Returns:
        the image, and the remarks on it: ``UPSCALED``, ``PROFILE_LEFT_OUT``.

    Raises:
        Unreadable: not a whole JPEG or PNG that Pillow can decode, or one with more than ``MAX_PIXELS`` pixels.
    """
    try:
        size, upright, profile = _decode_image(content, resolution)
        picture, sound = colour.convert_to_srgb(
            upright,
            profile,
            lambda full: ImageOps.fit(full, (resolution, resolution), Image.Resampling.LANCZOS),
        )
    except MemoryError:
        raise Unreadable("not enough memory to decode it") from None
    remarks = {UPSCALED: min(size) < resolution, PROFILE_LEFT_OUT: not sound}
    return picture, {remark for remark, holds in remarks.items() if holds}


def _decode_image(content: bytes, resolution: int) -> tuple[tuple[int, int], Image.Image, bytes | None]:
    """Return the size in the file, the upright image and its colour profile. A JPEG may be decoded smaller."""
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            size = width, height = image.size
            if width * height > MAX_PIXELS:
                raise Unreadable(f"{width}x{height} is more than {MAX_PIXELS // 10**6} million pixels")
            profile = colour.read_profile(image)
            image.draft(None, (2 * resolution, 2 * resolution))  # JPEG: decode at a half, quarter or eighth
            image.load()
            upright = image
            with contextlib.suppress(*colour.RAISED_BY_PILLOW):  # damaged metadata beside sound pixels
                upright = ImageOps.exif_transpose(image)
    except colour.RAISED_BY_PILLOW as error:
        raise Unreadable(_describe_reason(error)) from error
    if damaged := find_damage(content):
        raise Unreadable(damaged)
    return size, upright, profile


def _find_in_folder(root: Path) -> Collection:
    """Return the files below ``root``. Links to folders are followed, each folder once."""
    os.listdir(root)  # os.walk is silent about a folder it may not read
    names: list[str] = []
    skipped: list[str] = []
    visited: set[str] = set()

    def complain(error: OSError) -> None:
        skipped.append(f"{os.path.relpath(error.filename, root)}: {_describe_reason(error)}")

    for folder, folders, files in os.walk(root, onerror=complain, followlinks=True):
        if (real := os.path.realpath(folder)) in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        names += [os.path.relpath(os.path.join(folder, name), root) for name in files]

    def stamp(name: str) -> tuple[int, ...]:
        status = (root / name).stat()
        return status.st_size, status.st_mtime_ns

    def open_file(name: str) -> IO[bytes]:
        if not (root / name).is_file():  # a pipe called x.jpg would block for ever
            raise Unreadable("not a regular file")
        return open(root / name, "rb")

    return _collect_candidates(names, skipped, stamp, open_file, lambda: None)


def _find_in_idx(path: Path) -> Collection:
    """Return the grey images of an idx file, each read as a PNG file."""
    pixels = idx.read_images(path)

    def read(candidate: Candidate) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(pixels[int(candidate.name.rpartition("/")[2])]).save(stream, "PNG", compress_level=1)
        return stream.getvalue()

    names = (f"{path.name}/{k}" for k in range(len(pixels)))
    return Collection(
        [Candidate(name, (zlib.crc32(pixels[k]),)) for k, name in enumerate(names)], read, lambda: None
    )


def _find_in_zip(path: Path) -> Collection:
    archive = zipfile.ZipFile(path)
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.replace("\\", "/")  # some Windows programs write backslashes
        if not name.endswith("/"):  # that is a folder
            members[str(PurePosixPath(name))] = (
                info  # the last of two equal names, as unpacking would leave it
            )

    def follow(name: str) -> zipfile.ZipInfo:
        """Return the member of this name, or that behind a symbolic link. Only members of the archive are opened."""
        for _ in range(LINKS):
            if (info := members.get(name)) is None:
                raise Unreadable(os.strerror(errno.ENOENT))
            if not stat.S_ISLNK(info.external_attr >> 16):
                return info
            target = archive.read(info).decode("utf-8", "surrogateescape") if info.file_size < 4096 else ""
            name = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        raise Unreadable(os.strerror(errno.ELOOP))

    def stamp(name: str) -> tuple[int, ...]:
        info = follow(name)
        return info.file_size, info.CRC

    return _collect_candidates(members, [], stamp, lambda name: archive.open(follow(name)), archive.close)


def _collect_candidates(
    names: Iterable[str],
    skipped: list[str],
    stamp: Callable[[str], tuple[int, ...]],
    open_file: Callable[[str], IO[bytes]],
    close: Callable[[], None],
) -> Collection:
    """Return the candidates among files. Hidden ones are left out without a word, other types are counted."""

    def read(candidate: Candidate) -> bytes:
        try:
            with open_file(candidate.name) as stream:
                content = stream.read(MAX_BYTES + 1)  # whatever size the directory of a zip claims
        except Exception as error:  # of a zip: encrypted, unknown compression, wrong checksum, damaged stream
            raise Unreadable(_describe_reason(error)) from error
        if len(content) > MAX_BYTES:
            raise Unreadable(f"larger than {MAX_BYTES // 2**20} MiB")
        return content

    collection = Collection([], read, close, skipped)
    for name in sorted(names):
        path = PurePosixPath(name.replace("\\", "/"))
        if any(map(_is_hidden, path.parts)):
            continue
        if path.suffix.lower() not in SUFFIXES:
            collection.other_types.append(name)
            continue
        try:
            collection.candidates.append(Candidate(name, stamp(name)))
        except Exception as error:  # of a zip: a link that cannot be followed
            collection.skipped.append(f"{name}: {_describe_reason(error)}")
    return collection


def _is_hidden(part: str) -> bool:
    """Return whether one part of a path is hidden: ``.thumbnails``, ``._x.jpg``, ``__MACOSX``, ``@eaDir``."""
    return (part.startswith(".") and part not in (".", "..")) or part.lower() in NOT_THE_USERS


def _describe_reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    if text.startswith("cannot identify image file"):
        return "not a JPEG or PNG image"
    return text[:120] or type(error).__name__


# --- damage that Pillow's decoders do not report ----------------------------------------------------------------------
# For missing data libjpeg writes grey and only warns, and Pillow drops its warnings. So each JPEG is decoded once more,
# at an eighth of its size, by simplejpeg, which passes them on. Pillow does not compare the checksums of PNG's pixels.


@functools.cache
def load_decoder() -> ModuleType | None:
    """Return simplejpeg, loaded at its first use. Without it (None) JPEGs are not checked."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def find_damage(content: bytes) -> str | None:
    """Return a few words on how the pixels of a file are damaged; None if there is none."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return _find_png_damage(content)
    if not content.startswith(b"\xff\xd8") or load_decoder() is None:
        return None
    try:
        sound = _without_metadata(content)
        load_decoder().decode_jpeg(sound, "GRAY", fastdct=True, min_height=1, min_width=1, strict=True)
    except ValueError as error:
        warning = str(error)
        extra = EXTRANEOUS.search(warning)
        if WARNINGS.search(warning) and not (extra and int(extra[1]) <= PADDING):
            return f"cut off or damaged ({warning.removeprefix('Corrupt JPEG data: ')})"
    return None  # simplejpeg cannot decode the file, but Pillow can


def _without_metadata(content: bytes) -> bytes:
    """Return a JPEG without its APPn and COM segments.

    Only the first warning is reported, and theirs would come first.
    """
    parts, at = [content[:2]], 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xDA:  # the start of scan
            break
        end = at + 1 if marker == 0xFF else at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            parts.append(content[at:end])
        at = end
    return b"".join([*parts, content[at:]])


def _find_png_damage(content: bytes) -> str | None:
    at, view = 8, memoryview(content)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, end = content[at + 4 : at + 8], at + 8 + length
        if kind == b"IDAT" and zlib.crc32(view[at + 4 : end]).to_bytes(4, "big") != content[end : end + 4]:
            return "damaged (wrong checksum)"
        if kind == b"IEND":
            break
        at = end + 4
    return None
