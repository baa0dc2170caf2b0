"""Grids of images as PNG: what a training run looks like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ladder.files import replacing

if TYPE_CHECKING:
    from stylegan_lite.step import TrainingStep

LATENT_SEED = 1000  # apart from the run's own seeds, so that a grid shows latents that no phase has drawn
WIDEST = 2048  # pixels
TILE = 64  # smaller images are enlarged to this, each pixel to a square, so that they can be seen


def layout(resolution: int) -> tuple[int, int]:
    """(columns, rows): 8 x 4, fewer where the grid would be wider than ``WIDEST``."""
    columns = max(2, min(8, WIDEST // resolution))
    return columns, columns // 2


def fixed_latents(count: int, z_dim: int, seed: int) -> Tensor:
    """[count, z_dim] float32 on the CPU: the same in every grid of a run, on every device."""
    generator = torch.Generator().manual_seed(LATENT_SEED + seed)
    return torch.randn(count, z_dim, generator=generator)


def write_samples(step: TrainingStep, path: Path, *, seed: int, truncation: float = 1.0) -> None:
    """Draw the averaged generator's images of the fixed latents, a batch at a time, and write their grid."""
    columns, rows = layout(step.workload.resolution)
    latents = fixed_latents(columns * rows, step.workload.z_dim, seed)
    images = [step.sample(z, truncation).cpu() for z in latents.split(step.workload.batch)]
    write_grid(torch.cat(images), columns, path)


def write_grid(images: Tensor, columns: int, path: Path) -> None:
    """[N, 3, R, R] in [-1, 1], N a multiple of ``columns``, to one PNG; the file is there whole or not at all."""
    count, _, height, width = images.shape
    pixels = (images.float() * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
    tiles = pixels.reshape(count // columns, columns, 3, height, width)
    sheet = Image.fromarray(
        np.ascontiguousarray(tiles.transpose(0, 3, 1, 4, 2)).reshape(
            count // columns * height, columns * width, 3
        )
    )
    zoom = max(1, TILE // width)
    sheet = sheet.resize((sheet.width * zoom, sheet.height * zoom), Image.Resampling.NEAREST)
    with replacing(path) as temporary:
        sheet.save(temporary, "PNG")
