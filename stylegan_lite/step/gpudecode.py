"""JPEG decoding on the GPU: workers only read the files, the bus carries them compressed, nvJPEG does the rest.

torchvision's ``decode_jpeg`` takes a list of files at once. It is imported at its use, because it is no requirement of
this project.
"""

from __future__ import annotations

import errno
import io
import struct
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from stylegan_lite.config import ConfigError

INSTALL = "pip install torchvision"
QUALITY = 95  # JPEG quality of images without a file
# A JPEG file as uint8 [bytes] on the CPU, whether to flip what is in it, and its name.
File = tuple[Tensor, bool, str]
# Exceptions of Pillow on damaged files, and those of a file that cannot be read
UNREADABLE = (
    *(OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)
MACHINES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # The file is not at fault.


def refusal(file: str | Path, error: Exception) -> Exception:
    """Return the error to raise for an image that cannot be read: one line with its name, or the machine's own."""
    if isinstance(error, ConfigError) or getattr(error, "errno", None) in MACHINES:
        return error
    said = getattr(error, "strerror", None) or " ".join(str(error).split())[:120] or type(error).__name__
    said = "not a JPEG or PNG image" if said.startswith("cannot identify image file") else said
    return ConfigError(f"workload: data: {shown(file)} cannot be read: {said}")


def shown(file: str | Path) -> str:
    """Return a file's name as one line can show it."""
    name = Path(file).name
    return name if name.isprintable() else repr(name)


class Source(Protocol):
    """Images in a fixed order, from files if they have a list of ``files``."""

    def __len__(self) -> int: ...

    def decode(self, index: int) -> np.ndarray:
        """Return [R, R, 3] uint8."""

    def tally(self) -> dict[str, int]:
        """Return how often an image was decoded, by this process and its workers."""


class JpegFiles(Dataset):
    """A data set with ``dataset[index, flip]`` -> (the file's bytes, flip, the file's name).

    Images without a file become a JPEG when they are read.

    Raises:
        ConfigError: a file is no JPEG; one line.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.files: list[str] | None = getattr(source, "files", None)
        for file in self.files or []:
            if Path(file).suffix.lower() not in (".jpg", ".jpeg"):
                raise ConfigError(f"workload: data: gpu_decode takes JPEG files alone, not {shown(file)}")

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: tuple[int, bool]) -> File:
        index, flip = key
        if self.files is not None:
            content, name = _read(self.files[index]), shown(self.files[index])
        else:
            made = io.BytesIO()
            Image.fromarray(self.source.decode(index)).save(made, "JPEG", quality=QUALITY)
            content, name = made.getvalue(), f"image {index}"
        return torch.frombuffer(bytearray(content), dtype=torch.uint8), flip, name

    def tally(self) -> dict[str, int]:
        """Return how often an image was decoded on the CPU."""
        return self.source.tally() if self.files is not None else {"decoded": 0}


def _read(file: str) -> bytes:
    """Return the bytes of a file that begins as a JPEG does."""
    try:
        content = Path(file).read_bytes()
        if not content.startswith(b"\xff\xd8"):
            raise ValueError("not a JPEG image")
    except (OSError, ValueError) as error:
        raise refusal(file, error) from None
    return content


class Decoder:
    """The map from a batch of files to [N, 3, R, R] uint8 on the device. ``decoded`` counts images.

    Work is put on the current stream, which waits for the decoding stream.
    """

    def __init__(self, device: torch.device, resolution: int) -> None:
        try:
            from torchvision.io import ImageReadMode, decode_jpeg
        except ImportError as error:
            raise ConfigError(f"recipe: gpu_decode: true needs torchvision: {INSTALL} ({error})") from None
        self.decode_jpeg, self.mode = decode_jpeg, ImageReadMode.RGB
        self.device, self.resolution, self.decoded = device, resolution, 0

    def __call__(self, files: list[File]) -> Tensor:
        try:
            images = self.decode_jpeg([file[0] for file in files], mode=self.mode, device=self.device)
        except Exception:
            for data, _, name in files:  # nvJPEG does not say in which file, Pillow does.
                _refuse_damaged(data, name)
            raise
        for image, file in zip(images, files, strict=True):
            if image.shape != (3, self.resolution, self.resolution):
                h, w = image.shape[-2:]
                raise ConfigError(
                    f"workload: data: {file[2]} is {w}x{h}, expected {self.resolution}x{self.resolution}"
                )
        self.decoded += len(images)
        return torch.stack([x.flip(2) if file[1] else x for x, file in zip(images, files, strict=True)])


def _refuse_damaged(data: Tensor, name: str) -> None:
    """Raise ConfigError for a JPEG file that Pillow cannot decode."""
    try:
        with Image.open(io.BytesIO(data.numpy().tobytes()), formats=("JPEG",)) as image:
            image.load()
    except UNREADABLE as error:
        raise refusal(name, error) from None
