"""Colours mean what they meant in the file: profiles, PNG's gamma and chromaticities, cameras set to Adobe RGB."""

import importlib.util
import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from ladder.images import colour
from ladder.images import prepare as images
from ladder.images import user as userimages
from ladder.images.prepare import prepare_images
from tests.support import pictures
from tests.support.pictures import decoded, encode, fill, plain

source, cache = pictures.source, pictures.cache

P3 = colour.make_profile(2.2, (0.3127, 0.3290, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060))
LINEAR = colour.make_profile(1.0, colour.SRGB_POINTS)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
STORED = (200, 100, 50)


def grey_profile(exponent: float) -> bytes:
    """A profile of one grey channel with a gamma curve."""
    curve = b"curv\0\0\0\0" + struct.pack(">IHxx", 1, round(exponent * 256))
    return assembled(b"GRAY", b"mntr", b"XYZ ", {"wtpt": colour._read_xyz(colour.D50), "kTRC": curve})


def cmyk_profile() -> bytes:
    """A printer whose ink C makes what sRGB calls (0, 0, 255), whatever else: 16 corners of a table, in Lab."""
    table = bytearray()
    for corner in range(16):
        cyan, black = corner & 8, corner & 1
        lab = (0, 0, 0) if black else (29.6, 68.3, -112.0) if cyan else (100.0, 0, 0)
        table += bytes((round(lab[0] * 2.55), round(lab[1] + 128), round(lab[2] + 128)))
    head = (
        b"mft1\0\0\0\0"
        + bytes((4, 3, 2, 0))
        + struct.pack(">9i", *(65536 * each for each in (1, 0, 0, 0, 1, 0, 0, 0, 1)))
    )
    lut = head + bytes(range(256)) * 4 + bytes(table) + bytes(range(256)) * 3
    return assembled(b"CMYK", b"prtr", b"Lab ", {"wtpt": colour._read_xyz(colour.D50), "A2B0": lut})


def assembled(space: bytes, kind: bytes, connection: bytes, tags: dict[str, bytes]) -> bytes:
    tags = {"desc": b"desc\0\0\0\0" + struct.pack(">I", 2) + b"x\0" + bytes(80), **tags}
    at, table, body = 132 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        content += bytes(-len(content) % 4)
        table += name.encode() + struct.pack(">II", at + len(body), len(content))
        body += content
    head = struct.pack(">I4xI4s4s4s12x4s28x", at + len(body), 0x02400000, kind, space, connection, b"acsp")
    return (head + colour._read_xyz(colour.D50)[8:]).ljust(128, b"\0") + table + body


def meant(profile: bytes, stored=STORED) -> tuple[int, ...]:
    """Return the colour that a colour-managed viewer shows."""
    swatch = Image.new("RGB", (1, 1), stored)
    srgb = ImageCms.createProfile("sRGB")
    return ImageCms.profileToProfile(swatch, ImageCms.ImageCmsProfile(io.BytesIO(profile)), srgb).getpixel(
        (0, 0)
    )


