import pytest
import torch

from stylegan_lite import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator, minibatch_std
from tests.support.small import SMALL

SPELLINGS = [
    {"modconv": "grouped", "resample": "depthwise"},
    {"modconv": "grouped", "resample": "subpixel"},
    {"resample": "bilinear"},
    {"resample": "subpixel", "channels_last": True},
    {"instance_norm": "var_mean", "channels_last": True},
]


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("resolution", "channel_base", "generator", "discriminator"),
    [
        (256, 16384, 24_767_458, 24_001_089),
        (256, 32768, 30_034_338, 28_864_129),
        (1024, 32768, 30_370_060, 29_012_513),
    ],
)
def test_parameter_counts_are_the_published_architectures(resolution, channel_base, generator, discriminator):
    workload = Workload(resolution=resolution, channel_base=channel_base, batch=4)
    with torch.device("meta"):
        G, D = Generator(workload, Recipe()), Discriminator(workload, Recipe())
    assert (count(G), count(D), count(G.mapping)) == (generator, discriminator, 2_101_248)


def build(norm: str, **recipe):
    workload = Workload.from_dict(SMALL | {"norm": norm})
    recipe = Recipe.from_dict(recipe)
    torch.manual_seed(0)
    G, D = Generator(workload, recipe).double(), Discriminator(workload, recipe).double()
    with torch.no_grad():
        for name, p in G.named_parameters():
            if "noise_strength" in name or name.endswith("bias"):
                p.add_(torch.randn_like(p) * 0.3)
    if recipe.channels_last:
        G, D = (module.to(memory_format=torch.channels_last) for module in (G, D))
    generator = torch.Generator().manual_seed(1)
    ws = torch.randn(4, G.num_ws, 16, generator=generator, dtype=torch.float64)
    noise = [torch.randn(s, generator=generator, dtype=torch.float64) for s in G.noise_shapes(4)]
    return G, D, ws, noise


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("recipe", SPELLINGS, ids=str)
def test_every_spelling_is_the_same_network(norm, recipe):
    results = []
    for spelling in ({}, recipe):
        G, D, ws, noise = build(norm, **spelling)
        image = G(ws, noise)
        D(image).sum().backward()
        gradients = [p.grad for p in G.parameters() if p.grad is not None]
        results.append((image.detach(), gradients))
    torch.testing.assert_close(results[1][0], results[0][0])
    for ours, reference in zip(results[1][1], results[0][1], strict=True):
        torch.testing.assert_close(ours, reference)


def test_demodulation_gives_unit_variance_whatever_the_style():
    G, _, _, noise = build("demod")
    layer = G.blocks[1].conv1
    with torch.no_grad():
        layer.noise_strength.zero_()
        layer.bias.zero_()
        x = torch.randn(64, layer.weight.shape[1], 8, 8, dtype=torch.float64)
        for scale in (0.01, 100.0):
            style = torch.rand(64, x.shape[1], dtype=torch.float64) * scale
            y = layer(x, style, noise[1][:1].new_zeros(64, 1, 8, 8))
            y = torch.where(y > 0, y, y / 0.2) / 2**0.5
            assert 0.7 < y[:, :, 1:-1, 1:-1].std() < 1.3


def test_truncation_and_style_mixing_reach_only_the_layers_they_name():
    G, _, ws, noise = build("demod")
    image = G(ws, noise)
    changed = ws.clone()
    changed[:, -1] += 1  # the last toRGB's own w
    assert not torch.allclose(G(changed, noise), image)
    styles = G.blocks[-1].styles(list(changed.unbind(1))[-3:])
    assert torch.equal(styles[0], G.blocks[-1].styles(list(ws.unbind(1))[-3:])[0])


def test_minibatch_std_groups_are_strided_and_never_mix():
    x = torch.randn(8, 3, 4, 4, dtype=torch.float64)
    y = minibatch_std(x, 4)
    groups = [y[k, -1, 0, 0] for k in range(8)]
    assert groups[0] == groups[2] == groups[4] == groups[6] != groups[1]
    expected = x[::2].std(0, correction=0).mean()
    torch.testing.assert_close(groups[0], expected, rtol=1e-6, atol=1e-6)
    x[1] += 100
    assert minibatch_std(x, 4)[0, -1, 0, 0] == groups[0]


def test_minibatch_std_keeps_channels_last():
    x = torch.randn(8, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert minibatch_std(x, 4).is_contiguous(memory_format=torch.channels_last)
