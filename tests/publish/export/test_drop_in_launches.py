"""Calls that the drop-in files prepare for a shape: the same results and launches, without questions at later calls."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ladder.publish.export import drop_in
from tests.support import drop_in_cases as cases

PARENT = "dropped_in_launches"
NHWC = torch.channels_last
LAYER = (2, 40, 9, 9)  # more than a program's pixels and channels, so that sums are taken in two steps


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cases.Ops]:
    with cases.drop_ins(tmp_path_factory.mktemp("out"), PARENT) as found, torch.device(cases.DEVICE):
        yield found


def inside(name: str = "") -> ModuleType:
    """Return the package below the drop-in files, or a module of it."""
    return sys.modules[f"{PARENT}.ops.{drop_in.PACKAGE}{name}"]


def image(*shape: int, dtype: torch.dtype = torch.float32, layout: Any = NHWC) -> Tensor:
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=layout).requires_grad_()


def everything(op: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Return the result, all gradients, the gradients of the first one alone, and their gradients."""
    torch.manual_seed(1)
    y = op(*inputs)
    g = torch.randn_like(y).requires_grad_()
    first = torch.autograd.grad(y, inputs, g, retain_graph=True)
    again = torch.autograd.grad(y, inputs, g, create_graph=True)
    along = [torch.randn_like(each) for each in again]
    second = torch.autograd.grad(again, (*inputs, g), along, retain_graph=True, allow_unused=True)
    alone = torch.autograd.grad(y, inputs[:1], g, create_graph=True)
    third = torch.autograd.grad(alone, (*inputs, g), along[:1], allow_unused=True)
    return [each for each in (y, *first, *again, *second, *alone, *third) if each is not None]


# ---- the same results --------------------------------------------------------------------------------------------


def in_bias_act(ops: cases.Ops) -> tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]:
    fused = inside().bias_act
    return (
        lambda x, b: ops.bias_act.bias_act(x, b, act="lrelu", gain=0.7, clamp=0.9),
        lambda x, b: fused(x, b, act="lrelu", gain=0.7, clamp=0.9),
        (image(*LAYER, dtype=torch.float16), torch.randn(40).half().requires_grad_()),
    )


def in_planes(ops: cases.Ops) -> tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]:
    """A sample is one program, so that sums by channel alone have partial sums."""
    fused = inside().bias_act
    return (
        lambda x, b: ops.bias_act.bias_act(x, b, act="relu"),
        lambda x, b: fused(x, b, act="lrelu", slope=0),
        (image(2, 3, 4, 4, layout=torch.contiguous_format), torch.randn(3, requires_grad=True)),
    )


def in_rows(ops: cases.Ops) -> tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]:
    return (
        lambda x, b: ops.bias_act.bias_act(x, b, act="lrelu"),
        lambda x, b: inside().bias_act(x, b, act="lrelu"),
        (torch.randn(5, 40, requires_grad=True), torch.randn(40, requires_grad=True)),
    )


def in_fma(ops: cases.Ops) -> tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]:
    def fused(a: Tensor, b: Tensor) -> Tensor:
        scale = b.reshape(b.shape[:2])
        y: Tensor = inside().bias_act(a, noise=noise, strength=torch.ones(()), scale=scale, act="linear")
        return y

    noise = torch.randn(2, 1, 9, 9)
    inputs = image(*LAYER), torch.randn(2, 40, 1, 1, requires_grad=True)
    return lambda a, b: ops.fma.fma(a, b, noise), fused, inputs


def in_upfirdn2d(ops: cases.Ops) -> tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]:
    f = ops.upfirdn2d.setup_filter([1, 3, 4], device=cases.DEVICE)
    taps = ops.upfirdn2d._factorize(f.tolist())
    return (
        lambda x: ops.upfirdn2d.upfirdn2d(x, f, down=2, padding=[2, 1, 0, 1], gain=4),
        lambda x: inside().upfirdn2d(x, taps.taps, down=2, padding=(2, 1, 0, 1), gain=4 * taps.gain),
        (image(1, 3, 6, 5),),
    )


@pytest.mark.parametrize("case", [in_bias_act, in_planes, in_rows, in_fma, in_upfirdn2d])
def test_a_prepared_call_computes_the_bits_of_the_op_below_it(
    ops: cases.Ops, case: Callable[..., Any]
) -> None:
    """At the first call, and at a later one, in the layout of its tensors."""
    ours, fused, inputs = case(ops)
    wanted = everything(fused, *inputs)
    for _ in range(2):
        got = everything(ours, *inputs)
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert one.dtype is other.dtype and one.stride() == other.stride()
            assert torch.equal(one, other)


