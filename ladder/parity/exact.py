"""Given inputs, and the baseline's step on them in pieces: gradients accumulate, so a large batch fits.

Pieces are whole minibatch-std groups, because samples of a batch see each other only inside a group. (Two running
means also see the whole batch, and move once for it.) So the pieces' gradients sum to the gradients of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stylegan_lite import losses
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.step import TrainingStep


@dataclass(frozen=True)
class PhaseDraw:
    """Random numbers of one phase, float32 on the CPU, in the shapes of :class:`stylegan_lite.inputs.PhaseInputs`.

    The names are those of ``PhaseInputs``, so that a loss can read a part of the draw.
    """

    z: Tensor
    noise: list[Tensor]
    image_noise: Tensor | None
    uniform: Tensor
    layer_index: Tensor

    @property
    def batch(self) -> int:
        return len(self.z) // 2

    def part(self, samples: Tensor, device: str, dtype: torch.dtype) -> PhaseDraw:
        """Return the numbers of these samples alone."""
        here = {"device": device, "dtype": dtype}
        image_noise = None if self.image_noise is None else self.image_noise[samples].to(**here)
        return PhaseDraw(
            self.z[torch.cat([samples, self.batch + samples])].to(**here),
            [noise[samples].to(**here) for noise in self.noise],
            image_noise,
            self.uniform.to(**here),
            self.layer_index.to(device),
        )


@dataclass(frozen=True)
class Draw:
    """All inputs of one step: latents, noise, cutoffs, path noise, and real images [N, 3, R, R]."""

    phases: dict[str, PhaseDraw]
    real: Tensor

    def share(self, rank: int, ranks: int) -> Draw:
        """Return the samples of one of several ranks."""
        mine = {
            phase: drawn.part(torch.arange(rank, drawn.batch, ranks), "cpu", torch.float32)
            for phase, drawn in self.phases.items()
        }
        return Draw(mine, self.real[rank::ranks])


def draw(workload: Workload, number: int) -> Draw:
    """Return the ``number``-th set of inputs: a function of the workload's shapes and the number."""
    generator = torch.Generator().manual_seed(7_919 * (number + 1))
    r, layers = workload.resolution, [x for x in workload.resolutions for _ in range(1 if x == 4 else 2)]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    phases = {}
    for phase in ("G_main", "G_pl", "D_main"):
        path = phase == "G_pl"
        n = max(1, workload.batch // workload.pl_batch_shrink) if path else workload.batch
        phases[phase] = PhaseDraw(
            normal(2 * n, workload.z_dim),
            [normal(n, 1, x, x) for x in layers],
            normal(n, 3, r, r) if path else None,
            torch.rand(2, generator=generator),
            torch.arange(2 * len(workload.resolutions)),
        )
    coarse = torch.nn.functional.interpolate(normal(workload.batch, 3, 8, 8), size=(r, r), mode="bilinear")
    real = (0.5 * coarse + 0.1 * normal(workload.batch, 3, r, r)).clamp(-1, 1)  # smooth, as photographs are
    return Draw(phases, real)


class Exact:
    """The baseline's step in pieces of ``chunk`` samples whose gradients are summed: the same step in less memory."""

    def __init__(self, workload: Workload, precision: str, device: str, chunk: int) -> None:
        recipe = Recipe.from_dict({"precision": precision})
        self.step = TrainingStep(
            dataclasses.replace(workload, data=None), recipe, device=device, seed=workload.batch
        )
        self.chunk, self.device = chunk, device

    def run(self, phase: str, inputs: Draw) -> None:
        """Run one phase, with its optimizer step (and the moving average), as ``TrainingStep.run_phase`` does it."""
        step = self.step
        network, optimizer = (step.G, step.opt_G) if phase.startswith("G") else (step.D, step.opt_D)
        step.G.requires_grad_(network is step.G)
        step.D.requires_grad_(network is step.D)
        for parameter in network.parameters():  # zeros, not None: the baseline's set_to_none=False
            parameter.grad = torch.zeros_like(parameter)
        total = torch.zeros_like(step.loss[phase])
        for loss in self._losses(phase, inputs):
            loss.backward()
            total += loss.detach()
        optimizer.step()
        if network is step.D:
            step.D.spectral_weights.advance()
        step.gradients[phase] = {name: p.grad for name, p in network.named_parameters()}
        step.loss[phase].copy_(total)
        if phase == "D_main":
            step._update_ema()

    def _losses(self, phase: str, inputs: Draw) -> Iterator[Tensor]:
        """Yield each piece's share of the phase's loss; they sum to the loss of the whole batch."""
        step, w = self.step, self.step.workload
        if phase == "G_pl":
            yield from self._path_length(inputs.phases[phase])
            return
        w_avg = step.G.mapping.w_avg.clone()
        for samples in chunks(w.batch, w.mbstd_group, self.chunk):
            share = len(samples) / w.batch
            real = inputs.real[samples].to(device=self.device, dtype=step.dtype)
            if phase == "D_r1":
                yield share * losses.d_r1(step.D, real, w.gamma, w.r1_interval, step.amp)
                continue
            part = inputs.phases[phase].part(samples, self.device, step.dtype)
            if phase == "G_main":
                yield share * losses.g_main(step.G, step.D, part, w.style_mixing, step.amp)
            else:
                yield share * losses.d_main(step.G, step.D, part, real, w.style_mixing, step.amp)
        if phase == "G_main":  # each piece moved the average; only the whole batch counts, once
            step.G.mapping.w_avg.copy_(w_avg)
            with torch.no_grad():
                z = inputs.phases[phase].z[: w.batch].to(device=self.device, dtype=step.dtype)
                step.G.mapping.track(step.G.mapping(z))

    def _path_length(self, inputs: PhaseDraw) -> Iterator[Tensor]:
        """Yield each piece's penalty, in two passes.

        The running mean moves by the whole batch's lengths before any piece's penalty is known.
        """
        step, w = self.step, self.step.workload
        pieces = torch.arange(inputs.batch).split(self.chunk)
        parts = [(len(p) / inputs.batch, inputs.part(p, self.device, step.dtype)) for p in pieces]

        def penalty(part: PhaseDraw, mean: Tensor, decay: float) -> Tensor:
            return losses.g_pl(
                step.G, part, mean, decay, w.pl_weight, w.pl_interval, w.style_mixing, step.amp
            )

        if len(parts) == 1:
            yield penalty(parts[0][1], step.pl_mean, w.pl_decay)
            return
        seen = torch.zeros_like(step.pl_mean)
        for share, part in parts:
            mean = torch.zeros_like(seen)
            penalty(part, mean, 1.0)  # with decay 1, `mean` becomes this piece's mean length
            seen += share * mean
        step.pl_mean.lerp_(seen, w.pl_decay)
        for share, part in parts:
            yield share * penalty(part, step.pl_mean, 0.0)


def chunks(batch: int, group: int, size: int) -> list[Tensor]:
    """Return sample numbers in pieces of about ``size``: whole minibatch-std groups, in order.

    Groups are strided (sample n is in group n mod (N / group)), and within a piece they must be strided again.
    """
    group = min(group, batch)
    table = torch.arange(batch).view(group, batch // group)
    return [columns.reshape(-1) for columns in table.split(max(1, size // group), dim=1)]
