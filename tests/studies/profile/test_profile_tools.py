"""Nsight Compute and Nsight Systems: command lines, sentences, and one line where a tool is missing or says nothing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ladder.base.errors import UserError
from ladder.studies.profile import tools, tracing
from ladder.studies.profile.record import BETWEEN, Counted, Heavy, describe_bound
from ladder.studies.profile.tools import Launch, read_launches
from stylegan_lite.config import Recipe
from tests.support.small import LEAST

CUTLASS = "cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nt_align1"


def heavy(kernel: str, phase: str = "G_main", ms: float = 1.0, **more: Any) -> Heavy:
    return Heavy(
        **{
            "kernel": kernel,
            "function": kernel,
            "word": None,
            "ms": ms,
            "launches": 1.0,
            "phase": phase,
            "phase_ms": ms,
        }
        | more
    )


HEAVIEST = [
    heavy(
        "sm80_xmma_fprop_indexed_bf16_nhwc_256x64x32",
        "G_pl",
        10.3,
        function="sm80_xmma_fprop_implicit_gemm_indexed",
    ),
    heavy("implicit_convolve_sgemm bf16", "D_r1", 9.8, function="implicit_convolve_sgemm"),
    heavy(
        "elementwise_kernel direct_copy bf16",
        "D_main",
        4.6,
        function="elementwise_kernel",
        word="direct_copy",
    ),
    heavy("cutlass_75_bf16_s1688gemm_bf16_64x64_nt_align1", "G_main", 1.3, function="Kernel2", word=CUTLASS),
    heavy("bias_act_kernel", "D_main", 0.9),
]


def test_the_heaviest_kernels_are_counted_by_what_tells_them_apart() -> None:
    line = tools.make_ncu_command("/opt/ncu", HEAVIEST, Path("step.json"))
    assert line[0] == "/opt/ncu" and line[-1] == "step.json" and line[-2] == "ladder.studies.profile.tools"
    assert (
        line[line.index("--print-kernel-base") + 1]
        == line[line.index("--kernel-name-base") + 1]
        == "demangled"
    )
    assert ",".join(tools.METRICS.values()) in line
    assert line[line.index("--clock-control") + 1] == "none"
    # of each grid: a step has thousands of launches, and each costs ncu 0.1 s
    at = line.index("--launch-count")
    assert line[at - 2 : at + 2] == ["--filter-mode", "per-launch-config", "--launch-count", "3"]
    wanted = re.compile(line[line.index("--kernel-name") + 1].removeprefix("regex:"))
    for name, counts in (
        ("bias_act_kernel", True),
        ("void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, (int)1024>(int)", True),
        (f"void cutlass::Kernel2<{CUTLASS}>(T1::Params)", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(T1::Params)", False),
        (
            "void at::native::elementwise_kernel<(int)128, void f<at::native::direct_copy_kernel_cuda(int)>>(T3)",
            True,
        ),
        (
            "void at::native::elementwise_kernel<(int)128, void f<at::native::CUDAFunctor_add<float>>>(T3)",
            False,
        ),
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::direct_copy_kernel_cuda(int)>(T3)",
            False,
        ),
    ):
        assert bool(wanted.search(name)) == bool(wanted.fullmatch(name)) == counts, name


def test_phases_with_a_heavy_kernel_are_run_the_heaviest_first() -> None:
    assert tools.list_phases(HEAVIEST) == ["G_pl", "D_r1", "D_main", "G_main"]
    assert tools.list_phases(HEAVIEST[2:]) == ["D_main", "G_main"]  # a lazy phase only if it is needed
    assert tools.list_phases([heavy("memset_kernel", BETWEEN)]) == []
    unknown = [heavy("compiled", "unknown", 1.0), heavy("gemm", "D_main", 2.0)]
    assert tools.list_phases(unknown) == ["D_main", "G_main", "G_pl", "D_r1"]


@pytest.mark.parametrize(
    ("sm", "dram", "blocks", "words"),
    [
        (30.0, 91.0, 4096, "memory bound"),
        (85.0, 40.0, 4096, "compute bound"),
        (85.0, 40.0, 64, "compute bound"),
        (20.0, 15.0, 4096, "latency bound"),
        (20.0, 15.0, None, "latency bound"),
        (0.3, 0.4, 4, "does not fill the GPU: 4 blocks for 132 SMs"),
        (20.0, 15.0, 120, "latency bound: 120 blocks for 132 SMs"),
        (0.3, 0.4, 1, "does not fill the GPU: 1 block for 132 SMs"),
        (None, 15.0, 4, "no number for one of the peaks"),
    ],
)
def test_words_say_what_bounds_a_kernel(
    sm: float | None, dram: float | None, blocks: int | None, words: str
) -> None:
    row = Counted(kernel="k", sm=sm, dram=dram, blocks=blocks, sms=132)
    assert describe_bound(row) == words
    assert describe_bound(Counted(kernel="k", sm=20.0, dram=15.0, blocks=4)) == "latency bound"


def test_the_longest_launch_of_each_kernel_is_told() -> None:
    values = {"sm": 20.0, "dram": 101.5, "l1_hits": 55.0, "of_sector": 50.0}
    none = dict.fromkeys(tools.METRICS)
    rows = [
        Launch("bias_act_kernel", [1, 1, 1], {**values, "ns": 2000.0}),
        Launch("bias_act_kernel", [9, 1, 1], {**values, "ns": 8000.0, "sm": 25.0}),
        Launch(
            f"void cutlass::Kernel2<{CUTLASS}>(T1::Params)",
            [4, 1, 1],
            {**none, "sm": 0.3, "dram": 0.4, "ns": 1e6},
        ),
        Launch(
            "void cutlass::Kernel2<cutlass_80_simt_sgemm>(T1::Params)", [900, 1, 1], {**values, "ns": 9e9}
        ),
        Launch("void implicit_convolve_sgemm<spelled anew>(T1)", [18, 2, 1], {**none, "ns": 1000.0}),
    ]
    found = tools.pick_launches(HEAVIEST, rows, ["G_pl", "D_main"], 132)
    assert [each.kernel for each in found] == [each.kernel for each in HEAVIEST]
    lazy, anew, copies, gemm, last = found
    assert (last.us, last.sm, last.dram, last.l1_hits, last.sector_bytes) == (8.0, 25.0, 100.0, 55.0, 16.0)
    assert (last.sentence, last.blocks, last.sms) == (None, 9, 132)
    assert (gemm.us, gemm.blocks) == (1000.0, 4) and (anew.us, anew.blocks) == (1.0, 36)
    assert lazy.us is None and lazy.sentence == "no launch was counted in an eager G_pl or D_main"
    assert copies.us is None and copies.sentence == lazy.sentence
    late = tools.pick_launches(HEAVIEST, [], ["G_pl"], None)[1]
    assert late.sentence == "D_r1, which has most of it, did not begin within 100 s" and late.sms is None


def test_what_ncu_and_the_target_print_is_read(tmp_path: Path) -> None:
    head = ["ID", "Kernel Name", "Grid Size", *tools.METRICS.values()]
    copies = "void at::native::elementwise_kernel<(int)128, (int)4, void f<at::native::direct_copy_kernel_cuda(int)"
    name = f"{copies}::[lambda(c10::BFloat16) (instance 1)]>(int, T3)>(int, T3)"  # has commas, as CSV's cells have
    rows = [head, ["", "", "", *["%"] * 5], ["0", name, "(64, 1, 1)", "20.5", "31", "50", "100", "8,000"]]
    printed = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    (tmp_path / "printed").write_text(
        f"==PROF== Connected\n==PROF== Profiling: 100% - 9 passes\nran G_pl\nran D_r1\n{printed}\n"
    )
    ncu = program(tmp_path, f"cat {tmp_path / 'printed'}")
    lazy, _, seen, gemm, _ = tools.count(HEAVIEST, LEAST, {}, ncu, 132)
    assert (seen.us, seen.blocks) == (8.0, 64)
    assert lazy.sentence == "no launch was counted in an eager G_pl or D_r1"
    assert gemm.sentence == "G_main, which has most of it, did not begin within 100 s"


def test_a_kernel_that_was_not_counted_is_run_again_without_the_others(tmp_path: Path) -> None:
    head = ["ID", "Kernel Name", "Grid Size", *tools.METRICS.values()]

    def printed(name: str, phase: str) -> Path:
        rows = [head, ["0", name, "(64, 1, 1)", "20.5", "31", "50", "100", "8,000"]]
        path = tmp_path / phase
        path.write_text("\n".join([f"ran {phase}", *(",".join(f'"{cell}"' for cell in row) for row in rows)]))
        return path

    first, second = printed("bias_act_kernel", "D_main"), printed("nvjet_tst", "G_main")
    # a line that asks for both kernels finds the first alone
    ncu = program(tmp_path, f'case "$*" in *bias_act*) cat {first};; *nvjet*) cat {second};; esac')
    both = [heavy("bias_act_kernel", "D_main"), heavy("nvjet_tst", "G_main"), heavy("gone", "G_main")]
    seen = tools.count(both, LEAST, {}, ncu, 132)
    assert [(each.kernel, each.us) for each in seen] == [
        ("bias_act_kernel", 8.0),
        ("nvjet_tst", 8.0),
        ("gone", None),
    ]
    assert seen[-1].sentence == "no launch was counted in an eager G_main"
    silent = program(tmp_path, f'case "$*" in *bias_act*) cat {first};; esac')
    assert [each.us for each in tools.count(both, LEAST, {}, silent, 132)] == [8.0, None, None]


def test_a_ratio_of_nothing_is_no_number() -> None:
    head = ["ID", "Kernel Name", "Grid Size", *tools.METRICS.values()]
    rows = [head, ["0", "nvjet_tst", "(4, 1, 1)", "80.5", "31", "nan", "0", "8,000"]]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    (found,) = tools.pick_launches([heavy("nvjet_tst")], read_launches(text, tools.METRICS), ["G_main"], 132)
    assert (found.us, found.l1_hits, found.sector_bytes, found.blocks) == (8.0, None, None, 4)


def test_ncus_table_is_read_with_the_metrics_that_were_asked_for() -> None:
    head = ["ID", "Kernel Name", "Grid Size", *tools.METRICS.values()]
    rows = [
        head,
        ["", "", "", *["%"] * 5],
        ["0", "bias_act_kernel", "(4, 1, 1)", "20.5", "91", "50", "100", "8,000"],
    ]
    text = "==PROF== hello\n" + "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    (row,) = read_launches(text, tools.METRICS)
    assert row.kernel == "bias_act_kernel" and row.grid == [4, 1, 1]
    assert row.values == {"sm": 20.5, "dram": 91.0, "l1_hits": 50.0, "of_sector": 100.0, "ns": 8000.0}


@pytest.mark.parametrize("phases", [None, ["D_r1", "G_main"]])
def test_the_watched_process_runs_what_the_file_says(
    phases: list[str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stylegan_lite.step import TrainingStep

    ran: list[str] = []
    real = TrainingStep.run_phase

    def run_phase(step: TrainingStep, phase: str) -> None:
        ran.append(phase)
        real(step, phase)

    recipe = {"channels_last": True, "cuda_graphs": True, "adam": "capturable"}
    recipe |= {"whole_step_graph": True, "graph_fills": True}
    with tools.write_spec(LEAST, recipe, phases) as path:
        told = json.loads(path.read_text())
        Recipe.from_dict(told["recipe"])
        assert told["recipe"]["cuda_graphs"] is (
            phases is None
        )  # a replayed graph hides its kernels from ncu
        told["recipe"] = {"channels_last": True}
        path.write_text(json.dumps(told))
        monkeypatch.setattr(TrainingStep, "prepare", lambda step: {})
        monkeypatch.setattr(TrainingStep, "cycle", lambda step: None)
        monkeypatch.setattr(TrainingStep, "run_phase", run_phase)
        tools.run_target(path, device="cpu")
    whole = ["G_main", "G_pl", "D_main", "D_r1"]
    assert ran == (phases or [*whole, "G_main", "D_main", "G_main", "G_pl", "D_main"])
    assert tools.RAN.findall(capsys.readouterr().out) == (phases or [])


@pytest.mark.parametrize("mode, hooks", [("off", True), ("default", False)])
def test_layers_of_compiled_code_get_no_hooks(mode: str, hooks: bool) -> None:
    blocks = torch.nn.ModuleDict({"mapping": torch.nn.Linear(1, 1)})
    work = SimpleNamespace(resolutions=[4])
    step = SimpleNamespace(G=blocks, D=blocks, workload=work, recipe=SimpleNamespace(compile=mode))
    with tracing.name_uncompiled_layers(step):
        assert bool(blocks["mapping"]._forward_hooks) is hooks


def test_no_phase_begins_after_enough_seconds_of_counting() -> None:
    ran: list[str] = []
    step = SimpleNamespace(run_phase=ran.append)
    tools.run_phases(step, ["G_main", "D_main"], 60.0)
    tools.run_phases(step, ["G_pl"], 0.0)
    assert ran == ["G_main", "D_main"]


def runs(state: Path) -> bool:
    """Whether a process is there and no zombie, by its file in /proc."""
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tool_that_takes_too_long_ends_with_the_program_that_it_watches(tmp_path: Path) -> None:
    child = tmp_path / "child"
    with pytest.raises(TimeoutError):
        tools.run_tool([program(tmp_path, f"sleep 60 & echo $! > {child}; wait")], 2.0)
    with pytest.raises(tools.Refused, match="not done after 0 s"):
        tools.count_launches([program(tmp_path, "sleep 60")], 0.1, tools.METRICS)
    state, until = Path(f"/proc/{child.read_text().strip()}/stat"), time.monotonic() + 60
    while runs(state) and time.monotonic() < until:  # a killed process takes a moment
        time.sleep(0.01)
    assert not runs(state)


def test_ncu_says_in_one_line_why_it_counted_nothing() -> None:
    refused = (
        "==PROF== Connected to process 7 (python)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to"
        " access NVIDIA GPU Performance Counters on the target device 0.\n==PROF== Disconnected from process 7\n"
    )
    said = tools.explain_refusal(refused, 0)
    assert said.startswith("Nsight Compute: ERR_NVGPUCTRPERM - The user does not") and "\n" not in said
    failed = (
        "==PROF== Connected to process 7\n==PROF== Disconnected from process 7\n"
        "==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n\n"
        "Traceback (most recent call last):\n  File x\nstylegan_lite.config.ConfigError: recipe: no such thing\n"
    )
    assert tools.explain_refusal(failed, 1).endswith(
        "error code (1). stylegan_lite.config.ConfigError: recipe: no such thing"
    )
    assert "status 9): no message" in tools.explain_refusal("", 9)


def test_the_newest_ncu_of_its_own_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(tools, "NSIGHT", tmp_path)
    with pytest.raises(UserError, match="not installed"):
        tools.find_ncu()
    for version in ("2025.3.1", "2025.10.0", "2024.2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").touch()
    assert tools.find_ncu() == str(tmp_path / "2025.10.0" / "ncu")


def test_a_page_of_details_is_read_as_the_raw_page() -> None:
    """Some versions of ncu print a line for each kernel and metric."""
    rows = [["ID", "Kernel Name", "Grid Size", "Metric Name", "Metric Value"]]
    rows += [
        ["0", "k", "(4, 1, 1)", tools.METRICS[name], value] for name, value in (("sm", "20.5"), ("ns", ""))
    ]
    (row,) = read_launches("\n".join(",".join(f'"{cell}"' for cell in row) for row in rows), tools.METRICS)
    assert row.values == {"sm": 20.5, "ns": None}


def program(folder: Path, text: str) -> str:
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_nsys_without_a_report_says_so_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(nsys: str, report: Path = tmp_path / "step.nsys-rep", timeout_s: float = 60.0) -> None:
        monkeypatch.setattr(tools, "find_nsys", lambda: nsys)
        job = SimpleNamespace(options=SimpleNamespace(nsys=report), workload=LEAST)
        tools.record_report(job, {}, timeout_s)  # type: ignore[arg-type]

    silent = program(tmp_path, "echo 'Import failed: no permission'; exit 3")
    with pytest.raises(
        UserError, match=r"made no report on this machine \(status 3: Import failed.*--trace FILE"
    ):
        record(silent)
    with pytest.raises(UserError, match="did not start"):
        record(str(tmp_path / "none"))
    slow = program(tmp_path, "sleep 5")
    with pytest.raises(UserError, match="none after 0 s"):
        record(slow, timeout_s=0.05)
    report = tmp_path / "new" / "step.nsys-rep"
    makes = program(tmp_path, f"touch {report}")
    record(makes, report)
    assert report.exists() and f"{makes} profile --trace=cuda,nvtx" in capsys.readouterr().err
    with pytest.raises(UserError, match="made no report"):  # an old report is not a new one
        record(program(tmp_path, "exit 0"), report)


def test_nsys_must_be_there_and_is_told_where_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="is not installed"):
        tools.find_nsys()
    line = tools.make_nsys_command("nsys", Path("/x/50%/step.nsys-rep"), Path("spec"))
    assert "--output=/x/50%%/step" in line and "--capture-range=cudaProfilerApi" in line
