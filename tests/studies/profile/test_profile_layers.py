"""The layers of an eager run, from handmade events: forward, backward, double backward, and the kernels they launch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ladder.studies.profile import attribution, measuring, tracing
from ladder.studies.profile.attribution import OUTSIDE, RANGE, Span
from ladder.studies.profile.record import LAYER_UNKNOWN

CONV, ACT = "aten::convolution", "aten::leaky_relu"


def op(
    name: str, begin: int, end: int, number: int, *, sequence: int = -1, thread: int = 1, forward: int = 0
) -> Span:
    return Span(name, begin, end, thread, number, sequence=sequence, forward_thread=forward)


def layer(name: str, begin: int, end: int) -> Span:
    return Span(f"{RANGE}{name}", begin, end, 1, is_range=True)


def kernel(name: str, begin: int, linked: int) -> Span:
    return Span(name, begin, begin + 5, linked=linked, on_device=True)


def backward(of: str, begin: int, number: int, sequence: int, thread: int, forward: int) -> Span:
    name = f"autograd::engine::evaluate_function: {of}"
    return op(name, begin, begin + 20, number, sequence=sequence, thread=thread, forward=forward)


HOST = [
    layer("G conv0", 0, 100),
    op("aten::view", 5, 9, 1, sequence=0),  # no node: it has the number of the next operator
    op(CONV, 10, 60, 2, sequence=0),
    op("aten::cudnn_convolution", 20, 50, 3),
    layer("G conv1", 110, 200),
    op(ACT, 120, 140, 4, sequence=1),
    op("aten::sum", 210, 220, 5, sequence=2),  # the loss, outside of every layer
    # backward passes run in a thread of their own
    backward("SumBackward0", 300, 6, 2, 2, 1),
    backward("LeakyReluBackward0", 330, 7, 1, 2, 1),
    op("aten::leaky_relu_backward", 335, 340, 8, thread=2, sequence=0),  # recorded for a double backward
    backward("ConvolutionBackward0", 360, 9, 0, 2, 1),
    op("aten::convolution_backward", 362, 370, 10, thread=2),
    # the double backward of the activation: its node was made in thread 2
    backward("LeakyReluBackwardBackward0", 400, 11, 0, 2, 2),
    op("aten::mul", 405, 410, 12, thread=2),
]
DEVICE = [
    kernel("fprop", 1000, 3),
    kernel("act", 1010, 4),
    kernel("reduce", 1020, 5),
    kernel("act_grad", 1030, 8),
    kernel("dgrad", 1040, 10),
    kernel("wgrad", 1050, 10),
    kernel("act_grad_grad", 1060, 12),
    kernel("adam_kernel", 1070, 0),
    kernel("strange", 1080, 0),
    kernel("stranger", 1090, 99),
]


def test_kernels_have_the_layer_of_the_operator_that_launched_them() -> None:
    found = {
        each.name: (each.layer, each.backward)
        for each in attribution.label_spans(HOST + DEVICE, "G_main", "cuda")
    }
    assert found["fprop"] == ("G conv0", False) and found["act"] == ("G conv1", False)
    assert found["reduce"] == (OUTSIDE, False)


def test_backward_work_finds_its_layer_by_autograds_numbers_also_twice() -> None:
    found = {
        each.name: (each.layer, each.backward)
        for each in attribution.label_spans(HOST + DEVICE, "D_r1", "cuda")
    }
    assert found["act_grad"] == ("G conv1", True)
    assert found["dgrad"] == found["wgrad"] == ("G conv0", True)
    assert found["act_grad_grad"] == ("G conv1", True)


def test_a_kernel_without_an_operator_is_unknown_unless_it_is_an_optimizers() -> None:
    found = {each.name: each.layer for each in attribution.label_spans(HOST + DEVICE, "G_main", "cuda")}
    assert found["adam_kernel"] == OUTSIDE
    assert found["strange"] == found["stranger"] == LAYER_UNKNOWN


def test_a_kernel_that_python_launched_belongs_where_its_launch_was() -> None:
    calls = [
        Span("cuLaunchKernelEx", at, at + 2, launch=number) for at, number in ((70, 1), (250, 2), (337, 3))
    ]
    names = {1: "in the forward pass", 2: "between the passes", 3: "in the backward pass"}
    kernels = [Span(name, 2000 + n, 2001 + n, on_device=True, launch=n) for n, name in names.items()]
    found = {
        each.name: (each.layer, each.backward)
        for each in attribution.label_spans([*HOST, *calls, *kernels], "G_main", "cuda")
    }
    assert found == {
        "in the forward pass": ("G conv0", False),
        "between the passes": (OUTSIDE, False),
        "in the backward pass": ("G conv1", True),
    }


def kineto(name: str, kind: str, begin: int, *, old: bool, **more: Any) -> Any:
    """Return an event as PyTorch's profiler gives it: of 2.11, which does not tell its activity, or of 2.13."""
    on_gpu = kind in ("kernel", "gpu_memset", "gpu_user_annotation", "cuda_sync") or more.pop("on_gpu", False)
    values = {
        "name": name, "start_ns": begin, "duration_ns": 5, "start_thread_id": 1, "fwd_thread_id": 0,
        "device_type": torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU,
        "is_user_annotation": kind.endswith("user_annotation"), "correlation_id": 0, "linked_correlation_id": 0,
        "sequence_nr": -1, "shapes": [], "dtypes": [], "nbytes": 0,
    }  # fmt: skip
    values |= more if old else {**more, "activity_type": kind}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


