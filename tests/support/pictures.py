"""Pictures as files, folders and zips, and a refusal of them: what tests of image preparation share."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ladder.core.errors import UserError
from ladder.images import prepare as images
from ladder.images.prepare import prepare_images


def encode(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options) -> bytes:
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def plain(color=(200, 30, 60), size=(40, 24)) -> Image.Image:
    return Image.new("RGB", size, color)


def decoded(found: images.ImageSet) -> list[np.ndarray]:
    return [np.asarray(Image.open(path)).astype(int) for path in sorted(Path(found.path).glob("*.jpg"))]


def fill(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder)


def make_zip(path: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


def refused(data: str, cache: Path, **options) -> str:
    """The one-line refusal of ``data``, which must leave nothing behind."""
    with pytest.raises(UserError) as error:
        prepare_images(data, 16, cache=cache, **options)
    assert "\n" not in str(error.value)
    assert not cache.exists() or not any(cache.iterdir())
    return str(error.value)


@pytest.fixture
def source(tmp_path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"
