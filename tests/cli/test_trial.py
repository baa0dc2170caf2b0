"""The quick look: which recipes are tried, and that one failure or a bad name costs neither the others nor a trace."""

import json

import pytest
from click.testing import CliRunner

from ladder import trial
from ladder.plan import catalog, needs
from ladder.publish.validation import validate
from stylegan_lite.step import TrainingStep
from tests.support import made_up

ROW = {
    "step_ms": 10.0,
    "main_ms": 8.0,
    "phases_ms": dict.fromkeys(trial.PHASES, 2.0),
    "reserved_gib": 1.0,
    "seconds": 1.0,
}
HARDWARE = {"machine": made_up.gpu_run()["machine"]}
ALL_CAN = dict.fromkeys(needs.NEEDS)


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """Run the command with a made-up trial; returns (what it said, the file it wrote)."""
    seen = []

    def pretend(fields, recipe, device, kernels):
        seen.append(recipe)
        if "bf16" not in recipe.values():
            return {"error": "RuntimeError: no kernel", "seconds": 0.1}
        return ROW | {"recipe": recipe}

    monkeypatch.setattr(trial, "trial", pretend)
    monkeypatch.setattr(trial.system, "choose_device", lambda device: "cpu")
    monkeypatch.setattr(trial.system, "capabilities", lambda device: ALL_CAN)

    def run(*arguments):
        out = tmp_path / "trial.json"
        said = CliRunner().invoke(trial.command, ["--ladder", "article", "--out", str(out), *arguments])
        return said, json.loads(out.read_text()) if out.exists() else None

    return run


def test_the_whole_ladder_and_then_without_each_rung_named(tried):
    said, found = tried("--without", "bf16", "--without", "fused_act")
    assert said.exit_code == 0 and list(found["variants"]) == ["all", "without bf16", "without fused_act"]
    assert found["kind"] == "trial" and found["machine"]["torch"] and found["workload"]["data"] is None
    assert found["variants"]["without bf16"]["error"] == "RuntimeError: no kernel"  # and the next went on
    assert "no kernel" in said.output and "not to quote" in said.output
    assert found["complete"] and found["seconds"] >= 0 and validate.check(found | HARDWARE) is None


def test_each_leaves_out_every_rung_once(tried):
    _, found = tried("--each", "--only")
    rungs = [rung.name for rung in catalog.load_ladder("article").rungs[1:]]
    assert list(found["variants"]) == [f"without {name}" for name in rungs]


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--only"], "--without"), (["--without", "nonsense"], "nonsense")]
)
def test_bad_input_is_one_line_and_nothing_is_written(tried, arguments, words):
    said, found = tried(*arguments)
    assert said.exit_code == 2 and found is None
    assert words in said.output and said.output.startswith("ladder.trial: ") and said.output.count("\n") == 1


def test_a_step_is_timed_whole_and_by_phase_on_a_cpu(monkeypatch):
    from tests.support.small import SMALL

    monkeypatch.setattr(trial, "CYCLES", 1)
    monkeypatch.setattr(trial, "REPLAYS", 1)
    lazy, cycle = [], TrainingStep.cycle
    monkeypatch.setattr(TrainingStep, "cycle", lambda step, on=True: (lazy.append(on), cycle(step, on))[1])
    row = trial.trial(SMALL, {"channels_last": True, "instance_norm": "var_mean"}, "cpu", False)
    assert "error" not in row and set(row["phases_ms"]) == set(trial.PHASES)
    assert row["step_ms"] > 0 < row["main_ms"] and lazy == [True, True, False]  # one to warm up
    assert "error" in trial.trial(SMALL, {"cuda_graphs": True, "adam": "capturable"}, "cpu", False)
