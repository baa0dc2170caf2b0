"""JPEG decoding on the GPU: workers only read the files, the bus carries them compressed, nvJPEG does the rest.

torchvision's ``decode_jpeg`` takes a list of files at once. It is imported at its use, because it is no requirement of
this project.
"""

from __future__ import annotations

import io
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
File = tuple[Tensor, bool]  # a JPEG file as uint8 [bytes] on the CPU, and whether to flip what is in it


class Source(Protocol):
    """Images in a fixed order, from files if they have a list of ``files``."""

    def __len__(self) -> int: ...

    def decode(self, index: int) -> np.ndarray:
        """Return [R, R, 3] uint8."""

    def tally(self) -> dict[str, int]:
        """Return how often an image was decoded, by this process and its workers."""


class JpegFiles(Dataset):
    """A data set with ``dataset[index, flip]`` -> (the file's bytes, flip).

    Images without a file become a JPEG when they are read.

    Raises:
        ConfigError: a file is no JPEG; one line.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.files: list[str] | None = getattr(source, "files", None)
        for file in self.files or []:
            if Path(file).suffix.lower() not in (".jpg", ".jpeg"):
                raise ConfigError(f"workload: data: gpu_decode takes JPEG files alone, not {Path(file).name}")

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: tuple[int, bool]) -> File:
        index, flip = key
        if self.files is not None:
            content = Path(self.files[index]).read_bytes()
        else:
            made = io.BytesIO()
            Image.fromarray(self.source.decode(index)).save(made, "JPEG", quality=QUALITY)
            content = made.getvalue()
        return torch.frombuffer(bytearray(content), dtype=torch.uint8), flip

    def tally(self) -> dict[str, int]:
        """Return how often an image was decoded on the CPU."""
        return self.source.tally() if self.files is not None else {"decoded": 0}


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
        images = self.decode_jpeg([data for data, _ in files], mode=self.mode, device=self.device)
        for image in images:
            if image.shape != (3, self.resolution, self.resolution):
                h, w = image.shape[-2:]
                raise ConfigError(
                    f"workload: data: an image is {w}x{h}, expected {self.resolution}x{self.resolution}"
                )
        self.decoded += len(images)
        return torch.stack([x.flip(2) if flip else x for x, (_, flip) in zip(images, files, strict=True)])
