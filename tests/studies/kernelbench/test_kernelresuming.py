"""The command `ladder kernels`: its files, in several sittings too, and what it refuses."""

import json
import signal
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core.text import NO_TIME
from ladder.machine import system
from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.kernelbench import bench as kernelbench
from ladder.studies.kernelbench import record, study
from ladder.studies.kernelbench.bench import OUT_OF_MEMORY, Bench, Row
from ladder.studies.kernelbench.timing import COLD, HOT

OPS = ("modulate", "bias_act")


@pytest.fixture
def bench(monkeypatch):
    """Cases that take no time. `measured` are their names; at number `stop_at` comes a SIGTERM."""
    state = SimpleNamespace(measured=[], stop_at=None, reasons={}, before=lambda: None, lost=())

    def measure_case(self, case, *how):
        state.before()
        if len(state.measured) == state.stop_at:
            signal.raise_signal(signal.SIGTERM)
        if case.name in state.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        state.measured.append(case.name)
        rows = []
        for direction in case.directions:
            row = Row(case, direction, 100, 100, "graph", reasons=dict(state.reasons))
            times = {"ours": 10.0, "twin": 10.0, "plain": 30.0, "copy": 9.0}
            for name in times if "ours" not in row.reasons else ("plain", "copy"):
                row.samples_us[COLD][name] = [times[name] * (1 + k / 1000) for k in range(5)]
                row.samples_us[HOT][name] = [times[name]] * 3
            rows.append(row)
        return rows

    monkeypatch.setattr(Bench, "measure_case", measure_case)
    monkeypatch.setattr(kernelbench, "compile_ours", lambda *how: None)
    monkeypatch.setattr(study.KernelStudy, "draw", lambda *_: None)  # which takes a second
    return state


def plan(first="memory-bound"):
    job = SimpleNamespace(device="cpu", options=record.Options(op=list(OPS), first=first))
    return [case.name for case in study.make_request(job)[0]]


def derive(path):
    return study.STUDY.derive(frame.read_file(study.STUDY, path))


def invoke(out, *args, ops=OPS, device="cpu"):
    words = [word for op in ops for word in ("--op", op)] + (["--device", device] if device else [])
    return CliRunner().invoke(cli.main, ["kernels", "--out", str(out), *words, *args])


def interrupt(bench, out):
    """Return the file of a run that was stopped behind its first case."""
    bench.stop_at = 1
    ended = invoke(out)
    assert ended.exit_code == 130, ended.output
    bench.stop_at = None
    (path,) = out.glob("*-partial.json")
    return path


