"""`ladder kernels` in several sittings: what is measured first, what is gone on with, and what is refused."""

import json
import signal
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ladder.base.text import NO_TIME
from ladder.cli import main as cli
from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.kernelbench import bench as kernelbench
from ladder.studies.kernelbench import record, report, study
from ladder.studies.kernelbench.bench import OUT_OF_MEMORY, Bench, Row
from ladder.studies.kernelbench.cases import registry as kernelcases
from ladder.studies.kernelbench.timing import COLD, HOT
from tests.support import committed, made_up_kernels

OPS = ("modulate", "bias_act")


@pytest.fixture
def bench(monkeypatch):
    """Cases that take no time. `asked` are those that were measured; `stop_at`: that one gets a SIGTERM."""

    class Seen:
        asked: list[str] = []
        stop_at = reasons = None

    seen = Seen()
    seen.asked = []

    def case(self, case, *how):
        if len(seen.asked) == seen.stop_at:
            signal.raise_signal(signal.SIGTERM)
        seen.asked.append(case.name)
        rows = []
        for direction in case.directions:
            row = Row(case, direction, 100, 100, "graph", reasons=dict(seen.reasons or {}))
            times = {"ours": 1e-5, "twin": 1e-5, "plain": 3e-5, "copy": 0.9e-5}
            for name in times if "ours" not in row.reasons else ("plain", "copy"):
                row.samples[COLD][name] = [times[name] * (1 + k / 1000) for k in range(5)]
                row.samples[HOT][name] = [times[name]] * 3
            rows.append(row)
        yield rows

    monkeypatch.setattr(Bench, "case", case)
    monkeypatch.setattr("ladder.studies.kernelbench.compiling.compile_ours", lambda *how: None)
    monkeypatch.setattr(study.KernelStudy, "draw", lambda *_: None)  # which takes a second
    return seen


def planned(ops=OPS):
    job = SimpleNamespace(device="cpu", options=record.Options(op=list(ops)))
    return [case.name for case in study.make_request(job).cases]


def derive(path):
    return study.STUDY.derive(frame.read_file(study.STUDY, path))


def invoke(out, *args, ops=OPS):
    said = [word for op in ops for word in ("--op", op)]
    return CliRunner().invoke(cli.main, ["kernels", "--device", "cpu", "--out", str(out), *said, *args])


def interrupted(bench, out, after=1):
    """The file of a run that was stopped behind `after` cases."""
    bench.stop_at = after
    said = invoke(out)
    assert said.exit_code == 130, said.output
    bench.stop_at = None
    (path,) = out.glob("*-partial.json")
    return path


def refused(out, *args, ops=()):
    said = invoke(out, *args, ops=ops)
    assert said.exit_code == 2 and said.output.count("\n") == 1, said.output
    return said.output


def test_a_run_goes_on_from_where_it_ended(bench, tmp_path):
    path = interrupted(bench, tmp_path)
    first = derive(path)
    assert len(bench.asked) == 1 and [each.cases for each in first.sittings] == [1]
    begun = json.loads(path.read_text())
    for each in begun["observed"].values():
        each["sitting"]["started"] = "2026-01-01T00:00:00+00:00"
    path.write_text(json.dumps(begun))
    said = invoke(tmp_path, "--resume", str(path), "--minutes", "3", ops=())
    assert said.exit_code == 0, said.output
    assert sorted(bench.asked) == sorted(planned())  # each once
    (whole,) = tmp_path.glob("*.json")  # the unfinished files are gone, all four
    assert not [*tmp_path.glob("*partial*")] and validate.problem_of(whole) is None
    found = derive(whole)
    assert [each.cases for each in found.sittings] == [1, len(planned()) - 1]
    assert found.sittings[1].minutes == found.protocol.minutes == 3
    assert found.protocol.ops == list(OPS)
    for row in found.rows:
        assert row.sitting == (0 if row.case == bench.asked[0] else 1) and row.verdict == "ours faster"
    said = "\n".join(report.list_remarks(found))
    assert f"measured in 2 sittings, of 1, {len(planned()) - 1} cases" in said


