"""Norms of activations and of weights in a user's networks, computed by our kernels. The user's code stays.

Each module of a kind gets another `forward`. The activation is a function that anybody may call, so it is looked for:
`observe` runs each loss once, and notes at dispatch level which operators read a norm's result. If in each of its calls
one activation reads it, and nothing else does, the norm computes both from then on. That activation, as a function or a
module, then returns its argument. A `TorchFunctionMode` sees to that, and raises an error should anything else read the
result in a later run. In a captured graph none of this is left.

Layers with weight norm read their weight from `GroupedWeights`, which makes those of a network together, before a loss.
Those with spectral norm read it from `GroupedSpectral`, which takes a step of the power iteration for all of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

GROUP_NORMS = (nn.GroupNorm,)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Act = tuple[str, float]  # "silu" or "leaky_relu", and its slope
NONE: Act = ("leaky_relu", 1.0)
# Functions that are activations, as a mode of functions sees them.
ACTS = {
    *(F.silu, F.relu, F.leaky_relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_),
    *(torch._C._nn.silu, torch._C._nn.silu_, torch._C._nn.leaky_relu, torch._C._nn.leaky_relu_),
}


def can_fuse(module: nn.Module) -> bool:
    """Return whether this is a norm that our kernels compute: no subclass, and with statistics of the batch."""
    if type(module) in BATCH_NORMS:
        return module.training and (module.momentum is not None or not module.track_running_stats)
    return type(module) in GROUP_NORMS


class FusedNorms:
    """The norms of a step's networks.

    Attributes:
        acts: phase -> norm -> the activation that alone reads its results. Norms without one are fused alone.
    """

    def __init__(self, networks: Iterable[nn.Module], kinds: tuple[type[nn.Module], ...]) -> None:
        self.acts: dict[str, dict[nn.Module, Act]] = {}
        self.here = threading.local()  # backward runs checkpointed blocks in threads of its own
        self.phase: str | None = None
        found = (each for net in networks for each in net.modules() if type(each) in kinds and can_fuse(each))
        self.modules = [*dict.fromkeys(found)]  # networks may share some
        for module in self.modules:
            self._wrap(module)

    @contextlib.contextmanager
    def running(self, phase: str | None = None) -> Iterator[None]:
        """Fuse while the block runs: the loss of a phase, or by default a part of the last one's again."""
        self.phase = phase or self.phase
        acts = self.acts.get(self.phase or "")
        if acts is None:  # not observed yet
            yield
            return
        before, self.here.run = getattr(self.here, "run", None), Run(acts)
        try:
            with self.here.run if acts else contextlib.nullcontext():
                yield
            self.here.run.refuse_pending()
        finally:
            self.here.run = before

    def observe(self, phase: str, loss: Callable[[], Any]) -> None:
        """Run a phase's loss as the user wrote it, and note which activation alone reads a norm's results."""
        self.here.run = Observed()
        try:
            with self.here.run:
                loss()
            self.acts[phase] = self.here.run.list_acts()
        finally:
            self.here.run = None

    def _wrap(self, module: nn.Module) -> None:
        inner = module.forward

        def forward(input: Tensor) -> Tensor:  # PyTorch's name, by which it may be given
            run = getattr(self.here, "run", None)
            if run is None or not (module.training or type(module) in GROUP_NORMS):
                return inner(input)
            if isinstance(run, Observed):
                return run.note(module, inner(input))
            act = run.acts.get(module)
            y = compute(module, input, act or NONE)
            if act:
                run.pending[id(y)] = y
            return y

        module.forward = forward  # type: ignore[method-assign]


def compute(module: Any, x: Tensor, act: Act) -> Tensor:
    """Return what a norm and an activation behind it return."""
    import kernels

    how = {"eps": module.eps, "silu": act[0] == "silu", "slope": act[1]}
    if type(module) in GROUP_NORMS:
        return kernels.group_norm_act(x, module.num_groups, module.weight, module.bias, **how)
    running = None
    if module.track_running_stats and module.running_mean is not None:
        module.num_batches_tracked.add_(1)
        running = (module.running_mean, module.running_var, module.momentum)
    return kernels.batch_norm_act(x, module.weight, module.bias, running=running, **how)


