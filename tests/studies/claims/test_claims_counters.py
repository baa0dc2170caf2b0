"""Nsight Compute: what it prints is read, told apart by contender, and its refusals are one line each."""

import os
import stat
import types

import pytest
import torch

from ladder.studies.claims.hardware import counters
from ladder.studies.claims.hardware.counters import METRICS, Refused

HEAD = ["ID", "Process ID", "Process Name", "Kernel Name", "Block Size", "Grid Size", *METRICS.values()]
FACTS = {
    "occupancy": "81.5",
    "dram_read": "1,000,000",
    "dram_written": "500",
    "load_requests": "10",
    "load_sectors": "320",
    "store_requests": "0",
    "store_sectors": "0",
    "ns": "2,000",
}


def line(number, kernel, grid, **facts):
    values = {**FACTS, **facts}
    return [
        number,
        "7",
        "python3",
        kernel,
        "(128, 1, 1)",
        f"({grid}, 1, 1)",
        *(values[name] for name in METRICS),
    ]


def printed(*rows):
    units = ["", "", "", "", "", "", *("unit" for _ in METRICS)]
    lines = [
        "==PROF== Connected to process 7",
        "claim 1: coalescing: strided",
        '==PROF== Profiling "k": 100%',
    ]
    lines += ["claim 2: fusion: one, as it is"]
    lines += [",".join(f'"{text}"' for text in row) for row in (HEAD, units, *rows)]
    return "\n".join(lines) + "\n"


WHOLE = printed(
    line(0, counters.MARKER, 1),
    line(1, "strided_kernel", 9),
    line(2, counters.MARKER, 2),
    line(3, "norm_kernel", 4, ns="1,000", occupancy="50"),
    line(4, "act_kernel", 4, ns="3,000", occupancy="90"),
)


def test_kernels_belong_to_the_marker_before_them():
    found = counters.by_contender(counters.parse(WHOLE), counters.announced(WHOLE))
    names = {key: [row.kernel for row in rows] for key, rows in found.items()}
    assert names == {
        "coalescing: strided": ["strided_kernel"],
        "fusion: one, as it is": ["norm_kernel", "act_kernel"],
    }


def test_counters_of_a_contender_are_sums_and_its_occupancy_is_weighted_by_time():
    found = counters.by_contender(counters.parse(WHOLE), counters.announced(WHOLE))
    totals = counters.totals(found["fusion: one, as it is"])
    assert totals.dram_read == 2e6 and totals.dram_written == 1000 and totals.ns == 4000
    assert totals.occupancy == pytest.approx(0.8)
    one = counters.totals(found["coalescing: strided"])
    assert one.sectors_a_load == 32 and one.sectors_a_store is None  # nothing was stored that way


def test_the_page_of_details_is_read_as_well():
    """A line a kernel and metric, as ncu prints it where the raw page is not to be had."""
    head = (
        '"ID","Process ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"'
    )
    rows = [(0, counters.MARKER, 1), (1, "k", 9)]
    lines = [
        f'"{number}","7","{kernel}","(32, 1, 1)","({grid}, 1, 1)","{METRICS[name]}","","{FACTS[name]}"'
        for number, kernel, grid in rows
        for name in METRICS
    ]
    details = "\n".join([head, *lines])
    raw = printed(line(0, counters.MARKER, 1), line(1, "k", 9))
    (first, second) = (counters.by_contender(counters.parse(text), {1: "a: b"}) for text in (details, raw))
    assert first == second and first["a: b"][0].dram_read == 1e6


def test_a_counter_that_is_not_there_is_none_and_not_zero():
    text = printed(line(0, counters.MARKER, 1), line(1, "k", 9, dram_read="n/a", occupancy=""))
    totals = counters.totals(counters.by_contender(counters.parse(text), {1: "a: b"})["a: b"])
    assert totals.dram_read is None and totals.occupancy is None and totals.dram_written == 500


