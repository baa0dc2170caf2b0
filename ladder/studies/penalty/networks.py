"""Common discriminators, from images [N, 3, R, R] to logits [N, 1, ...], and an R1 step of one."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import fast_double_backward

GAMMA = 10.0  # of R1
WARM = 3  # pairs of steps before the timed ones
PROVED = 4  # images whose gradients are compared with FP64
spectral = nn.utils.parametrizations.spectral_norm


class Residual(nn.Module):
    def __init__(self, body: nn.Module, skip: nn.Module) -> None:
        super().__init__()
        self.body, self.skip = body, skip

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.body(x)  # type: ignore[no-any-return]


class Beside(nn.Module):
    """The input and, as further channels, what a body makes of it."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, **more)


def act() -> nn.Module:
    return nn.LeakyReLU(0.2)


def stack(norm: Callable[[int], nn.Module], *rows: tuple[int, int, int]) -> list[nn.Module]:
    """Return layers with 4x4 kernels from images on; a row is inputs, outputs and stride."""
    layers = [[conv(i, o, 4, stride), norm(o), act()] for i, o, stride in rows]
    return [conv(3, 64, 4, 2), act(), *itertools.chain(*layers)]


def make_dcgan() -> nn.Module:
    """Return the discriminator of Radford et al. 2015."""
    rows = (64, 128, 2), (128, 256, 2), (256, 512, 2)
    return nn.Sequential(*stack(nn.BatchNorm2d, *rows), nn.Conv2d(512, 1, 4))


def make_patchgan() -> nn.Module:
    """Return the 70x70 discriminator of Isola et al. 2017, with instance norm."""
    rows = (64, 128, 2), (128, 256, 2), (256, 512, 1)
    return nn.Sequential(*stack(nn.InstanceNorm2d, *rows), conv(512, 1, 4))


def make_sngan() -> nn.Module:
    """Return the residual discriminator for CIFAR-10 of Miyato et al. 2018."""
    blocks = []
    for inputs, shrink in ((3, 2), (128, 2), (128, 1), (128, 1)):
        body = [nn.ReLU()] * (inputs > 3) + [spectral(conv(inputs, 128)), nn.ReLU(), spectral(conv(128, 128))]
        skip = nn.Sequential(spectral(conv(inputs, 128, 1)), nn.AvgPool2d(shrink))
        blocks.append(Residual(nn.Sequential(*body, nn.AvgPool2d(shrink)), skip))
    end = nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), spectral(nn.Linear(128, 1))
    return nn.Sequential(*blocks, *end)


def make_r3gan() -> nn.Module:
    """Return a discriminator like that of Huang et al. 2024 for 64x64: grouped convolutions, no normalization."""
    layers: list[nn.Module] = [conv(3, 384, 1)]
    for width, wider in itertools.pairwise((384, 768, 768, 768, 768, 0)):
        for _ in range(2):
            grouped = conv(2 * width, 2 * width, groups=width // 8)
            body = conv(width, 2 * width, 1), act(), grouped, act(), conv(2 * width, width, 1, bias=False)
            layers.append(Residual(nn.Sequential(*body), nn.Identity()))
        if wider:
            layers += [nn.AvgPool2d(2), conv(width, wider, 1, bias=False)]
    return nn.Sequential(*layers, nn.Conv2d(768, 768, 4, groups=768), nn.Flatten(), nn.Linear(768, 1))


def make_unet() -> nn.Module:
    """Return a discriminator with a logit for each pixel, in the manner of Schonfeld et al. 2020."""
    inside: list[nn.Module] = []
    for width, deeper in reversed([*itertools.pairwise((64, 128, 256, 512, 512))]):
        up = nn.ConvTranspose2d(deeper * (1 + bool(inside)), width, 4, 2, 1)
        inside = [Beside(conv(width, deeper, 4, 2), act(), *inside, up, act())]
    return nn.Sequential(conv(3, 64), act(), *inside, conv(128, 1))


NETWORKS: dict[str, tuple[int, Callable[[], nn.Module]]] = {  # resolution, and what makes it
    "DCGAN": (64, make_dcgan),
    "PatchGAN": (256, make_patchgan),
    "SNGAN-ResNet": (32, make_sngan),
    "R3GAN": (64, make_r3gan),
    "UNet": (128, make_unet),
}


def run_step(network: nn.Module, images: Tensor, precision: str) -> None:
    """Add the gradients of the discriminator's loss of these reals, with R1 on every image, to the weights'."""
    images = images.detach().requires_grad_()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = network(images).flatten(1).mean(1).to(images.dtype)
    (g,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    (F.softplus(-logits).mean() + GAMMA / 2 * g.square().sum((1, 2, 3)).mean()).backward()


def measure(name: str, precision: str, batch: int, repeats: int, device: str, seed: int) -> dict[str, Any]:
    """Return the fields of what is observed of a network. `precision`: tf32, PyTorch's default, or bf16."""
    torch.manual_seed(seed)
    resolution, make = NETWORKS[name]
    layout = torch.channels_last if precision == "bf16" else torch.contiguous_format
    network = make().to(device, memory_format=layout)
    images = torch.randn(batch, 3, resolution, resolution, device=device).contiguous(memory_format=layout)
    sides: dict[str, Any] = {"plain": contextlib.nullcontext, "fast": fast_double_backward}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found: dict[str, Any] = {f"{side}_ms": [] for side in sides}
    exact = compute_gradients(network.double(), images[:PROVED].double(), "fp64")
    network.float()
    for side, switch in sides.items():
        with switch():
            wrong = compute_gradients(network, images[:PROVED], precision) - exact
        found[f"{side}_error"] = float(wrong.norm() / exact.norm())
    for number in range(WARM + repeats):
        for side in [*sides][:: 1 if number % 2 else -1]:
            network.zero_grad(set_to_none=True)
            wait()
            begin = time.perf_counter()
            with sides[side]():
                run_step(network, images, precision)
            wait()
            if number >= WARM:
                found[f"{side}_ms"].append(1e3 * (time.perf_counter() - begin))
    return found


def compute_gradients(network: nn.Module, images: Tensor, precision: str) -> Tensor:
    """Return the gradients of a step by all weights as one vector in float64. The network stays as it was."""
    network = copy.deepcopy(network)
    run_step(network, images, precision)
    return torch.cat([p.grad.double().flatten() for p in network.parameters() if p.grad is not None])
