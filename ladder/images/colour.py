"""Conversion of pictures to 8-bit sRGB, the colour space of all training images.

A picture's numbers are sRGB unless it says otherwise. It does so by an embedded ICC profile, by PNG's gAMA and cHRM
chunks, or by EXIF's "R03" (a camera set to Adobe RGB).
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageCms

# Exceptions of Pillow on damaged files. An AttributeError, say, is our fault or the environment's.
RAISED_BY_PILLOW = (
    *(OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)
DAMAGED = b""  # stands for a profile that Pillow finds but could not assemble
MODES = {
    "RGB ": "RGB",
    "GRAY": "L",
    "CMYK": "CMYK",
    "Lab ": "LAB",
}  # colour space of a profile -> Pillow's mode
TAKES = {  # Pillow's mode of a profile -> modes of pictures that it can describe
    "RGB": {"RGB", "RGBA", "RGBX", "P", "PA", "L", "LA", "1"},
    "L": {"L", "LA", "1"},
    "CMYK": {"CMYK"},
    "LAB": {"LAB"},
}
NEAR = 2  # levels of 255: a profile that moves no colour further counts as sRGB, and conversion is skipped
SRGB_POINTS = (0.3127, 0.3290, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06)  # x, y of white, red, green, blue
ADOBE_RGB = (563 / 256, (0.3127, 0.3290, 0.64, 0.33, 0.21, 0.71, 0.15, 0.06))
D50 = np.array([0.9642, 1.0, 0.8249])  # the white of ICC's connection space
BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])

Fit = Callable[[Image.Image], Image.Image]


def read_profile(image: Image.Image) -> bytes | None:
    """Return the ICC profile that describes a freshly opened picture.

    Returns:
        None for sRGB or a picture without a statement, ``DAMAGED`` for a profile that cannot be read.
    """
    if "icc_profile" in image.info:
        return image.info["icc_profile"] or DAMAGED
    if image.format == "PNG" and "srgb" not in image.info:
        return _from_chunks(image.info.get("gamma"), image.info.get("chromaticity"))
    if image.format in ("JPEG", "MPO") and _is_adobe_rgb(image):
        return make_profile(*ADOBE_RGB)
    return None


def convert_to_srgb(
    image: Image.Image, profile: bytes | None, fit: Fit = lambda image: image
) -> tuple[Image.Image, bool]:
    """Convert any Pillow mode to RGB: 16-bit grey is scaled to 8 bits, transparency is laid over white.

    Args:
        image: the decoded picture.
        profile: from ``read_profile``.
        fit: crops and resizes. It is called before the conversion if that gives the same picture, for speed.

    Returns:
        the picture, and False if its profile could not be applied: its numbers are then taken for sRGB.
    """
    if image.mode.startswith("I"):  # 16-bit PNG; Pillow's own conversion clips at 255
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    mode, transform = ("", None) if profile is None else _make_transform(profile)
    sound = profile is None or image.mode in TAKES.get(mode, ())
    if transform is None or not sound:
        return fit(_over_white(image, image)), sound
    if not _is_transparent(image):
        return ImageCms.applyTransform(fit(image.convert(mode)), transform), True
    return fit(_over_white(ImageCms.applyTransform(image.convert(mode), transform), image)), True


def make_profile(exponent: float, points: Sequence[float]) -> bytes:
    """Return an ICC profile (version 2) of an RGB space.

    Args:
        exponent: of the curve from a stored number to light, from 0.1 to 10; 2.2 for most displays.
        points: CIE x and y of white, red, green and blue.

    Returns:
        the profile, or ``DAMAGED`` if no such space exists.
    """
    xy = np.asarray(points, dtype=float).reshape(4, 2)
    if not 0.1 <= exponent <= 10 or not np.isfinite(xy).all() or (xy[:, 1] <= 0).any():
        return DAMAGED
    white, *primaries = np.stack([xy[:, 0] / xy[:, 1], np.ones(4), (1 - xy.sum(1)) / xy[:, 1]], axis=1)
    columns = np.stack(primaries, axis=1)
    try:
        columns = columns * np.linalg.solve(columns, white)
    except np.linalg.LinAlgError:
        return DAMAGED
    gains = (BRADFORD @ D50) / (BRADFORD @ white)
    red, green, blue = (np.linalg.inv(BRADFORD) @ np.diag(gains) @ BRADFORD @ columns).T
    if np.abs([red, green, blue]).max() > 30000:  # does not fit ICC's numbers
        return DAMAGED
    curve = b"curv\0\0\0\0" + struct.pack(">IHxx", 1, round(exponent * 256))
    name = b"desc\0\0\0\0" + struct.pack(">I", 4) + b"RGB\0" + bytes(78)
    tags = {
        "desc": name + b"\0\0", "wtpt": _read_xyz(D50), "rXYZ": _read_xyz(red), "gXYZ": _read_xyz(green),
        "bXYZ": _read_xyz(blue),
    }  # fmt: skip
    tags |= {"rTRC": curve, "gTRC": curve, "bTRC": curve}
    at = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for tag, content in tags.items():
        table += tag.encode() + struct.pack(">II", at + len(body), len(content))
        body += content
    kind = struct.pack(">I4xI4s4s4s12x4s28x", at + len(body), 0x02400000, b"mntr", b"RGB ", b"XYZ ", b"acsp")
    return (kind + _read_xyz(D50)[8:]).ljust(128, b"\0") + table + body


def _read_xyz(value: np.ndarray) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(struct.pack(">i", round(65536 * each)) for each in value)


def _from_chunks(gamma: float | None, points: Sequence[float] | None) -> bytes | None:
    """Return a profile for PNG's gAMA and cHRM. A gamma within 5% of 1/2.2 is sRGB's, as in libpng."""
    usual = gamma is None or abs(gamma * 2.2 - 1) < 0.05
    if usual and (points is None or np.abs(np.subtract(points, SRGB_POINTS)).max() < 0.01):
        return None
    return make_profile(
        2.2 if usual else 1 / gamma if gamma else 0, SRGB_POINTS if points is None else points
    )


def _is_adobe_rgb(image: Image.Image) -> bool:
    """Return whether EXIF has DCF's mark of Adobe RGB. Damaged EXIF is no reason to lose the picture."""
    try:
        return "exif" in image.info and str(image.getexif().get_ifd(0xA005).get(1)).startswith("R03")
    except RAISED_BY_PILLOW:
        return False


