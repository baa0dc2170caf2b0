"""Which results belong together: what a new torch, another commit or a quick run must not be mixed with."""

import copy

import pytest

from ladder.report import view as viewing
from ladder.results import judging
from ladder.results.combine import series
from tests.support import made_up
from tests.support.typed import Reading, write_run

judging = Reading(judging)
series = Reading(series)
view = Reading(viewing).view

SOFTWARE = {"torch": "2.14.0", "cuda": "13.2", "cudnn": "9.99", "triton": "3.8.0"}


def other(result, part=None, **changes):
    """A copy with some fields of a part (or of the top) changed."""
    made = copy.deepcopy(result)
    (made if part is None else made[part]).update(changes)
    return made


@pytest.mark.parametrize("key", SOFTWARE)
def test_a_folder_shows_the_newest_of_each_software(tmp_path, key):
    old = other(made_up.judged_run(), started="2026-01-01T00:00:00+00:00")
    new = other(made_up.judged_run(), "machine", **{key: SOFTWARE[key]})
    for index, each in enumerate((old, new, other(new, started="2026-02-01T00:00:00+00:00"))):
        write_run(tmp_path / f"{index}.json", each)
    found, _ = series.collect([tmp_path])
    assert sorted((r["machine"][key], r["started"][:10]) for r in found) == sorted(
        [(old["machine"][key], "2026-01-01"), (SOFTWARE[key], "2026-11-21")]
    )


def test_a_quick_run_does_not_hide_a_whole_one(tmp_path):
    whole = other(made_up.judged_run(), started="2026-01-01T00:00:00+00:00")
    write_run(tmp_path / "a.json", whole)
    write_run(tmp_path / "b.json", other(made_up.judged_run(), "protocol", quick=True))
    found, _ = series.collect([tmp_path])
    assert sorted(r["protocol"]["quick"] for r in found) == [False, True]


def test_advice_is_of_the_same_software_code_and_workload():
    stairs, whole = made_up.judged_run(), made_up.judged_run("leave-one-out", bf16=20.0)
    assert {row.name: row.advice for row in view(series.with_top(stairs, [whole])).rows}["bf16"] == "SKIP"
    for wrong in (
        other(whole, "machine", torch="2.14.0"),
        other(whole, "machine", triton="3.8.0"),
        other(whole, "machine", cpu="another"),
        other(whole, "workload", batch=16),
        other(whole, commit="f" * 40),
        other(whole, dirty=True),
        other(whole, "protocol", quick=True),
    ):
        assert "at_top" not in series.with_top(stairs, [wrong])
    less = other(whole, started="2026-11-25T00:00:00+00:00") | {"rungs": whole["rungs"][:2]}
    assert "bf16" in series.with_top(stairs, [less, whole])["at_top"]  # the one with the most
    newer = other(whole, "machine", torch="2.14.0") | {"started": "2026-11-26T00:00:00+00:00"}
    assert "at_top" in series.with_top(stairs, [newer, whole])  # the newest that fits, not the newest
