"""The run behind `ladder kernels --claims`, on the CPU and, where there is one, on a GPU."""

import json
import signal

import pytest
import torch
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.publish.validation import validate
from ladder.studies.claims import experiments, launching, run, stepping
from ladder.studies.claims.hardware import counters, resources
from tests.support import made_up_claims


def claim_of(result, name):
    return next(row for row in result["claims"] if row["name"] == name)


def test_kernels_of_a_step_come_first_and_each_kernel_is_listed_once(monkeypatch):
    def launched(*names):
        def run_(device, smoke):
            for name in names:
                watched.add(made_up_claims.kernel("4", 32, source=what[0], kernel=name))
            what.pop(0)
            if "broken" in names:
                raise RuntimeError("no such workload")

        return run_

    watched, what = resources.Kernels(), [stepping.STEP, stepping.OPS, stepping.ALSO]
    monkeypatch.setattr(stepping, "_step", launched("a", "broken"))
    monkeypatch.setattr(stepping, "_ops", launched("a", "b"))
    monkeypatch.setattr(stepping, "_calls", launched("b", "c", "a"))
    notes = stepping.watch(watched, "cuda", smoke=False)
    found = {row.kernel: row.source for row in watched.rows(None)}
    assert found == {"a": "step", "broken": "step", "b": "ops", "c": "calls"} and len(watched.rows(None)) == 4
    assert len(notes) == 1 and "no such workload" in notes[0]


def test_contenders_in_cuda_cpp_are_profiled_after_everything_was_timed(monkeypatch):
    """A profiler stays in a process, and what is timed behind it is slower."""
    order = []
    monkeypatch.setattr(experiments, "IN_CUDA", ("fusion",))
    monkeypatch.setattr(experiments, "all_experiments", lambda: [experiments.fusion()])
    monkeypatch.setattr(run.timed.Stopwatch, "repeat", lambda self, timed: order.append("timed"))
    monkeypatch.setattr(launching, "measure", lambda *a: launching.Launches({}, {}))
    monkeypatch.setattr(experiments, "norm_errors", lambda setting: {})
    monkeypatch.setattr(stepping, "watch", lambda *a: [])

    def profiled(call, source):
        order.append("profiled")
        if "profiled" in order[:-1]:
            raise RuntimeError("CUPTI is not there")
        return [made_up_claims.kernel("4", 32, source=source, language=resources.CUDA, local_bytes=None)]

    monkeypatch.setattr(resources, "profiled", profiled)
    found = run.measure("cpu", minutes=1, seed=0, quick=True, count=True, on_event=lambda event: None)
    assert order == ["timed", "timed", "profiled", "profiled"]
    assert "fusion: three operators" in {row.source for row in found.kernels}
    assert any("CUPTI is not there" in note for note in found.protocol.notes) and found.complete


def test_achieved_occupancy_is_that_of_the_longest_launch_of_that_kernel():
    counted = {
        "ops: bias_act, forward": [counters.Counts("bias_act_kernel", [1], occupancy=70.0, ns=9.0)],
        "ops: bias_act, backward": [counters.Counts("bias_act_kernel", [1], occupancy=20.0, ns=1.0)],
        "norm: CUDA": [counters.Counts("planes_kernel", [1], occupancy=40.0, ns=5.0)],
    }

    def achieved(source, kernel):
        return run.achieved(made_up_claims.kernel("4", 32, source=source, kernel=kernel), counted)

    assert achieved("step", "bias_act_kernel") == 0.7
    assert achieved("norm: CUDA", "planes_kernel<float>") == 0.4
    assert achieved("norm: Triton", "planes_kernel") is None


