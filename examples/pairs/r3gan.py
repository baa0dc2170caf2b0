"""R3GAN (Huang et al. 2024, arXiv:2501.05441) as a pair: grouped residual blocks, relativistic loss, R1 and R2.

Settings: `size` of images, a power of two; `width`, the most channels; `finest`, channels at full size, doubled at each
half of it up to `width` (0: `width` everywhere); `blocks` of each resolution; `batch`. The paper's networks:

    FFHQ-256  --set size=256 --set width=768 --set finest=96
    CIFAR-10  --set size=32 --set width=768 --set batch=512
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite.step import Input, Phase

SLOPE = 0.2
GAIN = math.sqrt(2 / (1 + SLOPE**2))
GROUP = 16  # channels of a group


class Block(nn.Module):
    """A residual block with an inverted bottleneck: [N, C, H, W] -> [N, C, H, W]. Its last layer begins at zero."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.expand = nn.Conv2d(channels, wide, 1)
        self.mix = nn.Conv2d(wide, wide, 3, padding=1, groups=max(1, wide // GROUP))
        self.reduce = nn.Conv2d(wide, channels, 1, bias=False)
        for layer in (self.expand, self.mix):
            fan = layer.weight[0].numel()
            nn.init.normal_(layer.weight, 0.0, GAIN / math.sqrt(fan) * depth**-0.25)
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.reduce.weight, 0.0, 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.expand(x), SLOPE)
        y = self.reduce(F.leaky_relu(self.mix(y), SLOPE))
        return y + x.to(y.dtype)  # in the precision and memory format of convolutions


class Level(nn.Sequential):
    """The blocks of one resolution: [N, C, H, W] -> [N, outputs, H, W]."""

    def __init__(self, channels: int, outputs: int, blocks: int, depth: int) -> None:
        super().__init__(*(Block(channels, depth) for _ in range(blocks)))
        if outputs != channels:
            self.append(nn.Conv2d(channels, outputs, 1, bias=False))


def list_widths(size: int, width: int, finest: int) -> list[int]:
    """Return the channels from 4x4 to full size."""
    return [min(width, (finest or width) * size // r) for r in (2**k for k in range(2, size.bit_length()))]


class Generator(nn.Module):
    """The map from z [N, z_dim] to images [N, 3, size, size]."""

    def __init__(self, widths: list[int], blocks: int, z_dim: int) -> None:
        super().__init__()
        self.basis = nn.Parameter(torch.randn(widths[0], 4, 4))
        self.first = nn.Linear(z_dim, widths[0], bias=False)
        self.levels = nn.ModuleList(
            Level(*pair, blocks, len(widths) * blocks) for pair in itertools.pairwise([*widths, widths[-1]])
        )
        self.last = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.basis * self.first(z)[:, :, None, None]
        for k, level in enumerate(self.levels):
            x = level(x if k == 0 else F.interpolate(x, scale_factor=2, mode="bilinear"))
        return self.last(x)


class Discriminator(nn.Module):
    """The map from images [N, 3, size, size] to logits [N]."""

    def __init__(self, widths: list[int], blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, widths[-1], 1)
        self.levels = nn.ModuleList(
            Level(*pair, blocks, len(widths) * blocks)
            for pair in itertools.pairwise([*widths[::-1], widths[0]])
        )
        self.basis = nn.Conv2d(widths[0], widths[0], 4, groups=widths[0], bias=False)
        self.last = nn.Linear(widths[0], 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for k, level in enumerate(self.levels):
            x = level(x if k == 0 else F.avg_pool2d(x, 2))
        return self.last(self.basis(x).flatten(1)).squeeze(1)


class R3GAN:
    """Two networks that compare each real image with a generated one."""

    def __init__(
        self, size: int, widths: list[int], blocks: int, batch: int, z_dim: int, gamma: float
    ) -> None:
        self.size, self.batch_size, self.z_dim, self.gamma = size, batch, z_dim, gamma
        self.networks: dict[str, Any] = {
            "G": Generator(widths, blocks, z_dim),
            "D": Discriminator(widths, blocks),
        }
        self.phases = [Phase("D_main", "D", twice=True), Phase("G_main", "G")]
        self.averages = {"G": 500 * batch}

    def inputs(self, phase: str) -> dict[str, Input]:
        """Return what both losses read: latents and real images."""
        n, r = self.batch_size, self.size
        return {"z": Input((n, self.z_dim)), "real": Input((n, 3, r, r), "images")}

    def loss(self, phase: str, inputs) -> Tensor:
        """Return the relativistic loss of a phase, for D with the penalties of both kinds of images."""
        G, D = self.networks["G"], self.networks["D"]
        if phase == "G_main":
            return F.softplus(D(inputs.real) - D(G(inputs.z))).mean()
        with torch.no_grad():
            fake = G(inputs.z)
        (real_logits, r1), (fake_logits, r2) = (penalize(D, each) for each in (inputs.real, fake))
        return (F.softplus(fake_logits - real_logits) + self.gamma / 2 * (r1 + r2)).mean()

    def optimizer(self, network: str) -> torch.optim.Optimizer:
        """Return a network's optimizer."""
        return torch.optim.Adam(self.networks[network].parameters(), lr=2e-4, betas=(0.0, 0.99))

    def blocks(self, network: str) -> list[nn.Module]:
        """Return what checkpointing may run again."""
        return [block for level in self.networks[network].levels for block in level]

    def sample(self, networks: dict[str, nn.Module], z: Tensor) -> Tensor:
        """Return images of latents [N, z_dim]."""
        return networks["G"](z).clamp(-1, 1)


def penalize(D: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [N], and the squared norm of their gradient by each image [N]."""
    images = images.detach().requires_grad_(True)
    logits = D(images)
    (gradient,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    return logits, gradient.square().sum((1, 2, 3))


def make(
    size: int = 64,
    width: int = 256,
    finest: int = 0,
    blocks: int = 2,
    batch: int = 32,
    z_dim: int = 64,
    gamma: float = 1.0,
) -> R3GAN:
    """Make the pair."""
    return R3GAN(size, list_widths(size, width, finest), blocks, batch, z_dim, gamma)