@functools.lru_cache(maxsize=64)
def _make_transform(profile: bytes) -> tuple[str, ImageCms.ImageCmsTransform | None]:
    """Return the mode that a profile describes and its transform to sRGB.

    Returns ("", None) for a damaged profile, and None as the transform of sRGB itself.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = MODES[source.profile.xcolor_space]
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
        if mode not in ("RGB", "L"):
            return mode, transform
        probe = _make_probe().convert(mode)
        moved = np.asarray(ImageCms.applyTransform(probe, transform), int) - np.asarray(
            probe.convert("RGB"), int
        )
        return mode, transform if np.abs(moved).max() > NEAR else None
    except (ImageCms.PyCMSError, OSError, ValueError, KeyError):
        return "", None


def _make_probe() -> Image.Image:
    """Return a picture of 18 levels of each colour combined with each other, and of all greys."""
    grid = np.stack(np.meshgrid(*[np.arange(0, 256, 15)] * 3), axis=-1).reshape(-1, 3)
    greys = np.repeat(np.arange(256), 3).reshape(-1, 3)
    return Image.fromarray(np.concatenate([grid, greys])[None].astype(np.uint8))


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def _over_white(image: Image.Image, alpha_of: Image.Image) -> Image.Image:
    if not _is_transparent(alpha_of):
        return image.convert("RGB")
    alpha = alpha_of.convert("RGBA").getchannel("A")
    return Image.composite(image.convert("RGB"), Image.new("RGB", image.size, "white"), alpha)
