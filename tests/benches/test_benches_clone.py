"""asv in a fresh clone: it needs nothing, measures the right code, and says in one line where it cannot."""

import json
import platform
import sys
from pathlib import Path

import pytest

from ladder.machine import system
from tests.support import asv_clone
from tests.support.asv_clone import BASELINE_ONLY, run_asv, set_toy, step_times
from tests.support.repositories import commit_all

clone = asv_clone.clone


@pytest.mark.slow
@pytest.mark.skipif(bool(system.gpus_seen()), reason="on a GPU, `tiny` is n/a")
def test_a_fresh_clone_measures_its_commits_and_its_dirty_tree(clone):
    planted = clone.parent / "home" / ".asv-machine.json"
    planted.parent.mkdir()
    planted.write_text('{"other": {"machine": "other"}, "version": 1}')
    decoy = clone.parent / "decoy" / "ladder"
    decoy.mkdir(parents=True)
    (decoy / "__init__.py").write_text("raise SystemExit('the wrong ladder')")

    # An old commit whose own `ladder` would time everything wrong, and a slower one with the right one.
    good = (clone / "ladder" / "__init__.py").read_text()
    (clone / "ladder" / "__init__.py").write_text("raise SystemExit('the wrong ladder')")
    old = commit_all(clone, "old")
    (clone / "ladder" / "__init__.py").write_text(good)
    set_toy(clone, 0.08)
    new = commit_all(clone, "new")

    run = run_asv(clone, "run", *BASELINE_ONLY)  # no question, no terminal, no branch called main
    assert run.returncode == 0, run.stdout + run.stderr
    assert set(step_times(clone)) == {new}
    assert step_times(clone)[new] >= 0.005

    run = run_asv(clone, "run", "ALL", "--skip-existing-commits", *BASELINE_ONLY)
    assert run.returncode == 0, run.stdout + run.stderr
    times = step_times(clone)
    assert set(times) == {old, new}
    assert 0.01 / 16 <= times[old] < 0.005  # the old commit's model, the working tree's clock

    set_toy(clone, 0.16)
    run = run_asv(clone, "run", "--python=same", *BASELINE_ONLY)
    assert run.returncode == 0, run.stdout + run.stderr
    assert set(step_times(clone)) == {old, new, new + "dirty"}
    assert step_times(clone)[new + "dirty"] >= 0.01 and step_times(clone)[new] == times[new]

    # The record is the hardware's and kept here; other projects' is untouched; nothing of this machine leaks.
    (record,) = (clone / "results" / "asv").glob("*/machine.json")
    assert json.loads(record.read_text())["gpu"] == "none"
    assert record.parent.name == system.facts("cpu")["name"]
    assert planted.read_text() == '{"other": {"machine": "other"}, "version": 1}'
    assert [p.name for p in planted.parent.iterdir()] == [planted.name]
    for path in (clone / "results").rglob("*.json"):
        text = path.read_text()
        for private in (sys.prefix, str(clone), str(Path.home()) + "/", f'"{platform.node()}"'):
            assert private not in text, f"{private} in {path.name}"


@pytest.mark.slow
@pytest.mark.skipif(bool(system.gpus_seen()), reason="on a GPU, `tiny` is n/a")
def test_a_broken_commit_fails_the_run(clone):
    (clone / "stylegan_lite" / "__init__.py").write_text(
        "CONTRACT = 1\n\ndef make_step(*a, **k): raise ValueError('no')\n"
    )
    commit_all(clone, "broken")
    run = run_asv(clone, "run", "--show-stderr", *BASELINE_ONLY)
    assert run.returncode == 2
    assert "failed: build: ValueError: no" in run.stdout


def test_another_python_is_refused_in_one_line(clone):
    commit_all(clone, "any")
    run = run_asv(clone, "run", "--python=3.99")
    assert run.returncode == 2
    assert "there is no Python 3.99" in run.stderr and "Traceback" not in run.stderr
