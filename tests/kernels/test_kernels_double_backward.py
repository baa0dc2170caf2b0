"""`fast_double_backward`: PyTorch's convolutions keep their derivatives, made of other convolutions."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import conv2d as imported_before
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import double_backward, fast_double_backward
from tests.kernels.opcases import DEVICE

pytestmark = pytest.mark.filterwarnings("error:.*Overriding a previously registered kernel:UserWarning")


class Convolutions(TorchDispatchMode):
    """Counts convolutions, and remembers the longest side of a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.longest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "convolution":
            self.calls, self.longest = self.calls + 1, max(self.longest, *args[1].shape[2:])
        return func(*args, **(kwargs or {}))


def is_fast() -> bool:
    """Return whether a second derivative is made without a convolution whose kernel is an image."""
    x, weight = (torch.randn(s, device=DEVICE, requires_grad=True) for s in ((2, 2, 9, 9), (2, 2, 3, 3)))
    (g,) = torch.autograd.grad(F.conv2d(x, weight).sum(), x, create_graph=True)
    with torch.autograd.set_multithreading_enabled(False), Convolutions() as seen:
        g.square().sum().backward()
    return seen.longest <= 3


def penalize(network, x, dtype=None):
    """Return R1's gradients of the network's weights, and of x."""
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(network(x).pow(3).sum(), x, create_graph=True)
    weights = [p for p in network.parameters() if p.requires_grad]
    return torch.autograd.grad(g.to(dtype or g.dtype).square().sum(), [x, *weights], allow_unused=True)


# ---- right -------------------------------------------------------------------------------------------------------


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(data=st.data())
def test_any_call_has_pytorchs_second_and_third_derivatives(data):
    draw = data.draw
    dims, groups, transposed = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.booleans())

    def several(low, high):
        many = draw(st.tuples(*[st.integers(low, high)] * dims))
        return draw(st.sampled_from([many, many[0]]))

    how = {"stride": several(1, 3), "dilation": several(1, 2), "groups": groups, "padding": several(0, 2)}
    if transposed:
        how["output_padding"] = draw(st.integers(0, torch.tensor(how["stride"]).min().item() - 1))
    elif draw(st.booleans()):
        how["padding"] = draw(st.sampled_from(["valid", "same"]))
        how |= {"stride": 1} if how["padding"] == "same" else {}
    n, c, o = (draw(st.integers(1, 2)) for _ in range(3))
    kernel, size = (draw(st.tuples(*[st.integers(*limits)] * dims)) for limits in ((1, 3), (3, 6)))
    function = getattr(F, f"conv{'_transpose' * transposed}{dims}d")
    wide = (c * groups, o) if transposed else (o * groups, c)
    shapes = [(n, c * groups, *size), (*wide, *kernel), (o * groups,)][: draw(st.integers(2, 3))]
    if draw(st.booleans()):  # one sample without its batch
        shapes[0] = shapes[0][1:]
    inputs = [torch.randn(s, dtype=torch.float64, device=DEVICE) for s in shapes]
    for t in inputs:
        t.requires_grad_(draw(st.booleans()))
    wanted = [t for t in inputs if t.requires_grad]

    def call(*tensors):
        return function(*tensors, **how)

    try:
        call(*inputs)
    except RuntimeError:  # nothing is left of the image, or PyTorch has no such call
        hypothesis.reject()

    def differentiate():
        first = torch.autograd.grad(call(*inputs).pow(3).sum(), wanted, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), wanted, create_graph=True)
        if how.get("output_padding"):  # PyTorch's own third derivative ends in an error there
            return first + second
        return first + second + torch.autograd.grad(sum(g.square().sum() for g in second), wanted)

    if wanted:
        plain = differentiate()
        with fast_double_backward():
            torch.testing.assert_close(differentiate(), plain, rtol=1e-8, atol=1e-8)
            if draw(st.integers(0, 4)) == 0:
                assert gradcheck(call, inputs, fast_mode=True) and gradgradcheck(call, inputs, fast_mode=True)