@pytest.mark.parametrize("old", [True, False])
def test_a_gpus_events_of_either_pytorch_become_spans_labels_and_changes_of_memory(old: bool) -> None:
    of_tensors = {"shapes": [[8, 8]], "dtypes": ["float"], "correlation_id": 7, "duration_ns": 20}
    events = [
        kineto(f"{RANGE}G conv0", "user_annotation", 0, old=old, duration_ns=100),
        kineto("aten::relu", "cpu_op", 10, old=old, **of_tensors),
        kineto("cudaLaunchKernel", "cuda_runtime", 12, old=old, correlation_id=21, linked_correlation_id=7),
        kineto("cuLaunchKernelEx", "cuda_driver", 40, old=old, correlation_id=22),
        kineto("[memory]", "cpu_instant_event", 15, old=old, nbytes=256, on_gpu=True),
        kineto("[memory]", "cpu_instant_event", 16, old=old, nbytes=64),
        kineto("relu_kernel", "kernel", 500, old=old, correlation_id=21, linked_correlation_id=7),
        kineto("ours_kernel", "kernel", 510, old=old, correlation_id=22),
        kineto(f"{RANGE}G conv0", "gpu_user_annotation", 500, old=old, duration_ns=15),
        kineto("Stream Wait Event", "cuda_sync", 505, old=old),
    ]
    profile = SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events)))
    found = attribution.label_spans(attribution.list_spans(profile), "G_main", "cuda", [("ours_kernel", 96)])
    assert [(each.name, each.layer, each.moved) for each in found] == [
        ("relu_kernel", "G conv0", 512),
        ("ours_kernel", "G conv0", 96),
    ]
    assert measuring.list_allocations(profile, "cuda") == [(15, 256)] and measuring.list_allocations(
        profile, "cpu"
    ) == [(16, 64)]


def test_bytes_of_an_operator_count_once_for_all_its_kernels() -> None:
    host = [Span("aten::sum", 0, 10, 1, 1, moved=400)]
    found = attribution.label_spans(
        [*host, kernel("first", 20, 1), kernel("second", 30, 1)], "G_main", "cuda"
    )
    assert [each.moved for each in found] == [400, 0]


def test_on_a_cpu_operators_stand_for_kernels() -> None:
    found = attribution.label_spans(HOST, "G_main", "cpu")
    assert [each.name for each in found] == [each.name for each in HOST if not each.is_range]
    named = {each.name: each.layer for each in found}
    assert named["aten::cudnn_convolution"] == "G conv0" and named["aten::convolution_backward"] == "G conv0"


# --- memory and the trace ------------------------------------------------------------------------------------------


def test_a_timeline_tells_gradients_from_the_rest() -> None:
    changes = [(0, 100), (1_000_000, 300), (2_000_000, 50), (3_000_000, -300), (4_000_000, -100)]
    found = measuring.make_timeline(changes, [(-5, 0), (1_500_000, 50)], before=1000, lasting=1000)
    assert [each.at_ms for each in found] == [
        0,
        0,
        1,
        2,
        3,
        4,
        4,
    ]  # the beginning and the end stand for themselves
    assert [each.activations for each in found] == [0, 100, 400, 400, 100, 0, 0]
    assert [each.gradients for each in found] == [0, 0, 0, 50, 50, 50, 50]
    assert measuring.make_timeline([], [], 0, 0) == []


def test_a_timeline_is_short_and_keeps_its_peak() -> None:
    changes = [(1000 * n, 10 if n < 3000 else -10) for n in range(6000)]
    found = measuring.make_timeline(changes, [], before=0, lasting=0)
    assert len(found) <= measuring.MOST_MOMENTS + 2 and found[0].activations == found[-1].activations == 0
    assert max(each.activations for each in found) == 30_000


def test_a_trace_is_cut_at_its_end_and_keeps_its_names() -> None:
    events = [{"ph": "X", "ts": n, "name": str(n)} for n in reversed(range(10))]
    whole = {
        "traceEvents": [{"ph": "M", "name": "process_name"}, {"ph": "M", "name": "GPU 9", "pid": 9}, *events],
        "traceName": "/home/somebody/trace.json",
    }
    found, cut = tracing.bound_trace(whole, most=5)
    assert cut == 6 and [each["name"] for each in found["traceEvents"]] == ["process_name", *"0123"]
    assert "somebody" not in str(found)
    assert tracing.bound_trace(whole)[1] == 0


def test_a_trace_that_is_no_json_is_kept_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = b'{"traceEvents": [{"bandwidth": inf}]}'
    profile = SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_bytes(broken))
    monkeypatch.setattr(tracing, "run_profiled", lambda *_, **__: profile)
    step = SimpleNamespace(
        device="cpu", phases=lambda index: ("G_main",), recipe=SimpleNamespace(compile="default")
    )
    said = tracing.write_trace(step, tmp_path / "step.json")
    assert (tmp_path / "step.json").read_bytes() == broken and "it is no JSON" in said
