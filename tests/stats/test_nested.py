"""Values of rungs in generations, their joint error, and differences, against closed forms."""

import numpy as np
import pytest

from ladder.stats import estimates, nested

RNG = np.random.default_rng


def by_name(table: np.ndarray) -> dict[str, dict[int, float]]:
    """Values by rung and generation; NaN is left out."""
    return {
        f"r{row}": {number: value for number, value in enumerate(each) if value == value}
        for row, each in enumerate(table.tolist())
    }


def made(rungs: int = 6, generations: int = 5, sd: float = 0.01, seed: int = 0) -> np.ndarray:
    rng = RNG(seed)
    return (
        rng.normal(0, sd, (rungs, generations))
        + rng.normal(0, 1, (rungs, 1))
        + rng.normal(0, 0.5, generations)
    )


# --- values in a generation -----------------------------------------------------------------------------------------


def test_a_slow_pass_that_one_rung_missed_does_not_make_it_faster() -> None:
    a = [(0, 1.0), (1, 1.3), (2, 1.1)]
    b = [(0, 2.0), (2, 2.1)]  # 1 slower than a, and not there when the host was slow
    found = nested.generation_values({"a": a, "b": b})
    assert found["b"] - found["a"] == pytest.approx(1.0)
    assert found["a"] == pytest.approx(np.mean([value for _, value in a]))


def test_with_all_passes_the_value_is_the_mean_whatever_the_order() -> None:
    rng = RNG(0)
    samples = {name: [(at, float(rng.normal())) for at in rng.permutation(4)] for name in "abc"}
    found = nested.generation_values(samples)
    for name, each in samples.items():
        assert found[name] == pytest.approx(np.mean([value for _, value in each]))


def test_passes_that_nothing_links_keep_their_own_level() -> None:
    found = nested.generation_values({"a": [(0, 1.0), (1, 3.0)], "b": [(2, 5.0)], "c": [(0, 1.5)]})
    assert found["b"] == pytest.approx(5.0) and found["c"] - found["a"] == pytest.approx(0.5)
    assert found["a"] == pytest.approx(2.0)


# --- the joint error ------------------------------------------------------------------------------------------------


def test_the_error_is_the_residual_of_rung_and_generation() -> None:
    table = made()
    group = nested.estimate_group(by_name(table))
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    assert group.freedom == 5 * 4 and group.odd == frozenset()
    assert group.variance == pytest.approx((rest**2).sum() / 20)
    assert group.generations == 5


def test_missing_cells_cost_a_degree_each_and_move_nothing() -> None:
    """Without noise the residual is nothing, whatever is missing and however the generations drift."""
    table = made(sd=0.0)
    table[2, 1] = table[4, 3] = table[4, 4] = np.nan
    group = nested.estimate_group(by_name(table))
    assert group.freedom == 20 - 3 and group.variance == 0
    seen = [
        nested.estimate_group(by_name(np.where(np.isnan(table), np.nan, made(seed=seed)))).variance
        for seed in range(300)
    ]
    assert np.mean(seen) == pytest.approx(0.01**2, rel=0.05)


def test_a_rung_that_varies_more_keeps_its_own_variance_and_no_other_does() -> None:
    table = made()
    table[3] += RNG(1).normal(0, 0.2, 5)
    group = nested.estimate_group(by_name(table))
    assert group.odd == {"r3"} and group.freedom == 4 * 4
    assert group.variance == pytest.approx(0.01**2, rel=0.8)
    own = table[3] - table[2]
    found = nested.estimate_difference(group, group, "r3", "r2")
    assert found.freedom == 4 and found.error == pytest.approx(np.std(own, ddof=1) / np.sqrt(5))
    other = nested.estimate_difference(group, group, "r1", "r2")
    variance = (2 * 2 * group.variance + 4 * np.var(table[1] - table[2], ddof=1)) / 6
    assert other.freedom == 6 and other.error == pytest.approx(np.sqrt(variance / 5))


def test_a_rung_like_the_others_is_called_odd_once_in_a_hundred_runs() -> None:
    odd = sum(bool(nested.estimate_group(by_name(made(10, 3, seed=seed))).odd) for seed in range(2000))
    assert 8 <= odd <= 36  # 20 expected


# --- differences ----------------------------------------------------------------------------------------------------


def test_what_drifts_alike_in_all_rungs_is_in_no_error() -> None:
    table = made()
    calm, moved = (
        nested.estimate_group(by_name(table)),
        nested.estimate_group(by_name(table + RNG(2).normal(0, 3, 5))),
    )
    a, b = (nested.estimate_difference(each, each, "r0", "r1") for each in (calm, moved))
    assert a.mean == pytest.approx(b.mean) == pytest.approx(np.mean(table[0] - table[1]))
    assert a.error == pytest.approx(b.error) and a.freedom == b.freedom == 6 and a.generations == 5


def test_fewer_than_three_common_generations_are_no_difference() -> None:
    table = made(generations=4)
    table[1, :2] = np.nan
    group = nested.estimate_group(by_name(table))
    assert nested.estimate_difference(group, group, "r0", "r1") is None
    assert list(nested.pair_values(group, group, "r0", "r1")) == [2, 3]
    assert nested.estimate_difference(group, group, "r0", "r2") is not None
    assert nested.estimate_difference(group, group, "r0", "nobody") is None


@pytest.mark.parametrize("drift", [0.0, 0.02, 0.5])
def test_between_kinds_the_interval_covers_whether_they_drift_apart_or_not(drift: float) -> None:
    rng, inside = RNG(0), []
    for _ in range(1500):
        eager = rng.normal(0, 0.02, (6, 3)) + rng.normal(0, drift, 3)
        captured = rng.normal(0, 0.01, (4, 3))
        found = nested.estimate_difference(
            nested.estimate_group(by_name(eager)), nested.estimate_group(by_name(captured)), "r1", "r2"
        )
        assert found.freedom == 2
        inside.append(abs(found.mean) <= estimates.t_quantile(0.975, 2) * found.error)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_the_residual_is_the_floor_where_twins_are_too_much_alike() -> None:
    table = made()
    table[5] = table[0] + 1e-6
    group = nested.estimate_group(by_name(table))
    residual, twins = nested.residual_bound(group), nested.twins_bound(group, [("r0", "r5")])
    expected = estimates.t_quantile(0.975, 20) * np.sqrt(2 * group.variance / 5)
    assert residual == pytest.approx(expected) and twins < residual
    table[5] += 0.05
    group = nested.estimate_group(by_name(table))
    assert nested.twins_bound(group, [("r0", "r5"), ("r0", "nobody")]) > 0.05 > nested.residual_bound(group)
    assert nested.twins_bound(group, []) is None
    assert nested.residual_bound(nested.estimate_group(by_name(table[:, :2]))) is None
