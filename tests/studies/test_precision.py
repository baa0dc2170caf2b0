"""`ladder precision`: its rows, the search for a batch, claims from samples, and a run on the CPU that is resumed."""

import json

import msgspec
import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.engine import run as measure
from ladder.engine import timed_rung
from ladder.engine.pool import WorkerFailure
from ladder.machine import system
from ladder.results import store
from ladder.studies import batch_search, frame, precision
from ladder.studies.precision import STUDY, Observed, Options
from stylegan_lite.config import Workload
from tests.report.test_chart import check_layout, lay_out
from tests.studies.test_contract import read
from tests.support import servers
from tests.support.rung_steps import small
from tests.support.small import LEAST

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")


def search(capacity, start=8, limit_s=1e9, most=4096, group=4):
    now = [0.0]

    def fits(batch):
        now[0] += 1.0
        return None if batch <= capacity else "out of memory"

    return batch_search.search(fits, start, group, limit_s, most, lambda: now[0])


@pytest.mark.parametrize("capacity", [4, 7, 8, 20, 63, 100, 1000, 1023])
def test_the_largest_batch_is_searched_to_a_sixteenth(capacity):
    result = search(capacity)
    batch, tried = result.find_batch(), [each.batch for each in result.tried]
    assert result.settled and batch <= capacity and batch % 4 == 0
    assert capacity - batch < max(4, batch / 16 + 4)
    assert len(set(tried)) == len(tried) < 14


def test_a_search_that_is_cut_short_or_finds_nothing_says_so():
    short = search(1000, limit_s=2.5)
    assert not short.settled and [each.batch for each in short.tried] == [8, 16, 32]
    assert not search(100, limit_s=5.5).settled
    assert search(1000, most=32).find_batch() == 32 and not search(1000, most=32).settled
    assert search(3).find_batch() is None and search(3).settled


def make_job(device="cpu", **options):
    return Job(device, "least", Workload.from_dict(LEAST).to_dict(), None, {}, Options(**options), None)


def test_every_precision_has_a_recipe_or_a_reason_on_a_cpu():
    rows = {(row.on, row.precision): row for row in precision.plan_rows(make_job())}
    assert len(rows) == 10 and {key[1] for key, row in rows.items() if row.reason} == {"tf32"}
    assert rows["top", "fp16"].recipe["precision"] == "fp16" and rows["top", "fp16"].recipe["fused_adam"]
    assert "fused_adam" not in rows["baseline", "fp16"].recipe  # plain PyTorch waits for GradScaler


def test_on_a_gpu_the_top_has_graphs_in_every_precision(monkeypatch):
    everything = dict.fromkeys(system.CAPABILITIES)
    monkeypatch.setattr(system, "list_capabilities", lambda device: everything)
    top = {row.precision: row.recipe for row in precision.plan_rows(make_job("cuda", on="top"))}
    assert all(recipe["cuda_graphs"] and not recipe["whole_step_graph"] for recipe in top.values())
    assert (top["fp32"]["fp32_precision"], top["tf32"]["fp32_precision"]) == ("ieee", "tf32")
    monkeypatch.setattr(system, "list_capabilities", lambda device: everything | {"bf16": "needs BF16"})
    rows = precision.plan_rows(make_job("cuda", on="baseline"))
    assert {row.precision for row in rows if row.reason} == {"bf16", "fp8"}


@pytest.mark.parametrize("only", ["fp16,int8", ",", "fp4"])
def test_an_unknown_precision_is_one_line(only):
    with pytest.raises(UserError, match="there are: fp32, tf32, bf16, fp16, fp8"):
        precision.plan_rows(make_job(only=only))


