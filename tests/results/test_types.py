"""Runs are read as frozen records and given back as they were, and no file holds what follows from its samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ladder.core.records import read_record, write_record
from ladder.results.run import Result, Run, Rung, RungResult
from tests.support import committed

STORED = committed.listed("results/ladder/**/*.json")


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_run_reads_back_equal_and_holds_no_derived_figure(path: Path) -> None:
    data = json.loads(path.read_text())
    run = read_record(Run, data)
    assert read_record(Run, write_record(run)) == run
    derived = {*RungResult.__struct_fields__} - {*Rung.__struct_fields__}
    assert not derived & {key for rung in data["rungs"] for key in rung}
    assert not ({*Result.__struct_fields__} - {*Run.__struct_fields__}) & data.keys()
