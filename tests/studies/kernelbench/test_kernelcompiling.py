"""Compiling ahead of `ladder kernels`: what goes to which process, and that who measures then compiles nothing."""

import json
import os
import shutil
import subprocess
import sys
import types

import pytest

from ladder.machine import caches
from ladder.studies.kernelbench import compiling as kernelcompiling
from ladder.studies.kernelbench.compiling import AT_ONCE, Ahead, Compilers, processes

NAMES = ["bias_act 2x8x16x16 fp32 NCHW", "modulate 2x8x16x16 bf16 channels_last"]


@pytest.fixture
def compilers():
    made = Compilers(2, "aot_eager", "cpu")
    yield made
    made.close()
    assert all(process.poll() is not None for process in made.running)


def test_each_case_is_compiled_once_and_what_fails_or_dies_stays_behind(compilers):
    bad = "bias_act 2x8x16x16 fp8 NCHW"
    assert sorted(compilers.compile([*NAMES, bad])) == sorted(NAMES)
    assert compilers.compile(NAMES[:1]) == NAMES[:1]  # they are still there

    # A process that dies leaves the rest to the others.
    compilers.running[0].kill()
    compilers.running[0].wait()
    left = compilers.compile(NAMES)
    assert left and left[-1] == NAMES[-1]
    compilers.running[1].kill()
    compilers.running[1].wait()
    assert compilers.compile(NAMES) == []


def test_one_that_hangs_is_ended(compilers, monkeypatch):
    monkeypatch.setattr(kernelcompiling, "STUCK_S", 0.1)  # importing torch takes longer
    assert compilers.compile(NAMES) == []


MEASURES = """
import json, sys
from torch._dynamo.utils import counters
from ladder.studies.kernelbench import compiling as kernelcompiling
from ladder.studies.kernelbench.cases.registry import named
kernelcompiling.compile_theirs(named(sys.argv[1]), "inductor", "cpu")
print(json.dumps(counters["inductor"]))
"""


@pytest.mark.exhaustive  # g++ takes some seconds for each kernel
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor compiles C++ on a CPU")
def test_the_measuring_process_finds_in_the_cache_what_another_compiled(tmp_path, monkeypatch):
    """By the counters of torch itself."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")  # with vectors g++ takes ten seconds more
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")  # for one kernel they are no gain
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")  # -O0: how fast the kernel is does not matter
    with caches.set_variables(caches.point_into(tmp_path)):
        made = Compilers(1, "inductor", "cpu")
        try:
            assert made.compile(NAMES[1:]) == NAMES[1:]
        finally:
            made.close()
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        said = subprocess.run(
            [sys.executable, "-c", MEASURES, NAMES[1]], env=env, capture_output=True, text=True, check=True
        )
    seen = json.loads(said.stdout.splitlines()[-1])
    assert seen["fxgraph_cache_hit"] == 2 and "fxgraph_cache_miss" not in seen


def test_cases_are_compiled_batch_by_batch_before_the_first_of_them(monkeypatch):
    done, told = [], []

    def fails(cases, gpu):
        done.append(("ours", len(cases)))
        raise RuntimeError("planted")

    class Fake:
        def __init__(self, *how):
            done.append("start")

        def compile(self, names):
            done.append(names)

        def close(self):
            done.append("close")

    monkeypatch.setattr(kernelcompiling, "compile_ours", fails)
    monkeypatch.setattr(kernelcompiling, "Compilers", Fake)
    cases = [types.SimpleNamespace(name=str(n)) for n in range(AT_ONCE + 3)]
    with Ahead(cases, types.SimpleNamespace(name="cpu"), "inductor", lambda *how: told.append(how)) as ahead:
        assert not done
        for index in range(len(cases)):
            ahead(index)
    names = [case.name for case in cases]
    assert done == ["start", ("ours", AT_ONCE), names[:AT_ONCE], ("ours", 3), names[AT_ONCE:], "close"]
    assert told == [(0, AT_ONCE), (AT_ONCE, 3)]


def test_there_are_as_many_as_fit(monkeypatch):
    from ladder.machine import system

    monkeypatch.setattr(system, "usable_cores", lambda: 12)
    assert processes(types.SimpleNamespace(name="cuda", memory=140 * 2**30)) == 12
    assert processes(types.SimpleNamespace(name="cuda", memory=24 * 2**30)) == 3
    assert processes(types.SimpleNamespace(name="cpu")) == 0
