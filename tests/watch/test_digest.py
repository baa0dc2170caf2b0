"""The digest of a GPU's profile, on events as PyTorch 2.11 gives them: a CPU's profiles have no kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._C._profiler import RecordScope, _EventType

from ladder.watch.inside import ladder_watch

US = 1000  # ns
MARKS = [(0, 0), (100 * US, 0), (200 * US, 1)]  # the first phase is the optimizer 0's


def make_event(name: str, start: int, length: int, number: int, linked: int = 0, on_gpu: bool = False) -> Any:
    """Return an event of Kineto, in microseconds. Numbers of operators and of CUDA's calls are counted apart."""
    kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    values = {
        "name": name, "start_ns": start * US, "duration_ns": length * US, "correlation_id": number,
        "linked_correlation_id": linked, "device_type": kind, "fwd_thread_id": 1, "activity_type": "kernel",
    }  # fmt: skip
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def make_operator(
    name: str, start: int, length: int, seq: int = -1, thread: int = 1, inside: Any = ()
) -> Any:
    scope = RecordScope.BACKWARD_FUNCTION if name.endswith("Backward0") else RecordScope.FUNCTION
    fields = SimpleNamespace(sequence_number=seq, scope=scope, inputs=[])
    return SimpleNamespace(
        name=name, tag=_EventType.TorchOp, start_time_ns=start * US, duration_time_ns=length * US, start_tid=thread,
        extra_fields=fields, children=[*inside],
    )  # fmt: skip


def make_call(line: int, start: int, inside: list[Any]) -> Any:
    """Return a call of a function of Python from a line of this file."""
    caller = SimpleNamespace(file_name=__file__, line_number=line, function_name="train")
    callsite = SimpleNamespace(file_name=torch.nn.functional.__file__, line_number=1, function_name="conv")
    fields = SimpleNamespace(caller=caller, callsite=callsite)
    return SimpleNamespace(
        name="conv", tag=_EventType.PyCall, start_time_ns=start * US, duration_time_ns=50 * US, start_tid=1,
        extra_fields=fields, children=inside,
    )  # fmt: skip


def make_results() -> Any:
    """Return the profile of a convolution, its gradient on autograd's thread, and a loss that is read."""
    node = "autograd::engine::evaluate_function: ConvolutionBackward0"
    gradient = make_operator("aten::convolution_backward", 131, 8, thread=2)
    events = [
        make_event("aten::convolution", 10, 20, number=1), make_event(node, 130, 10, number=2),
        make_event("aten::convolution_backward", 131, 8, number=3),
        make_event("aten::_local_scalar_dense", 150, 30, number=4),
        make_event("cudaLaunchKernel", 12, 2, number=3, linked=1),  # CUDA's third call is no operator
        make_event("cudaLaunchKernel", 132, 2, number=1, linked=3),
        make_event("cudaStreamSynchronize", 152, 25, number=2, linked=4),
        make_event("fprop_kernel", 20, 40, number=3, linked=1, on_gpu=True),
        make_event("wgrad_kernel", 140, 35, number=1, linked=3, on_gpu=True),
        make_event("Memset", 190, 2, number=8, linked=99, on_gpu=True),  # no operator launched it
        make_event("Context Sync", 140, 35, number=9, on_gpu=True),
    ]  # fmt: skip
    tree = [
        make_call(7, 9, [make_operator("aten::convolution", 10, 20, seq=5)]),
        make_operator(node, 130, 10, seq=5, thread=2, inside=[gradient]),
        make_call(8, 149, [make_operator("aten::_local_scalar_dense", 150, 30)]),
    ]
    return SimpleNamespace(events=lambda: events, experimental_event_tree=lambda: tree)


def test_a_kernel_has_the_operator_the_phase_and_the_line_of_its_forward_pass() -> None:
    digest = ladder_watch.Digest(make_results(), MARKS, {}, (__file__, "train"))
    rows = {row["kernel"]: row for row in digest.list_rows()}
    assert rows.keys() == {"fprop_kernel", "wgrad_kernel", "Memset"} and rows["Memset"]["line"] == ""
    forward, backward = rows["fprop_kernel"], rows["wgrad_kernel"]
    assert (forward["op"], forward["order"], forward["phase"], forward["us"]) == (
        "aten::convolution",
        0,
        0,
        40,
    )
    assert (backward["op"], backward["top"]) == ("aten::convolution_backward", "ConvolutionBackward0")
    assert (backward["order"], backward["phase"], backward["us"]) == (1, 1, 35)
    assert forward["line"].endswith(":7") and backward["line"] == backward["outer"] == forward["line"]


def test_a_synchronization_has_its_line_and_the_time_that_the_cpu_waited() -> None:
    digest = ladder_watch.Digest(make_results(), MARKS, {}, (__file__, "train"))
    (waited,) = digest.list_synchronizations()
    assert (waited["call"], waited["on_gpu"], waited["us"]) == ("item", True, 25)
    assert waited["line"].endswith(":8")


def test_the_gpu_is_idle_between_kernels_in_the_phase_that_launches_the_next() -> None:
    idle = {row["phase"]: row for row in ladder_watch.list_idle(make_results(), MARKS)}
    assert (idle[0]["busy_us"], idle[0]["idle_us"], idle[0]["kernels"]) == (40, 0, 1)
    assert (idle[1]["busy_us"], idle[1]["idle_us"], idle[1]["kernels"]) == (37, 95, 2)
