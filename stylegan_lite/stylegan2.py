"""StyleGAN2 as a pair: its networks, four phases, losses and running means, for the step of `stylegan_lite.step`.

G_main and D_main are the two losses of the game. G_pl (path length) and D_r1 (gradient penalty) are its lazy phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernels.common.arguments import check_numbers, check_tensors
from stylegan_lite import losses
from stylegan_lite.config import Recipe, Workload, check_configs
from stylegan_lite.losses import PHASES
from stylegan_lite.networks import Discriminator, Generator
from stylegan_lite.step import micro
from stylegan_lite.step.pair import Declared, Hooks, Input, Phase, Work
from stylegan_lite.step.ranks import Replicated
from stylegan_lite.step.recompute import Kind
from stylegan_lite.step.training import TrainingStep
from stylegan_lite.step.weights import Entry
from stylegan_lite.weights import make_copies

__all__ = ["PHASES", "StyleGAN2", "StyleGAN2Step"]


class StyleGAN2(Hooks):
    """The pair of one workload. Its networks run the ops that the recipe chooses.

    Attributes:
        state: the mean path length, [].
    """

    autocasts = recomputes = holds_buffers = updates_all = True

    def __init__(self, workload: Workload, recipe: Recipe, device: str) -> None:
        check_configs(workload, recipe)
        recipe.refuse_for(workload)
        self.workload, self.recipe = workload, recipe
        self.G, self.D = Generator(workload, recipe), Discriminator(workload, recipe)
        self.networks: dict[str, nn.Module] = {"G": self.G, "D": self.D}
        self.phases = (
            Phase("G_main", "G"),
            Phase("G_pl", "G", workload.pl_interval, twice=True, lazy=True),
            Phase("D_main", "D"),
            Phase("D_r1", "D", workload.r1_interval, twice=True, lazy=True),
        )
        self.averages = {"G": workload.ema_images}
        dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        self.pl_mean = torch.zeros([], device=device, dtype=dtype)
        self.state = {"pl_mean": self.pl_mean}
        self.settings = {"r1_gamma": workload.gamma}
        self.length: Tensor | None = None  # the new mean path length, where a pass of its own has found it

    def begin(self, work: Work) -> None:
        """Take the step's precision, loss scales and means."""
        self.work = work
        self.called: tuple[Any, Any] = (self.G, self.D)
        if self.recipe.reduce == "data_parallel" and self.recipe.ranks > 1:
            ranks = self.recipe.ranks
            self.called = (
                Replicated(self.G, ranks, False, work.amp),
                Replicated(self.D, ranks, True, work.amp),
            )

    def inputs(self, phase: str) -> Declared:
        """Return latents, noise and cutoffs, or the real images, of a phase."""
        return declare_inputs(self.workload, phase, self.G.noise_shapes, self.G.num_ws)

    def loss(self, phase: str, inputs: Any) -> Tensor:
        """Return the loss of a phase, []."""
        w, work, mixing = self.workload, self.work, self.workload.style_mixing
        G, D = self.called
        if phase == "D_r1":
            return losses.d_r1(D, inputs.real, w.gamma, w.r1_interval, work.amp, scale=work.scales.get("D"))
        if phase == "G_main":
            return losses.g_main(G, D, inputs, mixing, work.amp, work.mean)
        if phase == "D_main":
            joint = self.recipe.joint_batch
            return losses.d_main(G, D, inputs, inputs.real, mixing, work.amp, joint=joint)
        pl = (self.pl_mean, w.pl_decay, w.pl_weight, w.pl_interval)
        scale, mean = work.scales.get("G"), self.length
        return losses.g_pl(G, inputs, *pl, mixing, work.amp, scale=scale, over_ranks=work.mean, mean=mean)

    def gather(self, phase: str, parts: Sequence[Any], whole: Callable[[Tensor], Tensor]) -> None:
        """Move the mean path length by the lengths of all micro-batches, in a pass of its own."""
        if phase != "G_pl":
            return
        gathered, w, scale = micro.Gathered(len(parts), whole), self.workload, self.work.scales.get("G")
        mean = None
        for part in parts:
            lengths = losses.path_lengths(
                self.called[0], part, w.style_mixing, self.work.amp, scale, again=False
            )
            mean = gathered(lengths.detach().mean())
        self.length = losses.moved(self.pl_mean, mean, w.pl_decay, scale)

    def optimizer(self, network: str) -> torch.optim.Optimizer:
        """Return an Adam whose rate and betas make up for a lazy phase's update (Karras et al. 2020, appendix B)."""
        w = self.workload
        interval = w.pl_interval if network == "G" else w.r1_interval
        ratio = interval / (interval + 1)
        betas = (w.beta1**ratio, w.beta2**ratio)
        return torch.optim.Adam(self.networks[network].parameters(), lr=w.lr * ratio, betas=betas, eps=1e-8)

    def copies(self, network: str) -> list[Entry]:
        """Return the compute copies of a network's convolution weights."""
        return make_copies(self.networks[network], self.recipe)

    def passes(self, phase: str) -> int:
        """Return how often a main phase passes through the network that it trains."""
        return 2 if phase == "D_main" and not self.recipe.joint_batch else 1

    def recompute(self, again: bool) -> None:
        """Say whether backward runs parts of the networks once more."""
        for network in (self.G, self.D):
            network.again = kind(self.workload, self.recipe) if again else ""

    def after_update(self, network: str) -> None:
        """Move what is made of a network's new weights: the power iterations of spectral norm."""
        if network == "D":
            self.D.spectral_weights.advance()


