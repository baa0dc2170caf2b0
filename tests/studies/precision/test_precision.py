"""`ladder precision`: the search for a batch, claims from samples, a smoke run on the CPU, and files that validate."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ladder.base.errors import UserError
from ladder.base.records import build, plain
from ladder.cli import main as cli
from ladder.engine import loss_scales, pool
from ladder.machine import system
from ladder.results import store as results
from ladder.studies.precision import batch_search, measure, record
from ladder.studies.precision import chart as precisionchart
from ladder.studies.precision import plan as precision
from ladder.studies.precision import report as precisionreport
from ladder.studies.precision import run as precision_run
from stylegan_lite.config import Workload
from tests.support import made_up, servers
from tests.support.judging_files import judge
from tests.support.rung_steps import small
from tests.support.small import LEAST

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
WORKLOAD = Workload.from_dict(LEAST).to_dict()


def found_by(capacity, start=8, limit_s=1e9, most=4096, seconds=1.0, group=4, tried=None):
    now = [0.0]

    def fits(batch):
        now[0] += seconds
        return None if batch <= capacity else "out of memory"

    return batch_search.search(fits, start, group, limit_s, most, lambda: now[0], tried)


@pytest.mark.parametrize("capacity", [4, 7, 8, 20, 63, 100, 1000, 1023])
def test_the_largest_batch_is_found_to_a_sixteenth(capacity):
    found = found_by(capacity)
    assert found.settled and found.batch <= capacity and found.batch % 4 == 0
    assert capacity - found.batch < max(4, found.batch / 16 + 4)
    batches = [each.batch for each in found.tried]
    assert len(set(batches)) == len(batches) < 14


def test_a_search_that_is_cut_short_or_finds_nothing_says_so():
    assert plain(found_by(1000, limit_s=2.5)) == {
        "batch": 32, "settled": False, "tried": [{"batch": b, "reason": None} for b in (8, 16, 32)]
    }  # fmt: skip
    assert not found_by(100, limit_s=5.5).settled
    found = found_by(1000, most=32)
    assert found.batch == 32 and not found.settled
    assert plain(found_by(3)) == {
        "batch": None, "settled": True,
        "tried": [{"batch": b, "reason": "out of memory"} for b in (8, 4)],
    }  # fmt: skip


@pytest.mark.parametrize("tries", [1, 3, 4, 5, 7])
def test_a_search_that_was_cut_short_is_gone_on_with(tries):
    whole = found_by(100)
    assert len(whole.tried) > 7
    begun = found_by(100, limit_s=tries - 0.5)
    assert begun.tried == whole.tried[:tries] and not begun.settled
    assert batch_search.cut_short(begun.tried) == begun
    assert found_by(100, tried=[*begun.tried]) == whole


def plan(**more):
    return precision.Plan(WORKLOAD, "cpu", **more)


def test_every_precision_has_a_recipe_or_a_reason_on_a_cpu():
    rows = {(row.on, row.precision): row for row in precision.rows(plan()).values()}
    assert len(rows) == 10
    assert {key[1] for key, row in rows.items() if row.status == "n/a"} == {"tf32"}
    assert all(row.reason == precision.NO_TF32 for row in rows.values() if row.status == "n/a")
    assert rows["top", "fp16"].recipe["precision"] == "fp16" and rows["top", "fp16"].recipe["fused_adam"]
    assert not rows["baseline", "fp16"].recipe["fused_adam"]  # plain PyTorch waits for GradScaler


def test_on_a_gpu_the_top_has_graphs_in_every_precision(monkeypatch):
    everything = dict.fromkeys(system.CAPABILITIES)
    monkeypatch.setattr(system, "capabilities", lambda device: everything)
    rows = precision.rows(precision.Plan(WORKLOAD, "cuda"))
    top = {row.precision: row.recipe for row in rows.values() if row.on == "top"}
    assert all(recipe["cuda_graphs"] and not recipe["whole_step_graph"] for recipe in top.values())
    assert (top["fp32"]["fp32_precision"], top["tf32"]["fp32_precision"]) == ("ieee", "tf32")
    monkeypatch.setattr(system, "capabilities", lambda device: everything | {"bf16": "needs BF16"})
    rows = precision.rows(precision.Plan(WORKLOAD, "cuda", bases=("baseline",)))
    assert {row.precision for row in rows.values() if row.status == "n/a"} == {"bf16", "fp8"}


def test_a_row_that_cannot_run_is_a_row(monkeypatch):
    def fails(session, **more):
        raise pool.WorkerFailure("oom", "out of memory in prepare")

    monkeypatch.setattr(precision_run.Session, "build", fails)
    asked = plan(precisions=("fp16",), bases=("baseline",), parity=False)
    found = precision.rows(asked)
    assert measure.measure(asked, found, lambda line: None) is None
    (row,) = record.derive(found.values())
    assert (row.status, row.step_ms) == ("oom", None)


def made(**more):
    """A result as if an H200 had made it: BF16 twice as fast, with half the memory, and four thirds the batch."""
    asked = plan(precisions=("fp32", "bf16"), bases=("baseline",))
    found = []
    for row, ms, gib, batch in zip(
        precision.rows(asked).values(), (100.0, 50.0), (8.0, 4.0), (96, 128), strict=True
    ):
        sizes = {"allocated_gib": gib, "reserved_gib": gib + 1, "device_gib": gib + 2, "rss_gib": 3.0}
        rounds = [
            {"round": number, "samples_ms": [ms * drift, ms * drift], **sizes}
            for number, drift in enumerate((1.0, 1.1, 0.9))
        ]
        tried = [{"batch": batch, "reason": None}, {"batch": 2 * batch, "reason": "out of memory"}]
        largest = {"batch": batch, "settled": True, "tried": tried}
        parity = {
            "verdict": "ok", "reason": None, "share": 0.4, "gradient_errors": {"G_main": 0.01}, "budget": "fp32"
        }  # fmt: skip
        found.append(plain(row) | {"rounds": rounds, "largest": largest, "parity": parity})
    nothing = precision.Plan(WORKLOAD, "cpu", rounds=0, steps=0, parity=False, batch_seconds=0, precisions=())
    empty = measure.new_result(nothing, "least", dict(made_up.gpu_run()["machine"]))
    result = measure.run(nothing, empty, lambda line: None)
    rows = record.derive(build(record.Row, row) for row in found)
    history = {
        "on": "top", "steps": 40, "initial": 65536.0, "interval": 2000, "images": True,
        "changes": [[1, 32768.0, 65536.0, 1, 0], [2, 512.0, 65536.0, 7, 0]],
        "updates": {"G": 50, "D": 42}, "skipped": {"G": 7, "D": 0},
    }  # fmt: skip
    made = plain(replace(result, rows=rows, claims=record.claims(rows))) | {"history": history}
    return json.loads(json.dumps(made | more))


def read(data):
    return build(record.Result, data)


@pytest.fixture(scope="module")
def result():
    return made()


def test_claims_follow_from_the_samples(result):
    ours = {claim["claim"]: claim for claim in result["claims"]}
    assert ours["throughput"]["ours"] == pytest.approx(2) and ours["memory"]["ours"] == pytest.approx(0.5)
    assert ours["batch"]["ours"] == pytest.approx(4 / 3)
    assert ours["throughput"]["interval"] == pytest.approx([2, 2])  # paired by round: a drift is in both
    lines = precisionreport.claim_lines(read(result))
    assert (
        len(lines) == 3
        and "twice the throughput (article: 2x): BF16 for FP32 on the baseline 2.00x" in lines[0]
    )
    page = precisionreport.markdown(read(result))
    assert "7 of 50 updates skipped, scale 512 at the end" in page and "0.40 of budget" in page
    assert "| BF16 | baseline | 50.00 |" in page and "| 128 |" in page
    assert precisionreport.text(read(result)).count("\n") > 5


def test_a_search_that_was_cut_short_makes_no_claim(result):
    rows = json.loads(json.dumps(result["rows"]))
    rows[1]["largest"]["settled"] = False
    ours = {claim.claim: claim.ours for claim in record.claims(build(record.Row, row) for row in rows)}
    assert ours["batch"] is None and ours["memory"] is not None


def test_the_chart_is_the_same_every_time_and_takes_what_is_missing(result):
    assert precisionchart.render(read(result), "svg") == precisionchart.render(read(result), "svg")
    empty = [
        row | {"step_ms": None, "device_gib": None, "rss_gib": None, "largest": None}
        for row in result["rows"]
    ]
    assert precisionchart.render(read(result | {"rows": empty, "history": None}), "png")[:4] == b"\x89PNG"


def test_a_file_is_accepted_or_says_what_is_wrong(tmp_path, result):
    assert judge(tmp_path, result) is None
    for change, says in (
        (lambda r: r["rows"][0].update(step_ms=99.0), "step_ms is not what its rounds say"),
        (lambda r: r["claims"][0].update(ours=3.0), "claims: not what the rows say"),
        (
            lambda r: r["rows"][1]["largest"].update(batch=512),
            "the largest batch is none of those that fitted",
        ),
        (
            lambda r: r["rows"][0]["rounds"][1].update(beside=3),
            "device_gib of a round that had others beside it",
        ),
        (lambda r: r["rows"][0].update(host="x"), "rows[0]: unknown key 'host'"),
        (lambda r: r["machine"].update(name="nvidia-b200"), "is not made from its hardware"),
        (lambda r: r["history"]["changes"].append([1]), "history.changes[2]"),
    ):
        changed = json.loads(json.dumps(result))
        change(changed)
        assert says in judge(tmp_path, changed)


def test_a_history_has_every_change_of_both_scales():
    step = small({"precision": "fp16", "loss_scale": 2.0**24, "loss_scale_interval": 4}, **LEAST)
    step.prepare()
    found = loss_scales.follow(step, 8)
    assert found["updates"] == {"G": 8 + 2, "D": 8 + 1} and found["steps"] == 8
    last = found["changes"][-1]
    assert last[1:] == [
        float(step.scales["G"].scale), float(step.scales["D"].scale), found["skipped"]["G"], found["skipped"]["D"]
    ]  # fmt: skip
    assert found["skipped"]["G"] > 0 and len({tuple(c[1:]) for c in found["changes"]}) > 2
    with pytest.raises(ValueError, match="precision: fp16"):
        loss_scales.follow(small({}, **LEAST), 1)


def test_a_name_that_is_not_known_is_one_line():
    assert precision.ask("fp16, bf16,fp16") == ("fp16", "bf16") and len(precision.ask(None)) == 5
    for asked in ("fp16,int8", ",", ""):
        with pytest.raises(UserError, match="there are: fp32, tf32, bf16, fp16, fp8"):
            precision.ask(asked)
    run = CliRunner().invoke(cli.main, ["precision", "--only", "fp4"])
    assert run.exit_code == 2 and "no precision 'fp4'" in run.output


def test_a_smoke_run_on_the_cpu_is_gone_on_with_and_its_files_are_not_to_be_quoted(tmp_path):
    path, out = tmp_path / "least.yaml", tmp_path / "out"
    path.write_text("".join(f"{key}: {value}\n" for key, value in LEAST.items()))
    asked = [
        "precision",
        "-w",
        str(path),
        "--only",
        "fp16,tf32",
        "--on",
        "baseline",
        "--no-parity",
        "--steps",
        "4",
    ]
    asked += ["--device", "cpu", "--out", str(out)]
    run = CliRunner().invoke(cli.main, [*asked, "--minutes", "1e-9"])
    assert run.exit_code == 130, run.output
    (partial,) = out.glob("*-least-smoke-partial.json")
    before = json.loads(partial.read_text())
    assert judge(tmp_path, before) is None and before["history"] is None and before["rows"][0]["rounds"]
    refused = CliRunner().invoke(cli.main, [*asked[:2], "tiny", *asked[3:], "--resume", str(partial)])
    assert refused.exit_code == 2 and "another workload: batch was 2 and is 4 here" in refused.output
    for option, words in (("--seed", "seed was 0 and is 9 here"), ("--cycles", "cycles was 1 and is 9 here")):
        refused = CliRunner().invoke(cli.main, [*asked, option, "9", "--resume", str(partial)])
        assert refused.exit_code == 2 and words in refused.output
    partial.write_text(json.dumps(before | {"measured_code": before["measured_code"] | {"engine": "0" * 16}}))
    refused = CliRunner().invoke(cli.main, [*asked, "--resume", str(partial)])
    assert (
        refused.exit_code == 2
        and "--resume: other code is measured here: measured_code.eng" in refused.output
    )
    partial.write_text(json.dumps(before | {"machine": before["machine"] | {"python": "2.7.18"}}))
    refused = CliRunner().invoke(cli.main, [*asked, "--resume", str(partial)])
    assert refused.exit_code == 2 and "--resume: python was 2.7.18 and is " in refused.output
    partial.write_text(json.dumps(before | {"commit": "a" * 40}))  # a commit that changed documents alone
    run = CliRunner().invoke(cli.main, [*asked, "--resume", str(partial)])
    assert run.exit_code == 0, run.output
    found = json.loads((out / partial.name.replace("-partial", "")).read_text())
    assert judge(tmp_path, found) is None and results.SMOKE_NOTE in found["protocol"]["notes"]
    assert found["commits"] == ["a" * 40, found["commit"]]
    assert found["rows"][0]["rounds"] == before["rows"][0]["rounds"] and not partial.exists()
    rows = {row["precision"]: row for row in found["rows"]}
    assert rows["fp16"]["step_ms"] > 0 and rows["tf32"]["status"] == "n/a"
    assert found["history"]["steps"] == 4
    assert sorted(each.suffix for each in out.iterdir()) == [".json", ".md", ".png", ".svg"]
