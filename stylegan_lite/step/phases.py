"""The phases of a training step: networks, optimizers, buffers, and the way each phase changes them.

A pair declares its phases (`stylegan_lite.step.pair`). A phase fills its static inputs with fresh random numbers,
computes its loss, runs backward, and updates one network. The module `stylegan_lite.step.training` adds the order of a
cycle, the data feed's turns, preparation and checkpoints.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kernels.common import dependent_launch
from kernels.double_backward import fast_double_backward
from stylegan_lite.config import ConfigError, Recipe
from stylegan_lite.step import fills, micro, recompute
from stylegan_lite.step.compiled import Compiled
from stylegan_lite.step.data import make_feed
from stylegan_lite.step.fused import BATCH_NORMS, GROUP_NORMS, FusedNorms, GroupedSpectral, GroupedWeights
from stylegan_lite.step.inputs import PhaseInputs
from stylegan_lite.step.pair import CYCLE, Hooks, Input, Pair, Work, autocast, run_under, trained
from stylegan_lite.step.parallel import ParallelStreams
from stylegan_lite.step.ranks import Ranks
from stylegan_lite.step.scaling import LEAST, LossScale
from stylegan_lite.step.settings import global_flags
from stylegan_lite.step.update import FusedUpdate
from stylegan_lite.step.weights import ComputeWeights


class Phases:
    """The networks of one recipe, with their optimizers, data, buffers and captured graphs, and the phases on them.

    Attributes:
        pair: what is trained.
        networks: the pair's networks by name, on the device.
        averages: the moving averages of networks, by the network's name.
        optimizers: of the trained networks, by name.
        order: the names of the phases, in the order of a step.
        owners: phase -> the network that it trains.
    """

    def __init__(
        self, make: Callable[[], Pair], workload: Any, recipe: Recipe, *, device: str, seed: int
    ) -> None:
        recipe.refuse_on(device)
        if recipe.dependent_launch and (why := dependent_launch.unavailable()):
            raise ConfigError(f"recipe: dependent_launch {why}")
        if recipe.graph_fills and (why := fills.unavailable()):
            raise ConfigError(f"recipe: graph_fills {why}")
        self.workload, self.recipe, self.device, self.seed = workload, recipe, device, seed
        self.ranks = Ranks(recipe)
        torch.manual_seed(seed)
        self.dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        self.memory_format = torch.channels_last if recipe.channels_last else torch.contiguous_format
        pair: Any = make()
        self.pair = pair
        self.hooks = pair if isinstance(pair, Hooks) else Hooks()
        self.order = tuple(phase.name for phase in pair.phases)
        self.owners = {phase.name: phase.network for phase in pair.phases}
        self.kinds = {phase.name: phase for phase in pair.phases}
        # Whether a phase may move buffers of a network that it does not train, as batch norm's.
        self.lets_buffers_move = not self.hooks.holds_buffers
        # The last phase that runs in every step: averages move behind it.
        self.last = [phase.name for phase in pair.phases if not phase.is_lazy][-1]
        self.networks: dict[str, nn.Module] = {}
        for name, network in pair.networks.items():
            self.networks[name] = self._place(network)
            drop_derived(self.networks[name])
        names = trained(pair)
        for name in self.networks.keys() - names:
            self.networks[name].requires_grad_(False)
        self.weights = {
            name: [p for p in self.networks[name].parameters() if p.requires_grad] for name in names
        }
        self.averages = {
            name: copy.deepcopy(self.networks[name]).requires_grad_(False) for name in pair.averages
        }
        self.work = Work(functools.partial(autocast, device, recipe.precision), mean=self.ranks.mean)
        self.hooks.begin(self.work)
        if not self.hooks.autocasts:
            for network in (*self.networks.values(), *self.averages.values()):
                run_under(network, self.work)
        kinds = GROUP_NORMS * recipe.fused_group_norm + BATCH_NORMS * recipe.fused_batch_norm
        self.norms = FusedNorms(self.networks.values(), kinds)
        self.grouped = GroupedWeights(self.networks.values() if recipe.fused_weight_norm else ())
        self.spectral = GroupedSpectral(self.networks.values() if recipe.fused_spectral_norm else ())
        self.served = 0  # second derivatives of convolutions that `double_backward` computed
        self.blocks: recompute.Blocks | None = None
        if recipe.checkpointing and not self.hooks.recomputes:
            self.blocks = recompute.Blocks(pair, self.norms.running)
        self.copies = {
            self.networks[name]: ComputeWeights(self.networks[name], self._entries(name)) for name in names
        }
        self.parallel = ParallelStreams(self.copies, device) if recipe.streams == "two" else None
        self.optimizers = {name: self._optimizer(name) for name in names}
        if recipe.precision == "fp16":
            how = (device, recipe.loss_scale, recipe.loss_scale_interval)
            self.scales = {name: LossScale(*how) for name in names}
        self._make_inputs()
        self.loss = {phase: torch.zeros([], device=device, dtype=self.dtype) for phase in self.order}
        self.one = torch.ones([], device=device, dtype=self.dtype)  # backward would write one in each phase
        self.feed = make_feed(
            workload,
            recipe,
            self.real,
            seed,
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            pair=pair,
            data=self.data,
        )
        self.compiled: Compiled | None = None
        if recipe.compile != "off":
            once = [phase.name for phase in pair.phases if not phase.twice]
            self.compiled = Compiled(recipe, lambda phase: self._loss(phase), once)
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self.fills: dict[str, fills.Fills] = {}  # by graph, if the recipe asks for them
        self.unreached: dict[str, list[Tensor]] = {}  # by phase: weights that its loss does not reach
        self.count = 0  # steps done
        self.updating = False  # whether a step has begun to change the networks and is not done
        self.prepared = False
        self.precompiled: Any = None  # `kernels.precompile.Report`, once `prepare` has looked for kernels
        self.keep_gradients = False  # set before prepare(): hold every phase's gradients for inspection
        self.gradients: dict[str, dict[str, Tensor]] = {}
        self.held: dict[str, dict[str, dict[str, Tensor]]] = {}  # by graph: its gradients

    @property
    def amp(self) -> Callable[[], contextlib.AbstractContextManager]:
        """The context that networks run in."""
        return self.work.amp

    @amp.setter
    def amp(self, value: Callable[[], contextlib.AbstractContextManager]) -> None:
        self.work.amp = value

    @property
    def scales(self) -> dict[str, LossScale]:
        """The loss scale of each network, in FP16 only."""
        return self.work.scales

    @scales.setter
    def scales(self, value: dict[str, LossScale]) -> None:
        self.work.scales = value

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Return the pair's own tensors that training changes beside networks, by name."""
        return self.hooks.state

    # Running

    def phases(self, index: int, lazy: bool = True) -> tuple[str, ...]:
        """Return the phases of one step of a cycle, in order."""
        return tuple(
            phase.name
            for phase in self.pair.phases
            if not phase.is_lazy or (lazy and index % phase.every == 0)
        )

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
        """Draw fresh inputs for a phase and run it on the current real batch (the last ends with the averages)."""
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
            if self.recipe.double_backward and self.kinds[phase].twice:
                with fast_double_backward() as use:
                    self._update(phase)
                self.served += use.calls
            else:
                self._update(phase)

    def _update(self, phase: str) -> None:
        network, optimizer = self._trained(phase)
        self._free(phase)
        self._zero_grad(network, optimizer)
        self._forget(phase)
        if self.parallel and phase == self.last:  # The averaged network stands still in this phase.
            with self.parallel.branch.fork():
                self._update_ema()
        scale = self.scales.get(self.owners[phase])
        early = self._early_update(phase, network, optimizer)
        if early is not None:
            network.notice = early
        try:
            loss = self._backward(phase, network, scale)
        finally:  # One network's phases may pass through another, too.
            self.grouped.clear()
            self.spectral.clear()
            if early is not None:
                network.notice = None
        if phase not in self.unreached:
            self.unreached[phase] = [p for p in self.weights[self.owners[phase]] if p.grad is None]
        if not self.recipe.fused_update:
            self.copies[network].hand_over()
        self.ranks.reduce(phase, self.owners[phase], lambda: self._read(network, optimizer), loss)
        if scale is not None:
            self._update_scaled(phase, network, optimizer, loss, scale)
        else:
            if self.keep_gradients:
                self._keep(phase, network)
            optimizer.step()
            self.loss[phase].copy_(loss)
        if not self.recipe.fused_update:
            self.copies[network].refresh()
        self.hooks.after_update(self.owners[phase])
        if phase == self.last and not self.parallel:
            self._update_ema()

    def _forget(self, phase: str) -> None:
        """Leave weights that a phase does not reach without a gradient, so that momentum does not move them in it."""
        if self.hooks.updates_all:
            return
        known = self.unreached.get(phase, self.weights[self.owners[phase]])  # the first run shows which
        for weight in known:
            weight.grad = None

    def _free(self, phase: str) -> None:
        """Let the phase's network have gradients, and no other. Say what backward runs once more."""
        for name in self.optimizers:
            free = name == self.owners[phase]
            for weight in self.weights[name]:
                weight.requires_grad_(free)
            self.copies[self.networks[name]].requires_grad_(free)
        again = self.recipe.checkpointing and not self.kinds[phase].twice
        self.hooks.recompute(again)
        if self.blocks is not None:
            self.blocks.on = again

    def _backward(self, phase: str, network: nn.Module, scale: LossScale | None) -> Tensor:
        """Run the loss of a phase and its backward pass, micro-batch by micro-batch. Return the loss of the batch."""
        parts = self._parts(phase)
        self.work.mean = self.ranks.mean if parts == 1 else micro.Gathered(parts, self.ranks.mean)
        if parts > 1:
            self.hooks.gather(
                phase, [self.given[phase].take(k, parts) for k in range(parts)], self.ranks.mean
            )
        total: Tensor | None = None
        for k in range(parts):
            if self.compiled is not None and phase in self.compiled.functions:
                loss = self.compiled.loss(phase)
            elif parts == 1:
                loss = self.ranks.loss(phase, network, self._loss)
            else:
                loss = self._loss(phase, k, parts) / parts
            with self.parallel.phase(phase, network) if self.parallel else contextlib.nullcontext():
                loss.backward(self.one if scale is None else scale.scale)  # the gradient of a scaled loss
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def _early_update(
        self, phase: str, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Callable[[], None] | None:
        """Return what updates most weights beside the end of a main phase's backward pass; None where that cannot be.

        A loss scale, ranks, micro-batches, several passes and kept gradients may need the weights before an update.
        """
        if not (self.parallel and self.recipe.fused_update) or self.kinds[phase].twice:
            return None
        passes = self._parts(phase) * self.hooks.passes(phase)
        if not passes == self.ranks.size == 1 or self.scales or self.keep_gradients:
            return None

        def update() -> None:
            with self.parallel.branch.fork():
                self.parallel.gradients[network].deliver()
                optimizer.step_early()

        return update

    def _parts(self, phase: str) -> int:
        """Return the number of micro-batches of a phase."""
        return micro.counted(self.recipe.micro_batches, self.given[phase].batch)

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
        name = self.owners[phase]
        return self.networks[name], self.optimizers[name]

    def _zero_grad(self, network: nn.Module, optimizer: torch.optim.Adam) -> None:
        optimizer.zero_grad(set_to_none=self.recipe.set_to_none)
        self.copies[network].zero_grad(self.recipe.set_to_none)

    def _loss(self, phase: str, k: int = 0, parts: int = 1) -> Tensor:
        """Return the loss of a phase on part ``k`` of its batch."""
        self.spectral.begin(phase)
        if self.grouped.used:
            with self.amp():
                self.grouped.make(phase)
        with self.norms.running(phase):
            return self.pair.loss(phase, self.given[phase].take(k, parts))

    def observe_norms(self) -> None:
        """Look how each phase's loss uses norms, if some are to be fused."""
        if not (self.norms.modules or any(self.grouped.layers) or any(self.spectral.layers)):
            return
        for phase in self.order:
            self._fill(phase)
            self._free(phase)
            self.grouped.seen.clear()
            self.norms.observe(phase, functools.partial(self._loss, phase))
            self.grouped.note(phase)
            self.spectral.note(phase)

    def _update_ema(self) -> None:
        for name, images in self.pair.averages.items():
            beta = 0.5 ** (self.workload.batch / images)
            average, network = self.averages[name], self.networks[name]
            with torch.no_grad():
                if self.recipe.ema == "foreach":
                    torch._foreach_lerp_([*average.parameters()], [*network.parameters()], 1 - beta)
                    if buffers := [*network.buffers()]:
                        torch._foreach_copy_([*average.buffers()], buffers)
                    continue
                for mean, weight in zip(average.parameters(), network.parameters(), strict=True):
                    mean.lerp_(weight, 1 - beta)
                for mean, value in zip(average.buffers(), network.buffers(), strict=True):
                    mean.copy_(value)

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
        averages = {f"{name}_ema": average for name, average in self.averages.items()}
        for label, network in (self.networks | averages).items():
            named += [(f"{label}.{name}", p.detach()) for name, p in network.named_parameters()]
            named += [(f"{label}.{name}", buffer) for name, buffer in network.named_buffers()]
        named += [(STATES.get(name, name), value) for name, value in self.state.items()]
        for label, network in self.networks.items():
            for entry in self.copies[network].entries if network in self.copies else ():
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

    def _place(self, network: nn.Module) -> nn.Module:
        """Move a network to the device. Weights of two-dimensional convolutions lie as the recipe has them."""
        place: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        tensors = [*network.parameters(), *network.buffers()]
        if all(each.dim() != 5 for each in tensors):
            return network.to(**place, memory_format=self.memory_format)
        network.to(**place)  # three-dimensional ones cannot be channels_last
        for each in (*network.parameters(), *network.buffers()):
            if each.dim() == 4:
                each.data = each.data.contiguous(memory_format=self.memory_format)
        return network

    def _entries(self, name: str) -> list[Any]:
        """Return the weights with compute copies: none unless the recipe and the pair have some."""
        return self.hooks.copies(name) if self.recipe.weights == "once" else []

    def _optimizer(self, name: str) -> torch.optim.Optimizer:
        """Return the pair's optimizer of a network. Adam and AdamW are made anew, as the recipe has them."""
        network, own = self.networks[name], self.pair.optimizer(name)
        if not is_adam(own):
            for group in own.param_groups:
                if "capturable" in group:
                    group["capturable"] = self.recipe.adam == "capturable"
            return own
        make: Callable[..., torch.optim.Optimizer] = type(own)
        if self.recipe.fused_update:
            late = network.last if self.parallel else ()
            make = functools.partial(FusedUpdate, copies=self.copies[network], last=late)
        groups = [
            {key: group[key] for key in ("params", *KEPT) if key in group} for group in own.param_groups
        ]
        return make(
            groups,
            capturable=self.recipe.adam == "capturable",
            fused=True if self.recipe.fused_adam else None,  # by default PyTorch's own choice
        )

    def _make_inputs(self) -> None:
        """Allocate what the losses read: `real` for images, `data` for a pair's own batches, and numbers by phase."""
        place = {"device": self.device, "dtype": self.dtype}
        declared = {phase: self.pair.inputs(phase) for phase in self.order}
        flat = [
            (name, one)
            for each in declared.values()
            for name, some in each.items()
            for one in ([some] if isinstance(some, Input) else some)
        ]
        self.real: Tensor | None = None
        for _, one in flat:
            if one.source == "images" and self.real is None:
                shape = (one.shape[0] // self.ranks.size, *one.shape[1:])
                self.real = torch.empty(shape, memory_format=self.memory_format, **place).zero_()
        self.data = {
            name: torch.zeros(
                (one.shape[0] // (self.ranks.size if one.times else 1), *one.shape[1:]),
                device=self.device,
                dtype=self.dtype if one.dtype.is_floating_point else one.dtype,
            )
            for name, one in flat
            if one.source == "batch"
        }
        how = {"memory_format": self.memory_format, "rank": self.ranks.rank, "ranks": self.ranks.size}
        data = self.data | ({} if self.real is None else {"images": self.real})
        self.given: dict[str, PhaseInputs] = {
            phase: PhaseInputs(each, data=data, **how, **place) for phase, each in declared.items()
        }
        # What is drawn anew, by phase.
        self.inputs = {phase: inputs for phase, inputs in self.given.items() if inputs.is_drawn}


def drop_derived(network: nn.Module) -> None:
    """Detach what hooks make of weights before each pass (torch.nn.utils.weight_norm): no copy could be made of it."""
    for module in network.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and value.grad_fn is not None:
                setattr(module, name, value.detach())


# Settings of an Adam that are the pair's, not the recipe's.
KEPT = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")
STATES = {"pl_mean": "mean path length"}  # in words


def is_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether it is Adam or AdamW itself, or our kernel's."""
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW, FusedUpdate)
