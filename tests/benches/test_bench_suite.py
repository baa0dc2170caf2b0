"""`make bench-kernels`: the cases of asv and no others, in a file that names a machine and no host."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import kernels
import kernels.cuda
from benches.kernels import CASES, DIRECTIONS
from ladder.studies.kernelbench import cases as kernelcases
from tests import bench_kernels

ROOT = Path(__file__).resolve().parents[2]
# Public ops of `kernels` and `kernels.cuda` ("cuda.") without an entry, with the reason.
NOT_TIMED = {"scale_channels": "another name of modulate", "cuda.empty": "does nothing, and has no input"}
NO_OPS = {
    "available",
    "fast_double_backward",
    "cuda.available",
    "cuda.Flags",
    "cuda.Resources",
    "cuda.resources",
    "cuda.Unavailable",
}


def test_with_a_gpu_it_runs_every_case_of_asv_in_every_direction(monkeypatch):
    monkeypatch.setattr(bench_kernels, "GPU", True)
    wanted = {(name, d) for name in CASES for d in DIRECTIONS if d in kernelcases.parse_case(name).directions}
    assert set(bench_kernels.pairs()) == wanted and len(bench_kernels.pairs()) == len(wanted)


def test_without_one_every_op_but_cuda_c_runs_once_in_every_direction(monkeypatch):
    monkeypatch.setattr(bench_kernels, "GPU", False)
    found = {(kernelcases.parse_case(name).op, direction) for name, direction in bench_kernels.pairs()}
    here = {op for op, entry in kernelcases.OPS.items() if not entry.needs}
    assert {op for op, _ in found} == here and len(found) == len(bench_kernels.pairs())


def test_every_public_op_is_timed_or_says_why_not():
    """Every op that `kernels` and `kernels.cuda` export: a new one needs an entry here, and one in benches/."""
    public = set(kernels.__all__) | {f"cuda.{name}" for name in kernels.cuda.__all__}
    public = {name for name in public if not name.endswith("_reference")} - NO_OPS
    timed = {kernelcases.parse_case(name).entry.function for name in CASES}
    assert timed | set(NOT_TIMED) == public and not timed & set(NOT_TIMED)
    assert {kernelcases.parse_case(name).op for name in CASES} == set(kernelcases.OPS)
    assert all(NOT_TIMED.values())


def test_its_file_is_a_smoke_test_s_and_names_no_host(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.bench_plugin"]
    command += [
        "tests/bench_kernels.py",
        "-k",
        "scale_act or conv2d",
        f"--benchmark-json={out}",
        "-p",
        "no:cacheprovider",
    ]
    env = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTEST")
    }  # xdist's would stop it
    env |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    found = json.loads(out.read_text())
    assert len(found["benchmarks"]) == 6 and "not to be quoted" in found["note"]
    for each in found["benchmarks"]:
        assert (
            each["stats"]["median"] > 0 and kernelcases.parse_case(each["extra_info"]["ran"]).dtype == "fp32"
        )
    assert platform.node() not in json.dumps([found["machine_info"], found["commit_info"]])
    assert str(ROOT) not in out.read_text()
