"""Shapley values and interactions: planted effects come back, whatever the constraints on the order."""

import itertools
import math
import random
from collections.abc import Collection

import pytest

from ladder.stats import shapley
from ladder.stats.shapley import Subset

NAMES = ["a", "b", "c", "d"]


def every(names: list[str] = NAMES) -> list[Subset]:
    return [frozenset(each) for size in range(len(names) + 1) for each in itertools.combinations(names, size)]


def logs(known: Collection[Subset], gains: dict[str, float], pair: float = 0.0) -> dict[Subset, float]:
    """Return logarithms of times from which each thing takes its gain, and a with b together something more."""
    return {
        subset: 5.0 - sum(gains[name] for name in subset) - pair * ({"a", "b"} <= subset) for subset in known
    }


def by_orders(names: list[str], measured: dict[Subset, float]) -> dict[str, float]:
    """Return the mean saving of each name over all permutations whose subsets are known."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for order in itertools.permutations(names):
        passed = [frozenset(order[:k]) for k in range(len(order) + 1)]
        if all(each in measured for each in passed):
            for k, name in enumerate(order):
                found[name].append(measured[passed[k]] - measured[passed[k + 1]])
    return {name: sum(each) / len(each) for name, each in found.items()}


def applied(names: list[str], measured: dict[Subset, float]) -> dict[str, float]:
    return {
        name: shapley.apply_weights(weights, measured)
        for name, weights in shapley.derive_values(names, measured).items()
    }


GAINS = {"a": 0.3, "b": 0.02, "c": -0.1, "d": 0.0}


def test_planted_additive_gains_come_back_exactly() -> None:
    measured = logs(every(), GAINS)
    assert applied(NAMES, measured) == pytest.approx(GAINS, abs=1e-12)
    for first, second in shapley.list_pairs(NAMES):
        weights = shapley.derive_pair(NAMES, measured, first, second)
        assert weights and shapley.apply_weights(weights, measured) == pytest.approx(0, abs=1e-12)


def test_a_planted_interaction_shows_in_its_pair_only_and_is_shared_by_its_two() -> None:
    measured = logs(every(), GAINS, pair=0.08)
    for first, second in shapley.list_pairs(NAMES):
        weights = shapley.derive_pair(NAMES, measured, first, second)
        wanted = 0.08 if (first, second) == ("a", "b") else 0.0
        assert weights and shapley.apply_weights(weights, measured) == pytest.approx(wanted, abs=1e-12)
    shared = {name: gain + 0.04 * (name in "ab") for name, gain in GAINS.items()}
    assert applied(NAMES, measured) == pytest.approx(shared, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_values_are_the_mean_over_all_allowed_orders_and_sum_to_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    lacking = rng.sample([each for each in every() if 0 < len(each) < 4], 3 * (seed > 0))
    measured = {each: rng.gauss(5, 1) for each in every() if each not in lacking}
    found = applied(NAMES, measured)
    assert found == pytest.approx(by_orders(NAMES, measured))
    whole = measured[shapley.NOTHING] - measured[frozenset(NAMES)]
    assert math.fsum(found.values()) == pytest.approx(whole, abs=1e-12)


def test_a_pair_is_the_mean_over_the_orders_in_which_it_may_change_places() -> None:
    rng = random.Random(5)
    known = [each for each in every() if each != {"c"}]
    measured = {each: rng.gauss(5, 1) for each in known}
    found = []
    for order in itertools.permutations(NAMES):
        at, swapped = order.index("a"), list(order)
        if order[at : at + 2] != ("a", "b"):
            continue
        swapped[at : at + 2] = "b", "a"
        passed = [frozenset(each[:k]) for each in (order, swapped) for k in range(5)]
        if all(each in measured for each in passed):
            base = frozenset(order[:at])
            corners = (base | {"a"}, base | {"b"}, base, base | {"a", "b"})
            one, other, none, both = (measured[each] for each in corners)
            found.append(one + other - none - both)
    weights = shapley.derive_pair(NAMES, known, "a", "b")
    assert shapley.apply_weights(weights, measured) == pytest.approx(sum(found) / len(found))


def test_a_thing_that_rests_on_another_never_comes_before_it() -> None:
    """Half of the 24 orders have b before a. No subset with b and without a is known."""
    known = [each for each in every() if "a" in each or "b" not in each]
    measured = logs(known, GAINS | {"b": 0.5})
    assert shapley.count_all(NAMES, known) == 12 == math.factorial(4) // 2
    assert applied(NAMES, measured) == pytest.approx(GAINS | {"b": 0.5}, abs=1e-12)
    assert shapley.derive_pair(NAMES, known, "a", "b") is None  # they never change places
    assert shapley.derive_pair(NAMES, known, "b", "c") is not None
    assert (
        len(shapley.derive_steps(NAMES, known, "b")) == 4
        and len(shapley.derive_steps(NAMES, known, "c")) == 6
    )


def test_without_an_order_there_are_no_values() -> None:
    ends = [shapley.NOTHING, frozenset(NAMES)]
    assert shapley.count_all(NAMES, ends) == 0 and shapley.derive_values(NAMES, ends) == {}
    assert shapley.count_all(NAMES, every()[:-1]) == 0 and shapley.derive_values(NAMES, every()[:-1]) == {}
    assert shapley.count_all(NAMES, every()[1:]) == 0 and shapley.derive_values(NAMES, every()[1:]) == {}


def test_the_error_of_a_value_is_that_of_its_weights() -> None:
    assert shapley.estimate_error(shapley.derive_saving(frozenset(), frozenset("a")), 0.01) == pytest.approx(
        0.01 * math.sqrt(2)
    )
    rng, weights = random.Random(0), shapley.derive_values(NAMES, every())["a"]
    seen = [
        shapley.apply_weights(weights, {each: rng.gauss(0, 0.01) for each in every()}) for _ in range(2000)
    ]
    assert math.sqrt(sum(x * x for x in seen) / len(seen)) == pytest.approx(
        shapley.estimate_error(weights, 0.01), rel=0.08
    )
