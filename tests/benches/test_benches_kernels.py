"""The kernels' asv benchmarks: frozen, complete, and off unless they are asked for."""

import types

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented

from benches import _measure
from benches import kernels as bench
from ladder.machine import system
from ladder.studies.kernelbench import bench as kernelbench
from ladder.studies.kernelbench import cases as kernelcases
from tests.support import made_up_kernels

FIRST = "bias_act noise scale 8x64x256x256 bf16 channels_last"


def test_names_are_only_ever_appended():
    assert bench.CASES[0] == FIRST and len(bench.CASES) >= 36
    assert bench.DIRECTIONS[:3] == ["forward", "backward", "double backward"]
    assert bench.Kernel.params == (bench.CASES, bench.DIRECTIONS)
    assert len(set(bench.CASES)) == len(bench.CASES)


def test_every_case_of_the_ladders_top_has_its_benchmark():
    wanted = {case.name for case in made_up_kernels.cases() if case.setting == 0}
    assert wanted <= set(bench.CASES), "append to benches/kernels.py"


@pytest.mark.parametrize("name", bench.CASES)
def test_a_name_gives_the_case_it_came_from(name):
    case = kernelcases.parse_case(name)
    assert case.name == name
    assert kernelcases.hash_entry(case.op) == bench.FINGERPRINTS[case.op], "a new meaning needs a new name"


@pytest.fixture
def here(monkeypatch):
    machine_ = {"device": "cuda", "capabilities": dict.fromkeys(system.CAPABILITIES)}
    monkeypatch.setattr(_measure, "machine_here", lambda: machine_)
    monkeypatch.setattr(system, "device_key", lambda device: None)
    return machine_


def test_what_a_machine_or_a_commit_cannot_do_is_not_applicable(here, monkeypatch):
    kernel = bench.Kernel()
    kernel.setup(FIRST, "forward")
    monkeypatch.setattr(kernelbench, "alone", lambda case, *_: case.fused())
    monkeypatch.setattr(kernelcases, "load_function", lambda name: getattr(types, name))
    with pytest.raises(SkipNotImplemented, match="no such op"):
        kernel.samples_cold(FIRST, "forward")
    monkeypatch.setitem(bench.FINGERPRINTS, "bias_act noise scale", "other")
    with pytest.raises(SkipNotImplemented, match="new name"):
        kernel.samples_hot(FIRST, "forward")
    here["capabilities"]["cuda"] = "needs a CUDA GPU"
    with pytest.raises(NotImplementedError, match="CUDA"):
        kernel.setup(FIRST, "forward")


@pytest.mark.parametrize("alternative", bench.ALTERNATIVES)
def test_alternatives_of_an_op_have_series_of_their_own(here, monkeypatch, alternative):
    monkeypatch.setattr(kernelbench, "alone", lambda case, *rest: [case.name, *rest])
    kernel = bench.Alternative()
    assert kernel.params[:2] == (bench.CASES, bench.DIRECTIONS) and alternative in kernelbench.CONTENDERS[1:]
    kernel.setup(FIRST, "backward", alternative)
    for temperature, samples in (("cold", kernel.samples_cold), ("hot", kernel.samples_hot)):
        assert samples(FIRST, "backward", alternative) == [FIRST, "backward", temperature, alternative]
    if alternative == "compile":
        with pytest.raises(NotImplementedError, match="twice"):
            kernel.setup(FIRST, "double backward", alternative)
    here["capabilities"]["cuda"] = "needs a CUDA GPU"
    with pytest.raises(NotImplementedError, match="CUDA"):
        kernel.setup(FIRST, "forward", alternative)
