"""Shapley values and pairwise interactions of things that are switched on one after the other, where some orders
are impossible.

A subset holds the things that are on. An order is allowed if all the subsets that it passes are known. The value of a
thing is its mean contribution over all allowed orders. The values sum to the whole difference, because each order
passes from nothing to everything. This is Shapley's value (1953), with constraints on the order as in Faigle and Kern
(1992). All results are sums with known weights. So the error of each follows from the error of one measurement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

Subset = frozenset[str]
Weights = dict[Subset, float]  # of the numbers that were measured; a saving is positive
NOTHING: Subset = frozenset()


def count_orders(
    names: Sequence[str], known: Collection[Subset]
) -> tuple[dict[Subset, int], dict[Subset, int]]:
    """Return, for each known subset, how many allowed orders lead to it, and how many lead on from it to everything."""
    sizes = sorted(known, key=len)
    to: dict[Subset, int] = dict.fromkeys(sizes, 0)
    onward: dict[Subset, int] = dict.fromkeys(sizes, 0)
    for subset in sizes:
        to[subset] = sum(to.get(subset - {name}, 0) for name in subset) if subset else 1
    for subset in reversed(sizes):
        on = sum(onward.get(subset | {name}, 0) for name in names if name not in subset)
        onward[subset] = on if len(subset) < len(names) else 1
    return to, onward


def count_all(names: Sequence[str], known: Collection[Subset]) -> int:
    """Return the number of allowed orders of all names; 0 where an end is not known."""
    return count_orders(names, known)[1].get(NOTHING, 0) if frozenset(names) in known else 0


def derive_values(names: Sequence[str], known: Collection[Subset]) -> dict[str, Weights]:
    """Return, by name, the weights of what it saves on average over all allowed orders; empty without an order."""
    to, onward = count_orders(names, known)
    whole = count_all(names, known)
    found: dict[str, Weights] = {}
    for name in names if whole else ():
        weights: Weights = {}
        for subset in to:
            joined = subset | {name}
            if name not in subset and (passing := to[subset] * onward.get(joined, 0)):
                _add_weights(weights, {subset: passing / whole, joined: -passing / whole})
        found[name] = weights
    return found


def derive_pair(names: Sequence[str], known: Collection[Subset], first: str, second: str) -> Weights | None:
    """Return the weights of what two names save together beyond what each saves without the other.

    It is the mean over the allowed orders in which the two follow each other and may change places. Without
    constraints that is the Shapley interaction index (Grabisch and Roubens 1999). Returns None if no order is so.
    """
    to, onward = count_orders(names, known)
    weights: Weights = {}
    whole = 0
    for subset in to:
        corners = (subset, subset | {first}, subset | {second}, subset | {first, second})
        if first in subset or second in subset or not all(each in to for each in corners):
            continue
        passing = to[subset] * onward[corners[3]]
        whole += passing
        _add_weights(weights, dict(zip(corners, (-passing, passing, passing, -passing), strict=True)))
    return {subset: weight / whole for subset, weight in weights.items() if weight} if whole else None


def derive_steps(names: Sequence[str], known: Collection[Subset], name: str) -> list[Weights]:
    """Return the weights of what a name saves at each of its places in an allowed order."""
    to, onward = count_orders(names, known)
    places = (subset for subset in to if name not in subset and to[subset] * onward.get(subset | {name}, 0))
    return [derive_saving(subset, subset | {name}) for subset in places]


def derive_saving(before: Subset, after: Subset) -> Weights:
    """Return the weights of what the second subset saves against the first."""
    return {before: 1.0, after: -1.0}


def apply_weights(weights: Weights, measured: Mapping[Subset, float]) -> float:
    """Return the sum of measured numbers with their weights."""
    return math.fsum(weight * measured[subset] for subset, weight in weights.items())


def estimate_error(weights: Weights, one: float) -> float:
    """Return the standard error of such a sum, if every number has the standard error `one` of its own."""
    return one * math.sqrt(math.fsum(weight**2 for weight in weights.values()))


def list_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of names, in their order."""
    return list(itertools.combinations(names, 2))


def _add_weights(weights: Weights, more: Mapping[Subset, float]) -> None:
    for subset, weight in more.items():
        weights[subset] = weights.get(subset, 0.0) + weight
