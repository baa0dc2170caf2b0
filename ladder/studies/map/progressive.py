"""The arithmetic of a training that grows: images at each resolution times measured seconds an image.

No growing network is trained. Each resolution is a workload of its own, with the widths of the growing network there.
So the blending of two resolutions, while one fades in, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Images a step at each resolution: that of StyleGAN on one GPU (`minibatch_dict` and `minibatch_base` of train.py in
# github.com/NVlabs/stylegan). The article's own table is not part of this project; both have batch 8 at 256x256.
TABLE = {4: 128, 8: 128, 16: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4, 1024: 4}
LEAST = 8  # the smallest resolution of a workload: images of 4x4 are counted at its speed
FIRST, EACH = (
    600_000,
    1_200_000,
)  # images at 4x4, and at each later one: 600,000 fading in, 600,000 after that
ARTICLE_TO = 32  # the article's policy: CUDA graphs and NCHW up to here, channels_last without graphs above


def images(total: int, most: int) -> dict[int, int]:
    """Return the images at each resolution from 4 to `most`. The last takes what is left."""
    found, left = {}, total
    for resolution in (each for each in TABLE if each <= most):
        wanted = left if resolution == most else min(left, FIRST if resolution == 4 else EACH)
        found[resolution] = wanted
        left -= wanted
    return found


def hours(seconds: Mapping[int, float], shown: Mapping[int, int]) -> dict[int, float]:
    """Return the hours at each resolution, from the seconds of an image; images of 4x4 take those of 8x8."""
    return {each: count * seconds[max(each, LEAST)] / 3600 for each, count in shown.items()}


def of_article(resolution: int, pair: Sequence[str]) -> tuple[str, ...]:
    """Return which of (CUDA graphs, channels_last) the article's policy leaves out at a resolution."""
    return (pair[1],) if resolution <= ARTICLE_TO else (pair[0],)
