"""The words of a verdict with their numbers, as every table has them: `1.13x faster`, `less than 0.41%`."""

from __future__ import annotations

from dataclasses import dataclass

from ladder.core.protocol import INSIDE, LESS_THAN, TOO_FEW
from ladder.core.text import fine_factor, format_factor, less_than

UNDECIDED = "not decided"


@dataclass(frozen=True)
class Seen:
    """The answer of a run on one quantity of a rung. A verdict of "" means that the run has no answer."""

    verdict: str = ""
    ratio: float | None = None  # above 1: less time than before
    below: float | None = None  # log ratio, X of "less than X%"
    times: bool = False  # the ratio is in times of another entry's time: above 1 is more time
    interval: tuple[float, float] | None = None


def word(seen: Seen) -> str:
    """Return the verdict as tables show it: `less than 0.41%` instead of `less than`."""
    return less_than(seen.below) if seen.verdict == LESS_THAN and seen.below is not None else seen.verdict


def kind(verdict: str) -> str:
    """Return the word that several verdicts are counted by: `less than X%` instead of `less than`."""
    return "less than X%" if verdict == LESS_THAN else verdict


def answer(seen: Seen) -> str:
    """Return factor and word, the factor only where it says something: `1.13x faster`, `less than 0.41%`.

    Times of another entry are no factor of speed, so the word follows in brackets: `0.52x (faster)`.
    """
    number = "" if seen.verdict in (*INSIDE, TOO_FEW) else fine_factor(seen.ratio)
    verdict = f"({word(seen)})" if seen.times and number and word(seen) else word(seen)
    return f"{number} {verdict}".strip()


def whole(
    before_ms: float | None, after_ms: float | None, total: float | None, interval: tuple[float, float] | None
) -> str:
    """Return the word beside two times in a title: their factor, or `not decided`; "" where it is unknown.

    A factor is the mean over pairs in generations, and each time is a median: on a noisy host the two may contradict
    each other. So the factor needs an interval without 1, and times that point the same way.
    """
    if total is None or before_ms is None or after_ms is None:
        return ""
    is_open = interval is not None and interval[0] <= 1 <= interval[1]
    return UNDECIDED if is_open or (total - 1) * (before_ms - after_ms) < 0 else format_factor(total)
