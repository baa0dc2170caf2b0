"""Nsight Compute and Nsight Systems: command lines, what is read, and one line where a tool refuses."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ladder.core.errors import UserError
from ladder.engine.pool import WorkerFailure
from ladder.studies.profile import tools
from ladder.studies.profile.record import BETWEEN, Counted, Heavy, derive_bound
from ladder.studies.profile.tools import Launch, read_launches
from stylegan_lite.config import Recipe
from tests.support.small import LEAST

CUTLASS = "cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nt_align1"
UNITS = ["", "", "", *["%"] * 5]
COLUMNS = ["ID", "Kernel Name", "Grid Size", *tools.METRICS.values()]


def heavy(
    kernel: str, phase: str = "G_main", ms: float = 1.0, function: str = "", word: str | None = None
) -> Heavy:
    more = {"ms": ms, "launches": 1.0, "phase": phase, "phase_ms": ms}
    return Heavy(kernel=kernel, function=function or kernel, word=word, **more)  # type: ignore[arg-type]


FPROP = "sm80_xmma_fprop_implicit_gemm_indexed"
LAZY = heavy("sm80_xmma_fprop_indexed_bf16_nhwc_256x64x32", "G_pl", 10.3, FPROP)
SGEMM = heavy("implicit_convolve_sgemm bf16", "D_r1", 9.8, "implicit_convolve_sgemm")
COPY = heavy("elementwise_kernel direct_copy bf16", "D_main", 4.6, "elementwise_kernel", "direct_copy")
GEMM = heavy("cutlass_75_bf16_s1688gemm_bf16_64x64_nt_align1", "G_main", 1.3, "Kernel2", CUTLASS)
ACT = heavy("bias_act_kernel", "D_main", 0.9)
HEAVIEST = [LAZY, SGEMM, COPY, GEMM, ACT]


def program(folder: Path, text: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def printed(*rows: list[str], ran: tuple[str, ...] = ()) -> str:
    """Return what ncu and the watched process print."""
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in (COLUMNS, UNITS, *rows))
    return "\n".join(["==PROF== Connected", *(f"9 passes: ran {phase}" for phase in ran), table, ""])


AT = "void at::native::"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("bias_act_kernel", True),
        ("void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, (int)1024>(int)", True),
        (f"void cutlass::Kernel2<{CUTLASS}>(T1::Params)", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(T1::Params)", False),
        (AT + "elementwise_kernel<(int)128, void f<at::native::direct_copy_kernel_cuda(int)>>(T3)", True),
        (AT + "elementwise_kernel<(int)128, void f<at::native::CUDAFunctor_add<float>>>(T3)", False),
        (AT + "vectorized_elementwise_kernel<(int)4, at::native::direct_copy_kernel(int)>(T3)", False),
    ],
)
def test_the_heaviest_kernels_are_counted_by_what_tells_them_apart(name: str, counts: bool) -> None:
    line = tools.make_ncu_command("/opt/ncu", HEAVIEST, "step.json")
    assert line[0] == "/opt/ncu" and line[-2:] == ["ladder.studies.profile.tools", "step.json"]
    wanted = re.compile(line[line.index("--kernel-name") + 1].removeprefix("regex:"))
    assert bool(wanted.search(name)) == bool(wanted.fullmatch(name)) == counts


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
        (85.0, 40.0, 64, "compute bound"),
        (20.0, 15.0, 4096, "latency bound"),
        (20.0, 15.0, None, "latency bound"),
        (20.0, 15.0, 100, "latency bound: 100 blocks for 132 SMs"),
        (20.0, 15.0, 65, "does not fill the GPU: 65 blocks for 132 SMs"),
        (None, 15.0, 4, "no number for one of the peaks"),
    ],
)
def test_words_say_what_bounds_a_kernel(
    sm: float | None, dram: float | None, blocks: int | None, words: str
) -> None:
    row = Counted(kernel="k", us=1.0, sm=sm, dram=dram, blocks=blocks, sms=132)
    assert derive_bound(row).sentence == words


def test_the_longest_launch_of_each_kernel_counts() -> None:
    values: dict[str, Any] = {"sm": 20.0, "dram": 101.5, "l1_hits": 55.0, "of_sector": 50.0}
    none: dict[str, Any] = dict.fromkeys(tools.METRICS)
    rows = [
        Launch("bias_act_kernel", 1, {**values, "ns": 2000.0}),
        Launch("bias_act_kernel", 9, {**values, "ns": 8000.0, "sm": 25.0}),
        Launch(f"void cutlass::Kernel2<{CUTLASS}>(T1::Params)", 4, {**none, "sm": 0.3, "ns": 1e6}),
        Launch("void cutlass::Kernel2<cutlass_80_simt_sgemm>(T1::Params)", 900, {**values, "ns": 9e9}),
        Launch("void implicit_convolve_sgemm<spelled anew>(T1)", 36, {**none, "ns": 1000.0}),
    ]
    lazy, anew, copy, gemm, last = tools.pick_launches(HEAVIEST, rows, ["G_pl", "D_main"], 132)
    assert (last.us, last.sm, last.dram, last.l1_hits, last.sector_bytes) == (8.0, 25.0, 100.0, 55.0, 16.0)
    assert (last.sentence, last.blocks, last.sms) == (None, 9, 132)
    assert (gemm.us, gemm.blocks) == (1000.0, 4) and (anew.us, anew.blocks) == (1.0, 36)
    assert lazy.us is None and lazy.sentence == copy.sentence
    assert lazy.sentence == "no launch was counted in an eager G_pl or D_main"


def test_what_ncu_prints_is_read_and_a_ratio_of_nothing_is_no_number() -> None:
    cells = ["0", "k", "(64, 2, 1)", "20.5", "31", "nan", "0", "8,000"]
    (row, _) = read_launches(printed(cells, ["1", "k", "(4, 1, 1)", "1", "2", "", "3", "4"]))
    values = {"sm": 20.5, "dram": 31.0, "l1_hits": None, "of_sector": 0.0, "ns": 8000.0}
    assert row == Launch("k", 128, values)
    (counted,) = tools.pick_launches([heavy("k")], [row], ["G_main"], 132)
    assert (counted.us, counted.sector_bytes, counted.blocks) == (8.0, None, 128)


def test_a_kernel_that_was_not_counted_is_run_again_without_the_others(tmp_path: Path) -> None:
    for name, phase in (("bias_act_kernel", "D_main"), ("nvjet_tst", "G_main")):
        row = ["0", name, "(64, 1, 1)", "20.5", "31", "50", "100", "8,000"]
        (tmp_path / phase).write_text(printed(row, ran=(phase,)))
    first, second = tmp_path / "D_main", tmp_path / "G_main"
    # a line that asks for both kernels finds the first alone
    ncu = program(tmp_path, f'case "$*" in *bias_act*) cat {first};; *nvjet*) cat {second};; esac')
    both = [heavy("bias_act_kernel", "D_main"), heavy("nvjet_tst"), heavy("gone")]
    rows = tools.count(both, LEAST, {}, ncu, 132)
    assert [each.us for each in rows] == [8.0, 8.0, None]
    assert rows[-1].sentence == "no launch was counted in an eager G_main"
    silent = program(tmp_path, f'case "$*" in *bias_act*) cat {first};; esac')
    assert [each.us for each in tools.count(both, LEAST, {}, silent, 132)] == [8.0, None, None]
    refusing = program(tmp_path, "echo '==ERROR== ERR_NVGPUCTRPERM - The user has no permission'; exit 1")
    with pytest.raises(WorkerFailure, match="--ncu: ERR_NVGPUCTRPERM"):  # the profile stays
        tools.count(both, LEAST, {}, refusing, 132)


@pytest.mark.parametrize("phases", [[], ["D_r1", "G_main"]])
def test_the_watched_process_runs_what_the_file_says(
    phases: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stylegan_lite.step import TrainingStep

    ran: list[str] = []
    real = TrainingStep.run_phase

    def run_phase(step: TrainingStep, phase: str) -> None:
        ran.append(phase)
        real(step, phase)

    recipe = {"channels_last": True, "cuda_graphs": True, "adam": "capturable"}
    recipe |= {"whole_step_graph": True, "graph_fills": True}
    path = Path(tools.write_spec(str(tmp_path), LEAST, recipe, phases))
    spec = json.loads(path.read_text())
    Recipe.from_dict(spec["recipe"])
    assert spec["recipe"]["cuda_graphs"] is not bool(phases)  # a replayed graph hides its kernels from ncu
    path.write_text(json.dumps(spec | {"recipe": {"channels_last": True}}))
    monkeypatch.setattr(TrainingStep, "prepare", lambda step: {})
    monkeypatch.setattr(TrainingStep, "cycle", lambda step: None)
    monkeypatch.setattr(TrainingStep, "run_phase", run_phase)
    monkeypatch.setattr(tools, "ENOUGH_S", 0.0)
    tools.run_target(path, device="cpu")
    assert bool(ran) is not bool(phases), "no phase begins after enough seconds of counting"
    ran.clear()
    monkeypatch.setattr(tools, "ENOUGH_S", 60.0)
    tools.run_target(path, device="cpu")
    whole = ["G_main", "G_pl", "D_main", "D_r1"]
    assert ran == (phases or [*whole, "G_main", "D_main", "G_main", "G_pl", "D_main"])
    assert tools.RAN.findall(capsys.readouterr().out) == phases


def is_running(state: Path) -> bool:
    """Return whether a process is there and no zombie, by its file in /proc."""
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_tool_that_takes_too_long_ends_with_the_program_that_it_watches(tmp_path: Path) -> None:
    child = tmp_path / "child"
    with pytest.raises(TimeoutError, match="not done after 2 s"):
        tools.run_tool([program(tmp_path, f"sleep 60 & echo $! > {child}; wait")], 2.0)
    state, until = Path(f"/proc/{child.read_text().strip()}/stat"), time.monotonic() + 60
    with contextlib.suppress(OSError):  # gone between two looks
        while is_running(state) and time.monotonic() < until:  # a killed process takes a moment
            time.sleep(0.01)
        assert not is_running(state)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user has no permission\n==PROF== Disconnected\n",
         "ERR_NVGPUCTRPERM - The user has no permission"),
        ("==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\nTraceback\n"
         "ConfigError: no such thing\n",
         "The application returned an error code (1). ConfigError: no such thing"),
        ("", "nothing was counted (status 9): no message"),
    ],
)  # fmt: skip
def test_ncu_says_in_one_line_why_it_counted_nothing(text: str, words: str) -> None:
    assert tools.explain_refusal(text, 9) == words


def test_the_newest_ncu_of_its_own_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(tools, "NSIGHT", tmp_path)
    for name in ("ncu", "nsys"):
        with pytest.raises(UserError, match=f"--{name}: .* not installed"):
            tools.find_tool(name)
    for version in ("2025.3.1", "2025.10.0", "2024.2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").touch()
    assert tools.find_tool("ncu") == str(tmp_path / "2025.10.0" / "ncu")


@pytest.mark.parametrize(
    ("nsys", "words"),
    [
        ("echo 'Import failed: no permission'; exit 3", r"status 3: Import failed.*--trace FILE"),
        (None, "No such file"),
        ("sleep 5", "not done after 1 s"),
    ],
)
def test_nsys_without_a_report_says_why_and_what_to_do(
    nsys: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "new" / "step.nsys-rep"
    job: Any = SimpleNamespace(options=SimpleNamespace(nsys=report), workload=LEAST)
    makes = program(tmp_path, 'for a; do case $a in --output=*) touch "${a#--output=}";; esac; done')
    monkeypatch.setattr(tools, "find_tool", lambda name: makes)
    tools.record_report(job, {})
    assert report.exists()
    path = program(tmp_path, nsys) if nsys else str(tmp_path / "none")
    monkeypatch.setattr(tools, "find_tool", lambda name: path)
    with pytest.raises(UserError, match=f"made no report .*{words}"):
        tools.record_report(job, {}, 1.0)