def test_the_command_writes_json_markdown_and_chart(tmp_path):
    """The real Triton kernel in the interpreter, with torch.compile's tracing: all but the times is as on a GPU."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is off where there is a GPU")
    ended = invoke(tmp_path, ops=["modulate"])
    assert ended.exit_code == 0, ended.output
    assert "not to be quoted" in ended.output and "modulate" in ended.output
    (path,) = tmp_path.glob("*.json")
    assert path.stem.endswith("-modulate-smoke")
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".md", ".png", ".svg"}
    _, backward, double, *_ = derive(path)["rows"]
    assert backward.direction == "backward" and backward.share["ours"].median > 0
    (launch, *_) = backward.launches
    assert launch.kernel == "modulate_grad_kernel" and "BLOCK_P=" in launch.choices and len(launch.grid) == 2
    assert "double backward" in double.reasons["compile"]


def test_the_host_s_time_alone_is_one_table(tmp_path):
    """Nothing is compiled for it, and nothing but the calls is timed."""
    pytest.importorskip("triton")
    ended = invoke(tmp_path, "--host", ops=["modulate"])
    assert ended.exit_code == 0, ended.output
    assert "The host's time" in ended.output and "share of copy" not in ended.output
    (path,) = tmp_path.glob("*-modulate-host-smoke.json")
    for row in derive(path)["rows"]:
        assert row.us["host"].keys() == {"ours", "plain"} and not row.us["cold"] and not row.reasons


@pytest.mark.parametrize(
    ("device", "args", "words"),
    [
        (None, (), "CUDA GPU"),
        ("cpu", ("--op", "nonsense"), "no op is called 'nonsense'"),
        ("cpu", ("--workload", "nosuch"), "nosuch"),
        ("cpu", ("--workload", "article"), "leave out --workload"),
        ("cpu", ("--nvidia", "."), "--nvidia needs a CUDA GPU"),
    ],
)
def test_an_impossible_request_is_one_line_and_leaves_no_file(device, args, words, monkeypatch, tmp_path):
    monkeypatch.setattr(system, "choose_device", lambda requested=None: requested or "cpu")
    ended = invoke(tmp_path, *args, ops=(), device=device)
    assert ended.exit_code == 2 and ended.output.count("\n") == 1 and words in ended.output
    assert not [*tmp_path.iterdir()]


def test_a_lost_device_is_a_reason_and_the_other_cases_are_measured(bench, tmp_path):
    bench.lost = plan()[:1]
    ended = invoke(tmp_path)
    assert ended.exit_code == 1 and bench.measured == plan()[1:], ended.output
    (path,) = tmp_path.glob("*.json")
    lost = {
        row.case for row in derive(path)["rows"] if "illegal memory access" in row.reasons.get("ours", "")
    }
    assert lost == {*plan()[:1]}


def test_a_run_goes_on_from_where_it_ended(bench, tmp_path):
    path = interrupt(bench, tmp_path)
    assert len(bench.measured) == 1 and [each["cases"] for each in derive(path)["sittings"]] == [1]
    begun = json.loads(path.read_text())
    for each in begun["observed"].values():
        each["sitting"]["started"] = "2026-01-01T00:00:00+00:00"
    path.write_text(json.dumps(begun))
    ended = invoke(tmp_path, "--resume", str(path), "--minutes", "3", ops=())
    assert ended.exit_code == 0, ended.output
    assert bench.measured == plan()
    (whole,) = tmp_path.glob("*.json")  # the unfinished files are gone, all four
    assert not [*tmp_path.glob("*partial*")] and validate.problem_of(whole) is None
    result = derive(whole)
    assert [each["cases"] for each in result["sittings"]] == [1, len(plan()) - 1]
    assert result["sittings"][1]["minutes"] == result["protocol"]["minutes"] == 3
    assert result["protocol"]["ops"] == list(OPS)
    for row in result["rows"]:
        assert row.sitting == (row.case != bench.measured[0]) and row.verdict == "ours faster"
    before = json.loads(whole.read_text())["observed"]
    assert invoke(tmp_path, "--resume", str(whole), ops=()).exit_code == 0  # nothing is left to measure
    assert json.loads(whole.read_text())["observed"] == before and len(bench.measured) == len(plan())


def test_of_cases_that_had_no_time_only_those_are_measured(bench, tmp_path):
    ended = invoke(tmp_path, "--minutes", "1e-9")
    (path,) = tmp_path.glob("*.json")
    assert ended.exit_code == 0 and f"cases not measured: {NO_TIME}" in ended.output and not bench.measured
    assert ended.output.count(NO_TIME) == 1  # not a line for each case
    assert invoke(tmp_path, "--resume", str(path), "--minutes", "4", ops=()).exit_code == 0
    assert bench.measured == plan()
    assert all(row.is_reached for row in derive(path)["rows"])


@pytest.mark.parametrize(("reason", "again"), [("RuntimeError: lost", True), (OUT_OF_MEMORY, False)])
def test_what_failed_is_tried_again_but_for_memory(bench, tmp_path, reason, again):
    bench.reasons = {"ours": reason}
    path = interrupt(bench, tmp_path)
    bench.reasons = {}
    invoke(tmp_path, "--resume", str(path), ops=())
    assert (bench.measured.count(bench.measured[0]) == 2) == again


def test_a_case_of_other_shapes_and_other_ops_are_refused(bench, tmp_path):
    path = interrupt(bench, tmp_path)
    whole = path.read_text()
    for text, ops, words in ((whole.replace("8x8", "9x9"), (), "9x9"), (whole, ("modulate",), "another op")):
        path.write_text(text)
        ended = invoke(tmp_path, "--resume", str(path), ops=ops)
        assert ended.exit_code == 2 and ended.output.count("\n") == 1 and words in ended.output
    assert len(bench.measured) == 1


def test_what_is_finished_is_on_disk_before_the_end(bench, tmp_path, monkeypatch):
    """A machine that is taken away sends no signal."""
    monkeypatch.setattr(study.KernelStudy, "save_every_s", 0.0)
    rows = []
    bench.before = lambda: rows.extend(len(derive(path)["rows"]) for path in tmp_path.glob("*-partial.json"))
    assert invoke(tmp_path).exit_code == 0
    assert rows == [3 * (k + 1) for k in range(len(plan()) - 1)]


@pytest.mark.parametrize("first", ["largest", "memory-bound"])
def test_the_command_measures_in_the_requested_order(first, bench, tmp_path):
    invoke(tmp_path, "--first", first)
    assert bench.measured == plan(first)
