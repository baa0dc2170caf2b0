"""The statistics of a ladder: medians, quartiles, intervals over rounds, paired ratios.

The unit is the round (one fresh process of each rung). Samples of one process are never pooled for an
interval: with 0.3% between processes a pooled t-test called 73% of A/A pairs different. Times are positive,
and processes differ by a factor rather than by an amount, so intervals and ratios are taken on logarithms.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats as _scipy

CONFIDENCE = 0.95


def median(values: Sequence[float]) -> float | None:
    """Median, or None for no values."""
    return float(np.median(values)) if len(values) else None


def quartiles(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """First and third quartile (linear between order statistics), or (None, None) for no values."""
    if not len(values):
        return None, None
    low, high = np.percentile(values, [25, 75])
    return float(low), float(high)


def mad(values: Sequence[float]) -> float | None:
    """Median absolute deviation from the median, unscaled, or None for no values."""
    return float(np.median(np.abs(np.asarray(values) - np.median(values)))) if len(values) else None


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student t interval of the mean. One value says nothing about its spread: None."""
    n = len(values)
    if n < 2:
        return None
    centre = float(np.mean(values))
    half = float(_scipy.t.ppf(0.5 + confidence / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
    return centre - half, centre + half


def log_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student t interval on the logarithms of positive values (round medians, ratios), back on their own scale.

    Never below zero, and the same whether a ratio is a/b or b/a. None for fewer than two values.
    """
    bounds = t_interval(np.log(values), confidence) if len(values) > 1 else None
    return bounds and (float(np.exp(bounds[0])), float(np.exp(bounds[1])))


def paired_ratios(reference: dict[int, float], other: dict[int, float]) -> list[float]:
    """reference / other for each round (the key) that both have, in order: above 1 where `other` is faster."""
    return [reference[r] / other[r] for r in sorted(reference) if r in other]


def speedup(reference: dict[int, float], other: dict[int, float]) -> float | None:
    """The median paired log ratio as a factor: how many times faster `other` is than `reference`. Values per round.

    Without a common round (two partial runs) the ratio of the medians, which is not protected from drift.
    None where either has no value.
    """
    if not reference or not other:
        return None
    ratios = paired_ratios(reference, other)
    if ratios:
        return float(np.exp(np.median(np.log(ratios))))
    return float(np.median(list(reference.values())) / np.median(list(other.values())))