def middle(content: bytes, resolution=16) -> np.ndarray:
    picture, remarks = userimages.make_square(content, resolution)
    assert picture.mode == "RGB" and picture.size == (resolution, resolution)
    assert userimages.PROFILE_LEFT_OUT not in remarks
    return np.asarray(picture)[resolution // 2, resolution // 2].astype(int)


def close(seen, wanted, within=4) -> bool:
    return np.abs(np.asarray(seen) - wanted).max() <= within


@pytest.mark.parametrize("profile", [P3, LINEAR], ids=["display-p3", "linear"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_embedded_profile_is_applied(kind, profile):
    options = {"quality": 98} if kind == "JPEG" else {}
    wanted = meant(profile)
    assert not close(wanted, STORED, 10)
    for size in ((40, 24), (8, 8), (300, 200)):  # cropped, upscaled, decoded smaller
        assert close(middle(encode(plain(STORED, size), kind, icc_profile=profile, **options)), wanted)


def test_every_mode_is_converted():
    image = plain(STORED)
    clear = image.copy()
    clear.putalpha(128)
    half = np.add(meant(P3), 255) / 2
    assert close(middle(encode(clear, icc_profile=P3)), half)  # over sRGB's white, after the conversion
    assert close(
        middle(encode(image.convert("P", palette=Image.Palette.ADAPTIVE), icc_profile=P3)), meant(P3)
    )
    grey = Image.new("L", (40, 40), 100)
    wanted = meant(LINEAR, (100, 100, 100))
    assert close(middle(encode(grey, "JPEG", quality=98, icc_profile=grey_profile(1.0))), wanted)
    assert close(middle(encode(grey, icc_profile=LINEAR)), wanted)  # one of RGB, as scanners embed
    assert close(middle(encode(Image.new("LA", (40, 40), (100, 255)), icc_profile=grey_profile(1.0))), wanted)
    deep = Image.fromarray(np.full((40, 40), 100 * 257, np.uint16))
    assert close(middle(encode(deep, icc_profile=grey_profile(1.0))), wanted)


def test_inks_are_converted_by_their_profile():
    inks = Image.new("CMYK", (40, 40), (255, 0, 0, 0))
    assert close(middle(encode(inks, "JPEG", quality=98, icc_profile=cmyk_profile())), (0, 0, 255), 12)
    assert close(middle(encode(inks, "JPEG", quality=98)), (0, 255, 255))  # none: cyan, as Pillow takes it


def test_srgb_is_left_alone_and_costs_nothing(monkeypatch):
    assert colour._make_transform(SRGB) == ("RGB", None)
    monkeypatch.setattr(ImageCms, "applyTransform", lambda *a: pytest.fail("converted"))
    for content in (encode(plain(STORED)), encode(plain(STORED), icc_profile=SRGB)):
        assert close(middle(content), STORED, 0)


def png(*, gamma=None, points=None, srgb=False, icc=None) -> bytes:
    extra = PngInfo()
    if srgb:
        extra.add(b"sRGB", b"\0")
    if gamma is not None:
        extra.add(b"gAMA", struct.pack(">I", round(100000 * gamma)))
    if points is not None:
        extra.add(b"cHRM", struct.pack(">8I", *(round(100000 * each) for each in points)))
    return encode(plain(STORED), pnginfo=extra, **({"icc_profile": icc} if icc else {}))


def test_gamma_and_chromaticities_of_a_png_are_applied():
    assert close(middle(png(gamma=1.0)), meant(LINEAR))
    assert close(middle(png(gamma=1.0, points=colour.SRGB_POINTS)), meant(LINEAR))
    assert close(
        middle(png(points=colour.ADOBE_RGB[1])), meant(colour.make_profile(2.2, colour.ADOBE_RGB[1]))
    )
    assert close(middle(png(gamma=0.45455)), STORED) and close(
        middle(png(gamma=0.45455, points=colour.SRGB_POINTS)), STORED
    )
    assert close(middle(png(gamma=1.0, srgb=True)), STORED)  # sRGB goes before gAMA,
    assert close(middle(png(gamma=1.0, icc=P3)), meant(P3))  # and a profile before both


def camera(mark: bytes) -> bytes:
    """EXIF with an interoperability folder, as cameras write it and Pillow 10 does not."""
    value, pointer = 8 + 18, struct.pack(">HHHI", 1, 0x8769, 4, 1)
    folders = pointer + struct.pack(">II", value, 0)
    folders += struct.pack(">HHHIII", 1, 0xA005, 4, 1, value + 18, 0)
    folders += struct.pack(">HHHI4sI", 1, 1, 2, 4, mark + b"\0", 0)
    return b"Exif\0\0MM\0*\0\0\0\x08" + folders


def test_a_camera_set_to_adobe_rgb_is_believed():
    wanted = meant(colour.make_profile(*colour.ADOBE_RGB))
    assert close(middle(encode(plain(STORED), "JPEG", quality=98, exif=camera(b"R03"))), wanted)
    assert close(middle(encode(plain(STORED), "JPEG", quality=98, exif=camera(b"R98"))), STORED)
    both = encode(plain(STORED), "JPEG", quality=98, exif=camera(b"R03"), icc_profile=SRGB)
    assert close(middle(both), STORED)  # a profile goes before it


BROKEN = {
    "a.jpg": encode(plain(STORED), "JPEG", icc_profile=b"no profile"),
    "b.png": encode(plain(STORED), icc_profile=P3[:200]),
    "c.jpg": encode(plain(STORED), "JPEG", icc_profile=grey_profile(2.2)),  # of grey, for a coloured picture
    "d.jpg": encode(plain(STORED), "JPEG", icc_profile=P3).replace(
        b"ICC_PROFILE\0\1\1", b"ICC_PROFILE\0\1\2"
    ),  # half
    "e.png": png(gamma=0),
    "f.png": png(points=(0.3127, 0.329, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3)),
}


def test_a_broken_profile_is_counted_and_the_picture_used_as_it_is(source, cache):
    good = {"g.png": encode(plain(STORED)), "h.png": encode(plain(STORED), icc_profile=SRGB)}
    found = prepare_images(fill(source, BROKEN | good), 16, cache=cache)
    assert found.notes == ["a colour profile cannot be applied, used without it: 6 of 8 images"]
    assert all(close(picture[8, 8], STORED, 8) for picture in decoded(found))


def test_a_sample_photograph_in_adobe_rgb_is_converted():
    data = Path(importlib.util.find_spec("skimage").submodule_search_locations[0]) / "data"
    with Image.open(data / "rocket.jpg") as image:
        stored, profile = np.asarray(image).astype(int), image.info["icc_profile"]
        assert colour._make_transform(profile)[1] is not None
    loaded = images.load_photographs()
    assert np.abs(np.asarray(loaded["rocket.jpg"]) - stored).mean() > 2
    with Image.open(data / "chelsea.png") as image:
        assert (np.asarray(loaded["chelsea.png"]) == np.asarray(image)).all()
