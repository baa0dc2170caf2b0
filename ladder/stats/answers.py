"""The words about differences between rungs over generations, and the floors below which no difference counts.

- faster, slower: the whole interval lies beyond the floor.
- less than: the difference is smaller than the far end of the interval.
- ambiguous: that far end says too little (`ladder.core.text.choose_word`).
- too few generations: there are fewer than three.

Every interval is at Holm's level over the verdicts of one run and one quantity. All numbers are log ratios, positive
if a rung gains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ladder.core.protocol import AMBIGUOUS as AMBIGUOUS
from ladder.core.protocol import FASTER as FASTER
from ladder.core.protocol import LESS_THAN as LESS
from ladder.core.protocol import SLOWER as SLOWER
from ladder.core.protocol import TOO_FEW as TOO_FEW
from ladder.core.text import choose_word
from ladder.stats import estimates, nested
from ladder.stats.nested import Difference, Group

LEAST_DIFFERENCE = 0.0025  # smaller ones are of no use, however sure
GPU_RESOLUTION = math.log1p(0.015)  # of GPU time: an answer that leaves more open than 1.5% says too little
WALL_RESOLUTION = math.log1p(0.25)  # of wall time, however noisy
ENOUGH = 0.008  # a difference that is found: more generations are not worth their time


@dataclass(frozen=True)
class Floor:
    """The noise of one kind and quantity in a run. A difference from `resolution` on is seen, as a rule."""

    floor: float
    resolution: float


@dataclass(frozen=True)
class Question:
    """A rung against the rung before it, or another. `widest` is the far end of an interval that says enough."""

    difference: Difference | None
    floor: float
    widest: float


@dataclass(frozen=True)
class Answer:
    """A word with its interval of log ratios; effect and interval are None with too few generations."""

    verdict: str
    effect: float | None
    interval: tuple[float, float] | None
    confidence: float
    floor: float
    least: float  # the least difference that counts: the floor, and 0.25% at least
    below: float | None  # the far end of the interval, where the word is "less than"


def floor_of(group: Group, twins: Iterable[tuple[str, str]], verdicts_: int) -> Floor | None:
    """Return the floor of a kind: the larger of its twins' bound and its residual's, or None if neither is known.

    Forked twins share an address layout, so twins alone are too much alike.

    Args:
        twins: names of each rung of the kind and its twin.
        verdicts_: the number of verdicts that Holm's correction is over.
    """
    residual, pairs = nested.residual_bound(group), nested.twins_bound(group, twins)
    if residual is None:
        return None
    floor = max(residual, pairs or 0.0)
    half = _hardest_quantile(verdicts_, nested.difference_freedom(group.generations))
    half *= residual / estimates.t_quantile(0.975, group.freedom)
    return Floor(floor, max(LEAST_DIFFERENCE, floor) + half)


def make_question(
    difference: Difference | None, floors: Sequence[Floor | None], verdicts_: int, *, gpu: bool
) -> Question:
    """Return the question that a difference puts, with the floors of the two rungs' kinds.

    The drift between two kinds and the noise of an odd rung are in no kind's floor. So the bound of the difference's
    own error is a floor, too.
    """
    known = [each for each in floors if each is not None]
    error, freedom = (difference.error, difference.freedom) if difference else (0.0, 1.0)
    floor = max(estimates.t_quantile(0.975, freedom) * error, *(each.floor for each in known), 0.0)
    if gpu:
        return Question(difference, floor, GPU_RESOLUTION)
    if known:
        widest = max(each.resolution for each in known)
    else:
        widest = max(LEAST_DIFFERENCE, floor) + _hardest_quantile(verdicts_, freedom) * error
    return Question(difference, floor, min(widest, WALL_RESOLUTION))


@dataclass(frozen=True)
class Quantity:
    """Wall or GPU time of a run: the kind of each rung and twin that has values, and the rungs of a kind together."""

    kinds: Mapping[str, str]
    groups: Mapping[str, Group]
    twins: Sequence[tuple[str, str]]  # a rung and its twin
    is_gpu: bool

    def group(self, name: str) -> Group:
        """Return the group of a rung or twin; an empty one for a rung without values."""
        return self.groups.get(self.kinds.get(name, ""), Group({}))

    def paired(self, reference: str, other: str) -> dict[int, float]:
        """Return the reference's value minus the other's in each generation that has both."""
        return nested.pair_values(self.group(reference), self.group(other), reference, other)

    def difference(self, reference: str, other: str) -> Difference | None:
        """Return the difference of two rungs, or None for fewer than three common generations."""
        return nested.estimate_difference(self.group(reference), self.group(other), reference, other)

    def floors(self, verdicts_: int) -> dict[str, Floor]:
        """Return the floor of each kind that shows its noise, for so many verdicts."""
        made = {}
        for kind, group in self.groups.items():
            own = [pair for pair in self.twins if all(self.kinds.get(name) == kind for name in pair)]
            if floor := floor_of(group, own, verdicts_):
                made[kind] = floor
        return made

    def answers(self, asked: Sequence[tuple[str, str]]) -> list[Answer]:
        """Return the answers to the differences of (reference, other), in order."""
        return answer_questions(self.questions(asked, len(asked)))

    def questions(self, asked: Sequence[tuple[str, str]], verdicts_: int) -> list[Question]:
        """Return the questions about (reference, other), in order, of a run with so many verdicts."""
        floors, questions = self.floors(verdicts_), []
        for pair in asked:
            known = [floors.get(self.kinds.get(name, "")) for name in pair]
            questions.append(make_question(self.difference(*pair), known, verdicts_, gpu=self.is_gpu))
        return questions


def make_quantity(
    values: nested.Values, kinds: Mapping[str, str], twins: Sequence[tuple[str, str]], *, is_gpu: bool
) -> Quantity:
    """Return the quantity with these logarithms by rung or twin and by generation."""
    known = {name: kinds[name] for name in values if values[name]}
    groups = {
        kind: nested.estimate_group({name: values[name] for name in known if known[name] == kind})
        for kind in dict.fromkeys(known.values())
    }
    return Quantity(known, groups, twins, is_gpu)


def answer_questions(asked: Sequence[Question]) -> list[Answer]:
    """Return the answers to all questions about one quantity of a run, in order."""
    known = [each.difference for each in asked if each.difference is not None]
    least = [max(LEAST_DIFFERENCE, each.floor) for each in asked if each.difference is not None]
    p_values = [_p_beyond(d.mean, d.error, d.freedom, at) for d, at in zip(known, least, strict=True)]
    levels = iter(estimates.holm_levels(p_values))
    return [
        _answer_at_level(each, next(levels) if each.difference else 1 - estimates.CONFIDENCE)
        for each in asked
    ]


def _answer_at_level(asked: Question, level: float) -> Answer:
    least = max(LEAST_DIFFERENCE, asked.floor)
    if asked.difference is None:
        return Answer(TOO_FEW, None, None, 1 - level, asked.floor, least, None)
    mean, half = asked.difference.mean, asked.difference.error
    half *= estimates.t_quantile(1 - level / 2, asked.difference.freedom)
    low, high = estimates.within_everything(mean - half, mean + half)
    below = max(abs(low), abs(high))
    word = FASTER if low > least else SLOWER if high < -least else choose_word(below, asked.widest)
    return Answer(word, mean, (low, high), 1 - level, asked.floor, least, below if word == LESS else None)


def _p_beyond(mean: float, error: float, freedom: float, least: float) -> float:
    """Return the two-sided p-value against an effect of at most `least`.

    It is below a iff the 1-a interval lies beyond.
    """
    beyond = abs(mean) - least
    if beyond <= 0:
        return 1.0
    return 2 * estimates.t_tail(beyond / error, freedom) if error else 0.0


def wants_generations(done: int, differences: Sequence[Difference | None]) -> bool:
    """Return whether one more generation is worth it: an interval is wider than 0.5% either way.

    Widths alone decide. Generations added until something becomes significant would make chance look like a result.

    Args:
        done: the most generations that any rung has.
        differences: those that verdicts are about.
    """
    if not differences or done >= nested.MOST_GENERATIONS:
        return False
    if done < nested.LEAST_GENERATIONS:
        return True
    known = [each for each in differences if each is not None]
    seen = [
        (estimates.t_quantile(0.975, d.freedom) + _hardest_quantile(len(differences), d.freedom)) * d.error
        for d in known
    ]
    return len(known) < len(differences) or max(seen) > ENOUGH


def _hardest_quantile(verdicts_: int, freedom: float) -> float:
    """Return the quantile at Holm's first and hardest level."""
    return estimates.t_quantile(1 - (1 - estimates.CONFIDENCE) / 2 / max(1, verdicts_), freedom)
