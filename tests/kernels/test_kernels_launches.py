"""Launches that pass by Triton: the kernel that Triton would choose, on the right device, with all parameters."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.common import arguments, dependent_launch, launches
from tests.kernels import opcases
from tests.kernels.opcases import every


class _Kernel:
    """A kernel that Triton compiles at each launch, and its compiled form."""

    arg_names = ("x", "y", "n", "BLOCK", "FLAG", "DEPENDENT")

    def __init__(self, log: list[tuple[Any, ...]], is_compiled: bool = False) -> None:
        self.log, self.is_compiled = log, is_compiled
        if is_compiled:
            self.packed_metadata = ()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*args: Any, **constants: Any) -> Any:
            self.log.append(("itself" if self.is_compiled else "Triton", grid, args, constants))
            return _Kernel(self.log, is_compiled=True)

        return launch


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the launches of `kernel`, with the current Triton on a machine with a GPU."""
    driver = SimpleNamespace(get_current_stream=lambda device: f"stream {device}")
    runtime = SimpleNamespace(driver=SimpleNamespace(active=driver))
    monkeypatch.setattr(launches, "triton", SimpleNamespace(runtime=runtime, __version__="3.10.0"))
    monkeypatch.setattr(launches, "_known", {})
    return []


def launch(kernel: _Kernel, *arguments: Any, grid: tuple[int, ...] = (7,), block: int = 64) -> None:
    launches.launch_grid(kernel, grid, arguments, FLAG=True, num_warps=4, BLOCK=block)


def test_a_kernel_is_launched_itself_after_triton_has_compiled_it(log: list[tuple[Any, ...]]) -> None:
    kernel, (x, y) = _Kernel(log), torch.zeros(2, 16, device="cpu")
    launch(kernel, x, None, 5)
    launch(kernel, y, None, 5)
    assert log == [
        ("Triton", (7,), (x, None, 5), {"FLAG": True, "num_warps": 4, "BLOCK": 64, "DEPENDENT": False}),
        ("itself", (7, 1, 1), (y.data_ptr(), None, 5, 64, True, False), {"stream": "stream -1"}),
    ]


def test_whatever_triton_compiles_anew_for_is_left_to_triton(
    log: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x = _Kernel(log), torch.zeros(16, device="cpu")
    launch(kernel, x, x, 5)
    launch(kernel, x.half(), x, 5)
    launch(kernel, x, None, 5)
    launch(kernel, torch.zeros(17, device="cpu")[1:], x, 5)  # not aligned
    launch(kernel, (x, x), x, 5)
    launch(kernel, x, x, 6)
    launch(kernel, x, x, 5, grid=(8,))
    launch(kernel, x, x, 5, block=32)
    launch(_Kernel(log), x, x, 5)
    monkeypatch.setattr(dependent_launch, "ON", True)
    launch(kernel, x, x, 5)
    assert [how for how, *_ in log] == ["Triton"] * 10
    launch(kernel, (x, x), x, 5)
    launch(kernel, (x, x), x, 5)
    assert [how for how, *_ in log[10:]] == ["Triton", "itself"]
    assert log[-1][2][:2] == ((x.data_ptr(), x.data_ptr()), x.data_ptr())


@pytest.mark.parametrize("special", ["", "scratch memory", "a hook"])
def test_a_direct_launch_gives_the_launcher_in_c_what_triton_gives_it(
    special: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this Triton's own classes. Scratch memory belongs to one launch, and a hook wants to see each."""
    driver = pytest.importorskip("triton.backends.nvidia.driver")
    compiler = pytest.importorskip("triton.compiler.compiler")
    hooks = launches.triton.knobs.runtime.launch_enter_hook
    monkeypatch.setattr(driver._allocation, "_allocator", SimpleNamespace(get=lambda: lambda *about: about))
    monkeypatch.setattr(hooks, "calls", [print] if special == "a hook" else [])
    passed: list[tuple[Any, ...]] = []
    run = object.__new__(driver.CudaLauncher)
    vars(run).update(
        launch=lambda *each: passed.append(each), num_ctas=1, launch_cooperative_grid=False, launch_pdl=True,
        global_scratch_size=16 if special == "scratch memory" else 0, global_scratch_align=1,
        profile_scratch_size=0, profile_scratch_align=1, arg_annotations="pointers", kernel_signature=b"OOi",
    )  # fmt: skip
    compiled = object.__new__(compiler.CompiledKernel)
    vars(compiled).update(module=1, function=7, packed_metadata=(4, 1, 0), name="k", src=None, _run=run)
    direct = launches._prepare(compiled, (3, 2, 1))
    direct(5, (16, 32, None, 9))
    direct(6, (48, 64, None, 9))
    compiled[(3, 2, 1)](48, 64, None, 9, stream=6)
    for_hooks = (type(hooks), compiler.LazyDict)
    first, second, tritons = ([None if isinstance(e, for_hooks) else e for e in each] for each in passed)
    assert second == tritons and first != second and first[:5] == [3, 2, 1, 5, 7]
    assert any(isinstance(each, for_hooks) for each in passed[1]) == bool(special)


def test_a_launch_is_on_the_device_of_its_tensors(
    log: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    class On:
        def __init__(self, device: int) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *_: Any) -> None: ...

    class Tensor(torch.Tensor):
        def get_device(self) -> int:
            return 1

    x = torch.zeros(16, device="cpu").as_subclass(Tensor)
    monkeypatch.setattr(torch.cuda, "device", On)
    monkeypatch.setattr(launches, "_device", lambda: entered[-1] if entered else 0)
    kernel = _Kernel(log)
    for _ in range(2):
        entered.clear()
        launch(kernel, x, None, 5)
        assert entered == [1]
    assert log[1][3] == {"stream": "stream 1"}


def test_a_call_is_checked_once_for_each_set_of_shapes_dtypes_and_numbers() -> None:
    checked = []

    @arguments.check_once
    def check(x: Any, number: Any, *, gain: Any = 1) -> Any:
        checked.append((x, number, gain))
        if number is True:
            raise ValueError("no")
        return len(checked)

    x = torch.zeros(2, 3)
    assert check(x, 1) == check(x + 1, 1) == 1
    others = [(x.half(), 1), (x[:1], 1), (x, 1.5), (x, [1]), (x, None), ([x, x], 1), (x, "1")]
    assert [check(*each) for each in others] == [2, 3, 4, 5, 6, 7, 8]
    assert check(x, 1, gain=2) == 9 and check(x, 1, gain=2) == 9
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            check(x, True)  # equal to 1, and no number
    assert check(x, {}) == 12 and check(x, {}) == 13  # no key


@pytest.mark.gpu
@every(layouts=False)
def test_a_later_call_does_not_reach_triton(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither forward nor backward, in any order of derivatives."""
    from triton.runtime.jit import JITFunction

    fused = opcases.functions(case)[0]
    inputs = opcases.make_inputs(case, (4, 32, 16, 16), "nhwc", torch.float32)
    expected = opcases.values_and_grads(fused, inputs)
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: pytest.fail("Triton was reached"))
    for one, other in zip(opcases.values_and_grads(fused, inputs), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)  # cuDNN adds up in no fixed order
