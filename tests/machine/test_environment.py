"""Environment variables that change what is measured: recorded without paths, refused where they falsify."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core.errors import UserError
from ladder.core.records import Text, locate_problem
from ladder.machine import environment
from ladder.results import file as file_records
from ladder.results import judging
from ladder.results.combine import comparing, merging, resuming
from tests.support import made_up
from tests.support.fake_runs import run, stored
from tests.support.typed import Reading

merging = Reading(merging)
resuming = Reading(resuming)
comparing = Reading(comparing)
judging = Reading(judging)


@pytest.mark.parametrize("name", environment.FALSIFIES)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_variable_that_falsifies_is_refused_in_one_line_that_says_what_to_do(name, device):
    with pytest.raises(UserError) as refusal:
        environment.refuse_variables(device, {name: "1"})
    line = str(refusal.value)
    assert line.endswith(f"unset {name}") and "\n" not in line


@pytest.mark.parametrize(
    "name", ["CUDA_LAUNCH_BLOCKING", "TORCHDYNAMO_DISABLE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"]
)
@pytest.mark.parametrize("off", ["0", ""])
def test_a_switch_that_is_off_falsifies_nothing(name, off):
    environment.refuse_variables("cuda", {name: off})


def test_tritons_interpreter_is_for_cpus_alone():
    environment.refuse_variables("cpu", {"TRITON_INTERPRET": "1"})
    with pytest.raises(UserError, match="unset TRITON_INTERPRET"):
        environment.refuse_variables("cuda", {"TRITON_INTERPRET": "1"})


CHANGING = {
    "OMP_NUM_THREADS": "1",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "PYTORCH_ALLOC_CONF": "max_split_size_mb:128",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
}


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_a_number_is_recorded_as_it_is_and_said(name):
    seen = environment.read_variables({name: CHANGING[name], "HOME": "/home/someone", "PATH": "/usr/bin"})
    assert seen == {name: CHANGING[name]}
    assert environment.describe_variables(seen) == [f"measured with {name}={CHANGING[name]}"]
    assert locate_problem(dict[file_records.Variable, Text], seen) is None


def test_a_run_sets_the_spin_count_of_every_rung_and_stores_it(tmp_path, monkeypatch):
    """The user's own is in force nowhere, so it is no condition of the result."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "100000")
    result = run(tmp_path, {"a": {}, "b": {}})
    assert {rung["settings"]["gomp_spincount"] for rung in result["rungs"]} == {"0"}
    assert "GOMP_SPINCOUNT" not in result[environment.KEY] and stored(tmp_path) == result
    assert environment.read_variables()["GOMP_SPINCOUNT"] == "100000"  # of what runs in this process


@pytest.mark.parametrize(
    "name, value",
    [
        ("LD_PRELOAD", "/home/someone/lib/mine.bin"),
        ("CUDNN_LOGDEST_DBG", "/home/someone/log.txt"),
        ("MALLOC_TRACE", "/home/someone/trace"),
        ("TRITON_DUMP", "~/someone/x\n<b>"),
    ],
)
def test_a_path_is_never_in_a_result_but_another_path_is_another_environment(name, value):
    seen, other = environment.read_variables({name: value}), environment.read_variables({name: value + "2"})
    assert "someone" not in json.dumps(seen) and seen.keys() == {name} and seen != other
    assert locate_problem(dict[file_records.Variable, Text], seen) is None


@pytest.mark.parametrize(
    "name",
    ["CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_REDIS_HOST",
     "CUDA_VERSION", "TORCH_HOME", "PYTORCH_BUILD_NUMBER", "TORCH_SYMM_MEM_DISABLE_MULTICAST"],
)  # fmt: skip
def test_which_gpu_and_where_files_lie_are_not_recorded(name):
    assert environment.read_variables({name: "GPU-12345678"}) == {}
    older = {environment.KEY: {name: "GPU-12345678"}}  # as a version that took it down has stored it
    assert environment.describe_variables(older[environment.KEY]) == []
    assert environment.list_differences(older[environment.KEY], {}) == []


COMMANDS = {
    "run": ["run", "--workload", "tiny", "--device", "cpu", "--quick"],
    "kernels": ["kernels", "--device", "cpu"],
    "bench-compare": ["bench-compare", "--base", "HEAD", "--device", "cpu"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_measures_refuses_before_anything_is_written(tmp_path, command):
    asked = [*COMMANDS[command], "--out", str(tmp_path / "out")]
    seen = CliRunner().invoke(cli.main, asked, prog_name="ladder", env={"CUDA_LAUNCH_BLOCKING": "1"})
    assert seen.exit_code == 2 and seen.stderr.count("\n") == 1, seen.output
    assert "unset CUDA_LAUNCH_BLOCKING" in seen.stderr and not (tmp_path / "out").exists()


def made(**variables: str) -> dict:
    return made_up.gpu_run() | {environment.KEY: variables}


def test_results_of_two_environments_neither_merge_nor_compare():
    one, other = made(OMP_NUM_THREADS="1"), made(OMP_NUM_THREADS="2")
    assert merging.list_work_differences(one, other) == ["OMP_NUM_THREADS: 1 and 2"]
    assert "OMP_NUM_THREADS: 1 and 2" in comparing.differences(one, other)
    old = made_up.gpu_run()  # an earlier version does not say
    assert merging.list_work_differences(old, one) == [] and comparing.differences(old, one) == []


def test_a_run_goes_on_in_its_own_environment_alone(tmp_path):
    path = Path("run.json")
    with pytest.raises(UserError, match="OMP_NUM_THREADS: 1 and not set; start a new run") as refusal:
        resuming.continue_header(path, made(OMP_NUM_THREADS="1"), made())
    assert "\n" not in str(refusal.value)
    resuming.continue_header(path, made_up.gpu_run(), made(OMP_NUM_THREADS="1"))
