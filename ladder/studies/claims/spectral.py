"""The experiment on spectral norm of a discriminator's layers: PyTorch's parametrization beside `kernels`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ladder.studies.claims.timed import Experiment, Missing, Setting
from ladder.studies.kernelbench.timing import Call


def shapes(setting: Setting) -> list[tuple[int, ...]]:
    """Return the shapes of the weights that `article-sn` normalizes in `article`'s discriminator."""
    if setting.smoke:
        return [(3, 4, 3, 3), (5, 12)]
    from ladder.plan import catalog
    from stylegan_lite.config import Recipe, Workload
    from stylegan_lite.networks import Discriminator

    workload = Workload.from_dict(catalog.load_workload("article")[1])
    with torch.device("meta"):
        network = Discriminator(workload, Recipe())
    return [tuple(layer.weight.shape) for layer in network.modules() if hasattr(layer, "weight_gain")]


def weights(setting: Setting) -> list[Tensor]:
    return [torch.randn(shape, device=setting.device) for shape in shapes(setting)]


def moved(setting: Setting) -> int:
    """Return the bytes in float32: three reads (both products and the division) and one write."""
    return 4 * 4 * sum(math.prod(shape) for shape in shapes(setting))


def pytorch(setting: Setting) -> Call:
    from torch.nn.utils import parametrizations

    layers = []
    for weight in weights(setting):
        (o, i, *size), device = weight.shape, setting.device
        layer = (
            torch.nn.Conv2d(i, o, size, bias=False, device=device)
            if size
            else torch.nn.Linear(i, o, device=device)
        )
        layer.weight = torch.nn.Parameter(weight)
        layers.append(parametrizations.spectral_norm(layer))
    return lambda: [layer.weight for layer in layers]


def triton(setting: Setting) -> Call:
    import kernels

    try:  # Our op, in place of the dispatcher's choice.
        power_iteration, spectral_norm = (
            getattr(op, "ours", op) for op in (kernels.power_iteration, kernels.spectral_norm)
        )
    except AttributeError:
        raise Missing("these kernels have no spectral norm") from None
    made = [torch.nn.Parameter(weight) for weight in weights(setting)]
    us, vs = (
        [torch.nn.functional.normalize(torch.randn(n, device=setting.device), dim=0) for n in sizes]
        for sizes in ([w.shape[0] for w in made], [w[0].numel() for w in made])
    )

    def call() -> list[Tensor]:
        power_iteration(made, us, vs)
        return spectral_norm(made, us, vs)

    return call


def about(setting: Setting) -> str:
    return f"the {len(shapes(setting))} weights of a discriminator"


def experiment() -> Experiment:
    """Return the experiment. Each contender begins with its own vectors, so only the tests compare results."""
    contenders = {"PyTorch": pytorch, "Triton": triton}
    title = "one power iteration and W / sigma for every layer of a discriminator"
    unlike = ("PyTorch", "Triton")
    return Experiment("spectral norm", title, contenders, 1, 4, unlike=unlike, moved=moved, about=about)
