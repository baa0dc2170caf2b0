"""An autoencoder with a patch discriminator, after VQGAN (Esser et al. 2021, arXiv:2012.09841), as a pair.

The latents are normal, with a KL term, as in latent diffusion. Encoder and decoder have GroupNorm and SiLU. The weight
of the adversarial loss follows the gradients at the decoder's last layer. Settings: `size` of images; `width`; `batch`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stylegan_lite.step import Input, Phase

LEVELS = (1, 2, 4)  # width of each resolution
LATENTS = 4


class Block(nn.Module):
    """A residual block of two convolutions: [N, I, H, W] -> [N, O, H, W]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Autoencoder(nn.Module):
    """The map from images and noise to images, and the parameters of the latents [N, 2 LATENTS, R / 4, R / 4]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width * level for level in LEVELS]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.downs = nn.ModuleList(Block(a, b) for a, b in zip(widths[:1] + widths, widths, strict=False))
        self.encoded = nn.Conv2d(widths[-1], 2 * LATENTS, 1)
        self.decoded = nn.Conv2d(LATENTS, widths[-1], 1)
        back = widths[::-1]
        self.ups = nn.ModuleList(Block(a, b) for a, b in zip(back[:1] + back, back, strict=False))
        self.norm = nn.GroupNorm(4, width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        for k, block in enumerate(self.downs):
            x = block(x if k == 0 else F.avg_pool2d(x, 2))
        latents = self.encoded(x)
        mean, log_variance = latents.chunk(2, 1)
        x = self.decoded(mean + (0.5 * log_variance.clamp(-20, 10)).exp() * noise)
        for k, block in enumerate(self.ups):
            x = block(x if k == 0 else F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(x))), latents


class PatchDiscriminator(nn.Sequential):
    """The map from images [N, 3, R, R] to logits of patches."""

    def __init__(self, width: int) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for inputs in (width, 2 * width):
            layers += [nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * inputs)]
            layers += [nn.LeakyReLU(0.2)]
        super().__init__(*layers, nn.Conv2d(4 * width, 1, 4, 1, 1))


class VAE:
    """Reconstruction, KL, and a hinge loss whose weight adapts."""

    def __init__(self, size: int, width: int, batch: int) -> None:
        self.size, self.batch_size = size, batch
        self.networks: dict[str, Any] = {"G": Autoencoder(width), "D": PatchDiscriminator(width)}
        self.phases = [Phase("G_main", "G"), Phase("D_main", "D")]
        self.averages = {"G": 1000 * batch}

    def inputs(self, phase: str) -> dict[str, Input]:
        """Return what both losses read: images, and the noise of the latents."""
        n, r, low = self.batch_size, self.size, self.size // 4
        return {"real": Input((n, 3, r, r), "images"), "noise": Input((n, LATENTS, low, low))}

    def loss(self, phase: str, inputs) -> Tensor:
        """Return the loss of a phase."""
        G, D = self.networks["G"], self.networks["D"]
        if phase == "D_main":
            with torch.no_grad():
                fake, _ = G(inputs.real, inputs.noise)
            return 0.5 * (F.relu(1 - D(inputs.real)).mean() + F.relu(1 + D(fake)).mean())
        fake, latents = G(inputs.real, inputs.noise)
        mean, log_variance = latents.chunk(2, 1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        near, judged = (fake - inputs.real).abs().mean(), -D(fake).mean()
        a, b = (
            torch.autograd.grad(each, G.last.weight, retain_graph=True)[0].norm() for each in (near, judged)
        )
        weight = (a / (b + 1e-4)).clamp(0, 1e4).detach()
        return near + 1e-6 * kl + 0.5 * weight * judged

    def optimizer(self, network: str) -> torch.optim.Optimizer:
        """Return a network's optimizer."""
        return torch.optim.Adam(
            self.networks[network].parameters(), lr=4.5e-6 * self.batch_size, betas=(0.5, 0.9)
        )

    def blocks(self, network: str) -> list[nn.Module]:
        """Return what checkpointing may run again."""
        G = self.networks["G"]
        return [*G.downs, *G.ups] if network == "G" else []


def make(size: int = 256, width: int = 128, batch: int = 8) -> VAE:
    """Make the pair."""
    return VAE(size, width, batch)