class Observed(TorchDispatchMode):
    """Notes the operators that read norms' results."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[int, tuple[nn.Module, Tensor, list[tuple[str, float]]]] = {}
        self.uses: defaultdict[nn.Module, list[list[tuple[str, float]]]] = defaultdict(list)

    def note(self, module: nn.Module, y: Tensor) -> Tensor:
        uses: list[tuple[str, float]] = []
        self.uses[module].append(uses)
        self.results[id(y)] = module, y, uses
        return y

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # A gradient within the loss reads what the activation saved.
        is_forward = torch._C._current_autograd_node() is None
        for each in torch.utils._pytree.tree_leaves((args, kwargs or {})) if is_forward else ():
            if isinstance(each, Tensor) and id(each) in self.results:
                slope = float((*args, 0.01)[1]) if name.startswith("leaky_relu") else 0.0
                self.results[id(each)][2].append((name.rstrip("_"), slope))
                if name.endswith("_"):  # In place: from here on it is the activation's result.
                    del self.results[id(each)]
        return func(*args, **(kwargs or {}))

    def list_acts(self) -> dict[nn.Module, Act]:
        """Return the norms whose results one activation reads and nothing else, alike in all calls."""
        acts = {}
        for module, calls in self.uses.items():
            # SiLU in place keeps a copy of its input.
            alone = [uses[1:] if [name for name, _ in uses] == ["clone", "silu"] else uses for uses in calls]
            first = alone[0]
            if len(first) == 1 and all(each == first for each in alone):
                name, slope = first[0]
                if name in ("silu", "relu", "leaky_relu"):
                    acts[module] = ("silu" if name == "silu" else "leaky_relu", slope)
        return acts


class Run(TorchFunctionMode):
    """A loss in which norms compute their activations: these return their argument."""

    def __init__(self, acts: dict[nn.Module, Act]) -> None:
        super().__init__()
        self.acts, self.pending = acts, {}  # type: ignore[var-annotated]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.pending:
            if func in ACTS and args and id(args[0]) in self.pending:
                return self.pending.pop(id(args[0]))
            inputs = torch.utils._pytree.tree_leaves((args, kwargs or {}))
            reads = any(id(each) in self.pending for each in inputs)
            result = func(*args, **(kwargs or {}))
            if reads and isinstance(result, (Tensor, tuple, list)) and not isinstance(result, torch.Size):
                name = getattr(func, "__name__", func)
                raise RuntimeError(f"a norm's result is read by {name} here, and was by its activation alone")
            return result
        return func(*args, **(kwargs or {}))

    def refuse_pending(self) -> None:
        """Raise RuntimeError if an activation that was seen before did not come."""
        if self.pending:
            raise RuntimeError(
                "the activation behind a norm was there in the first run, and is not in this one"
            )


# ---- weights -------------------------------------------------------------------------------------------------------


class NormedWeight(NamedTuple):
    """A layer's weight with weight norm over rows: its direction v and length g, and the object that computes it."""

    v: nn.Parameter
    g: nn.Parameter
    owner: Any  # of PyTorch's parametrizations, or of its older hooks
    method: str  # of the owner, which returns the weight


def list_normed(network: nn.Module) -> list[NormedWeight]:
    """Return the weights of a network with weight norm of `dim=0`, of either kind, that lie row by row in memory."""
    found = []
    for module in network.modules():
        for each in getattr(module, "parametrizations", {}).values():
            if len(each) == 1 and type(each[0]) is parametrizations._WeightNorm and each[0].dim == 0:
                found.append(NormedWeight(each.original1, each.original0, each, "forward"))
        for hook in module._forward_pre_hooks.values():
            if type(hook) is WeightNorm and hook.dim == 0:
                v, g = (getattr(module, f"{hook.name}_{letter}") for letter in "vg")
                found.append(NormedWeight(v, g, hook, "compute_weight"))
    layouts = (torch.contiguous_format, torch.channels_last)
    return [
        each
        for each in found
        if any(each.v.is_contiguous(memory_format=how) for how in layouts[: 1 + (each.v.dim() == 4)])
    ]


def list_once(
    networks: Iterable[nn.Module], find: Callable[[nn.Module], list[Any]], key: Callable[[Any], Any]
) -> list[list[Any]]:
    """Return what `find` finds in each network, without what an earlier one shares with it."""
    seen: set[int] = set()
    found = []
    for network in networks:
        found.append([each for each in find(network) if id(key(each)) not in seen])
        seen |= {id(key(each)) for each in found[-1]}
    return found


