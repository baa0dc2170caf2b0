"""The idx files of MNIST and Fashion-MNIST: arrays of bytes with their shape in front, gzipped or not.

Source: http://yann.lecun.com/exdb/mnist/, "the IDX file format". ``fashion_mnist/`` is a sample of Fashion-MNIST.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ladder.core.errors import UserError

SAMPLE = Path(__file__).with_name("fashion_mnist")
TRAINING = "train-images-idx3-ubyte"
MOST = 2**28  # bytes of an array


def find_file(folder: Path, name: str) -> Path:
    """Return a folder's file of this name, or with .gz. Raises UserError if it has neither."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise UserError(f"{folder}: has no {name}.gz")


def read_array(path: Path) -> np.ndarray:
    """Return the uint8 array of a file. Raises UserError if it is damaged or of another type."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            content = stream.read(MOST)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = [int.from_bytes(content[k : k + 4], "big") for k in range(4, start, 4)]
    if not axes or len(content) != start + math.prod(shape):
        raise UserError(f"{path}: not a whole idx file of bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def read_images(path: Path) -> np.ndarray:
    """Return grey images [N, H, W] uint8; those of 28x28 get a border of two black pixels."""
    images = read_array(path)
    if images.ndim != 3 or 0 in images.shape:
        raise UserError(f"{path}: holds no images: its shape is {images.shape}")
    return np.pad(images, ((0, 0), (2, 2), (2, 2))) if images.shape[1:] == (28, 28) else images
