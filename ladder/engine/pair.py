"""The inspection of a user's pair, before anything is measured: what it is, which rungs apply, and what it does wrong.

A loss must be a pure function of its inputs: a CUDA graph replays it, and parity runs it again on other numbers. So
each phase runs a few times under a dispatch mode, which sees what a loss must not do, and where it does it.
"""

from __future__ import annotations

import contextlib
import copy
import random
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.double_backward import fast_double_backward
from kernels.linear import grouped
from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS
from ladder.receipts import share
from ladder.receipts.watch import Watch
from ladder.rungs.channels_last import REACHED
from stylegan_lite import make_step
from stylegan_lite.config import ConfigError, PairWorkload
from stylegan_lite.step import Input, Phase, TrainingStep, loading, saving
from stylegan_lite.step.fused import BATCH_NORMS, can_fuse, list_normed, list_spectral
from stylegan_lite.step.pair import HALVES
from stylegan_lite.step.phases import is_adam

PRODUCTS = ("convolution", "mm", "addmm", "bmm", "baddbmm")
RUNS = 3  # of each phase, on other numbers each time
SAME = {"cpu": 1e-6, "cuda": 1e-4}  # by which share a loss may differ on equal inputs: sums in another order
MEMBERS = ("networks", "phases", "averages", "inputs", "loss", "optimizer")
SOURCES = ("normal", "uniform", "labels", "images", "batch", "index")
# Names of a step's own state and of parity's quantities, and what else a loss finds among its inputs.
TAKEN = ("count", "workload", "scales", "loss", "rng", "data", "ema", "betas")
OF_INPUTS = (
    "batch",
    "declared",
    "normal",
    "whole",
    "index",
    "is_drawn",
    "fill",
    "take",
    "load",
    "load_share",
)
COPIED = {
    Tensor.tolist: ".tolist()",
    Tensor.numpy: ".numpy()",
    Tensor.cpu: ".cpu()",
    Tensor.__array__: "a conversion to NumPy",
    Tensor.__repr__: "printing a tensor",
    Tensor.__format__: "printing a tensor",
}
WAITS = {
    "_local_scalar_dense": ".item()",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
}


def describe_pair(
    model: Sequence[str], settings: Plain, device: str, seed: int, repository: list[str] | None = None
) -> Plain:
    """Return what a pair is, and what its rungs depend on, as plain data.

    Raises ConfigError, one line with file and line of the user's code, for a pair that cannot be measured.
    """
    folder, where = model[0], f"{model[1]}:{model[2]}"
    blank = PairWorkload("", list(model), dict(settings), batch=1, repository=repository)
    torch.manual_seed(seed)
    pair, digest = loading.make_pair(blank)
    try:
        check_members(pair, where)
        torch.manual_seed(seed)
        refuse_difference(pair, loading.make_pair(blank)[0], where)
        declared = {phase.name: pair.inputs(phase.name) for phase in pair.phases}
        check_inputs(pair, declared, where)
        batch, resolution = loading.measure_sizes(pair)
        fields: Plain = {
            "pair": digest,
            "model": list(model),
            "settings": dict(settings),
            "batch": batch,
            "resolution": resolution,
            "repository": repository,
        }
        step = make_step(fields, {}, device=device, seed=seed)
        try:
            facts = list_facts(step) | check_losses(step, folder)
        finally:
            step.close()
        refuse_single(fields, device, seed)
        facts["conv2d"] = facts["conv2d"] or find_layout_problem(fields, device, seed)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(loading.locate(error, folder, where)) from error
    return {"fields": fields, "facts": facts}


def list_inputs(declared: Plain) -> Iterator[tuple[str, str, Input]]:
    """Yield (phase, name, input) of all phases, each of a list, too."""
    for phase, inputs in declared.items():
        for name, each in inputs.items():
            yield from ((phase, name, one) for one in ([each] if isinstance(each, Input) else each))


# --- what a pair is ---------------------------------------------------------------------------------------------------


