"""A training step's state: the contents of a checkpoint, and the way back.

Everything is loaded in place: captured graphs keep the addresses that they have recorded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stylegan_lite.step.phases import Phases


def state_dict(step: Phases) -> dict[str, Any]:
    """Return the state; see ``TrainingStep.state_dict``."""
    return {
        "count": step.count,
        "workload": step.workload.to_dict() | {"data": None},
        **{name: module.state_dict() for name, module in modules(step).items()},
        **{f"opt_{name}": _optimizer_state(optimizer) for name, optimizer in step.optimizers.items()},
        **step.state,
        "scales": {name: scale.state_dict() for name, scale in step.scales.items()},
        "loss": step.loss,  # an update that FP16 skips records the loss before
        "rng": _rng(step.device),
        "data": step.feed.state_dict(),
    }


def modules(step: Phases) -> dict[str, torch.nn.Module]:
    """Return the networks and their averages, by the names that they have in a state."""
    return {**step.networks, **{f"{name}_ema": average for name, average in step.averages.items()}}


def refuse_other(step: Phases, saved: Any) -> None:
    """Raise ValueError unless this is a step's state with networks like this step's."""
    optimizers = [f"opt_{name}" for name in step.optimizers]
    needed = [*modules(step), *optimizers, *step.state, "data", "count", "rng"]
    if lacks := [key for key in needed if not isinstance(saved, dict) or key not in saved]:
        raise ValueError(f"state must be what a step's state_dict() gave, this lacks {', '.join(lacks)}")
    for name, module in modules(step).items():
        own, theirs = module.state_dict(), saved[name]
        for key in (*own, *(key for key in theirs if key not in own)):
            shapes = [tuple(each[key].shape) if key in each else "not there" for each in (own, theirs)]
            if shapes[0] != shapes[1]:
                raise ValueError(f"state of another workload: {name}.{key} is {shapes[1]}, here {shapes[0]}")


def load_state_dict(step: Phases, saved: dict[str, Any]) -> None:
    """Load the state of a prepared step; see ``TrainingStep.load_state_dict``."""
    load_model(step, saved)
    step.feed.load_state_dict(saved["data"])
    for phase, loss in saved.get("loss", {}).items():  # Older checkpoints have no losses.
        step.loss[phase].copy_(loss)
    step.count, step.updating = saved["count"], False
    _set_rng(step.device, saved["rng"])


def load_model(step: Phases, saved: dict[str, Any]) -> None:
    """Load networks, optimizers, the pair's state and loss scales, but not data, count and random state."""
    for name, module in modules(step).items():
        module.load_state_dict(saved[name])
    for name, optimizer in step.optimizers.items():
        load_optimizer(optimizer, saved[f"opt_{name}"])
    for name, tensor in step.state.items():
        tensor.copy_(saved[name])
    # A checkpoint of another precision has no scales: they begin anew.
    for name, scale in step.scales.items():
        if name in saved.get("scales", {}):
            scale.load_state_dict(saved["scales"][name])


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[int, dict[str, Tensor]]) -> None:
    """Put an optimizer's state, by number of the parameter, in place. Tensors that ``saved`` lacks become 0."""
    for k, (parameter, group) in enumerate(_parameters(optimizer)):
        if k in saved and not optimizer.state.get(parameter):  # Every update so far was skipped (FP16).
            place = parameter.device if group.get("capturable") or group.get("fused") else "cpu"
            optimizer.state[parameter] = {
                name: (torch.zeros((), device=place) if name == "step" else torch.zeros_like(parameter))
                if isinstance(value, Tensor)
                else value
                for name, value in saved[k].items()
            }
        for name, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                if k in saved:
                    optimizer.state[parameter][name] = saved[k][name]
            elif k in saved:
                value.copy_(saved[k][name])
            else:
                value.zero_()


def _parameters(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, dict[str, Any]]]:
    return [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]


def _optimizer_state(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    parameters = [parameter for parameter, _ in _parameters(optimizer)]
    return {k: dict(optimizer.state[p]) for k, p in enumerate(parameters) if optimizer.state.get(p)}


def _rng(device: str) -> Tensor:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def _set_rng(device: str, saved: Tensor) -> None:
    saved = saved.cpu()
    torch.cuda.set_rng_state(saved) if device == "cuda" else torch.set_rng_state(saved)
