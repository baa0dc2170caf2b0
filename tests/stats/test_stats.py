"""Statistics against closed forms and textbook values."""

import math

import pytest

from ladder.stats import estimates


def test_medians_and_quartiles() -> None:
    assert estimates.median([3, 1, 2, 10]) == 2.5
    assert estimates.quartiles([1, 2, 3, 4, 5]) == (2, 4)
    assert estimates.median([]) is None and estimates.quartiles([]) == (None, None)


def test_t_interval_of_two_values_is_the_closed_form() -> None:
    # With one degree of freedom t is Cauchy: its 97.5% point is tan(0.475 pi); s / sqrt(2) of (0, 2) is 1.
    low, high = estimates.t_interval([0.0, 2.0])
    assert high == pytest.approx(1 + math.tan(0.475 * math.pi)) and low == pytest.approx(2 - high)


def test_t_interval_of_five_values_uses_the_table() -> None:
    low, high = estimates.t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert high - 3 == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6) and low == pytest.approx(
        6 - high
    )


def test_one_round_has_no_interval() -> None:
    assert (
        estimates.t_interval([1.0]) is None
        and estimates.log_interval([1.0]) is None
        and estimates.log_interval([]) is None
    )


def test_log_interval_is_the_same_for_a_ratio_and_its_inverse_and_never_negative() -> None:
    low, high = estimates.log_interval([0.5, 2.0, 3.0])
    inverse = estimates.log_interval([2.0, 0.5, 1 / 3])
    assert (1 / high, 1 / low) == pytest.approx(inverse)
    assert estimates.log_interval([1.0, 9.0])[0] > 0


def test_an_interval_that_excludes_nothing_ends_at_numbers() -> None:
    low, high = estimates.log_interval([1e-20, 1e20], 0.9999)
    assert low == pytest.approx(1e-30, rel=0.2) and high == pytest.approx(1e30, rel=0.2)
    assert 1e-30 < low and high < 1e30
    assert estimates.within_everything(-0.5, 0.7) == (-0.5, 0.7)


def test_speedup_is_paired_by_round() -> None:
    # The machine slows down from round to round; the pairing does not see it.
    assert estimates.estimate_speedup(
        {0: 10.0, 1: 20.0, 2: 40.0}, {0: 5.0, 1: 10.0, 2: 20.0}
    ) == pytest.approx(2)
    assert estimates.estimate_speedup({0: 10.0, 2: 40.0}, {1: 1.0, 2: 10.0}) == pytest.approx(
        4
    )  # round 2 is all they share
    assert estimates.estimate_speedup({0: 10.0}, {1: 5.0}) == pytest.approx(2)  # no common round
    assert (
        estimates.estimate_speedup({0: 10.0}, {}) is None and estimates.estimate_speedup({}, {0: 1.0}) is None
    )


def test_log_ratios_are_paired_and_positive_where_the_second_is_faster() -> None:
    assert estimates.log_ratios({0: 10.0, 1: 20.0, 3: 1.0}, {1: 10.0, 0: 10.0}) == pytest.approx(
        [0.0, math.log(2)]
    )


def test_holm_against_the_worked_example() -> None:
    # Holm (1979): m = 4, alpha = 5%: 0.01 <= 0.0125 and 0.015 <= 0.0167 are rejected, 0.03 > 0.025 stops it.
    levels = estimates.holm_levels([0.03, 0.01, 0.04, 0.015])
    assert levels == pytest.approx([0.025, 0.0125, 0.025, 0.05 / 3])
    assert estimates.holm_levels([]) == [] and estimates.holm_levels([0.2]) == pytest.approx([0.05])


def test_welch_against_a_worked_example() -> None:
    # 1..5 against 2, 4, 6: variances 2.5 and 4, standard errors squared 0.5 and 4/3.
    difference, error, freedom, half = estimates.welch_interval([1, 2, 3, 4, 5], [2, 4, 6])
    assert difference == pytest.approx(-1) and error == pytest.approx(math.sqrt(0.5 + 4 / 3))
    assert freedom == pytest.approx((0.5 + 4 / 3) ** 2 / (0.25 / 4 + (4 / 3) ** 2 / 2))
    assert half == pytest.approx(error * 2.935, rel=0.05)
    assert estimates.welch_interval([1.0], [1.0, 2.0]) is None
