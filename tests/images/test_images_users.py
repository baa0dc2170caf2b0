"""Image preparation: users' folders and zips, pictures of every mode, hostile files."""

import os
import stat
import struct
import threading
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ladder.core.errors import UserError
from ladder.images import user as userimages
from ladder.images.prepare import ImageSet, prepare_images
from tests.support import pictures
from tests.support.pictures import decoded, encode, fill, make_zip, plain, refused

source, cache = pictures.source, pictures.cache

# A user's images


def test_folder_is_searched_centre_cropped_and_resized_once(source, cache):
    wide = np.zeros((30, 90, 3), np.uint8)
    wide[:, 30:60] = (0, 220, 0)  # the central square is green
    data = fill(
        source,
        {
            "wide.png": encode(wide),
            "deep/er/b.JPG": encode(plain(), "JPEG"),
            "c.jpeg": encode(plain(), "JPEG"),
        },
    )
    found = prepare_images(data, 16, cache=cache)
    assert (found.count, found.source, found.notes) == (3, "user-images", [])
    green = decoded(found)[2]
    assert green.shape == (16, 16, 3)
    assert np.abs(green[2:-2, 2:-2] - (0, 220, 0)).max() < 12


def modes() -> dict[str, bytes]:
    """A 32x32 picture in every mode that cameras, scanners and web pages make: RGB (200, 100, 50) or grey."""
    color = Image.new("RGB", (32, 32), (200, 100, 50))
    grey16 = np.full((32, 32), 120 * 257, np.uint16)
    half = color.copy()
    half.putalpha(128)
    palette = color.convert("P", palette=Image.Palette.ADAPTIVE)
    return {
        "cmyk.jpg": encode(color.convert("CMYK"), "JPEG", quality=95),
        "palette.png": encode(palette),
        "palette_clear.png": encode(palette, transparency=0),
        "alpha.png": encode(half),
        "grey.png": encode(Image.new("L", (32, 32), 120)),
        "grey_alpha.png": encode(Image.new("LA", (32, 32), (120, 255))),
        "grey16.png": encode(grey16),
        "one_bit.png": encode(Image.new("1", (32, 32), 1)),
        "rgb16.png": rgb16(),
    }