def check_members(pair: Any, where: str) -> None:
    """Raise ConfigError if an object lacks what a pair must have, or has it in another form."""
    if lacks := [name for name in MEMBERS if not hasattr(pair, name)]:
        raise ConfigError(
            f"{where} returned {type(pair).__name__} without {lacks[0]!r}, which a pair must have"
        )
    for name, kinds in (("phases", (list, tuple)), ("averages", Mapping)):
        if not isinstance(getattr(pair, name), kinds):
            raise ConfigError(f"{where}: {name} must be a {'dict' if kinds is Mapping else 'list'}")
    networks, phases = pair.networks, list(pair.phases)
    if not isinstance(networks, (dict, nn.ModuleDict)) or not all(
        isinstance(each, nn.Module) for each in networks.values()
    ):
        raise ConfigError(f"{where}: networks must be a dict of modules by name")
    if not phases or not all(isinstance(phase, Phase) for phase in phases):
        raise ConfigError(f"{where}: phases must be a list of stylegan_lite.step.Phase, one or more")
    names = [phase.name for phase in phases]
    for name in (*networks, *names):
        if (
            not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,47}", str(name))
            or name in TAKEN
            or name.endswith("_ema")
        ):
            raise ConfigError(
                f"{where}: the name {name!r} of a network or phase is taken or no identifier in ASCII; rename it"
            )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{where}: two phases are called {twice!r}")
    for phase in phases:
        check_phase(phase, networks, where)
    if all(phase.is_lazy for phase in phases):
        raise ConfigError(f"{where}: no phase is of every step")
    for name, images in dict(pair.averages).items():
        if name not in networks or not isinstance(images, (int, float)) or not images > 0:
            raise ConfigError(
                f"{where}: averages must give a network of networks its half-life in images, above 0"
            )
    inside = {id(networks), *(id(each) for network in networks.values() for each in network.modules())}
    for name, each in [*getattr(pair, "__dict__", {}).items(), *getattr(pair, "_modules", {}).items()]:
        if isinstance(each, nn.Module) and id(each) not in inside and [*each.parameters(), *each.buffers()]:
            raise ConfigError(
                f"{where}: {name} has weights and is in none of networks, so it stays on its device; name it there"
            )
    trained = dict.fromkeys(phase.network for phase in phases)
    owners: dict[int, str] = {}
    for network, weight in ((each, weight) for each in networks for weight in networks[each].parameters()):
        if owners.setdefault(id(weight), network) != network:
            both = f"networks {owners[id(weight)]} and {network}"
            raise ConfigError(f"{where}: {both} share a weight: give it to one of them alone")
    for name in trained:
        optimizer, own = pair.optimizer(name), {id(weight) for weight in networks[name].parameters()}
        if not isinstance(optimizer, torch.optim.Optimizer):
            got = type(optimizer).__name__
            raise ConfigError(
                f"{where}: optimizer({name!r}) must return one of torch's optimizers, got {got}"
            )
        if any(id(weight) not in own for group in optimizer.param_groups for weight in group["params"]):
            raise ConfigError(f"{where}: optimizer({name!r}) updates weights that are not of network {name}")
    for name, network in networks.items():
        if other := {str(p.device) for p in network.parameters() if p.device.type != "cpu"}:
            raise ConfigError(
                f"{where}: network {name} is on {other.pop()}; leave it on the CPU: the step moves it"
            )


def check_phase(phase: Phase, networks: dict[str, nn.Module], where: str) -> None:
    """Raise ConfigError for a phase that cannot run."""
    if phase.network not in networks:
        raise ConfigError(
            f"{where}: phase {phase.name} trains {phase.network!r}, which networks does not name"
        )
    if phase.every < 1 or CYCLE_STEPS % phase.every:
        raise ConfigError(
            f"{where}: phase {phase.name}: every must be 1, 2, 4, 8 or 16 (a cycle has {CYCLE_STEPS} steps), got "
            f"{phase.every}; a network that learns five times a step has five phases"
        )
    if not any(weight.requires_grad for weight in networks[phase.network].parameters()):
        raise ConfigError(f"{where}: network {phase.network} has no weights to train")


