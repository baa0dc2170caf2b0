"""Adam's state as parity compares it: what a phase moved moments and step counts by, and by what it should have.

What it should have follows from the gradients and the state that the reference holds anyhow (Kingma & Ba 2015,
arXiv:1412.6980, in float64). So it is computed where it is compared, and takes no room in the cache. A test holds it
against torch.optim.Adam in FP64.

Where a parameter's gradient is nothing but zeros, it may also have none (``set_to_none``): Adam then passes it over
instead of decaying its moments by a step. Its own count says which of the two was done, and the moments must agree.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MOMENTS = ("exp_avg", "exp_avg_sq")
STEPS = "steps"  # one tensor [parameters], so that a GPU is waited for once and not for every count
QUANTITIES = (*MOMENTS, STEPS)

Moments = dict[str, dict[str, Tensor]]  # quantity -> name -> tensor


def clones(step: Any) -> dict[str, Moments]:
    """{"G" | "D": a copy of its optimizer's state}; zeros where there is none yet."""
    return {net: _map(_of(*pair), torch.clone) for net, pair in _pairs(step).items()}


def moved(step: Any, before: dict[str, Moments]) -> dict[str, Moments]:
    """What each moment and count moved by since ``before``, in the dtype in which it is kept."""
    return {
        net: {
            quantity: {name: t - before[net][quantity][name] for name, t in named.items()}
            for quantity, named in _of(*pair).items()
        }
        for net, pair in _pairs(step).items()
    }


def expected(state: dict[str, Any], net: str, gradients: list[dict[str, Tensor]], counted: Tensor) -> Moments:
    """What updates with these gradients, one after the other, move the moments of ``state`` by.

    ``counted`` [parameters] is how often the step that is judged updated each. It decides for parameters whose
    gradients are zeros, and for no others.
    """
    saved, (beta1, beta2) = state[f"opt_{net}"], state["betas"][net]
    names = list(gradients[0])
    there = [torch.stack([g[name].any() for name in names]).tolist() for g in gradients]
    needed = torch.tensor(there).sum(0).tolist()
    found: Moments = {quantity: {} for quantity in MOMENTS}
    asked = counted.nan_to_num().tolist()
    steps = []
    for k, name in enumerate(names):
        done = min(max(round(asked[k]), needed[k]), len(gradients))
        idle = done - needed[k]  # updates with zeros
        first, second = (saved[k][moment].to(gradients[0][name].device).double() for moment in MOMENTS)
        m, v = first, second
        for number, each in enumerate(gradients):
            if not there[number][k]:
                if not idle:
                    continue
                idle -= 1
            g = each[name].double()
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g.square()
        found["exp_avg"][name], found["exp_avg_sq"][name] = (m - first).float(), (v - second).float()
        steps.append(float(done))
    return found | {STEPS: {STEPS: torch.tensor(steps)}}


def passed_over(
    state: dict[str, Any], net: str, seen: list[dict[str, Tensor]], exact: list[dict[str, Tensor]]
) -> tuple[Moments, Moments]:
    """What the gradients that were seen and the exact ones move moments by, had Adam passed over all that it may.

    What gives a parameter zeros in plain PyTorch may give it nothing at all in a rung. With zeros its moments decay,
    exactly, and are most of what the biases' move by where most of them get zeros (path length): beside that the
    others' rounding is small, and passed over it is not. Nor is what a phase before, in the same step, left in one.
    """
    made = []
    for gradients in (seen, exact):
        never = torch.zeros(len(gradients[0]))
        found = expected(state, net, gradients, never)
        made.append({quantity: found[quantity] for quantity in MOMENTS})
    return made[0], made[1]


def with_adam(ref: Any, phase: str, exact: Moments, seen: Moments) -> Moments:
    """A phase's outcome of the reference, and by what Adam's state should have moved where this was seen."""
    return exact | expected(ref.state, phase[0], [exact["gradient"]], seen[STEPS][STEPS])


def betas(step: Any) -> dict[str, tuple[float, float]]:
    """Both optimizers' decays."""
    return {net: tuple(optimizer.param_groups[0]["betas"]) for net, (_, optimizer) in _pairs(step).items()}


def _pairs(step: Any) -> dict[str, tuple[nn.Module, torch.optim.Adam]]:
    return {"G": (step.G, step.opt_G), "D": (step.D, step.opt_D)}


def _of(network: nn.Module, optimizer: torch.optim.Adam) -> Moments:
    named, found = dict(network.named_parameters()), optimizer.state
    kept: Moments = {
        moment: {name: _moment(found, p, moment) for name, p in named.items()} for moment in MOMENTS
    }
    counts = [torch.as_tensor(found[p]["step"] if found.get(p) else 0.0).float() for p in named.values()]
    place = counts[0].device
    return kept | {STEPS: {STEPS: torch.stack([count.detach().to(place) for count in counts])}}


def _moment(found: dict[Tensor, dict[str, Tensor]], parameter: Tensor, moment: str) -> Tensor:
    return found[parameter][moment].detach() if found.get(parameter) else torch.zeros_like(parameter).detach()


def _map(tree: Moments, change: Any) -> Moments:
    return {quantity: {name: change(t) for name, t in named.items()} for quantity, named in tree.items()}
