"""Nsight Compute and Nsight Systems: command lines, sentences, and one line where a tool is missing or says nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ladder.base.errors import UserError
from ladder.results.raw import KernelFamily
from ladder.studies.claims.hardware import counters, watched
from ladder.studies.claims.hardware.counters import Launch, launched
from ladder.studies.profile import counted, nsys, target
from tests.support.small import LEAST

KERNELS = [
    KernelFamily(name="Memcpy DtoD (Device -> Device)", ms=9.0, launches=1.0),
    KernelFamily(name="vectorized_elementwise_kernel(MulFunctor)", ms=5.0, launches=100.0),
    KernelFamily(name="cudnn::ops::nchwToNhwcKernel", ms=4.0, launches=10.0),
    KernelFamily(name="vectorized_elementwise_kernel(AddFunctor)", ms=3.0, launches=100.0),
    KernelFamily(name="bias_act_kernel", ms=2.0, launches=10.0),
    KernelFamily(name="12 other kernels", ms=2.0, launches=10.0),
]


def test_the_heaviest_kernels_are_told_by_their_functions() -> None:
    names = counted.heaviest(KERNELS)
    assert names == ["vectorized_elementwise_kernel", "nchwToNhwcKernel", "bias_act_kernel"]
    assert counted.heaviest(KERNELS, most=1) == names[:1]
    line = counted.command("/opt/ncu", names, Path("step.json"))
    assert line[0] == "/opt/ncu" and line[-1] == "step.json" and line[-2] == "ladder.studies.profile.target"
    assert "regex:^(vectorized_elementwise_kernel|nchwToNhwcKernel|bias_act_kernel).*" in line
    assert ",".join(counted.METRICS.values()) in line
    at = line.index(
        "--launch-count"
    )  # of each grid: a step has thousands of launches, and each costs ncu 0.1 s
    assert line[at - 2 : at + 2] == ["--filter-mode", "per-launch-config", "--launch-count", "3"]


@pytest.mark.parametrize(
    ("sm", "dram", "words"),
    [
        (30.0, 91.0, "memory bound"),
        (85.0, 40.0, "compute bound"),
        (20.0, 15.0, "latency bound"),
        (None, 15.0, "has no number"),
    ],
)
def test_a_sentence_says_what_bounds_a_kernel(sm: float | None, dram: float | None, words: str) -> None:
    assert words in counted.sentence(sm, dram)


def test_the_longest_launch_of_each_kernel_is_told() -> None:
    values = {"sm": 20.0, "dram": 101.5, "l1_hits": 55.0, "of_sector": 50.0}
    rows = [
        Launch("bias_act_kernel", [1], {**values, "ns": 2000.0}),
        Launch("bias_act_kernel", [9], {**values, "ns": 8000.0, "sm": 25.0}),
        Launch(
            "nchwToNhwcKernel",
            [9],
            {"ns": 1000.0, "sm": None, "dram": None, "l1_hits": None, "of_sector": None},
        ),
    ]
    found = counted.of_launches(["bias_act_kernel", "nchwToNhwcKernel", "gone"], rows)
    first, second, third = found
    assert (first.us, first.sm, first.dram, first.l1_hits, first.sector_bytes) == (
        8.0,
        25.0,
        100.0,
        55.0,
        16.0,
    )
    assert first.sentence.startswith("memory bound")
    assert second.us == 1.0 and "no number" in second.sentence
    assert third.us is None and "no launch of gone was counted" in third.sentence


def test_a_ratio_of_nothing_is_no_number() -> None:
    head = ["ID", "Kernel Name", "Grid Size", *counted.METRICS.values()]
    rows = [head, ["0", "nvjet_tst", "(4, 1, 1)", "80.5", "31", "nan", "0", "8,000"]]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    (found,) = counted.of_launches(["nvjet_tst"], launched(text, counted.METRICS))
    assert (found.us, found.l1_hits, found.sector_bytes) == (8.0, None, None)


def test_ncus_table_is_read_with_the_metrics_that_were_asked_for() -> None:
    head = ["ID", "Kernel Name", "Grid Size", *counted.METRICS.values()]
    rows = [
        head,
        ["", "", "", *["%"] * 5],
        ["0", "bias_act_kernel", "(4, 1, 1)", "20.5", "91", "50", "100", "8,000"],
    ]
    text = "==PROF== hello\n" + "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    (row,) = launched(text, counted.METRICS)
    assert row.kernel == "bias_act_kernel" and row.grid == [4, 1, 1]
    assert row.values == {"sm": 20.5, "dram": 91.0, "l1_hits": 50.0, "of_sector": 100.0, "ns": 8000.0}


@pytest.mark.parametrize("ranges", [False, True])
def test_the_watched_process_runs_what_the_file_says(ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from stylegan_lite.step import TrainingStep

    ran: list[str] = []
    real = TrainingStep.run_phase

    def run_phase(step: TrainingStep, phase: str) -> None:
        ran.append(phase)
        real(step, phase)

    recipe = {"channels_last": True, "cuda_graphs": True, "whole_step_graph": True}
    with counted.spec(LEAST, recipe, ranges=ranges) as path:
        told = json.loads(path.read_text())
        assert told["recipe"]["cuda_graphs"] is ranges  # a replayed graph hides its kernels from ncu
        told["recipe"] = {"channels_last": True}
        path.write_text(json.dumps(told))
        monkeypatch.setattr(TrainingStep, "prepare", lambda step: {})
        monkeypatch.setattr(TrainingStep, "cycle", lambda step: None)
        monkeypatch.setattr(TrainingStep, "run_phase", run_phase)
        assert target.main(path, device="cpu") == 0
    whole = ["G_main", "G_pl", "D_main", "D_r1"]
    assert ran == (
        [*whole, "G_main", "D_main", "G_main", "G_pl", "D_main"] if ranges else ["G_main", "D_main"]
    )


def test_no_phase_begins_after_enough_seconds_of_counting() -> None:
    ran: list[str] = []
    step = SimpleNamespace(run_phase=ran.append)
    target.run(step, ["G_main", "D_main"], 60.0)
    target.run(step, ["G_pl"], 0.0)
    assert ran == ["G_main", "D_main"]


def runs(state: Path) -> bool:
    """Whether a process is there and no zombie, by its file in /proc."""
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tool_that_takes_too_long_ends_with_the_program_that_it_watches(tmp_path: Path) -> None:
    child = tmp_path / "child"
    slow = program(tmp_path, f"sleep 60 & echo $! > {child}; wait")
    with pytest.raises(TimeoutError):
        watched.run([slow], 0.5)
    with pytest.raises(counters.Refused, match="not done after 0 s"):
        counters.counted([slow], 0.1, counted.METRICS)
    state, until = Path(f"/proc/{child.read_text().strip()}/stat"), time.monotonic() + 10
    while runs(state) and time.monotonic() < until:  # a killed process takes a moment
        time.sleep(0.01)
    assert not runs(state)


def test_ncu_says_in_one_line_why_it_counted_nothing() -> None:
    refused = (
        "==PROF== Connected to process 7 (python)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to"
        " access NVIDIA GPU Performance Counters on the target device 0.\n==PROF== Disconnected from process 7\n"
    )
    said = counters.why(refused, 0)
    assert said.startswith("Nsight Compute: ERR_NVGPUCTRPERM - The user does not") and "\n" not in said
    failed = (
        "==PROF== Connected to process 7\n==PROF== Disconnected from process 7\n"
        "==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n\n"
        "Traceback (most recent call last):\n  File x\nstylegan_lite.config.ConfigError: recipe: no such thing\n"
    )
    assert counters.why(failed, 1).endswith(
        "error code (1). stylegan_lite.config.ConfigError: recipe: no such thing"
    )
    assert "status 9): no message" in counters.why("", 9)


def program(folder: Path, text: str) -> str:
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_nsys_without_a_report_says_so_and_what_to_do(tmp_path: Path) -> None:
    report = tmp_path / "step.nsys-rep"
    silent = program(tmp_path, "echo 'Import failed: no permission'; exit 3")
    with pytest.raises(
        UserError, match=r"made no report on this machine \(status 3: Import failed.*--trace FILE"
    ):
        nsys.record(silent, report, LEAST, {})
    with pytest.raises(UserError, match="did not start"):
        nsys.record(str(tmp_path / "none"), report, LEAST, {})
    slow = program(tmp_path, "sleep 5")
    with pytest.raises(UserError, match="none after 0 s"):
        nsys.record(slow, report, LEAST, {}, timeout_s=0.05)
    report = tmp_path / "new" / "step.nsys-rep"
    makes = program(tmp_path, f"touch {report}")
    nsys.record(makes, report, LEAST, {})
    assert report.exists()
    with pytest.raises(UserError, match="made no report"):  # an old report is not a new one
        nsys.record(program(tmp_path, "exit 0"), report, LEAST, {})


def test_nsys_must_be_there_and_is_told_where_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="is not installed"):
        nsys.program()
    line = nsys.command("nsys", Path("/x/50%/step.nsys-rep"), Path("spec"))
    assert "--output=/x/50%%/step" in line and "--capture-range=cudaProfilerApi" in line
