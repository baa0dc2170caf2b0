"""The four phase losses. Networks run under the caller's autocast; every loss and penalty is full precision.

They are the non-saturating logistic loss (Goodfellow et al. 2014), R1 (Mescheder et al. 2018) and path length
regularization (Karras et al. 2020, section 3.2). Penalties are squared, summed and scaled in float32, from the
input gradient on.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stylegan_lite.networks import Discriminator, Generator
from stylegan_lite.ops import full, logistic_loss, one_batch
from stylegan_lite.step.pair import Mean, alone
from stylegan_lite.step.scaling import LossScale

PHASES = ("G_main", "G_pl", "D_main", "D_r1")


class Numbers(Protocol):
    """The random numbers of one phase; `stylegan_lite.stylegan2.declare_inputs` has the shapes."""

    @property
    def batch(self) -> int: ...

    @property
    def z(self) -> Tensor: ...

    @property
    def noise(self) -> list[Tensor]: ...

    @property
    def image_noise(self) -> Tensor: ...

    @property
    def uniform(self) -> Tensor: ...

    @property
    def layer_index(self) -> Tensor: ...


def latents_to_ws(
    G: Generator, inputs: Numbers, style_mixing: float, *, track: bool = False, mean: Mean = alone
) -> Tensor:
    """Map two latents a sample to ws [N, num_ws, w_dim]. Layers take the second w from a drawn cutoff on.

    The cutoff is drawn on the device and applied as a mask, so nothing waits for it. ``track`` moves the average w
    towards the batch's ``mean``.
    """
    with torch.autocast(inputs.z.device.type, enabled=False):
        w = G.mapping(inputs.z)
    n = inputs.batch
    if track:
        G.mapping.track(w[:n], mean)
    unmixed, last = inputs.uniform[0] >= style_mixing, inputs.uniform[1] * (G.num_ws - 1)
    own = (inputs.layer_index <= last) | unmixed
    # A mask for each latent, a product and a sum: two launches backward, where slices and a choice have eleven.
    masks = torch.stack((own, ~own))
    return (w.view(2, n, 1, -1) * masks.view(2, 1, -1, 1)).sum(0)


def g_main(
    G: Generator, D: Discriminator, inputs: Numbers, style_mixing: float, amp, mean: Mean = alone
) -> Tensor:
    """Return mean softplus(-D(G(z)))."""
    with amp():
        ws = latents_to_ws(G, inputs, style_mixing, track=True, mean=mean)
        logits = D(G(ws, inputs.noise))
    return logistic_loss(logits, 0) if D.logit.fused else F.softplus(-logits).mean()


def d_main(
    G: Generator,
    D: Discriminator,
    inputs: Numbers,
    real: Tensor,
    style_mixing: float,
    amp,
    *,
    joint: bool = False,
) -> Tensor:
    """Return mean softplus(D(G(z))) + mean softplus(-D(real)). G runs without a graph.

    ``joint`` passes both batches through D at once, with separate statistics.
    """
    with torch.no_grad(), amp():
        fake = G(latents_to_ws(G, inputs, style_mixing), inputs.noise)
    with amp():
        if joint:
            logits = D(one_batch(fake, real), parts=2)
            fake_logits, real_logits = logits.chunk(2)
        else:
            fake_logits, real_logits = D(fake), D(real)
    if joint and D.logit.fused:
        return logistic_loss(logits, len(fake))
    return F.softplus(fake_logits).mean() + F.softplus(-real_logits).mean()


def d_r1(
    D: Discriminator, real: Tensor, gamma: float, interval: int, amp, scale: LossScale | None = None
) -> Tensor:
    """Return interval * gamma / 2 * mean over samples of |dD / dreal|^2."""
    real = real.detach().requires_grad_(True)
    with amp():
        logits = D(real)
    gradient = inner_gradient(logits, torch.ones_like(logits), real, scale)
    return gradient.square().sum((1, 2, 3)).mean() * (interval * gamma / 2)


def g_pl(
    G: Generator,
    inputs: Numbers,
    pl_mean: Tensor,
    decay: float,
    weight: float,
    interval: int,
    style_mixing: float,
    amp,
    scale: LossScale | None = None,
    over_ranks: Mean = alone,
    mean: Tensor | None = None,
) -> Tensor:
    """Return interval * weight * mean of (|J_w^T y| - running mean)^2, with y normal noise on the image.

    It moves ``pl_mean`` [] towards the batch's mean length; see `moved`. With a ``mean`` given, that was done before.
    """
    lengths = path_lengths(G, inputs, style_mixing, amp, scale)
    if mean is None:
        mean = moved(pl_mean, over_ranks(lengths.detach().mean()), decay, scale)
    return (lengths - mean).square().mean() * (interval * weight)


def path_lengths(
    G: Generator,
    inputs: Numbers,
    style_mixing: float,
    amp,
    scale: LossScale | None = None,
    *,
    again: bool = True,
) -> Tensor:
    """Return |J_w^T y| of each sample, [N]. ``again`` says whether it will be differentiated."""
    with amp():
        ws = latents_to_ws(G, inputs, style_mixing)
        image = G(ws, inputs.noise)
    y = inputs.image_noise * (1 / math.sqrt(image.shape[2] * image.shape[3]))
    gradient = inner_gradient(image, y, ws, scale, again=again)
    return gradient.square().sum(2).mean(1).sqrt()


def moved(pl_mean: Tensor, length: Tensor | None, decay: float, scale: LossScale | None) -> Tensor:
    """Move ``pl_mean`` [] in place by ``decay`` towards a batch's mean length, and return the new mean.

    After an overflow ``pl_mean`` stays. With a loss ``scale`` overflows are normal, and must not stay in it for ever.
    """
    assert length is not None
    mean = pl_mean.lerp(length, decay)
    pl_mean.copy_(mean if scale is None else torch.where(mean.isfinite(), mean, pl_mean))
    return mean


def inner_gradient(
    output: Tensor, along: Tensor, wanted: Tensor, scale: LossScale | None, *, again: bool = True
) -> Tensor:
    """Return d <output, along> / d wanted in full precision, to be differentiated ``again``.

    Backward begins with ``along``, so the product and its sum are never computed. It is a backward pass like any other.
    In FP16 it needs the scale on its way, and is divided by it before a penalty is made of it. The later backward pass
    carries the penalty's own scale through both.
    """
    along = along if scale is None else along * scale.scale
    (gradient,) = torch.autograd.grad(output, wanted, along.to(output.dtype), create_graph=again)
    return full(gradient) if scale is None else full(gradient) * scale.inverse
