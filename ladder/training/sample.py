"""`ladder sample`: images of a checkpoint's averaged generator, one file for each seed, and a grid of the first."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ladder.core.errors import UserError
from ladder.training import checkpoint, grid
from ladder.training.nvidia import names
from stylegan_lite.config import Recipe
from stylegan_lite.networks import Generator

GRID = "grid.png"
MOST = 10_000  # seeds


def parse_seeds(text: str) -> list[int]:
    """Return the seeds given as `0-3,7`. Raises UserError."""
    wrong = UserError(f"--seeds {text[:40]!r}: give seeds and ranges of seeds, such as 0-15 or 3,7,20-30")
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not re.fullmatch(r"[0-9]+(-[0-9]+)?", part.strip()) or len(part) > 24:
            raise wrong
        low, high = int(first), int(last or first)
        if not low <= high < 2**32 or high - low >= MOST or len(seeds) >= MOST:
            raise UserError(
                f"--seeds: at most {MOST} seeds, each below 2^32, a range upwards; not {part[:40]!r}"
            )
        seeds += range(low, high + 1)
    return list(dict.fromkeys(seeds))


@torch.no_grad()
def draw_images(path: Path, out: Path, seeds: list[int], *, truncation: float, device: str) -> list[Path]:
    """Write `seed<number>.png` for each seed, and `grid.png` of the first ones. Return the files.

    A seed gives the latent that NVIDIA's gen_images.py draws for it. The noise is the constant noise of NVIDIA's
    generator if the checkpoint holds it, else drawn from the seed. Everything runs in FP32.

    Raises:
        UserError: no checkpoint, or a file that cannot be written; files written before stay.
    """
    origin = checkpoint.read_origin(path)
    workload, content = origin.workload, origin.content
    G = Generator(workload, Recipe())
    G.load_state_dict(content["state"]["G_ema"])
    G.to(device)
    buffers = content.get("kept", {}).get("G_ema")
    constant = None if buffers is None else names.list_noise(buffers, workload)
    columns, rows = grid.choose_layout(workload.resolution)
    columns = min(columns, len(seeds))
    images: list[Tensor] = []
    paths: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            z = torch.from_numpy(np.random.RandomState(seed).randn(1, workload.z_dim)).float().to(device)
            noise = [each.to(device) for each in constant or draw_noise(G, seed)]
            w = G.mapping.w_avg.lerp(G.mapping(z), truncation)
            image = G(w[:, None].expand(-1, G.num_ws, -1), noise).float().cpu()
            paths.append(out / f"seed{seed:04d}.png")
            grid.write_grid(image, 1, paths[-1], enlarge=False)
            images += [image] if len(images) < columns * rows else []
        whole = len(images) // columns * columns  # a row that is not full is left out
        grid.write_grid(torch.cat(images[:whole]), columns, out / GRID)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
    return [*paths, out / GRID]


def draw_noise(G: Generator, seed: int) -> list[Tensor]:
    """Return noise of a seed, [1, 1, H, W] for each layer, on the CPU, equal for every device."""
    generator = torch.Generator().manual_seed(grid.NOISE_SEED + seed)
    return [torch.randn(shape, generator=generator) for shape in G.noise_shapes(1)]
