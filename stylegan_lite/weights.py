"""The layers whose convolution weights are scaled at their use, and the compute copies that replace the products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stylegan_lite.config import Recipe
from stylegan_lite.resample import FILTERS
from stylegan_lite.spectral import weight_and_gain
from stylegan_lite.step.pair import HALVES
from stylegan_lite.step.weights import Entry


class ScaledWeight(nn.Module):
    """A layer with a convolution ``weight`` [O, I, k, k] that is scaled by ``weight_gain`` at its use."""

    weight: nn.Parameter
    weight_gain: float = 1.0
    compute_copy: Tensor | None = None  # neither parameter nor buffer: it is no state
    keeps_copy: bool = True  # false if a kernel takes the parameter and its gain as they are
    demodulated: bool = False
    energy: Tensor | None = None  # [O, I], squares summed over the taps, kept like the copy: see `Entry`

    def scaled_weight(self) -> Tensor:
        """Return the weight times its gain: the compute copy, if one is kept."""
        if self.compute_copy is not None:
            return self.compute_copy
        weight, gain = weight_and_gain(self)
        return weight if gain == 1 else weight * gain


def make_copies(network: nn.Module, recipe: Recipe) -> list[Entry]:
    """Give each layer of a network its compute copy, still empty. Return them all (`stylegan_lite.step.weights`)."""
    entries = []
    for name, layer in network.named_modules():
        if isinstance(layer, ScaledWeight) and layer.keeps_copy:
            layer.compute_copy = _empty_copy(layer, recipe)
            if layer.demodulated and recipe.demodulation == "grouped":
                layer.energy = torch.empty_like(
                    layer.weight[:, :, 0, 0], memory_format=torch.contiguous_format
                )
                layer.energy = layer.energy.detach()
            known = layer.weight, layer.compute_copy, layer.weight_gain, layer.energy
            entries.append(Entry(f"{name}.weight", *known))
    return entries


def _empty_copy(layer: ScaledWeight, recipe: Recipe) -> Tensor:
    """Return an empty tensor with the weight's shape, in the dtype and memory format that the convolution wants.

    A transposed convolution takes [I, O, k, k]. A copy that lies in memory like that is turned without being moved.
    """
    weight = layer.weight.detach()
    dtype = HALVES.get(recipe.precision, weight.dtype)
    transposed = getattr(layer, "up", False) and recipe.resample in FILTERS and recipe.modconv == "dense"
    if transposed:
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        return torch.empty_like(weight.transpose(0, 1), dtype=dtype, memory_format=layout).transpose(0, 1)
    return torch.empty_like(weight, dtype=dtype)
