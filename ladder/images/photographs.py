"""The sample set: random crops of the free photographs that come inside the scikit-image wheel.

Nothing is downloaded. ``docs/training.md`` lists each file with its subject and its licence. scikit-image's
other colour pictures are left out: some are drawn, and for some no free licence is stated.
"""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ladder.base.errors import UserError
from ladder.images import colour

PHOTOGRAPHS = (
    "astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg",
)  # fmt: skip
CROPS = 2048
SEED = 20191203  # any constant: the day StyleGAN2 appeared (arXiv:1912.04958)


@dataclass(frozen=True)
class Crop:
    """A square of one photograph, ``side`` pixels wide, with its corner at (left, top)."""

    photograph: str
    left: int
    top: int
    side: int


def find_folder() -> Path:
    """Return scikit-image's data folder without importing scikit-image. Raises UserError if it or a file is missing."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "the sample photographs come with scikit-image, which is not installed: pip install scikit-image"
        )
    data = Path(spec.submodule_search_locations[0]) / "data"
    missing = [name for name in PHOTOGRAPHS if not (data / name).is_file()]
    if missing:
        raise UserError(
            f"scikit-image is installed without the sample photographs {', '.join(missing)}: "
            "reinstall its wheel (pip install --force-reinstall scikit-image) or give your own images with --data"
        )
    return data


def load_photographs() -> dict[str, Image.Image]:
    """Return the photographs as sRGB images, by file name. Raises UserError if a file cannot be read."""
    data = find_folder()
    photographs = {}
    for name in PHOTOGRAPHS:
        try:
            with Image.open(data / name) as image:
                photographs[name], _ = colour.convert_to_srgb(image, colour.read_profile(image))
        except OSError as error:
            raise UserError(f"scikit-image's {name} cannot be read: {error.strerror or error}") from error
    return photographs


def plan_crops(sizes: dict[str, tuple[int, int]], resolution: int, count: int = CROPS) -> list[Crop]:
    """Return ``count`` random squares, as many from each photograph. They depend on the arguments alone.

    A crop is at least 35% of the photograph's shorter side, and at least ``resolution`` if the photograph has that
    many pixels. Only smaller photographs are upscaled, and then from at least 70% of their shorter side.
    """
    chooser = random.Random(SEED)
    crops = []
    for index in range(count):
        name = PHOTOGRAPHS[index % len(PHOTOGRAPHS)]
        width, height = sizes[name]
        short = min(width, height)
        least = max(resolution, round(0.35 * short)) if short >= resolution else round(0.7 * short)
        side = chooser.randint(least, short)
        crops.append(Crop(name, chooser.randint(0, width - side), chooser.randint(0, height - side), side))
    return crops


def cut_crop(photograph: Image.Image, crop: Crop, resolution: int) -> Image.Image:
    """Return the crop, resized (Lanczos) to ``resolution``."""
    box = (crop.left, crop.top, crop.left + crop.side, crop.top + crop.side)
    return photograph.resize((resolution, resolution), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
