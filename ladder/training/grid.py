"""Grids of sample images as PNG, which show the progress of a training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ladder.core.files import replace_file

if TYPE_CHECKING:
    from stylegan_lite.step import TrainingStep

LATENT_SEED = 1000  # far from the seeds of training, so that grids show latents that no phase drew
NOISE_SEED = 2000
WIDEST = 2048  # pixels
TILE = 64  # pixels; smaller images are enlarged to this size, each pixel to a square


def choose_layout(resolution: int) -> tuple[int, int]:
    """Return (columns, rows): 8 x 4, or fewer if the grid would be wider than ``WIDEST``."""
    columns = max(2, min(8, WIDEST // resolution))
    return columns, columns // 2


def draw_latents(count: int, z_dim: int, seed: int) -> Tensor:
    """Return latents [count, z_dim], float32 on the CPU, equal in every grid of a run and on every device."""
    generator = torch.Generator().manual_seed(LATENT_SEED + seed)
    return torch.randn(count, z_dim, generator=generator)


def write_samples(step: TrainingStep, path: Path, *, seed: int, truncation: float = 1.0) -> None:
    """Draw the averaged generator's images of the fixed latents, a batch at a time, and write their grid.

    Each image has its own noise, the same in every grid. ``TrainingStep.sample`` adds none, but early in training
    noise is the whole texture. Without noise, a generator of 500 steps shows 1/70 of the photographs' high
    frequencies.
    """
    columns, rows = choose_layout(step.workload.resolution)
    latents = draw_latents(columns * rows, step.workload.z_dim, seed)
    generator = torch.Generator().manual_seed(NOISE_SEED + seed)
    images = [_draw_images(step, z, generator, truncation).cpu() for z in latents.split(step.workload.batch)]
    write_grid(torch.cat(images), columns, path)


@torch.no_grad()
def _draw_images(step: TrainingStep, z: Tensor, generator: torch.Generator, truncation: float) -> Tensor:
    """Return images [N, 3, R, R], float32, of latents [N, z_dim].

    The noise comes from the CPU, so that it is equal on every device.
    """
    G, place = step.averages["G"], {"device": step.device, "dtype": step.dtype}
    noise = [torch.randn(shape, generator=generator).to(**place) for shape in G.noise_shapes(len(z))]
    w = G.mapping.w_avg.lerp(G.mapping(z.to(**place)), truncation)
    with step.amp():
        image = G(w[:, None].expand(-1, G.num_ws, -1), noise)
    return image.float()


def write_grid(images: Tensor, columns: int, path: Path, *, enlarge: bool = True) -> None:
    """Write images [N, 3, R, R] in [-1, 1] as one PNG, the whole file or nothing.

    N is a multiple of ``columns``. ``enlarge`` draws small images larger.
    """
    count, _, height, width = images.shape
    pixels = (images.float() * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
    tiles = pixels.reshape(count // columns, columns, 3, height, width)
    sheet = Image.fromarray(
        np.ascontiguousarray(tiles.transpose(0, 3, 1, 4, 2)).reshape(
            count // columns * height, columns * width, 3
        )
    )
    zoom = max(1, TILE // width) if enlarge else 1
    sheet = sheet.resize((sheet.width * zoom, sheet.height * zoom), Image.Resampling.NEAREST)
    with replace_file(path) as temporary:
        sheet.save(temporary, "PNG")
