"""Adam's state in parity: how far a phase moved moments and step counts, and how far it should have.

The expected move follows from the gradients and the state that the reference holds anyway (Kingma & Ba 2015,
arXiv:1412.6980, in float64). So it is computed where it is compared, and takes no room in the cache. A test compares
it with torch.optim.Adam in FP64.

A parameter whose gradient is all zeros may also have no gradient (``set_to_none``). Adam then skips it instead of
decaying its moments by a step. The parameter's own step count tells which of the two was done, and the moments must
agree.

Without momentum (beta1 = 0, as in StyleGAN2) the first moment is the last gradient, which is judged itself. No update
reads the moment, so an optimizer need not write it, and it is not judged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
STEPS = "steps"  # one tensor [parameters], so that the host waits for the GPU once and not for every count
QUANTITIES = (*MOMENTS, STEPS)

Tensors = dict[str, Tensor]
Moments = dict[str, Tensors]  # quantity -> name -> tensor


# The shared state: networks, averages, optimizers ("opt_NAME": number of a parameter -> its state) and the pair's own
# tensors, by the names of a step's state; "betas" has the decays of each Adam that is judged.
State = dict[str, Any]


def list_judged(beta1: float) -> tuple[str, ...]:
    """Return the moments that a later update reads."""
    return MOMENTS if beta1 else MOMENTS[1:]


def clone_states(step: Any) -> dict[str, Moments]:
    """Return {network: a copy of its Adam's state}, with zeros for a state that does not exist yet."""
    return {
        net: {quantity: {name: t.clone() for name, t in named.items()} for quantity, named in moments.items()}
        for net, moments in _read_state(step).items()
    }


def measure_moves(step: Any, before: dict[str, Moments]) -> dict[str, Moments]:
    """Return how far each moment and count moved since ``before``, in its own dtype."""
    return {
        net: {
            quantity: {name: t - before[net][quantity][name] for name, t in named.items()}
            for quantity, named in moments.items()
        }
        for net, moments in _read_state(step).items()
    }


def expect_moves(state: State, net: str, gradients: list[Tensors], counted: Tensor) -> Moments:
    """Return how far updates with these gradients, one after the other, move the moments of ``state``.

    ``counted`` [parameters] is how often the judged step updated each parameter. It decides for parameters whose
    gradients are zeros, and for no others.
    """
    saved = state[f"opt_{net}"]
    beta1, beta2 = state["betas"][net]
    names = list(gradients[0])
    there = [torch.stack([g[name].any() for name in names]).tolist() for g in gradients]
    needed = torch.tensor(there).sum(0).tolist()
    moves: Moments = {quantity: {} for quantity in list_judged(beta1)}
    counts = counted.nan_to_num().tolist()
    steps = []
    for k, name in enumerate(names):
        done = min(max(round(counts[k]), needed[k]), len(gradients))
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
        move = {"exp_avg": m - first, "exp_avg_sq": v - second}
        for quantity, named in moves.items():
            named[name] = move[quantity].float()
        steps.append(float(done))
    return moves | {STEPS: {STEPS: torch.tensor(steps)}}


def passed_over(state: State, net: str, seen: list[Tensors], exact: list[Tensors]) -> tuple[Moments, Moments]:
    """Return how far the measured and the exact gradients would move the moments if Adam skipped all that it may.

    A rung may give None where plain PyTorch gives zeros. Zeros make the moments decay exactly, and this decay is most
    of the biases' movement where most biases get zeros (path length). Beside it the other tensors' rounding is small;
    if Adam skips the parameter it is not. The same holds for moments left by an earlier phase of the same step.
    """
    never = torch.zeros(len(exact[0]))
    ours, theirs = (
        {what: named for what, named in expect_moves(state, net, gradients, never).items() if what != STEPS}
        for gradients in (seen, exact)
    )
    return ours, theirs


def read_betas(step: Any) -> dict[str, tuple[float, float]]:
    """Return the decays of each network's Adam, of those whose moments are means of the gradients themselves."""
    return {
        name: tuple(optimizer.param_groups[0]["betas"])
        for name, optimizer in step.optimizers.items()
        if _is_judged(step, name, optimizer)
    }


def _is_judged(step: Any, name: str, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether it is one Adam of all the network's weights, in their order, without a decay in its gradients."""
    if not isinstance(optimizer, torch.optim.Adam) or len(optimizer.param_groups) != 1:  # AdamW is one
        return False
    group = optimizer.param_groups[0]
    decays = group["weight_decay"] and not group.get("decoupled_weight_decay")
    same = [id(p) for p in group["params"]] == [id(p) for p in step.weights[name]]
    return same and not (decays or group["amsgrad"] or group["maximize"])


def _read_state(step: Any) -> dict[str, Moments]:
    states: dict[str, Moments] = {}
    for net, decays in read_betas(step).items():
        own, state = {id(p) for p in step.weights[net]}, step.optimizers[net].state
        named = {name: p for name, p in step.networks[net].named_parameters() if id(p) in own}
        counts = [torch.as_tensor(state[p]["step"] if state.get(p) else 0.0).float() for p in named.values()]
        steps = torch.stack([count.detach().to(counts[0].device) for count in counts])
        states[net] = {STEPS: {STEPS: steps}}
        for moment in list_judged(decays[0]):
            states[net][moment] = {
                name: (state[p][moment] if state.get(p) else torch.zeros_like(p)).detach()
                for name, p in named.items()
            }
    return states
