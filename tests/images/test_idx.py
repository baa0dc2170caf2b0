"""A folder of MNIST's idx files as images."""

import gzip

import numpy as np
import pytest
from PIL import Image

from ladder.core.errors import UserError
from ladder.images import idx, prepare


def write(folder, pixels, name=f"{idx.TRAINING}.gz"):
    head = bytes([0, 0, 8, pixels.ndim]) + b"".join(n.to_bytes(4, "big") for n in pixels.shape)
    content = head + pixels.tobytes()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


@pytest.mark.parametrize("name", [idx.TRAINING, f"{idx.TRAINING}.gz"])
def test_its_training_images_are_padded_to_32_and_used_in_their_order(tmp_path, name):
    pixels = np.full((3, 28, 28), np.array([50, 150, 250], np.uint8).reshape(3, 1, 1), np.uint8)
    write(tmp_path, pixels, name)
    write(tmp_path, pixels[:1], "t10k-images-idx3-ubyte.gz")  # these are for testing
    images = prepare.prepare_images(str(tmp_path), 32, cache=tmp_path / "cache", at_least=3)
    assert images.count == 3 and not images.notes
    for number, shade in enumerate((50, 150, 250)):
        with Image.open(f"{images.path}/{number:06d}.jpg") as image:
            picture = np.asarray(image).astype(int)
        assert picture.shape == (32, 32, 3) and np.ptp(picture, axis=2).max() == 0  # the channel is repeated
        assert abs(picture[8:24, 8:24] - shade).max() < 8 and picture[0, 0].max() < 24  # the border is black


def test_what_is_not_a_whole_idx_file_of_images_is_refused_in_a_line(tmp_path):
    write(tmp_path, np.zeros((2, 28, 28), np.uint8))
    path = tmp_path / f"{idx.TRAINING}.gz"
    whole = path.read_bytes()
    damaged = {
        "cannot be read": [b"no gzip", whole[:-20]],
        "not a whole idx file": [
            gzip.compress(gzip.decompress(whole)[:-1]),
            gzip.compress(b"\0\0\x0d\x01\0\0\0\0"),
        ],
    }
    for reason, contents in damaged.items():
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(UserError, match=reason) as error:
                prepare.prepare_images(str(tmp_path), 32, cache=tmp_path / "cache")
            assert "\n" not in str(error.value)
    write(tmp_path, np.zeros(5, np.uint8))
    with pytest.raises(UserError, match="holds no images"):
        prepare.prepare_images(str(tmp_path), 32, cache=tmp_path / "cache")
