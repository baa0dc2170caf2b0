import math

import pytest
import torch
import torch.nn.functional as F

from stylegan_lite import losses, make_step
from tests.support.small import SMALL


@pytest.fixture
def step():
    step = make_step(SMALL, {"precision": "fp64"}, device="cpu", seed=3)
    step.feed.next()
    for phase in step.inputs:
        step._fill(phase)
    return step


def test_r1_is_the_squared_gradient_norm_of_each_sample(step):
    penalty = losses.d_r1(step.D, step.real, 2.0, 16, step.amp)
    total = 0.0
    base = step.real.clone()
    direction = torch.randn_like(base)
    real = base.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(step.D(real).sum(), real)
    h = 1e-6
    slope = (step.D(base + h * direction) - step.D(base - h * direction)).sum() / (2 * h)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-8)
    for sample in gradient:
        total += float(sample.square().sum()) * 16 * 2.0 / 2 / 4
    assert float(penalty.detach()) == pytest.approx(total)


def test_main_losses_are_the_non_saturating_logistic_ones(step):
    inputs = step.inputs["D_main"]
    ws = losses.latents_to_ws(step.G, inputs, 0.9)
    fake, real = step.D(step.G(ws, inputs.noise)), step.D(step.real)
    expected = F.softplus(fake).mean() + F.softplus(-real).mean()
    torch.testing.assert_close(losses.d_main(step.G, step.D, inputs, step.real, 0.9, step.amp), expected)
    torch.testing.assert_close(losses.g_main(step.G, step.D, inputs, 0.9, step.amp), F.softplus(-fake).mean())


def test_path_length_is_the_jacobian_norm_against_its_running_mean(step):
    inputs = step.inputs["G_pl"]
    ws = losses.latents_to_ws(step.G, inputs, 0.9).detach().requires_grad_(True)
    image = step.G(ws, inputs.noise)
    y = inputs.image_noise / math.sqrt(16 * 16)
    (jacobian,) = torch.autograd.grad((image * y).sum(), ws)
    lengths = jacobian.square().sum(2).mean(1).sqrt()
    step.pl_mean.fill_(0.5)
    mean = 0.5 + 0.01 * (lengths.mean() - 0.5)
    penalty = losses.g_pl(step.G, inputs, step.pl_mean, 0.01, 2.0, 4, 0.9, step.amp)
    torch.testing.assert_close(penalty.detach(), 8 * (lengths - mean).square().mean())
    torch.testing.assert_close(step.pl_mean, mean)


@pytest.mark.parametrize("draw", [(0.95, 0.5), (0.1, 0.0), (0.1, 0.999), (0.1, 0.5)])
def test_style_mixing_switches_latents_at_the_drawn_cutoff(step, draw):
    inputs = step.inputs["G_main"]
    inputs.uniform.copy_(torch.tensor(draw))
    ws = losses.latents_to_ws(step.G, inputs, 0.9)
    w = step.G.mapping(inputs.z)
    cutoff = step.G.num_ws if draw[0] >= 0.9 else 1 + int(draw[1] * (step.G.num_ws - 1))
    for k in range(step.G.num_ws):
        torch.testing.assert_close(ws[:, k], w[:4] if k < cutoff else w[4:])
    assert 1 <= cutoff <= step.G.num_ws


def test_w_average_follows_the_first_latents(step):
    inputs = step.inputs["G_main"]
    before = step.G.mapping.w_avg.clone()
    w = step.G.mapping(inputs.z)[:4].detach()
    losses.latents_to_ws(step.G, inputs, 0.9, track=True)
    torch.testing.assert_close(step.G.mapping.w_avg, before + 0.002 * (w.mean(0) - before))
