"""The eager run of a profile, from handmade events: layers of kernels, bytes, and memory over time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ladder.studies.profile import measuring, tracing
from ladder.studies.profile.record import UNKNOWN
from ladder.studies.profile.tracing import OUTSIDE, RANGE

OLD = [True, False]  # PyTorch 2.11, which does not tell an event's activity, and 2.13


def event(name: str, kind: str, begin: int, end: int, *, old: bool = False, **more: Any) -> Any:
    """Return an event as PyTorch's profiler gives it."""
    on_gpu = kind in ("kernel", "gpu_user_annotation", "cuda_sync") or more.pop("on_gpu", False)
    values = {
        "name": name, "start_ns": begin, "duration_ns": end - begin, "start_thread_id": 1, "fwd_thread_id": 0,
        "device_type": torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU,
        "is_user_annotation": kind.endswith("user_annotation"), "correlation_id": 0, "linked_correlation_id": 0,
        "sequence_nr": -1, "shapes": [], "dtypes": [], "nbytes": 0,
    }  # fmt: skip
    values |= more if old else {**more, "activity_type": kind}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def op(
    name: str, begin: int, end: int, number: int, sequence: int = -1, thread: int = 1, forward: int = 0
) -> Any:
    numbers: dict[str, Any] = {"correlation_id": number, "sequence_nr": sequence}
    return event(name, "cpu_op", begin, end, **numbers, start_thread_id=thread, fwd_thread_id=forward)


def layer(name: str, begin: int, end: int) -> Any:
    return event(f"{RANGE}{name}", "user_annotation", begin, end)


def kernel(name: str, begin: int, linked: int, **more: Any) -> Any:
    return event(name, "kernel", begin, begin + 5, linked_correlation_id=linked, **more)


def label(events: list[Any], device: str = "cuda", launches: Any = ()) -> list[tracing.Ran]:
    results = SimpleNamespace(events=lambda: events)
    profile = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
    return tracing.label_events(profile, "G_main", device, launches)


HOST = [
    layer("G conv0", 0, 100),
    op("aten::view", 5, 9, 1, 0),  # no node: it has the number of the next operator
    op("aten::convolution", 10, 60, 2, 0),
    op("aten::cudnn_convolution", 20, 50, 3),
    layer("G conv1", 110, 200),
    op("aten::leaky_relu", 120, 140, 4, 1),
    op("aten::sum", 210, 220, 5, 2),  # the loss, outside of every layer
    # backward passes run in a thread of their own
    op("autograd: SumBackward0", 300, 320, 6, 2, 2, 1),
    op("autograd: LeakyReluBackward0", 330, 350, 7, 1, 2, 1),
    op("aten::leaky_relu_backward", 335, 340, 8, 0, 2),  # recorded for a double backward
    op("autograd: ConvolutionBackward0", 360, 380, 9, 0, 2, 1),
    op("aten::convolution_backward", 362, 370, 10, thread=2),
    # the double backward of the activation: its node was made in thread 2
    op("autograd: LeakyReluBackwardBackward0", 400, 420, 11, 0, 2, 2),
    op("aten::mul", 405, 410, 12, thread=2),
]
LINKED = {  # kernel -> operator, layer, whether it is backward work
    "fprop": (3, "G conv0", False),
    "act": (4, "G conv1", False),
    "reduce": (5, OUTSIDE, False),
    "act_grad": (8, "G conv1", True),
    "dgrad": (10, "G conv0", True),
    "act_grad_grad": (12, "G conv1", True),
    "adam_kernel": (0, OUTSIDE, False),
    "strange": (0, UNKNOWN, False),
    "stranger": (99, UNKNOWN, False),
}


def test_kernels_have_the_layer_of_their_operator_also_in_a_double_backward() -> None:
    kernels = [kernel(name, 1000 + n, linked) for n, (name, (linked, *_)) in enumerate(LINKED.items())]
    found = {each.name: (each.layer, each.backward) for each in label(HOST + kernels)}
    assert found == {name: (layer, backward) for name, (_, layer, backward) in LINKED.items()}


@pytest.mark.parametrize(
    ("at", "place"), [(70, ("G conv0", False)), (250, (OUTSIDE, False)), (337, ("G conv1", True))]
)
def test_a_kernel_that_python_launched_belongs_where_its_launch_was(at: int, place: tuple[str, bool]) -> None:
    call = event("cuLaunchKernelEx", "cuda_driver", at, at + 2, correlation_id=3)
    (found,) = label([*HOST, call, kernel("ours", 2000, 0, correlation_id=3)])
    assert (found.layer, found.backward) == place