def test_a_convolution_computes_what_pytorch_computes(ops: cases.Ops) -> None:
    x, weight = image(2, 4, 6, 5, dtype=torch.float64), image(4, 3, 3, 2, dtype=torch.float64)
    plain = torch.nn.functional.conv_transpose2d
    for given in ({"stride": 2, "output_padding": 1}, {"stride": [2, 1], "padding": [1, 0]}):
        for _ in range(2):
            got = everything(
                lambda x, w, given=given: ops.conv2d_gradfix.conv_transpose2d(x, w, **given), x, weight
            )
            wanted = everything(lambda x, w, given=given: plain(x, w, **given), x, weight)
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other)


# ---- without questions -------------------------------------------------------------------------------------------


class _Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.masks: list[list[bool]] = []  # the gradients that a convolution was asked for

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        self.masks += [args[-1]] if name == "convolution_backward" else []
        return func(*args, **(kwargs or {}))


def test_a_backward_pass_that_nothing_differentiates_is_one_call(ops: cases.Ops) -> None:
    x, weight = image(1, 2, 5, 5), image(3, 2, 3, 3)
    y = ops.conv2d_gradfix.conv2d(x, weight)
    for wanted, calls, masks in (
        ((x, weight), {"convolution_backward": 1}, [[True, True, False]]),
        (
            (weight,),
            {"convolution_backward": 1},
            [[True, True, False]],
        ),  # as PyTorch asks a Function: for both
        ((x,), {"convolution": 1}, []),
    ):
        with _Counted() as counted:
            torch.autograd.grad(y, wanted, torch.ones_like(y), retain_graph=True)
        assert {name: n for name, n in counted.calls.items() if "convolution" in name} == calls
        assert counted.masks == masks
    with _Counted() as counted:
        ops.conv2d_gradfix.conv2d(x.detach(), weight).sum().backward()
    assert counted.masks == [[False, True, False]]
    with torch.no_grad():
        assert ops.conv2d_gradfix.conv2d(x, weight).grad_fn is None
    frozen = ops.conv2d_gradfix.conv2d(x, weight.detach())
    assert (
        frozen.grad_fn is not None and frozen.grad_fn.saved_tensors[0] is None
    )  # the image is not kept alive


@pytest.mark.gpu
@pytest.mark.parametrize("case", [in_bias_act, in_planes, in_rows, in_fma, in_upfirdn2d])
def test_a_later_call_does_not_ask_triton(
    ops: cases.Ops, case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.jit import JITFunction

    ours, _, inputs = case(ops)
    wanted = everything(ours, *inputs)
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: pytest.fail("Triton was asked"))
    for one, other in zip(everything(ours, *inputs), wanted, strict=True):
        assert torch.equal(one, other)


# ---- launches ----------------------------------------------------------------------------------------------------


class _Kernel:
    """A kernel that Triton compiles at its first launch."""

    arg_names = ("x", "y", "n", "BLOCK", "FLAG")

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*args: Any, **constants: Any) -> Any:
            self.log.append(("Triton", grid, args, constants))
            return _Compiled(self.log)

        return launch


class _Compiled:
    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, stream: self.log.append(("itself", grid, args, stream))


@pytest.fixture
def machine(ops: cases.Ops, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine whose current device can be set, with Triton 3.6."""
    state = SimpleNamespace(device=0, entered=[], version="3.6.0")
    driver = SimpleNamespace(
        get_current_device=lambda: state.device, get_current_stream=lambda device: f"stream {device}"
    )
    active = SimpleNamespace(driver=SimpleNamespace(active=driver))
    fake = SimpleNamespace(runtime=active, __version__=state.version)
    monkeypatch.setattr(inside(".prepared"), "triton", fake)
    state.triton = fake

    def enter(on: int) -> contextlib.AbstractContextManager[None]:
        state.entered.append(on)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "device", enter)
    return state


def test_a_kernel_is_launched_itself_after_triton_has_compiled_it(machine: SimpleNamespace) -> None:
    kernel, (x, y) = _Kernel(), torch.zeros(2, 16, device="cpu")
    launch = inside(".prepared").Launch(kernel, (7,), (5,), {"FLAG": True, "num_warps": 4, "BLOCK": 64})
    launch(x, None)
    assert kernel.log == [("Triton", (7, 1, 1), (x, None, 5), {"FLAG": True, "num_warps": 4, "BLOCK": 64})]
    launch(y, None)
    assert kernel.log[1][:2] == ("itself", (7, 1, 1)) and kernel.log[1][2][0] == y.data_ptr()
    assert kernel.log[1][2][1:] == (None, 5, 64, True) and kernel.log[1][3] == "stream 0"
    launch(torch.zeros(17, device="cpu")[1:], None)  # not aligned, so another compiled kernel
    assert kernel.log[2][0] == "Triton"
    machine.device = 1
    launch(x, None)
    assert kernel.log[3][0] == "itself" and kernel.log[3][3] == "stream 0" and machine.entered == [0]
