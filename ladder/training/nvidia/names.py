"""The names of both models' weights, beside each other, and the buffers that only NVIDIA's networks have."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from stylegan_lite.config import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from stylegan_lite.resample import TAPS

NETWORKS = ("G", "D", "G_ema")
FILTER, NOISE = "resample_filter", "noise_const"  # the last part of a buffer's name
Shapes = dict[str, tuple[int, ...]]
NOISE_SEED = 0


def map_weights(network: str, workload: Workload) -> dict[str, str]:
    """Return NVIDIA's name of each weight, and ours."""
    return dict(_name_discriminator(workload) if network == "D" else _name_generator(workload))


def _name_generator(workload: Workload) -> Iterator[tuple[str, str]]:
    yield "mapping.w_avg", "mapping.w_avg"
    for k in range(workload.mapping_layers):
        yield from _pair_names(f"mapping.fc{k}", f"mapping.layers.{k}")
    yield "synthesis.b4.const", "const"
    for k, resolution in enumerate(workload.resolutions):
        theirs, ours = f"synthesis.b{resolution}", f"blocks.{k}"
        for conv in _list_convolutions(resolution):
            yield from _pair_names(f"{theirs}.{conv}", f"{ours}.{conv}")
            yield f"{theirs}.{conv}.noise_strength", f"{ours}.{conv}.noise_strength"
            yield from _pair_names(f"{theirs}.{conv}.affine", f"{ours}.affine_{conv}")
        yield from _pair_names(f"{theirs}.torgb", f"{ours}.to_rgb")
        yield from _pair_names(f"{theirs}.torgb.affine", f"{ours}.affine_to_rgb")


def _name_discriminator(workload: Workload) -> Iterator[tuple[str, str]]:
    yield from _pair_names(f"b{workload.resolution}.fromrgb", "from_rgb")
    for k, resolution in enumerate(reversed(workload.resolutions[1:])):
        yield from _pair_names(f"b{resolution}.conv0", f"blocks.{k}.conv0")
        yield from _pair_names(f"b{resolution}.conv1", f"blocks.{k}.conv1")
        yield f"b{resolution}.skip.weight", f"blocks.{k}.skip.weight"
    for theirs, ours in (("conv", "conv"), ("fc", "hidden"), ("out", "logit")):
        yield from _pair_names(f"b4.{theirs}", ours)


def _pair_names(theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    for part in ("weight", "bias"):
        yield f"{theirs}.{part}", f"{ours}.{part}"


def _list_convolutions(resolution: int) -> tuple[str, ...]:
    return ("conv1",) if resolution == 4 else ("conv0", "conv1")


def list_buffers(network: str, workload: Workload) -> Shapes:
    """Return the shapes of the buffers that our networks lack: filters, and the generator's constant noise."""
    shapes: Shapes = {}
    if network == "D":
        shapes[f"b{workload.resolution}.fromrgb.{FILTER}"] = (4, 4)
        for resolution in workload.resolutions[1:]:
            for layer in ("", "conv0.", "conv1.", "skip."):
                shapes[f"b{resolution}.{layer}{FILTER}"] = (4, 4)
        shapes[f"b4.conv.{FILTER}"] = (4, 4)
        return shapes
    for resolution in workload.resolutions:
        block = f"synthesis.b{resolution}"
        shapes[f"{block}.{FILTER}"] = (4, 4)
        for conv in _list_convolutions(resolution):
            shapes[f"{block}.{conv}.{FILTER}"] = (4, 4)
            shapes[f"{block}.{conv}.{NOISE}"] = (resolution, resolution)
    return shapes


def list_noise(buffers: dict[str, Tensor], workload: Workload) -> list[Tensor]:
    """Return the constant noise of a generator's kept buffers, [1, 1, H, W] for each layer from 4x4 up."""
    return [buffers[name][None, None] for name in list_buffers("G", workload) if name.endswith(NOISE)]


def make_buffers(network: str, workload: Workload) -> dict[str, Tensor]:
    """Return buffers for networks that never had them. The noise is always the same."""
    generator = torch.Generator().manual_seed(NOISE_SEED)
    return {
        name: make_filter() if name.endswith(FILTER) else torch.randn(shape, generator=generator)
        for name, shape in list_buffers(network, workload).items()
    }


def make_filter() -> Tensor:
    """Return the filter [4, 4] that NVIDIA's networks keep, float32. It sums to 1."""
    line = torch.tensor(TAPS)
    return torch.outer(line, line) / line.sum() ** 2


def list_shapes(network: str, workload: Workload) -> Shapes:
    """Return the shape of each of our tensors. Nothing is allocated."""
    with torch.device("meta"):
        model = (Discriminator if network == "D" else Generator)(workload, Recipe())
    return {name: tuple(each.shape) for name, each in model.state_dict().items()}
