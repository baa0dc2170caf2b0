"""Super-resolution after Real-ESRGAN (Wang et al. 2021, arXiv:2107.10833) as a pair: four times the width and height.

G is residual in residual dense blocks, D a U-Net with spectral norm. The perceptual loss compares features of a frozen
network with random weights, in place of VGG's, so that nothing is downloaded. Settings: `size` of the large images;
`width`, channels of G; `blocks` of G; `batch`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from stylegan_lite.step import Input, Phase

SLOPE = 0.2
SCALE = 4


class Dense(nn.Module):
    """Three convolutions, each of all results before it, scaled and added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        grow = channels // 2
        self.layers = nn.ModuleList(nn.Conv2d(channels + k * grow, grow, 3, padding=1) for k in range(2))
        self.last = nn.Conv2d(channels + 2 * grow, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(F.leaky_relu(layer(torch.cat(maps, 1)), SLOPE))
        return x + 0.2 * self.last(torch.cat(maps, 1))


class Residual(nn.Module):
    """Three dense blocks, scaled and added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Dense(channels) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.2 * self.blocks(x)


class Generator(nn.Module):
    """The map from images [N, 3, R / 4, R / 4] to [N, 3, R, R]."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.body(x)
        for up in self.ups:
            x = F.leaky_relu(up(F.interpolate(x, scale_factor=2.0, mode="nearest")), SLOPE)
        return self.last(x)


class Discriminator(nn.Module):
    """A U-Net, from images [N, 3, R, R] to a logit of each pixel [N, 1, R, R]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.downs = nn.ModuleList(
            spectral_norm(nn.Conv2d(a, 2 * a, 4, 2, 1, bias=False)) for a in widths[:-1]
        )
        self.ups = nn.ModuleList(
            spectral_norm(nn.Conv2d(2 * a, a, 3, padding=1, bias=False)) for a in reversed(widths[:-1])
        )
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x), SLOPE)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = F.leaky_relu(down(x), SLOPE)
        for up, skip in zip(self.ups, reversed(skips), strict=True):
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear")
            x = F.leaky_relu(up(x), SLOPE) + skip
        return self.last(x)


class SuperResolution:
    """Pixels, features and a discriminator."""

    def __init__(self, size: int, width: int, blocks: int, batch: int) -> None:
        self.size, self.batch_size = size, batch
        features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
        )
        self.networks = {"G": Generator(width, blocks), "D": Discriminator(width), "features": features}
        self.phases = [Phase("G_main", "G"), Phase("D_main", "D")]
        self.averages = {"G": 700 * batch}

    def inputs(self, phase: str) -> dict[str, Input]:
        """Return what both losses read: the large images."""
        return {"large": Input((self.batch_size, 3, self.size, self.size), "images")}

    def loss(self, phase: str, inputs) -> Tensor:
        """Return the loss of a phase. The small images are means of the large ones."""
        G, D, features = (self.networks[name] for name in ("G", "D", "features"))
        small = F.avg_pool2d(inputs.large, SCALE)
        if phase == "D_main":
            with torch.no_grad():
                fake = G(small)
            return F.softplus(-D(inputs.large)).mean() + F.softplus(D(fake)).mean()
        fake = G(small)
        with torch.no_grad():
            wanted = features(inputs.large)
        near = F.l1_loss(fake, inputs.large) + F.l1_loss(features(fake), wanted)
        return near + 0.1 * F.softplus(-D(fake)).mean()

    def optimizer(self, network: str) -> torch.optim.Optimizer:
        """Return a network's optimizer."""
        return torch.optim.Adam(self.networks[network].parameters(), lr=1e-4, betas=(0.9, 0.99))

    def blocks(self, network: str) -> list[nn.Module]:
        """Return what checkpointing may run again."""
        return list(self.networks["G"].body) if network == "G" else []

    def sample(self, networks: dict[str, nn.Module], large: Tensor) -> Tensor:
        """Return images made of small versions of large ones."""
        return networks["G"](F.avg_pool2d(large, SCALE)).clamp(-1, 1)


def make(size: int = 256, width: int = 64, blocks: int = 8, batch: int = 8) -> SuperResolution:
    """Make the pair."""
    return SuperResolution(size, width, blocks, batch)
