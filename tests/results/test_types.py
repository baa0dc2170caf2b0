"""Runs are read as frozen records and given back as they were, and no file holds what follows from its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladder.core.errors import UserError
from ladder.core.records import read_record, write_record
from ladder.results.file import Round
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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"speed": 1}, "unknown key 'speed'"),
        ({"round": "first"}, "round: 'first' is not"),
        ({"samples_ms": [1.0, "2"]}, "samples_ms[1]: '2' is not"),
        ({"samples_ms": [1.0, -1]}, "samples_ms[1]: -1 is not a number from 0.0001 to 1e+08"),
        ({"gpu": {"state": "known", "polls": 1}}, "gpu: the key 'tenancy' is missing"),
        ({"lazy_ms": {"G_main": True}}, "lazy_ms.G_main: True is not"),
    ],
)
def test_what_a_record_refuses_is_named_with_its_place(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as refused:
        read_record(Round, {"round": 0, "samples_ms": [1.5]} | change)
    assert str(refused.value).startswith(says)