@pytest.mark.parametrize("old", OLD)
def test_events_of_either_pytorch_become_labels_and_changes_of_memory(old: bool) -> None:
    of_tensors = {"shapes": [[8, 8]], "dtypes": ["float"], "correlation_id": 7}
    events = [
        event(f"{RANGE}G conv0", "user_annotation", 0, 100, old=old),
        event("aten::relu", "cpu_op", 10, 30, old=old, **of_tensors),
        event(
            "cudaLaunchKernel", "cuda_runtime", 12, 13, old=old, correlation_id=21, linked_correlation_id=7
        ),
        event("cuLaunchKernelEx", "cuda_driver", 40, 41, old=old, correlation_id=22),
        event("Lazy Function Loading", "overhead", 42, 43, old=old),
        event("[memory]", "cpu_instant_event", 15, 15, old=old, nbytes=256, on_gpu=True),
        event("[memory]", "cpu_instant_event", 16, 16, old=old, nbytes=64),
        event("relu_kernel", "kernel", 500, 505, old=old, correlation_id=21, linked_correlation_id=7),
        event("second_kernel", "kernel", 506, 507, old=old, linked_correlation_id=7),
        event("ours_kernel", "kernel", 510, 515, old=old, correlation_id=22),
        event(f"{RANGE}G conv0", "gpu_user_annotation", 500, 515, old=old),
        event("Stream Wait Event", "cuda_sync", 505, 506, old=old),
    ]
    found = [(each.name, each.layer, each.moved) for each in label(events, launches=[("ours_kernel", 96)])]
    # the bytes of an operator count once for all of its kernels
    expected = [("relu_kernel", 512), ("second_kernel", 0), ("ours_kernel", 96)]
    assert found == [(name, "G conv0", moved) for name, moved in expected]


def test_on_a_cpu_operators_stand_for_kernels() -> None:
    found = {each.name: each.layer for each in label(HOST, "cpu")}
    assert len(found) == len([each for each in HOST if not each.is_user_annotation()])
    assert found["aten::cudnn_convolution"] == "G conv0" and found["aten::convolution_backward"] == "G conv0"


def test_names_of_layers() -> None:
    names = {
        ("G", ""): "G", ("G", "mapping"): "G mapping", ("G", "mapping.layers.0"): None, ("G", "blocks"): None,
        ("G", "blocks.2.conv1"): "G 16x16 conv1", ("D", "blocks.0.skip"): "D 16x16 skip", ("D", "blocks.1"): "D 8x8",
    }  # fmt: skip
    assert {each: tracing.layer_name(*each, [4, 8, 16]) for each in names} == names


@pytest.mark.parametrize("mode, hooks", [("off", True), ("default", False)])
def test_layers_of_compiled_code_get_no_hooks(mode: str, hooks: bool) -> None:
    blocks = torch.nn.ModuleDict({"mapping": torch.nn.Linear(1, 1)})
    work = SimpleNamespace(resolutions=[4])
    step = SimpleNamespace(G=blocks, D=blocks, workload=work, recipe=SimpleNamespace(compile=mode))
    with tracing.name_layers(step):
        assert bool(blocks["mapping"]._forward_hooks) is hooks
    assert not blocks["mapping"]._forward_hooks


def test_layers_that_cannot_be_recorded_leave_the_rest() -> None:
    compiled = SimpleNamespace(recipe=SimpleNamespace(compile="default"))
    assert measuring.run_eagerly(compiled, 0)[-1] == measuring.COMPILED
    broken = SimpleNamespace(recipe=SimpleNamespace(compile="off"), graphs={}, held={}, device="cpu")
    assert "the eager run failed" in (measuring.run_eagerly(broken, 0)[-1] or "")


def test_a_timeline_tells_gradients_from_the_rest() -> None:
    changes = [(0, 100), (1_000_000, 300), (2_000_000, 50), (3_000_000, -300), (4_000_000, -100)]
    found = measuring.make_timeline(changes, [(-5, 0), (1_500_000, 50)], before=1000, lasting=1000)
    assert [each.at_ms for each in found] == [0, 0, 1, 2, 3, 4, 4]  # its beginning and its end twice
    assert [each.activations for each in found] == [0, 100, 400, 400, 100, 0, 0]
    assert [each.gradients for each in found] == [0, 0, 0, 50, 50, 50, 50]
    assert measuring.make_timeline([], [], 0, 0) == []


def test_a_timeline_is_short_and_keeps_its_peak() -> None:
    changes = [(1000 * n, 10 if n < 3000 else -10) for n in range(6000)]
    found = measuring.make_timeline(changes, [], before=0, lasting=0)
    assert len(found) <= measuring.MOST_MOMENTS + 2 and found[0].activations == found[-1].activations == 0
    assert max(each.activations for each in found) == 30_000
