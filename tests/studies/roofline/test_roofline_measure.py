"""Measuring ceilings, with a made-up clock: what is called, with which inputs and settings, and what is made of it."""

import math

import pytest
import torch

from ladder.studies.roofline import derive, measure
from ladder.studies.roofline.derive import Op

KINDS = tuple(derive.KINDS)
SHAPE = ((2, 4, 9, 9), (6, 4, 3, 3), 2, 1, "fp32")
OPS = {kind: Op(kind, *SHAPE) for kind in KINDS}
WEIGHTS = {op: 10.0 - k for k, op in enumerate(OPS.values())}


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_computes_its_own_tensor(kind, layout):
    op = OPS[kind]
    outputs = []

    def timer(calls):
        outputs.extend(call() for call in calls)
        return 0.5

    assert measure.convolution_rate(op, layout, timer, "cpu") == op.flops / 0.5
    found = outputs[0] if kind == KINDS[0] else next(x for x in outputs[0] if x is not None)
    assert found.shape == {KINDS[0]: op.result, KINDS[1]: op.image, KINDS[2]: op.weight}[kind]
    if kind != KINDS[0]:
        assert sum(x is not None for x in outputs[0]) == 1, "one gradient is timed, not two"


def test_inputs_rotate_and_are_random():
    sets = measure._make_inputs(OPS[KINDS[0]], "channels_last", "cpu")
    assert len(sets) >= 2 and not torch.equal(sets[0][0], sets[1][0])
    assert all(x.std() > 0.5 for tensors in sets for x in tensors)
    assert all(x.is_contiguous(memory_format=torch.channels_last) for tensors in sets for x in tensors)
    assert sum(x.nbytes for tensors in sets for x in tensors) >= 2**17  # two of the caches assumed here


def test_cudnn_may_choose_while_a_convolution_is_timed_and_not_after():
    seen = []

    def timer(calls):
        seen.append(torch.backends.cudnn.benchmark)
        return 1.0

    before = torch.backends.cudnn.benchmark
    measure.convolution_rate(OPS[KINDS[0]], "nchw", timer, "cpu")
    assert seen == [True] and torch.backends.cudnn.benchmark is before is False


def test_matmuls_run_in_the_precision_that_they_are_named_for():
    seen = []

    def timer(calls):
        seen.append((calls[0]().dtype, torch.backends.cuda.matmul.fp32_precision))
        return 1.0

    before = torch.backends.cuda.matmul.fp32_precision
    found = [measure.matmul_rate(name, timer, "cpu") for name in ("bf16", "tf32", "fp32")]
    assert [dtype for dtype, _ in seen] == [torch.bfloat16, torch.float32, torch.float32]
    assert [precision for _, precision in seen][1:] == ["tf32", "ieee"]
    assert torch.backends.cuda.matmul.fp32_precision == before and found == [2 * 16**3] * 3


def test_a_copy_counts_bytes_read_and_written():
    copied = []

    def timer(calls):
        copied.append(sum(target.nbytes for call in calls for target in call()))
        return 0.25

    assert measure.copy_rate(timer, "cpu") == 2 * max(copied) / 0.25 and min(copied) >= 2**16


def test_the_fastest_way_to_copy_is_the_ceiling(monkeypatch):
    """Whole, a copy may be slow: on an H200 the driver copied a GiB at 2.7 TB/s, its thirds at 4.2."""
    monkeypatch.setattr(measure, "WAYS", ((1 << 12, 1 << 14), (1 << 12, 1 << 15)))
    seconds = {4: 0.5, 2: 0.25, 1: 1.0}  # by how many pieces
    pieces = []

    def timer(calls):
        pieces.append(len(calls[0]()))
        return seconds[pieces[-1]]

    assert measure.copy_rate(timer, "cpu") == 2 * 2**16 / 0.25 and pieces == [4, 2, 1]


def test_everything_is_measured_and_a_failure_costs_one_rate():
    def timer(calls):
        if len(calls) > 2:  # the convolutions, small as they are
            raise RuntimeError("GET was unable to find an engine to execute this computation")
        return 1.0

    found = measure.measure_rates(WEIGHTS, "nchw", device="cpu", timer=timer)
    assert set(found.rates) == {"copy", "matmul bf16", "matmul tf32", "matmul fp32"}
    assert set(found.skipped) == {op.key("nchw") for op in WEIGHTS}
    assert "unable to find an engine" in found.skipped[OPS[KINDS[0]].key("nchw")]


def test_when_time_is_up_the_lightest_are_left_out(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    found = measure.measure_rates(WEIGHTS, "nchw", device="cpu", timer=lambda calls: 1.0, budget_s=5.5)
    assert OPS[KINDS[0]].key("nchw") in found.rates and len(found.rates) == 5
    assert found.skipped == {OPS[kind].key("nchw"): "no time left" for kind in KINDS[1:]}


def test_the_best_of_windows_that_are_long_enough_counts():
    replays, took = [0], [30e-6]

    def elapsed(run):
        before = replays[0]
        run()
        seconds = (replays[0] - before) * took[0]
        windows.append(seconds)
        took[0] = max(0.9 * took[0], 20e-6)  # clocks rise for a while
        return seconds

    def replay():
        replays[0] += 1

    windows = []
    best = measure.best_window(replay, elapsed)
    long = [w for w in windows if w >= measure.WINDOW_S]
    assert len(long) == measure.WINDOWS and windows[0] < measure.WINDOW_S
    assert math.isclose(best, 20e-6)


@pytest.mark.gpu
def test_ceilings_of_a_gpu_are_plausible():
    op = Op(KINDS[0], (8, 64, 64, 64), (64, 64, 3, 3), 1, 1, "bf16")
    found = measure.measure_rates({op: 1.0}, "channels_last")
    assert not found.skipped and all(rate > 1e9 for rate in found.rates.values())
    assert found.rates["matmul bf16"] > found.rates["matmul fp32"]