def test_a_row_that_fails_has_no_more_parts_and_rounds_have_an_order_of_the_seed():
    _, file = read("precision")
    job = make_job("cpu", on="baseline", generations=3, batch_seconds=9.0)
    keys = list(STUDY.list_cases(job, None))
    assert keys == list(STUDY.list_cases(job, None))
    assert keys != list(
        STUDY.list_cases(make_job("cpu", **{"seed": 5, "on": "baseline", "generations": 3}), None)
    )
    assert "FP8 dense, BF16 on the baseline: largest batch" not in keys
    failed = "BF16 on the baseline: parity"
    file = msgspec.structs.replace(
        file, observed={failed: Observed(status="failed: parity", reason="far off")}
    )
    left = [key for key in STUDY.list_cases(job, file) if key.startswith("BF16")]
    assert left == [failed]


def test_claims_follow_from_the_samples():
    _, file = read("precision")
    claims = {(claim.claim, claim.precision, claim.against): claim for claim in STUDY.derive(file).claims}
    medians = {row.precision: row.medians for row in STUDY.derive(file).rows}
    ratios = sorted(medians["fp32"][k] / medians["fp16"][k] for k in range(3))
    ours = claims["throughput", "fp16", "fp32"]
    assert ratios[0] < ours.ours < ratios[2] and ours.interval[0] < ours.ours < ours.interval[1]
    sizes = {row.precision: row.allocated_gib for row in STUDY.derive(file).rows}
    assert claims["memory", "fp16", "fp32"].ours == pytest.approx(sizes["fp16"] / sizes["fp32"])
    assert claims["batch", "fp16", "fp32"].ours == pytest.approx(672 / 352)
    assert claims["batch", "bf16", "fp32"].ours is None  # its search was cut short


def test_no_figure_of_the_chart_lies_on_another_or_on_an_interval():
    _, file = read("precision")
    figure, texts = lay_out(lambda: precision._draw_figure(file, STUDY.derive(file)))
    panels = figure.axes[1:]
    names = {each.get_text() for axes in panels for each in (*axes.texts, axes.title)}
    texts = [(text, box) for text, box in texts if text in names]
    check_layout(figure, texts)
    bars = [line for axes in panels for line in axes.lines]
    intervals = [line for line in bars if len({*line.get_ydata()}) == 2]
    assert intervals, "a chart without intervals proves nothing"
    for line in intervals:
        (x, low), (_, high) = line.get_transform().transform(line.get_xydata())
        assert not [text for text, box in texts if box.x0 <= x <= box.x1 and box.y0 < high and box.y1 > low]


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("FP32 on the baseline: generation 1", {"samples_ms": [1e-3]}),
        ("FP32 on the baseline: generation 1", {"samples_ms": []}),
        ("FP16 on the baseline: loss scales", {"changes": [[1]]}),
    ],
)
def test_what_no_machine_measures_is_refused(key, change):
    data = json.loads(json.dumps(frame.write_record(read("precision")[1])))
    part = next(part for part in ("round", "history") if part in data["observed"][key])
    data["observed"][key][part] |= change
    with pytest.raises(UserError, match=r"generation 1|loss scales"):
        frame.decode_file(STUDY, data)


def test_a_history_has_every_change_of_both_scales():
    step = small({"precision": "fp16", "loss_scale": 2.0**24, "loss_scale_interval": 4}, **LEAST)
    step.prepare()
    found = timed_rung.follow_scales(step, 8)
    assert found["updates"] == {"G": 8 + 2, "D": 8 + 1} and found["steps"] == 8
    last = found["changes"][-1]
    assert last[1:] == [
        float(step.scales["G"].scale), float(step.scales["D"].scale), found["skipped"]["G"], found["skipped"]["D"]
    ]  # fmt: skip
    assert found["skipped"]["G"] > 0 and len({tuple(c[1:]) for c in found["changes"]}) > 2
    with pytest.raises(ValueError, match="precision: fp16"):
        timed_rung.follow_scales(small({}, **LEAST), 1)


def invoke(folder, *more):
    path = folder / "least.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in LEAST.items()))
    asked = ["precision", "-w", str(path), "--device", "cpu", "--out", str(folder / "out"), *more]
    return CliRunner().invoke(cli.main, asked)