def test_of_cases_that_had_no_time_only_those_are_measured(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(kernelbench.Allowance, "over", property(lambda self: len(bench.asked) == 2))
    said = invoke(tmp_path)
    (path,) = tmp_path.glob("*.json")
    assert said.exit_code == 0 and f"cases not measured: {NO_TIME}" in said.output
    monkeypatch.setattr(kernelbench.Allowance, "over", False)
    before = list(bench.asked)
    assert invoke(tmp_path, "--resume", str(path), ops=()).exit_code == 0
    assert len(before) == 2 and sorted(bench.asked) == sorted(planned())
    assert not any(NO_TIME in row.reasons.values() for row in derive(path).rows)


@pytest.mark.parametrize(("reason", "again"), [("RuntimeError: lost", True), (OUT_OF_MEMORY, False)])
def test_what_failed_is_tried_again_but_for_memory(bench, tmp_path, reason, again):
    bench.reasons = {"ours": reason}
    path = interrupted(bench, tmp_path)
    bench.reasons = None
    invoke(tmp_path, "--resume", str(path), ops=())
    assert (bench.asked.count(bench.asked[0]) == 2) == again


def test_a_case_of_other_shapes_and_another_kind_are_refused(bench, tmp_path):
    path = interrupted(bench, tmp_path)
    whole = path.read_text()
    path.write_text(whole.replace("8x8", "9x9"))
    said = refused(tmp_path, "--resume", str(path))
    assert "9x9" in said and "would not be measured here" in said
    tuned = committed.file("results/kernels/nvidia-h200-tuning.json")
    assert "schema: 1 is none of 2" in refused(tmp_path, "--resume", str(tuned))
    path.write_text(whole)
    assert "another op" in refused(tmp_path, "--resume", str(path), ops=("modulate",))
    assert len(bench.asked) == 1


def test_what_is_finished_is_on_disk_before_the_end(bench, tmp_path, monkeypatch):
    """A machine that is taken away sends no signal."""
    monkeypatch.setattr(study.KernelStudy, "save_every_s", 0.0)
    seen, real = [], Bench.case

    def case(self, case, *how):
        seen.extend(len(derive(path).rows) for path in tmp_path.glob("*-partial.json"))
        yield from real(self, case, *how)

    monkeypatch.setattr(Bench, "case", case)
    assert invoke(tmp_path).exit_code == 0
    assert seen == [3 * (k + 1) for k in range(len(planned()) - 1)]
    assert not [*tmp_path.glob("*partial*")]


def test_a_whole_file_is_gone_on_with_by_measuring_nothing(bench, tmp_path):
    invoke(tmp_path)
    (path,) = tmp_path.glob("*.json")
    before = json.loads(path.read_text())["observed"]
    assert invoke(tmp_path, "--resume", str(path), ops=()).exit_code == 0
    assert json.loads(path.read_text())["observed"] == before and len(bench.asked) == len(planned())


def test_memory_bound_ops_at_large_maps_come_first():
    cases = made_up_kernels.cases()
    order = kernelcases.in_order(cases, "memory-bound")
    assert sorted(order, key=cases.index) == cases == kernelcases.in_order(cases, "largest")
    wanted = [
        case.name
        for case in cases
        if case.op.startswith(("bias_act ", "modulate", "upfirdn2d")) or case.op == "bias_act"
        if case.op.split()[0] in ("bias_act", "modulate", "upfirdn2d")
        if case.setting == 0 and case.batch in (8, 32) and case.shape[2] in (128, 129, 256, 257)
    ]
    first = [case.name for case in order[: len(wanted)]]
    assert first == wanted and len(wanted) > 20
    for op in ("bias_act", "bias_act noise scale", "modulate"):
        for shape in ("8x64x256x256", "32x64x256x256", "8x128x128x128", "32x128x128x128"):
            assert f"{op} {shape} bf16 channels_last" in first
    assert "upfirdn2d down 32x64x256x256 bf16 channels_last" in first


@pytest.mark.parametrize("first", ["largest", "memory-bound"])
def test_the_command_measures_in_the_order_that_is_asked_for(first, bench, tmp_path, monkeypatch):
    real, firsts = kernelcases.in_order, []
    monkeypatch.setattr(
        kernelcases, "in_order", lambda cases, first: firsts.append(first) or real(cases, first)[::-1]
    )
    invoke(tmp_path, "--first", first)
    assert set(firsts) == {first} and bench.asked == planned()
