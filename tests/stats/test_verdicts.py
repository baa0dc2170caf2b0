"""Verdicts against closed forms: where an interval lies, what the twins forbid, and when rounds are added."""

import math

import pytest

from ladder.stats import estimates, verdicts
from ladder.stats.verdicts import Comparison

TIGHT = [-0.0002, 0.0001, 0.0, 0.0001, 0.0]


def words(*comparisons: Comparison) -> list[str]:
    return [verdict.verdict for verdict in verdicts.judge(comparisons)]


def around(centre: float, spread: list[float] = TIGHT) -> list[float]:
    return [centre + value for value in spread]


def test_the_four_verdicts_and_that_a_sign_inside_the_noise_means_nothing() -> None:
    assert words(Comparison(around(0.02), 0.001)) == ["faster"]
    assert words(Comparison(around(-0.02), 0.001)) == ["slower"]
    for small in (0.001, -0.001):
        assert words(Comparison(around(small), 0.0)) == ["no measurable gain"]
    assert words(Comparison([0.0, 0.01, 0.02, -0.01, 0.03], 0.001)) == ["ambiguous"]


def test_nothing_below_a_quarter_percent_or_the_noise_floor_is_a_difference() -> None:
    sure = [0.0024] * 5
    assert words(Comparison(sure, 0.0)) == ["no measurable gain"]
    assert words(Comparison([0.0026] * 5, 0.0)) == ["faster"]
    assert words(Comparison([0.0026] * 5, 0.01)) == ["no measurable gain"]
    assert words(Comparison([-0.02] * 5, 0.03)) == ["no measurable gain"]


def test_one_round_decides_nothing() -> None:
    (verdict,) = verdicts.judge([Comparison([0.5], 0.0)])
    assert (verdict.verdict, verdict.interval, verdict.effect) == ("ambiguous", None, 0.5)
    assert verdicts.judge([]) == []


def test_holm_makes_each_of_many_verdicts_harder() -> None:
    values = [0.0, 0.012, 0.014, 0.016, 0.02]  # 95% lies beyond 0.25%, 99.3% does not
    assert estimates.t_interval(values)[0] > 0.0025 > estimates.t_interval(values, 1 - 0.05 / 7)[0]
    assert words(Comparison(values, 0.0)) == ["faster"]
    quiet = [Comparison(around(0.0), 0.0)] * 6
    assert words(Comparison(values, 0.0), *quiet) == ["ambiguous", *["no measurable gain"] * 6]


def test_the_interval_is_the_one_that_was_judged() -> None:
    comparisons = [Comparison(around(0.02), 0.0), Comparison(around(0.03), 0.0)]
    first, second = verdicts.judge(comparisons)
    levels = sorted([first.confidence, second.confidence])
    assert levels == pytest.approx([0.95, 0.975])
    for verdict, comparison in zip((first, second), comparisons, strict=True):
        assert verdict.interval == pytest.approx(estimates.t_interval(comparison.values, verdict.confidence))
    assert first.effect == pytest.approx(0.02) and first.rounds == 5


def test_the_noise_floor_is_the_closed_form() -> None:
    twins = [0.0, 0.02]  # mean 0.01, standard error 0.01; one degree of freedom: t(0.95) = tan(0.45 pi)
    assert verdicts.noise_floor([twins]) == pytest.approx(0.01 + 0.01 * math.tan(0.45 * math.pi))
    assert verdicts.noise_floor([[0.0, -0.02]]) == pytest.approx(verdicts.noise_floor([twins]))
    assert verdicts.noise_floor([]) is None and verdicts.noise_floor([[0.1]]) is None


def wide(rounds: int, centre: float = 0.0) -> Comparison:
    return Comparison([centre + (0.05 if i % 2 else -0.05) for i in range(rounds)], 0.001)


def test_rounds_are_added_for_width_alone() -> None:
    assert verdicts.wants_rounds([Comparison([0.5] * 4, 0.0)])  # five at least
    assert not verdicts.wants_rounds([Comparison([0.0] * 5, 0.0)])
    assert verdicts.wants_rounds([wide(5)]) and verdicts.wants_rounds([wide(11)])
    assert not verdicts.wants_rounds([wide(12)])
    for centre in (0.0, 0.04, 0.5):  # undecided, nearly significant, clear: the same answer
        assert verdicts.wants_rounds([wide(6, centre)])
        assert not verdicts.wants_rounds([Comparison(around(centre), 0.0)])
    assert not verdicts.wants_rounds(
        [Comparison(wide(5).values, 0.2)]
    )  # the floor is wider than the interval
