"""The statistics by simulation, in twelve families of noise: what is called different must be so."""

import numpy as np
import pytest

from ladder.stats import estimates
from tests.support import simulation

FAMILIES = simulation.ALL_FAMILIES
_, GPU_8, GPU_BY_RULE, CAPTURED, EAGER = simulation.SETTINGS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [simulation.BY_RULE, CAPTURED, EAGER], ids=lambda kind: kind.name)
def test_identical_programs_are_not_called_different(kind: simulation.Kind, family: str) -> None:
    seen = simulation.false_verdicts(kind, family, runs=150)
    assert seen.false <= (family in simulation.NOISIER)  # 1 in 300 is allowed


@pytest.mark.parametrize("family", FAMILIES)
def test_intervals_of_every_rung_cover_whatever_the_noise(family: str) -> None:
    seen = simulation.false_verdicts(simulation.BY_RULE, family, runs=300)
    assert 0.93 <= seen.covered <= 0.985 and seen.least >= 0.9  # 0.92 and a standard error


# The share of planted slowdowns that must be found in normal noise.
@pytest.mark.parametrize(
    ("kind", "slowdown", "share", "runs"),
    [
        (simulation.BY_RULE, 0.01, 0.95, 300),
        (GPU_8, 0.01, 0.95, 300),
        (GPU_BY_RULE, 0.02, 0.99, 100),
        (CAPTURED, 0.01, 0.95, 100),
        (EAGER, 0.3, 0.95, 100),
    ],
    ids=lambda each: getattr(each, "title", None),
)
def test_a_planted_slowdown_is_found_and_never_with_the_wrong_sign(
    kind: simulation.Kind, slowdown: float, share: float, runs: int
) -> None:
    seen = simulation.detection(kind, "normal", slowdown, runs)
    assert seen.found >= share and seen.wrong_sign == seen.false == 0
    for family in FAMILIES:
        seen = simulation.detection(kind, family, slowdown, runs=30)
        assert seen.wrong_sign == 0 and seen.false <= (family in simulation.NOISIER), family


def test_each_family_has_the_spread_that_it_is_given() -> None:
    for name, family in simulation.FAMILIES.items():
        values = family(np.random.default_rng(0), 200_000, 0.01) if name != "drifting" else None
        if values is not None:
            assert np.std(values) == pytest.approx(0.01, rel=0.1), name
            assert abs(np.mean(values)) < 0.0015, name
    drifting = simulation.FAMILIES["drifting"](np.random.default_rng(0), 50, 0.0)
    assert drifting[-1] == pytest.approx(0.02, rel=0.1) and (np.diff(drifting) > 0).all()


def test_the_measured_noise_has_its_drift_and_twins_that_share_a_layout() -> None:
    captured = np.isin(np.arange(10), [5, 6, 7, 9])
    gpu = [simulation._draw_measured(np.random.default_rng(seed), GPU_8, captured) for seed in range(200)]
    values = np.concatenate([each.mean(axis=1) for each in gpu])
    assert 0.0012 < np.std(values[:, 0] - values[:, 8]) < 0.003 < np.std(values[:, 1] - values[:, 2]) + 0.0008
    assert np.std(values[:, 0] - values[:, 8]) < 0.8 * np.std(values[:, 1] - values[:, 2])
    wall = simulation._draw_measured(np.random.default_rng(0), EAGER, captured)
    assert wall.shape == (5, 4, 10) and 0 < np.isnan(wall).sum() < 30 and not np.isnan(wall[:, 0]).any()


def test_the_t_interval_covers_what_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = [
        low < 0 < high for low, high in (estimates.t_interval(rng.normal(0, 1, 5)) for _ in range(4000))
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors


def test_holm_keeps_the_chance_of_any_false_verdict() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        p_values = rng.random(7)
        wrong += any(p <= level for p, level in zip(p_values, estimates.holm_levels(p_values), strict=True))
    assert wrong / 2000 < 0.066  # 5% and three standard errors
