"""Fully connected layers beyond the table of `opcases.py`: sizes, splits, launches and where gradients lie."""

import sys

import pytest
import torch
from torch import Tensor

import kernels
from ladder.receipts.watch import count_launches
from tests.kernels.opcases import DEVICE, LEAKY, values_and_grads
from tests.support.kernel_checks import assert_untouched, poison_memory

module, plans = sys.modules["kernels.linear.dense"], sys.modules["kernels.linear.dense_launches"]
LINEAR = {"weight_gain": 0.3, "bias_gain": 0.7}
WIDTHS, SLOTS = (4, 3, 1, 9, 4), (0, 2, 0, 3, 0)  # one slot is read by three layers, one by none
torch.set_num_threads(1)
both = pytest.mark.parametrize("options", [LEAKY, LINEAR], ids=["leaky", "linear"])


@pytest.fixture(autouse=True)
def fresh_plans():
    plans._cover.cache_clear()
    yield
    plans._cover.cache_clear()


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(s, dtype=torch.float64, device=DEVICE, requires_grad=True) for s in shapes]


def layer(n=5, i=13, o=6, bias=True) -> list[Tensor]:
    return tensors((n, i), (o, i), *[(o,)] * bias)


def group(n=3, i=10, slots=4) -> list[Tensor]:
    return tensors((n, slots, i), *((w, i) for w in WIDTHS), *((w,) for w in WIDTHS))


def grouped(function):
    """The op as a function of tensors alone."""
    return lambda x, *t: function(x, t[: len(WIDTHS)], t[len(WIDTHS) :], SLOTS, weight_gain=0.3)


def agree(inputs: list[Tensor], **options) -> None:
    ops = (kernels.dense, kernels.dense_reference)
    torch.testing.assert_close(*(values_and_grads(lambda *t, f=f: f(*t, **options), inputs) for f in ops))


@pytest.mark.covering("shape", "options")
@both
@pytest.mark.parametrize(
    "shape",
    [(5, 13, 6), (1, 1, 1), (9, 130, 3), (17, 6, 18), (2, 600, 5)],
    ids=lambda s: "x".join(map(str, s)),
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_agrees_with_plain_pytorch(shape, options, bias):
    agree(layer(*shape, bias=bias), **options)


def test_inputs_split_among_programs_add_up(monkeypatch):
    """As where a layer has thousands of inputs: a second launch adds the parts and goes on from there."""
    monkeypatch.setattr(plans, "DEEP", 64)
    with count_launches() as seen:
        agree(layer(3, 1100, 5), **LEAKY)
    assert seen["dense_finish_kernel"]["calls"] > 0
    agree(layer(3, 257, 5, bias=False), **LINEAR)


@pytest.mark.parametrize(("n", "ours"), [(15, 1), (16, 1), (64, 0)])
@both
def test_many_samples_of_a_deep_layer_are_a_library_s_products(n, ours, options, monkeypatch):
    """Weights from 16 samples on, x from 64 on. Memory full of NaN shows what a product leaves unwritten."""
    monkeypatch.setattr(plans, "DEEP", 64)
    inputs = layer(n, 70, 5, bias=options is LEAKY)
    around = poison_memory(monkeypatch)
    agree(inputs, **options)
    assert_untouched(around)
    y = kernels.dense(*inputs, **options)
    for by, count in ((inputs, ours), (inputs[1:], int(n < 16))):
        with count_launches() as seen:
            torch.autograd.grad(y.sum(), by, retain_graph=True)
        assert seen.get("dense_grad_kernel", {"calls": 0})["calls"] == count


@pytest.mark.parametrize("n", [0, 3])
def test_nothing_to_sum(n):
    """An empty batch has gradients of zero for its weights; a layer without inputs is its bias."""
    for inputs in (layer(n, 4, 3), layer(n, 0, 3), layer(n, 4, 0)):
        agree(inputs, **LEAKY)
    ops = (kernels.dense_group, kernels.dense_group_reference)
    torch.testing.assert_close(*(values_and_grads(grouped(f), group_) for group_ in [group(n)] for f in ops))


def test_an_output_that_nobody_differentiates_and_a_group_without_bias():
    inputs, found = group(), []
    for f in (kernels.dense_group, kernels.dense_group_reference):
        y = grouped(f)(*inputs)[1]
        found.append(torch.autograd.grad(y.square().sum(), (inputs[0], inputs[2]), create_graph=True))
        found[-1] += tuple(f(inputs[0], inputs[1 : 1 + len(WIDTHS)], None, SLOTS))
    torch.testing.assert_close(*found)


def test_launches_are_few():
    """All layers forward are one launch, all their gradients one, and each derivative of path length's one."""
    x, *rest = group()
    with count_launches() as seen:
        ys = grouped(kernels.dense_group)(x, *rest)
        torch.autograd.grad(ys, [x, *rest], [torch.ones_like(y) for y in ys], retain_graph=True)
    assert {name: each["calls"] for name, each in seen.items()} == {"dense_kernel": 1, "dense_grad_kernel": 1}
    gs = [torch.ones_like(y).requires_grad_() for y in ys]
    with count_launches() as seen:
        (dx,) = torch.autograd.grad(ys, x, gs, create_graph=True)
    assert {name: each["calls"] for name, each in seen.items()} == {"dense_grad_kernel": 1}
    with count_launches() as seen:
        torch.autograd.grad(dx.square().sum(), [*gs, *rest[: len(WIDTHS)]])
    assert {name: each["calls"] for name, each in seen.items()} == {"dense_kernel": 1, "dense_grad_kernel": 1}


def test_gradients_of_a_group_become_p_grad_without_a_copy():
    """Each is a slice of one buffer, which AccumulateGrad takes as it is: forty copies would be forty launches."""
    x, *rest = group()
    sum(y.sum() for y in grouped(kernels.dense_group)(x, *rest)).backward()
    for same in (rest[: len(WIDTHS)], rest[len(WIDTHS) :]):
        assert len({p.grad.untyped_storage().data_ptr() for p in same}) == 1
        assert len({p.grad.data_ptr() for p in same}) == len(same)
        assert all(p.grad.is_contiguous() and p.grad.data_ptr() % 16 == 0 for p in same)


def test_bytes_moved_are_those_of_x_weight_and_y():
    x, weight = torch.zeros(2, 4), torch.zeros(3, 4)
    assert module.bytes_moved(x, weight) == (8 + 12 + 6) * 4
    assert module.bytes_moved(x, weight, backward=True) == (2 * (8 + 12) + 6) * 4