MODULES = [
    nn.Conv1d(4, 6, 3, padding="same", padding_mode="reflect", groups=2),
    nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode="circular"),
    nn.Conv2d(4, 4, 4, groups=4, bias=False, dilation=2, padding=(3, 2)),
    nn.Conv3d(4, 2, 3, padding=1),
    nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1),
    nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    nn.ConvTranspose2d(4, 2, 3, dilation=2, bias=False),
]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_modules_are_served_with_their_padding(module):
    module = copy.deepcopy(module).to(DEVICE, torch.float64)
    dims = module.weight.dim() - 2
    x = torch.randn(2, 4, *(7,) * dims, dtype=torch.float64, device=DEVICE)
    plain = penalize(module, x)
    with fast_double_backward():
        torch.testing.assert_close(penalize(module, x), plain, rtol=1e-8, atol=1e-8)


def test_no_kernel_is_as_large_as_an_image_and_groups_are_no_loop():
    x = torch.randn(2, 8, 20, 20, device=DEVICE, requires_grad=True)
    one, two = (torch.randn(8, 1, 3, 3, device=DEVICE, requires_grad=True) for _ in range(2))
    with fast_double_backward(), torch.autograd.set_multithreading_enabled(False):
        y = imported_before(imported_before(x, one, groups=8), two, groups=8)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        with Convolutions() as seen:
            g.square().sum().backward()
    assert seen.longest == 3 and seen.calls == 1  # from the first layer's derivative to the second's


# ---- dtypes and memory formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_results_are_channels_last_where_pytorchs_first_gradients_are(kind, groups):
    network = kind(8, 8, 3, padding=1, groups=groups).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(2, 8, 6, 6, device=DEVICE).contiguous(memory_format=torch.channels_last)
    first = torch.autograd.grad(network(x.requires_grad_()).pow(3).sum(), (x, network.weight))
    with fast_double_backward():
        second = penalize(network, x)[:2]
    for one, two in zip(first, second, strict=True):
        assert one.stride() == two.stride() and two.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_under_autocast_the_errors_are_those_of_pytorch(layout):
    network = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 4, 3, stride=2, groups=2))
    network, x = network.to(DEVICE, memory_format=layout), torch.randn(4, 4, 8, 8, device=DEVICE)
    exact = penalize(copy.deepcopy(network).double(), x.double())

    def measure_error():
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            found = penalize(network, x, torch.float32)
        assert all(t.dtype is torch.float32 for t in found)
        return [
            float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True) if b.any()
        ]

    plain = measure_error()
    with fast_double_backward():
        fast = measure_error()
    assert all(a < 2 * b + 1e-3 for a, b in zip(fast, plain, strict=True)), (fast, plain)


def test_a_second_pass_inside_autocast_computes_in_the_dtype_of_the_forward_pass():
    """On a GPU autocast would turn the convolutions of the formula to bfloat16."""
    network, x = nn.Conv2d(4, 4, 3).to(DEVICE), torch.randn(2, 4, 6, 6, device=DEVICE, requires_grad=True)
    (g,) = torch.autograd.grad(network(x).pow(3).sum(), x, create_graph=True)
    with fast_double_backward():
        outside = torch.autograd.grad(g.square().sum(), network.weight, retain_graph=True)[0]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            inside = torch.autograd.grad(g.square().sum(), network.weight)[0]
    torch.testing.assert_close(inside, outside, rtol=1e-6, atol=1e-5)


# ---- less usual calls ----------------------------------------------------------------------------------------------


def test_complex_numbers_and_vmap_have_the_right_results():
    shapes = (2, 4, 5, 5), (4, 2, 3, 3)
    x, weight = (torch.randn(s, dtype=torch.complex128, device=DEVICE, requires_grad=True) for s in shapes)
    with fast_double_backward():
        assert gradgradcheck(lambda x, w: F.conv2d(x, w, groups=2), (x, weight), fast_mode=True)

    def penalty(weight, x):
        g = torch.func.grad(lambda x: F.conv2d(x[None], weight, groups=2).pow(3).sum())(x)
        return g.square().sum()

    x, weight = x.detach().real, weight.detach().real
    each = torch.func.vmap(torch.func.grad(penalty), (None, 0))
    plain = each(weight, x)
    with fast_double_backward():
        torch.testing.assert_close(each(weight, x), plain)

    x.requires_grad_()
    (g,) = torch.autograd.grad(F.conv2d(x, weight, groups=2).pow(3).sum(), x, create_graph=True)
    many = torch.randn(3, *g.shape, dtype=g.dtype, device=DEVICE)
    plain = torch.autograd.grad(g, x, many, is_grads_batched=True, retain_graph=True)
    with fast_double_backward():
        torch.testing.assert_close(torch.autograd.grad(g, x, many, is_grads_batched=True), plain)