def test_a_smoke_run_on_the_cpu_is_resumed_and_must_not_be_quoted(tmp_path, monkeypatch):
    asked = ("--only", "fp16,tf32", "--on", "baseline", "--steps", "4", "--batch-seconds", "9", "--most", "8")
    interrupted = precision.follow_scales

    def interrupt(session, case):
        raise KeyboardInterrupt

    monkeypatch.setattr(precision, "follow_scales", interrupt)
    run = invoke(tmp_path, *asked)
    assert run.exit_code == 130, run.output
    (partial,) = (tmp_path / "out").glob("*-least-smoke-partial.json")
    monkeypatch.setattr(precision, "follow_scales", interrupted)
    refused = invoke(tmp_path, "--seed", "9", "--resume", str(partial))
    assert refused.exit_code == 2 and "another seed" in refused.output
    run = invoke(tmp_path, "--resume", str(partial))
    assert run.exit_code == 0, run.output
    derived = frame.write_derived(
        STUDY, frame.read_file(STUDY, partial.with_name(partial.name.replace("-partial", "")))
    )
    (row,) = [row for row in derived["rows"] if row["precision"] == "fp16"]
    assert row["step_ms"] and row["parity"]["verdict"] == "ok" and row["largest"]["batch"] == 8
    assert derived["history"]["images"] and store.SMOKE_NOTE in derived["protocol"]["notes"]


def test_a_row_without_memory_ends_the_command_with_status_1(tmp_path, monkeypatch):
    def fail(session, case):
        raise WorkerFailure("oom", "out of memory in prepare")

    monkeypatch.setattr(precision, "time_row", fail)
    run = invoke(tmp_path, "--only", "fp32", "--on", "baseline", "--no-parity", "--steps", "0")
    assert run.exit_code == 1 and "FP32 on the baseline: oom: out of memory" in run.output


def test_all_rows_are_compared_side_by_side_and_again_alone_after_running_out_of_memory(
    tmp_path, monkeypatch
):
    calls = []

    def compare(session, case, threads=None):
        calls.append((case.title, threads is not None))
        if threads and case.precision == "fp16":
            raise WorkerFailure("oom", "out of memory in parity")
        if case.precision == "bf16":
            raise WorkerFailure("failed: parity", "far off")
        return Observed(parity=precision.Parity(verdict="ok", gradient_errors={}, budget="fp32"))

    monkeypatch.setattr(measure, "LANES", {"cpu": 2})
    monkeypatch.setattr(precision, "check_parity", compare)
    monkeypatch.setattr(
        precision, "time_row", lambda session, case: Observed(status="n/a", reason="not timed")
    )
    run = invoke(tmp_path, "--only", "fp32,bf16,fp16", "--on", "baseline", "--steps", "0")
    assert run.exit_code == 1, run.output
    rows = [f"{name} on the baseline" for name in ("FP32", "BF16", "FP16")]
    assert sorted(calls[:3]) == sorted((row, True) for row in rows) and calls[3:] == [(rows[2], False)]
    (path,) = (tmp_path / "out").glob("*.json")
    observed = frame.read_file(STUDY, path).observed
    assert [observed[f"{row}: parity"].status for row in rows] == ["ok", "failed: parity", "ok"]
    assert f"{rows[1]}: generation 1" not in observed and len(observed) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "bf16", "--steps", "9"), "leaves FP16 out: leave out --steps, or add fp16"),
        (("--on", "baseline", "--ladder", "full"), "--ladder is for --on top"),
        (("--most", "64"), "--most is for the search of the largest batch"),
        (("--on", "top", "--batch-seconds", "9"), "--batch-seconds searches no row"),
    ],
)
def test_an_option_that_no_row_reads_is_one_line(arguments, words, tmp_path):
    run = invoke(tmp_path, *arguments)
    assert run.exit_code == 2 and words in run.stderr and run.stderr.count("\n") == 1
    assert not list(tmp_path.glob("out/*"))