def check_inputs(pair: Any, declared: Plain, where: str) -> None:
    """Raise ConfigError for inputs that cannot be made."""
    shapes: dict[str, Any] = {}
    for phase, inputs in declared.items():
        if not isinstance(inputs, Mapping):
            raise ConfigError(f"{where}: inputs({phase!r}) must return a dict, got {type(inputs).__name__}")
    for phase, name, one in list_inputs(declared):
        place = f"{where}: input {name!r} of {phase}"
        if name in OF_INPUTS or not str(name).isidentifier():
            raise ConfigError(f"{place}: the name is taken or no identifier; rename it")
        if not isinstance(one, Input) or one.source not in SOURCES:
            raise ConfigError(f"{place}: expected an Input with a source of {', '.join(SOURCES)}")
        if not isinstance(one.shape, (tuple, list)) or not all(type(n) is int and n > 0 for n in one.shape):
            raise ConfigError(
                f"{place}: its shape must be a tuple of whole numbers above 0, got {one.shape!r}"
            )
        if one.source == "labels" and one.classes < 1:
            raise ConfigError(f"{place}: labels need classes, their number")
        if one.source == "images" and (
            len(one.shape) != 4 or one.shape[1] != 3 or one.shape[2] != one.shape[3]
        ):
            raise ConfigError(f"{place}: images are [N, 3, R, R], got {list(one.shape)}")
        if one.source in ("images", "batch"):
            key = "images" if one.source == "images" else name
            if shapes.setdefault(key, (one.shape, one.dtype)) != (one.shape, one.dtype):
                raise ConfigError(
                    f"{place}: another phase has it in another shape or dtype; they share one batch"
                )
    if not any(one.batch for _, _, one in list_inputs(declared)):
        raise ConfigError(f"{where}: no input has a batch, a first dimension of samples")
    own = {name: shape for name, (shape, _) in shapes.items() if name != "images"}
    if own and "images" in shapes:
        raise ConfigError(f"{where}: a pair reads the workload's images or a batch of its own, not both")
    if own and not hasattr(pair, "batch"):
        raise ConfigError(
            f"{where}: input {next(iter(own))!r} is of the pair's own batch, and it has no batch(number)"
        )
    first, again = (pair.batch(0), pair.batch(0)) if own else ({}, {})
    for name, shape in own.items():
        value = first.get(name) if isinstance(first, dict) else None
        if not isinstance(value, Tensor) or tuple(value.shape) != tuple(shape):
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"{where}: batch(0)[{name!r}] must be a tensor of shape {list(shape)}, got {got}"
            )
        if not torch.equal(value, again[name]):
            raise ConfigError(
                f"{where}: batch(0) gives other numbers each time; it must be a function of its number"
            )


def refuse_difference(first: Any, second: Any, where: str) -> None:
    """Raise ConfigError if two pairs of one seed differ."""
    others = dict(second.networks.items())
    for name, network in first.networks.items():
        other = others.get(name)
        theirs = {} if other is None else other.state_dict()
        for key, value in network.state_dict().items():
            if isinstance(value, Tensor) and not (key in theirs and torch.equal(value, theirs[key])):
                raise ConfigError(
                    f"{where}: two calls with one seed differ in {name}.{key}: draw its numbers from torch's generator"
                )
    if [*first.phases] != [*second.phases]:
        raise ConfigError(f"{where}: two calls with one seed have other phases")


# --- what its losses do -----------------------------------------------------------------------------------------------


