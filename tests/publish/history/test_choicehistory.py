"""Choices as lines of a note: what a row says is in its line, and what changed between two commits is named."""

import os

import pytest

from kernels import choices as table
from ladder.core import text
from ladder.publish.history import notes as asvnotes
from ladder.report import tiles
from tests.support import made_up

STEP = "rungs.Rung.samples_step_time"
PARAMS = ["'article'", "'fused_act'"]  # as asv's benchmarks.json has them
ROW = {"op": "bias_act", "direction": "backward", "itemsize": 2, "layout": "nhwc", "architecture": 90}
ROW |= {"size": "large", "tile": 4096, "columns": 64, "warps": 8, "per_sm": 2, "stages": 1}


def test_the_fields_are_those_of_the_kernels_table_and_a_row_is_one_line_that_a_note_takes_whole():
    assert tuple(tiles.CALL) == table.Key._fields and tiles.CHOICE == table.Choice._fields
    assert tiles.lines([ROW]) == ["bias_act backward 2B nhwc sm90 large: 4096/64/8/2/1"]
    noted = {"op": "rgb", "case": "wide", "entry": "vectors 4, ahead 2"}
    assert tiles.lines([noted]) == ["rgb wide: vectors 4, ahead 2"]
    rows = [key._asdict() | choice._asdict() for key, choice in table.TABLE.items()]
    lines = tiles.lines([*rows, *made_up.choices()])
    assert len({line.rpartition(":")[0] for line in lines[: len(rows)]}) == len(rows)  # a call names its row
    assert all(text.TEXT.fullmatch(line) for line in lines)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ([ROW], []),
        ([ROW | {"warps": 4}], ["bias_act backward 2B nhwc sm90 large: warps 8 -> 4"]),
        ([], ["bias_act backward 2B nhwc sm90 large: used no more"]),
        ([ROW, ROW | {"op": "rgb"}], ["rgb backward 2B nhwc sm90 large: new"]),
    ],
)
def test_what_changed_is_named(now, told):
    before, after = tiles.lines([ROW]), tiles.lines(now)
    assert tiles.changes(before, after) == told
    assert tiles.changes(None, after) == tiles.changes(before, None) == []
    assert tiles.changes(["a b: 1/2", "whatever"], ["a b: 1/3", "whatever"]) == ["a b: 1/2 -> 1/3"]


def test_two_result_files_are_compared_by_series(tmp_path):
    name = asvnotes.name_series(STEP, PARAMS)
    assert name == asvnotes.name_series(
        "rungs.Rung.track_peak_memory", ["article", "fused_act"]
    )  # of one process
    notes = [
        asvnotes.create_note("a" * 40, "here", {}, choices={name: tiles.lines([row])})
        for row in (ROW, ROW | {"tile": 2048})
    ]
    told = ["bias_act backward 2B nhwc sm90 large: tile 4096 -> 2048"]
    assert asvnotes.list_choice_changes(*notes, name) == told
    assert asvnotes.list_choice_changes(*notes, asvnotes.name_series(STEP, ["tiny", "baseline"])) == []
    assert asvnotes.list_choice_changes(notes[0], None, name) == []


def test_what_processes_leave_is_found_by_series_and_the_newest_counts(tmp_path):
    assert asvnotes.collect_choices(tmp_path) == {}
    for series, rows in (("a(b)", [ROW]), ("a(c)", []), ("a(b)", [ROW | {"warps": 2}])):
        asvnotes.leave_choices(tmp_path, series, rows)
        for age, path in enumerate(sorted(tmp_path.iterdir(), key=lambda p: p.stat().st_mtime_ns)):
            os.utime(path, (age, age))
    assert asvnotes.collect_choices(tmp_path) == {
        "a(b)": ["bias_act backward 2B nhwc sm90 large: 4096/64/2/2/1"],
        "a(c)": [],
    }
