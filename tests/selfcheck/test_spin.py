"""Waits of known length: what is asked of them, and their way through a real worker. The GPU's clock needs a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.selfcheck.selftest import spin

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("asked", "clock", "wall", "event", "ok"),
    [
        (20, 20.0, 20.9, 20.5, True),  # 1 us is allowed to the short ones
        (20, 20.0, 21.1, 20.5, False),
        (20, 20.0, 18.9, 20.5, False),
        (20, 20.0, 20.5, 21.1, False),  # the wall clock is right and the events are not
        (10_000, 10_000.0, 10_049.0, 10_001.0, True),  # 0.5% to the long ones
        (10_000, 10_000.0, 10_051.0, 10_001.0, False),
        (10_000, 10_060.0, 10_060.0, 10_060.0, False),  # the wait was not the one that was asked for
    ],
)
def test_a_wait_comes_back_or_not(asked: int, clock: float, wall: float, event: float, ok: bool) -> None:
    row = spin.row(asked, 1, [clock] * 3, [clock, wall, clock], [clock, clock, event])
    assert row["ok"] == ok and bool(spin.broken([row])) != ok


def test_no_times_are_no_success() -> None:
    assert not spin.row(20, 250, [], [], None)["ok"]


def test_short_waits_are_timed_by_the_graph_and_none_is_left_out() -> None:
    assert spin.LENGTHS_US[0] == 20 and spin.LENGTHS_US[-1] == 100_000
    for us in spin.LENGTHS_US:
        assert spin.calls_for(us) * us >= 5000 and spin.repeats_for(us) >= 3
        assert spin.calls_for(us) * us < 5000 + us


def test_a_wait_goes_through_a_worker_and_back(tmp_path: Path) -> None:
    (row,) = spin.measure("cpu", tmp_path, (500,))
    assert len(row["wall_us"]) == len(row["clock_us"]) == 5 and row["calls"] == 10
    for wall, clock in zip(row["wall_us"], row["clock_us"], strict=True):
        assert wall >= clock >= 500  # it contains the wait, which is never shorter than asked


def test_a_worker_that_cannot_wait_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        spin, "PACKAGE", "CONTRACT = 1\ndef make_step(*_, **__): raise OSError('no such clock')\n"
    )
    rows = spin.measure("cpu", tmp_path, (500, 1000))
    assert len(rows) == 1 and "no such clock" in spin.broken(rows)[0]


def test_the_kernel_compiles_and_reads_the_clock_again_and_again(tmp_path: Path) -> None:
    """In a process of its own: this one may have Triton's interpreter on, which has no such clock."""
    pytest.importorskip("triton")
    program = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ladder.selfcheck.selftest.spin_kernel import spin_kernel

types = {"state_ptr": "*i64", "ns": "i32", "chained": "constexpr"}
for chained in (False, True):
    source = ASTSource(spin_kernel, types, constexprs={(2,): chained}, attrs={(0,): [["tt.divisibility", 16]]})
    for capability in (80, 90, 100):
        code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
        before, loop = code.asm["ptx"].split("Loop Header")
        print(before.count("%globaltimer") == 1 and loop.count("%globaltimer") == 1)
"""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 6, done.stderr[-2000:]


@pytest.mark.gpu
def test_a_chain_lasts_what_its_calls_come_to() -> None:
    import torch

    from ladder.selfcheck.selftest.spin_kernel import spin_kernel

    state = torch.zeros(3, dtype=torch.int64, device="cuda")
    for _ in range(100):
        spin_kernel[(1,)](state, 100_000, chained=True, num_warps=1)
    until, begin, end = state.tolist()
    assert until - begin == 100 * 100_000 and end >= until


@pytest.mark.gpu
def test_waits_on_the_gpu_come_back(tmp_path: Path) -> None:
    """How exactly is for `ladder doctor --selftest` to say, on a GPU that nobody shares."""
    rows = spin.measure("cuda", tmp_path, (20, 1000, 20_000))
    for row in rows:
        assert row["reason"] is None and row["wall_us"] and row["event_us"]
        assert min(row["clock_us"]) >= row["asked_us"]
