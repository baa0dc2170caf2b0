"""`ladder host`: the parts of the host time add up, impossible files are refused, and a run's table shows host time."""

from __future__ import annotations

import msgspec
import pytest

from ladder.report import tables
from ladder.report.view import view
from ladder.results import loading
from ladder.studies import frame
from ladder.studies.host import STUDY, attach_host
from tests.studies.test_contract import read
from tests.support import committed

RUN = "results/ladder/nvidia-h100-80gb-hbm3/article-article-20261128T061724Z.json"


def change(file, rung, **fields):
    return msgspec.structs.replace(
        file, observed={**file.observed, rung: msgspec.structs.replace(file.observed[rung], **fields)}
    )


def test_parts_are_shares_of_the_unprofiled_host_time():
    _, file = read("host")
    rung = STUDY.derive(file).rungs[0]
    operators = file.observed[rung.name].operators
    share = sum(row.ms for row in operators) / file.observed[rung.name].profiled_ms
    assert sum(rung.parts_ms.values()) == pytest.approx(share * rung.host_ms)
    casts = sum(row.ms for row in operators if row.part == "casts")
    assert rung.parts_ms["casts"] == pytest.approx(
        casts * rung.host_ms / file.observed[rung.name].profiled_ms
    )


def test_calls_longer_than_their_step_are_refused():
    _, file = read("host")
    name = next(iter(file.observed))
    wall = file.observed[name].wall_ms
    assert "took longer" in frame.find_problem(STUDY, change(file, name, host_ms=[2 * wall[0]]))
    assert "took longer" in frame.find_problem(STUDY, change(file, name, profiled_ms=1.0))


def test_the_table_of_a_run_has_the_host_time_of_the_same_host_alone():
    run = loading.load_run(committed.file(RUN))
    folder = committed.folder("results/host")
    shown = view(attach_host(run, folder))
    assert [row.name for row in shown.rows if row.host_ms] == [
        "baseline", "channels_last", "bf16", "fused_norm", "set_to_none",
    ]  # fmt: skip
    assert "host ms" in [column.title for column in tables.tabulate(shown).columns]
    assert any("host time of fused_norm" in line and "our ops' launch code" in line for line in shown.remarks)
    elsewhere = msgspec.structs.replace(run, machine=msgspec.structs.replace(run.machine, cores=1))
    assert attach_host(elsewhere, folder).host is None