def test_what_other_commands_measured_on_this_machine_is_taken_from_their_files(tmp_path):
    (tmp_path / "gpu").mkdir()
    for name, count in (
        ("article-article-20260101T000000Z", 10.0),
        ("article-article-20260301T000000Z", 20.0),
        ("article-full-20260201T000000Z", 15.0),
        ("article-article-20260401T000000Z", None),
    ):
        rung = {"name": "baseline", "inspection": count and {"kernels_per_step": count}}
        (tmp_path / "gpu" / f"{name}.json").write_text(json.dumps({"rungs": [rung]}))
    assert run.kernels_per_step("gpu", tmp_path) == 20.0 and run.kernels_per_step("other", tmp_path) is None
    newer = tmp_path / "gpu" / "article-full-20260501T000000Z.json"
    newer.write_text(json.dumps({"rungs": [rung | {"inspection": {"kernels_per_step": 25.0}}]}))
    assert run.kernels_per_step("gpu", tmp_path) == 25.0
    newer.write_text(newer.read_text().replace("baseline", "fused_act"))
    assert run.kernels_per_step("gpu", tmp_path) == 20.0
    row = {"claim": "memory", "precision": "bf16", "on": "top", "ours": 0.6, "interval": None, "article": 0.5}
    rows = [row | {"against": "fp32"}, row | {"against": "tf32"}, row | {"against": "fp32", "ours": None}]
    (tmp_path / "gpu.json").write_text(json.dumps({"claims": rows}))
    assert [each.on for each in run.precision_claims("gpu", tmp_path)] == ["top"]
    assert run.precision_claims("other", tmp_path) == []
    (tmp_path / "gpu-partial.json").write_text(json.dumps({"claims": [row | {"against": "fp32"}] * 2}))
    assert len(run.precision_claims("gpu", tmp_path)) == 1
    (tmp_path / "gpu.json").unlink()
    assert len(run.precision_claims("gpu", tmp_path)) == 2


def invoke(*args):
    return CliRunner().invoke(cli.main, ["kernels", "--claims", *args])


def test_what_cannot_be_asked_for_is_one_line_and_status_2(monkeypatch):
    told = invoke("--device", "cpu", "--op", "bias_act")
    assert (
        told.exit_code == 2
        and told.output.count("\n") == 1
        and "--claims has shapes of its own" in told.output
    )


def test_all_of_it_runs_on_the_cpu_and_is_marked_as_not_to_be_quoted(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is off where there is a GPU")
    wanted = ("norm forward bf16", "fusion", "occupancy", "coalescing")
    whole = experiments.all_experiments()
    monkeypatch.setattr(experiments, "all_experiments", lambda: [e for e in whole if e.name in wanted])
    told = invoke("--device", "cpu", "--out", str(tmp_path))
    assert told.exit_code == 0, told.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 4 and all("smoke" in name for name in names)
    (path,) = tmp_path.glob("*.json")
    assert validate.problem_of(path) is None
    data = json.loads(path.read_text())
    assert "not to be quoted" in data["protocol"]["notes"][0] and data["complete"]
    found = {each["name"]: each for each in data["experiments"]}
    assert {"PyTorch", "Triton"} == set(found["norm forward bf16"]["samples_us"])
    assert "needs a CUDA GPU" in found["coalescing"]["reasons"]["strided"]
    sources = {row["source"] for row in data["kernels"]}
    assert {"fusion: one", "occupancy: 4 elements", "ops"} <= sources
    assert claim_of(data, "launch overhead")["ours"] and not claim_of(data, "coalescing")["ours"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_a_time_limit_keeps_what_there_is(number, monkeypatch):
    def interrupted(self):
        signal.raise_signal(number)

    monkeypatch.setattr(run.Session, "time_experiments", interrupted)
    monkeypatch.setattr(
        launching,
        "measure",
        lambda *a: launching.Launches({f"launch: {launching.ADD}": [5.0, 6.0]}, {}),
    )
    found = run.measure("cpu", minutes=1, seed=0, quick=True, count=True, on_event=lambda event: None)
    assert not found.complete and "interrupted" in found.protocol.notes
    (overhead,) = (claim for claim in found.claims if claim.name == "launch overhead")
    assert overhead.ours.median == 5.5
    assert found.protocol.counters == "not counted"


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_every_contender_runs_on_a_gpu_and_every_kernel_has_its_registers(monkeypatch, tmp_path):
    """Small maps, two repeats; a contender may be missing (no nvcc), or too slow in its launches, but none may fail."""
    monkeypatch.setattr(experiments, "SHAPE", (4, 64, 64, 64))
    monkeypatch.setattr(
        stepping, "_step", lambda device, smoke: None
    )  # minutes of compiling; the ops are launched
    told = invoke("--quick", "--minutes", "3", "--json", "--out", str(tmp_path))
    assert told.exit_code == 0, told.output
    (path,) = tmp_path.glob("*.json")
    data = json.loads(path.read_text())
    assert validate.problem_of(path) is None
    for each in data["experiments"]:
        for name, reason in each["reasons"].items():
            allowed = (
                "CUDA",
                "nvcc",
                "have no",
                "HostBound",
            )  # the last: the CPUs are busy, with other tests say
            assert any(word in reason for word in allowed), (each["name"], name, reason)
    compiled = [row for row in data["kernels"] if row["language"] == resources.TRITON]
    assert compiled and all(row["registers"] for row in compiled)
    assert {row["occupancy"] for row in compiled} != {None}
