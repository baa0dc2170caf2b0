"""A search for damage in JPEG and PNG files that Pillow's decoders do not report.

For missing data libjpeg writes grey and only warns, and Pillow drops its warnings. So each JPEG is decoded once more,
at an eighth of its size, by simplejpeg, which passes them on. Pillow does not compare the checksums of PNG's pixels.
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from types import ModuleType

from PIL import Image

# Exceptions of Pillow on damaged files. An AttributeError, say, is our fault or the environment's.
RAISED_BY_PILLOW = (
    *(OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)
PADDING = 16  # bytes: some cameras write a few too many before the end marker, and the picture is whole
WARNINGS = re.compile(r"Premature end|Corrupt JPEG data|Inconsistent progression")
EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
UNCHECKED = "cut-off JPEG files are not recognized: simplejpeg is not installed (pip install simplejpeg)"


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
    if content.startswith(b"\xff\xd8"):
        return _in_jpeg(content)
    return _in_png(content) if content.startswith(b"\x89PNG\r\n\x1a\n") else None


def _in_jpeg(content: bytes) -> str | None:
    if load_decoder() is None:
        return None
    try:
        load_decoder().decode_jpeg(
            _without_metadata(content), "GRAY", fastdct=True, min_height=1, min_width=1, strict=True
        )
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
    while (
        at + 4 <= len(content) and content[at] == 0xFF and content[at + 1] != 0xDA
    ):  # up to the start of scan
        marker = content[at + 1]
        end = at + 1 if marker == 0xFF else at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            parts.append(content[at:end])
        at = end
    return b"".join([*parts, content[at:]])


def _in_png(content: bytes) -> str | None:
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
