"""The timing of `ladder kernels --claims`, and its reasons where a contender cannot be timed."""

import os
import shutil
import signal
import sys
import threading
import time
import types
from dataclasses import replace

import pytest
import torch

import kernels
from ladder.base.stopping import stop_on_sigterm
from ladder.studies.claims import (
    experiments,
    launching,
    registry,
    timed,
)
from ladder.studies.claims.timed import Experiment, Missing, Stopwatch, Timed
from ladder.studies.kernelbench import cuda
from ladder.studies.kernelbench.timing import SMOKE, Cpu, Timer
from tests.support import made_up_claims

SETTING = made_up_claims.SETTING


def adding(number):
    def make(setting):
        x = torch.randn(setting.shape)
        return lambda: x + number

    return make


def lacking(setting):
    raise Missing("no compiler here")


@pytest.fixture
def stopwatch():
    return Stopwatch(Cpu(), Timer(Cpu(), SMOKE))


def prepared(stopwatch, contenders, **more):
    found = Timed(Experiment("toy", "a toy", contenders, 2, 4, **more), SETTING)
    stopwatch.prepare(found)
    return found


def test_what_is_wrong_or_missing_has_a_reason_and_no_number(stopwatch):
    contenders = {
        "plain": adding(0.0),
        "same": adding(1e-6),
        "wrong": adding(1.0),
        "none": lacking,
        "else": adding(5.0),
    }
    found = prepared(stopwatch, contenders, unlike=("else",))
    for _ in timed.repeats(stopwatch, [found], 3, 3, lambda: 1.0):
        pass
    assert set(found.reasons) == {"wrong", "none"} and found.reasons["none"] == "no compiler here"
    assert "differs from plain PyTorch" in found.reasons["wrong"]
    assert {name: len(v) for name, v in found.samples.items()} == {"plain": 3, "same": 3, "else": 3}


def test_all_contenders_of_a_repeat_have_the_same_inputs_and_each_repeat_has_new_ones(stopwatch):
    seen = []

    def make(setting):
        x = torch.randn(4)
        seen.append(x.tolist())
        return lambda: x

    found = prepared(stopwatch, {"a": make, "b": make})
    assert seen[0] == seen[1]
    seen.clear()
    stopwatch.repeat(found)
    sets = len(seen) // 2
    assert seen[:sets] == seen[sets:]
    stopwatch.repeat(found)
    assert seen[2 * sets] != seen[0]


def test_time_that_is_used_up_is_said_and_what_has_begun_gets_its_least_repeats(stopwatch):
    first, second = (prepared(stopwatch, {"a": adding(0.0)}) for _ in range(2))
    left = iter([1.0] + [-1.0] * 100)
    list(timed.repeats(stopwatch, [first, second], 3, 9, lambda: next(left)))
    assert len(first.samples["a"]) == 3
    assert not second.samples and second.reasons == {"a": timed.NO_TIME}


def test_a_contender_that_fails_later_loses_the_numbers_it_had(stopwatch):
    left = [4]

    def make(setting):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("CUDA error: an illegal memory access")
        return lambda: torch.zeros(3)

    found = prepared(stopwatch, {"a": make})
    for _ in range(3):
        stopwatch.repeat(found)
    assert not found.samples and "illegal memory access" in found.reasons["a"]


def test_launches_are_timed_and_what_cannot_run_says_why(monkeypatch):
    x = torch.zeros(1)
    made = {"op": lambda: lambda: x.add_(1), "none": lambda: lacking(None)}
    monkeypatch.setattr(launching, "contenders", lambda device: made)
    found = launching.measure(Cpu(), 2, smoke=True)
    assert set(found.samples_us) == {
        f"{w}: op" for w in (launching.LAUNCH, launching.REPLAY, launching.WHOLE)
    }
    assert found.reasons == {"none": "no compiler here"}
    assert all(len(v) == 2 and min(v) > 0 for v in found.samples_us.values())


def test_a_fallback_of_the_cuda_norm_is_not_timed_as_cuda(monkeypatch):
    """`kernels.cuda.instance_norm_act` goes on in Triton where it cannot be built; its time would pass for CUDA's."""
    package = types.SimpleNamespace(available=lambda: "needs nvcc", instance_norm_act=lambda x, *a, **k: x)
    monkeypatch.setitem(sys.modules, "kernels.cuda", package)
    monkeypatch.setattr(kernels, "cuda", package, raising=False)
    with pytest.raises(Missing, match="needs nvcc"):
        cuda.package()


def test_the_processes_that_build_ahead_build_with_each_of_the_flags(monkeypatch):
    started, built = [], []

    def start(command, **how):
        started.append(command)
        return types.SimpleNamespace(wait=lambda timeout: 0, poll=lambda: 0)

    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(cuda.subprocess, "Popen", start)
    monkeypatch.setattr(cuda, "package", lambda **flags: built.append(flags))
    cuda.build_ahead([{}, {"fast_math": True}])
    for _, _, code, flags in started:
        monkeypatch.setattr(sys, "argv", ["-c", flags])
        exec(code)
    assert built == [{}, {"fast_math": True}]


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs ninja")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_ends_while_it_builds_ahead_leaves_no_compiler(tmp_path, monkeypatch, number):
    """ninja makes a process group of each compiler, so the end of the build's group does not reach it."""
    nvcc, python = tmp_path / "nvcc", tmp_path / "python"
    nvcc.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/$1.tmp; mv {tmp_path}/$1.tmp {tmp_path}/$1.pid; exec sleep 600\n"
    )
    python.write_text(f"#!/bin/sh\nninja -C {tmp_path}\necho ended\n")
    rule = f"rule nvcc\n  command = {nvcc} $out\n"
    (tmp_path / "build.ninja").write_text(f"{rule}build a: nvcc\nbuild b: nvcc\n")
    for path in (nvcc, python):
        path.chmod(0o755)
    monkeypatch.setattr(cuda.sys, "executable", str(python))

    def stop():
        while len([*tmp_path.glob("*.pid")]) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop, daemon=True)
    with pytest.raises(KeyboardInterrupt), stop_on_sigterm():
        stopper.start()
        cuda.build_ahead([{}])
    for path in tmp_path.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def test_the_bytes_saved_by_fusion_are_two_intermediates_written_and_read():
    whole = experiments.setting("cuda", False)
    fusion = experiments.fusion()
    record = timed.Timed(fusion, whole).record()
    saved = registry.View(replace(made_up_claims.result(), experiments=[record])).saved_by_fusion(None)
    assert saved * 1e6 == 4 * 2 * 512 * 256 * 256 == 256 * 2**20
