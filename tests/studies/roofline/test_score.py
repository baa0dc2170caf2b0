"""The speed-of-light score: its fixed points, its frozen times, and the line under a roofline."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ladder.base.records import build
from ladder.plan.catalog import load_workload
from ladder.studies.roofline import distance, view
from ladder.studies.roofline.schema import Result

FILE = (
    Path(__file__).resolve().parents[2]
    / "data"
    / "results"
    / "roofline"
    / "nvidia-h100-80gb-hbm3-article.json"
)


def test_the_score_is_one_at_the_floor_and_a_half_at_the_base() -> None:
    assert distance.score(8.0, 24.0, 8.0) == 1.0 and distance.score(24.0, 24.0, 8.0) == 0.5
    assert distance.score(12.0, 24.0, 8.0) == pytest.approx(1 / (1 + 4 / 16))
    assert distance.score(1e9, 24.0, 8.0) < 1e-6


@pytest.mark.parametrize("step, base, floor", [(7.9, 24.0, 8.0), (9.0, 8.0, 8.0), (9.0, 7.0, 8.0)])
def test_a_step_below_the_floor_or_a_base_that_is_none_has_no_score(
    step: float, base: float, floor: float
) -> None:
    with pytest.raises(ValueError, match="no score"):
        distance.score(step, base, floor)
    assert distance.scored(step, base, floor) is None and distance.scored(9.0, 24.0, None) is None


def test_the_h200_has_frozen_times_for_article_alone() -> None:
    fields = load_workload("article")[1]
    known = distance.frozen("nvidia-h200", fields)
    assert known is not None and round(known.floor_ms, 2) == 7.93 and round(known.base_ms, 2) == 24.46
    assert known.floor_of.startswith("roofline/") and "compile" in known.base_of
    assert distance.frozen("nvidia-h200", fields | {"batch": 32}) is None
    assert distance.frozen("nvidia-h100", fields) is None


def test_a_roofline_tells_the_score_by_the_frozen_floor_and_by_todays() -> None:
    found = build(Result, json.loads(FILE.read_text()))
    assert not [line for line in view.notes(found) if "score" in line], "no time is frozen for this GPU"
    later = dataclasses.replace(found, gpu="nvidia-h200", step=found.step | {"light_ms": 7.0})
    (line,) = [line for line in view.notes(later) if "score" in line]
    assert line.startswith(
        "Speed-of-light score: 0.821 (1 at the floor, 0.5 at the base), by the floor of 7.93 ms"
    )
    assert "0.794 by today's floor of 7.00 ms" in line
    assert line in view.text(later) and "score" in view.markdown(later)
    fast = dataclasses.replace(later, measured=dataclasses.replace(found.measured, step_ms=7.5))
    assert any("none, the step is below the floor" in line for line in view.notes(fast))