def kind(workload: Workload, recipe: Recipe) -> Kind:
    """Return what backward of a main phase runs once more: "" for nothing."""
    if not recipe.checkpointing:
        return ""
    return "passes" if recipe.fused_modulation and workload.norm == "demod" else "blocks"


def declare_inputs(
    workload: Workload, phase: str, noise_shapes: Callable[[int], Sequence[tuple[int, ...]]], num_ws: int
) -> Declared:
    """Return the inputs of a phase.

    They are: z [2 N, z_dim], first and second latents; noise, one [N, 1, H, W] for each synthesis layer; uniform [2],
    style mixing's draws in [0, 1); layer_index [num_ws]; for path length image_noise [N, 3, R, R]; for D's phases real
    [N, 3, R, R].
    """
    r, batch = workload.resolution, workload.batch
    real = {"real": Input((batch, 3, r, r), "images")}
    if phase == "D_r1":
        return real
    if path := phase == "G_pl":
        batch = max(1, batch // workload.pl_batch_shrink)
    drawn: dict[str, Any] = {
        "z": Input((2 * batch, workload.z_dim), times=2),
        "noise": [Input(tuple(shape)) for shape in noise_shapes(batch)],
    }
    if path:
        drawn["image_noise"] = Input((batch, 3, r, r))
    drawn["uniform"] = Input((2,), "uniform", times=0)
    drawn["layer_index"] = Input((num_ws,), "index", times=0)
    return drawn | (real if phase == "D_main" else {})


class StyleGAN2Step(TrainingStep):
    """The training step of StyleGAN2. Made by :func:`stylegan_lite.make_step`."""

    pair: Any

    def __init__(self, workload: Workload, recipe: Recipe, *, device: str, seed: int) -> None:
        check_configs(workload, recipe)
        super().__init__(
            lambda: StyleGAN2(workload, recipe, device), workload, recipe, device=device, seed=seed
        )

    @property
    def G(self) -> Generator:
        return self.pair.G

    @property
    def D(self) -> Discriminator:
        return self.pair.D

    @property
    def G_ema(self) -> Any:
        return self.averages["G"]

    @property
    def opt_G(self) -> Any:
        return self.optimizers["G"]

    @property
    def opt_D(self) -> Any:
        return self.optimizers["D"]

    @property
    def pl_mean(self) -> Tensor:
        return self.pair.pl_mean

    @torch.no_grad()
    def sample(self, z: Tensor, truncation: float = 1.0) -> Tensor:
        """Return images of the averaged generator, [N, 3, R, R] float32, clamped to [-1, 1].

        Args:
            z: [N, z_dim], of a float dtype.
            truncation: 1 is none; towards 0, w moves to its running average (Karras et al. 2019, appendix B).

        Raises ValueError for other latents, and for a truncation that is no finite number.
        """
        check_tensors({"z": z})
        check_numbers(truncation=truncation)
        if z.dim() != 2 or z.shape[1] != self.workload.z_dim:
            raise ValueError(f"z must be [N, z_dim] = [N, {self.workload.z_dim}], got {tuple(z.shape)}")
        G = self.G_ema
        w = G.mapping.w_avg.lerp(G.mapping(z.to(device=self.device, dtype=self.dtype)), truncation)
        noise = [torch.zeros(s, device=self.device, dtype=self.dtype) for s in G.noise_shapes(len(z))]
        with self.amp():
            image = G(w[:, None].expand(-1, G.num_ws, -1), noise)
        return image.float().clamp(-1, 1)