@pytest.fixture
def ncu(tmp_path):
    """A program that stands in for ncu: prints what it is told."""

    def make(text, status=0, seconds=0):
        (tmp_path / "said.txt").write_text(text)
        path = tmp_path / "ncu"
        path.write_text(f"#!/bin/sh\nsleep {seconds}\ncat {tmp_path / 'said.txt'}\nexit {status}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def test_what_ncu_prints_is_what_is_counted(ncu):
    assert set(counters.count(["fusion"], 30, ncu(WHOLE))) == {"coalescing: strided", "fusion: one, as it is"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU\n",
            "ERR_NVGPUCTRPERM - The user does not have permission",
        ),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", "LibraryNotLoaded"),
        ("", "counted nothing (status 1): no message"),
    ],
)
def test_a_refusal_is_one_line_with_its_reason(ncu, text, says):
    with pytest.raises(Refused) as refused:
        counters.count([], 30, ncu(text, status=1))
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_ncu_that_hangs_or_is_not_there_is_given_up(ncu, monkeypatch, tmp_path):
    with pytest.raises(Refused, match="not done after 1 s"):
        counters.count([], 1, ncu("", seconds=5))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(counters, "NSIGHT", tmp_path / "nsight-compute")
    if not os.path.exists("/usr/local/cuda/bin/ncu"):
        with pytest.raises(Refused, match="not installed"):
            counters.program()
        for version in ("2025.3.1", "2025.10.0", "2024.2"):
            (tmp_path / "nsight-compute" / version).mkdir(parents=True)
            (tmp_path / "nsight-compute" / version / "ncu").touch()
        assert counters.program() == str(tmp_path / "nsight-compute" / "2025.10.0" / "ncu")


def test_clocks_are_left_alone_and_only_the_marked_calls_are_profiled():
    line = " ".join(counters.command("ncu", ["fusion", "block size"]))
    assert "--clock-control none" in line and "--profile-from-start off" in line
    assert line.endswith("-m ladder.studies.claims.target fusion block size")


def test_the_target_marks_each_contender_and_profiles_its_second_call_alone(monkeypatch, capsys):
    """On the CPU, with a profiler that only notes when it is on: what ncu would see."""
    from ladder.studies.claims import small_kernels, target
    from ladder.studies.claims.timed import Missing

    seen, profiling = [], [False]

    def note(what):
        if profiling[0]:
            seen.append(what)

    def ready(name):
        if name == "none":
            raise Missing("no compiler")
        return lambda: note(name)

    class Marker:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: note(grid)

    def switch(on):
        profiling[0] = on

    cuda = types.SimpleNamespace(
        synchronize=lambda: None,
        empty_cache=lambda: None,
        cudart=lambda: types.SimpleNamespace(
            cudaProfilerStart=lambda: switch(True), cudaProfilerStop=lambda: switch(False)
        ),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)  # asks torch.cuda
    monkeypatch.setattr(target, "DEVICE", "cpu")
    monkeypatch.setattr(small_kernels, "claim_marker_kernel", Marker())
    names = ("fusion: one", "none", "fusion: three operators")
    monkeypatch.setattr(
        target, "everything", lambda _: [(name, lambda name=name: ready(name)) for name in names]
    )
    assert target.main([]) == 0
    assert seen == [(1,), "fusion: one", (3,), "fusion: three operators"]
    assert counters.announced(capsys.readouterr().out) == {1: "fusion: one", 3: "fusion: three operators"}


def test_what_is_counted_has_the_names_that_it_was_timed_by(monkeypatch):
    from ladder.studies.claims import experiments, target

    monkeypatch.setattr(target, "ops", lambda: iter([("ops: x, forward", None)]))
    names = [name for name, _ in target.everything(["fusion", target.OPS])]
    assert names == [*(f"fusion: {name}" for name in experiments.fusion().contenders), "ops: x, forward"]
    assert len({name for name, _ in target.everything([])}) > 50
