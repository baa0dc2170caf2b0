"""The statistics by simulation, in five families of noise: what is called different must be so."""

import numpy as np
import pytest

from ladder.base import text
from ladder.cli import doctor as cli_doctor
from ladder.selfcheck.selftest import simulate as selftest
from ladder.stats import estimates, verdicts
from tests.cli.test_cli import call


@pytest.mark.parametrize("family", selftest.FAMILIES)
@pytest.mark.parametrize("kind", selftest.KINDS)
def test_identical_programs_are_not_called_different(kind: str, family: str) -> None:
    seen = selftest.false_verdicts(kind, family, runs=300)
    assert seen["false"] == 0 and seen["runs"] == 300


@pytest.mark.parametrize("family", selftest.FAMILIES)
def test_planted_slowdowns_are_found_and_never_with_the_wrong_sign(family: str) -> None:
    for kind, sizes in selftest.PROMISED.items():
        for size, promised in sizes.items():
            seen = selftest.detection(kind, family, size)
            assert seen["wrong_sign"] == 0 and seen["false"] == 0
            if family == "normal" and promised is not None:
                assert seen["found"] >= promised, (kind, size)


def test_each_family_has_the_spread_that_it_is_given() -> None:
    for name, family in selftest.FAMILIES.items():
        values = family(np.random.default_rng(0), 200_000, 0.01) if name != "drifting" else None
        if values is not None:
            assert np.std(values) == pytest.approx(0.01, rel=0.1), name
            assert abs(np.mean(values)) < 0.0015, name
    drifting = selftest.FAMILIES["drifting"](np.random.default_rng(0), 50, 0.0)
    assert drifting[-1] == pytest.approx(0.02, rel=0.1) and (np.diff(drifting) > 0).all()


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


def test_a_broken_promise_is_said_and_is_status_1(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cli_doctor, "ROOT", tmp_path)
    real = selftest.measure
    monkeypatch.setattr(selftest, "measure", lambda: real(runs=30, planted=20))
    seen = call("doctor", "--selftest", "--device", "cpu")
    assert seen.exit_code == 0 and "everything promised was kept" in seen.output
    (file,) = (tmp_path / "results" / "selftest").iterdir()
    assert '"false": 0' in file.read_text() and text.slug(file.stem) == file.stem
    monkeypatch.setattr(verdicts, "noise_floor", lambda *_: 0.0)  # twins that are not listened to
    monkeypatch.setattr(verdicts, "word_for", lambda interval, least: "faster")
    seen = call("doctor", "--selftest", "--device", "cpu")
    assert seen.exit_code == 1 and "runs of twins called different" in seen.output
