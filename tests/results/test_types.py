"""Results are read as frozen records and given back as they were: no key lost or added, no null for an absent key."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.results import types
from ladder.results.types import ABSENT, Result, Round
from tests.support import committed

STORED = committed.listed("results/ladder/**/*.json")


def test_there_are_stored_results() -> None:
    assert STORED or committed.folder()


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_result_reads_back_equal(path: Path) -> None:
    data = json.loads(path.read_text())
    again = types.plain(types.read(Result, copy.deepcopy(data)))
    assert json.dumps(again, sort_keys=True) == json.dumps(data, sort_keys=True)  # 1 and 1.0 differ, too


def test_an_absent_key_is_not_null() -> None:
    data = {"round": 0, "samples_ms": [1.5], "main_ms": None}
    read = types.read(Round, data)
    assert read.main_ms is None and read.event_ms is ABSENT and not read.event_ms
    assert types.plain(read) == data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speed": 1}, "unknown key 'speed'"),
        ({"round": "first"}, "round: 'first' is not a whole number"),
        ({"round": None}, "round: None is not a whole number"),
        ({"samples_ms": [1.0, "2"]}, "samples_ms[1]: '2' is not a number"),
        ({"gpu": {"state": "known", "polls": 1}}, "gpu: the key 'tenancy' is missing"),
        ({"lazy_ms": {"G_main": True}}, "lazy_ms.G_main: True is not a number"),
    ],
)
def test_what_the_rules_refuse_is_named_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        types.read(Round, {"round": 0, "samples_ms": [1.5]} | change)
    assert str(refused.value) == said


def test_a_missing_key_is_refused() -> None:
    with pytest.raises(UserError, match="the key 'samples_ms' is missing"):
        types.read(Round, {"round": 0})


def test_the_gpu_is_of_the_type_that_its_keys_say() -> None:
    unknown = {"state": "unknown", "reason": "no NVML", "tenancy": "unknown"}
    known = {"state": "known", "polls": 4, "tenancy": "alone", "sm_mhz": 1980.0}
    for gpu, cls in ((unknown, types.UnknownGpu), (known, types.KnownGpu)):
        read = types.read(Round, {"round": 0, "samples_ms": [1.5], "gpu": gpu})
        assert isinstance(read.gpu, cls) and types.plain(read.gpu) == gpu


def test_a_record_is_frozen_and_what_it_gives_back_is_new() -> None:
    data = {"round": 0, "samples_ms": [1.5]}
    read = types.read(Round, data)
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.round = 1
    types.plain(read)["samples_ms"].append(2.0)
    assert read.samples_ms == [1.5]
