"""DCGAN (Radford et al. 2016, arXiv:1511.06434) at 64x64 as a pair: `ladder run --model examples/pairs/dcgan.py`.

Settings: `width`, channels at the highest resolution; `batch`; `z_dim`. The paper has 64, 128 and 100.
"""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite.step import Input, Phase


class Generator(nn.Sequential):
    """The map from z [N, z_dim] to images [N, 3, 64, 64] in (-1, 1)."""

    def __init__(self, width: int, z_dim: int) -> None:
        layers: list[nn.Module] = [nn.Unflatten(1, (z_dim, 1, 1))]
        widths = [z_dim, 8 * width, 4 * width, 2 * width, width]
        for k, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            stride, padding = (1, 0) if k == 0 else (2, 1)
            layers += [
                nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        super().__init__(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


class Discriminator(nn.Sequential):
    """The map from images [N, 3, 64, 64] to logits [N]."""

    def __init__(self, width: int) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for inputs in (width, 2 * width, 4 * width):
            layers += [
                nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False),
                nn.BatchNorm2d(2 * inputs),
                nn.LeakyReLU(0.2),
            ]
        super().__init__(*layers, nn.Conv2d(8 * width, 1, 4), nn.Flatten(0))


def draw_weights(module: nn.Module) -> None:
    """Draw a layer's weights as the paper has them."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


class DCGAN:
    """Two networks, a phase for each, and their losses."""

    def __init__(self, width: int, batch: int, z_dim: int) -> None:
        self.batch_size, self.z_dim = batch, z_dim
        self.networks: dict[str, Any] = {"G": Generator(width, z_dim), "D": Discriminator(width)}
        for network in self.networks.values():
            network.apply(draw_weights)
        self.phases = [Phase("D_main", "D"), Phase("G_main", "G")]
        self.averages = {"G": 10_000}  # half-life in images

    def inputs(self, phase: str) -> dict[str, Input]:
        """Return what the loss of a phase reads: latents, and for D real images."""
        z = {"z": Input((self.batch_size, self.z_dim), "normal")}
        return z | {"real": Input((self.batch_size, 3, 64, 64), "images")} if phase == "D_main" else z

    def loss(self, phase: str, inputs) -> Tensor:
        """Return the loss of a phase: the non-saturating logistic ones."""
        G, D = self.networks["G"], self.networks["D"]
        if phase == "G_main":
            return F.softplus(-D(G(inputs.z))).mean()
        with torch.no_grad():
            fake = G(inputs.z)
        return F.softplus(D(fake)).mean() + F.softplus(-D(inputs.real)).mean()

    def optimizer(self, network: str) -> torch.optim.Optimizer:
        """Return a network's optimizer."""
        return torch.optim.Adam(self.networks[network].parameters(), lr=2e-4, betas=(0.5, 0.999))

    def sample(self, networks: dict[str, nn.Module], z: Tensor) -> Tensor:
        """Return images of latents [N, z_dim]."""
        G = networks["G"]
        return G(z)


def make(width: int = 64, batch: int = 128, z_dim: int = 100) -> DCGAN:
    """Make the pair."""
    return DCGAN(width, batch, z_dim)
