"""The four phases of a training step: networks, optimizers, buffers, and the way each phase changes them.

G_main and D_main are the two losses of the game. G_pl (path length) and D_r1 (gradient penalty) are its lazy phases. A
phase fills its static inputs with fresh random numbers, computes its loss, runs backward, and updates one network.
The module `stylegan_lite.step` adds the order of a cycle, the data feed's turns, preparation and checkpoints.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernels.common import dependent_launch
from stylegan_lite import fills, losses, micro, recompute
from stylegan_lite.compiled import Compiled
from stylegan_lite.config import ConfigError, Recipe, Workload, check_configs
from stylegan_lite.data import DataFeed
from stylegan_lite.inputs import PhaseInputs
from stylegan_lite.losses import PHASES
from stylegan_lite.networks import Discriminator, Generator
from stylegan_lite.parallel import ParallelStreams
from stylegan_lite.ranks import Ranks, replicas
from stylegan_lite.scaling import LEAST, LossScale
from stylegan_lite.settings import global_flags
from stylegan_lite.update import FusedUpdate
from stylegan_lite.weights import ComputeWeights

CYCLE = 16  # steps after which the order of phases repeats


class Phases:
    """The networks of one recipe, with their optimizers, data, buffers and captured graphs, and the phases on them."""

    def __init__(self, workload: Workload, recipe: Recipe, *, device: str, seed: int) -> None:
        check_configs(workload, recipe)
        recipe.refuse_on(device)
        recipe.refuse_for(workload)
        if recipe.dependent_launch and (why := dependent_launch.unavailable()):
            raise ConfigError(f"recipe: dependent_launch {why}")
        if recipe.graph_fills and (why := fills.unavailable()):
            raise ConfigError(f"recipe: graph_fills {why}")
        self.workload, self.recipe, self.device, self.seed = workload, recipe, device, seed
        self.ranks = Ranks(recipe)
        self.mean: losses.Mean = self.ranks.mean  # of a statistic over the batch
        torch.manual_seed(seed)
        self.dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        self.memory_format = torch.channels_last if recipe.channels_last else torch.contiguous_format
        place = {"device": device, "dtype": self.dtype, "memory_format": self.memory_format}
        self.G = Generator(workload, recipe).to(**place)
        self.D = Discriminator(workload, recipe).to(**place)
        self.amp = functools.partial(losses.autocast, device, recipe.precision)
        self.replicas = replicas(recipe, self.G, self.D, self.amp)
        self.G_ema = copy.deepcopy(self.G).requires_grad_(False)
        self.copies = {network: ComputeWeights(network, recipe) for network in (self.G, self.D)}
        self.parallel = ParallelStreams(self.copies, device) if recipe.streams == "two" else None
        self.opt_G = self._adam(self.G, workload.pl_interval)
        self.opt_D = self._adam(self.D, workload.r1_interval)
        self.scales: dict[str, LossScale] = {}  # "G", "D"; in FP16 only
        if recipe.precision == "fp16":
            how = (device, recipe.loss_scale, recipe.loss_scale_interval)
            self.scales = {name: LossScale(*how) for name in ("G", "D")}
        self.inputs = {phase: self._inputs(phase) for phase in ("G_main", "G_pl", "D_main")}
        r = workload.resolution
        shape = (workload.batch // self.ranks.size, 3, r, r)
        self.real = torch.empty(shape, device=device, dtype=self.dtype, memory_format=self.memory_format)
        self.real.zero_()
        self.pl_mean = torch.zeros([], device=device, dtype=self.dtype)
        self.loss = {phase: torch.zeros([], device=device, dtype=self.dtype) for phase in PHASES}
        self.one = torch.ones([], device=device, dtype=self.dtype)  # backward would write one in each phase
        self.feed = DataFeed(workload, recipe, self.real, seed, rank=self.ranks.rank, ranks=self.ranks.size)
        self.compiled = Compiled(recipe, lambda phase: self._loss(phase)) if recipe.compile != "off" else None
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self.fills: dict[str, fills.Fills] = {}  # by graph, if the recipe asks for them
        self.count = 0  # steps done
        self.updating = False  # whether a step has begun to change the networks and is not done
        self.prepared = False
        self.precompiled: Any = None  # `kernels.precompile.Report`, once `prepare` has looked for kernels
        self.keep_gradients = False  # set before prepare(): hold every phase's gradients for inspection
        self.gradients: dict[str, dict[str, Tensor]] = {}
        self.held: dict[str, dict[str, dict[str, Tensor]]] = {}  # by graph: its gradients

    # Running

    def phases(self, index: int, lazy: bool = True) -> tuple[str, ...]:
        """Return the phases of one step of a cycle, in order."""
        path = ("G_pl",) if lazy and index % self.workload.pl_interval == 0 else ()
        penalty = ("D_r1",) if lazy and index % self.workload.r1_interval == 0 else ()
        return ("G_main", *path, "D_main", *penalty)

    @property
    def together(self) -> list[tuple[str, ...]]:
        """Return the kinds of steps that are launched whole, each as one graph; none if phases are launched alone."""
        if not self.recipe.whole_step_graph:
            return []
        return sorted({self.phases(index, lazy) for index in range(CYCLE) for lazy in (True, False)})

    def run(self, phases: tuple[str, ...]) -> None:
        """Run the phases of one step on fresh inputs. A whole-step graph needs all numbers before it launches."""
        if not self.recipe.whole_step_graph:
            for phase in phases:
                self.run_phase(phase)
            return
        for phase in phases:
            self._fill(phase)
        self.replay_together(phases)

    def run_phase(self, phase: str) -> None:
        """Draw fresh inputs for a phase and run it on the current real batch (D_main ends with the EMA)."""
        self._fill(phase)
        self.replay(phase)

    def replay(self, phase: str) -> None:
        """Run a phase on the current contents of its buffers."""
        if phase in self.graphs:
            self.ranks.enter()
            self.graphs[phase].replay()
        else:
            self._compute(phase)

    def replay_together(self, phases: tuple[str, ...]) -> None:
        """Run a whole step on the current contents of the buffers."""
        name = "+".join(phases)
        if name in self.graphs:
            self.ranks.enter()
            self.graphs[name].replay()
            self.gradients = self.held[name]
        else:
            for phase in phases:
                self._compute(phase)

    # One phase

    def _warm_up(self, phase: str) -> None:
        self._fill(phase)
        self._compute(phase)

    def _fill(self, phase: str) -> None:
        if phase in self.inputs:
            self.inputs[phase].fill()

    def _compute(self, phase: str) -> None:
        with global_flags(self.recipe):
            self._update(phase)

    def _update(self, phase: str) -> None:
        network, optimizer = self._trained(phase)
        for each in (self.G, self.D):
            each.requires_grad_(each is network)
            self.copies[each].requires_grad_(each is network)
            each.again = recompute.kind(self.workload, self.recipe) if phase.endswith("main") else ""
        self._zero_grad(network, optimizer)
        if self.parallel and phase == "D_main":  # G stands still in this phase.
            with self.parallel.branch.fork():
                self._update_ema()
        scale = self.scales.get(phase[0])
        network.notice = self._early_update(phase, network, optimizer)
        try:
            loss = self._backward(phase, network, scale)
        finally:  # G's phases pass through D, too.
            network.notice = None
        if not self.recipe.fused_update:
            self.copies[network].hand_over()
        self.ranks.reduce(phase, lambda: self._read(network, optimizer), loss)
        if scale is not None:
            self._update_scaled(phase, network, optimizer, loss, scale)
        else:
            if self.keep_gradients:
                self._keep(phase, network)
            optimizer.step()
            self.loss[phase].copy_(loss)
        if not self.recipe.fused_update:
            self.copies[network].refresh()
        if network is self.D:
            self.D.spectral_weights.advance()
        if phase == "D_main" and not self.parallel:
            self._update_ema()

    def _backward(self, phase: str, network: nn.Module, scale: LossScale | None) -> Tensor:
        """Run the loss of a phase and its backward pass, micro-batch by micro-batch. Return the loss of the batch."""
        parts = self._parts(phase)
        mean = self._mean_length(parts, scale) if parts > 1 and phase == "G_pl" else None
        self.mean = self.ranks.mean if parts == 1 else micro.Gathered(parts, self.ranks.mean)
        total: Tensor | None = None
        for k in range(parts):
            if self.compiled is not None and phase in self.compiled.functions:
                loss = self.compiled.loss(phase)
            elif parts == 1:
                loss = self.ranks.loss(phase, network, self._loss)
            else:
                loss = self._loss(phase, k, parts, mean) / parts
            with self.parallel.phase(phase, network) if self.parallel else contextlib.nullcontext():
                loss.backward(self.one if scale is None else scale.scale)  # the gradient of a scaled loss
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def _early_update(
        self, phase: str, network: nn.Module, optimizer: torch.optim.Adam
    ) -> Callable[[], None] | None:
        """Return what updates most weights beside the end of a main phase's backward pass; None where that cannot be.

        A loss scale, ranks, micro-batches, passes through D and kept gradients may need the weights before an update.
        """
        parts = self._parts(phase) + (phase == "D_main" and not self.recipe.joint_batch)
        whole = parts == self.ranks.size == 1 and not self.scales and not self.keep_gradients
        if not (self.parallel and self.recipe.fused_update and phase.endswith("main") and whole):
            return None

        def update() -> None:
            with self.parallel.branch.fork():
                self.parallel.gradients[network].deliver()
                optimizer.step_early()

        return update

    def _parts(self, phase: str) -> int:
        """Return the number of micro-batches of a phase."""
        inputs = self.inputs.get(phase)
        return micro.counted(self.recipe.micro_batches, len(self.real) if inputs is None else inputs.batch)

    def _mean_length(self, parts: int, scale: LossScale | None) -> Tensor:
        """Move the mean path length by the lengths of all micro-batches, a pass of its own, and return it."""
        gathered, inputs, w = micro.Gathered(parts, self.ranks.mean), self.inputs["G_pl"], self.workload
        network = (self.replicas or (self.G,))[0]
        whole = None
        for k in range(parts):
            part = micro.part_of(inputs, k, parts)
            lengths = losses.path_lengths(network, part, w.style_mixing, self.amp, scale, again=False)
            whole = gathered(lengths.detach().mean())
        return losses.moved(self.pl_mean, whole, w.pl_decay, scale)

    def _update_scaled(
        self, phase: str, network: nn.Module, optimizer: torch.optim.Adam, loss: Tensor, scale: LossScale
    ) -> None:
        """Take the optimizer's step on gradients with a loss scale. After an overflow only the scale moves.

        The loss of a skipped update may be infinite and is not recorded. The last loss of a real update stays.
        """
        inverse = scale.inverse
        if self.recipe.fused_update:
            # The kernel divides as it reads. Divided before, gradients in FP16 would be lost.
            scale.check([*optimizer.gradients()])
            self.ranks.agree_on(scale.found_inf)
            if self.keep_gradients:
                self._keep(phase, network, inverse)
            optimizer.step(inverse=inverse, found_inf=scale.found_inf)
        else:
            scale.check(self._read(network, optimizer), inverse)
            self.ranks.agree_on(scale.found_inf)
            if self.keep_gradients:
                self._keep(phase, network)
            if self.recipe.fused_adam:
                optimizer.found_inf = scale.found_inf
                optimizer.step()
            elif not float(scale.found_inf):  # This waits, as torch.amp.GradScaler does.
                optimizer.step()
        self.loss[phase].copy_(torch.where(scale.found_inf.bool(), self.loss[phase], loss))
        scale.update()

    def _read(self, network: nn.Module, optimizer: torch.optim.Adam) -> list[Tensor]:
        """Return the gradients that the optimizer reads."""
        if self.recipe.fused_update:
            return [*optimizer.gradients()]
        return [p.grad for p in network.parameters() if p.grad is not None]

    def _trained(self, phase: str) -> tuple[nn.Module, torch.optim.Adam]:
        return (self.G, self.opt_G) if phase.startswith("G") else (self.D, self.opt_D)

    def _zero_grad(self, network: nn.Module, optimizer: torch.optim.Adam) -> None:
        optimizer.zero_grad(set_to_none=self.recipe.set_to_none)
        self.copies[network].zero_grad(self.recipe.set_to_none)

    def _loss(self, phase: str, k: int = 0, parts: int = 1, mean: Tensor | None = None) -> Tensor:
        """Return the loss of a phase on part ``k`` of its batch. Path length may know its ``mean`` already."""
        w, mixing = self.workload, self.workload.style_mixing
        G, D = self.replicas or (self.G, self.D)
        if phase == "D_r1":
            real = micro.samples(self.real, k, parts)
            return losses.d_r1(D, real, w.gamma, w.r1_interval, self.amp, scale=self.scales.get("D"))
        inputs = micro.part_of(self.inputs[phase], k, parts)
        if phase == "G_main":
            return losses.g_main(G, D, inputs, mixing, self.amp, self.mean)
        if phase == "D_main":
            images, joint = (inputs, micro.samples(self.real, k, parts)), self.recipe.joint_batch
            return losses.d_main(G, D, *images, mixing, self.amp, joint=joint)
        pl = (self.pl_mean, w.pl_decay, w.pl_weight, w.pl_interval)
        scale = self.scales.get("G")
        return losses.g_pl(G, inputs, *pl, mixing, self.amp, scale=scale, over_ranks=self.mean, mean=mean)

    def _update_ema(self) -> None:
        beta = 0.5 ** (self.workload.batch / self.workload.ema_images)
        with torch.no_grad():
            if self.recipe.ema == "foreach":
                torch._foreach_lerp_([*self.G_ema.parameters()], [*self.G.parameters()], 1 - beta)
                torch._foreach_copy_([*self.G_ema.buffers()], [*self.G.buffers()])
                return
            for average, weight in zip(self.G_ema.parameters(), self.G.parameters(), strict=True):
                average.lerp_(weight, 1 - beta)
            for average, value in zip(self.G_ema.buffers(), self.G.buffers(), strict=True):
                average.copy_(value)

    def _keep(self, phase: str, network: nn.Module, inverse: Tensor | None = None) -> None:
        named = network.named_parameters()
        kept = {name: p.grad for name, p in named if p.grad is not None}
        if self.recipe.fused_update:  # The fused update adds up a weight's gradients as it reads them.
            kept |= self.copies[network].totals()
        if inverse is not None:
            kept = {name: g * inverse for name, g in kept.items()}
        # Nothing overwrites the gradients of such a graph.
        alone = self.recipe.cuda_graphs and not self.recipe.whole_step_graph
        self.gradients[phase] = kept if alone else {k: g.clone() for k, g in kept.items()}

    # Asking

    def losses(self) -> dict[str, float]:
        """Return the last loss of each phase. Synchronizes."""
        return {phase: float(value) for phase, value in self.loss.items()}

    def check_finite(self) -> str | None:
        """Return one line that names a NaN or infinite loss, weight or derived tensor, or None. Synchronizes.

        A NaN gradient stays visible: Adam carries it into its moments and from there into the weights. Some tensors are
        made of weights and can break by themselves: the moving average, running means, compute copies.
        """
        named = [(f"loss of {phase}", value) for phase, value in self.loss.items()]
        for label, network in (("G", self.G), ("D", self.D), ("G_ema", self.G_ema)):
            named += [(f"{label}.{name}", p.detach()) for name, p in network.named_parameters()]
            named += [(f"{label}.{name}", buffer) for name, buffer in network.named_buffers()]
        named.append(("mean path length", self.pl_mean))
        for label, network in (("G", self.G), ("D", self.D)):
            for entry in self.copies[network].entries:
                named += [(f"compute copy of {label}.{entry.name}", leaf.detach()) for leaf in entry.leaves]
        named += [
            (f"loss scale of {name}", (scale.scale >= LEAST).to(self.dtype).log())  # -inf where it is not
            for name, scale in self.scales.items()
        ]
        finite = torch.stack([value.isfinite().all() for _, value in named]).tolist()
        bad = [name for (name, _), ok in zip(named, finite, strict=True) if not ok]
        if not bad:
            return None
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        return f"{bad[0]} is NaN or infinite{more} after step {self.count}"

    # Building

    def _adam(self, network: nn.Module, interval: int) -> torch.optim.Adam:
        """Make an Adam whose rate and betas make up for a lazy phase's update (Karras et al. 2020, appendix B)."""
        ratio = interval / (interval + 1)
        w = self.workload
        optimizer = torch.optim.Adam
        if self.recipe.fused_update:
            optimizer = functools.partial(
                FusedUpdate, copies=self.copies[network], last=network.last if self.parallel else ()
            )
        return optimizer(
            network.parameters(),
            lr=w.lr * ratio,
            betas=(w.beta1**ratio, w.beta2**ratio),
            eps=1e-8,
            capturable=self.recipe.adam == "capturable",
            fused=True if self.recipe.fused_adam else None,  # by default PyTorch's own choice
        )

    def _inputs(self, phase: str) -> PhaseInputs:
        batch = self.workload.batch
        if phase == "G_pl":
            batch = max(1, batch // self.workload.pl_batch_shrink)
        return PhaseInputs(
            self.workload,
            batch,
            self.G.noise_shapes(batch),
            self.G.num_ws,
            device=self.device,
            dtype=self.dtype,
            image_noise=phase == "G_pl",
            memory_format=self.memory_format,
            rank=self.ranks.rank,
            ranks=self.ranks.size,
        )
