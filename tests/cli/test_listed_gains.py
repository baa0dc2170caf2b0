"""Names and gains in `ladder list` and `ladder show`: a gain is told by both clocks where a result has both."""

import copy

import pytest

from ladder.cli import listing
from ladder.results import ranking
from tests.report import test_explain
from tests.support import two_clocks
from tests.support.commands import call, refused, succeed
from tests.support.typed import write_run


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """What stores runs of an H200 by name, and returns the rows of `ladder show RUNG` on it, without the headings."""
    monkeypatch.setattr(listing, "RESULTS", tmp_path)
    monkeypatch.setattr(ranking, "machines_here", lambda: ["nvidia-h200"])

    def show(rung, **runs):
        for name, run in runs.items():
            write_run(tmp_path / "nvidia-h200" / f"{name}.json", run)
        _, _, lines = succeed("show", rung).stdout.partition("Measured:\n")
        return lines.splitlines()[1:]

    return show


def test_a_newer_run_of_selected_rungs_does_not_pass_for_the_gain_of_a_rung(rows):
    """It compares the top with a rung far below it, and the whole ladder has the answer."""
    ends = two_clocks.selected("baseline", "fused_act") | {"started": "2026-11-22T10:15:00+00:00"}
    (row,) = rows("fused_act", ends=ends)
    assert "over baseline" in row and "ends.json" in row
    (row,) = rows("fused_act", whole=two_clocks.run())
    assert (
        "1.11x faster" in row and "1.12x faster" in row and "over data_loading" in row and "whole.json" in row
    )
    listed = [line for line in succeed("list").stdout.splitlines() if line.startswith("  fused_act ")]
    assert "GPU 1.11x faster, step 1.12x faster" in listed[0]


def test_the_launches_that_show_quotes_are_those_of_the_file(rows):
    profiles = copy.deepcopy({"data_loading": test_explain.BEFORE, "fused_act": test_explain.AFTER})
    for family in (each for of, _ in profiles.values() for each in of["families"]):
        family["launches"] *= 16_000
    row = next(line for line in rows("fused_act", whole=test_explain.run(**profiles)) if "whole.json" in line)
    assert " 3,000 to 4,000 " in row


def test_other_gpus_are_shown_without_what_must_not_be_quoted(rows, monkeypatch):
    assert rows("bf16") == []
    (row,) = rows("bf16", few=two_clocks.run(2))
    assert row.endswith("few.json, not to be quoted") and row.count("too few generations") == 2
    monkeypatch.setattr(ranking, "machines_here", lambda: ["amd-epyc"])
    assert rows("bf16", stopped=two_clocks.interrupt(two_clocks.run())) == []
    climbed, left_out = rows("bf16", whole=two_clocks.run(), out=two_clocks.run(mode="leave-one-out"))
    assert "1.26x faster" in climbed and "over channels_last" in climbed and "whole.json" in climbed
    assert "ADOPT" not in climbed and "ADOPT" in left_out and "out.json" in left_out


@pytest.mark.parametrize(("study", "entry"), [("mistakes", "item_each_step"), ("levers", "half_width")])
def test_show_lists_the_entries_of_a_study_that_run_measures(study, entry):
    lines = call("show", study).stdout.splitlines()
    assert f"Measured by `ladder run --mode {study}`" in lines[1]
    assert any(line.startswith(f"{entry} ") for line in lines)


def test_show_reads_a_file_before_it_decides_what_it_is(tmp_path):
    (tmp_path / "mine.yaml").write_text("resolution: 64\nchannel_base: 1024\nbatch: 4\n")
    assert "resolution" in succeed("show", tmp_path / "mine.yaml").stdout
    (tmp_path / "mine.yaml").write_text("title: mine\nrungs: [baseline, bf16]\n")
    assert "bf16" in succeed("show", tmp_path / "mine.yaml").stdout


@pytest.mark.parametrize("mode", ["cumulative", "solo", "leave-one-out"])
def test_show_of_a_mode_says_how_it_is_run(mode):
    assert refused("show", mode) == f"ladder: {mode} is a way to lay out a run: `ladder run --mode {mode}`"