class GroupedWeights:
    """The weights with weight norm of a step's networks, made for a whole loss at a time.

    Attributes:
        used: phase -> the weights that its loss reads, by network.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self.layers = list_once(networks, list_normed, lambda each: each.owner)
        self.used: dict[str, list[list[NormedWeight]]] = {}
        self.seen: set[int] = set()
        self.made: dict[int, Tensor] = {}
        for layer in (each for layers in self.layers for each in layers):
            setattr(layer.owner, layer.method, self._reader(layer, getattr(layer.owner, layer.method)))

    def _reader(self, layer: NormedWeight, inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def read(*args: Any) -> Tensor:
            self.seen.add(id(layer.v))
            made = self.made.get(id(layer.v))
            return inner(*args) if made is None else made

        return read

    def make(self, phase: str) -> None:
        """Make the weights that the loss of a phase reads. They are there until `clear`, for blocks that run again."""
        import kernels

        self.clear()
        for layers in self.used.get(phase, []):
            with torch.enable_grad():
                made = kernels.weight_norm([each.v for each in layers], [each.g for each in layers])
            self.made |= {id(each.v): weight for each, weight in zip(layers, made, strict=True)}

    def clear(self) -> None:
        """Let layers compute their weights themselves again."""
        self.made = {}

    def note(self, phase: str) -> None:
        """Take the weights that were read since the last call as those of a phase."""
        used = [[each for each in layers if id(each.v) in self.seen] for layers in self.layers]
        self.used[phase], self.seen = [layers for layers in used if layers], set()


def list_spectral(network: nn.Module) -> list[Any]:
    """Return the parametrized weights of a network with spectral norm in training, as PyTorch's defaults have it."""
    found = [each for m in network.modules() for each in getattr(m, "parametrizations", {}).values()]
    return [each for each in found if len(each) == 1 and is_plain_spectral(each)]


def is_plain_spectral(layer: Any) -> bool:
    """Return whether our kernels do what a parametrization does: a step of the power iteration, and W / sigma."""
    norm = layer[0]
    if type(norm) is not parametrizations._SpectralNorm or layer.original.dim() < 2:
        return False
    return norm.training and (norm.dim, norm.n_power_iterations, norm.eps) == (0, 1, 1e-12)


class GroupedSpectral:
    """The weights with spectral norm of a step's networks, iterated and divided together.

    PyTorch takes a step of the power iteration whenever a layer's weight is read. So does this: when the first layer of
    a group reads its weight for the k-th time in a loss, all layers of the group take their k-th step.

    Attributes:
        groups: phase -> layers of a network that its loss reads equally often.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self.layers = list_once(networks, list_spectral, lambda each: each)
        self.groups: dict[str, list[list[Any]]] = {}
        self.reads: Counter[int] = Counter()  # of layers, in this loss
        # by layer: its group, its place in it, and the group's weights by step
        self.places: dict[int, tuple[list[Any], int, list[list[Tensor]]]] = {}
        for layer in (each for layers in self.layers for each in layers):
            layer.forward = self._reader(layer, layer.forward)

    def _reader(self, layer: Any, inner: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def read() -> Tensor:
            turn, self.reads[id(layer)] = self.reads[id(layer)], self.reads[id(layer)] + 1
            if id(layer) not in self.places or not layer[0].training:
                return inner()
            group, place, made = self.places[id(layer)]
            if turn == len(made):
                made.append(advance(group))
            return made[turn][place]

        return read

    def begin(self, phase: str) -> None:
        """Begin the loss of a phase."""
        self.clear()
        for group in self.groups.get(phase, []):
            made: list[list[Tensor]] = []
            self.places |= {id(layer): (group, k, made) for k, layer in enumerate(group)}

    def clear(self) -> None:
        """Let layers compute their weights themselves again."""
        self.reads, self.places = Counter(), {}

    def note(self, phase: str) -> None:
        """Take the reads since `clear` as those of a phase."""
        self.groups[phase] = []
        for layers in self.layers:
            for count in sorted({self.reads[id(each)] for each in layers} - {0}):
                self.groups[phase].append([each for each in layers if self.reads[id(each)] == count])


def advance(layers: list[Any]) -> list[Tensor]:
    """Take a step of the power iteration for each layer, and return the weights."""
    import kernels

    weights, norms = [each.original for each in layers], [each[0] for each in layers]
    us, vs = [each._u for each in norms], [each._v for each in norms]
    kernels.power_iteration([each.detach() for each in weights], us, vs)
    kept = torch.cat([*us, *vs]).split([len(each) for each in (*us, *vs)])  # the next step writes u and v
    with torch.enable_grad():
        return kernels.spectral_norm(weights, kept[: len(us)], kept[len(us) :])
