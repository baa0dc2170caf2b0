"""Micro-batches: a phase's batch in parts, whose gradients add up to those of the whole.

Each part goes forward and backward by itself, so activations of one part at a time take memory. Part k of n holds the
samples whose number leaves k when divided by n, as a rank's samples do (`stylegan_lite.shares`). So groups of minibatch
standard deviation stay whole. Statistics over the batch wait for all parts: the mean of w, and the mean path length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stylegan_lite.inputs import Numbers


@dataclass(frozen=True)
class Part:
    """The random numbers of one micro-batch; `stylegan_lite.inputs.PhaseInputs` has the shapes."""

    batch: int
    z: Tensor
    noise: list[Tensor]
    image_noise: Tensor | None
    uniform: Tensor
    layer_index: Tensor


def counted(wanted: int, batch: int) -> int:
    """Return the number of parts of a phase. Path length has fewer samples than the others, so it may have fewer."""
    return math.gcd(wanted, batch)


def part_of(inputs: Numbers, k: int, n: int) -> Numbers:
    """Return part k of n of a phase's numbers, as copies with the layouts of the whole."""
    if n == 1:
        return inputs
    z = inputs.z.view(2, inputs.batch, -1)[:, k::n].flatten(0, 1)
    image_noise = None if inputs.image_noise is None else samples(inputs.image_noise, k, n)
    noise = [samples(each, k, n) for each in inputs.noise]
    return Part(inputs.batch // n, z, noise, image_noise, inputs.uniform, inputs.layer_index)


def samples(x: Tensor, k: int, n: int) -> Tensor:
    """Return the samples of part k of n of a batch [N, C, H, W], packed as the batch is."""
    return x if n == 1 else x[k::n].clone(memory_format=_format(x))


def _format(x: Tensor) -> torch.memory_format:
    wide = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if wide else torch.contiguous_format


class Gathered:
    """The mean over all parts of a batch of each part's mean. `whole` makes it the mean over all ranks."""

    def __init__(self, parts: int, whole: Callable[[Tensor], Tensor]) -> None:
        self.parts, self.whole = parts, whole
        self.values: list[Tensor] = []

    def __call__(self, value: Tensor) -> Tensor | None:
        """Take the mean of one part. Return the mean of all after the last one, and None before it."""
        self.values.append(value)
        if len(self.values) < self.parts:
            return None
        whole, self.values = torch.stack(self.values).mean(0), []
        return self.whole(whole)
