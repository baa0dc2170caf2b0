"""How the files of one result are written at the end of a command: whose stay, whose go, and what a chart may cost."""

import json
import os
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.results import record, store, types

MACHINE = json.loads((ROOT / "results" / "precision" / "nvidia-h200.json").read_text())["machine"]


@pytest.fixture
def result() -> dict[str, Any]:
    workload = {"name": "article", "data": None}
    return record.header("trial", MACHINE, workload) | {"complete": True, "commit": "b" * 40}


def write(result, folder, render=lambda kind: kind.encode()):
    return store.save(result, folder, {"md": "table"}, render)


def test_a_partial_file_goes_when_its_run_is_whole_and_another_host_s_stays(tmp_path, result):
    theirs = result | {"machine": MACHINE | {"cores": 1}, "complete": False, "commit": "a" * 40}
    theirs["started"] = "2025-01-01T00:00:00+00:00"
    (old, *_) = write(theirs, tmp_path)
    mine = result | {"complete": False}
    (partial, *_) = write(mine, tmp_path)
    assert old.stem.endswith("-partial") and partial != old
    whole = write(mine | {"complete": True}, tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted(
        [path.name for path in whole] + [f"{old.stem}.{s}" for s in ("json", "md", "png", "svg")]
    )
    again = theirs | {"complete": True}
    assert write(again, tmp_path)[0].stem == f"{whole[0].stem}-20250101T000000Z"
    assert json.loads(whole[0].read_text())["machine"] == mine["machine"] and not old.exists()


def test_a_chart_that_cannot_be_drawn_costs_neither_result_nor_table(tmp_path, result, capsys):
    def broken(kind):
        raise UserError("a chart cannot be drawn: RuntimeError: no fonts")

    paths = write(result, tmp_path, broken)
    assert [path.suffix for path in paths] == [".json", ".md"] and len(os.listdir(tmp_path)) == 2
    assert capsys.readouterr().err == "ladder: a chart cannot be drawn: RuntimeError: no fonts\n"


def test_a_kind_with_names_of_kernels_keeps_them_to_the_letter(tmp_path, result):
    named = result | {"note": "void kernel<4, float*>"}
    (exact,) = store.save(named, tmp_path, stem="a", exact=True)
    (fit,) = store.save(named, tmp_path, stem="b")
    assert json.loads(exact.read_text())["note"] == named["note"]
    assert json.loads(fit.read_text())["note"] == "void kernel(4, floatx)"


def test_every_kind_begins_with_one_header(result):
    workload = {"name": "article", "data": None}
    made = record.header("map", MACHINE, workload, images={"count": 1, "digest": "0" * 16})
    assert {"schema", "kind"} | types.head(types.build(types.Header, _origin(made))).keys() == made.keys()
    assert made["complete"] is False and made["seconds"] == 0.0
    alone = record.header(None, MACHINE)
    assert made.keys() - alone.keys() == {"kind", "workload", "images"}


def _origin(made):
    return {key: value for key, value in made.items() if key not in ("schema", "kind")}