class Purity(TorchDispatchMode):
    """Notes what a loss does that it must not do, with the line of the user's code, and the shapes of all results."""

    def __init__(self, weights: dict[int, str], folder: str) -> None:
        super().__init__()
        self.weights, self.folder = weights, folder
        self.problem: str | None = None
        self.branch: str | None = None
        self.deciding = self.differentiates = False
        self.shapes: list[tuple[str, list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and self.deciding:
            self.branch = self.branch or self.line()
        elif name in ("index", "index_put_") and any(_is_mask(each) for each in args[1]):
            self.note("a mask as an index waits for the device in every step")
        elif name in WAITS:
            self.note(f"{WAITS[name]} waits for the device in every step")
        elif name in PRODUCTS and any(
            isinstance(each, Tensor) and each.dtype in HALVES.values() for each in args
        ):
            self.note(f"{name} computes in half precision by itself: leave autocast to the step")
        elif torch._C._current_autograd_node() is not None:
            self.differentiates |= torch.is_grad_enabled()  # with create_graph, as a gradient penalty does
        elif func._schema.is_mutable:
            if hit := self.find_weight(func, args):
                self.note(f"{name} changes the weight {hit} in place: only the step updates weights")
        may_draw = (
            torch.Tag.nondeterministic_seeded in func.tags
        )  # attention may, too, and does not without dropout
        before = read_torch_generators() if may_draw else []
        out = func(*args, **(kwargs or {}))
        if may_draw and ((kwargs or {}).get("generator") or before != read_torch_generators()):
            self.note(f"{name} draws random numbers: declare them as an Input, so that every step draws anew")
        if name in ("_to_copy", "copy_") and {"cpu", "cuda"} == {
            t.device.type for t in (out, args[name == "copy_"])
        }:
            self.note(
                "a copy between CPU and GPU waits in every step: make such tensors buffers of a network"
            )
        if isinstance(out, Tensor):
            self.shapes.append((name, list(out.shape)))
        return out

    def find_weight(self, func: Any, args: Any) -> str | None:
        """Return the name of a weight that an operator writes to, or None."""
        for value, argument in zip(args, func._schema.arguments, strict=False):
            if argument.is_write:
                for each in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(each, Tensor) and each.data_ptr() in self.weights:
                        return self.weights[each.data_ptr()]
        return None

    def note(self, what: str) -> None:
        self.problem = self.problem or f"{self.line()}{what}"

    def line(self) -> str:
        return loading.find_line(traceback.extract_stack(), self.folder)


class Deciding(TorchFunctionMode):
    """Tells a branch on a tensor's value, which only a graph forbids, from another wait for the device.

    It also sees the waits that cost nothing on a CPU.
    """

    def __init__(self, purity: Purity) -> None:
        super().__init__()
        self.purity = purity

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.purity.deciding = func is Tensor.__bool__
        if func in COPIED:
            self.purity.note(f"{COPIED[func]} waits for the device in every step")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.purity.deciding = False


def check_losses(step: TrainingStep, folder: str) -> Plain:
    """Run each phase's loss and backward a few times. Return the facts that this shows, as `list_facts` does.

    Raises ConfigError for the first thing that a loss must not do. The step is left as it was.
    """
    before = copy.deepcopy(step.state_dict())
    branches, served = [], 0
    for phase in step.order:
        with fast_double_backward() as use:
            branches.append(check_phase_loss(step, phase, folder))
        served += use.calls * step.kinds[phase].twice
    once = "no phase says Phase(..., twice=True), whose loss holds a gradient of its own"
    if any(each.twice for each in step.kinds.values()):
        once = "no convolution is differentiated twice"
    branch = next((branch for branch in branches if branch), None)
    for phase in step.order:
        try:
            step.run_phase(phase)
        except Exception as error:
            where = loading.find_definition(step.pair.optimizer, folder)
            raise ConfigError(f"{where}the update of {phase}: {loading.locate(error, folder)}") from error
    moved = (
        f"{name}.{key}"
        for name, network in step.networks.items()
        for key, buffer in network.named_buffers()
        if not torch.equal(buffer, before[name].get(key, buffer))
    )
    first = next(moved, None)
    saving.load_model(step, before)
    return {
        "double_backward": None if served else once,
        "graphs": None if branch is None else f"{branch}a branch on a tensor's value cannot be captured",
        "split": None
        if first is None
        else f"{first} moves in every forward pass, so parts are another algorithm",
    }


def check_phase_loss(step: TrainingStep, phase: str, folder: str) -> str | None:
    """Run one phase's loss and backward a few times. Return where it branches on a tensor's value, or None."""
    define = loading.find_definition(step.pair.loss, folder)
    networks = step.networks.items()
    weights = {p.data_ptr(): f"{name}.{key}" for name, each in networks for key, p in each.named_parameters()}
    branch, shapes = None, None
    buffers = [buffer for _, each in networks for buffer in each.buffers()]
    for number in range(RUNS):
        step.feed.next()
        step._fill(phase)
        step._free(phase)
        before = [buffer.clone() for buffer in buffers]
        purity, outside = Purity(weights, folder), read_generators()
        try:
            with purity, Deciding(purity):
                loss = step._loss(phase)
        except Exception as error:
            raise ConfigError(purity.problem or f"{loading.locate(error, folder)} (phase {phase})") from error
        if purity.problem is None and outside != read_generators():
            purity.problem = f"{define}the loss draws random numbers of its own: declare them as an Input"
        if purity.problem:
            raise ConfigError(f"{purity.problem} (phase {phase})")
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"{define}the loss of {phase} must be a scalar tensor, got {got}")
        if other := find_replaced(step, weights):
            raise ConfigError(
                f"{define}the loss of {phase} replaces the weight {other}: only the step updates weights"
            )
        if purity.differentiates and not step.kinds[phase].twice:
            own = f"holds a gradient of its own: declare Phase({phase!r}, {step.owners[phase]!r}, twice=True)"
            raise ConfigError(f"{define}the loss of {phase} {own}")
        if not bool(loss.isfinite()):
            raise ConfigError(f"{define}the loss of {phase} is {float(loss.detach())} in the first step")
        if shapes not in (None, purity.shapes) and not purity.branch:
            both = zip(shapes, [*purity.shapes, ("", [])], strict=False)
            was, now = next(pair for pair in both if pair[0] != pair[1])
            change = f"changes shapes between steps: {was[0]} {was[1]}, then {now[1]}"
            raise ConfigError(f"{define}the loss of {phase} {change}")
        branch, shapes = branch or purity.branch, purity.shapes
        check_gradients(step, phase, loss, folder)
        if number == 0:
            first = float(loss.detach())
            torch._foreach_copy_(buffers, before) if buffers else None
            again = float(step._loss(phase).detach())
            if abs(first - again) > SAME[step.device] * max(abs(first), abs(again)):
                change = f"is {first:g}, then {again:g} on the same inputs: it must depend on nothing else"
                raise ConfigError(f"{define}the loss of {phase} {change}")
    return branch


def find_replaced(step: TrainingStep, weights: dict[int, str]) -> str | None:
    """Return the name of a weight that is no longer where it was, or None."""
    there = {p.data_ptr() for each in step.networks.values() for p in each.parameters()}
    return next((name for at, name in weights.items() if at not in there), None)


def read_generators() -> list[Any]:
    """Return the states of the random generators that a loss might draw from."""
    return [random.getstate(), np.random.get_state()[1].tobytes(), *read_torch_generators()]  # type: ignore[union-attr]


def read_torch_generators() -> list[bytes]:
    """Return the states of PyTorch's default generators."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return [state.numpy().tobytes() for state in states]


def check_gradients(step: TrainingStep, phase: str, loss: Tensor, folder: str) -> None:
    """Raise ConfigError if backward fails, or gives the network that the phase trains nothing, or NaN."""
    define, network = loading.find_definition(step.pair.loss, folder), step.owners[phase]
    lacks = f"{define}the loss of {phase} gives network {network} no gradient, and is to train it"
    if not loss.requires_grad:
        raise ConfigError(lacks)
    try:
        loss.backward()
    except Exception as error:
        raise ConfigError(
            f"{define}backward of the loss of {phase}: {loading.locate(error, folder)}"
        ) from error
    gradients = [weight.grad for weight in step.weights[network] if weight.grad is not None]
    if not any(bool(gradient.any()) for gradient in gradients):
        raise ConfigError(lacks)
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        raise ConfigError(f"{define}a gradient of {phase} is NaN or infinite in the first step")
    for weight in step.weights[network]:
        weight.grad = None


# --- which rungs apply ------------------------------------------------------------------------------------------------

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
OTHERS = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose3d)


def list_facts(step: TrainingStep) -> Plain:
    """Return what decides which rungs apply: {what a rung may need: None, or one line why it is not there}."""
    modules = [each for name in step.optimizers for each in step.networks[name].modules()]
    others = sorted({type(each).__name__ for each in modules if isinstance(each, OTHERS)})
    foreign = [type(each).__name__ for each in step.optimizers.values() if not is_adam(each)]
    left = f", and {', '.join(others)} have no such layout" if others else ""
    flat = f"it has no two-dimensional convolutions to lay out{left}"
    once = [phase.network for phase in step.pair.phases if not phase.twice]
    has = hasattr(step.pair, "blocks")
    blocks = None if has else "it has no blocks(network) that could run once more"
    if has and not any([*step.pair.blocks(name)] for name in once):
        blocks = "no network of a phase that is differentiated once has blocks"
    kinds = {type(each) for network in step.networks.values() for each in network.modules() if can_fuse(each)}
    return {
        "fused_group_norm": None if nn.GroupNorm in kinds else "its networks have no nn.GroupNorm",
        "fused_batch_norm": None
        if kinds & {*BATCH_NORMS}
        else "its networks have no nn.BatchNorm that takes the batch's statistics and has a momentum",
        "fused_spectral_norm": None
        if any(list_spectral(network) for network in step.networks.values())
        else "no layer of its networks has parametrizations.spectral_norm with its defaults",
        "fused_weight_norm": None
        if any(list_normed(network) for network in step.networks.values())
        else "no layer of its networks has weight norm with dim=0",
        "fused_grouped_conv": None
        if any(map(is_grouped, modules))
        else "its networks have no nn.Conv2d of 3x3 pixels in groups of 8, 16 or 32 channels",
        "images": None if step.real is not None else "it reads none of the workload's images",
        "loading": None if step.real is not None or step.data else "it reads no data",
        "compile": None
        if once
        else "each of its phases is differentiated twice, which no compiled loss can be",
        "adam": f"its optimizer is {foreign[0]}, no Adam" if foreign else None,
        "blocks": blocks,
        "conv2d": None if any(isinstance(each, CONVOLUTIONS) for each in modules) else flat,
        "phases": [f"{each.name} trains {each.network}" for each in step.pair.phases],
        "takes": loading.list_settings(step.workload),
        "weights": {name: sum(p.numel() for p in each.parameters()) for name, each in step.networks.items()},
    }


def is_grouped(module: nn.Module) -> bool:
    """Return whether this is a convolution that the rung `grouped_conv` is about."""
    if not isinstance(module, nn.Conv2d) or module.groups == 1 or module.in_channels != module.out_channels:
        return False
    slides = (module.kernel_size, module.stride, module.dilation) == ((3, 3), (1, 1), (1, 1))
    pads = module.padding in ((1, 1), "same") and module.padding_mode == "zeros"
    return slides and pads and module.in_channels // module.groups in grouped.GROUPS


def find_layout_problem(fields: Plain, device: str, seed: int) -> str | None:
    """Return why channels_last does not reach a pair's convolutions, or None. Its losses run once with it.

    PyTorch's GroupNorm makes NCHW of it on a GPU. The rung below `channels_last` replaces that.
    """
    watch = Watch()
    run_losses(fields, {"channels_last": True, "fused_group_norm": device == "cuda"}, device, seed, watch)
    reached = share(watch.inputs["forward"], "nhwc", of=("nhwc", "nchw", "other"))
    if reached > REACHED[False]:
        return None
    return f"its convolutions get only {reached:.0%} of their images in that layout: what is before them makes another"


def refuse_single(fields: Plain, device: str, seed: int) -> None:
    """Raise ConfigError if a pair's losses cannot run in FP64, where parity's reference does."""
    try:
        run_losses(fields, {"precision": "fp64"}, device, seed, contextlib.nullcontext())
    except torch.OutOfMemoryError:
        return  # the reference is made on the CPU
    except Exception as error:
        where = loading.locate(error, fields["model"][0])
        raise ConfigError(
            f"{where} (in FP64, as parity's reference: give constants the dtype of inputs)"
        ) from error


def run_losses(
    fields: Plain, recipe: Plain, device: str, seed: int, around: contextlib.AbstractContextManager
) -> None:
    """Run the loss of each phase once by a recipe, in a context."""
    step = make_step(fields, recipe, device=device, seed=seed)
    try:
        step.observe_norms()
        for phase in step.order:
            step.feed.next()
            step._fill(phase)
            step._free(phase)
            with around:
                step._loss(phase)
    finally:
        step.close()


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
