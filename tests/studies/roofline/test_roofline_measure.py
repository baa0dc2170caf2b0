"""Measuring ceilings, with a made-up clock: what is called, with which inputs and settings, and what is made of it."""

import math

import pytest
import torch

import stylegan_lite
from ladder.receipts import evidence, traces
from ladder.studies.roofline import derive, floors, measure
from ladder.studies.roofline.derive import Op
from tests.support.small import SMALL

KINDS = tuple(derive.KINDS)
OPS = {kind: Op(kind, (2, 4, 9, 9), (6, 4, 3, 3), 2, 1, "fp32") for kind in KINDS}
WEIGHTS = {op: 10.0 - k for k, op in enumerate(OPS.values())}


class Timer:
    """A clock that runs every call once and notes the results and the settings of the moment."""

    def __init__(self, seconds=0.5):
        self.seconds, self.results, self.settings = seconds, [], []

    def __call__(self, calls):
        self.results.append([call() for call in calls])
        backends = torch.backends
        self.settings.append((backends.cudnn.benchmark, backends.cuda.matmul.fp32_precision))
        return self.seconds


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_computes_its_own_tensor_from_rotating_random_inputs(kind, layout):
    op, timer, before = OPS[kind], Timer(), torch.backends.cudnn.benchmark
    assert measure.convolution_rate(op, layout, timer, "cpu") == op.flops / 0.5
    (results,) = timer.results
    computed = [
        [x for x in (each if isinstance(each, tuple) else (each,)) if x is not None] for each in results
    ]
    assert {len(each) for each in computed} == {1}, "one gradient is timed, not two"
    assert computed[0][0].shape == {KINDS[0]: op.result, KINDS[1]: op.image, KINDS[2]: op.weight}[kind]
    assert len(results) >= 2 and len(results) * op.bytes >= 2**17  # two of the caches assumed on a CPU
    assert not torch.equal(computed[0][0], computed[1][0]) and computed[0][0].std() > 0.5
    assert timer.settings[0][0] is True and torch.backends.cudnn.benchmark is before is False


def test_matmuls_run_in_the_precision_that_they_are_named_for():
    timer, before = Timer(1.0), torch.backends.cuda.matmul.fp32_precision
    rates = [measure.matmul_rate(name, timer, "cpu") for name in ("bf16", "tf32", "fp32")]
    dtypes = [results[0].dtype for results in timer.results]
    assert dtypes == [torch.bfloat16, torch.float32, torch.float32]
    assert [precision for _, precision in timer.settings][1:] == ["tf32", "ieee"]
    assert torch.backends.cuda.matmul.fp32_precision == before and rates == [2 * 16**3] * 3


def test_the_fastest_way_to_copy_is_the_ceiling(monkeypatch):
    """Whole, a copy may be slow: on an H200 the driver copied a GiB at 2.7 TB/s, its thirds at 4.2."""
    monkeypatch.setattr(measure, "WAYS", ((1 << 12, 1 << 14), (1 << 12, 1 << 15)))
    seconds = {4: 0.5, 2: 0.25, 1: 1.0}  # by how many pieces
    pieces = []

    def timer(calls):
        pieces.append(len(calls[0]()))
        return seconds[pieces[-1]]

    assert measure.copy_rate(timer, "cpu") == 2 * 2**16 / 0.25 and pieces == [4, 2, 1]


def test_a_failure_costs_one_rate():
    def timer(calls):
        if len(calls) > 2:  # the convolutions, small as they are
            raise RuntimeError("GET was unable to find an engine to execute this computation")
        return 1.0

    today = measure.measure_rates(WEIGHTS, "nchw", "cpu", timer)
    assert set(today.rates) == {"copy", "matmul bf16", "matmul tf32", "matmul fp32"}
    assert set(today.skipped) == {op.key("nchw") for op in WEIGHTS}
    assert "unable to find an engine" in today.skipped[OPS[KINDS[0]].key("nchw")]


def test_when_time_is_up_the_lightest_are_left_out(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    today = measure.measure_rates(WEIGHTS, "nchw", "cpu", lambda calls: 1.0, budget_s=5.5)
    assert OPS[KINDS[0]].key("nchw") in today.rates and len(today.rates) == 5
    assert today.skipped == {OPS[kind].key("nchw"): "no time left" for kind in KINDS[1:]}


def test_the_best_of_windows_that_are_long_enough_counts():
    windows, replay_s = [], [30e-6]

    def elapsed(replay, times):
        windows.append(times * replay_s[0])
        replay_s[0] = max(0.9 * replay_s[0], 20e-6)  # clocks rise for a while
        return windows[-1]

    best = measure.best_window(lambda: None, elapsed)
    long = [each for each in windows if each >= measure.WINDOW_S]
    assert len(long) == measure.WINDOWS and windows[0] < measure.WINDOW_S
    assert math.isclose(best, 20e-6)


class Step:
    """A step as far as `observe_step` uses it."""

    def __init__(self, recipe, log):
        self.together, self.log = [("G_main",)] if recipe["whole_step_graph"] else [], log
        self.name = "whole" if self.together else "apart"

    def __getattr__(self, name):
        return lambda *args: self.log.append((self.name, name, *args)) or {}


@pytest.mark.parametrize("whole", [True, False])
def test_each_phase_is_timed_whether_or_not_the_step_is_one_graph(monkeypatch, whole):
    log = []

    def record_events(cycle):
        cycle()
        return [(log[-1][0], True, 7, 0, 1000)]

    monkeypatch.setattr(stylegan_lite, "make_step", lambda fields, recipe, device: Step(recipe, log))
    monkeypatch.setattr(traces, "record_events", record_events)
    monkeypatch.setattr(evidence, "synchronize_device", lambda step: None)
    monkeypatch.setattr(measure, "time_run", lambda run, **how: run() or 0.001)
    timed = measure.observe_step(SMALL, {"whole_step_graph": whole})
    assert timed.phases_ms == dict.fromkeys(floors.PHASES, 1.0)
    assert [row.heaviest for row in timed.families] == ["whole" if whole else "apart"], (
        "another step is traced"
    )
    alone = [(name, *args) for name, call, *args in log if call == "run_phase"]
    assert alone == [("apart", phase) for phase in floors.PHASES]
    closed = [name for name, call, *_ in log if call == "close"]
    assert closed == (["whole", "apart"] if whole else ["apart"])
    if whole:
        assert log.index(("whole", "close")) < log.index(("apart", "prepare")), "both in memory at once"


@pytest.mark.gpu
def test_ceilings_of_a_gpu_are_plausible():
    op = Op(KINDS[0], (8, 64, 64, 64), (64, 64, 3, 3), 1, 1, "bf16")
    today = measure.measure_rates({op: 1.0}, "channels_last")
    assert not today.skipped and all(rate > 1e9 for rate in today.rates.values())
    assert today.rates["matmul bf16"] > today.rates["matmul fp32"]
