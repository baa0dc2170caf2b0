"""Micro-batches: a phase's batch in parts, whose gradients add up to those of the whole.

Each part goes forward and backward by itself, so activations of one part at a time take memory. Part k of n holds the
samples whose number leaves k when divided by n, as a rank's samples do (`stylegan_lite.shares`). So groups of minibatch
standard deviation stay whole. Statistics over the batch wait for all parts: the mean of w, and the mean path length.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def counted(wanted: int, batch: int) -> int:
    """Return the number of parts of a phase. Path length has fewer samples than the others, so it may have fewer."""
    return math.gcd(wanted, batch)


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
