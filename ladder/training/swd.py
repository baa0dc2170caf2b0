"""Sliced Wasserstein distance between two sets of images, on the levels of a Laplacian pyramid.

Source: Karras et al. 2018 (arXiv:1710.10196), section 5, and the code published with it. Each level takes 128
patches of 7x7 from every image and normalizes each colour channel over its set. The distance is the mean absolute
difference of sorted projections on 4 x 128 random directions, times 1000. Coarse levels compare layout and colour,
fine levels texture. No downloaded network is needed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PATCH = 7
PATCHES = 128  # per image and level
DIRECTIONS, REPEATS = 128, 4
LEAST = 16  # pixels, at the pyramid's coarsest level


def build_pyramid(images: Tensor) -> list[Tensor]:
    """Return the pyramid of images [N, 3, R, R]: differences at R, R/2, ..., and the rest at 16x16.

    The rest is at R if R is below 16.
    """
    levels = []
    while images.shape[-1] > LEAST:
        small = _blur_images(images)[:, :, ::2, ::2]
        spread = torch.zeros_like(images)
        spread[:, :, ::2, ::2] = small
        levels.append(images - 4 * _blur_images(spread))
        images = small
    return [*levels, images]


def measure_distances(real: Tensor, fake: Tensor, seed: int = 0) -> dict[int, float]:
    """Return the distance at each level's resolution, times 1000.

    ``real`` and ``fake`` are [N, 3, R, R] in [-1, 1] with the same N. Patches and directions depend only on the seed,
    so all comparisons with one seed use the same ones.

    Raises:
        ValueError: the sets differ in shape.
    """
    if real.shape != fake.shape:
        raise ValueError(f"sets must have one shape, got {tuple(real.shape)} and {tuple(fake.shape)}")
    distances = {}
    for a, b in zip(build_pyramid(real.float()), build_pyramid(fake.float()), strict=True):
        generator = torch.Generator().manual_seed(seed)
        ours, theirs = (_draw_patches(x, torch.Generator().manual_seed(seed + 1)) for x in (a, b))
        distances[a.shape[-1]] = 1000 * _compare_patches(ours, theirs, generator)
    return distances


def _draw_patches(level: Tensor, generator: torch.Generator) -> Tensor:
    """Return random patches [N * PATCHES, 3 * 7 * 7] with mean 0 and deviation 1 in each colour."""
    n, size = level.shape[0], level.shape[-1]
    side = min(PATCH, size)
    corner = torch.randint(0, size - side + 1, (2, n, PATCHES), generator=generator).to(level.device)
    offset = torch.arange(side, device=level.device)
    rows = (corner[0][..., None] + offset)[..., :, None]
    columns = (corner[1][..., None] + offset)[..., None, :]
    sample = torch.arange(n, device=level.device).view(n, 1, 1, 1)
    patches = level.movedim(1, -1)[sample, rows, columns].flatten(0, 1)  # [N * PATCHES, 7, 7, 3]
    patches = patches - patches.mean((0, 1, 2))
    return (patches / patches.std((0, 1, 2)).clamp_min(1e-8)).flatten(1)


def _compare_patches(a: Tensor, b: Tensor, generator: torch.Generator) -> float:
    total = 0.0
    for _ in range(REPEATS):
        direction = torch.randn(a.shape[1], DIRECTIONS, generator=generator).to(a)
        direction = direction / direction.norm(dim=0)
        total += float(((a @ direction).sort(0).values - (b @ direction).sort(0).values).abs().mean())
    return total / REPEATS


def _blur_images(x: Tensor) -> Tensor:
    """Apply the pyramid's 5x5 binomial filter [1, 4, 6, 4, 1], mirrored at the border."""
    taps = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    kernel = torch.outer(taps, taps).to(x).expand(x.shape[1], 1, 5, 5)
    return F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), kernel, groups=x.shape[1])
