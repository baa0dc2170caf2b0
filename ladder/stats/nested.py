"""The statistics of generations: values of rungs, their error, and differences between rungs. Pure functions.

A generation is one process of each rung, all alive together. Its passes visit each rung once. All values are
logarithms, so a difference of 0.01 is 1%.

- value: the effect of a rung in a generation beside the effects of passes, by least squares.
- noise of a kind: the residual of rung x generation, joint over the rungs of one kind and one quantity.
- difference: the mean over generations of two rungs' values. Its error is that of their own differences, which are
  few, drawn towards the noise of the kind as an empirical Bayes estimate is (Smyth 2004).

No rule here looks at a difference: kinds and variances alone decide how an interval is made.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from scipy import special

from ladder.stats import estimates, rounds_budget

LEAST_GENERATIONS, MOST_GENERATIONS = rounds_budget.LEAST_ROUNDS, rounds_budget.MOST_ROUNDS
ODD = 0.01  # chance that any rung of a kind is given a variance of its own without need
_NOTHING = 1e-20  # a variance of logarithms below which all values are equal, but for rounding

Values = Mapping[str, Mapping[int, float]]  # by rung and generation


def generation_values(samples: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, float]:
    """Return each rung's value in one generation, on the level of the average pass.

    The model is value + effect of the pass. Passes that no rung links to others keep their own level.

    Args:
        samples: (number of the pass, logarithm) of each cycle, by rung; every rung has at least one.
    """
    rows = [(name, at, value) for name, each in samples.items() for at, value in each]
    rungs, rung = np.unique([row[0] for row in rows], return_inverse=True)
    passes, at = np.unique([row[1] for row in rows], return_inverse=True)
    values = np.array([row[2] for row in rows])
    counts = np.bincount(rung)

    def mean(each: np.ndarray) -> np.ndarray:
        return np.bincount(rung, each) / counts

    shares = np.zeros((len(rungs), len(passes)))
    np.add.at(shares, (rung, at), 1.0)
    if (shares == shares[:1]).all():  # the same passes for all: their effects cancel
        return dict(zip(rungs.tolist(), mean(values).tolist(), strict=True))
    shares /= counts[:, None]
    design = np.eye(len(passes))[at] - shares[rung]
    # The shortest of all solutions: there the effects of linked passes sum to zero.
    effects = np.linalg.lstsq(design, values - mean(values)[rung], rcond=None)[0]
    return dict(zip(rungs.tolist(), mean(values - effects[at]).tolist(), strict=True))


@dataclass(frozen=True)
class Group:
    """The rungs of one kind and one quantity.

    `variance` is that of one rung in one generation, None if nothing shows it. `odd` rungs vary more than the others;
    they are not in it.
    """

    values: Values
    variance: float | None = None
    freedom: int = 0
    odd: frozenset[str] = frozenset()

    @property
    def generations(self) -> int:
        """The number of generations in which any rung has a value."""
        return len({number for each in self.values.values() for number in each})


@dataclass(frozen=True)
class Difference:
    """The reference's values minus the other's: positive if the other is faster. Its error has `freedom` degrees."""

    mean: float
    error: float
    freedom: float
    generations: int


def estimate_group(values: Values) -> Group:
    """Return the rungs of one kind with their joint error.

    The rung that varies most is tried against all others: F is the variance that it adds over the others' variance.
    The rung is odd if chance reaches F less often than `ODD`, divided by the number of rungs. Then the next is tried.
    Two rungs at least remain.
    """
    kept, odd = [name for name in values if values[name]], set[str]()
    numbers = sorted({number for each in values.values() for number in each})
    table = np.array([[values[name].get(number, np.nan) for number in numbers] for name in kept])
    table = table.reshape(len(kept), len(numbers))
    each, freedom = _estimate_residual(table)
    while len(kept) > 2:
        worst = int(np.argmax(each / np.maximum(1, (~np.isnan(table)).sum(axis=1) - 1)))
        others = np.delete(table, worst, axis=0)
        rest = _estimate_residual(others)
        if _p_of_added(each.sum(), freedom, rest[0].sum(), rest[1]) >= ODD / len(kept):
            break
        odd.add(kept.pop(worst))
        table, (each, freedom) = others, rest
    return Group(
        values=values,
        variance=float(each.sum()) / freedom if freedom else None,
        freedom=freedom,
        odd=frozenset(odd),
    )


def pair_values(first: Group, second: Group, reference: str, other: str) -> dict[int, float]:
    """Return the reference's value minus the other's in each generation that has both."""
    a, b = first.values.get(reference, {}), second.values.get(other, {})
    return {number: a[number] - b[number] for number in sorted(a.keys() & b.keys())}


def estimate_difference(first: Group, second: Group, reference: str, other: str) -> Difference | None:
    """Return the difference of a rung of `first` and a rung of `second`, or None below three common generations."""
    apart = list(pair_values(first, second, reference, other).values())
    return average_differences(apart, {reference, other}, first if first is second else None)


def average_differences(
    apart: Sequence[float], names: Set[str], of_kind: Group | None, processes: float = 2.0
) -> Difference | None:
    """Return the mean of one difference a generation, with its error, or None below three generations.

    Its variance is estimated from these differences. For rungs of one kind, the estimate is shrunk towards the noise of
    the kind, which weighs as much as half the generations: a rung may be noisier than its kind, and three generations
    alone would estimate noise badly. An odd rung is compared by its own differences alone.

    Args:
        names: the rungs and twins that differ.
        of_kind: their kind, None if they are of several.
        processes: the variance of a difference of two such rungs, as a multiple of that of one process.
    """
    if len(apart) < LEAST_GENERATIONS:
        return None
    variance, freedom = float(np.var(apart, ddof=1)), len(apart) - 1
    if of_kind is not None and of_kind.freedom and not of_kind.odd & names:
        worth = difference_freedom(len(apart)) - freedom
        variance = (worth * processes * of_kind.variance + freedom * variance) / (worth + freedom)
        freedom += worth
    return Difference(
        float(np.mean(apart)), float(np.sqrt(variance / len(apart))), float(freedom), len(apart)
    )


def difference_freedom(generations: int) -> int:
    """Return the degrees of freedom of the difference of two rungs of a kind over so many generations."""
    return generations - 1 + (generations - 1) // 2


def residual_bound(of: Group) -> float | None:
    """Return the difference that two identical rungs of the kind stay below in 95% of runs like this, or None."""
    if of.variance is None or of.generations < LEAST_GENERATIONS:
        return None
    return estimates.t_quantile(0.975, of.freedom) * float(np.sqrt(2 * of.variance / of.generations))


def twins_bound(of: Group, twins: Iterable[tuple[str, str]]) -> float | None:
    """Return the upper 95% bound of the largest |difference| between a rung and its twin, or None."""
    found = [each for pair in twins if (each := estimate_difference(of, of, *pair)) is not None]
    return max(
        (abs(each.mean) + estimates.t_quantile(0.95, each.freedom) * each.error for each in found),
        default=None,
    )


def _estimate_residual(table: np.ndarray) -> tuple[np.ndarray, int]:
    """Return each rung's sum of squares, and the degrees of freedom of all together.

    Args:
        table: (rungs, generations) values, NaN for those that are not there.
    """
    if not table.size:
        return np.zeros(len(table)), 0
    there = ~np.isnan(table)
    if there.all():
        rest = table - table.mean(axis=1, keepdims=True)
        rest, freedom = rest - rest.mean(axis=0), (table.shape[0] - 1) * (table.shape[1] - 1)
    else:
        shares = there / there.sum(axis=1, keepdims=True)
        rung, number = np.nonzero(there)
        design = np.eye(table.shape[1])[number] - shares[rung]
        centred = (table - np.nanmean(table, axis=1, keepdims=True))[there]
        drift, _, rank, _ = np.linalg.lstsq(design, centred, rcond=1e-9)
        rest = np.zeros(table.shape)
        rest[there] = centred - design @ drift
        freedom = int(there.sum()) - len(table) - int(rank)
    squares = (rest**2).sum(axis=1)
    return squares if squares.sum() > _NOTHING * table.size else 0 * squares, freedom


def _p_of_added(squares: float, freedom: int, others: float, left: int) -> float:
    """Return how often chance adds as much to the sum of squares of the other rungs as one more rung did."""
    added = freedom - left
    if not left or not added or squares <= others:
        return 1.0
    return float(special.fdtrc(added, left, (squares - others) / added / (others / left))) if others else 0.0
