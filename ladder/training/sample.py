"""`ladder sample`: images of a checkpoint's averaged generator, one file for each seed, and a grid of the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ladder.base.errors import UserError
from ladder.training import grid, origin
from ladder.training.nvidia import names
from stylegan_lite.config import Recipe, Workload
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


def draw_images(path: Path, out: Path, seeds: list[int], *, truncation: float, device: str) -> list[Path]:
    """Write `seed<number>.png` for each seed, and `grid.png` of the first ones. Return the files.

    A seed gives the latent that NVIDIA's gen_images.py draws for it. The noise is the constant noise of NVIDIA's
    generator if the checkpoint holds it, else drawn from the seed. Everything runs in FP32.

    Raises:
        UserError: no checkpoint, or a file that cannot be written; files written before stay.
    """
    source = origin.read_origin(path)
    workload = source.workload
    G = Generator(workload, Recipe()).requires_grad_(False)
    G.load_state_dict(source.content["state"]["G_ema"])
    buffers = source.content.get("kept", {}).get("G_ema")
    columns, rows = grid.choose_layout(workload.resolution)
    columns = min(columns, len(seeds))
    shown: list[Tensor] = []
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for seed, image in zip(
            seeds, _generate(G.to(device), workload, buffers, seeds, truncation, device), strict=True
        ):
            written.append(out / f"seed{seed:04d}.png")
            grid.write_grid(image, 1, written[-1], enlarge=False)
            if len(shown) < columns * rows:
                shown.append(image)
        whole = len(shown) // columns * columns  # a row that is not full is left out
        grid.write_grid(torch.cat(shown[:whole]), columns, out / GRID)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
    return [*written, out / GRID]


def _generate(
    G: Generator,
    workload: Workload,
    buffers: dict[str, Tensor] | None,
    seeds: list[int],
    truncation: float,
    device: str,
) -> Iterator[Tensor]:
    """Yield the image [1, 3, R, R] of each seed, float32 on the CPU."""
    constant = None if buffers is None else names.list_noise(buffers, workload)
    for seed in seeds:
        z = torch.from_numpy(np.random.RandomState(seed).randn(1, workload.z_dim)).float().to(device)
        noise = constant or draw_noise(G, seed)
        w = G.mapping.w_avg.lerp(G.mapping(z), truncation)
        yield G(w[:, None].expand(-1, G.num_ws, -1), [each.to(device) for each in noise]).float().cpu()


def draw_noise(G: Generator, seed: int) -> list[Tensor]:
    """Return noise of a seed, [1, 1, H, W] for each layer, on the CPU, equal for every device."""
    generator = torch.Generator().manual_seed(grid.NOISE_SEED + seed)
    return [torch.randn(shape, generator=generator) for shape in G.noise_shapes(1)]
