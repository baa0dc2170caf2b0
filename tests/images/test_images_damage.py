"""Pictures that decoders fill up in silence are skipped; sound ones that look odd are not."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ladder.images import user as userimages
from ladder.images.prepare import prepare_images
from tests.support import pictures
from tests.support.pictures import encode, fill, plain

pytest.importorskip("simplejpeg")
source, cache = pictures.source, pictures.cache

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)).resize(
    (256, 256), 3
)
END = b"\xff\xd9"
KINDS = {
    "baseline": (NOISE, {}),
    "progressive": (NOISE, {"progressive": True}),
    "optimized": (NOISE, {"optimize": True, "subsampling": 0}),
    "grey": (NOISE.convert("L"), {}),
    "cmyk": (NOISE.convert("CMYK"), {}),
    "restarts": (NOISE, {"restart_marker_rows": 1}),
    "many restarts": (NOISE, {"restart_marker_blocks": 1}),
}


def jpeg(kind: str, **more) -> bytes:
    image, options = KINDS[kind]
    return encode(image, "JPEG", quality=92, **options, **more)


def harm(whole: bytes) -> dict[str, bytes]:
    half = len(whole) // 2
    return {
        "cut": whole[:half],
        "cut, ended": whole[:half] + END,
        "padded": whole[:half] + bytes(len(whole) - half),
        "padded, ended": whole[:half] + bytes(len(whole) - half - 2) + END,
        "hole": whole[:half] + bytes(2048) + whole[half + 2048 :],
        "small hole": whole[:half] + bytes(200) + whole[half + 200 :],
        "piece lost": whole[:half] + whole[half + 1500 :],
        "nine tenths": whole[: 9 * len(whole) // 10] + END,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_jpeg_that_lacks_something_is_refused(kind):
    whole = jpeg(kind)
    userimages.make_square(whole, 32)
    for how, content in harm(whole).items():
        with pytest.raises(userimages.Unreadable) as error:
            userimages.make_square(content, 32)
        assert len(str(error.value)) < 100, how
    hidden = jpeg(kind, icc_profile=b"x" * 99).replace(
        b"LE\0\1\1", b"LE\0\1\2"
    )  # libjpeg warns of that first
    with pytest.raises(userimages.Unreadable):
        userimages.make_square(harm(hidden)["cut, ended"], 32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_jpeg_that_looks_odd_is_used(kind):
    thumbnail = encode(plain(size=(16, 16)), "JPEG")
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0" + thumbnail
    whole = jpeg(kind, exif=exif, comment=b"\xff\xd9 \xff\xda")
    odd = {
        "whole": whole,
        "half a profile": encode(KINDS[kind][0], "JPEG", icc_profile=b"x" * 99).replace(
            b"LE\0\1\1", b"LE\0\1\2"
        ),
        "zeros behind it": whole + bytes(5000),
        "a film behind it": whole + b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 20,
        "a second picture behind it": whole + jpeg("baseline"),
        "half a picture behind it": whole + jpeg("baseline")[:3000],
        "padding before its end": whole[:-2] + bytes(4) + END,
        "fill bytes before its end": whole[:-2] + b"\xff" * 40 + END,
    }
    for how, content in odd.items():
        try:
            assert userimages.make_square(content, 32)[0].size == (32, 32)
        except userimages.Unreadable as error:
            pytest.fail(f"{how}: {error}")


def test_cut_off_jpegs_are_named_and_counted_as_unreadable_files_are(source, cache):
    whole = jpeg("baseline")
    files = {f"{k}.jpg": content for k, content in enumerate(harm(whole).values())}
    found = prepare_images(fill(source, files | {"whole.jpg": whole}), 16, cache=cache)
    assert found.count == 1 and len(found.notes) == len(files)
    assert "skipped 1.jpg: cut off or damaged (premature end of data segment)" in found.notes


def test_without_simplejpeg_they_are_used_and_that_is_said(source, cache, monkeypatch):
    whole = jpeg("baseline")
    data = fill(source, {"cut.jpg": harm(whole)["cut, ended"], "whole.jpg": whole})
    with monkeypatch.context() as patch:
        patch.setattr(userimages, "load_decoder", lambda: None)
        found = prepare_images(data, 16, cache=cache)
        assert (found.count, found.notes) == (2, [userimages.UNCHECKED])
    assert prepare_images(data, 16, cache=cache).count == 1  # installed since: looked at again
    only = fill(source / "png", {"a.png": encode(plain())})
    monkeypatch.setattr(userimages, "load_decoder", lambda: None)
    assert prepare_images(only, 16, cache=cache).notes == []


def test_a_png_that_lacks_something_is_refused():
    whole = encode(NOISE)
    userimages.make_square(whole, 32)
    damaged = harm(whole)
    del damaged["piece lost"], damaged["nine tenths"]
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    for how, content in (damaged | {"flipped bit": bytes(flipped)}).items():
        with pytest.raises(userimages.Unreadable):
            userimages.make_square(content, 32)
            pytest.fail(how)


def test_a_png_whose_pixels_do_not_fit_their_checksum_is_refused():
    """Stored without compression, a changed pixel is no error of the stream: only the checksum tells."""
    row = b"\0" + bytes(range(96))
    packed = bytearray(zlib.compress(row * 32, 0))
    head = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, content: bytes, checked: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + checked))
        )

    def file(checked: bytes) -> bytes:
        start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head, head)
        return start + chunk(b"IDAT", bytes(packed), checked) + chunk(b"IEND", b"", b"")

    userimages.make_square(file(bytes(packed)), 16)
    with pytest.raises(userimages.Unreadable, match="wrong checksum"):
        userimages.make_square(file(b"other pixels"), 16)
