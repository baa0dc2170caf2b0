"""The verdicts of `ladder kernels` by simulation: known gains are found, and equal contenders are not told apart."""

import numpy as np
import pytest

from ladder.studies.kernelbench.record import Row, Samples
from tests.support import made_up_kernels
from tests.support.simulation import FAMILIES

SD = 0.003  # of a contender from repeat to repeat
DRIFT = 0.02  # of all contenders of a repeat alike
NAMES = ("ours", "twin", "plain", "compile")
ROWS, REPEATS = 8, 5
CASE = made_up_kernels.cases(quick=True, ops=["modulate"])[0]


def simulated(rng: np.random.Generator, family: str, gain: float = 0.0) -> list[Row]:
    """Return the rows of one run. In each, ours is faster than plain and compile by `gain`, a log ratio."""
    rows = []
    for _ in range(ROWS):
        noise = np.array([FAMILIES[family](rng, REPEATS, SD) for _ in NAMES])
        logs = 3 + noise + rng.normal(0, DRIFT, REPEATS) + gain * np.array([[0.0], [0.0], [1.0], [1.0]])
        cold = dict(zip(NAMES, np.exp(logs).tolist(), strict=True))
        rows.append(
            made_up_kernels.change(made_up_kernels.row(CASE, "forward"), samples_us=Samples(cold=cold))
        )
    return made_up_kernels.result(rows).rows


@pytest.mark.parametrize("family", ["normal", "heavy tail", "bimodal"])
def test_equal_contenders_are_not_told_apart(family: str) -> None:
    rng, runs = np.random.default_rng(0), 150
    called = [
        any(
            each.verdict in ("faster", "slower")
            for row in simulated(rng, family)
            for each in row.against.values()
        )
        for _ in range(runs)
    ]
    assert sum(called) <= 1  # Holm and the floor: far less than one run in twenty


@pytest.mark.parametrize("sign", [1, -1])
def test_two_percent_are_found_and_what_drifts_alike_hides_nothing(sign: int) -> None:
    rng = np.random.default_rng(1)
    rows = [row for _ in range(25) for row in simulated(rng, "normal", sign * np.log(1.02))]
    word, other = ("faster", "slower") if sign > 0 else ("slower", "faster")
    seen = [each.verdict for row in rows for each in row.against.values()]
    assert seen.count(word) >= 0.99 * len(seen) and other not in seen
    ratios = [each.times_faster for row in rows for each in row.against.values()]
    assert np.mean(ratios) == pytest.approx(1.02**sign, abs=0.0005)
    if sign > 0:
        assert sum(row.verdict == "ours faster" for row in rows) >= 0.98 * len(rows)


def test_holm_is_over_all_rows_of_a_run() -> None:
    rng = np.random.default_rng(2)
    rows = simulated(rng, "normal", np.log(1.02))
    levels = sorted(1 - each.confidence for row in rows for each in row.against.values())
    assert levels == pytest.approx([0.05 / left for left in range(2 * ROWS, 0, -1)])
