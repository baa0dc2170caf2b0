"""Receipts, parity and memory of a run, as its reader sees them."""

import csv
import io

import pytest

from ladder.report import checks
from ladder.report import tables as report
from ladder.report import view as viewing
from tests.cli.test_cli import call
from tests.support import made_up
from tests.support.typed import Reading, write_run

checks = Reading(checks)
report = Reading(report)
view = Reading(viewing).view


def rows_of(result):
    return {row.name: row for row in view(result).rows}


def read_csv(*many):
    return list(csv.DictReader(io.StringIO(report.csv_text(list(many)))))


def test_the_table_says_whether_each_rung_was_on_and_computed_the_same(capsys):
    made = made_up.checked_run()
    rungs = {rung["name"]: rung for rung in made["rungs"]}
    rungs["bf16"].update(receipts=made_up.receipts("not engaged: FLOPs in BF16 0 percent", engaged=False))
    rungs["bf16"].update(status="not engaged", reason="bf16: FLOPs in BF16 0 percent")
    rungs["fused_norm"].update(
        parity=made_up.parity(3.2, "failed: parity"), status="failed: parity", reason="G_main"
    )
    del rungs["set_to_none"]["receipts"], rungs["set_to_none"]["parity"]
    rows = rows_of(made)
    assert (rows["baseline"].receipts, rows["baseline"].parity) == ("ok", "0.41 of budget")
    assert (rows["bf16"].receipts, rows["fused_norm"].parity) == ("not engaged", "failed")
    assert (rows["set_to_none"].receipts, rows["set_to_none"].parity) == ("", "")
    report.print_table(made)
    said = capsys.readouterr().out
    assert (
        "bf16: not engaged: bf16: FLOPs in BF16 0 percent" in said
        and "fused_norm: failed: parity: G_main" in said
    )
    assert "visits rejected for the state of the GPU: 3 of 53" in said
    by_name = {row["rung"]: row for row in read_csv(made)}
    assert (
        by_name["baseline"]["parity_of_budget"].startswith("0.4")
        and by_name["bf16"]["rejected_visits"] == "1"
    )


def test_what_cannot_be_judged_is_no_error_of_the_rung():
    rung = made_up.rung("bf16", 1.0, parity=made_up.parity(0.2))  # a loss at 900 times its budget, unresolved
    assert rows_of(made_up.result([rung]))["bf16"].parity_share == pytest.approx(0.2)
    assert ["not judged" in row for row in checks.parity_cells(rung)] == [False, False, True]


def test_every_receipt_and_parity_error_is_printed_and_in_the_markdown(tmp_path):
    made = made_up.checked_run()
    made["rungs"][2]["receipts"] = made_up.receipts(
        "islands in FP32 6 of 6", "not engaged: FLOPs 3 percent", engaged=False
    )
    write_run(tmp_path / "a.json", made)
    plain_page = report.markdown(made).replace("\\", "")
    printed = call("report", tmp_path / "a.json", "--receipts").stdout
    for text in (printed, plain_page):
        assert "bf16: not engaged: islands in FP32 6 of 6" in text and "not engaged: FLOPs 3 percent" in text
        assert (
            "G.blocks.3.conv1.weight" in text
            and "0.41" in text
            and "reference: FP64 on cuda, batch 8" in text
        )
        assert (
            "modulate backward: tile 2048, columns 512, warps 4, per_sm 10, stages 1; in fused_norm" in text
        )
        assert "(size large, itemsize 2, layout nhwc, architecture 90): tile 4096" in text
    assert "islands" not in call("report", tmp_path / "a.json").stdout
    write_run(tmp_path / "b.json", made_up.judged_run())
    assert "no receipts and no parity check" in call("report", tmp_path / "b.json", "--receipts").stdout


def test_three_figures_of_memory(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    made = made_up.checked_run()
    made["rungs"][5]["rounds"][2]["device_used_bytes"] = 40 * 2**30
    made["rungs"][5]["peak_allocated_bytes"] = 7 * 2**30
    row = rows_of(made)["cuda_graphs"]
    assert (row.allocated, row.memory, row.device) == (
        pytest.approx(7),
        pytest.approx(14.2),
        pytest.approx(40),
    )
    (line,) = [each for each in read_csv(made) if each["rung"] == "cuda_graphs"]
    assert line["device_gib"] == "40.0" and line["allocated_gib"] == "7.0"
    report.print_table(made)
    said = capsys.readouterr().out
    assert all(
        word in said for word in ("allocated GiB", "reserved GiB", "device GiB", "in use on the whole GPU")
    )
