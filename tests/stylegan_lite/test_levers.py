"""Levers that change the model: shapes, parameters, and gradients of gradients, through D and through G."""

import math

import pytest
import torch

from stylegan_lite import Recipe, Workload, make_step
from stylegan_lite.levers import Cheaper, Spatial, discriminator_layer, synthesis_layer
from stylegan_lite.losses import d_r1, g_pl
from stylegan_lite.networks import Discriminator, Generator
from tests.support.small import LEAST, LITTLE

LEVERS = [
    {"convolution": "separable"},
    {"convolution": "grouped"},
    {"convolution": "inverted_residual"},
    {"block_layers": 1},
    {"block_layers": 1, "convolution": "separable"},
]
RECIPES = [
    {"conv": "double_backward"},
    {"channels_last": True, "weights": "once"},
    {"resample": "depthwise", "modconv": "grouped"},
    {"resample": "bilinear", "joint_batch": True},
]


def workload(**fields) -> Workload:
    return Workload.from_dict(LITTLE | fields)


def networks(lever, recipe=None, fields=LITTLE):
    known, recipe = Workload.from_dict(fields | lever), Recipe.from_dict(recipe or {})
    torch.manual_seed(0)
    G, D = Generator(known, recipe).double(), Discriminator(known, recipe).double()
    with torch.no_grad():
        for name, p in [*G.named_parameters(), *D.named_parameters()]:
            if "noise_strength" in name or name.endswith("bias"):
                p.add_(torch.randn_like(p) * 0.3)
    return (G, D) if not recipe.channels_last else (n.to(memory_format=torch.channels_last) for n in (G, D))


def numbers(G, batch):
    generator = torch.Generator().manual_seed(1)
    ws = torch.randn(batch, G.num_ws, LITTLE["w_dim"], generator=generator, dtype=torch.float64)
    return ws, [torch.randn(s, generator=generator, dtype=torch.float64) for s in G.noise_shapes(batch)]


class Inputs:
    """The numbers of a phase, as path length reads them."""

    def __init__(self, G) -> None:
        generator = torch.Generator().manual_seed(2)
        self.batch, size = 2, LITTLE["resolution"]
        self.z = torch.randn(4, LITTLE["z_dim"], generator=generator, dtype=torch.float64)
        self.noise = numbers(G, 2)[1]
        self.image_noise = torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)
        self.uniform = torch.tensor([0.5, 0.5], dtype=torch.float64)
        self.layer_index = torch.arange(G.num_ws)


@pytest.mark.parametrize("lever", LEVERS, ids=str)
def test_shapes_are_those_of_the_model(lever):
    G, D = networks(lever)
    layers = lever.get("block_layers", 2)
    assert G.num_ws == {2: 4, 1: 3}[layers] and len(G.noise_shapes(2)) == 1 + layers
    image = G(*numbers(G, 4))
    assert image.shape == (4, 3, 8, 8) and D(image).shape == (4, 1)
    cheap = [module for module in [*G.modules(), *D.modules()] if isinstance(module, Cheaper)]
    assert len(cheap) == ((1 + 2 * layers) if "convolution" in lever else 0)  # G's 4x4 layer is one more


@pytest.mark.parametrize("lever", LEVERS, ids=str)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_every_spelling_is_the_same_model(lever, recipe):
    wanted, found = ([n(*a) for n, a in outputs(lever, how)] for how in ({}, recipe))
    if recipe.get("resample") == "bilinear":  # its borders differ in D
        wanted, found = wanted[:1], found[:1]
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def outputs(lever, recipe):
    G, D = networks(lever, recipe)
    ws, noise = numbers(G, 4)
    image = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return [(G, (ws, noise)), (D, (image,))]


@pytest.mark.parametrize("conv", ["aten", "double_backward"])
@pytest.mark.parametrize("lever", LEVERS, ids=str)
def test_gradients_of_penalties_are_those_of_finite_differences(lever, conv):
    """R1 differentiates D twice, path length G: both against central differences along one direction."""
    G, D = networks(lever, {"conv": conv})
    real = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    amp = torch.enable_grad
    inputs, mean = Inputs(G), torch.zeros([], dtype=torch.float64)
    losses = {
        D: lambda: d_r1(D, real, 1.0, 16, amp),
        G: lambda: g_pl(G, inputs, mean.clone(), 0.0, 2.0, 4, 0.0, amp),
    }
    for network, loss in losses.items():
        weights = [p for p in network.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss(), weights, allow_unused=True)
        generator = torch.Generator().manual_seed(4)
        way = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in weights]
        slope = sum(float((g * d).sum()) for g, d in zip(gradients, way, strict=True) if g is not None)
        ends = []
        for sign in (1, -2):
            with torch.no_grad():
                for p, d in zip(weights, way, strict=True):
                    p.add_(d, alpha=sign * 1e-6)
            ends.append(float(loss().detach()))
        assert math.isclose(slope, (ends[0] - ends[1]) / 2e-6, rel_tol=2e-4), network
        assert slope != 0


@pytest.mark.parametrize("lever", LEVERS, ids=str)
def test_a_step_trains_every_weight(lever):
    step = make_step(LITTLE | lever, {}, device="cpu")
    step.keep_gradients = True
    step.prepare()
    step.feed.next()
    for phase, network in (("G_main", step.G), ("D_main", step.D), ("G_pl", step.G), ("D_r1", step.D)):
        step.run_phase(phase)
        if phase.endswith("main"):
            assert step.gradients[phase].keys() == {name for name, _ in network.named_parameters()}
            assert all(bool(g.isfinite().all()) for g in step.gradients[phase].values())
    assert step.check_finite() is None
    step.close()


@pytest.mark.parametrize("lever", [LEVERS[0], LEVERS[2], LEVERS[3]], ids=str)
def test_fused_kernels_compute_the_same_model(lever):
    """The recipe of `--mode levers` has fused normalization and activation: in Triton's interpreter."""
    found = []
    for recipe in ({}, {"fused_norm": True, "fused_act": True, "conv": "double_backward"}):
        G, D = networks(lever, recipe, LEAST)
        generator = torch.Generator().manual_seed(1)
        ws = torch.randn(2, G.num_ws, LEAST["w_dim"], generator=generator, dtype=torch.float64)
        ws.requires_grad_(True)
        noise = [torch.randn(s, generator=generator, dtype=torch.float64) for s in G.noise_shapes(2)]
        image = G(ws, noise)
        logits = D(image)
        found.append([image, logits, *torch.autograd.grad(logits.sum(), [ws, *D.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_a_spatial_part_is_a_convolution_of_each_group_by_itself():
    layer = Spatial(8, 8, 3, 4, Recipe()).double()
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    alone = [
        torch.nn.functional.conv2d(
            x[:, 2 * g : 2 * g + 2], layer.scaled_weight()[2 * g : 2 * g + 2], padding=1
        )
        for g in range(4)
    ]
    torch.testing.assert_close(layer(x), torch.cat(alone, 1))
    assert layer.weight_gain == pytest.approx(1 / math.sqrt(2 * 9))


def test_an_inverted_residual_adds_the_image_where_both_fit():
    known = workload(convolution="inverted_residual")
    same, wider = (synthesis_layer(known, Recipe(), 8, n, up=False) for n in (8, 16))
    assert same.sums and not wider.sums
    halves, keeps = (discriminator_layer(known, Recipe(), 8, 8, **how) for how in ({"down": True}, {}))
    assert keeps.sums and not halves.sums
    assert synthesis_layer(workload(), Recipe(), 8, 8, up=True).weight.shape == (8, 8, 3, 3)