def test_a_compiled_region_is_left_alone():
    weight = torch.randn(4, 4, 3, 3, device=DEVICE, requires_grad=True)
    x = torch.randn(2, 4, 6, 6, device=DEVICE, requires_grad=True)
    compiled = torch.compile(lambda x: F.conv2d(x, weight).square().sum(), backend="aot_eager")
    with fast_double_backward():
        (g,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        torch.testing.assert_close(g, torch.autograd.grad(F.conv2d(x, weight).square().sum(), x)[0])
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            g.square().sum().backward()


# ---- on and off --------------------------------------------------------------------------------------------------


def test_uses_nest_and_overlap_and_the_last_one_ends_it():
    assert not is_fast()
    first = fast_double_backward()
    with first as same:
        assert same is first and is_fast()
        with fast_double_backward():
            second = fast_double_backward()
            first.undo()
            assert is_fast()
        assert is_fast()
        second.undo()
        second.undo()
        assert not is_fast()
    assert not is_fast()
    with pytest.raises(ZeroDivisionError), fast_double_backward():
        raise ZeroDivisionError
    assert not is_fast()


def test_it_counts_while_the_second_pass_runs_in_any_thread():
    """DataParallel runs a network in threads of its own, and autograd the gradients of each device."""
    seen: list[bool] = []
    with fast_double_backward():
        thread = threading.Thread(target=lambda: seen.append(is_fast()))
        thread.start()
        thread.join()
        x = torch.randn(2, 2, 9, 9, device=DEVICE, requires_grad=True)
        weight = torch.randn(2, 2, 3, 3, device=DEVICE, requires_grad=True)
        (g,) = torch.autograd.grad(F.conv2d(x, weight).sum(), x, create_graph=True)
    assert seen == [True]
    with torch.autograd.set_multithreading_enabled(False), Convolutions() as after:
        g.square().sum().backward()  # a graph made inside has nothing of ours
    assert after.longest > 3


def test_nothing_is_kept_after_it_was_undone():
    with fast_double_backward():
        x = torch.randn(2, 2, 9, 9, device=DEVICE, requires_grad=True)
        network = nn.Conv2d(2, 2, 3).to(DEVICE)
        found = penalize(network, x)
        library = weakref.ref(double_backward._shared["library"])
    alive = [weakref.ref(t) for t in (x, network, *found)]
    del x, network, found
    gc.collect()
    assert library() is None and not any(t() is not None for t in alive)
    assert not any("convolution_double_backward" in name for name in torch.library._impls)


def shard(network):
    """Return the network with its layers sharded, and weights that stay for the second backward pass."""
    for layer in (network[0], network[2], network):
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    network.set_reshard_after_backward(False)
    return network


@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, shard], ids=["ddp", "fsdp"])
def test_a_wrapped_module_has_the_gradients_of_its_module(tmp_path, wrap):
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, groups=2, bias=False)
    )
    network, x = network.double(), torch.randn(2, 2, 9, 9, dtype=torch.float64)
    plain = penalize(network, x)
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        wrapped, x = wrap(copy.deepcopy(network)), x.requires_grad_()
        with fast_double_backward(), torch.autograd.set_multithreading_enabled(False), Convolutions() as seen:
            (g,) = torch.autograd.grad(wrapped(x).pow(3).sum(), x, create_graph=True)
            g.square().sum().backward()
        assert seen.longest == 3
        found = [x.grad]
        if wrap is not shard:  # FSDP collects no gradients of weights from a second backward pass
            found += [p.grad for p in wrapped.parameters()]
        for one, two in zip(found, plain, strict=False):
            torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)
    finally:
        torch.distributed.destroy_process_group()
