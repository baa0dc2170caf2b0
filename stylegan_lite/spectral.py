"""Spectral normalization (Miyato et al. 2018): a layer's weight is divided by its largest singular value.

A workload's ``spectral_norm: true`` asks for it in every layer of the discriminator. It takes the place of He's
constant: a layer keeps the rest of its gain. u and v are buffers, so they are saved with the network. They take one
step of the power iteration after each update of the network, and hold still in between. So a phase may pass any number
of batches through D, in one piece or in many, and sees one sigma. PyTorch's own parametrization iterates at each
forward pass instead. Used once for each update it computes the same.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite.config import Recipe

EPS = 1e-12
FIRST = 15  # steps of the power iteration for a fresh weight, as torch.nn.utils.parametrizations has it


def constrain(network: nn.Module) -> None:
    """Divide every layer's weight by its norm from now on. A layer is a module with a weight and a gain for it."""
    for layer in network.modules():
        if hasattr(layer, "weight_gain"):
            matrix = layer.weight.detach().flatten(1)
            rows, columns = matrix.shape
            for name, size in (("u", rows), ("v", columns)):
                layer.register_buffer(name, F.normalize(torch.randn(size), dim=0, eps=EPS))
            for _ in range(FIRST):
                iterate(layer)
            beyond = layer.weight_gain * math.sqrt(columns)  # the part of the gain that is not He's constant
            layer.weight_gain = 1.0 if math.isclose(beyond, 1.0) else beyond
            layer.spectral = True
            layer.keeps_copy = False  # The weight in force follows u and v too, so it is made in each pass.


def is_constrained(layer: nn.Module) -> bool:
    return getattr(layer, "spectral", False)


def weight_and_gain(layer: nn.Module) -> tuple[Tensor, float]:
    """Return a layer's weight, and the factor that is still to be applied to it."""
    if not is_constrained(layer):
        return layer.weight, layer.weight_gain
    made = getattr(layer, "normalized", None)
    return (normalized(layer), layer.weight_gain) if made is None else (made, 1.0)


def normalized(layer: nn.Module) -> Tensor:
    """Return weight / sigma in plain PyTorch, with constant u and v, in full precision whatever the recipe."""
    with torch.autocast(layer.weight.device.type, enabled=False):
        sigma = torch.vdot(layer.u, torch.mv(layer.weight.flatten(1), layer.v))
        return layer.weight / sigma


@torch.no_grad()
def iterate(layer: nn.Module) -> None:
    """Take one step of the power iteration, in place."""
    matrix = layer.weight.flatten(1)
    layer.u.copy_(F.normalize(torch.mv(matrix, layer.v), dim=0, eps=EPS))
    layer.v.copy_(F.normalize(torch.mv(matrix.t(), layer.u), dim=0, eps=EPS))


class SpectralWeights:
    """The constrained layers of a network. A workload without spectral norm has none, and then this does nothing."""

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        self.layers = [layer for layer in network.modules() if is_constrained(layer)]
        self.fused = bool(self.layers) and recipe.spectral_norm == "triton"
        full = [getattr(layer, "full_precision", False) for layer in self.layers]
        self.groups = [
            [x for x, f in zip(self.layers, full, strict=True) if f is kind] for kind in (False, True)
        ]

    def advance(self) -> None:
        """Take one step of the power iteration for every layer. Call it whenever weights have changed."""
        if self.fused:
            import kernels

            kernels.power_iteration(*_tensors(self.layers))
            return
        for layer in self.layers:
            iterate(layer)

    def make(self, dtype: torch.dtype) -> None:
        """Make the weights in force of all layers: two launches for those that convolve in
        ``dtype``, two for the others.
        """
        import kernels

        for layers, wanted in zip(self.groups, (dtype, None), strict=True):
            if layers:
                gains = [layer.weight_gain for layer in layers]
                wanted = wanted or layers[0].weight.dtype
                made = kernels.spectral_norm(*_tensors(layers), gains=gains, dtype=wanted)
                for layer, weight in zip(layers, made, strict=True):
                    layer.normalized = weight

    def drop(self) -> None:
        """Forget them: the next pass may find other weights, or another precision."""
        for layer in self.layers:
            layer.normalized = None


def _tensors(layers: list[nn.Module]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return [x.weight for x in layers], [x.u for x in layers], [x.v for x in layers]
