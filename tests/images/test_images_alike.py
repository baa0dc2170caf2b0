"""The same tree of files gives the same pictures and notes as a folder and as a zip."""

import stat
import zipfile
from dataclasses import replace

import pytest

from ladder.images.prepare import ImageSet, prepare_images
from tests.support import pictures
from tests.support.pictures import decoded, encode, fill, make_zip, plain

source, cache = pictures.source, pictures.cache

HIDDEN = (
    *(".thumbnails/1.png", "a/.ipynb_checkpoints/1-checkpoint.png", ".git/x.png", "a/b/.@__thumb/1.png"),
    *("@eaDir/1.png/SYNOPHOTO_THUMB_S.jpg", "a/@eaDir/1.png", "#recycle/1.png", "$RECYCLE.BIN/1.png"),
    *("__MACOSX/a/._1.png", "__MACOSX/1.png", "._1.png", "a/._2.JPG", ".hidden.jpg", "a/@EADIR/x.png"),
)
OTHERS = ("Thumbs.db", "a/notes.txt", "README", "a/film.mp4", "a/.DS_Store", "photos.zip")
BAD = ("empty.png", "a/empty.JPEG", "a/cut.jpg")
GOOD = (
    *(
        "1.png",
        "a/2.JPG",
        "a/b/c/3.JpEg",
        "Z.PNG",
        "a b (1).png",
        "@friend/4.png",
        "ünï.png",
        "back\\slash.png",
    ),
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
    assert f"{len(OTHERS) - 1} files are not JPEG or PNG" in "\n".join(folder.notes)
    assert all(any(f"skipped {name}: " in note for note in folder.notes) for name in BAD)
    assert same(folder, zipped)


@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_picture_is_in_neither(name, source, cache, tmp_path):
    files = {"ok.png": encode(plain()), name: encode(plain())}
    for data in (
        fill(source, files),
        make_zip(tmp_path / "photos.zip", {f"photos/{k}": v for k, v in files.items()}),
    ):
        found = prepare_images(data, 16, cache=cache)
        assert (found.count, found.notes) == (1, [])


def test_a_zip_of_windows_has_folders_too(cache, tmp_path):
    picture = encode(plain())
    data = tmp_path / "windows.zip"
    with zipfile.ZipFile(data, "w") as archive:
        for name in ("photos\\", "photos\\1.png", "photos\\.thumbnails\\1.png", "photos\\@eaDir\\1.png"):
            archive.writestr(name, b"" if name.endswith("\\") else picture)
    found = prepare_images(str(data), 16, cache=cache)
    assert (found.count, found.notes) == (1, [])


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
