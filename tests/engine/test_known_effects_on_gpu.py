"""Known effects through the code that times rungs: waits by the GPU's own clock, and a slowdown in a captured step."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.core.paths import ROOT
from ladder.engine.outcomes import Program
from ladder.engine.pool import Pool
from ladder.engine.rounds import Interleaved
from ladder.machine import system
from ladder.plan import catalog
from ladder.stats import answers, estimates
from tests.support.spinning import allowed_us, write_slower_checkout, write_spins

PLANTED_MS = 3.0  # a few percent of the article's top rung


def test_the_kernel_compiles_and_reads_the_clock_again_and_again(tmp_path: Path) -> None:
    """In a process of its own: this one may have Triton's interpreter on, which has no such clock."""
    pytest.importorskip("triton")
    program = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tests.support.spin_kernel import spin_kernel

types = {"state_ptr": "*i64", "ns": "i32", "chained": "constexpr"}
for chained in (False, True):
    source = ASTSource(spin_kernel, types, constexprs={(2,): chained}, attrs={(0,): [["tt.divisibility", 16]]})
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    before, loop = code.asm["ptx"].split("Loop Header")
    print(before.count("%globaltimer") == 1 and loop.count("%globaltimer") == 1)
"""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 2, done.stderr[-2000:]


@pytest.mark.gpu
def test_waits_of_known_length_come_back(tmp_path: Path) -> None:
    write_spins(tmp_path / "code")
    clock = tmp_path / "clock.json"
    with Pool(code=tmp_path / "code", torch=True) as pool:
        worker = pool.take()
        for us in (20, 200, 2_000, 20_000):
            calls = max(1, 5000 // us)  # a graph lasts 5 ms or more
            recipe = {"us": us, "calls": calls, "clock": str(clock)}
            worker.call("build", workload={}, recipe=recipe, device="cuda", seed=0)
            worker.call("prepare")
            visit = worker.call("visit", cycles=3, settle_s=0, settle_cycles=0, main=False)
            true_us = json.loads(clock.read_text())[-3:]
            assert true_us == pytest.approx([us] * 3, abs=allowed_us(us))
            for times in (visit["samples_s"], visit["event_s"]):
                assert [1e6 * each / calls for each in times] == pytest.approx(true_us, abs=allowed_us(us))
        worker.close()


@pytest.mark.gpu
def test_a_planted_slowdown_of_a_captured_step_is_found_with_its_sign(tmp_path: Path) -> None:
    """Three copies of the article's top rung, two of them twins, and one whose GPU waits in each step."""
    write_slower_checkout(tmp_path / "code", PLANTED_MS / 1000)
    top = (
        catalog.plan_climb(catalog.load_ladder("article"), system.list_capabilities("cuda"))[-1].recipe or {}
    )
    recipe = {**top, "workers": 0, "persistent_workers": False, "prefetch_factor": None}
    _, workload = catalog.load_workload("article")
    code = {"a": None, "b": None, "c": None, "slower": tmp_path / "code"}
    programs = [Program(name, "captured", name, workload, recipe, code[name]) for name in code]
    logs: dict[str, dict[int, float]] = collections.defaultdict(dict)
    with contextlib.closing(Interleaved("cuda", cycles=2, seed=0, profile=False)) as rounds:
        for generation in range(3):
            for visit in rounds.round(generation, programs):
                assert visit.round, visit.reason
                logs[visit.program.name][generation] = math.log(estimates.median(visit.round.samples_ms))
    quantity = answers.make_quantity(logs, dict.fromkeys(logs, "captured"), [("a", "b")], is_gpu=False)
    slower, same = quantity.answers([("c", "slower"), ("a", "c")])
    assert slower.verdict == answers.SLOWER and same.verdict not in (answers.SLOWER, answers.FASTER)
    step_ms = math.exp(estimates.median(list(logs["c"].values())))
    assert step_ms * math.expm1(-slower.effect) == pytest.approx(PLANTED_MS, rel=0.25)
