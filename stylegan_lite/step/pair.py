"""A pair: what is trained by one step, as one object that the step knows by the protocol below.

A pair has networks, phases that train them in turn, and a loss for each phase. The step owns everything else: random
numbers, data, optimizers, precision, graphs, averages and checkpoints. `stylegan_lite.stylegan2` is one pair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from stylegan_lite.step.scaling import LossScale

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CYCLE = 16  # steps after which the order of phases repeats

# Makes the mean of a part that of the whole batch, over all ranks. It returns None while parts are still to come.
Mean = Callable[[Tensor], "Tensor | None"]


def alone(value: Tensor) -> Tensor:
    """Return the mean of the only micro-batch of the only rank: itself."""
    return value


@dataclass(frozen=True)
class Phase:
    """One update of one network.

    Attributes:
        name: of the phase, in results and tables.
        network: the name of the network that it trains.
        every: steps from one run to the next; a divisor of 16, the steps of a cycle.
        twice: whether its loss holds a gradient of its own (a gradient penalty), so that backward differentiates twice.
        lazy: whether a step goes without it when its cost is measured; by default if it is not of every step.
    """

    name: str
    network: str
    every: int = 1
    twice: bool = False
    lazy: bool | None = None

    @property
    def is_lazy(self) -> bool:
        """Return whether a step may go without it."""
        return self.every > 1 if self.lazy is None else self.lazy


@dataclass(frozen=True)
class Input:
    """One tensor that a loss reads. The step allocates it once, and fills it anew before each run of its phase.

    Attributes:
        shape: with the batch first, for all ranks together.
        source: "normal" and "uniform" (in [0, 1)) are drawn on the device. "labels" are integers below `classes`.
            "images" are the workload's, [N, 3, R, R] in [-1, 1]. "batch" is what the pair's own `batch(number)` returns
            under this name. "index" is 0, 1, 2, ... and never changes.
        times: the batch comes so many times along the first dimension; 0: the numbers belong to no sample.
        classes: of labels.
        dtype: of a "batch"; floating-point ones follow the step's precision in its FP64 reference.
    """

    shape: tuple[int, ...]
    source: Literal["normal", "uniform", "labels", "images", "batch", "index"] = "normal"
    times: int = 1
    classes: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def batch(self) -> int:
        """Return the number of samples, 0 if it has none."""
        return self.shape[0] // self.times if self.times else 0


Declared = Mapping[str, "Input | Sequence[Input]"]


class Pair(Protocol):
    """What a step trains.

    Attributes:
        networks: by name, trained or frozen; on the CPU or where `make` was told, in float32.
        phases: in the order of a step.
        averages: network -> half-life of its moving average, in images; empty if there are none.

    These members may be missing; the step then does without.

    - ``batch(number) -> {name: tensor}``: a batch of the user's own data on the CPU, the same for the same number.
    - ``blocks(network) -> modules``: those that `checkpointing` runs again in backward.
    - ``sample(networks, inputs) -> images``: of the averaged networks, for grids.
    - ``tolerance``: (factor, reason): how much wider than measured parity's budget is, and why.
    """

    @property
    def networks(self) -> Mapping[str, nn.Module]: ...

    @property
    def phases(self) -> Sequence[Phase]: ...

    @property
    def averages(self) -> Mapping[str, float]: ...

    def inputs(self, phase: str) -> Declared:
        """Return what the loss of a phase reads, by name. A list of inputs is a list of tensors."""

    def loss(self, phase: str, inputs: Any) -> Tensor:
        """Return the loss of a phase, [], on tensors that are attributes of ``inputs``.

        It must be pure: no optimizer, no wait for the device (``.item()``), no random numbers of its own.
        """

    def optimizer(self, network: str) -> torch.optim.Optimizer:
        """Return a network's optimizer. Adam and AdamW are made anew, as the recipe has them."""


@dataclass
class Work:
    """The state of a step that a loss may depend on; a pair with `Hooks` gets it.

    Attributes:
        amp: the context that networks run in.
        scales: network -> loss scale, in FP16 only.
        mean: makes a statistic of this part of the batch that of the whole.
    """

    amp: Callable[[], AbstractContextManager]
    scales: dict[str, LossScale] = field(default_factory=dict)
    mean: Mean = alone


class Hooks:
    """What a pair may do in a step beside its losses, as StyleGAN2 does. A user's pair leaves all of it to the step.

    Attributes:
        autocasts: whether its losses run the networks in the step's precision, and the step does not.
        recomputes: whether its networks know which of their parts backward runs once more.
        holds_buffers: whether no phase moves a buffer of another network than its own.
        updates_all: whether a phase also updates weights that its loss does not reach, by zeros, unless the recipe has
            `set_to_none`. Without momentum that is the same.
        state: tensors that training changes beside networks, by name.
        settings: plain data that is stored with the settings in force.
    """

    autocasts = recomputes = holds_buffers = updates_all = False
    state: Mapping[str, Tensor] = {}
    settings: Mapping[str, Any] = {}

    def begin(self, work: Work) -> None:
        """Take the step's precision, loss scales and means."""

    def gather(self, phase: str, parts: Sequence[Any], whole: Callable[[Tensor], Tensor]) -> None:
        """Take statistics over all micro-batches, before the loss of the first."""

    def recompute(self, again: bool) -> None:
        """Say whether backward runs parts of the networks once more."""

    def after_update(self, network: str) -> None:
        """Move what is made of a network's new weights."""

    def copies(self, network: str) -> list[Any]:
        """Return the compute copies of a network's weights (`stylegan_lite.step.weights.Entry`)."""
        return []

    def passes(self, phase: str) -> int:
        """Return how often a phase passes through the network that it trains."""
        return 1


def autocast(device: str, precision: str) -> AbstractContextManager:
    """Return the context that networks run in."""
    dtype = HALVES.get(precision, torch.bfloat16)
    return torch.autocast(device, dtype=dtype, enabled=precision in HALVES)


def run_under(network: nn.Module, work: Work) -> None:
    """Run a network under autocast from now on. What it returns is in full precision: losses and penalties are."""
    inner = network.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with work.amp():
            result = inner(*args, **kwargs)
        return widen(result)

    network.forward = forward  # type: ignore[method-assign]


def widen(value: Any) -> Any:
    """Return a tensor, or a tuple, list or dict of them, with half precisions in float32."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALVES.values() else value
    if isinstance(value, (tuple, list)):
        items = [widen(each) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: widen(each) for key, each in value.items()}
    return value


def trained(pair: Pair) -> list[str]:
    """Return the names of the networks that a phase trains, in the order of the phases."""
    return list(dict.fromkeys(phase.network for phase in pair.phases))
