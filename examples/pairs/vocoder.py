"""A vocoder after HiFi-GAN (Kong et al. 2020, arXiv:2010.05646) as a pair: one-dimensional, with weight norm.

Its discriminators look at the signal folded by two periods, and at the signal itself. The data are noisy sine waves;
`batch` is where a data set of your own goes. Settings: `width`, channels before upsampling; `batch`; `samples`.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from stylegan_lite.step import Input, Phase

UP = (4, 4)  # of each upsampling layer
HOP = math.prod(UP)  # samples of a frame
BANDS = 20
PERIODS = (2, 3)
SLOPE = 0.1


class Residual(nn.Module):
    """Dilated convolutions, each added to its input: [N, C, T] -> [N, C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, 3, padding=d, dilation=d)) for d in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(F.leaky_relu(x, SLOPE))
        return x


class Generator(nn.Module):
    """The map from a spectrogram [N, BANDS, T] to a signal [N, 1, HOP T] in (-1, 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(BANDS, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for stride in UP:
            up = nn.ConvTranspose1d(width, width // 2, 2 * stride, stride, stride // 2)
            width //= 2
            self.ups.append(weight_norm(up))
            self.blocks.append(Residual(width))
        self.last = weight_norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, block in zip(self.ups, self.blocks, strict=True):
            x = block(up(F.leaky_relu(x, SLOPE)))
        return torch.tanh(self.last(F.leaky_relu(x, SLOPE)))


class Judge(nn.Module):
    """A discriminator of a signal folded by a period, which may be 1: [N, 1, T] -> the maps of all layers."""

    def __init__(self, width: int, period: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, width, 2 * width, 4 * width]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in itertools.pairwise(widths)
        )
        self.last = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = F.pad(x, (0, -x.shape[-1] % self.period), mode="reflect")
        x = x.unflatten(-1, (-1, self.period))
        maps = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), SLOPE)
            maps.append(x)
        return [*maps, self.last(x)]


class Discriminator(nn.Module):
    """All discriminators: [N, 1, T] -> the maps of each, scores last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.judges = nn.ModuleList(Judge(width, period) for period in (1, *PERIODS))

    def forward(self, x: Tensor) -> list[list[Tensor]]:
        return [judge(x) for judge in self.judges]


class Vocoder:
    """Least-squares losses, feature matching, and the distance of spectra."""

    def __init__(self, width: int, batch: int, samples: int) -> None:
        self.batch_size, self.samples = batch, samples
        self.networks: dict[str, Any] = {"G": Generator(width), "D": Discriminator(max(4, width // 4))}
        self.phases = [Phase("D_main", "D"), Phase("G_main", "G")]
        self.averages: dict[str, float] = {}

    def inputs(self, phase: str) -> dict[str, Input]:
        """Return what both losses read: spectrograms, and their signals."""
        return {
            "frames": Input((self.batch_size, BANDS, self.samples // HOP), "batch"),
            "signal": Input((self.batch_size, 1, self.samples), "batch"),
        }

    def batch(self, number: int) -> dict[str, Tensor]:
        """Return signals, and the energies of their frames in bands: a function of the number."""
        generator = torch.Generator().manual_seed(number)
        pitch = 0.01 + 0.05 * torch.rand(self.batch_size, 1, 1, generator=generator)
        signal = 0.5 * torch.sin(2 * math.pi * pitch * torch.arange(self.samples))
        signal = signal + 0.05 * torch.randn(signal.shape, generator=generator)
        return {"signal": signal, "frames": spectra(signal, HOP)}

    def loss(self, phase: str, inputs) -> Tensor:
        """Return the loss of a phase."""
        G, D = self.networks["G"], self.networks["D"]
        if phase == "D_main":
            with torch.no_grad():
                fake = G(inputs.frames)
            return sum(
                (real[-1] - 1).square().mean() + made[-1].square().mean()
                for real, made in zip(D(inputs.signal), D(fake), strict=True)
            )
        fake = G(inputs.frames)
        loss = 45 * (spectra(fake, HOP) - inputs.frames).abs().mean()
        for real, made in zip(D(inputs.signal), D(fake), strict=True):
            loss = loss + (made[-1] - 1).square().mean()
            loss = loss + 2 * sum((a - b).abs().mean() for a, b in zip(real[:-1], made[:-1], strict=True))
        return loss

    def optimizer(self, network: str) -> torch.optim.Optimizer:
        """Return a network's optimizer."""
        return torch.optim.AdamW(self.networks[network].parameters(), lr=2e-4, betas=(0.8, 0.99))

    def blocks(self, network: str) -> list[nn.Module]:
        """Return what checkpointing may run again."""
        return list(self.networks["G"].blocks) if network == "G" else list(self.networks["D"].judges)


def spectra(signal: Tensor, hop: int) -> Tensor:
    """Return log energies of frames [N, BANDS, T] of signals [N, 1, T hop]: a cosine transform without overlap."""
    frames = signal.squeeze(1).unflatten(-1, (-1, hop))
    place = {"device": signal.device, "dtype": signal.dtype}
    angles = torch.outer(torch.arange(hop, **place) + 0.5, torch.arange(BANDS, **place)) * (math.pi / hop)
    return (frames @ angles.cos()).square().add(1e-3).log().transpose(1, 2)


def make(width: int = 512, batch: int = 16, samples: int = 8192) -> Vocoder:
    """Make the pair."""
    return Vocoder(width, batch, samples)