def rgb16() -> bytes:
    """A 16-bit RGB PNG, which Pillow reads but does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    row = b"\0" + struct.pack(">3H", 200 * 257, 100 * 257, 50 * 257) * 32
    head = struct.pack(">IIBBBBB", 32, 32, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(row * 32))
        + chunk(b"IEND", b"")
    )


MEANT = {
    "cmyk.jpg": (200, 100, 50),
    "palette.png": (200, 100, 50),
    "palette_clear.png": (255, 255, 255),
    "alpha.png": (227, 177, 152),
    "grey.png": (120, 120, 120),
    "grey_alpha.png": (120, 120, 120),
    "grey16.png": (120, 120, 120),
    "one_bit.png": (255, 255, 255),
    "rgb16.png": (200, 100, 50),
}


@pytest.mark.parametrize("name", sorted(MEANT))
def test_every_mode_keeps_its_colours(name):
    picture, small = userimages.make_square(modes()[name], 16)
    assert not small and picture.mode == "RGB" and picture.size == (16, 16)
    assert np.abs(np.asarray(picture).astype(int) - MEANT[name]).max() <= 3


def test_exif_orientation_is_applied():
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16] = 255  # white above
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    upright = np.asarray(userimages.make_square(encode(pixels, "JPEG", exif=exif), 16)[0]).astype(int)
    assert upright[:6].mean() < 20 and upright[-6:].mean() > 235


def test_unreadable_files_are_named_and_skipped(source, cache):
    good = encode(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")
    data = fill(
        source,
        {
            "a_good.jpg": good,
            "b_cut.jpg": good[: len(good) // 2],
            "c_text.png": b"this is no image",
            "d_empty.png": b"",
            "e_really_gif.png": encode(plain(), "GIF"),
            ".hidden.jpg": b"no",
            "notes.txt": b"hello",
        },
    )
    found = prepare_images(data, 16, cache=cache)
    assert found.count == 1
    notes = "\n".join(found.notes)
    for name in ("b_cut.jpg", "c_text.png", "d_empty.png", "e_really_gif.png"):
        assert f"skipped {name}: " in notes
    assert "hidden" not in notes and "ignored, not JPEG or PNG: 1 file (found .txt)" in notes
    assert str(source) not in notes


def test_what_cannot_be_used_is_refused(source, cache, tmp_path):
    assert "no such folder" in refused(str(tmp_path / "nowhere"), cache)
    assert "holds no JPEG or PNG" in refused(str(source), cache)
    (source / "x.webp").write_bytes(b"RIFF")
    assert "found .webp" in refused(str(source), cache)
    assert "neither a folder nor a zip" in refused(str(source / "x.webp"), cache)
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04" + bytes(50))
    assert "neither a folder nor a zip" in refused(str(tmp_path / "bad.zip"), cache)
    (source / "x.png").write_bytes(b"no")
    assert "none of 1 images can be read; the first: x.png: not a JPEG or PNG" in refused(str(source), cache)
    assert "holds no JPEG or PNG" in refused(make_zip(tmp_path / "empty.zip", {}), cache)


def test_fewer_images_than_a_batch_are_refused(source, cache):
    data = fill(source, {"a.png": encode(plain()), "b.png": encode(plain())})
    for _ in range(2):  # made, then found in the cache
        with pytest.raises(UserError, match="2 usable images, fewer than one batch of 3"):
            prepare_images(data, 16, cache=cache, at_least=3)
    assert prepare_images(data, 16, cache=cache, at_least=2).count == 2


# Hostile files


def test_zip_members_are_not_written_where_they_point(cache, tmp_path):
    content = encode(plain())
    data = make_zip(
        tmp_path / "evil.zip", {"../../escaped.png": content, "/tmp/escaped.png": content, "ok.png": content}
    )
    before = set(tmp_path.rglob("*escaped*"))
    found = prepare_images(data, 16, cache=cache)
    assert found.count == 3
    assert sorted(os.listdir(found.path)) == ["000000.jpg", "000001.jpg", "000002.jpg"]
    assert set(tmp_path.rglob("*escaped*")) == before


def test_bombs_are_skipped_before_they_are_unpacked(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(userimages, "MAX_BYTES", 100_000)
    monkeypatch.setattr(userimages, "MAX_PIXELS", 1_000_000)
    many_pixels = encode(Image.new("1", (3000, 3000)))  # a kilobyte that decodes to 9 million pixels
    data = make_zip(
        tmp_path / "b.zip",
        {"many_bytes.png": bytes(10**6), "many_pixels.png": many_pixels, "ok.png": encode(plain())},
    )
    found = prepare_images(data, 16, cache=cache)
    assert found.count == 1
    assert "skipped many_pixels.png: 3000x3000 is more than 1 million pixels" in found.notes
    assert any(note.startswith("skipped many_bytes.png: larger than") for note in found.notes)


def test_damaged_and_lying_zip_members_are_skipped(cache, tmp_path):
    data = make_zip(
        tmp_path / "c.zip",
        {
            "a.png": encode(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)),
            "b.png": encode(plain()),
        },
    )
    content = bytearray(Path(data).read_bytes())
    content[60:90] = bytes(30)  # inside the first member
    Path(data).write_bytes(content)
    found = prepare_images(data, 16, cache=cache)
    assert found.count == 1 and found.notes[0].startswith("skipped a.png: ")


def test_pipes_and_link_loops_do_not_hang(source, cache):
    data = fill(source, {"deep/a.png": encode(plain())})
    os.mkfifo(source / "pipe.png")
    (source / "deep" / "loop").symlink_to(source)
    (source / "gone.png").symlink_to(source / "nowhere")
    release = threading.Timer(
        60, lambda: (source / "pipe.png").open("wb").close()
    )  # ends a reader that waits
    release.daemon = True
    release.start()
    found = prepare_images(data, 16, cache=cache)
    release.cancel()
    assert found.count == 1
    reasons = ["skipped gone.png: No such file or directory", "skipped pipe.png: not a regular file"]
    assert sorted(found.notes) == reasons


# The same tree of files as a folder and as a zip

HIDDEN = (
    *(".thumbnails/1.png", "a/.ipynb_checkpoints/1-checkpoint.png", ".git/x.png", "a/b/.@__thumb/1.png"),
    *("@eaDir/1.png/SYNOPHOTO_THUMB_S.jpg", "a/@eaDir/1.png", "#recycle/1.png", "$RECYCLE.BIN/1.png"),
    *("__MACOSX/a/._1.png", "__MACOSX/1.png", "._1.png", "a/._2.JPG", ".hidden.jpg", "a/@EADIR/x.png"),
)
OTHERS = ("Thumbs.db", "a/notes.txt", "README", "a/film.mp4", "a/.DS_Store", "photos.zip")
BAD = ("empty.png", "a/empty.JPEG", "a/cut.jpg")
GOOD = (
    "1.png",
    "a/2.JPG",
    "a/b/c/3.JpEg",
    "Z.PNG",
    "a b (1).png",
    "@friend/4.png",
    "ünï.png",
    "back\\slash.png",
)


def tree() -> dict[str, bytes]:
    files = {name: encode(plain((20 * k, 90, 200))) for k, name in enumerate(GOOD)}
    files |= {name: encode(plain((0, 255, 0))) for name in (*HIDDEN, "..dots/5.png")}
    return files | dict.fromkeys(OTHERS, b"x") | dict.fromkeys(BAD, b"")


def same(one: ImageSet, other: ImageSet) -> bool:
    pixels = zip(decoded(one), decoded(other), strict=True)
    return replace(one, path="") == replace(other, path="") and all((a == b).all() for a, b in pixels)


def test_a_tree_gives_the_same_as_a_folder_and_as_a_zip(source, cache, tmp_path):
    files = tree()
    folder = prepare_images(fill(source, files), 16, cache=cache)
    zipped = prepare_images(make_zip(tmp_path / "photos.zip", files), 16, cache=cache)
    assert folder.count == len(GOOD)
    assert not any((picture[8, 8] == (0, 255, 0)).all() for picture in decoded(folder))
    assert f"not JPEG or PNG: {len(OTHERS) - 1} files" in "\n".join(folder.notes)
    assert all(any(f"skipped {name}: " in note for note in folder.notes) for name in BAD)
    assert not any(name in note for note in folder.notes for name in HIDDEN)
    assert same(folder, zipped)


def test_of_members_that_unpack_to_one_file_the_last_counts(cache, tmp_path):
    red, blue = encode(plain((255, 0, 0))), encode(plain((0, 0, 255)))
    data = tmp_path / "twice.zip"
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in (("a/1.png", red), ("./a/1.png", red), ("a//1.png", blue)):
            archive.writestr(name, content)
    (picture,) = decoded(prepare_images(str(data), 16, cache=cache))
    assert picture[8, 8].argmax() == 2


def test_links_in_a_zip_lead_to_its_pictures_and_nowhere_else(source, cache, tmp_path):
    links = {
        "again.png": "a/1.png", "a/up.png": "../a/1.png", "gone.png": "nowhere.png", "loop.png": "loop.png",
    }  # fmt: skip
    fill(source, {"a/1.png": encode(plain())})
    data = tmp_path / "links.zip"
    with zipfile.ZipFile(data, "w") as archive:
        archive.write(source / "a" / "1.png", "a/1.png")
        for name, target in links.items():
            (source / name).symlink_to(target)
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    folder, zipped = prepare_images(str(source), 16, cache=cache), prepare_images(str(data), 16, cache=cache)
    assert folder.count == 3 and len(folder.notes) == 2
    assert same(folder, zipped)
    secret = tmp_path / "secret.png"
    secret.write_bytes(encode(plain()))
    with zipfile.ZipFile(data, "a") as archive:
        info = zipfile.ZipInfo("outside.png")
        info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, str(secret))
    found = prepare_images(str(data), 16, cache=cache)
    assert found.count == 3 and "skipped outside.png: No such file or directory" in found.notes
