"""The statistics of a ladder: medians, quartiles, intervals over rounds, paired ratios.

The unit is the round (one fresh process of each rung). Samples of one process are never pooled for an interval: with
0.3% between processes a pooled t-test called 73% of A/A pairs different. Times are positive, and processes differ by
a factor rather than by an amount. So intervals and ratios are taken on logarithms.
"""

import functools
from collections.abc import Sequence

import numpy as np
from scipy import special

CONFIDENCE = 0.95
_EVERYTHING = 69.0  # its exponential is 0.9e30


@functools.lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution."""
    return float(special.stdtrit(freedom, probability))


def t_tail(value: float, freedom: float) -> float:
    """Return the probability that Student's t exceeds `value`."""
    return float(special.stdtr(freedom, -value))


def median(values: Sequence[float]) -> float | None:
    """Return the median, or None for no values."""
    return float(np.median(values)) if len(values) else None


def quartiles(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the first and third quartile (linear between order statistics), or (None, None) for no values."""
    if not len(values):
        return None, None
    low, high = np.percentile(values, [25, 75])
    return float(low), float(high)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of two values or more."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return Student's t interval of the mean. One value does not show its spread: None."""
    n = len(values)
    if n < 2:
        return None
    centre = float(np.mean(values))
    half = t_quantile(0.5 + confidence / 2, n - 1) * standard_error(values)
    return centre - half, centre + half


def log_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return Student's t interval of positive values (round medians, ratios), computed on logarithms.

    The interval is on the values' own scale, never below zero, and the same for a/b and b/a. Returns None for fewer
    than two values.
    """
    bounds = t_interval(np.log(values), confidence) if len(values) > 1 else None
    if bounds is None:
        return None
    low, high = within_everything(*bounds)
    return float(np.exp(low)), float(np.exp(high))


def within_everything(low: float, high: float) -> tuple[float, float]:
    """Return the bounds of a log ratio, cut so that a result file can hold its factor (1e30 and its inverse).

    At Holm's level, two rounds that differ by a third show nothing. Without the cut their interval would end at
    factors like 1e-200, or at infinity.
    """
    return max(low, -_EVERYTHING), min(high, _EVERYTHING)


def paired_ratios(reference: dict[int, float], other: dict[int, float]) -> list[float]:
    """Return reference / other for each round (the key) that both have, in order: above 1 if `other` is faster."""
    return [reference[r] / other[r] for r in sorted(reference) if r in other]


def log_ratios(reference: dict[int, float], other: dict[int, float]) -> list[float]:
    """Return the paired ratios as logarithms, the unit of every verdict: 0.01 is 1% faster, -0.01 as much slower."""
    return [float(value) for value in np.log(paired_ratios(reference, other))]


def holm_levels(p_values: Sequence[float], alpha: float = 1 - CONFIDENCE) -> list[float]:
    """Return the level at which Holm's step-down procedure decides each hypothesis.

    It is rejected if p <= that level.

    The smallest of m p-values is compared with alpha/m, the next with alpha/(m-1), and so on. The first p-value that
    is not rejected ends the procedure, and the rest are judged at its level. The chance of any false rejection is at
    most alpha, whatever the dependence (Holm 1979).
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    levels, level, stopped = [0.0] * len(p_values), alpha, False
    for done, index in enumerate(order):
        if not stopped:
            level = alpha / (len(order) - done)
            stopped = p_values[index] > level
        levels[index] = level
    return levels


def welch_interval(
    reference: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float, float] | None:
    """Return the difference of means (reference - other) of two unpaired samples, with its interval.

    The tuple is (difference, standard error, freedom, half-width). Freedom is Welch and Satterthwaite's. Returns None
    if either has fewer than two values.
    """
    if len(reference) < 2 or len(other) < 2:
        return None
    a, b = standard_error(reference) ** 2, standard_error(other) ** 2
    difference = float(np.mean(reference) - np.mean(other))
    if a + b == 0:
        return difference, 0.0, float(len(reference) + len(other) - 2), 0.0
    freedom = (a + b) ** 2 / (a**2 / (len(reference) - 1) + b**2 / (len(other) - 1))
    error = float(np.sqrt(a + b))
    return difference, error, freedom, float(special.stdtrit(freedom, 0.5 + confidence / 2)) * error


def estimate_speedup(reference: dict[int, float], other: dict[int, float]) -> float | None:
    """Return how many times faster `other` is than `reference`: the median paired log ratio as a factor.

    The arguments are {round: value}. Without a common round (two partial runs) it is the ratio of the medians, which
    is not protected from drift. Returns None if either has no value.
    """
    if not reference or not other:
        return None
    ratios = paired_ratios(reference, other)
    if ratios:
        return float(np.exp(np.median(np.log(ratios))))
    return float(np.median(list(reference.values())) / np.median(list(other.values())))
