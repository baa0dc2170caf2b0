"""Verdicts from paired log ratios: noise floor, Holm, four words, and when to add rounds. Pure functions.

Everything is a log ratio over rounds: positive if the rung gains. The noise floor is the difference that identical
programs (twins) show in a run of this many rounds. A difference below it, or below 0.25%, is never called one. A rung
is `faster` or `slower` only if its whole interval lies beyond the floor, at Holm's level. It is `no measurable gain`
if the interval lies inside, else `ambiguous`. A winner is never forced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ladder.base.protocol import AMBIGUOUS as AMBIGUOUS
from ladder.base.protocol import FASTER as FASTER
from ladder.base.protocol import NO_GAIN as NO_GAIN
from ladder.base.protocol import SLOWER as SLOWER
from ladder.stats import estimates

LEAST_DIFFERENCE = 0.0025  # smaller ones are of no use, however sure
ENOUGH = 0.005  # half-width of an interval at which more rounds are not worth their time
LEAST_ROUNDS, MOST_ROUNDS = 5, 12


@dataclass(frozen=True)
class Comparison:
    """One question of a run. `values` are the log ratios of its rounds, `floor` the noise of its kind of rung."""

    values: Sequence[float]
    floor: float


@dataclass(frozen=True)
class Verdict:
    """The answer: median log ratio, the interval it was judged by (None for one round) and the interval's level."""

    verdict: str
    effect: float
    interval: tuple[float, float] | None
    confidence: float
    least: float  # d: the least difference that counts
    rounds: int


def noise_floor(twins: Sequence[Sequence[float]]) -> float | None:
    """Return the noise floor: the upper 95% bound of a rung's |effect| against its own twin, or None if unknown.

    It is a log ratio. It never falls below what a pair shows itself.

    Args:
        twins: log ratios by round of each pair of twins of one kind in this run.
    """
    own = [pair for pair in twins if len(pair)]
    values = [value for pair in own for value in pair]
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / np.sqrt(max(map(len, own)))
    bound = abs(float(np.mean(values))) + estimates.t_quantile(0.95, len(values) - 1) * error
    return float(max(bound, *(abs(float(np.mean(pair))) for pair in own)))


def judge(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """Return the verdicts of one run, in order, with Holm's correction over all of them.

    A comparison of fewer than two rounds has no interval and is `ambiguous`.
    """
    summaries = [
        (float(np.mean(c.values)), estimates.standard_error(c.values), len(c.values) - 1)
        if len(c.values) > 1
        else None
        for c in comparisons
    ]
    return decide(
        summaries,
        [c.floor for c in comparisons],
        [estimates.median(c.values) or 0.0 for c in comparisons],
        [len(c.values) for c in comparisons],
    )


def decide(
    summaries: Sequence[tuple[float, float, float] | None],
    floors: Sequence[float],
    effects: Sequence[float],
    rounds: Sequence[int],
) -> list[Verdict]:
    """Return the verdicts for (mean, standard error, degrees of freedom) of each comparison, paired or not."""
    least = [max(LEAST_DIFFERENCE, floor) for floor in floors]
    asked = [index for index, summary in enumerate(summaries) if summary is not None]
    known = [(*summary, at) for summary, at in zip(summaries, least, strict=True) if summary is not None]
    p_values = [p_beyond(*each) for each in known]
    levels = dict(zip(asked, estimates.holm_levels(p_values), strict=True))
    verdicts = []
    for index, summary in enumerate(summaries):
        interval, level = None, levels.get(index, 1 - estimates.CONFIDENCE)
        if summary is not None:
            mean, error, freedom = summary
            half = estimates.t_quantile(1 - level / 2, freedom) * error
            interval = estimates.within_everything(mean - half, mean + half)
        word = word_for(interval, least[index])
        verdicts.append(Verdict(word, effects[index], interval, 1 - level, least[index], rounds[index]))
    return verdicts


def word_for(interval: tuple[float, float] | None, least: float) -> str:
    """Return the word for an interval of log ratios, by its place relative to +-`least`."""
    if interval is None:
        return AMBIGUOUS
    low, high = interval
    if low > least:
        return FASTER
    if high < -least:
        return SLOWER
    return NO_GAIN if -least <= low and high <= least else AMBIGUOUS


def p_beyond(mean: float, error: float, freedom: float, least: float) -> float:
    """Return the two-sided p-value against an effect of at most `least`.

    It is below a iff the 1-a interval lies beyond.
    """
    beyond = abs(mean) - least
    if beyond <= 0:
        return 1.0
    return 2 * estimates.t_tail(beyond / error, freedom) if error else 0.0


def half_width(values: Sequence[float]) -> float | None:
    """Return the half-width of the plain 95% interval, None for one round. Holm's depends on what is significant."""
    interval = estimates.t_interval(values)
    return None if interval is None else (interval[1] - interval[0]) / 2


def wants_rounds(comparisons: Sequence[Comparison]) -> bool:
    """Return whether one more round is worth it: fewer than 5 are there, or fewer than 12 and an interval is wide.

    Wide means a half-width above max(0.5%, floor). Only widths count, never the place of an interval: rounds added
    until something becomes significant would make chance look like a result.
    """
    least = min((len(c.values) for c in comparisons), default=MOST_ROUNDS)
    if least < LEAST_ROUNDS:
        return bool(comparisons)
    if max(len(c.values) for c in comparisons) >= MOST_ROUNDS:
        return False
    return any((half_width(c.values) or 0.0) > max(ENOUGH, c.floor) for c in comparisons)
